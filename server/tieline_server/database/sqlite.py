"""SQLite: one file in WAL mode, one thread that writes, some that read.

The driver blocks, so it gets threads. A transaction goes to the writer's thread as a whole:
one switch for all its statements, where an asynchronous driver would switch for each.
"""

import asyncio
import os
import sqlite3
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final, Self, TypeVar

from sqlalchemy import URL, Connection, Engine, create_engine, event

from tieline_server.config import MIB, ConfigError
from tieline_server.database.connection import PATIENCE, READERS
from tieline_server.database.errors import Busy, Damaged, DatabaseError, translated
from tieline_server.database.migrate import migrate

T = TypeVar("T")

PREFIX: Final = "sqlite:///"
OLDEST: Final = (3, 35, 0)
"""The first that knows RETURNING."""

WAL_LEFT: Final = 16 * MIB
"""Bytes that the write-ahead log keeps after a checkpoint, for the next one."""

PAGES: Final = 512
"""Free pages that go back to the file system in one step."""

CHECKPOINT_PATIENCE: Final = 0.1
"""Seconds that a checkpoint waits for readers; writes wait behind it."""


class SqliteDatabase:
    """An open file. Build it with :meth:`open`."""

    def __init__(self, path: Path, *, full: bool) -> None:
        url = URL.create("sqlite", database=str(path))
        self._write = _engine(url, size=1, prepare=_writing(full))
        self._read = _engine(url, size=READERS, prepare=_reading)
        event.listen(self._write, "begin", _begin)
        self._writer = ThreadPoolExecutor(1, "sqlite-write")
        self._readers = ThreadPoolExecutor(READERS, "sqlite-read")

    @classmethod
    async def open(cls, url: str, *, full: bool) -> Self:
        """Opens or makes the file of ``url``; raises :class:`ConfigError`."""
        if sqlite3.sqlite_version_info < OLDEST:
            raise ConfigError(f"SQLite {sqlite3.sqlite_version} is too old: 3.35 is needed")
        path = Path(url.removeprefix(PREFIX))
        try:
            _make_private(path)
        except OSError as error:
            raise ConfigError(f"cannot open {path}: {error.strerror}") from None
        database = cls(path, full=full)
        try:
            await database._start()
        except BaseException as error:
            await database.close()
            if isinstance(error, Damaged):
                raise ConfigError(f"{path} is no database, or is damaged ({error})") from None
            if isinstance(error, DatabaseError):
                raise ConfigError(f"cannot open {path}: {error}") from None
            raise
        return database

    async def _start(self) -> None:
        """Processes that start together meet here, and not every lock of SQLite waits."""
        give_up = time.monotonic() + PATIENCE
        while True:
            try:
                return await self.write(migrate)
            except Busy:
                if time.monotonic() > give_up:
                    raise
                await asyncio.sleep(0.05)

    async def read(self, ask: Callable[[Connection], T]) -> T:
        """Runs a question on a thread."""
        return await self._on(self._readers, _ask, self._read, ask)

    async def write(self, change: Callable[[Connection], T]) -> T:
        """Runs a change on the writer's thread."""
        return await self._on(self._writer, _change, self._write, change)

    async def erase(self) -> bool:
        """Empties the write-ahead log: pages of the file itself are overwritten at once."""
        return await self._on(self._writer, _checkpoint, self._write)

    async def tidy(self) -> None:
        """Gives some free pages back."""
        await self._on(self._writer, _shrink, self._write)

    async def close(self) -> None:
        """Ends the connections on their threads, then the threads."""
        await self._on(self._readers, self._read.dispose)
        await self._on(self._writer, self._write.dispose)
        await asyncio.to_thread(self._shut_down)

    def _shut_down(self) -> None:
        self._readers.shutdown()
        self._writer.shutdown()

    async def _on(self, threads: ThreadPoolExecutor, work: Callable[..., T], *args: Any) -> T:
        with translated():
            return await asyncio.get_running_loop().run_in_executor(threads, work, *args)


def _make_private(path: Path) -> None:
    """What callers said is in the file: it is made for its owner's eyes only."""
    os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))


def _engine(
    url: URL, *, size: int, prepare: Callable[[sqlite3.Connection, object], None]
) -> Engine:
    engine = create_engine(
        url,
        pool_size=size,
        max_overflow=0,
        # Parameters are content, which no message may show.
        hide_parameters=True,
        # The driver begins no transaction by itself: ``_begin`` does, or none is begun.
        connect_args={"timeout": PATIENCE, "isolation_level": None, "check_same_thread": False},
    )
    event.listen(engine, "connect", prepare)
    return engine


def _writing(full: bool) -> Callable[[sqlite3.Connection, object], None]:
    def prepare(connection: sqlite3.Connection, _record: object) -> None:
        # Room for pages can be given back only where this came before the first table.
        connection.execute("PRAGMA auto_vacuum = INCREMENTAL")
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute(f"PRAGMA synchronous = {'FULL' if full else 'NORMAL'}")
        connection.execute(f"PRAGMA journal_size_limit = {WAL_LEFT}")
        connection.execute("PRAGMA secure_delete = ON")
        connection.execute("PRAGMA foreign_keys = ON")

    return prepare


def _reading(connection: sqlite3.Connection, _record: object) -> None:
    connection.execute("PRAGMA query_only = ON")


def _begin(connection: Connection) -> None:
    """Takes the write lock at once: a lock that grows later cannot be waited for."""
    connection.exec_driver_sql("BEGIN IMMEDIATE")


def _ask(engine: Engine, ask: Callable[[Connection], T]) -> T:
    with engine.connect() as connection:
        return ask(connection)


def _change(engine: Engine, change: Callable[[Connection], T]) -> T:
    with engine.begin() as connection:
        return change(connection)


def _checkpoint(engine: Engine) -> bool:
    raw = engine.raw_connection()
    try:
        cursor = raw.cursor()
        cursor.execute(f"PRAGMA busy_timeout = {int(CHECKPOINT_PATIENCE * 1000)}")
        busy = cursor.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0]
        cursor.execute(f"PRAGMA busy_timeout = {int(PATIENCE * 1000)}")
        return not busy
    finally:
        raw.close()


def _shrink(engine: Engine) -> None:
    """Frees pages only where a quarter of the file is free: the next rows will need some."""
    raw = engine.raw_connection()
    try:
        cursor = raw.cursor()
        free = cursor.execute("PRAGMA freelist_count").fetchone()[0]
        pages = cursor.execute("PRAGMA page_count").fetchone()[0]
        if free > PAGES and free * 4 > pages:
            cursor.execute(f"PRAGMA incremental_vacuum({PAGES})").fetchall()
    finally:
        raw.close()
