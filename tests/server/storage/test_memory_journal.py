"""The journal in memory: the contract of all journals, and its bounds."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from tests.support.journal_contract import (
    JournalContract,
    Opened,
    begun,
    claim,
    ended,
    entry,
    put,
    replayed,
)
from tieline_server.storage.memory import MemoryJournal, MemoryStore


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
        book=lambda booking: None,
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


class TestContract(JournalContract):
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
    await put(opened, ended(name, terminal=500))


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
