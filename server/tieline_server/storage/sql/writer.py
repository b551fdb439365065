"""The one that writes: changes that gather while a transaction is in flight leave together.

There is no timer for a change that a caller waits for: the first one goes at once, and what
comes until it is durable shares the next transaction. A change that no caller waits for joins
whatever transaction comes next, and has one of its own only after a while.

A change that must be durable soon though no caller waits for it (a row of the ledger) goes ahead
of all others in the next transaction, and transactions are short: past ``SPAN`` one commits, and
what it has not reached is left to the next. So it is durable after two of them at most.

A change that cannot be made must not cost the others theirs: where a shared transaction
fails, each change is tried alone.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from time import monotonic
from typing import Final, Generic, Protocol, TypeVar

from sqlalchemy import Connection

from tieline_server.storage.sql.database import Database
from tieline_server.storage.sql.errors import Away, Busy, Conflict, DatabaseError, Unavailable

logger: Final = logging.getLogger("tieline.database")

T = TypeVar("T")

MOST: Final = 256
"""Changes in one transaction."""

SPAN: Final = 0.01
"""Seconds after which a transaction begins no further change."""

LINGER: Final = 0.01
"""Seconds that a change may wait for company when no caller waits for it, and none are named."""

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

    def __init__(self, database: Database, *, clock: Callable[[], float] = monotonic) -> None:
        self._database = database
        self._clock = clock
        self._queue: deque[Change] = deque()
        self._ahead: deque[Change] = deque()
        self._unreached: list[Change] = []
        """Taken, and not written by the transaction that they were taken for."""
        self._wanted = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None
        self._closing = False
        self._loop = asyncio.get_running_loop()
        self._task = self._loop.create_task(self._run())

    def add(self, change: Change) -> None:
        """Takes a change that a caller waits for, or that makes room."""
        self._queue.append(change)
        self._wanted.set()

    async def make(self, work: Callable[[Connection], T], *, within: float | None = None) -> T:
        """Makes a change and waits for it: at once, or in company ``within`` so many seconds.

        Returns what the work came to. It runs again, from its start, where a transaction had to
        be undone.
        """
        change = Write(work)
        if within is None:
            self.add(change)
        else:
            self.leave(change, within=within)
        return await change.done

    def leave(self, change: Change, *, within: float = LINGER) -> None:
        """Takes a change that no caller waits for: its transaction begins within some seconds."""
        self._queue.append(change)
        self._linger(within)

    def send_ahead(self, change: Change) -> None:
        """Like ``leave``, for a change that rests on no other: it goes before all that wait."""
        self._ahead.append(change)
        self._linger(LINGER)

    async def close(self) -> None:
        """Makes the changes that are left, then ends. Idempotent."""
        self._closing = True
        self._wanted.set()
        await self._task

    def _linger(self, seconds: float) -> None:
        if self._closing:
            self._wanted.set()
        if self._wanted.is_set():
            return
        due = self._loop.time() + seconds
        if self._timer is None or due < self._timer.when():
            self._stop_timer()
            self._timer = self._loop.call_at(due, self._wanted.set)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    @property
    def _left(self) -> bool:
        return bool(self._ahead or self._unreached or self._queue)

    async def _run(self) -> None:
        while self._left or not self._closing:
            await self._wanted.wait()
            self._wanted.clear()
            self._stop_timer()
            batch = self._take()
            # Whatever comes from now on says for itself when it has to go.
            if self._queue:
                self._wanted.set()
            await self._make(batch)

    def _take(self) -> list[Change]:
        ahead, self._ahead = self._ahead, deque()
        batch = [change for change in ahead if change.take()]
        if self._unreached:
            # A change may rest on what an earlier one settled: those to come stay behind.
            batch += self._unreached
            self._unreached = []
            return batch
        taken = [self._queue.popleft() for _ in range(min(MOST, len(self._queue)))]
        return batch + [change for change in taken if change.take()]

    async def _make(self, batch: Sequence[Change]) -> None:
        if not batch:
            return
        made, error = await self._try(batch)
        if made < len(batch):
            self._unreached = list(batch[made:])
            self._wanted.set()
        if error is None or len(batch) == 1 or isinstance(error, Away | Busy):
            await self._settle(batch[:made], error)
            return
        for change in batch:
            _, error = await self._try([change])
            await self._settle([change], error)

    async def _try(self, batch: Sequence[Change]) -> tuple[int, Exception | None]:
        """How many of the changes were tried, and why they could not be made, or None."""

        def write(connection: Connection) -> int:
            ends = self._clock() + SPAN
            for number, change in enumerate(batch, 1):
                change.write(connection)
                if self._clock() >= ends:
                    return number
            return len(batch)

        error: Exception | None = None
        for _ in range(TRIES if len(batch) == 1 else 1):
            try:
                return await self._database.write(write), None
            except Conflict as conflict:
                error = conflict
            except DatabaseError as other:
                return len(batch), other
            except Exception as bug:
                logger.exception("database.change failed")
                return len(batch), bug
        return len(batch), error

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
        except Unavailable:
            pass  # Said once, where it was found out.
        except DatabaseError as error:
            logger.warning("database.erase failed", extra={"reason": str(error)})


class Write(Generic[T]):
    """A change that is awaited: ``done`` is what it came to once that is durable, or its error."""

    def __init__(self, work: Callable[[Connection], T]) -> None:
        self._work = work
        self._made: T
        self.erases = False
        self.done: asyncio.Future[T] = asyncio.get_running_loop().create_future()

    def take(self) -> bool:
        """There is always something."""
        return True

    def write(self, connection: Connection) -> None:
        """Does the work; what counts is what it came to the last time."""
        self._made = self._work(connection)

    def settle(self, error: Exception | None) -> None:
        """Tells the caller that waits, which may have gone."""
        if self.done.done():
            return
        if error is None:
            self.done.set_result(self._made)
        else:
            self.done.set_exception(error)


class Gathered(Generic[T]):
    """A change that no caller waits for, of all that has gathered when its transaction begins.

    ``take`` hands that over; where it is nothing, nothing is written.
    """

    erases = False

    def __init__(
        self,
        take: Callable[[], T],
        write: Callable[[Connection, T], None],
        settle: Callable[[T, Exception | None], None] = lambda taken, error: None,
    ) -> None:
        self._take = take
        self._write = write
        self._settle = settle
        self._taken: T

    def take(self) -> bool:
        """All that came until now."""
        self._taken = self._take()
        return bool(self._taken)

    def write(self, connection: Connection) -> None:
        """Writes what was taken."""
        self._write(connection, self._taken)

    def settle(self, error: Exception | None) -> None:
        """Tells whether what was taken is durable."""
        self._settle(self._taken, error)
