"""When the tokens of scripted answers are due, and one timer that wakes all who wait for theirs.

A sleep for each token of each stream would cost a timer and a wake of the loop each. Here all
streams of an engine share a :class:`Ticker`: the loop's timer is set for the earliest time that
anyone waits for, and one wake serves everyone whose time has come. Times are absolute, so a
late wake delays the tokens of that wake and no others.
"""

import asyncio
import heapq
import itertools
import math
from collections.abc import Callable
from typing import Final

from tieline_server.engines.scripted.script import Pace

STEP: Final = 32
"""Tokens of an unlimited pace between two turns of the loop, and the most in one step."""


class Ticker:
    """Lets many wait for their times with one timer. ``clock`` tells seconds, monotonic."""

    __slots__ = ("_due", "_gone", "_order", "_timer", "_timer_at", "clock")

    def __init__(self, clock: Callable[[], float]) -> None:
        self.clock = clock
        self._order = itertools.count()
        self._due: list[tuple[float, int, asyncio.Future[float]]] = []
        self._gone = 0
        """How many of them have given up."""
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = math.inf

    def __len__(self) -> int:
        """How many are remembered; some of them may have given up."""
        return len(self._due)

    async def until(self, due: float) -> float:
        """Returns at ``due``, not before; lets the loop run once if that has passed.

        What is returned is the time of the wake.
        """
        now = self.clock()
        if due <= now:
            await asyncio.sleep(0)
            return self.clock()
        waiter: asyncio.Future[float] = asyncio.Future()
        heapq.heappush(self._due, (due, next(self._order), waiter))
        if due < self._timer_at:
            self._arm(due - now)
        try:
            return await waiter
        except asyncio.CancelledError:
            self._give_up(waiter)
            raise

    def wake_all(self) -> None:
        """Everyone who waits goes on now, whatever the time."""
        now = self.clock()
        for _, _, waiter in self._due:
            if not waiter.done():
                waiter.set_result(now)
        self._due.clear()
        self._gone = 0
        self._disarm()

    def _arm(self, delay: float) -> None:
        """Sets the timer for the first who waits, ``delay`` from now."""
        self._disarm()
        # Loops count in whole milliseconds and some of them round down: too early would
        # mean to wake twice.
        delay = max(math.ceil(delay * 1000) / 1000, 0.001)
        self._timer_at = self._due[0][0]
        self._timer = asyncio.get_running_loop().call_later(delay, self._fire)

    def _disarm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer, self._timer_at = None, math.inf

    def _fire(self) -> None:
        self._timer, self._timer_at = None, math.inf
        now = self.clock()
        due = self._due
        while due and (due[0][0] <= now or due[0][2].done()):
            waiter = heapq.heappop(due)[2]
            if waiter.done():
                self._gone -= 1
            else:
                waiter.set_result(now)
        if due:
            self._arm(due[0][0] - now)

    def _give_up(self, waiter: asyncio.Future[float]) -> None:
        """Forgets those who gave up, once they are the most of those who are remembered."""
        self._gone += waiter.cancelled()
        if 2 * self._gone <= len(self._due):
            return
        self._due = [entry for entry in self._due if not entry[2].done()]
        heapq.heapify(self._due)
        self._gone = 0
        if not self._due:
            self._disarm()


class Pacer:
    """The pace of one answer: token n (from 0) is due at start + time to first token + n / rate."""

    __slots__ = ("_late", "_origin", "_rate", "_ticker")

    def __init__(self, pace: Pace, ticker: Ticker, *, start: float) -> None:
        self._ticker = ticker
        self._late = pace.ttft_ms > 0
        self._origin = start + pace.ttft_ms / 1000
        self._rate = pace.tokens_per_second

    def due(self, sent: int) -> float | None:
        """When the next token is due, where ``sent`` are out; None where nothing is to wait for."""
        if self._rate is not None:
            return self._origin + sent / self._rate
        return self._origin if sent or self._late else None

    def allowance(self, sent: int, now: float) -> int:
        """How many tokens are due at ``now``, when the next one is: 1 to :data:`STEP`."""
        if self._rate is None:
            return STEP
        # The millionth keeps a token that is due exactly now from being rounded away.
        due = math.floor((now - self._origin) * self._rate + 1e-6) + 1 - sent
        if due >= STEP:
            return STEP
        return due if due > 1 else 1

    async def stall(self, seconds: float) -> None:
        """Nothing is due for ``seconds``; everything after it is due that much later."""
        end = self._ticker.clock() + seconds
        self._origin += seconds
        await self._ticker.until(end)
