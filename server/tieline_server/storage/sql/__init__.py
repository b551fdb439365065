"""A storage in a database, SQLite or PostgreSQL: schema, migrations, connections, one writer.

Each of its parts asks the database by itself. All of them write through the one writer.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

from tieline.errors import how_to_install
from tieline_server.config import Config, ConfigError
from tieline_server.storage.base import Outages, Storage
from tieline_server.storage.sql.database import Database
from tieline_server.storage.sql.journal import SqlJournal
from tieline_server.storage.sql.patience import PatientDatabase
from tieline_server.storage.sql.processes import identity
from tieline_server.storage.sql.responses import SqlStore
from tieline_server.storage.sql.retention import Bounds
from tieline_server.storage.sql.usage import SqlLedger
from tieline_server.storage.sql.writer import Writer


async def open_storage(config: Config, stack: AsyncExitStack, *, outages: Outages) -> Storage:
    """The storage of the settings, with callers that wait while its database is silent."""
    opened = await connect(config.store, full=config.durability == "full")
    stack.push_async_callback(opened.close)
    database = PatientDatabase(
        opened, patience=config.store_patience, clock=time.monotonic, outages=outages
    )
    await stack.enter_async_context(_beside(database.watch()))
    writer = Writer(database)
    stack.push_async_callback(writer.close)
    bounds = Bounds(
        ttl=config.store_ttl, responses=config.store_max_responses, size=config.store_max_bytes
    )
    now, clock = time.time, time.monotonic
    return Storage(
        store=SqlStore(database, writer, now=now, clock=clock, bounds=bounds),
        ledger=SqlLedger(database, writer),
        journal=SqlJournal(database, writer, process=identity(), now=now, clock=clock),
        check=database.check,
    )


async def open_ledger(config: Config, stack: AsyncExitStack) -> SqlLedger:
    """The ledger by itself, without its store; ``stack`` closes its database."""
    # A path that is mistyped is no ledger without rows.
    database = await connect(config.store, make=False)
    stack.push_async_callback(database.close)
    writer = Writer(database)
    stack.push_async_callback(writer.close)
    return SqlLedger(database, writer)


async def connect(url: str, *, full: bool = False, make: bool = True) -> Database:
    """Opens ``sqlite:///PATH`` or ``postgresql://...`` with its schema brought up to date.

    ``full`` makes a commit survive the loss of power; ``make`` makes a SQLite file that is not
    there. Raises :class:`ConfigError`.
    """
    if url.startswith("sqlite:"):
        from tieline_server.storage.sql.sqlite import SqliteDatabase

        return await SqliteDatabase.open(url, full=full, make=make)
    try:
        from tieline_server.storage.sql.postgresql import PostgresqlDatabase
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"{error.name} is not installed: {how_to_install('server,postgres')}"
        ) from None
    return await PostgresqlDatabase.open(url, full=full)


@asynccontextmanager
async def _beside(work: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    """While inside, some work without an end of its own goes on."""
    task = asyncio.create_task(work)
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait([task])
