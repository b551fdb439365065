"""A database that may be silent for a while: what asks it waits, up to a patience.

A restart or a stall of the network passes, and what waits for it goes on as if nothing had been.
Past the patience the database is *away*: what waits is refused, and what comes is refused at
once, until the database answers again. One task looks for that, so that many callers do not.

The patience is counted from the first moment of the silence, not from each call: a caller that
comes late waits less.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from sqlalchemy import Connection, update

from tieline_server.storage.base import Outages
from tieline_server.storage.sql.database import Database
from tieline_server.storage.sql.errors import Away, Busy, DatabaseError, Full, Unavailable
from tieline_server.storage.sql.schema import LEASES

logger: Final = logging.getLogger("tieline.database")

T = TypeVar("T")

PERIOD: Final = 0.5
"""Seconds between two looks at a database that is not written to."""

ANSWER: Final = 1.0
"""Seconds without an answer that make a silence: with the period, it is seen within two."""

FULL_AGAIN: Final = 60.0
"""Seconds until a disk without room is told again: what is small may find some meanwhile."""

_LOOK: Final = update(LEASES).where(LEASES.c.name == "").values(holder="")
"""Changes nothing, and fails wherever a change would."""


class PatientDatabase:
    """A database in front of which callers wait. ``watch`` has to run while it is used."""

    def __init__(
        self, database: Database, *, patience: float, clock: Callable[[], float], outages: Outages
    ) -> None:
        self._database = database
        self._patience = patience
        self._clock = clock
        self._outages = outages
        self._suspected_since: float | None = None
        """When a call began that has failed since the last look."""
        self._silent_since: float | None = None
        self._answers = asyncio.Event()
        self._answers.set()
        self._waiting: set[asyncio.Timeout] = set()
        self._wrote_at = float("-inf")
        self._full_at = float("-inf")
        self.away = False
        """Whether its silence has outlasted the patience."""

    def check(self) -> None:
        """Raises :class:`Unavailable` while the database is known to be away."""
        if self.away:
            raise Unavailable()

    async def read(self, ask: Callable[[Connection], T]) -> T:
        """Runs a question."""
        return await self._patiently(lambda: self._database.read(ask))

    async def write(self, change: Callable[[Connection], T]) -> T:
        """Runs a change; where the database fails meanwhile, from its start again."""
        written = await self._patiently(lambda: self._database.write(change))
        self._wrote_at = self._clock()
        return written

    async def erase(self) -> bool:
        """Sees to it that what was deleted is in no file any more."""
        return await self._patiently(self._database.erase)

    async def tidy(self) -> None:
        """Gives some room back."""
        await self._patiently(self._database.tidy)

    def abandon(self) -> None:
        """Breaks off what is in flight."""
        self._database.abandon()

    async def close(self) -> None:
        """Ends every connection."""
        await self._database.close()

    async def watch(self) -> None:
        """Looks whether the database answers, until it is cancelled."""
        while True:
            suspected = self._suspected_since is not None or self._silent_since is not None
            rest = self._wrote_at + PERIOD - self._clock()
            if suspected or rest <= 0:
                await self._look()
                rest = PERIOD
            await asyncio.sleep(rest)

    async def _patiently(self, work: Callable[[], Awaitable[T]]) -> T:
        self.check()
        began = self._clock()
        try:
            async with asyncio.timeout(None) as waiting:
                self._waiting.add(waiting)
                try:
                    return await self._repeatedly(work, began)
                finally:
                    self._waiting.discard(waiting)
        except TimeoutError:
            raise Unavailable() from None
        except Full:
            if self._clock() - self._full_at >= FULL_AGAIN:
                self._full_at = self._clock()
                self._outages.full()
            raise Unavailable() from None

    async def _repeatedly(self, work: Callable[[], Awaitable[T]], began: float) -> T:
        """Tries until it is done: again after each look that found an answer."""
        while True:
            try:
                return await work()
            except (Away, Busy):
                if self.away or self._clock() - began >= self._patience:
                    raise Unavailable() from None
            if self._suspected_since is None:
                self._suspected_since = began
            self._answers.clear()
            await self._answers.wait()

    async def _look(self) -> None:
        began = self._clock() if self._suspected_since is None else self._suspected_since
        look = asyncio.ensure_future(self._database.write(_look))
        try:
            await asyncio.wait({look}, timeout=ANSWER)
            while not look.done():
                self._silent(began, "it does not answer")
                await asyncio.wait({look}, timeout=PERIOD)
            look.result()
        except DatabaseError as error:
            self._silent(began, str(error))
        except Exception as bug:
            # Callers must not wait for ever.
            logger.exception("database.look failed")
            self._silent(began, type(bug).__name__)
        else:
            self._answered()
        finally:
            look.cancel()

    def _silent(self, began: float, reason: str) -> None:
        if self._silent_since is None:
            self._silent_since = began
            self._outages.silent(reason)
        if not self.away and self._clock() - self._silent_since >= self._patience:
            self.away = True
            # First, so that what is broken off does not say goodbye to a server that is gone.
            self._database.abandon()
            now = asyncio.get_running_loop().time()
            for waiting in self._waiting:
                waiting.reschedule(now)

    def _answered(self) -> None:
        self._suspected_since = None
        self._answers.set()
        if self._silent_since is not None:
            silent = self._clock() - self._silent_since
            self._silent_since, self.away = None, False
            self._outages.answers(silent)


def _look(connection: Connection) -> None:
    connection.execute(_LOOK)
