"""A store and a ledger on a real database, opened and closed as the server does it."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from time import monotonic, time
from typing import Any, TypeVar

from msgspec import Struct
from sqlalchemy import Connection, text

from tieline_server.storage.sql import connect
from tieline_server.storage.sql.database import Database
from tieline_server.storage.sql.responses import RecentChains, SqlStore
from tieline_server.storage.sql.retention import Bounds
from tieline_server.storage.sql.usage import SqlLedger
from tieline_server.storage.sql.writer import Writer

T = TypeVar("T")


class Durable(Struct, frozen=True):
    """What is open."""

    database: Database
    writer: Writer
    store: SqlStore
    ledger: SqlLedger

    async def count(self, table: str) -> int:
        """Rows of a table."""
        return int(await self.value(f"SELECT count(*) FROM {table}"))

    async def value(self, question: str) -> float:
        """The one number that a statement answers with."""

        def ask(connection: Connection) -> float:
            return float(connection.execute(text(question)).scalar_one())

        return await self.database.read(ask)


@asynccontextmanager
async def durable(
    address: str,
    *,
    bounds: Bounds = Bounds(),  # noqa: B008  # frozen
    now: Callable[[], float] = time,
    clock: Callable[[], float] = monotonic,
    most_waiting: int = 100_000,
    recent: int = 0,
) -> AsyncIterator[Durable]:
    """Opens the database at an address, and closes it with what is written by then.

    Unless ``recent`` chains may stay in memory, all that is found comes from the database.
    """
    database = await connect(address)
    writer = Writer(database)
    ledger = SqlLedger(database, writer, most=most_waiting)
    chains = RecentChains(most=recent)
    store = SqlStore(database, writer, now=now, clock=clock, bounds=bounds, recent=chains)
    try:
        # The task's own first look comes before this one: no test meets it in its middle.
        await asyncio.sleep(0)
        await store.retention.look()
        yield Durable(database, writer, store, ledger)
    finally:
        await store.close()
        await ledger.close()
        await writer.close()
        await database.close()


async def made(address: str, *changes: Callable[[Connection], T]) -> list[T]:
    """What changes come to, each in a transaction of its own."""
    database = await connect(address)
    try:
        return [await database.write(change) for change in changes]
    finally:
        await database.close()


async def rows(address: str, question: str) -> list[tuple[Any, ...]]:
    """What a statement answers with."""

    def ask(connection: Connection) -> list[tuple[Any, ...]]:
        return [tuple(row) for row in connection.execute(text(question))]

    (found,) = await made(address, ask)
    return found
