"""The ledger in a database: it answers as the one in memory does, and every row is there once."""

import asyncio
from collections.abc import Callable, Iterator
from itertools import count, product
from time import monotonic

import pytest
from msgspec.structs import replace
from sqlalchemy import Connection, create_engine, func, select

from tests.support.database import durable
from tests.support.ledger_contract import usage_record
from tests.support.store_contract import booked, put, saved
from tieline_server.core.values import UsageRecord
from tieline_server.storage.base import By, Question
from tieline_server.storage.memory import MemoryLedger
from tieline_server.storage.sql import usage
from tieline_server.storage.sql.schema import LEDGER, METADATA
from tieline_server.storage.sql.usage import GROUP
from tieline_server.storage.sql.writer import Write

DAY = 86_400.0
HALF_AN_HOUR = 1800.0
"""After midnight, where a sum by another time zone would go wrong."""


def row(number: int, **changes: object) -> UsageRecord:
    """A row of a response; its tokens tell it apart."""
    usual = replace(
        booked(saved(f"resp_{number}")),
        input_tokens=10**number,
        output_tokens=3 * 10**number,
        ended_at=20_000 * DAY + HALF_AN_HOUR + (number % 3) * DAY,
    )
    return replace(usual, **changes)


def rows() -> list[UsageRecord]:
    """Of two owners and two models, on three days."""
    kinds = product(("ann", "Bob"), ("large", "small"), range(3))
    return [row(n, owner=owner, model=model) for n, (owner, model, _) in enumerate(kinds)]


GROUPS: tuple[By, ...] = ("key", "model", "day")

QUESTIONS = [
    Question(by=by, owner=owner, since=since, until=until)
    for by, owner, since, until in product(
        GROUPS,
        (None, "ann", "nobody"),
        (None, 20_001 * DAY, 20_001 * DAY + HALF_AN_HOUR),
        (None, 20_002 * DAY),
    )
]


async def test_its_sums_are_those_of_the_ledger_in_memory(address: str) -> None:
    memory = MemoryLedger()

    async with durable(address) as opened:
        for each in rows():
            opened.ledger.add(each)
            memory.add(each)
        for question in QUESTIONS:
            assert await opened.ledger.usage(question) == await memory.usage(question)


async def test_a_day_is_one_in_utc(address: str) -> None:
    async with durable(address) as opened:
        for number, ended_at in enumerate((0.0, DAY - 0.001, DAY)):
            opened.ledger.add(row(number, ended_at=ended_at))
        sums = await opened.ledger.usage(Question(by="day"))
        assert [(each.group, each.responses) for each in sums] == [
            ("1970-01-01", 2),
            ("1970-01-02", 1),
        ]


@pytest.mark.parametrize("by", GROUPS)
async def test_an_empty_ledger_has_no_sums(address: str, by: By) -> None:
    async with durable(address) as opened:
        assert await opened.ledger.usage(Question(by=by)) == []


async def test_a_row_that_is_booked_twice_counts_once_and_a_stores_row_wins(address: str) -> None:
    async with durable(address) as opened:
        record = saved("resp_1")
        opened.ledger.add(row(1, input_tokens=1))
        await opened.ledger.usage(Question())
        opened.ledger.add(row(1, input_tokens=2))
        (day,) = await opened.ledger.usage(Question())
        assert (day.responses, day.input_tokens) == (1, 1)
        await put(opened.store, record)
        opened.ledger.add(row(1, input_tokens=3))
        (day,) = await opened.ledger.usage(Question())
        assert (day.responses, day.input_tokens) == (1, booked(record).input_tokens)


async def test_every_member_of_a_booking_is_in_its_row(address: str) -> None:
    async with durable(address) as opened:
        opened.ledger.add(row(7, outcome="failed", reason="deadline", error_code="server_error"))
        await opened.ledger.usage(Question())

        def ask(connection: object) -> list[object]:
            found = connection.exec_driver_sql("SELECT * FROM ledger")  # type: ignore[attr-defined]
            return list(found.mappings().all())

        (found,) = await opened.database.read(ask)
        assert set(UsageRecord.__struct_fields__) <= set(found)  # type: ignore[call-overload]
        assert found["phases"] == '{"total":5}'  # type: ignore[index]
        assert found["error_code"] == "server_error"  # type: ignore[index]


async def test_a_row_is_durable_soon_without_anybody_asking(address: str) -> None:
    async with durable(address) as opened:
        opened.ledger.add(row(1))
        async with asyncio.timeout(30):
            await opened.ledger.written()
        assert await opened.count("ledger") == 1


async def test_rows_that_come_close_together_leave_together(address: str) -> None:
    async with durable(address) as opened:
        started = monotonic()
        for number in range(3 * GROUP):
            opened.ledger.add(replace(row(1), response_id=f"resp_{number}"))
        await opened.ledger.written()
        assert await opened.count("ledger") == 3 * GROUP
        assert monotonic() - started < 30


class Look(Write[None]):
    """Counts the rows of the ledger inside its transaction; ``first`` runs as that begins."""

    def __init__(self, first: Callable[[], object] = lambda: None) -> None:
        super().__init__(self.count)
        self.first = first
        self.rows = -1

    def take(self) -> bool:
        self.first()
        return True

    def count(self, connection: Connection) -> None:
        self.rows = connection.execute(select(func.count()).select_from(LEDGER)).scalar_one()


async def test_a_row_goes_before_what_waited_longer(address: str) -> None:
    async with durable(address) as opened:
        look = Look()
        opened.writer.add(look)
        opened.ledger.add(row(1))
        await look.done
        assert look.rows == 1


async def test_a_row_that_comes_while_others_are_written_is_in_the_very_next_transaction(
    address: str,
) -> None:
    async with durable(address) as opened:
        # A transaction that takes long would leave the look to the next one.
        opened.writer._clock = lambda: 0.0
        second = Look()

        def meanwhile() -> None:
            opened.ledger.add(row(2))
            opened.writer.add(second)

        first = Look(meanwhile)
        opened.ledger.add(row(1))
        opened.writer.add(first)
        await second.done
        assert (first.rows, second.rows) == (1, 2)


async def test_a_question_is_answered_though_each_transaction_finds_a_new_row(address: str) -> None:
    async with durable(address) as opened:
        answered = False
        numbers = count()

        def go_on() -> None:
            opened.ledger.add(replace(row(1), response_id=f"resp_{next(numbers)}"))
            if not answered:
                opened.writer.add(Look(go_on))

        go_on()
        try:
            async with asyncio.timeout(30):
                (found,) = await opened.ledger.usage(Question(by="key"))
        finally:
            answered = True
        assert found.responses >= 1


async def test_closing_writes_what_waits(address: str) -> None:
    async with durable(address) as opened:
        for number in range(1, 9):
            opened.ledger.add(row(number))

    async with durable(address) as opened:
        assert await opened.count("ledger") == 8


@pytest.fixture
def connection() -> Iterator[Connection]:
    engine = create_engine("sqlite://")
    METADATA.create_all(engine)
    with engine.begin() as connection:
        yield connection
    engine.dispose()


def there(connection: Connection) -> list[tuple[str, str, int]]:
    columns = (LEDGER.c.response_id, LEDGER.c.outcome, LEDGER.c.output_tokens)
    return [(row[0], row[1], row[2]) for row in connection.execute(select(*columns))]


def test_a_row_that_is_added_twice_stays_as_it_was(connection: Connection) -> None:
    usage.add(
        connection, [usage_record("r1", output_tokens=1), usage_record("r2", output_tokens=2)]
    )
    usage.add(connection, [usage_record("r1", output_tokens=9, outcome="failed")])
    assert there(connection) == [("r1", "completed", 1), ("r2", "completed", 2)]


def test_the_row_of_a_stored_response_replaces_what_was_added(connection: Connection) -> None:
    usage.add(connection, [usage_record("r1", outcome="disconnected", output_tokens=1)])
    usage.replace(connection, usage_record("r1", output_tokens=3))
    usage.replace(connection, usage_record("r1", output_tokens=4))
    usage.add(connection, [usage_record("r1", output_tokens=9)])
    assert there(connection) == [("r1", "completed", 4)]


@pytest.mark.parametrize(("ended_at", "day"), [(0.0, 0), (86_399.9, 0), (86_400.0, 1)])
def test_the_day_is_that_of_the_end_in_utc(ended_at: float, day: int) -> None:
    assert usage.row_of(usage_record("r1", ended_at=ended_at))["day"] == day
