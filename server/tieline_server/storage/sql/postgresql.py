"""PostgreSQL by asyncpg: one connection that writes, some that read."""

from collections.abc import Awaitable, Callable
from typing import Any, Final, Self, TypeVar
from weakref import WeakSet

import asyncpg
from sqlalchemy import Connection, text
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from tieline_server.config import ConfigError
from tieline_server.storage.sql.database import PATIENCE, READERS
from tieline_server.storage.sql.errors import Away, DatabaseError, translated
from tieline_server.storage.sql.migrations import migrate

T = TypeVar("T")

ANSWER_PATIENCE: Final = 15.0
"""Seconds that one statement may take; a server that is gone without a word answers never."""


class PostgresqlDatabase:
    """An open database. Build it with :meth:`open`."""

    def __init__(self, url: str, *, full: bool) -> None:
        self._open: WeakSet[Any] = WeakSet()
        """The driver's connections."""

        async def connect() -> Any:
            settings = {"application_name": "tieline"}
            if full:
                settings["synchronous_commit"] = "on"
            dial: Callable[..., Awaitable[Any]] = asyncpg.connect
            # asyncpg reads the address itself: libpq's options, PGPASSWORD, .pgpass.
            made = await dial(
                url, timeout=PATIENCE, command_timeout=ANSWER_PATIENCE, server_settings=settings
            )
            self._open.add(made)
            return made

        self._write = _engine(connect, size=1)
        self._read = _engine(connect, size=READERS, isolation_level="AUTOCOMMIT")

    @classmethod
    async def open(cls, url: str, *, full: bool) -> Self:
        """Connects; raises :class:`ConfigError`."""
        database = cls(url, full=full)
        try:
            await database.write(_migrate_alone)
        except BaseException as error:
            await database.close()
            if isinstance(error, DatabaseError):
                raise ConfigError(f"cannot open the PostgreSQL database: {error}") from None
            if isinstance(error, ValueError):
                raise ConfigError("--store: the PostgreSQL address is not valid") from None
            raise
        return database

    async def read(self, ask: Callable[[Connection], T]) -> T:
        """Runs a question; once more where the connection had died since it was last used."""
        try:
            return await self._ask(ask)
        except Away:
            return await self._ask(ask)

    async def write(self, change: Callable[[Connection], T]) -> T:
        """Runs a change; once more where the connection was lost."""
        try:
            return await self._change(change)
        except Away:
            return await self._change(change)

    async def _ask(self, ask: Callable[[Connection], T]) -> T:
        with translated():
            async with self._read.connect() as connection:
                return await connection.run_sync(ask)

    async def _change(self, change: Callable[[Connection], T]) -> T:
        with translated():
            async with self._write.begin() as connection:
                return await connection.run_sync(change)

    async def erase(self) -> bool:
        """Left to the server's own autovacuum."""
        return True

    async def tidy(self) -> None:
        """Left to the server's own autovacuum."""

    def abandon(self) -> None:
        """Cuts every connection, without the goodbye that a server without a word delays."""
        for connection in list(self._open):
            connection.terminate()

    async def close(self) -> None:
        """Ends the connections."""
        await self._read.dispose()
        await self._write.dispose()


def _engine(connect: Callable[[], Any], *, size: int, **options: Any) -> AsyncEngine:
    return create_async_engine(
        "postgresql+asyncpg://",
        async_creator=connect,
        pool_size=size,
        max_overflow=0,
        pool_timeout=ANSWER_PATIENCE,
        # Parameters are content, which no message may show.
        hide_parameters=True,
        **options,
    )


def _migrate_alone(connection: Connection) -> None:
    """Processes that start together take turns; the lock ends with the transaction."""
    connection.execute(text("SELECT pg_advisory_xact_lock(hashtext('tieline schema'))"))
    migrate(connection)
