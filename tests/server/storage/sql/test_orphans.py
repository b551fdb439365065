"""A response whose process died: failed and booked by one, and by one only."""

from collections.abc import Iterator
from functools import partial

import pytest
from msgspec import Raw
from sqlalchemy import Connection, create_engine, select

from tests.support.database import made, rows
from tests.support.journal_contract import begun, claim
from tests.support.ledger_contract import usage_record
from tieline import responses
from tieline.responses import IncompleteDetails, Response, Usage
from tieline_server.storage.base import RunningResponse
from tieline_server.storage.sql import claims, orphans, processes, running, usage
from tieline_server.storage.sql.processes import Others
from tieline_server.storage.sql.schema import ITEMS, LEDGER, METADATA, RESPONSES, RUNNING


@pytest.fixture
def connection() -> Iterator[Connection]:
    engine = create_engine("sqlite://")
    METADATA.create_all(engine)
    with engine.begin() as connection:
        yield connection
    engine.dispose()


def begin(connection: Connection) -> Response:
    used = Usage.of(input=5, cached=1, output=3, reasoning=2)
    response = Response(
        id="resp_1", status="in_progress", usage=used, incomplete_details=IncompleteDetails()
    )
    standing = RunningResponse(
        response=response, owner="ann", model="m", transport="test", started_at=1.0
    )
    running.begin(connection, standing, process="one")
    return response


def fail(connection: Connection, response: Response, process: str = "one") -> bool:
    return orphans.fail(connection, response, owner="ann", process=process, now=9.0)


def test_it_is_stored_as_failed_with_what_it_used(connection: Connection) -> None:
    response = begin(connection)
    assert fail(connection, response)
    body, terminal = connection.execute(select(RESPONSES.c.body, RESPONSES.c.terminal)).one()
    found = responses.decode(body)
    assert (found.status, found.usage, terminal) == ("failed", response.usage, 0)
    assert found.error is not None
    assert found.error.code == orphans.CODE
    assert (found.incomplete_details, found.completed_at) == (None, None)
    assert connection.execute(select(RUNNING)).all() == []


def test_it_is_booked_once_whoever_comes(connection: Connection) -> None:
    response = begin(connection)
    assert not fail(connection, response, process="two")
    assert fail(connection, response)
    assert not fail(connection, response)
    (row,) = connection.execute(select(LEDGER)).all()
    assert (row.outcome, row.error_code, row.stored) == ("failed", "server_error", True)
    counts = (row.input_tokens, row.cached_tokens, row.output_tokens, row.reasoning_tokens)
    assert counts == (5, 1, 3, 2)
    assert (row.started_at, row.ended_at) == (1.0, 9.0)


def test_what_its_process_had_booked_itself_stays(connection: Connection) -> None:
    response = begin(connection)
    usage.add(connection, [usage_record("resp_1", outcome="failed", output_tokens=7)])
    assert fail(connection, response)
    assert connection.execute(select(LEDGER.c.output_tokens)).scalars().all() == [7]


def test_an_item_that_was_being_made_is_incomplete_now_and_others_keep_their_bytes() -> None:
    whole = Raw(b'{ "type":"message", "status":"completed" }')
    output = [whole, Raw(b'{"type":"message","status":"in_progress"}')]
    failed = orphans.failed(Response(output=output))
    assert list(map(bytes, failed.output)) == [
        bytes(whole),
        b'{"type":"message","status":"incomplete"}',
    ]
    assert failed.usage == Usage()


def test_output_that_was_cut_to_what_is_no_item_is_no_hindrance(connection: Connection) -> None:
    begin(connection)
    output = [Raw(b'{"type":"message"}'), Raw(b"[]"), Raw(b'{"type":"x","id":"x_1"}')]
    assert fail(connection, Response(id="resp_1", output=output))
    body = connection.execute(select(RESPONSES.c.body)).scalar_one()
    assert list(map(bytes, responses.decode(body).output)) == list(map(bytes, output))
    assert connection.execute(select(ITEMS.c.raw)).scalars().all() == [bytes(output[2])]


async def test_who_lives_loses_nothing_and_who_goes_loses_all_of_his(address: str) -> None:
    for name in ("one", "two"):
        mine = claim(f"resp_{name}", key=name.encode())
        others = Others(name, lambda process: True)
        await made(
            address,
            partial(processes.beat, process=name, now=9.0),
            partial(running.begin, response=begun(f"resp_{name}"), process=name),
        )
        await made(address, partial(claims.take, claim=mine, others=others, now=9.0))
    remains = [begun("resp_one"), begun("resp_two")]
    end = partial(orphans.end, remains=remains, process="one", now=9.0, last=True)
    await made(address, partial(end, others=Others("three", lambda process: True)))
    assert len(await rows(address, "SELECT * FROM running")) == 2
    await made(address, partial(end, others=Others("one", lambda process: True)))
    for table, column in (("running", "process"), ("claims", "process"), ("processes", "id")):
        assert await rows(address, f"SELECT {column} FROM {table}") == [("two",)]
    assert await rows(address, "SELECT id FROM responses") == [("resp_one",)]
