"""The storage in memory: the contracts of all, and its bounds."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

from msgspec.structs import replace

from tests.support.journal_contract import (
    JournalContract,
    Opened,
    begun,
    claim,
    ended,
    entry,
    replayed,
)
from tests.support.ledger_contract import LedgerContract, count, usage_record
from tests.support.store_contract import StoreContract, put, saved
from tieline_server.config import Config
from tieline_server.core.history.chain import Saved
from tieline_server.storage import open_ledger
from tieline_server.storage.base import Ledger, ResponseStore
from tieline_server.storage.memory import ROWS, MemoryJournal, MemoryLedger, MemoryStore


class TestStoreContract(StoreContract):
    @asynccontextmanager
    async def opened(self) -> AsyncIterator[ResponseStore]:
        store = MemoryStore(add_usage=lambda record: None)
        yield store
        await store.close()


def put_all(store: MemoryStore, *records: Saved) -> None:
    async def main() -> None:
        for record in records:
            await put(store, record)

    asyncio.run(main())


def kept(store: MemoryStore, *response_ids: str) -> list[bool]:
    async def main() -> list[bool]:
        return [await store.delete("ann", each) for each in response_ids]

    return asyncio.run(main())


def chain(length: int) -> list[Saved]:
    records: list[Saved] = []
    for number in range(length):
        after = records[-1] if records else None
        records.append(saved(f"resp_{number}", after=after))
    return records


async def test_past_the_count_the_least_recently_used_response_goes() -> None:
    store = MemoryStore(add_usage=lambda record: None, max_responses=2)
    await put(store, saved("resp_1"))
    await put(store, saved("resp_2"))
    await store.get("ann", "resp_1")
    await put(store, saved("resp_3"))
    found = [await store.get("ann", each) for each in ("resp_1", "resp_2", "resp_3")]
    assert [each is not None for each in found] == [True, False, True]


async def test_a_response_that_was_not_used_for_the_time_to_live_goes() -> None:
    now = 0.0
    store = MemoryStore(add_usage=lambda record: None, ttl=60.0, clock=lambda: now)
    await put(store, saved("resp_1"))
    await put(store, saved("resp_2"))
    now = 50.0
    await store.get("ann", "resp_1")
    now = 100.0
    found = [await store.get("ann", each) for each in ("resp_1", "resp_2")]
    assert [each is not None for each in found] == [True, False]


async def test_what_goes_takes_its_items_along() -> None:
    store = MemoryStore(add_usage=lambda record: None, max_responses=1)
    await put(store, saved("resp_1"))
    await put(store, saved("resp_2"))
    assert await store.item("ann", "msg_resp_1") is None


def test_past_the_bytes_the_least_recently_used_responses_go() -> None:
    one = MemoryStore(add_usage=lambda record: None)
    put_all(one, saved("resp_1", text="x" * 10_000))
    store = MemoryStore(add_usage=lambda record: None, max_bytes=one.size * 2)
    put_all(store, *(saved(f"resp_{number}", text="x" * 10_000) for number in range(3)))
    assert store.size <= one.size * 2
    assert kept(store, "resp_0", "resp_1", "resp_2") == [False, True, True]


def test_the_newest_response_stays_even_when_it_alone_is_past_the_bound() -> None:
    store = MemoryStore(add_usage=lambda record: None, max_bytes=100)
    put_all(store, saved("resp_1"), saved("resp_2", text="x" * 1000))
    assert kept(store, "resp_1", "resp_2") == [False, True]


def test_the_links_that_chains_share_count_once() -> None:
    records = chain(10)
    whole, last = (
        MemoryStore(add_usage=lambda record: None),
        MemoryStore(add_usage=lambda record: None),
    )
    put_all(whole, *records)
    put_all(last, records[-1])
    own_output = sum(len(memoryview(raw)) for raw in records[0].response.output)
    assert whole.size - last.size < 10 * (own_output + 100)


def test_a_link_counts_until_the_last_response_after_it_has_gone() -> None:
    first, second = chain(2)
    fork = saved("resp_fork", after=first)
    store = MemoryStore(add_usage=lambda record: None)
    put_all(store, first)
    alone = store.size
    put_all(store, second, fork)
    assert kept(store, "resp_0", "resp_1") == [True, True]
    assert store.size > alone
    assert kept(store, "resp_fork") == [True]
    assert store.size == 0
    assert len(store) == 0


class Tripwire:
    """Stands where no walk may come: it is no segment."""


def test_a_put_costs_what_is_new_and_not_the_chain_before_it() -> None:
    records = chain(20)
    store = MemoryStore(add_usage=lambda record: None)
    put_all(store, *records[:-1])
    records[15].head.node.parent = Tripwire()  # type: ignore[assignment]
    put_all(store, records[-1])
    assert len(store) == 20


async def test_a_closed_store_is_empty() -> None:
    store = MemoryStore(add_usage=lambda record: None)
    await put(store, saved("resp_1"))
    await store.close()
    assert (len(store), store.size) == (0, 0)


@asynccontextmanager
async def memory(
    *, responses: int = 10, size: int | None = None, ttl: float | None = None
) -> AsyncIterator[Opened]:
    """A journal and a store as the server has them."""
    now = 1_000_000.0

    def pass_(seconds: float) -> None:
        nonlocal now
        now += seconds

    journal = MemoryJournal(now=lambda: now)
    store = MemoryStore(
        add_usage=lambda record: None,
        max_responses=responses,
        max_bytes=size,
        ttl=ttl,
        clock=lambda: now,
        journal=journal,
    )
    yield Opened(journal, store, pass_)
    await journal.close()
    await store.close()
    assert (journal.size, store.size) == (0, 0)


class TestJournalContract(JournalContract):
    @asynccontextmanager
    async def opened(self) -> AsyncIterator[Opened]:
        async with memory() as opened:
            yield opened


async def _fill(opened: Opened, number: int) -> None:
    """A response with 20 kB of events and a claim."""
    name = f"resp_{number}"
    await opened.journal.claim(claim(name, key=name.encode()))
    await opened.journal.begin(begun(name))
    for first in range(0, 500, 50):
        opened.journal.log(entry(name, first, 50))
    await put(opened.store, ended(name, terminal=500))


async def test_events_count_with_the_responses_that_they_belong_to_and_go_with_them() -> None:
    async with memory(responses=1000, size=100_000) as opened:
        for number in range(20):
            await _fill(opened, number)
        store, journal = opened.store, opened.journal
        assert isinstance(store, MemoryStore)
        assert isinstance(journal, MemoryJournal)
        assert 1 <= len(store) < 8
        assert 10_000 * len(store) < journal.size <= store.size <= 100_000
        assert await replayed(journal, "resp_0") is None
        assert len(await replayed(journal, "resp_19") or ()) == 500


async def test_what_was_not_used_for_the_time_to_live_goes_with_its_events_and_claims() -> None:
    async with memory(ttl=60) as opened:
        await _fill(opened, 1)
        await opened.journal.begin(begun("resp_run", after="resp_1"))
        opened.pass_(100)
        await _fill(opened, 2)
        assert await replayed(opened.journal, "resp_1") is not None
        opened.journal.end("ann", "resp_run")
        await _fill(opened, 3)
        assert await replayed(opened.journal, "resp_1") is None
        again = claim("resp_4", key=b"resp_1")
        assert await opened.journal.claim(again) == again


async def test_nothing_stays_of_many_turns_that_were_not_stored() -> None:
    journal = MemoryJournal(now=lambda: 0.0)
    empty = _entries(journal)
    for number in range(100):
        name = f"resp_{number}"
        mine = claim(name, key=name.encode(), stored=False)
        await journal.claim(mine)
        await journal.begin(begun(name, after="resp_x"))
        journal.log(entry(name, 0, 5))
        journal.end("ann", name)
        journal.expire(mine, at=None)
    assert _entries(journal) == empty
    assert journal.size == 0


def _entries(journal: MemoryJournal) -> int:
    """What all its collections hold."""
    held = (value for value in vars(journal).values() if hasattr(value, "__len__"))
    return sum(len(value) for value in held)


class TestLedgerContract(LedgerContract):
    @asynccontextmanager
    async def opened(self) -> AsyncIterator[Ledger]:
        ledger = MemoryLedger()
        yield ledger
        await ledger.close()


def test_past_the_bound_the_rows_that_were_booked_first_go() -> None:
    ledger = MemoryLedger(most=2)
    for number in range(4):
        ledger.add(usage_record(f"resp_{number}"))
    assert [row.response_id for row in ledger] == ["resp_2", "resp_3"]
    assert len(ledger) == 2


def test_a_row_that_comes_again_pushes_nothing_out() -> None:
    ledger = MemoryLedger(most=2)
    for response_id in ("resp_1", "resp_2", "resp_2", "resp_1"):
        ledger.add(usage_record(response_id))
    assert [row.response_id for row in ledger] == ["resp_1", "resp_2"]


def test_a_row_is_kept_as_it_was_booked_but_for_its_phases() -> None:
    ledger = MemoryLedger()
    row = usage_record("resp_1", outcome="failed", error_code="server_error", model="")
    ledger.add(row)
    assert list(ledger) == [replace(row, phases={})]


async def test_one_that_is_opened_has_the_usual_bound_until_its_stack_closes_it() -> None:
    async with AsyncExitStack() as stack:
        ledger = await open_ledger(Config.load({}), stack)
        assert isinstance(ledger, MemoryLedger)
        for number in range(ROWS + 1):
            ledger.add(usage_record(f"resp_{number}"))
        assert len(ledger) == ROWS
    assert len(ledger) == 0


async def test_a_closed_ledger_is_empty() -> None:
    ledger = MemoryLedger()
    ledger.add(usage_record("resp_1"))
    await ledger.close()
    assert (await count(ledger)) == 0
