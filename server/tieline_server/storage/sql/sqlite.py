"""SQLite: one file in WAL mode, one thread that writes, some that read, one that keeps house.

The driver blocks, so it gets threads. A transaction goes to the writer's thread as a whole:
one switch for all its statements, where an asynchronous driver would switch for each.

The driver also gives the interpreter away at each step of a statement, and under a busy loop
gets it back late each time: the loop lets go of it for moments only, too short for a thread to
wake in, and so is never told that one waits. A transaction of 2 ms then takes 50, with its lock
held. So the loop stands still for a transaction, for as long as any thread may keep it waiting
anyway; what takes longer (a lock, a disk) goes on beside it.

A checkpoint flushes the disk. By itself it would come in the middle of a commit that a response
waits for; the housekeeper does it beside them. But only a log that was moved to its last page
begins anew, which under steady writing none is that is moved beside it: past a length, the
writer moves what is left, which is little, between two transactions.
"""

import asyncio
import os
import sqlite3
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, Self, TypeVar

from sqlalchemy import Connection, Engine, create_engine, event
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.pool import QueuePool

from tieline_server.config import MIB, ConfigError
from tieline_server.storage.sql.database import PATIENCE, READERS
from tieline_server.storage.sql.errors import Away, Busy, Damaged, DatabaseError, translated
from tieline_server.storage.sql.migrations import migrate

T = TypeVar("T")

PREFIX: Final = "sqlite:///"
OLDEST: Final = (3, 35, 0)
"""The first that knows RETURNING."""

WAL_LEFT: Final = 16 * MIB
"""Bytes that the write-ahead log keeps after a checkpoint, for the next one."""

LENT: Final = 0.005
"""Seconds that the loop stands still for a transaction: the interpreter's switch interval."""

LOANS: Final = 4
"""How often it does, with a turn of its own between, for one that takes longer."""

PAGES: Final = 512
"""Free pages that go back to the file system in one step."""

CHECKPOINT: Final = 1.0
"""Seconds after a write until the log goes into the file."""

CHECKPOINT_PATIENCE: Final = 0.5
"""Seconds that an erasing checkpoint waits for readers; writes wait behind it."""

LONG_LOG: Final = 4000
"""Pages of the log at which the writer helps the housekeeper to its end."""

LOG_PAGES: Final = 8000
"""Pages of the log at which a commit makes a checkpoint itself, if the housekeeper cannot."""


class SqliteDatabase:
    """An open file. Build it with :meth:`open`."""

    def __init__(self, path: Path, *, full: bool) -> None:
        self._file = file = SameFile(path)
        self._full = full
        self._write = _engine(file, size=1, prepare=_writing(full))
        self._house = _engine(file, size=1, prepare=_writing(full), patience=CHECKPOINT_PATIENCE)
        self._read = _engine(file, size=READERS, prepare=_reading)
        event.listen(self._write, "begin", _begin)
        self._writer = ThreadPoolExecutor(1, "sqlite-write")
        self._readers = ThreadPoolExecutor(READERS, "sqlite-read")
        self._housekeeper = ThreadPoolExecutor(1, "sqlite-house")
        self._checkpoint: asyncio.TimerHandle | None = None
        self._owing = False
        """Whether a checkpoint that should have erased could not."""

    @classmethod
    async def open(cls, url: str, *, full: bool, make: bool = True) -> Self:
        """Opens the file of ``url``, or makes it; raises :class:`ConfigError`."""
        if sqlite3.sqlite_version_info < OLDEST:
            raise ConfigError(f"SQLite {sqlite3.sqlite_version} is too old: 3.35 is needed")
        path = Path(url.removeprefix(PREFIX))
        try:
            _open_private(path, make=make)
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
                await self.write(migrate)
                break
            except Busy:
                if time.monotonic() > give_up:
                    raise
                await asyncio.sleep(0.05)
        # What a killed process left in the log goes into the file before a caller waits for a
        # commit. The first connection of an engine also costs some 10 ms of the interpreter.
        await self._on(self._housekeeper, self._move_log)
        await self.read(lambda connection: connection.exec_driver_sql("SELECT 1").scalar())

    async def read(self, ask: Callable[[Connection], T]) -> T:
        """Runs a question on a thread."""
        return await self._on(self._readers, self._ask, ask)

    async def write(self, change: Callable[[Connection], T]) -> T:
        """Runs a change on the writer's thread, which has the interpreter to itself at first."""
        back = threading.Event()
        running = self._writer.submit(self._change, change, back)
        for _ in range(LOANS):
            if back.wait(LENT):
                break
            await asyncio.sleep(0)
        with translated():
            changed = await asyncio.wrap_future(running)
        if self._checkpoint is None:
            loop = asyncio.get_running_loop()
            self._checkpoint = loop.call_later(CHECKPOINT, self._start_checkpoint)
        return changed

    def _ask(self, ask: Callable[[Connection], T]) -> T:
        with self._read.connect() as connection:
            answer = ask(connection)
        self._file.check()
        return answer

    def _change(self, change: Callable[[Connection], T], back: threading.Event) -> T:
        try:
            self._file.check()
            with self._write.begin() as connection:
                changed = change(connection)
                if self._full:
                    # A flush of the disk needs no interpreter.
                    back.set()
            # It may have gone meanwhile.
            self._file.check()
            return changed
        finally:
            back.set()

    def _start_checkpoint(self) -> None:
        self._checkpoint = None
        self._housekeeper.submit(self._move_log)

    def _move_log(self) -> None:
        """What comes while a long log is moved is moved the second time, and then the third."""
        if all(_move_log(self._house) >= LONG_LOG for _ in range(2)):
            self._writer.submit(_move_log, self._write)

    async def erase(self) -> bool:
        """Empties the write-ahead log: pages of the file itself are overwritten at once."""
        self._owing = not await self._on(self._housekeeper, _empty_log, self._house)
        return not self._owing

    async def tidy(self) -> None:
        """Erases what could not be erased at its time, and gives some free pages back."""
        if self._owing:
            await self.erase()
        await self._on(self._housekeeper, _shrink, self._house)

    def abandon(self) -> None:
        """A statement on a thread ends by itself: waiting for a lock has its own patience."""

    async def close(self) -> None:
        """Ends the connections on their threads, then the threads."""
        if self._checkpoint is not None:
            self._checkpoint.cancel()
        await self._on(self._housekeeper, self._house.dispose)
        await self._on(self._readers, self._read.dispose)
        await self._on(self._writer, self._write.dispose)
        await asyncio.to_thread(self._shut_down)

    def _shut_down(self) -> None:
        for threads in (self._housekeeper, self._readers, self._writer):
            threads.shutdown()

    async def _on(self, threads: ThreadPoolExecutor, work: Callable[..., T], *args: Any) -> T:
        with translated():
            return await asyncio.get_running_loop().run_in_executor(threads, work, *args)


class SameFile:
    """The file that was opened: a path may be given to another one, or to none, meanwhile.

    A connection goes on with a file that was removed, and all that it writes is gone at its end.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._identity = _identity(path)

    def check(self) -> None:
        """Raises :class:`Away` unless the path still leads to it."""
        if _identity(self.path) != self._identity:
            raise Away("the file was moved, removed or replaced")


def _identity(path: Path) -> tuple[int, int]:
    try:
        found = os.stat(path)
    except FileNotFoundError:
        return (0, 0)
    return (found.st_dev, found.st_ino)


def _open_private(path: Path, *, make: bool) -> None:
    """What callers said is in the file: it is made for its owner's eyes only."""
    os.close(os.open(path, os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT if make else 0), 0o600))


def _engine(
    file: SameFile,
    *,
    size: int,
    prepare: Callable[[sqlite3.Connection, object], None],
    patience: float = PATIENCE,
) -> Engine:
    def dial() -> sqlite3.Connection:
        # SQLite would make a file that is missing.
        file.check()
        # The driver begins no transaction by itself: ``_begin`` does, or none is begun.
        return sqlite3.connect(
            file.path, timeout=patience, isolation_level=None, check_same_thread=False
        )

    engine = create_engine(
        "sqlite://",
        creator=dial,
        poolclass=QueuePool,
        pool_size=size,
        max_overflow=0,
        # Parameters are content, which no message may show.
        hide_parameters=True,
    )
    event.listen(engine, "connect", prepare)
    return engine


def _writing(full: bool) -> Callable[[sqlite3.Connection, object], None]:
    def prepare(connection: sqlite3.Connection, _record: object) -> None:
        # Room for pages can be given back only where this came before the first table.
        connection.execute("PRAGMA auto_vacuum = INCREMENTAL")
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute(f"PRAGMA synchronous = {'FULL' if full else 'NORMAL'}")
        connection.execute(f"PRAGMA wal_autocheckpoint = {LOG_PAGES}")
        connection.execute(f"PRAGMA journal_size_limit = {WAL_LEFT}")
        connection.execute("PRAGMA secure_delete = ON")
        connection.execute("PRAGMA foreign_keys = ON")

    return prepare


def _reading(connection: sqlite3.Connection, _record: object) -> None:
    connection.execute("PRAGMA query_only = ON")


def _begin(connection: Connection) -> None:
    """Takes the write lock at once: a lock that grows later cannot be waited for."""
    connection.exec_driver_sql("BEGIN IMMEDIATE")


def _move_log(engine: Engine) -> int:
    """As far as no reader and no writer is in the way; the pages that the log had.

    The next one tries again what fails.
    """
    with suppress(SQLAlchemyError, sqlite3.Error, DatabaseError), engine.connect() as connection:
        pragma = _driver(connection).execute("PRAGMA wal_checkpoint(PASSIVE)")
        return int(pragma.fetchone()[1])
    return 0


def _empty_log(engine: Engine) -> bool:
    return not _run(engine, "PRAGMA wal_checkpoint(TRUNCATE)")


def _shrink(engine: Engine) -> None:
    """Frees pages only where a quarter of the file is free: the next rows will need some."""
    free = _run(engine, "PRAGMA freelist_count")
    if free > PAGES and free * 4 > _run(engine, "PRAGMA page_count"):
        with engine.connect() as connection:
            # A script runs to its end; a statement without columns stops after one page.
            _driver(connection).executescript(f"PRAGMA incremental_vacuum({PAGES})")


def _run(engine: Engine, pragma: str) -> int:
    """The first number that a pragma answers with."""
    with engine.connect() as connection:
        return int(_driver(connection).execute(pragma).fetchone()[0])


def _driver(connection: Connection) -> sqlite3.Connection:
    driver = connection.connection.driver_connection
    assert isinstance(driver, sqlite3.Connection)
    return driver
