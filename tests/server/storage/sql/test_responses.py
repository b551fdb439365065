"""The store in a database: the contract of all stores, on each kind of database."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from sqlalchemy import Connection, Engine, event, text

from tests.support.database import Durable, durable
from tests.support.store_contract import (
    LONG,
    StoreContract,
    booked,
    kept,
    put,
    saved,
    texts,
    unstored,
)
from tieline.items import decode_input
from tieline_server.core.effects import Discard
from tieline_server.core.history.chain import ChainNode, Saved
from tieline_server.storage.base import ResponseStore
from tieline_server.storage.sql import responses as sql
from tieline_server.storage.sql.database import READERS
from tieline_server.storage.sql.errors import Away, DatabaseError, Unavailable
from tieline_server.storage.sql.responses import LONG as LONG_CHAIN
from tieline_server.storage.sql.responses import Chain, RecentChains
from tieline_server.storage.sql.retention import ROUND


class TestContract(StoreContract):
    @pytest.fixture(autouse=True)
    def _address(self, address: str) -> None:
        self.address = address

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[ResponseStore]:
        async with durable(self.address) as opened:
            yield opened.store


@contextmanager
def statements() -> Iterator[list[str]]:
    """What databases are asked meanwhile. A closed store works, but sweeps no more."""
    asked: list[str] = []

    def note(_connection: object, _cursor: object, statement: str, *_: object) -> None:
        asked.append(statement)

    event.listen(Engine, "before_cursor_execute", note)
    try:
        yield asked
    finally:
        event.remove(Engine, "before_cursor_execute", note)


def chain(length: int) -> list[Saved]:
    records: list[Saved] = []
    for number in range(length):
        after = records[-1] if records else None
        records.append(saved(f"resp_{number}", after=after, text=f"fact {number}"))
    return records


async def test_chains_forks_and_inherited_context_are_there_after_a_restart(address: str) -> None:
    records = chain(5)
    fork = saved("resp_fork", after=records[1])
    hybrid = saved("resp_hybrid", after=unstored(records[2]))

    async with durable(address) as opened:
        for record in (*records, fork, hybrid):
            await put(opened.store, record)

    async with durable(address) as opened:
        for record in (*records, fork, hybrid):
            found = await opened.store.get("ann", record.response.id)
            assert texts(found) == texts(record)
            assert found is not None
            assert found.response == record.response
        last = saved("resp_last", after=await opened.store.get("ann", "resp_4"))
        await put(opened.store, last)
        assert texts(await opened.store.get("ann", "resp_last"))[:-2] == texts(records[-1])


async def test_a_chain_of_any_depth_is_read_with_the_same_few_questions(address: str) -> None:
    deep = chain(2000)

    async with durable(address) as opened:
        await opened.store.close()
        for record in deep:
            await put(opened.store, record)
        for record in (deep[0], deep[LONG_CHAIN], deep[-1]):
            with statements() as asked:
                found = await opened.store.get("ann", record.response.id)
            assert len([each for each in asked if "FROM" in each and "UPDATE" not in each]) == 2
            assert texts(found) == texts(record)
            assert found is not None
            assert found.head.node.turn == record.head.node.turn


async def test_a_put_costs_what_is_new_and_not_the_chain_before_it(address: str) -> None:
    async with durable(address) as opened:
        await opened.store.close()
        costs = []
        for record in chain(30):
            with statements() as asked:
                await put(opened.store, record)
            costs.append(len([each for each in asked if "BEGIN" not in each]))
        assert set(costs[1:]) == {costs[1]}
        assert costs[1] <= 5
        assert await opened.count("items") == 60


async def test_a_put_never_walks_what_is_stored_before_it(address: str) -> None:
    async with durable(address) as opened:
        records = chain(20)
        for record in records[:-1]:
            await put(opened.store, record)
        broken = ChainNode(None, tuple(decode_input(b'"a trap"')), turn=1)
        records[15].head.node.parent = broken
        await put(opened.store, records[-1])
        assert len(texts(await opened.store.get("ann", "resp_19"))) == 40


async def test_what_a_foreign_and_an_unknown_id_ask_is_the_same(address: str) -> None:
    async with durable(address) as opened:
        await opened.store.close()
        await put(opened.store, saved("resp_1", owner="ann"))
        store = opened.store
        for ask in (store.get, store.item, store.delete):
            asked = []
            for name in ("resp_1", "resp_2", "msg_resp_1", "msg_resp_2"):
                with statements() as each:
                    assert not await ask("bob", name)
                asked.append(list(each))
            assert asked == [asked[0]] * 4


async def test_a_response_and_its_row_of_the_ledger_are_there_together_or_not_at_all(
    address: str,
) -> None:
    def break_ledger(connection: Connection) -> None:
        connection.execute(text("ALTER TABLE ledger RENAME TO away"))

    def mend_ledger(connection: Connection) -> None:
        connection.execute(text("ALTER TABLE away RENAME TO ledger"))

    async with durable(address) as opened:
        record = saved("resp_1", text=LONG)
        for keep in kept(record):
            opened.store.keep(keep)
        await opened.database.write(break_ledger)
        with pytest.raises(DatabaseError):
            await put(opened.store, record)
        assert await opened.store.get("ann", "resp_1") is None
        assert await opened.store.item("ann", "msg_resp_1") is None
        await opened.database.write(mend_ledger)
        assert await opened.count("ledger") == 0
        await put(opened.store, record)
        assert await opened.count("ledger") == 1
        assert texts(await opened.store.get("ann", "resp_1")) == texts(record)


async def test_an_error_never_quotes_what_was_to_be_written(
    address: str, caplog: pytest.LogCaptureFixture
) -> None:
    def break_items(connection: Connection) -> None:
        connection.execute(text("ALTER TABLE items RENAME TO away"))

    async with durable(address) as opened:
        await opened.database.write(break_items)
        with pytest.raises(DatabaseError) as caught:
            await put(opened.store, saved("resp_1", text="a secret"))
        assert "secret" not in repr(caught.value)
        assert caught.value.__cause__ is None
    assert "secret" not in caplog.text


async def test_deleting_removes_everything_that_nothing_else_needs(address: str) -> None:
    async with durable(address) as opened:
        first = saved("resp_1")
        second = saved("resp_2", after=unstored(first))
        third = saved("resp_3", after=second)
        fork = saved("resp_fork", after=first)
        for record in (first, second, third, fork):
            await put(opened.store, record)
        assert await opened.count("nodes") == 5
        for name, left in (("resp_2", 5), ("resp_1", 5), ("resp_3", 2), ("resp_fork", 0)):
            assert await opened.store.delete("ann", name)
            assert await opened.count("nodes") == left
        for table in ("items", "responses"):
            assert await opened.count(table) == 0


async def test_the_size_of_what_is_there_is_known_to_the_byte(address: str) -> None:
    async with durable(address) as opened:
        whole = (
            "SELECT coalesce((SELECT sum(length(raw)) FROM items), 0)"
            " + coalesce((SELECT sum(length(body)) FROM responses), 0)"
        )
        known = "SELECT coalesce(sum(size), 0) FROM nodes"
        first = saved("resp_1", text=LONG)
        second = saved("resp_2", after=unstored(first))
        for keep in kept(first):
            opened.store.keep(keep)
        await put(opened.store, first)
        await put(opened.store, second)
        assert await opened.value(known) == await opened.value(whole) > 100_000
        await opened.store.delete("ann", "resp_1")
        assert await opened.value(known) == await opened.value(whole) > 50_000
        await opened.store.delete("ann", "resp_2")
        assert await opened.value(known) == await opened.value(whole) == 0


async def test_a_save_whose_line_has_gone_is_made_all_the_same(address: str) -> None:
    async with durable(address) as opened:
        record = saved("resp_1")
        saving = asyncio.create_task(opened.store.put(record, booked(record)))
        await asyncio.sleep(0)
        saving.cancel()
        await asyncio.gather(saving, return_exceptions=True)
        await put(opened.store, saved("resp_2"))
        assert texts(await opened.store.get("ann", "resp_1")) == texts(record)
        assert await opened.count("ledger") == 2


async def test_items_that_are_large_leave_before_the_end_and_small_ones_with_it(
    address: str,
) -> None:
    async with durable(address) as opened:
        for record, nodes in ((saved("resp_small"), 0), (saved("resp_large", text=LONG), 1)):
            for keep in kept(record):
                opened.store.keep(keep)
            await opened.store.delete("ann", "resp_none")
            found = await opened.value("SELECT count(*) FROM nodes WHERE draft IS NOT NULL")
            assert found == nodes


async def test_a_chain_that_was_lately_in_memory_is_the_same_one_with_what_was_computed_on_it(
    address: str,
) -> None:
    async with durable(address, recent=10) as opened:
        first = saved("resp_1")
        second = saved("resp_2", after=first)
        await put(opened.store, first)
        await put(opened.store, second)
        found = await opened.store.get("ann", "resp_2")
        assert found is not None
        assert found.head.node is second.head.node
        assert found.input_from is first.head.node
        assert found.response == second.response


async def test_a_chain_in_memory_is_never_found_past_the_database(address: str) -> None:
    async with durable(address, recent=10) as one, durable(address, recent=10) as other:
        for name in ("resp_1", "resp_2"):
            await put(one.store, saved(name))
        assert await one.store.get("bob", "resp_1") is None
        assert await one.store.delete("ann", "resp_1")
        assert await one.store.get("ann", "resp_1") is None
        assert len(one.store.recent) == 1
        assert await other.store.delete("ann", "resp_2")
        assert await one.store.get("ann", "resp_2") is None
        replaced = saved("resp_3", text="new")
        await put(one.store, saved("resp_3", text="old"))
        await put(other.store, replaced)
        assert texts(await one.store.get("ann", "resp_3")) == texts(replaced)


async def test_of_a_response_that_was_cut_off_nothing_stays_in_the_files(tmp_path: Path) -> None:
    """What was written while it ran is gone from the write-ahead log as well, after a round."""

    def holding() -> list[str]:
        return [file.name for file in tmp_path.iterdir() if b"a secret" in file.read_bytes()]

    clock = 0.0
    async with durable(f"sqlite:///{tmp_path}/t.db", clock=lambda: clock) as opened:
        for keep in kept(saved("resp_1", text="a secret " + LONG)):
            opened.store.keep(keep)
        while not await opened.count("items"):
            pass
        assert holding() == ["t.db-wal"]
        opened.store.discard(Discard("resp_1", "ann"))
        # Changes are made in their order.
        await put(opened.store, saved("resp_2"))
        clock += ROUND
        await opened.store.retention.look()
        assert holding() == []


@pytest.mark.parametrize("replaced", [False, True])
async def test_a_file_that_was_moved_away_takes_nothing_until_it_is_back(
    tmp_path: Path, replaced: bool
) -> None:
    """What went on into it would be acknowledged, and missing after the next start."""
    path, elsewhere = tmp_path / "t.db", tmp_path / "elsewhere.db"

    async with durable(f"sqlite:///{path}") as opened:
        first = saved("resp_1")
        await put(opened.store, first)
        path.rename(elsewhere)
        if replaced:
            path.write_bytes(elsewhere.read_bytes())
        with pytest.raises(Away):
            await put(opened.store, saved("resp_2", after=first))
        for _ in range(2 * READERS):
            with pytest.raises(Away):
                await opened.count("responses")
        assert path.exists() is replaced
        elsewhere.rename(path)
        assert await opened.count("responses") == await opened.count("ledger") == 1
        await put(opened.store, saved("resp_3", after=first))
        assert texts(await opened.store.get("ann", "resp_1")) == texts(first)


def lose_answers(opened: Durable, monkeypatch: pytest.MonkeyPatch, *, for_good: bool) -> None:
    """The answer of the next commit is lost; the change is run again, or its caller gives up."""
    write = opened.database.write

    async def lost(change: Callable[[Connection], Any]) -> Any:
        monkeypatch.setattr(opened.database, "write", write)
        made = await write(change)
        if for_good:
            raise Unavailable
        del made
        return await write(change)

    monkeypatch.setattr(opened.database, "write", lost)


@pytest.mark.parametrize("long", [False, True])
async def test_a_put_that_runs_again_as_its_answer_was_lost_is_there_once(
    address: str, monkeypatch: pytest.MonkeyPatch, long: bool
) -> None:
    async with durable(address) as opened:
        first = saved("resp_1")
        await put(opened.store, first)
        record = saved("resp_2", after=first, text=LONG if long else "hello")
        for keep in kept(record) if long else ():
            opened.store.keep(keep)
        await opened.store.get("ann", "resp_1")  # What was kept has been written.
        lose_answers(opened, monkeypatch, for_good=False)
        await put(opened.store, record)
        assert texts(await opened.store.get("ann", "resp_2")) == texts(record)
        tables = ("responses", "ledger", "nodes", "items")
        assert [await opened.count(table) for table in tables] == [2, 2, 2, 4]


async def test_a_delete_that_runs_again_as_its_answer_was_lost_has_deleted(
    address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with durable(address) as opened:
        await put(opened.store, saved("resp_1"))
        lose_answers(opened, monkeypatch, for_good=False)
        assert await opened.store.delete("ann", "resp_1")
        assert not await opened.store.delete("ann", "resp_1")


async def test_a_response_that_was_told_as_failed_is_withdrawn_where_its_commit_went_through(
    address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sql, "RETRY", 0.001)

    async with durable(address) as opened:
        first, record = saved("resp_1"), saved("resp_2")
        await put(opened.store, first)
        lose_answers(opened, monkeypatch, for_good=True)
        with pytest.raises(Unavailable):
            await put(opened.store, record)
        assert await opened.store.get("ann", "resp_2") is None
        # As its line books it.
        failed = replace(booked(record), outcome="failed", error_code="storage_unavailable")
        opened.ledger.add(failed)
        async with asyncio.timeout(30):
            while await opened.count("responses") > 1:  # noqa: ASYNC110  # nothing tells of it
                await asyncio.sleep(0.01)
        assert await opened.store.get("ann", "resp_1") is not None
        outcome = "SELECT count(*) FROM ledger WHERE outcome = 'failed' AND response_id = 'resp_2'"
        assert await opened.value(outcome) == 1
        tables = ("responses", "ledger", "nodes")
        assert [await opened.count(table) for table in tables] == [1, 2, 1]


async def test_what_is_put_again_after_a_failure_is_not_withdrawn(
    address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with durable(address) as opened:
        record = saved("resp_1")
        lose_answers(opened, monkeypatch, for_good=True)
        with pytest.raises(Unavailable):
            await put(opened.store, record)
        await put(opened.store, record)
        await opened.store.close()
        await opened.writer.close()
        assert texts(await opened.store.get("ann", "resp_1")) == texts(record)


async def test_what_is_doubtful_at_the_end_is_withdrawn_before_it(
    address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with durable(address) as opened:
        lose_answers(opened, monkeypatch, for_good=True)
        with pytest.raises(Unavailable):
            await put(opened.store, saved("resp_1"))
        await opened.store.close()
        await opened.writer.close()
        assert await opened.count("responses") == 0


async def test_what_is_doubtful_and_cannot_be_withdrawn_before_the_end_is_said(
    address: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def away(_change: Callable[[Connection], Any]) -> Any:
        raise Unavailable

    async with durable(address) as opened:
        monkeypatch.setattr(opened.database, "write", away)
        with pytest.raises(Unavailable):
            await put(opened.store, saved("resp_1"))
        await opened.store.close()
        await opened.writer.close()
    said = [record for record in caplog.records if record.name == "tieline.store"]
    assert [record.getMessage() for record in said] == ["store.responses doubtful"]


def recent_chain(record: Saved) -> Chain:
    return Chain(record.head.node, record.input_from)


def size_of(record: Saved) -> int:
    return sum(len(item.raw) for item in record.head.node.items_of_chain())


def test_past_the_count_the_chain_that_was_not_used_for_longest_goes() -> None:
    recent = RecentChains(most=2)
    for number in range(2):
        recent.add(number, recent_chain(saved(f"resp_{number}")))
    assert recent.find(0) is not None
    recent.add(2, recent_chain(saved("resp_2")))
    assert [recent.find(number) is not None for number in range(3)] == [True, False, True]


def test_past_the_bytes_chains_go_and_one_that_is_too_big_is_not_held_at_all() -> None:
    small = saved("resp_small")
    recent = RecentChains(max_bytes=2 * size_of(small))
    for number in range(3):
        recent.add(number, recent_chain(saved("resp_small")))
    assert len(recent) == 2
    recent.add(3, recent_chain(saved("resp_big", text="x" * 10_000)))
    assert len(recent) == 0
    assert recent.size == 0


def test_a_node_that_is_added_again_counts_once_and_one_that_is_unknown_is_not_there() -> None:
    record = saved("resp_1")
    recent = RecentChains()
    for _ in range(3):
        recent.add(1, recent_chain(record))
    assert recent.size == size_of(record)
    assert recent.find(2) is None
    recent.drop(2)
    recent.drop(1)
    assert recent.size == 0
