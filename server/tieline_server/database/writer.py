"""The one that writes: changes that gather while a transaction is in flight leave together.

There is no timer for a change that somebody waits for: the first one goes at once, and what
comes until it is durable shares the next transaction. A change that nobody waits for joins
whatever transaction comes next, and has one of its own only after ``LINGER``.

A change that cannot be made must not cost its neighbours theirs: where a shared transaction
fails, each change is tried alone.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Sequence
from typing import Final, Protocol

from sqlalchemy import Connection

from tieline_server.database.connection import Database
from tieline_server.database.errors import Away, Busy, Conflict, DatabaseError

logger: Final = logging.getLogger("tieline.database")

MOST: Final = 256
"""Changes in one transaction."""

LINGER: Final = 0.01
"""Seconds that a change may wait for company when nobody waits for it."""

TRIES: Final = 5
"""How often a change is tried that other processes' changes come in the way of."""


class Change(Protocol):
    """Something to write. ``take`` and ``settle`` run on the loop, ``write`` elsewhere."""

    @property
    def erases(self) -> bool:
        """Whether what it deletes must be gone from the files before it counts as made."""
        ...

    def take(self) -> bool:
        """Fixes what will be written, as its transaction begins; False: nothing is left to."""
        ...

    def write(self, connection: Connection) -> None:
        """Writes it. Runs again, from the start, where a transaction had to be undone."""
        ...

    def settle(self, error: Exception | None) -> None:
        """It is durable, or with an error it is not there at all. Never raises."""
        ...


class Writer:
    """Makes changes in the order in which they came. ``close`` makes what is left and ends."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._queue: deque[Change] = deque()
        self._wanted = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None
        self._closing = False
        self._loop = asyncio.get_running_loop()
        self._task = self._loop.create_task(self._run())

    def add(self, change: Change) -> None:
        """Takes a change that somebody waits for, or that makes room."""
        self._queue.append(change)
        self._wanted.set()

    def leave(self, change: Change) -> None:
        """Takes a change that nobody waits for; it goes within ``LINGER``."""
        self._queue.append(change)
        if self._timer is None and not self._wanted.is_set():
            self._timer = self._loop.call_later(LINGER, self._wanted.set)

    async def close(self) -> None:
        """Makes the changes that are left, then ends. Idempotent."""
        self._closing = True
        self._wanted.set()
        await self._task

    async def _run(self) -> None:
        while self._queue or not self._closing:
            await self._wanted.wait()
            self._wanted.clear()
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None
            while self._queue:
                taken = [self._queue.popleft() for _ in range(min(MOST, len(self._queue)))]
                await self._make([change for change in taken if change.take()])

    async def _make(self, batch: Sequence[Change]) -> None:
        if not batch:
            return
        error = await self._try(batch)
        if error is None or len(batch) == 1 or isinstance(error, Away | Busy):
            await self._settle(batch, error)
            return
        for change in batch:
            await self._settle([change], await self._try([change]))

    async def _try(self, batch: Sequence[Change]) -> Exception | None:
        """Why the changes could not be made, or None."""

        def write(connection: Connection) -> None:
            for change in batch:
                change.write(connection)

        error: Exception | None = None
        for _ in range(TRIES if len(batch) == 1 else 1):
            try:
                await self._database.write(write)
            except Conflict as conflict:
                error = conflict
            except DatabaseError as other:
                return other
            except Exception as bug:
                logger.exception("database.change failed")
                return bug
            else:
                return None
        return error

    async def _settle(self, batch: Sequence[Change], error: Exception | None) -> None:
        """Those that wait for the files are told last."""
        erasing = [change for change in batch if change.erases and error is None]
        for change in batch:
            if change not in erasing:
                change.settle(error)
        if erasing:
            await self._erase()
        for change in erasing:
            change.settle(None)

    async def _erase(self) -> None:
        try:
            if not await self._database.erase():
                logger.warning("database.erase: a reader is in the way; it is done later")
        except DatabaseError as error:
            logger.warning("database.erase failed", extra={"reason": str(error)})


class Write:
    """A change that is awaited: ``done`` is set when it is durable, or fails as it did."""

    erases = False

    def __init__(self) -> None:
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def take(self) -> bool:
        """There is always something."""
        return True

    def settle(self, error: Exception | None) -> None:
        """Tells who waits; they may have gone."""
        if self.done.done():
            return
        if error is None:
            self.done.set_result(None)
        else:
            self.done.set_exception(error)
