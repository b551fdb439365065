"""PostgreSQL: a server that goes away comes back without hand work."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from tests.support.database import Durable, durable
from tests.support.postgres import Cluster
from tests.support.store_contract import LONG, booked, kept, put, saved, texts
from tieline_server.config import ConfigError
from tieline_server.core.effects import Discard
from tieline_server.storage.base import Question
from tieline_server.storage.sql import connect
from tieline_server.storage.sql.errors import Away


@asynccontextmanager
async def stopped(cluster: Cluster) -> AsyncIterator[None]:
    """The server is away for as long; it is there again afterwards, whatever happens."""
    await asyncio.to_thread(cluster.stop)
    try:
        yield
    finally:
        await asyncio.to_thread(cluster.start)


async def test_a_server_that_restarted_between_two_turns_costs_none_of_them(
    cluster: Cluster,
) -> None:
    async with durable(cluster.new_database()) as opened:
        first = saved("resp_1")
        await put(opened.store, first)
        await opened.store.get("ann", "resp_1")
        async with stopped(cluster):
            pass
        await put(opened.store, saved("resp_2", after=first))
        async with stopped(cluster):
            pass
        assert await opened.store.get("ann", "resp_2") is not None
        assert await opened.store.item("ann", "msg_resp_2") is not None


async def test_a_server_that_was_away_in_the_middle_of_a_turn_costs_it_nothing(
    cluster: Cluster,
) -> None:
    async with durable(cluster.new_database()) as opened:
        record = saved("resp_1", text=LONG)
        asked, answered = kept(record)
        opened.store.keep(asked)
        await put(opened.store, saved("resp_other"))
        async with stopped(cluster):
            opened.store.keep(answered)
            await _writer_is_idle(opened)
        await put(opened.store, record)
        assert texts(await opened.store.get("ann", "resp_1")) == texts(record)
        # Nothing is left of what could be written before.
        assert await opened.count("nodes") == 2


async def test_what_ends_while_the_server_is_away_is_told_and_can_be_put_again(
    cluster: Cluster,
) -> None:
    async with durable(cluster.new_database()) as opened:
        record = saved("resp_1")
        async with stopped(cluster):
            with pytest.raises(Away):
                await put(opened.store, record)
            with pytest.raises(Away):
                await opened.store.get("ann", "resp_1")
            with pytest.raises(Away):
                await opened.store.delete("ann", "resp_1")
        assert await opened.store.get("ann", "resp_1") is None
        assert await opened.count("ledger") == 0
        await put(opened.store, record)
        assert texts(await opened.store.get("ann", "resp_1")) == texts(record)


async def test_rows_of_the_ledger_wait_for_the_server_in_order_and_once(cluster: Cluster) -> None:
    async with durable(cluster.new_database()) as opened:
        async with stopped(cluster):
            for number in range(20):
                opened.ledger.add(booked(saved(f"resp_{number}")))
                opened.ledger.add(booked(saved(f"resp_{number}")))
            with pytest.raises(Away):
                await opened.ledger.usage(Question())
        (day,) = await opened.ledger.usage(Question())
        assert day.responses == 20


async def test_rows_that_wait_go_by_themselves_once_the_server_is_back(cluster: Cluster) -> None:
    async with durable(cluster.new_database()) as opened:
        async with stopped(cluster):
            opened.ledger.add(booked(saved("resp_1")))
            await _writer_is_idle(opened)
        async with asyncio.timeout(30):
            await opened.ledger.written()
        assert await opened.count("ledger") == 1


async def test_past_the_bound_the_oldest_rows_are_lost_and_the_log_says_so(
    cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    async with durable(cluster.new_database(), most_waiting=3) as opened:
        async with stopped(cluster):
            for number in range(5):
                opened.ledger.add(booked(saved(f"resp_{number}")))
        await opened.ledger.usage(Question())
        assert await opened.count("ledger") == 3
    lost = [each for each in caplog.records if each.getMessage() == "ledger.row lost"]
    assert [vars(each)["response_id"] for each in lost] == ["resp_0", "resp_1"]


async def test_a_server_that_is_away_at_the_start_is_one_line(cluster: Cluster) -> None:
    address = cluster.new_database()
    async with stopped(cluster):
        with pytest.raises(ConfigError, match="cannot open the PostgreSQL database"):
            await connect(address)


def test_a_database_or_user_that_is_not_there_is_one_line(cluster: Cluster) -> None:
    for address in (
        cluster.address("nowhere"),
        cluster.address("postgres").replace("tieline@", "nobody:topsecret@"),
    ):
        with pytest.raises(ConfigError) as caught:
            asyncio.run(connect(address))
        assert "\n" not in str(caught.value)
        assert "topsecret" not in str(caught.value)


async def _writer_is_idle(opened: Durable) -> None:
    """Returns once what was handed over before has been tried."""
    opened.store.discard(Discard("resp_none", "ann"))
    with pytest.raises(Away):
        await opened.store.delete("ann", "resp_none")
