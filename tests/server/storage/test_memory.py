"""The memory store: the contract of all stores, and its bounds."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from tests.support.store_contract import StoreContract, put, saved
from tieline_server.core.history import Saved
from tieline_server.storage.base import ResponseStore
from tieline_server.storage.memory import MemoryStore


class TestContract(StoreContract):
    @asynccontextmanager
    async def opened(self) -> AsyncIterator[ResponseStore]:
        store = MemoryStore(book=lambda booking: None)
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
    store = MemoryStore(book=lambda booking: None, max_responses=2)
    await put(store, saved("resp_1"))
    await put(store, saved("resp_2"))
    await store.get("ann", "resp_1")
    await put(store, saved("resp_3"))
    found = [await store.get("ann", each) for each in ("resp_1", "resp_2", "resp_3")]
    assert [each is not None for each in found] == [True, False, True]


async def test_a_response_that_was_not_used_for_the_time_to_live_goes() -> None:
    now = 0.0
    store = MemoryStore(book=lambda booking: None, ttl=60.0, clock=lambda: now)
    await put(store, saved("resp_1"))
    await put(store, saved("resp_2"))
    now = 50.0
    await store.get("ann", "resp_1")
    now = 100.0
    found = [await store.get("ann", each) for each in ("resp_1", "resp_2")]
    assert [each is not None for each in found] == [True, False]


async def test_what_goes_takes_its_items_along() -> None:
    store = MemoryStore(book=lambda booking: None, max_responses=1)
    await put(store, saved("resp_1"))
    await put(store, saved("resp_2"))
    assert await store.item("ann", "msg_resp_1") is None


def test_past_the_bytes_the_least_recently_used_responses_go() -> None:
    one = MemoryStore(book=lambda booking: None)
    put_all(one, saved("resp_1", text="x" * 10_000))
    store = MemoryStore(book=lambda booking: None, max_bytes=one.size * 2)
    put_all(store, *(saved(f"resp_{number}", text="x" * 10_000) for number in range(3)))
    assert store.size <= one.size * 2
    assert kept(store, "resp_0", "resp_1", "resp_2") == [False, True, True]


def test_the_newest_response_stays_even_when_it_alone_is_past_the_bound() -> None:
    store = MemoryStore(book=lambda booking: None, max_bytes=100)
    put_all(store, saved("resp_1"), saved("resp_2", text="x" * 1000))
    assert kept(store, "resp_1", "resp_2") == [False, True]


def test_the_links_that_chains_share_count_once() -> None:
    records = chain(10)
    whole, last = MemoryStore(book=lambda booking: None), MemoryStore(book=lambda booking: None)
    put_all(whole, *records)
    put_all(last, records[-1])
    own_output = sum(len(memoryview(raw)) for raw in records[0].response.output)
    assert whole.size - last.size < 10 * (own_output + 100)


def test_a_link_counts_until_the_last_response_after_it_has_gone() -> None:
    first, second = chain(2)
    fork = saved("resp_fork", after=first)
    store = MemoryStore(book=lambda booking: None)
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
    store = MemoryStore(book=lambda booking: None)
    put_all(store, *records[:-1])
    records[15].tip.segment.parent = Tripwire()  # type: ignore[assignment]
    put_all(store, records[-1])
    assert len(store) == 20


async def test_a_closed_store_is_empty() -> None:
    store = MemoryStore(book=lambda booking: None)
    await put(store, saved("resp_1"))
    await store.close()
    assert (len(store), store.size) == (0, 0)
