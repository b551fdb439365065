"""A guard of the test's own making, which notes what it reads."""

import asyncio
from collections.abc import Sequence
from typing import Final

from tests.support.signal import Signal
from tieline_server.guards.base import Piece, Stage, Unchecked

BOTH: Final[frozenset[Stage]] = frozenset({"input", "output"})


class Reader:
    """Has to be asked; flags what has ``phrase`` in it, once its gate is open."""

    message: str | None = None
    lenient = False

    def __init__(
        self, phrase: str = "bad", *, applies: frozenset[Stage] = BOTH, name: str = "reader"
    ) -> None:
        self.name = name
        self.applies = applies
        self.phrase = phrase
        self.read: list[str] = []
        """Texts that it was asked about, in order."""
        self.calls = 0
        self.fails = False
        self.waiting = 0
        self.signal = Signal()
        self.gate = asyncio.Event()
        self.gate.set()

    async def first_flagged(self, pieces: Sequence[Piece]) -> int | None:
        """Which piece is the first."""
        self.calls += 1
        self.read += [piece.text for piece in pieces]
        self.waiting += 1
        self.signal.notify()
        try:
            await self.gate.wait()
        finally:
            self.waiting -= 1
        if self.fails:
            raise Unchecked
        found = (at for at, piece in enumerate(pieces) if self.phrase in piece.text)
        return next(found, None)

    async def close(self) -> None:
        """Nothing to free."""
