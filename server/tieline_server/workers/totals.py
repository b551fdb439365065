"""What workers have counted, added up so that no sum ever shrinks, whoever dies.

Each worker writes down what it tells before it tells it, and every second besides: what a kill
can lose is what nobody has seen. Those of the dead are joined into one file by the supervisor,
which names whose numbers are in it: who adds up meanwhile counts each worker once.
"""

import asyncio
import logging
import os
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Final

from tieline.errors import ApiError
from tieline_server.homes import Home
from tieline_server.observability.metrics import add_up

logger: Final = logging.getLogger("tieline.workers")

SUFFIX: Final = ".totals"
DEAD: Final = "dead.totals"

EVERY: Final = 1.0
"""Seconds between two times that a worker writes down its numbers."""

NAMED: Final = 1024
"""The dead that are still named: long enough for whoever was adding up as they died."""


class Totals:
    """The numbers of a worker with this mark, in the folder that all share."""

    def __init__(self, folder: Path, mark: bytes) -> None:
        self._folder = folder
        self._path = folder / (mark.hex() + SUFFIX)
        self._written = b""

    def recorded(self, text: bytes) -> bytes:
        """The text, once it is written down.

        Where that cannot be (a full disk), what is told is told all the same.
        """
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

    async def add_up(self, homes: Mapping[bytes, Home]) -> bytes:
        """The numbers of all: as the living tell them, and as the others have left them."""
        told = await _told(homes)
        left = _left(self._folder, told)
        # Last: whoever died meanwhile is in it by now, or still has a file of its own.
        named, dead = _read_dead(self._folder)
        return add_up(
            (text for mark, text in told.items() if mark not in named),
            (dead, *(text for mark, text in left.items() if mark not in named)),
        )


def bury(folder: Path, mark: bytes) -> None:
    """Joins what a worker has left to what all the dead have left, where that can be written."""
    try:
        _join(folder, mark)
    except OSError as error:
        # What waits for this has more to clear away; the file stays, and still counts.
        logger.warning("numbers of a dead worker are not joined: %s", error.strerror)


def _join(folder: Path, mark: bytes) -> None:
    path = folder / (mark.hex() + SUFFIX)
    try:
        text = path.read_bytes()
    except FileNotFoundError:
        return
    named, dead = _read_dead(folder)
    names = " ".join(each.hex() for each in [*named, mark][-NAMED:])
    _write(folder / DEAD, f"{names}\n".encode() + add_up((), (dead, text)))
    path.unlink()


async def _told(homes: Mapping[bytes, Home]) -> dict[bytes, bytes]:
    answers = await asyncio.gather(
        *(home.metrics() for home in homes.values()), return_exceptions=True
    )
    told: dict[bytes, bytes] = {}
    for mark, answer in zip(homes, answers, strict=True):
        if isinstance(answer, bytes):
            told[mark] = answer
        elif not isinstance(answer, ApiError):
            raise answer
    return told


def _left(folder: Path, told: Mapping[bytes, bytes]) -> dict[bytes, bytes]:
    """What is written down of those that tell nothing."""
    left: dict[bytes, bytes] = {}
    for path in folder.glob(f"*{SUFFIX}"):
        if path.name == DEAD:
            continue
        mark = bytes.fromhex(path.name.removesuffix(SUFFIX))
        if mark not in told:
            try:
                left[mark] = path.read_bytes()
            except FileNotFoundError:
                continue
    return left


def _read_dead(folder: Path) -> tuple[list[bytes], bytes]:
    """Whose numbers are joined, and the numbers."""
    try:
        names, _, text = (folder / DEAD).read_bytes().partition(b"\n")
    except FileNotFoundError:
        return [], b""
    return [bytes.fromhex(name) for name in names.decode().split()], text


def _write(path: Path, content: bytes) -> None:
    """Whole or not at all, for whoever reads meanwhile."""
    new = path.with_suffix(f".{os.getpid()}.new")
    new.write_bytes(content)
    new.rename(path)
