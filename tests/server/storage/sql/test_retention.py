"""What goes by itself, and what stays however old or many."""

import asyncio
import gc
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.support.database import Durable, durable
from tests.support.store_contract import LONG, booked, kept, put, saved, texts
from tieline_server.core.effects import Discard
from tieline_server.storage.sql.retention import (
    BATCH,
    CLAIM,
    DISTRUST,
    ROUSE,
    STALE,
    Bounds,
    Retention,
    Running,
)


class Clocks:
    """Wall-clock and monotonic time, set by the test."""

    def __init__(self) -> None:
        self.wall = 1_000_000.0
        self.monotonic = 50.0

    def pass_(self, seconds: float) -> None:
        """Time passes, on both."""
        self.wall += seconds
        self.monotonic += seconds


@asynccontextmanager
async def retaining(address: str, **bounds: float) -> AsyncIterator[tuple[Durable, Clocks]]:
    clocks = Clocks()
    async with durable(
        address,
        bounds=Bounds(**bounds),  # type: ignore[arg-type]  # the test's own
        now=lambda: clocks.wall,
        clock=lambda: clocks.monotonic,
    ) as opened:
        yield opened, clocks


async def there(opened: Durable, *numbers: int) -> list[int]:
    """Which of these responses are there; asking is no use of them."""
    found = []
    for number in numbers:
        if await opened.value(f"SELECT count(*) FROM responses WHERE id = 'resp_{number}'"):
            found.append(number)
    return found


async def test_a_response_goes_when_it_was_not_used_for_the_time_to_live(address: str) -> None:
    async with retaining(address, ttl=60) as (opened, clocks):
        first = saved("resp_1")
        for record in (first, saved("resp_2"), saved("resp_3")):
            await put(opened.store, record)
        clocks.pass_(50)
        await opened.store.get("ann", "resp_2")
        await put(opened.store, saved("resp_4", after=first))
        clocks.pass_(50)
        await opened.store.retention.look()
        # 2 was read meanwhile, 1 was continued.
        assert await there(opened, 1, 2, 3, 4) == [1, 2, 4]
        assert await opened.store.item("ann", "msg_resp_3") is None
        clocks.pass_(100)
        await opened.store.retention.look()
        assert await opened.count("nodes") == await opened.count("items") == 0
        assert await opened.count("ledger") == 4


async def test_past_the_count_the_least_recently_used_go(address: str) -> None:
    # More than go in one transaction, fewer than have the task look by itself.
    most = (BATCH + ROUSE) // 2

    async with retaining(address, responses=10) as (opened, clocks):
        for number in range(most):
            await put(opened.store, saved(f"resp_{number}"))
            clocks.pass_(1)
        await opened.store.get("ann", "resp_0")
        clocks.pass_(1)
        await put(opened.store, saved("resp_last"))
        await opened.store.retention.look()
        assert await opened.count("responses") == 10
        assert await there(opened, 0, 1, most - 9, most - 8) == [0, most - 8]
        assert await opened.count("items") == 20


async def test_past_the_bytes_the_least_recently_used_go_and_the_newest_stays(address: str) -> None:
    async with retaining(address, size=90_000) as (opened, clocks):
        for number in range(10):
            await put(opened.store, saved(f"resp_{number}", text="x" * 10_000))
            clocks.pass_(1)
        await opened.store.retention.look()
        # Each is there as an item and in the response: some 20 kB.
        assert await there(opened, *range(10)) == [6, 7, 8, 9]
        assert await opened.value("SELECT sum(size) FROM nodes") <= 90_000
        await put(opened.store, saved("resp_10", text="x" * 100_000))
        await opened.store.retention.look()
        assert await there(opened, *range(11)) == [10]


async def test_what_goes_from_the_middle_of_a_chain_stays_for_those_behind_it(address: str) -> None:
    async with retaining(address, responses=1) as (opened, clocks):
        records = [saved("resp_0")]
        for number in range(1, 6):
            clocks.pass_(1)
            records.append(saved(f"resp_{number}", after=records[-1]))
        for record in records:
            await put(opened.store, record)
        await opened.store.retention.look()
        assert await opened.count("responses") == 1
        assert texts(await opened.store.get("ann", "resp_5")) == texts(records[-1])
        assert await opened.store.item("ann", "msg_resp_0") is None
        assert await opened.store.delete("ann", "resp_5")
        assert await opened.count("nodes") == 0


async def test_what_a_running_response_continues_stays_however_old(address: str) -> None:
    async with retaining(address, responses=3, ttl=60) as (opened, clocks):
        parents = [saved(f"resp_{number}") for number in range(2)]
        for parent in parents:
            await put(opened.store, parent)
        small = saved("resp_small", after=parents[0])
        big = saved("resp_big", after=parents[1], text=LONG)
        for record in (small, big):
            for keep in kept(record):
                opened.store.keep(keep)
        for number in range(2, 9):
            clocks.pass_(20)
            await put(opened.store, saved(f"resp_{number}"))
            await opened.store.retention.look()
        assert await there(opened, *range(9)) == [0, 1, 8]
        opened.store.discard(Discard("resp_small", "ann"))
        opened.store.discard(Discard("resp_big", "ann"))
        clocks.pass_(100)
        await put(opened.store, saved("resp_9"))
        await opened.store.retention.look()
        assert await there(opened, *range(10)) == [9]
        assert await opened.count("nodes") == 1


async def test_a_clock_that_is_set_back_removes_nothing_and_stops_nothing(address: str) -> None:
    async with retaining(address, ttl=60) as (opened, clocks):
        await put(opened.store, saved("resp_1"))
        clocks.wall -= 100_000
        await opened.store.retention.look()
        await put(opened.store, saved("resp_2"))
        clocks.pass_(DISTRUST)
        await opened.store.retention.look()
        # 1 comes from the future now; 2 is as old as it is.
        assert await there(opened, 1, 2) == [1]


async def test_a_clock_that_is_set_ahead_is_not_believed_at_once(address: str) -> None:
    async with retaining(address, ttl=5000) as (opened, clocks):
        await put(opened.store, saved("resp_1"))
        clocks.wall += 100_000
        await opened.store.retention.look()
        clocks.pass_(DISTRUST - 60)
        await opened.store.retention.look()
        assert await there(opened, 1) == [1]
        clocks.wall -= 100_000
        await opened.store.retention.look()
        clocks.pass_(DISTRUST + 10_000)
        await opened.store.retention.look()
        assert await there(opened, 1) == []


async def test_drafts_of_a_process_that_died_go_and_those_of_a_live_one_stay(address: str) -> None:
    async with retaining(address) as (opened, clocks):
        dead = saved("resp_dead", text=LONG)
        async with durable(address, now=lambda: clocks.wall) as other:
            for keep in kept(dead):
                other.store.keep(keep)
            await put(other.store, saved("resp_0"))
        live = saved("resp_live", text=LONG)
        for keep in kept(live):
            opened.store.keep(keep)
        await put(opened.store, saved("resp_1"))
        assert await opened.count("nodes") == 4
        for _ in range(4):
            clocks.pass_(STALE / 3)
            await opened.store.retention.look()
        assert await opened.count("nodes") == 3
        await put(opened.store, live)
        assert texts(await opened.store.get("ann", "resp_live")) == texts(live)
        assert await opened.value("SELECT count(*) FROM nodes WHERE draft IS NOT NULL") == 0


async def test_a_response_whose_draft_was_swept_away_is_whole_all_the_same(address: str) -> None:
    async with retaining(address) as (opened, clocks):
        first = saved("resp_1")
        await put(opened.store, first)
        record = saved("resp_2", after=first, text=LONG)
        for keep in kept(record):
            opened.store.keep(keep)
        await put(opened.store, saved("resp_3"))
        clocks.pass_(STALE * 2)
        async with durable(address, now=lambda: clocks.wall) as other:
            await other.store.retention.look()
        assert await opened.value("SELECT count(*) FROM nodes WHERE draft IS NOT NULL") == 0
        await put(opened.store, record)
        assert texts(await opened.store.get("ann", "resp_2")) == texts(record)


async def test_only_one_process_sweeps_at_a_time(address: str) -> None:
    async with retaining(address, responses=8) as (opened, clocks):

        def another() -> Retention:
            return Retention(
                opened.database,
                opened.writer,
                Bounds(responses=5),
                now=lambda: clocks.wall,
                clock=lambda: clocks.monotonic,
                running=Running,
            )

        for number in range(10):
            await put(opened.store, saved(f"resp_{number}"))
            clocks.pass_(1)
        await opened.store.retention.look()
        assert await opened.count("responses") == 8
        other = another()
        await other.look()
        assert await opened.count("responses") == 8
        # The claim ends with time, and one from a clock that was far ahead counts for nothing.
        clocks.pass_(CLAIM + 1)
        await other.look()
        assert await opened.count("responses") == 5
        await put(opened.store, saved("resp_10"))
        clocks.wall -= 20 * CLAIM
        third = another()
        await third.look()
        assert await opened.count("responses") == 5
        for each in (other, third):
            await each.close()


async def test_a_sweep_that_fails_is_told_and_the_next_one_works(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tieline_server.storage.sql.retention.ROUND", 0.05)
    async with durable(f"sqlite:///{tmp_path}/tieline.db", bounds=Bounds(responses=1)) as opened:
        await opened.database.write(lambda connection: _rename(connection, "leases", "gone"))
        for number in range(200):
            await put(opened.store, saved(f"resp_{number}"))
        await _until(lambda: "database.sweep failed" in caplog.messages)
        await opened.database.write(lambda connection: _rename(connection, "gone", "leases"))
        for number in range(200):
            await put(opened.store, saved(f"resp_{number}"))
        await opened.store.retention.look()
        assert await opened.count("responses") == 1


async def test_many_small_responses_in_bounded_storage_leave_memory_and_file_flat(
    address: str, repeats: Callable[[int], int], tmp_path: Path
) -> None:
    async def fill(opened: Durable, first: int, most: int) -> None:
        for start in range(first, first + most, 20):
            records = [
                saved(f"resp_{number}", text="x" * 200) for number in range(start, start + 20)
            ]
            await asyncio.gather(*(put(opened.store, record) for record in records))
            for record in records:
                opened.ledger.add(booked(record))
            if start % 400 == 0:
                # The task looks by itself too; how soon is a matter of the machine.
                await opened.store.retention.look()
        await opened.store.retention.look()
        await opened.database.erase()

    bounds = Bounds(responses=1000)
    async with durable(address, bounds=bounds) as opened:
        await fill(opened, 0, 2000)
        gc.collect()
        before, size = _resident(), _size(tmp_path)
        await fill(opened, 2000, repeats(20_000))
        gc.collect()
        assert await opened.count("responses") <= 1000
        assert await opened.count("nodes") <= 1000
        assert await opened.count("items") <= 2000
        assert _resident() - before < 16 * 1024 * 1024
        if size:
            # The ledger alone grows, by some 250 bytes a row.
            assert _size(tmp_path) - size < 2_000_000 + repeats(20_000) * 400


def _rename(connection: object, old: str, new: str) -> None:
    connection.exec_driver_sql(f"ALTER TABLE {old} RENAME TO {new}")  # type: ignore[attr-defined]


async def _until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not holds():  # noqa: ASYNC110  # what is waited for is a log line
            await asyncio.sleep(0.01)


def _resident() -> int:
    """Bytes of this process in memory."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096


def _size(folder: Path) -> int:
    path = folder / "tieline.db"
    return path.stat().st_size if path.exists() else 0
