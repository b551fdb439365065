"""Rows of responses that run: one process writes them, a log has no gap, one end is the end."""

from collections.abc import Iterator
from typing import Any

import pytest
from sqlalchemy import Connection, create_engine, func, select

from tieline.responses import Response, Usage
from tieline_server.database import begun
from tieline_server.database.schema import CLAIMS, EVENTS, METADATA, RUNNING

MINE: dict[str, Any] = {"owner": "ann", "response_id": "resp_1", "process": "one"}
WHOSE: dict[str, Any] = {"owner": "ann", "response_id": "resp_1"}


@pytest.fixture
def connection() -> Iterator[Connection]:
    engine = create_engine("sqlite://")
    METADATA.create_all(engine)
    with engine.begin() as connection:
        yield connection
    engine.dispose()


def begin(connection: Connection) -> None:
    row = {
        "owner": "ann",
        "id": "resp_1",
        "process": "one",
        "previous": None,
        "model": "m",
        "transport": "test",
        "started_at": 1.0,
        "body": b"{}",
    }
    begun.begin(connection, row)


def log(connection: Connection, first: int, *made: bytes, **changes: Any) -> bool:
    usage = Usage.of(input=1, cached=0, output=first + len(made), reasoning=0)
    return begun.log(connection, made, **(MINE | changes), first=first, usage=usage)


def read(connection: Connection, *, after: int = -1, most: int = 99) -> list[bytes] | None:
    return begun.events(connection, **WHOSE, after=after, most=most)


def count(connection: Connection, table: Any) -> int:
    return connection.execute(select(func.count()).select_from(table)).scalar_one()


def test_a_log_grows_at_its_end_alone(connection: Connection) -> None:
    begin(connection)
    assert log(connection, 0, b"0", b"1")
    assert not log(connection, 3, b"3"), "2 is missing"
    assert not log(connection, 1, b"1"), "1 is there"
    assert log(connection, 2, b"2")
    assert read(connection) == [b"0", b"1", b"2"]
    assert read(connection, after=1) == [b"2"]
    assert read(connection, after=-1, most=2) == [b"0", b"1"]


def test_only_the_process_that_began_a_response_writes_of_it(connection: Connection) -> None:
    begin(connection)
    assert not log(connection, 0, b"0", process="two")
    begun.describe(
        connection, **(MINE | {"process": "two"}), response=Response(id="resp_1", status="x")
    )
    assert connection.execute(select(RUNNING.c.body)).scalar_one() == b"{}"
    assert not log(connection, 0, b"0", owner="bob")
    assert not log(connection, 0, b"0", response_id="resp_2")
    assert read(connection) == []


def test_large_events_are_in_rows_of_their_own(connection: Connection) -> None:
    begin(connection)
    made = [bytes([65 + number]) * (begun.BLOB // 2) for number in range(5)]
    assert log(connection, 0, *made)
    assert count(connection, EVENTS) == 3
    assert read(connection) == made
    assert begun.last(connection, **WHOSE).next == 5


def test_what_one_question_reads_is_bounded(connection: Connection) -> None:
    begin(connection)
    for number in range(begun.ROWS + 5):
        assert log(connection, number, b"x")
    assert len(read(connection) or ()) == begun.ROWS
    assert len(read(connection, after=begun.ROWS - 1) or ()) == 5


def test_what_a_response_used_is_the_most_that_was_written(connection: Connection) -> None:
    begin(connection)
    assert begun.last(connection, **WHOSE) == begun.Logged()
    log(connection, 0, b"0", b"1")
    logged = begun.last(connection, **WHOSE)
    assert (logged.next, logged.usage.output_tokens) == (2, 2)
    more = Usage.of(input=1, cached=0, output=9, reasoning=0)
    assert logged.used(Response(usage=more)) == more
    assert logged.used(Response()) == logged.usage


def test_a_response_ends_once(connection: Connection) -> None:
    begin(connection)
    log(connection, 0, b"0")
    assert begun.finish(connection, **WHOSE)
    assert not begun.finish(connection, **WHOSE)
    begun.end(connection, **WHOSE)
    assert count(connection, EVENTS) == 1, "it was stored, and its events with it"
    assert begun.size_of(connection, **WHOSE) > 0
    begun.forget(connection, **WHOSE)
    assert (count(connection, EVENTS), count(connection, CLAIMS)) == (0, 0)
    assert begun.size_of(connection, **WHOSE) == 0
