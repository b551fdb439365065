"""Rows of the ledger as statements: replaced with their response, else the first one stays."""

from collections.abc import Iterator

import pytest
from sqlalchemy import Connection, create_engine, select

from tests.support.ledger_contract import booking
from tieline_server.storage.sql import usage_rows as bookings
from tieline_server.storage.sql.schema import LEDGER, METADATA


@pytest.fixture
def connection() -> Iterator[Connection]:
    engine = create_engine("sqlite://")
    METADATA.create_all(engine)
    with engine.begin() as connection:
        yield connection
    engine.dispose()


def rows(connection: Connection) -> list[tuple[str, str, int]]:
    columns = (LEDGER.c.response_id, LEDGER.c.outcome, LEDGER.c.output_tokens)
    return [(row[0], row[1], row[2]) for row in connection.execute(select(*columns))]


def test_a_row_that_is_added_twice_stays_as_it_was(connection: Connection) -> None:
    bookings.add(connection, [booking("r1", output_tokens=1), booking("r2", output_tokens=2)])
    bookings.add(connection, [booking("r1", output_tokens=9, outcome="failed")])
    assert rows(connection) == [("r1", "completed", 1), ("r2", "completed", 2)]


def test_the_row_of_a_stored_response_replaces_what_was_added(connection: Connection) -> None:
    bookings.add(connection, [booking("r1", outcome="disconnected", output_tokens=1)])
    bookings.replace(connection, booking("r1", output_tokens=3))
    bookings.replace(connection, booking("r1", output_tokens=4))
    bookings.add(connection, [booking("r1", output_tokens=9)])
    assert rows(connection) == [("r1", "completed", 4)]


@pytest.mark.parametrize(("ended_at", "day"), [(0.0, 0), (86_399.9, 0), (86_400.0, 1)])
def test_the_day_is_that_of_the_end_in_utc(ended_at: float, day: int) -> None:
    assert bookings.row_of(booking("r1", ended_at=ended_at))["day"] == day
