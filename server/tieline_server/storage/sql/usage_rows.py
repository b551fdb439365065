"""Rows of the ledger: a stored response's is written with it, all others by themselves."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec
from sqlalchemy import Connection, Insert, bindparam, delete
from sqlalchemy.dialects import postgresql, sqlite

from tieline_server.core.values import Booking
from tieline_server.storage.sql.schema import LEDGER

SECONDS_OF_DAY: Final = 86_400


def _upserts() -> Mapping[str, Insert]:
    """The statement that replaces an earlier row of the same response, by dialect."""
    key = "response_id"
    rest = [column.name for column in LEDGER.c if column.name != key]
    ours, theirs = sqlite.insert(LEDGER), postgresql.insert(LEDGER)
    return {
        "sqlite": ours.on_conflict_do_update(
            index_elements=[key], set_={name: ours.excluded[name] for name in rest}
        ),
        "postgresql": theirs.on_conflict_do_update(
            index_elements=[key], set_={name: theirs.excluded[name] for name in rest}
        ),
    }


_REPLACE: Final = _upserts()
_ADD: Final[Mapping[str, Insert]] = {
    "sqlite": sqlite.insert(LEDGER).on_conflict_do_nothing(),
    "postgresql": postgresql.insert(LEDGER).on_conflict_do_nothing(),
}

_REMOVE: Final = delete(LEDGER).where(LEDGER.c.response_id == bindparam("response"))


def row_of(booking: Booking) -> dict[str, Any]:
    """A booking as a row."""
    row = msgspec.structs.asdict(booking)
    row["phases"] = msgspec.json.encode(booking.phases).decode()
    row["day"] = int(booking.ended_at // SECONDS_OF_DAY)
    return row


def replace(connection: Connection, booking: Booking) -> None:
    """Writes a row in place of an earlier one of the same response."""
    connection.execute(_REPLACE[connection.dialect.name], row_of(booking))


def add(connection: Connection, bookings: Sequence[Booking]) -> None:
    """Writes rows; a response that has one keeps it."""
    rows = [row_of(booking) for booking in bookings]
    connection.execute(_ADD[connection.dialect.name], rows)


def claim(connection: Connection, booking: Booking) -> bool:
    """Writes a row unless its response has one, once that is certain; whether it was written."""
    return connection.execute(_ADD[connection.dialect.name], row_of(booking)).rowcount == 1


def remove(connection: Connection, response_id: str) -> None:
    """Removes a row that was written in the same transaction."""
    connection.execute(_REMOVE, {"response": response_id})
