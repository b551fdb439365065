"""The live connections of this process: their turns can be cancelled, and must be drained."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Final

from tieline.responses import Response
from tieline_server.core.stream.replay_log import ReplayLog, ReplayLogs
from tieline_server.runtime.driver import Driver

PATIENCE: Final = 5.0
"""Seconds that a cancel waits for the end, which may have to be stored, elsewhere perhaps."""

ERRANDS: Final = 1.0
"""Seconds that what no connection waits for has to end, when the process does."""


class Running:
    """The live connections, those without a peer among them, and the turns whose events are kept.

    A turn that outlives its connection goes on on a connection of its own, a shelter; it is owned
    here.
    """

    def __init__(self, logs: ReplayLogs | None = None) -> None:
        self.connections: set[Driver] = set()
        """Those that have not begun to close."""
        self.drivers: dict[str, Driver] = {}
        """Connection id -> its driver, while jobs may report to it."""
        self.logs = ReplayLogs() if logs is None else logs
        self.tidying: asyncio.TimerHandle | None = None
        """Set while something is left of turns that have ended."""
        self._errands: set[asyncio.Task[Any]] = set()
        self._lasting: set[asyncio.Task[None]] = set()
        self._shelters: dict[asyncio.Task[None], Driver] = {}

    def enter(self, driver: Driver) -> None:
        """A connection begins."""
        self.connections.add(driver)
        self.drivers[driver.connection.id] = driver

    def leave(self, driver: Driver) -> bool:
        """Nothing reports to the connection any more; False where it had left already."""
        return self.drivers.pop(driver.connection.id, None) is not None

    def cancel(self, owner: str, response_id: str) -> Response | None:
        """Cancels a running response of this owner and returns it; None when none runs here."""
        cut = (connection.cancel(owner, response_id) for connection in list(self.connections))
        return next((response for response in cut if response is not None), None)

    async def end(self, owner: str, response_id: str) -> Response | None:
        """Cancels like ``cancel``.

        If the response's events are kept, waits until it has ended, at most ``PATIENCE``.
        """
        log = self.logs.find(owner, response_id)
        response = self.cancel(owner, response_id)
        if response is None or log is None:
            return response
        try:
            async with asyncio.timeout(PATIENCE):
                await ended(log)
        except TimeoutError:
            return response
        return log.look() or response

    def forget(self, owner: str, response_id: str) -> None:
        """A response was deleted: no connection of this process continues it any more."""
        self.logs.forget(owner, response_id)
        for connection in list(self.connections):
            connection.forget(owner, response_id)

    def tidy(self, clock: Callable[[], float]) -> None:
        """Sees to it that what is left of turns that have ended goes when it is time."""
        at = self.logs.next_deadline()
        if self.tidying is None and at is not None:
            delay = max(0.0, at - clock())
            self.tidying = asyncio.get_running_loop().call_later(delay, self._tidy, clock)

    def _tidy(self, clock: Callable[[], float]) -> None:
        self.tidying = None
        self.logs.expire(clock())
        self.tidy(clock)

    def shelter(self, connection: Driver) -> None:
        """Owns a connection without a peer until what runs on it has ended or gone."""
        task = asyncio.get_running_loop().create_task(_run_out(connection))
        self._shelters[task] = connection
        task.add_done_callback(lambda done: self._shelters.pop(done, None))

    def later(self, work: Coroutine[Any, Any, None]) -> None:
        """Owns some work that no connection waits for."""
        self.own(asyncio.get_running_loop().create_task(work))

    def always(self, work: Coroutine[Any, Any, None]) -> None:
        """Owns some work that has no end of its own: a close does not wait for it."""
        self._lasting.add(asyncio.get_running_loop().create_task(work))

    def own(self, task: asyncio.Task[Any]) -> None:
        """Owns a task that no connection waits for."""
        self._errands.add(task)
        task.add_done_callback(self._errands.discard)

    async def drain(self, seconds: float) -> None:
        """Gives sheltered turns ``seconds`` to end; then they end with what they have."""
        for connection in list(self._shelters.values()):
            connection.hurry(seconds)
        if self._shelters:
            await asyncio.wait(list(self._shelters))

    async def close(self) -> None:
        """Ends what is sheltered, now. Idempotent."""
        while self._shelters:
            await self.drain(0.0)
        if self._errands:
            await asyncio.wait(self._errands, timeout=ERRANDS)
        left = self._errands | self._lasting
        for task in left:
            task.cancel()
        if left:
            await asyncio.wait(left)
        self.logs.clear()
        if self.tidying is not None:
            self.tidying.cancel()
            self.tidying = None


async def _run_out(connection: Driver) -> None:
    while not connection.closed:
        await connection.wait()
    await connection.close()


async def ended(log: ReplayLog) -> None:
    """Returns once a turn has ended."""
    told = asyncio.Event()
    log.listen(told.set)
    try:
        while log.turn is not None:
            told.clear()
            await told.wait()
    finally:
        log.unlisten(told.set)
