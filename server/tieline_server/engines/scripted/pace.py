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

    __slots__ = ("_due", "_order", "_timer", "_timer_at", "_waiters", "clock")

    def __init__(self, clock: Callable[[], float]) -> None:
        self.clock = clock
        self._order = itertools.count()
        self._due: list[tuple[float, int, asyncio.Future[None]]] = []
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = math.inf
        self._waiters = 0

    def __len__(self) -> int:
        """How many are remembered; some of them may have given up."""
        return len(self._due)

    async def until(self, due: float) -> None:
        """Returns at ``due``, not before; lets the loop run once if that has passed."""
        if due <= self.clock():
            await asyncio.sleep(0)
            return
        waiter = asyncio.get_running_loop().create_future()
        heapq.heappush(self._due, (due, next(self._order), waiter))
        self._waiters += 1
        self._arm()
        try:
            await waiter
        finally:
            self._waiters -= 1
            if waiter.cancelled():
                self._sweep()

    def wake_all(self) -> None:
        """Everyone who waits goes on now, whatever the time."""
        for _, _, waiter in self._due:
            if not waiter.done():
                waiter.set_result(None)
        self._due.clear()
        self._disarm()

    def _arm(self) -> None:
        due = self._due[0][0]
        if due < self._timer_at:
            self._disarm()
            # Loops count in whole milliseconds and some of them round down: too early would
            # mean to wake twice.
            delay = math.ceil((due - self.clock()) * 1000) / 1000
            self._timer_at = due
            self._timer = asyncio.get_running_loop().call_later(max(delay, 0.001), self._fire)

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
            if not waiter.done():
                waiter.set_result(None)
        if due:
            self._arm()

    def _sweep(self) -> None:
        """Forgets those who gave up, once they are the most of those who are remembered."""
        if len(self._due) <= 2 * self._waiters:
            return
        self._due = [entry for entry in self._due if not entry[2].done()]
        heapq.heapify(self._due)
        if not self._due:
            self._disarm()


class Pacer:
    """The pace of one answer: token n (from 0) is due at start + time to first token + n / rate."""

    __slots__ = ("_origin", "_rate", "_sent", "_ticker")

    def __init__(self, pace: Pace, ticker: Ticker, *, start: float) -> None:
        self._ticker = ticker
        self._origin = start + pace.ttft_ms / 1000
        self._rate = pace.tokens_per_second
        self._sent = 0

    async def allowance(self) -> int:
        """Waits until a token is due; how many are, from 1 to :data:`STEP`."""
        rate = self._rate
        if rate is None:
            if self._sent or self._origin > self._ticker.clock():
                await self._ticker.until(self._origin)
            return STEP
        await self._ticker.until(self._origin + self._sent / rate)
        # The millionth keeps a token that is due exactly now from being rounded away.
        due = math.floor((self._ticker.clock() - self._origin) * rate + 1e-6) + 1
        return min(max(due - self._sent, 1), STEP)

    def sent(self, tokens: int) -> None:
        """So many tokens went out."""
        self._sent += tokens

    async def stall(self, seconds: float) -> None:
        """Nothing is due for ``seconds``; everything after it is due that much later."""
        end = self._ticker.clock() + seconds
        self._origin += seconds
        await self._ticker.until(end)
