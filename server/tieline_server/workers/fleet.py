"""The workers that serve, one in each slot.

A slot whose worker ended unasked gets another one at once. Where workers die at once, one after
another, their slot waits.
"""

import asyncio
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from structlog.typing import FilteringBoundLogger

from tieline_server.workers.child import Child, NotServing
from tieline_server.workers.control import Serve
from tieline_server.workers.fork_server import ForkServer
from tieline_server.workers.pace import Pace
from tieline_server.workers.shared_counters import SharedCounters
from tieline_server.workers.totals import merge_dead
from tieline_server.workers.worker_peers import socket_path

DIED: Final = "worker_died"
SERVES: Final = "worker_serves"
NOT_SERVING: Final = "worker_not_serving"
PACED: Final = "worker_paced"
KILLED: Final = "worker_killed"

SLACK: Final = 10.0
"""Seconds beyond its time to drain after which a worker is killed: then it hangs."""

TAGS: Final = 2**16

Settings = dict[str, Any]


class Shared:
    """Gives each worker the tag and the row that no other living one has, and what all share."""

    def __init__(self, folder: Path, counters: SharedCounters, *, rows: int, seal_key: str) -> None:
        self.folder = folder
        self._counters = counters
        self._seal_key = seal_key
        self._rows = set(range(rows))
        self._tags: set[int] = set()
        # Somewhere else in each server: ids of an earlier one, or of another, should not seem ours.
        self._last = int.from_bytes(os.urandom(2))

    def order(self, settings: Settings) -> Serve:
        """Makes the order to serve for one worker, with a tag and a row of its own."""
        self._last = (self._last + 1) % TAGS
        while self._last in self._tags:
            self._last = (self._last + 1) % TAGS
        self._tags.add(self._last)
        return Serve(
            config=settings,
            tag=self._last.to_bytes(2),
            folder=str(self.folder),
            row=self._rows.pop(),
            seal_key=self._seal_key,
        )

    def ended(self, order: Serve) -> None:
        """Frees what a worker had that has ended."""
        self._counters.clear(order.row)
        socket_path(self.folder, order.tag).unlink(missing_ok=True)
        merge_dead(self.folder, order.tag)
        self._rows.add(order.row)
        self._tags.discard(int.from_bytes(order.tag))


class WorkerSlot:
    """One of the workers that serve side by side: the process may change, the slot stays."""

    __slots__ = ("child", "lock", "pace")

    def __init__(self) -> None:
        self.child: Child | None = None
        self.lock = asyncio.Lock()
        """Held while the slot is filled."""
        self.pace = Pace()


Attend = Callable[[Child], None]


class Fleet:
    """Keeps a worker in every slot.

    ``open_fork_server`` starts the process that starts them; all have the same ``settings``.
    """

    def __init__(
        self,
        open_fork_server: Callable[[Settings, Attend], ForkServer],
        settings: Settings,
        shared: Shared,
        *,
        slots: int,
        log: FilteringBoundLogger,
    ) -> None:
        self._open_fork_server = open_fork_server
        self._settings = settings
        self._shared = shared
        self._log = log
        self._loop = asyncio.get_running_loop()
        self._slots = [WorkerSlot() for _ in range(slots)]
        self._children: set[Child] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        """One for each child, until what it left is cleared away."""
        self._keeping: list[asyncio.Task[None]] = []
        self._fork_server = open_fork_server(settings, self._attend)
        self._ending = False
        self._patience: asyncio.Timeout | None = None

    async def start(self) -> None:
        """Fills every slot; raises :class:`NotServing` where it cannot."""
        await asyncio.gather(*(self._fill(slot) for slot in self._slots))
        self._keeping = [self._loop.create_task(self._keep(slot)) for slot in self._slots]
        self._keeping.append(self._loop.create_task(self._keep_fork_server()))

    async def restart(self, settings: Settings) -> None:
        """Replaces the workers one by one: the old one ends when the new one serves.

        Raises :class:`NotServing`: the slot, and those after it, keep the worker that they have.
        """
        before, self._settings = self._settings, settings
        # What it has imported may have been replaced meanwhile.
        self._renew()
        for slot in self._slots:
            async with slot.lock:
                old = slot.child
                if old is None:
                    continue
                try:
                    await self._fill(slot)
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
        """Tells the workers not to wait any more."""
        for child in self._children:
            child.drain(insist=True)
        if self._patience is not None:
            self._patience.reschedule(self._loop.time() + SLACK)

    async def close(self) -> None:
        """Kills what is left. Idempotent."""
        await self._stop_keeping()
        self._fork_server.close()
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
        """Waits for the end of some workers, and kills one that hangs."""
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

    async def _keep(self, slot: WorkerSlot) -> None:
        """Fills a slot again each time that its worker has ended."""
        wait = 0.0
        while True:
            child = slot.child
            if child is not None:
                await child.ended.wait()
                if slot.child is not child:
                    continue
                slot.child = None
                wait = slot.pace.died(child.served)
            if wait:
                self._log.warning(PACED, seconds=wait)
                await asyncio.sleep(wait)
            async with slot.lock:
                wait = await self._refill(slot) if slot.child is None else 0.0

    async def _keep_fork_server(self) -> None:
        """Has a fork server ready before it is needed."""
        pace = Pace()
        while True:
            fork_server, since = self._fork_server, self._loop.time()
            await fork_server.ended.wait()
            wait = pace.died(self._loop.time() - since)
            if fork_server is self._fork_server:
                await asyncio.sleep(wait)
            if fork_server is self._fork_server:
                self._renew()

    async def _refill(self, slot: WorkerSlot) -> float:
        """Tries to fill a slot; returns how long to wait before the next try."""
        try:
            await self._fill(slot)
        except NotServing as error:
            self._log.error(NOT_SERVING, reason=str(error))
            return slot.pace.died(0.0)
        return 0.0

    async def _fill(self, slot: WorkerSlot) -> None:
        """Fills a slot; raises :class:`NotServing`."""
        if self._fork_server.ended.is_set():
            self._renew()
        child = await self._fork_server.spawn()
        try:
            await child.serve(self._shared.order(self._settings))
        except BaseException:
            child.kill()
            raise
        slot.child = child
        assert child.order is not None
        self._log.info(SERVES, worker=child.pid, tag=child.order.tag.hex())

    def _renew(self) -> None:
        self._fork_server.close()
        self._fork_server = self._open_fork_server(self._settings, self._attend)

    def _attend(self, child: Child) -> None:
        self._children.add(child)
        task = self._loop.create_task(self._clear_up(child))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _clear_up(self, child: Child) -> None:
        """Clears away what a worker leaves behind at its end."""
        await child.close()
        self._children.discard(child)
        if child.order is not None:
            self._shared.ended(child.order)
        if not (child.asked or self._ending):
            self._log.error(
                DIED, worker=child.pid, status=child.status, served=round(child.served, 3)
            )
