"""The ledger in a database: rows leave in groups, within 50 ms, beside the next turn.

Where the database is away, rows wait in memory, up to a bound, and are tried again until it is
back. The row of a stored response is not among them: its store writes it with the response.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from itertools import islice
from typing import Any, Final

import msgspec
from sqlalchemy import Connection, Select, bindparam, delete, func, select

from tieline_server.core.values import UsageRecord
from tieline_server.storage.base import Question, Sum
from tieline_server.storage.sql.database import Database
from tieline_server.storage.sql.errors import DatabaseError, Unavailable
from tieline_server.storage.sql.schema import LEDGER, insert_new, insert_or_replace
from tieline_server.storage.sql.writer import Write, Writer

logger: Final = logging.getLogger("tieline.ledger")

MOST: Final = 100_000
"""Rows that wait for the database; past it the oldest are lost, which the log says."""

GROUP: Final = 500
"""Rows of one change."""

RETRY: Final = 1.0
"""Seconds after which rows that could not be written are tried again."""

SECONDS_OF_DAY: Final = 86_400


# Rows.

_REMOVE: Final = delete(LEDGER).where(LEDGER.c.response_id == bindparam("response"))


def row_of(usage_record: UsageRecord) -> dict[str, Any]:
    """A usage record as a row."""
    row = msgspec.structs.asdict(usage_record)
    row["phases"] = msgspec.json.encode(usage_record.phases).decode()
    row["day"] = int(usage_record.ended_at // SECONDS_OF_DAY)
    return row


def replace(connection: Connection, usage_record: UsageRecord) -> None:
    """Writes a row in place of an earlier one of the same response."""
    insert_or_replace(connection, LEDGER, row_of(usage_record))


def add(connection: Connection, records: Sequence[UsageRecord]) -> None:
    """Writes rows; a response that has one keeps it."""
    insert_new(connection, LEDGER, [row_of(usage_record) for usage_record in records])


def claim(connection: Connection, usage_record: UsageRecord) -> bool:
    """Writes a row unless its response has one, once that is certain; whether it was written."""
    return insert_new(connection, LEDGER, row_of(usage_record)) == 1


def remove(connection: Connection, response_id: str) -> None:
    """Removes a row that was written in the same transaction."""
    connection.execute(_REMOVE, {"response": response_id})


# The ledger.


class SqlLedger:
    """Rows of the ledger, kept until they are durable."""

    keeps_phases = True

    def __init__(self, database: Database, writer: Writer, *, most: int = MOST) -> None:
        self._database = database
        self._writer = writer
        self._most = most
        self._waiting: dict[str, UsageRecord] = {}
        self._sent = False
        """Whether a change is on its way that has not taken its rows yet."""
        self._failing = False
        self._retry: asyncio.TimerHandle | None = None
        self._loop = asyncio.get_running_loop()
        self._empty = asyncio.Event()
        self._empty.set()

    def add(self, usage_record: UsageRecord) -> None:
        """Takes a row; a response id that has one keeps it."""
        self._waiting.setdefault(usage_record.response_id, usage_record)
        self._empty.clear()
        if len(self._waiting) > self._most:
            lost = self._waiting.pop(next(iter(self._waiting)))
            logger.error("ledger.row lost", extra={"response_id": lost.response_id})
        self._send()

    async def usage(self, question: Question) -> Sequence[Sum]:
        """Sums in order of their group, made by the database."""
        await self._flush()
        rows = await self._database.read(
            lambda connection: connection.execute(_sums(question)).all()
        )
        sums = [_sum(*row) for row in rows]
        return sorted(sums, key=lambda each: each.group)

    async def written(self) -> None:
        """Returns once no row waits any more, however often it takes; asks for nothing."""
        await self._empty.wait()

    async def close(self) -> None:
        """Writes what is left, if the database can be reached."""
        if self._retry is not None:
            self._retry.cancel()
        try:
            await self._flush()
        except DatabaseError as error:
            rows = len(self._waiting)
            logger.error("ledger.rows lost", extra={"rows": rows, "reason": str(error)})

    async def _flush(self) -> None:
        # What is booked from now on is not waited for: there might be no end of it.
        last = next(reversed(self._waiting), None)
        while last in self._waiting:
            change = AddRows(self._waiting)
            self._writer.add(change)
            await change.done

    def _send(self) -> None:
        if not self._sent and self._retry is None:
            self._sent = True
            change = AddRows(self._waiting, taken=self._taken)
            change.done.add_done_callback(self._written)
            self._writer.send_ahead(change)

    def _taken(self) -> None:
        self._sent = False

    def _written(self, done: asyncio.Future[None]) -> None:
        error = done.exception()
        if error is None:
            self._failing = False
            self._again()
            return
        if not self._failing:
            self._failing = True
            if not isinstance(error, Unavailable):
                logger.warning("ledger.rows wait", extra={"reason": str(error)})
        if self._retry is None:
            self._retry = self._loop.call_later(RETRY, self._again)

    def _again(self) -> None:
        if self._retry is not None:
            self._retry.cancel()
            self._retry = None
        if self._waiting:
            self._send()
        else:
            self._empty.set()


class AddRows(Write[None]):
    """Writes rows that wait, the oldest first, and takes them out once they are durable."""

    def __init__(
        self, waiting: dict[str, UsageRecord], *, taken: Callable[[], None] = lambda: None
    ) -> None:
        # All in one statement.
        super().__init__(lambda connection: add(connection, self._rows))
        self._waiting = waiting
        self._taken = taken
        self._rows: list[UsageRecord] = []

    def take(self) -> bool:
        """The oldest ones; those to come need another change."""
        self._taken()
        self._rows = list(islice(self._waiting.values(), GROUP))
        if not self._rows:
            self._made = None
            self.settle(None)
        return bool(self._rows)

    def settle(self, error: Exception | None) -> None:
        """What is durable waits no longer."""
        if error is None:
            for row in self._rows:
                self._waiting.pop(row.response_id, None)
        super().settle(error)


_GROUPS: Final = {"key": LEDGER.c.owner, "model": LEDGER.c.model, "day": LEDGER.c.day}


def _sums(question: Question) -> Select[Any]:
    group = _GROUPS[question.by]
    counts = ("input_tokens", "cached_tokens", "output_tokens", "reasoning_tokens")
    sums = (func.sum(LEDGER.c[name]) for name in counts)
    statement = select(group, func.count(), *sums).group_by(group)
    if question.owner is not None:
        statement = statement.where(LEDGER.c.owner == question.owner)
    if question.since is not None:
        statement = statement.where(LEDGER.c.ended_at >= question.since)
    if question.until is not None:
        statement = statement.where(LEDGER.c.ended_at < question.until)
    return statement


def _sum(group: str | int, *numbers: Any) -> Sum:
    # PostgreSQL sums whole numbers to decimals.
    responses, given, cached, made, reasoned = map(int, numbers)
    return Sum(
        group=group if isinstance(group, str) else _date(group),
        responses=responses,
        input_tokens=given,
        cached_tokens=cached,
        output_tokens=made,
        reasoning_tokens=reasoned,
    )


def _date(day: int) -> str:
    return datetime.fromtimestamp(day * SECONDS_OF_DAY, UTC).date().isoformat()
