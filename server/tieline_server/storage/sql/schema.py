"""The tables, and the inserts that each database writes in its own way.

A **node** is what one response added to its chain: its input, then its output. ``parent`` is the
node before it, so that a chain is a path and forks share their parents. What a stored response
inherited from ones that were not stored is a node of its own, without a response.

``used_at`` is there exactly while the node's response is: a node whose response was deleted
stays for its descendants, and nothing finds it but they. ``draft`` is there while its response
still runs: when its writer was last seen.

A response that was **begun** is one that its process would leave behind if it died: what it has
is in ``running`` until it is stored. Its ``events`` and ``claims`` go when the response goes.

All times are Unix seconds. Every row that holds content belongs to one owner.
"""

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, Final

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Connection,
    Double,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    Table,
    Text,
)
from sqlalchemy.dialects import postgresql, sqlite

NUMBER: Final = BigInteger().with_variant(Integer, "sqlite")
"""SQLite counts up only in a column that is called INTEGER, and it has 64 bits there too."""

METADATA: Final = MetaData(
    naming_convention={
        "pk": "%(table_name)s_pk",
        "fk": "%(table_name)s_%(column_0_name)s_fk",
        "ix": "%(table_name)s_%(column_0_name)s",
        "uq": "%(table_name)s_%(column_0_name)s_key",
    }
)

NODES: Final = Table(
    "nodes",
    METADATA,
    Column("id", NUMBER, primary_key=True, autoincrement=True),
    Column("parent", NUMBER, ForeignKey("nodes.id")),
    Column("owner", Text, nullable=False),
    Column("turn", Integer, nullable=False),
    Column("size", NUMBER, nullable=False, comment="bytes of its items and its response"),
    Column("used_at", Double),
    Column("draft", Double),
    # A number must never come back: connections remember those of nodes that may be gone.
    sqlite_autoincrement=True,
)

ITEMS: Final = Table(
    "items",
    METADATA,
    Column("node", NUMBER, ForeignKey("nodes.id", ondelete="CASCADE"), primary_key=True),
    Column("position", Integer, primary_key=True),
    Column("lookup", LargeBinary, comment="digest of owner and item id"),
    Column("raw", LargeBinary, nullable=False),
)

RESPONSES: Final = Table(
    "responses",
    METADATA,
    Column("owner", Text, primary_key=True),
    Column("id", Text, primary_key=True),
    Column("node", NUMBER, ForeignKey("nodes.id"), nullable=False, unique=True),
    Column("created_at", Double, nullable=False),
    Column("body", LargeBinary, nullable=False),
    Column("terminal", Integer, comment="number of its terminal event, where it was begun"),
)

RUNNING: Final = Table(
    "running",
    METADATA,
    Column("owner", Text, primary_key=True),
    Column("id", Text, primary_key=True),
    Column("process", Text, nullable=False),
    Column("previous", Text, comment="the response that it continues"),
    Column("model", Text, nullable=False),
    Column("transport", Text, nullable=False),
    Column("started_at", Double, nullable=False),
    Column("body", LargeBinary, nullable=False),
)

EVENTS: Final = Table(
    "events",
    METADATA,
    Column("owner", Text, primary_key=True),
    Column("response", Text, primary_key=True),
    Column("first", Integer, primary_key=True, comment="number of its first event"),
    Column("next", Integer, nullable=False, comment="number of its last event, plus 1"),
    Column("usage", LargeBinary, nullable=False, comment="JSON: what the response had used then"),
    Column("blob", LargeBinary, nullable=False, comment="MessagePack: each event's JSON"),
)

CLAIMS: Final = Table(
    "claims",
    METADATA,
    Column("owner", Text, primary_key=True),
    Column("key", LargeBinary, primary_key=True, comment="digest of owner and idempotency key"),
    Column("body", LargeBinary, nullable=False, comment="digest of what was asked for"),
    Column("response", Text, nullable=False),
    Column("stored", Boolean, nullable=False, comment="whether the response is to be stored"),
    Column("process", Text, comment="what must live for it to hold; none once it is stored"),
    Column("until", Double),
)

CANCELS: Final = Table(
    "cancels",
    METADATA,
    Column("id", NUMBER, primary_key=True, autoincrement=True),
    Column("owner", Text, nullable=False),
    Column("response", Text, nullable=False),
    Column("until", Double, nullable=False),
    # A process that has read a number does not read it again.
    sqlite_autoincrement=True,
)

PROCESSES: Final = Table(
    "processes",
    METADATA,
    Column("id", Text, primary_key=True),
    Column("seen_at", Double, nullable=False),
)

LEASES: Final = Table(
    "leases",
    METADATA,
    Column("name", Text, primary_key=True, comment="what only one process does at a time"),
    Column("holder", Text, nullable=False),
    Column("until", Double, nullable=False),
)

LEDGER: Final = Table(
    "ledger",
    METADATA,
    Column("response_id", Text, primary_key=True),
    Column("owner", Text, nullable=False),
    Column("model", Text, nullable=False),
    Column("transport", Text, nullable=False),
    Column("outcome", Text, nullable=False),
    Column("kind", Text, nullable=False),
    Column("reason", Text),
    Column("error_code", Text),
    Column("input_tokens", NUMBER, nullable=False),
    Column("cached_tokens", NUMBER, nullable=False),
    Column("output_tokens", NUMBER, nullable=False),
    Column("reasoning_tokens", NUMBER, nullable=False),
    Column("phases", Text, nullable=False, comment="JSON: microseconds by phase"),
    Column("started_at", Double, nullable=False),
    Column("ended_at", Double, nullable=False),
    Column("day", Integer, nullable=False, comment="of the end, counted from 1970-01-01 (UTC)"),
    Column("stored", Boolean, nullable=False),
)


def _partial(name: str, column: Column[object]) -> None:
    """An index of the rows that have the column: most rows of the table do not."""
    there = column.is_not(None)
    Index(name, column, sqlite_where=there, postgresql_where=there)


_partial("nodes_parent", NODES.c.parent)
_partial("nodes_used_at", NODES.c.used_at)
_partial("nodes_draft", NODES.c.draft)
_partial("items_lookup", ITEMS.c.lookup)
_partial("claims_process", CLAIMS.c.process)
_partial("claims_until", CLAIMS.c.until)
Index("claims_response", CLAIMS.c.owner, CLAIMS.c.response)
Index("running_process", RUNNING.c.process)
Index("running_previous", RUNNING.c.owner, RUNNING.c.previous)
Index("ledger_owner_ended_at", LEDGER.c.owner, LEDGER.c.ended_at)
Index("ledger_ended_at", LEDGER.c.ended_at)


Rows = Mapping[str, Any] | Sequence[Mapping[str, Any]]

_Insert = sqlite.Insert | postgresql.Insert


def insert_new(connection: Connection, table: Table, rows: Rows) -> int:
    """Inserts rows, but for those whose key has one already; returns how many were inserted.

    Where another transaction is about to insert the same key, it waits for that one's end.
    """
    return connection.execute(_insert_new(connection.dialect.name, table), rows).rowcount


def insert_or_replace(connection: Connection, table: Table, row: Mapping[str, Any]) -> None:
    """Inserts a row in place of the one that has its key."""
    connection.execute(_insert_or_replace(connection.dialect.name, table), row)


def _insert(dialect: str, table: Table) -> _Insert:
    return sqlite.insert(table) if dialect == "sqlite" else postgresql.insert(table)


@cache
def _insert_new(dialect: str, table: Table) -> _Insert:
    return _insert(dialect, table).on_conflict_do_nothing()


@cache
def _insert_or_replace(dialect: str, table: Table) -> _Insert:
    statement = _insert(dialect, table)
    rest = {
        column.name: statement.excluded[column.name] for column in table.c if not column.primary_key
    }
    return statement.on_conflict_do_update(index_elements=list(table.primary_key), set_=rest)
