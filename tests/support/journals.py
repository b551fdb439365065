"""A journal in a database with its store, of a process that the test makes live and die."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from msgspec import Struct

from tests.support.database import Durable, durable
from tests.support.journal_contract import Opened
from tieline_server.storage.sql.journal import SqlJournal
from tieline_server.storage.sql.processes import BEAT
from tieline_server.storage.sql.retention import Bounds


class Clocks:
    """Wall-clock and monotonic time, set by the test."""

    def __init__(self) -> None:
        self.wall = 1_000_000.0
        self.monotonic = 50.0

    def pass_(self, seconds: float) -> None:
        """Time passes, on both."""
        self.wall += seconds
        self.monotonic += seconds


class Process(Struct, frozen=True):
    """What one process has open."""

    durable: Durable
    journal: SqlJournal
    clocks: Clocks

    @property
    def opened(self) -> Opened:
        """As the contract sees it."""
        return Opened(self.journal, self.durable.store, self.clocks.pass_)


@asynccontextmanager
async def process(
    address: str,
    name: str = "one",
    *,
    clocks: Clocks | None = None,
    judge: Callable[[str], bool | None] = lambda process: None,
    bounds: Bounds = Bounds(),  # noqa: B008  # frozen
) -> AsyncIterator[Process]:
    """Opens all that a process has of a database, and closes it in the server's order."""
    times = Clocks() if clocks is None else clocks
    async with durable(
        address, bounds=bounds, now=lambda: times.wall, clock=lambda: times.monotonic
    ) as opened:
        journal = SqlJournal(
            opened.database,
            opened.writer,
            process=name,
            now=lambda: times.wall,
            clock=lambda: times.monotonic,
            judge=judge,
        )
        try:
            # The task's own first look comes before this one: no test meets it in its middle.
            await asyncio.sleep(0)
            await journal.look()
            yield Process(opened, journal, times)
        finally:
            await journal.close()


async def pass_beats(clocks: Clocks, seconds: float, *journals: SqlJournal) -> None:
    """Time passes in which these journals look around as they do by themselves."""
    for _ in range(int(seconds / BEAT)):
        clocks.pass_(BEAT)
        for journal in journals:
            await journal.look()
