"""Rows of responses that run: one process writes them, a log has no gap, one end is the end."""

from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
from msgspec import Raw
from msgspec.structs import replace
from sqlalchemy import Connection, create_engine, func, select

from tests.support.database import made, rows
from tests.support.journal_contract import begun
from tieline import events
from tieline.codecs.json import encode
from tieline.responses import Response, Usage
from tieline_server.storage.base import RunningResponse
from tieline_server.storage.sql import running
from tieline_server.storage.sql.schema import CLAIMS, EVENTS, METADATA

MINE: dict[str, Any] = {"owner": "ann", "response_id": "resp_1", "process": "one"}
WHOSE: dict[str, Any] = {"owner": "ann", "response_id": "resp_1"}


@pytest.fixture
def connection() -> Iterator[Connection]:
    engine = create_engine("sqlite://")
    METADATA.create_all(engine)
    with engine.begin() as connection:
        yield connection
    engine.dispose()


def begin(connection: Connection, response: Response | None = None) -> None:
    standing = RunningResponse(
        response=response or Response(id="resp_1"),
        owner="ann",
        model="m",
        transport="test",
        started_at=1.0,
    )
    running.begin(connection, standing, process="one")


def log(connection: Connection, first: int, *made: bytes, **changes: Any) -> bool:
    usage = Usage.of(input=1, cached=0, output=first + len(made), reasoning=0)
    return running.log(connection, made, **(MINE | changes), first=first, usage=usage)


def read(connection: Connection, *, after: int = -1, most: int = 99) -> list[bytes] | None:
    return running.events(connection, **WHOSE, after=after, most=most)


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
    running.describe(
        connection, **(MINE | {"process": "two"}), response=Response(id="resp_1", status="x")
    )
    assert found(connection).status != "x"
    assert not log(connection, 0, b"0", owner="bob")
    assert not log(connection, 0, b"0", response_id="resp_2")
    assert read(connection) == []


def test_large_events_are_in_rows_of_their_own(connection: Connection) -> None:
    begin(connection)
    made = [bytes([65 + number]) * (running.BLOB // 2) for number in range(5)]
    assert log(connection, 0, *made)
    assert count(connection, EVENTS) == 3
    assert read(connection) == made
    assert running.next_of(connection, **WHOSE) == 5


def test_what_one_question_reads_is_bounded(connection: Connection) -> None:
    begin(connection)
    for number in range(running.ROWS + 5):
        assert log(connection, number, b"x")
    assert len(read(connection) or ()) == running.ROWS
    assert len(read(connection, after=running.ROWS - 1) or ()) == 5


def found(connection: Connection) -> Response:
    there = running.find(connection, **WHOSE)
    assert there is not None
    return there.read().response


def test_a_response_stands_as_its_events_say(connection: Connection) -> None:
    began = Response(id="resp_1", status="queued", model="m", tools=Raw(b'[ {"type":"x"} ]'))
    begin(connection, began)
    assert found(connection) == replace(began, usage=Usage())
    in_progress = replace(began, status="in_progress")
    made = [
        events.ResponseInProgress(sequence_number=0, response=in_progress),
        events.OutputItemAdded(
            sequence_number=1, output_index=0, item=Raw(b'{"type":"message","id":"msg_1"}')
        ),
        *(
            events.OutputTextDelta(
                sequence_number=2 + number,
                item_id="msg_1",
                output_index=0,
                content_index=0,
                delta=word,
            )
            for number, word in enumerate(("one ", "two"))
        ),
    ]
    assert log(connection, 0, *map(encode, made))
    response = found(connection)
    assert (response.status, response.tools) == ("in_progress", began.tools)
    assert b'"one two"' in bytes(response.output[0])
    assert response.usage is not None
    assert response.usage.output_tokens == 4


def test_a_response_whose_events_were_lost_stands_as_it_was_written(
    connection: Connection,
) -> None:
    begin(connection, Response(id="resp_1", status="in_progress"))
    log(connection, 0, b"no event", b"{}")
    more = Usage.of(input=1, cached=0, output=9, reasoning=0)
    whole = Response(
        id="resp_1", status="in_progress", output=[Raw(b'{"type":"message"}')], usage=more
    )
    running.describe(connection, **MINE, response=whole)
    assert found(connection) == whole


def test_what_was_never_begun_is_not_found(connection: Connection) -> None:
    assert running.find(connection, **WHOSE) is None
    assert running.next_of(connection, **WHOSE) == 0


def test_a_response_ends_once(connection: Connection) -> None:
    begin(connection)
    log(connection, 0, b"0")
    assert running.finish(connection, **WHOSE)
    assert not running.finish(connection, **WHOSE)
    running.end(connection, **WHOSE)
    assert count(connection, EVENTS) == 1, "it was stored, and its events with it"
    assert running.size_of(connection, **WHOSE) > 0
    running.forget(connection, **WHOSE)
    assert (count(connection, EVENTS), count(connection, CLAIMS)) == (0, 0)
    assert running.size_of(connection, **WHOSE) == 0


async def test_a_begin_that_runs_twice_begins_once(address: str) -> None:
    begin = partial(running.begin, response=begun("resp_1", after="resp_0"), process="one")
    await made(address, begin, begin)
    columns = "owner, id, process, previous, model, transport"
    (row,) = await rows(address, f"SELECT {columns} FROM running")
    assert row == ("ann", "resp_1", "one", "resp_0", "m", "test")


async def test_of_a_response_that_another_process_runs_nothing_is_logged(address: str) -> None:
    await made(address, partial(running.begin, response=begun("resp_1"), process="two"))
    log = partial(running.log, made=[b"0"], **MINE, first=0, usage=Usage())
    assert await made(address, log) == [False]
    assert await rows(address, "SELECT * FROM events") == []


async def test_the_events_of_a_run_are_read_as_they_were_written(address: str) -> None:
    await made(address, partial(running.begin, response=begun("resp_1"), process="one"))
    written = [b'{"a": 1}', b"", b"\xff\n"]
    log = partial(running.log, made=written, **MINE, first=0, usage=Usage())
    assert await made(address, log) == [True]
    read = partial(running.events, owner="ann", response_id="resp_1", after=-1, most=9)
    assert await made(address, read) == [written]
