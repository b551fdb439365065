"""Metrics of all workers, added up so that no sum shrinks when a worker dies.

Each worker writes its numbers down before it tells them, and every second besides: a kill loses
only what was never told. The supervisor merges the files of dead workers into one, which names
the workers whose numbers are in it, so that a worker that adds up meanwhile counts each once.
"""

import asyncio
import logging
import os
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Final

from tieline.errors import ApiError
from tieline_server.observability.metrics import add_up
from tieline_server.peers import Peer

logger: Final = logging.getLogger("tieline.workers")

SUFFIX: Final = ".totals"
DEAD: Final = "dead.totals"

EVERY: Final = 1.0
"""Seconds between two times that a worker writes down its numbers."""

NAMED: Final = 1024
"""Dead workers that are still named: a worker that was adding up as they died looks there."""


class Totals:
    """The numbers of the worker with this tag, in the folder that all share."""

    def __init__(self, folder: Path, tag: bytes) -> None:
        self._folder = folder
        self._path = folder / (tag.hex() + SUFFIX)
        self._written = b""

    def recorded(self, text: bytes) -> bytes:
        """Writes the text down and returns it; it is told even where the disk is full."""
        if text != self._written:
            try:
                _write(self._path, text)
            except OSError as error:
                logger.warning("numbers are not written down: %s", error.strerror)
            else:
                self._written = text
        return text

    async def keep(self, metrics: Callable[[], Awaitable[bytes]]) -> None:
        """Writes down what ``metrics`` says, again and again, until cancelled."""
        while True:
            await metrics()
            await asyncio.sleep(EVERY)

    async def add_up(self, peers: Mapping[bytes, Peer]) -> bytes:
        """Adds up what living workers tell and what dead ones have left."""
        told = await _told(peers)
        left = _left(self._folder, told)
        # Last: a worker that died meanwhile is in it by now, or still has a file of its own.
        named, dead = _read_dead(self._folder)
        return add_up(
            (text for tag, text in told.items() if tag not in named),
            (dead, *(text for tag, text in left.items() if tag not in named)),
        )


def merge_dead(folder: Path, tag: bytes) -> None:
    """Merges the file of a dead worker into that of all dead ones, where it can be written."""
    try:
        _join(folder, tag)
    except OSError as error:
        # The caller has more to clear away; the file stays, and still counts.
        logger.warning("numbers of a dead worker are not joined: %s", error.strerror)


def _join(folder: Path, tag: bytes) -> None:
    path = folder / (tag.hex() + SUFFIX)
    try:
        text = path.read_bytes()
    except FileNotFoundError:
        return
    named, dead = _read_dead(folder)
    names = " ".join(each.hex() for each in [*named, tag][-NAMED:])
    _write(folder / DEAD, f"{names}\n".encode() + add_up((), (dead, text)))
    path.unlink()


async def _told(peers: Mapping[bytes, Peer]) -> dict[bytes, bytes]:
    answers = await asyncio.gather(
        *(peer.metrics() for peer in peers.values()), return_exceptions=True
    )
    told: dict[bytes, bytes] = {}
    for tag, answer in zip(peers, answers, strict=True):
        if isinstance(answer, bytes):
            told[tag] = answer
        elif not isinstance(answer, ApiError):
            raise answer
    return told


def _left(folder: Path, told: Mapping[bytes, bytes]) -> dict[bytes, bytes]:
    """Reads what is written down of workers that tell nothing."""
    left: dict[bytes, bytes] = {}
    for path in folder.glob(f"*{SUFFIX}"):
        if path.name == DEAD:
            continue
        tag = bytes.fromhex(path.name.removesuffix(SUFFIX))
        if tag not in told:
            try:
                left[tag] = path.read_bytes()
            except FileNotFoundError:
                continue
    return left


def _read_dead(folder: Path) -> tuple[list[bytes], bytes]:
    """Reads the tags of the workers that are merged, and their numbers."""
    try:
        names, _, text = (folder / DEAD).read_bytes().partition(b"\n")
    except FileNotFoundError:
        return [], b""
    return [bytes.fromhex(name) for name in names.decode().split()], text


def _write(path: Path, content: bytes) -> None:
    """Replaces a file at once: a reader finds the old content or the new one."""
    new = path.with_suffix(f".{os.getpid()}.new")
    new.write_bytes(content)
    new.rename(path)
