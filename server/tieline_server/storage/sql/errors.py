"""What can be wrong with a database, told apart by what helps against it.

Messages name the driver's error and its code. They never hold a driver's own text, which may
quote what was to be written, nor an address, which may hold a password.
"""

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from tieline import errors
from tieline.errors import TielineError

RETRY_AFTER: Final = 5.0
"""Seconds after which a database that is away may well be back."""


class DatabaseError(TielineError):
    """The database did not do what was asked, and nothing of it."""


class Away(DatabaseError):
    """It cannot be reached, opened or written to; it may come back."""


class Busy(DatabaseError):
    """Another process has held its lock for too long."""


class Full(DatabaseError):
    """There is no room left on its disk."""


class Damaged(DatabaseError):
    """The file is no database, or is corrupt."""


class Conflict(DatabaseError):
    """Another transaction came first; the same one may work now."""


class Overtaken(DatabaseError):
    """Another process has ended the response, because this one had seemed dead."""


class Unavailable(Away, errors.Unavailable):
    """It has been away for longer than callers should wait; they are told just that."""

    def __init__(self) -> None:
        errors.Unavailable.__init__(
            self,
            "storage_unavailable",
            "Stored responses cannot be read or written now: try again later.",
            retry_after=RETRY_AFTER,
        )


_SQLITE: Final[dict[int, type[DatabaseError]]] = {
    sqlite3.SQLITE_BUSY: Busy,
    sqlite3.SQLITE_LOCKED: Busy,
    sqlite3.SQLITE_FULL: Full,
    sqlite3.SQLITE_CORRUPT: Damaged,
    sqlite3.SQLITE_NOTADB: Damaged,
    sqlite3.SQLITE_IOERR: Away,
    sqlite3.SQLITE_CANTOPEN: Away,
    sqlite3.SQLITE_READONLY: Away,
    sqlite3.SQLITE_PERM: Away,
    sqlite3.SQLITE_CONSTRAINT: Conflict,
}
"""Primary result code -> what it means here."""

_POSTGRESQL: Final[dict[str, type[DatabaseError]]] = {
    "08": Away,  # connection exception
    "28": Away,  # invalid authorization
    "3D": Away,  # no such database
    "53": Away,  # too many connections, out of memory
    "57": Away,  # shutting down, starting up, cancelled
    "25006": Away,  # read-only: a standby was promoted elsewhere
    "53100": Full,
    "55P03": Busy,
    "23": Conflict,
    "40": Conflict,  # deadlock, serialization failure
    "XX001": Damaged,
    "XX002": Damaged,
}
"""SQLSTATE, or its class -> what it means here."""


def translate(error: Exception) -> DatabaseError:
    """A driver's error as ours."""
    if isinstance(error, DatabaseError):
        return error
    cause: BaseException | None = error.orig if isinstance(error, DBAPIError) else error
    if isinstance(cause, sqlite3.Error) and getattr(cause, "sqlite_errorcode", None) is not None:
        kind = _SQLITE.get(cause.sqlite_errorcode & 0xFF, DatabaseError)
        return kind(f"{type(cause).__name__} {cause.sqlite_errorname}")
    state = getattr(cause, "sqlstate", None)
    lost = isinstance(error, DBAPIError) and error.connection_invalidated
    if state is not None and not lost:
        kind = _POSTGRESQL.get(state) or _POSTGRESQL.get(state[:2], DatabaseError)
        return kind(f"{type(cause).__name__} {state}")
    if lost or isinstance(cause, OSError | TimeoutError):
        return Away(type(cause).__name__)
    return DatabaseError(type(cause).__name__)


@contextmanager
def translated() -> Iterator[None]:
    """Lets a driver's errors out as :class:`DatabaseError`."""
    try:
        yield
    except (SQLAlchemyError, sqlite3.Error, OSError) as error:
        raise translate(error) from None
    except Exception as error:
        # A creator's errors come as the driver raised them, and share no class of ours.
        if not type(error).__module__.startswith("asyncpg"):
            raise
        raise translate(error) from None
