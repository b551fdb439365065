"""What a guard says of input, remembered on the chain: each item is read once.

A verdict hangs on a link and is that of the chain up to it. What a guard let be sampled from
has a mark of its own, because what follows such a link in the same turn is the engine's answer,
which was read on its way out. An appended tool output follows an answer, and has no such link
before it.
"""

import asyncio
import hashlib
import time
from collections import OrderedDict
from collections.abc import Sequence
from enum import Enum
from typing import Final

from tieline_server.core.create.settings import Settings
from tieline_server.core.effects import Prompt
from tieline_server.core.history.chain import ChainNode
from tieline_server.guards.base import Counts, Guard, Piece, Unchecked
from tieline_server.guards.pieces import heads_of, is_models_own, piece_of

HEADS: Final = 256
"""Different sets of instructions and tools whose verdict is remembered."""

LARGE: Final = 256 * 1024
"""Bytes of items, or of instructions and tools, that are not taken apart on the loop."""


class Verdict(Enum):
    """Of a chain, as it ends in a link."""

    CLEAN = "clean"
    SAMPLED = "sampled"
    """Clean, and an engine went on from there: what is next in the same turn is its answer."""
    FLAGGED = "flagged"


class Verdicts:
    """A guard's verdicts on input."""

    def __init__(self, guard: Guard, counts: Counts) -> None:
        self._guard = guard
        self._counts = counts
        self._label = (guard.name, "input")
        self._key = ("guard", guard.name)
        # What an answer says is its own matter where only input is looked at.
        self._reads_all = "output" in guard.applies
        self._heads: OrderedDict[object, str | None] = OrderedDict()

    async def flagged(self, prompt: Prompt) -> str | None:
        """The parameter that is flagged, or None: from here on an engine may go on.

        Raises :class:`Unchecked`.
        """
        param = await self._head(prompt.settings)
        if param is not None:
            return param
        while True:
            pending, last = self._pending(prompt.chain)
            if isinstance(last, asyncio.Future):
                # Another turn has the same links read; what comes of it is seen there.
                await asyncio.wait((last,))
            elif last is Verdict.FLAGGED or not await self._read(pending):
                return "input"
            else:
                prompt.chain.memo[self._key] = Verdict.SAMPLED
                return None

    def _pending(
        self, last_node: ChainNode
    ) -> tuple[list[ChainNode], "Verdict | asyncio.Future[None] | None"]:
        """The links without a verdict, in order, and what stands before them."""
        pending: list[ChainNode] = []
        link: ChainNode | None = last_node
        while link is not None and self._key not in link.memo:
            pending.append(link)
            link = link.base
        pending.reverse()
        return pending, None if link is None else link.memo[self._key]

    async def _read(self, links: Sequence[ChainNode]) -> bool:
        """Reads what is new and leaves verdicts; False where something is flagged."""
        new = [link for link in links if not self._is_answer(link)]
        for link in links:
            link.memo[self._key] = Verdict.CLEAN
        if not new:
            return True
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        for link in new:
            link.memo[self._key] = done
        try:
            flagged = await self._first(new)
        except BaseException:
            for link in links:
                link.memo.pop(self._key, None)
            raise
        finally:
            done.set_result(None)
        for at, link in enumerate(new):
            if flagged is None or at < flagged:
                link.memo[self._key] = Verdict.CLEAN
            elif at == flagged:
                link.memo[self._key] = Verdict.FLAGGED
        if flagged is not None:
            self._unread(links[links.index(new[flagged]) + 1 :])
        return flagged is None

    def _unread(self, links: Sequence[ChainNode]) -> None:
        """Nothing is said of what comes behind a link that is flagged."""
        for link in links:
            link.memo.pop(self._key, None)

    async def _first(self, links: Sequence[ChainNode]) -> int | None:
        """The first link with a piece that is flagged."""
        if sum(link.size for link in links) > LARGE:
            found = await asyncio.to_thread(self._pieces, links)
        else:
            found = self._pieces(links)
        at = await self._ask([piece for _, piece in found])
        return None if at is None else found[at][0]

    def _pieces(self, links: Sequence[ChainNode]) -> list[tuple[int, Piece]]:
        pieces = []
        for at, link in enumerate(links):
            for item in link.shown:
                if self._reads_all or not is_models_own(item):
                    piece = piece_of(item)
                    if piece.text or piece.images:
                        pieces.append((at, piece))
        return pieces

    async def _head(self, settings: Settings) -> str | None:
        """The verdict on instructions and tools, which is that of the last time."""
        key = _head_key(settings)
        if key in self._heads:
            self._heads.move_to_end(key)
            return self._heads[key]
        if settings.echoed > LARGE:
            heads = await asyncio.to_thread(list, heads_of(settings))
        else:
            heads = list(heads_of(settings))
        at = await self._ask([piece for _, piece in heads])
        param = self._heads[key] = None if at is None else heads[at][0]
        if len(self._heads) > HEADS:
            self._heads.popitem(last=False)
        return param

    async def _ask(self, pieces: Sequence[Piece]) -> int | None:
        """Asks the guard, and counts."""
        return await ask(self._guard, pieces, self._counts, self._label)

    def _is_answer(self, link: ChainNode) -> bool:
        """Whether an engine said this, on from a link that was let through."""
        before = link.parent
        if before is None or before.turn != link.turn:
            return False
        return before.memo.get(self._key) is Verdict.SAMPLED


def _head_key(settings: Settings) -> object:
    """What verdicts on instructions and tools are remembered by; of large ones a digest.

    A client may send others with every create: nothing that is large is kept for the next one.
    """
    if settings.echoed <= LARGE:
        return settings.instructions, settings.tools.offered, settings.format
    digest = hashlib.blake2b()
    for name in ("instructions", "tools", "text"):
        raw = bytes(settings.echo[name])
        digest.update(b"%d:%b" % (len(raw), raw))
    return digest.digest()


async def ask(
    guard: Guard, pieces: Sequence[Piece], counts: Counts, label: tuple[str, str]
) -> int | None:
    """Has a guard read some pieces, and counts it.

    Raises :class:`Unchecked` where it could not be asked and is not lenient.
    """
    if not pieces:
        return None
    began = time.perf_counter()
    counts.checks[label] += len(pieces)
    try:
        at = await guard.first_flagged(pieces)
    except Unchecked:
        counts.failures[label] += 1
        if not guard.lenient:
            raise
        return None
    finally:
        counts.seconds[label] += time.perf_counter() - began
    if at is not None:
        counts.hits[label] += 1
    return at
