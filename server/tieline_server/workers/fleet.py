"""The workers that serve, one for each seat.

A seat whose worker ended unasked is taken again at once. Those that die at once, one after
another, are paced.
"""

import asyncio
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from structlog.typing import FilteringBoundLogger

from tieline_server.workers.board import Board
from tieline_server.workers.child import Child, NotServing
from tieline_server.workers.control import Serve
from tieline_server.workers.neighbourhood import socket_path
from tieline_server.workers.nursery import Nursery
from tieline_server.workers.pace import Pace
from tieline_server.workers.totals import bury

DIED: Final = "worker_died"
SERVES: Final = "worker_serves"
NOT_SERVING: Final = "worker_not_serving"
PACED: Final = "worker_paced"
KILLED: Final = "worker_killed"

SLACK: Final = 10.0
"""Seconds beyond its time to drain after which a worker is killed: then it hangs."""

MARKS: Final = 2**16

Settings = dict[str, Any]


class Shared:
    """What the workers of one server share, and what only one of them may have at a time."""

    def __init__(self, folder: Path, board: Board, *, rows: int, seal_key: str) -> None:
        self.folder = folder
        self._board = board
        self._seal_key = seal_key
        self._rows = set(range(rows))
        self._marks: set[int] = set()
        # Somewhere else in each server: ids of an earlier one, or of another, should not seem ours.
        self._last = int.from_bytes(os.urandom(2))

    def order(self, settings: Settings) -> Serve:
        """The order to serve for one worker, with a mark and a row of its own."""
        self._last = (self._last + 1) % MARKS
        while self._last in self._marks:
            self._last = (self._last + 1) % MARKS
        self._marks.add(self._last)
        return Serve(
            config=settings,
            mark=self._last.to_bytes(2),
            folder=str(self.folder),
            row=self._rows.pop(),
            seal_key=self._seal_key,
        )

    def ended(self, order: Serve) -> None:
        """Its worker has ended: what it had is free."""
        self._board.clear(order.row)
        socket_path(self.folder, order.mark).unlink(missing_ok=True)
        bury(self.folder, order.mark)
        self._rows.add(order.row)
        self._marks.discard(int.from_bytes(order.mark))


class Seat:
    """A place for one worker."""

    __slots__ = ("child", "lock", "pace")

    def __init__(self) -> None:
        self.child: Child | None = None
        self.lock = asyncio.Lock()
        """Held by whoever fills it."""
        self.pace = Pace()


Attend = Callable[[Child], None]


class Fleet:
    """``open_nursery`` starts what starts workers; ``settings`` are those of all of them."""

    def __init__(
        self,
        open_nursery: Callable[[Settings, Attend], Nursery],
        settings: Settings,
        shared: Shared,
        *,
        seats: int,
        log: FilteringBoundLogger,
    ) -> None:
        self._open_nursery = open_nursery
        self._settings = settings
        self._shared = shared
        self._log = log
        self._loop = asyncio.get_running_loop()
        self._seats = [Seat() for _ in range(seats)]
        self._children: set[Child] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        """One for each child, until what it left is cleared away."""
        self._keeping: list[asyncio.Task[None]] = []
        self._nursery = open_nursery(settings, self._attend)
        self._ending = False
        self._patience: asyncio.Timeout | None = None

    async def start(self) -> None:
        """Fills every seat; raises :class:`NotServing` where one cannot be."""
        await asyncio.gather(*(self._fill(seat) for seat in self._seats))
        self._keeping = [self._loop.create_task(self._keep(seat)) for seat in self._seats]
        self._keeping.append(self._loop.create_task(self._keep_nursery()))

    async def restart(self, settings: Settings) -> None:
        """Another worker for each seat, one by one: the old one ends when the new one serves.

        Raises :class:`NotServing`: the seat, and those after it, keep the worker that they have.
        """
        before, self._settings = self._settings, settings
        # What it has imported may have been replaced meanwhile.
        self._renew()
        for seat in self._seats:
            async with seat.lock:
                old = seat.child
                if old is None:
                    continue
                try:
                    await self._fill(seat)
                except NotServing:
                    self._settings = before
                    self._renew()
                    raise
            before = settings
            old.drain()
            await self._gone({old}, seconds=settings["drain_timeout"])

    async def end(self, seconds: float) -> None:
        """Drains every worker, which has so many seconds for what runs, and waits for their end."""
        await self._stop_keeping()
        for child in self._children:
            if child.serves:
                child.drain()
            else:
                child.kill()
        await self._gone(self._children, seconds=seconds)

    def insist(self) -> None:
        """They should not wait any more."""
        for child in self._children:
            child.drain(insist=True)
        if self._patience is not None:
            self._patience.reschedule(self._loop.time() + SLACK)

    async def close(self) -> None:
        """Ends whatever is left, now. Idempotent."""
        await self._stop_keeping()
        self._nursery.close()
        for child in self._children:
            child.kill()
        if self._tasks:
            await asyncio.wait(self._tasks)

    async def _stop_keeping(self) -> None:
        self._ending = True
        for task in self._keeping:
            task.cancel()
        if self._keeping:
            await asyncio.wait(self._keeping)

    async def _gone(self, some: set[Child], *, seconds: float) -> None:
        """Waits for the end of some; one that hangs is killed."""
        some = set(some)
        try:
            async with asyncio.timeout(seconds + SLACK) as self._patience:
                for child in some:
                    await child.ended.wait()
        except TimeoutError:
            for child in some:
                if not child.ended.is_set():
                    self._log.warning(KILLED, worker=child.pid)
                    child.kill()
        finally:
            self._patience = None

    async def _keep(self, seat: Seat) -> None:
        """Sees to it that somebody has the seat."""
        wait = 0.0
        while True:
            child = seat.child
            if child is not None:
                await child.ended.wait()
                if seat.child is not child:
                    continue
                seat.child = None
                wait = seat.pace.died(child.served)
            if wait:
                self._log.warning(PACED, seconds=wait)
                await asyncio.sleep(wait)
            async with seat.lock:
                wait = await self._refill(seat) if seat.child is None else 0.0

    async def _keep_nursery(self) -> None:
        """Has one ready before it is needed."""
        pace = Pace()
        while True:
            nursery, since = self._nursery, self._loop.time()
            await nursery.ended.wait()
            wait = pace.died(self._loop.time() - since)
            if nursery is self._nursery:
                await asyncio.sleep(wait)
            if nursery is self._nursery:
                self._renew()

    async def _refill(self, seat: Seat) -> float:
        """Tries to; returns how long to wait before the next try."""
        try:
            await self._fill(seat)
        except NotServing as error:
            self._log.error(NOT_SERVING, reason=str(error))
            return seat.pace.died(0.0)
        return 0.0

    async def _fill(self, seat: Seat) -> None:
        """Raises :class:`NotServing`."""
        if self._nursery.ended.is_set():
            self._renew()
        child = await self._nursery.bear()
        try:
            await child.serve(self._shared.order(self._settings))
        except BaseException:
            child.kill()
            raise
        seat.child = child
        assert child.order is not None
        self._log.info(SERVES, worker=child.pid, mark=child.order.mark.hex())

    def _renew(self) -> None:
        self._nursery.close()
        self._nursery = self._open_nursery(self._settings, self._attend)

    def _attend(self, child: Child) -> None:
        self._children.add(child)
        task = self._loop.create_task(self._clear_up(child))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _clear_up(self, child: Child) -> None:
        """What a worker leaves behind, at its end."""
        await child.close()
        self._children.discard(child)
        if child.order is not None:
            self._shared.ended(child.order)
        if not (child.asked or self._ending):
            self._log.error(
                DIED, worker=child.pid, status=child.status, served=round(child.served, 3)
            )
