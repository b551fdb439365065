"""What the bare servers share: their command line, the bytes they send, and one metronome."""

import asyncio
import sys
import time
from collections.abc import Awaitable, Callable
from math import floor
from pathlib import Path
from typing import Final, NamedTuple

import uvloop

TURN_FILE: Final = "turn.bin"
DELTA_FILE: Final = "delta.bin"
END_FILE: Final = "end.bin"

TURNS: Final = "turns"
TOKENS: Final = "tokens"
"""Modes: each request is answered by a whole turn, or by a stream of tokens."""


class Pieces(NamedTuple):
    """The bytes that a bare server sends, recorded from the product on the same transport."""

    turn: bytes
    """All events of a turn, joined."""
    delta: bytes
    """One delta."""
    end: bytes
    """The last delta of a turn and all that ends it."""


class Order(NamedTuple):
    """What the command line asks for."""

    pieces: Pieces
    mode: str
    tokens: int
    """Tokens of a stream."""
    rate: int
    """Tokens a second of each stream."""


Serve = Callable[[Order], Awaitable[str]]
"""Starts to serve and returns HOST:PORT."""


def run(transport: str, serve: Serve) -> None:
    """Serves as ``argv`` asks until the process is killed; prints where, once it listens."""
    order = _order(sys.argv[1:])

    async def forever() -> None:
        address = await serve(order)
        print(f"{transport} listening on {address}", flush=True)
        await asyncio.Event().wait()

    uvloop.run(forever())


def _order(arguments: list[str]) -> Order:
    folder, mode, tokens, rate = Path(arguments[0]), *arguments[1:4]
    names = (TURN_FILE, DELTA_FILE, END_FILE)
    pieces = Pieces(*((folder / name).read_bytes() for name in names))
    return Order(pieces, mode, int(tokens), int(rate))


class Metronome:
    """Tells streams how many tokens are due, all of them by one timer of the loop."""

    def __init__(self, rate: int) -> None:
        self._rate = rate
        self._loop = asyncio.get_running_loop()
        self._feeds: set[Feed] = set()
        self._timer: asyncio.TimerHandle | None = None

    def feed(self, tokens: int, give: Callable[[int], None]) -> None:
        """Calls ``give(n)`` when ``n`` more tokens are due, until all ``tokens`` were."""
        # Not the loop's own time: that stands still while the loop works.
        self._feeds.add(Feed(tokens, give, time.monotonic()))
        if self._timer is None:
            self._tick()

    def _tick(self) -> None:
        now = time.monotonic()
        for feed in list(self._feeds):
            due = min(floor((now - feed.start) * self._rate + 1e-6) + 1, feed.tokens)
            if due > feed.given:
                news, feed.given = due - feed.given, due
                if due == feed.tokens:
                    self._feeds.discard(feed)
                feed.give(news)
        more = bool(self._feeds)
        self._timer = self._loop.call_later(1 / self._rate, self._tick) if more else None


class Feed:
    """One stream of a metronome."""

    __slots__ = ("give", "given", "start", "tokens")

    def __init__(self, tokens: int, give: Callable[[int], None], start: float) -> None:
        self.tokens = tokens
        self.give = give
        self.start = start
        self.given = 0
