"""The journal in a database: the contract of all journals, and several processes on one."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from sqlalchemy import Connection, text

from tests.support.journal_contract import (
    JournalContract,
    Opened,
    begun,
    claim,
    ended,
    entry,
    numbers,
    put,
    replayed,
)
from tests.support.journals import Clocks, Process, pass_beats, process
from tests.support.store_contract import saved
from tieline.codecs.json import encode
from tieline.events import OutputTextDelta
from tieline.responses import Usage
from tieline_server.storage.base import Cancellation
from tieline_server.storage.sql import journal as sql
from tieline_server.storage.sql.errors import DatabaseError, Overtaken, Unavailable
from tieline_server.storage.sql.orphans import MESSAGE
from tieline_server.storage.sql.processes import DEAD
from tieline_server.storage.sql.retention import Bounds

Judge = Callable[[str], bool | None]


class TestContract(JournalContract):
    @pytest.fixture(autouse=True)
    def _address(self, address: str) -> None:
        self.address = address

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[Opened]:
        async with process(self.address, bounds=Bounds(responses=10)) as one:
            self.process = one
            yield one.opened

    async def swept(self, opened: Opened) -> None:
        await self.process.durable.store.retention.look()


@asynccontextmanager
async def processes(
    address: str,
    *,
    judge: Judge = lambda process: None,
    bounds: Bounds = Bounds(),  # noqa: B008  # frozen
) -> AsyncIterator[tuple[Process, Process]]:
    """Two processes on one database, whose clocks are one."""
    clocks = Clocks()
    async with (
        process(address, "one", clocks=clocks, judge=judge, bounds=bounds) as one,
        process(address, "two", clocks=clocks, judge=judge, bounds=bounds) as two,
    ):
        yield one, two


def one_is_dead(process: str) -> bool:
    """A judge who sees at once that ``one`` is gone, and that all others live."""
    return process != "one"


async def rows(opened: Process, *tables: str) -> list[int]:
    """How many rows each table has."""
    return [await opened.durable.count(table) for table in tables]


async def left_behind(one: Process, *response_ids: str) -> None:
    """Responses of ``one`` that run, with events and claims."""
    for response_id in response_ids:
        await one.journal.claim(claim(response_id, key=response_id.encode()))
        await one.journal.begin(begun(response_id))
        one.journal.log(entry(response_id, 0, 7))
    await one.opened.flush()


async def test_what_one_process_writes_another_one_finds(address: str) -> None:
    async with processes(address) as (one, two):
        await left_behind(one, "resp_1")
        found = await two.journal.running("ann", "resp_1")
        assert found == await one.journal.running("ann", "resp_1")
        assert found is not None
        assert await replayed(two.journal, "resp_1") == numbers(7)
        assert await two.journal.claim(claim("resp_2", key=b"resp_1")) == claim(
            "resp_1", key=b"resp_1"
        )
        await put(one.opened, ended("resp_1", terminal=7))
        assert await two.journal.running("ann", "resp_1") is None
        assert await replayed(two.journal, "resp_1", after=3) == numbers(4, 7)


async def test_of_two_processes_that_claim_a_key_at_once_one_holds_it(address: str) -> None:
    async with processes(address) as (one, two):
        for number in range(20):
            key = f"key {number}".encode()
            wanted = [claim(f"resp_{name}_{number}", key=key) for name in "ab"]
            found = await asyncio.gather(one.journal.claim(wanted[0]), two.journal.claim(wanted[1]))
            assert found[0] == found[1]


async def test_a_word_to_cancel_is_told_once_to_each_process(address: str) -> None:
    async with processes(address) as (one, two):
        words = [Cancellation(owner="ann", response_id=f"resp_{n}") for n in range(3)]
        await one.journal.ask_cancel(words[0])
        await two.journal.ask_cancel(words[1])
        for each in (one, two):
            assert list(await each.journal.asked_cancels()) == words[:2]
        await one.journal.ask_cancel(words[2])
        for each in (one, two):
            assert list(await each.journal.asked_cancels()) == words[2:]
            assert list(await each.journal.asked_cancels()) == []
        one.clocks.pass_(20)
        await one.journal.look()
        assert await rows(one, "cancels") == [0]


async def test_a_response_whose_process_died_is_failed_with_what_it_used_for_who_asks(
    address: str,
) -> None:
    async with processes(address, judge=one_is_dead) as (one, two):
        await left_behind(one, "resp_1")
        assert await two.journal.running("bob", "resp_1") is None
        assert await rows(two, "responses") == [0]
        assert await two.journal.running("ann", "resp_1") is None
        found = await two.durable.store.get("ann", "resp_1")
        assert found is not None
        response = found.response
        assert response.status == "failed"
        assert response.error is not None
        assert (response.error.code, response.error.message) == ("server_error", MESSAGE)
        assert response.usage == Usage.of(input=10, cached=0, output=7, reasoning=0)
        assert found.terminal == 7
        assert await replayed(two.journal, "resp_1") == numbers(7)
        assert await rows(two, "running", "ledger") == [0, 1]
        outcome = "outcome = 'failed' AND error_code = 'server_error' AND stored"
        counted = "input_tokens = 10 AND output_tokens = 7 AND started_at = 1000000"
        whose = "owner = 'ann' AND model = 'm' AND transport = 'test'"
        question = f"SELECT count(*) FROM ledger WHERE {outcome} AND {counted} AND {whose}"
        assert await two.durable.value(question) == 1


async def test_the_output_of_a_response_whose_process_died_can_be_found(address: str) -> None:
    async with processes(address, judge=one_is_dead) as (one, two):
        part = ended("resp_1", terminal=1)
        said = begun("resp_1")
        said = replace(said, response=replace(said.response, output=part.response.output))
        await one.journal.begin(said)
        await two.journal.look()
        assert await two.durable.store.item("ann", "msg_resp_1") is not None
        found = await two.durable.store.get("ann", "resp_1")
        assert found is not None
        assert list(found.response.output) == list(part.response.output)
        assert await two.durable.store.delete("ann", "resp_1")
        assert await rows(two, "nodes", "items", "responses", "events", "claims") == [0] * 5


async def test_a_look_ends_all_that_a_dead_process_left_and_nothing_of_others(address: str) -> None:
    async with processes(address, judge=one_is_dead) as (one, two):
        many = [f"resp_{number}" for number in range(2 * sql.BATCH + 3)]
        await left_behind(one, *many)
        await one.journal.claim(claim("resp_line", key=b"line", stored=False))
        await two.journal.begin(begun("resp_live"))
        await two.journal.look()
        assert await rows(two, "running", "responses", "ledger") == [1, len(many), len(many)]
        assert await rows(two, "claims", "processes") == [0, 1]
        assert await two.journal.running("ann", "resp_live") is not None


async def test_two_that_find_a_dead_process_at_once_book_each_response_once(address: str) -> None:
    async with (
        process(address, "one") as one,
        process(address, "two", judge=one_is_dead) as two,
        process(address, "three", judge=one_is_dead) as three,
    ):
        for round_ in range(5):
            names = [f"resp_{round_}_{number}" for number in range(10)]
            await left_behind(one, *names)
            asked = [each.journal.running("ann", names[0]) for each in (two, three)]
            found = await asyncio.gather(two.journal.look(), three.journal.look(), *asked)
            assert found[2:] == [None, None]
            assert await rows(two, "running", "nodes") == [0, 10 * (round_ + 1)]
            assert await rows(two, "responses", "ledger") == [10 * (round_ + 1)] * 2


async def test_a_claim_whose_process_died_before_it_had_stored_its_response_is_taken_over(
    address: str,
) -> None:
    async with processes(address, judge=one_is_dead) as (one, two):
        await left_behind(one, "resp_run")
        await left_behind(one, "resp_done")
        await put(one.opened, ended("resp_done", terminal=7))
        await one.journal.claim(claim("resp_line", key=b"line", stored=False))
        for key, holds in ((b"resp_run", False), (b"line", False), (b"resp_done", True)):
            mine = claim("resp_new", key=key)
            assert (await two.journal.claim(mine) != mine) is holds
        await two.journal.look()
        assert await two.durable.value("SELECT count(*) FROM claims WHERE process = 'two'") == 2


async def test_a_claim_ends_with_its_failed_response_so_that_the_key_can_be_used_anew(
    address: str,
) -> None:
    async with processes(address, judge=one_is_dead) as (one, two):
        await left_behind(one, "resp_1")
        await two.journal.look()
        mine = claim("resp_2", key=b"resp_1")
        assert await two.journal.claim(mine) == mine


async def test_a_process_elsewhere_lives_as_long_as_it_beats(address: str) -> None:
    async with processes(address) as (one, two):
        await left_behind(one, "resp_1")
        await pass_beats(one.clocks, 100, one.journal, two.journal)
        assert await two.journal.running("ann", "resp_1") is not None
        await pass_beats(one.clocks, DEAD - 1, two.journal)
        assert await two.journal.running("ann", "resp_1") is not None
        await pass_beats(one.clocks, 10, two.journal)
        assert await two.journal.running("ann", "resp_1") is None
        assert await rows(two, "running", "responses", "ledger") == [0, 1, 1]


async def test_a_process_that_had_nothing_to_do_for_long_is_not_dead_when_it_begins(
    address: str,
) -> None:
    async with processes(address) as (one, two):
        await left_behind(one, "resp_1")
        await pass_beats(one.clocks, 10, one.journal, two.journal)
        await put(one.opened, ended("resp_1", terminal=7))
        one.journal.expire(claim("resp_1", key=b"resp_1"), at=None)
        await pass_beats(one.clocks, 100, one.journal, two.journal)
        await one.journal.begin(begun("resp_2"))
        assert await two.journal.running("ann", "resp_2") is not None
        await pass_beats(one.clocks, DEAD, one.journal, two.journal)
        assert await two.journal.running("ann", "resp_2") is not None


async def test_who_was_not_looking_for_a_while_calls_nobody_dead(address: str) -> None:
    async with processes(address) as (one, two):
        await left_behind(one, "resp_1")
        await two.journal.look()
        one.clocks.pass_(1000)
        await two.journal.look()
        assert await two.journal.running("ann", "resp_1") is not None
        await pass_beats(one.clocks, DEAD, two.journal)
        assert await two.journal.running("ann", "resp_1") is None


async def test_who_could_not_ask_calls_nobody_dead(address: str) -> None:
    """Where the database is away, nobody beats, and all come back together."""

    async with processes(address) as (one, two):
        await left_behind(one, "resp_1")
        await pass_beats(one.clocks, DEAD, two.journal)
        await rename(two, "processes", "away")
        with pytest.raises(DatabaseError):
            await two.journal.look()
        await rename(two, "away", "processes")
        await pass_beats(one.clocks, 5, two.journal)
        assert await two.journal.running("ann", "resp_1") is not None


async def test_a_clock_that_is_set_kills_nobody(address: str) -> None:
    clocks, ahead = Clocks(), Clocks()
    ahead.wall += 100_000
    async with (
        process(address, "one", clocks=clocks) as one,
        process(address, "two", clocks=ahead) as two,
    ):
        await left_behind(one, "resp_1")
        for _ in range(10):
            await pass_beats(clocks, 5, one.journal)
            await pass_beats(ahead, 5, two.journal)
        assert await two.journal.running("ann", "resp_1") is not None


async def test_a_process_that_was_thought_dead_cannot_store_what_was_ended_in_its_place(
    address: str,
) -> None:
    async with processes(address, judge=one_is_dead) as (one, two):
        await left_behind(one, "resp_1")
        await two.journal.look()
        one.journal.log(entry("resp_1", 7, 5))
        with pytest.raises(Overtaken):
            await put(one.opened, ended("resp_1", terminal=12))
        one.journal.end("ann", "resp_1")
        await one.opened.flush()
        found = await two.durable.store.get("ann", "resp_1")
        assert found is not None
        assert (found.response.status, found.terminal) == ("failed", 7)
        assert await replayed(two.journal, "resp_1") == numbers(7)
        assert await rows(two, "ledger", "items") == [1, 0]


async def test_what_a_process_runs_when_it_closes_is_failed_and_what_it_has_put_is_not(
    address: str,
) -> None:
    async with process(address, "one") as one:
        await left_behind(one, "resp_1", "resp_2")
        saving = asyncio.create_task(put(one.opened, ended("resp_2", terminal=7)))
        await asyncio.sleep(0)
    await saving
    async with process(address, "two") as two:
        for name, status in (("resp_1", "failed"), ("resp_2", "completed")):
            found = await two.durable.store.get("ann", name)
            assert found is not None
            assert found.response.status == status
            assert await replayed(two.journal, name) == numbers(7)
        assert await rows(two, "running", "ledger", "processes") == [0, 2, 0]
        mine = claim("resp_3", key=b"resp_2")
        assert await two.journal.claim(mine) == claim("resp_2", key=b"resp_2")


async def test_entries_that_were_logged_are_there_when_the_response_is(address: str) -> None:
    async with processes(address) as (one, two):
        for number in range(20):
            name = f"resp_{number}"
            await one.journal.begin(begun(name))
            for first in range(0, number * 10, 10):
                one.journal.log(entry(name, first, 10))
                if first % 30 == 0:
                    await asyncio.sleep(0)
            await put(one.opened, ended(name, terminal=number * 10))
            assert await replayed(two.journal, name) == numbers(number * 10)


async def test_the_size_of_what_is_there_counts_events_to_the_byte(address: str) -> None:
    async with processes(address, judge=one_is_dead) as (one, two):
        known = "SELECT coalesce(sum(size), 0) FROM nodes"
        whole = " + ".join(
            f"(SELECT coalesce(sum(length({column})), 0) FROM {table})"
            for table, column in (("items", "raw"), ("responses", "body"), ("events", "blob"))
        )
        await left_behind(one, "resp_1", "resp_2")
        await put(one.opened, ended("resp_1", terminal=7))
        await put(one.opened, saved("resp_3"))
        await two.journal.look()
        assert await rows(two, "responses") == [3]
        assert await one.durable.value(known) == await one.durable.value(f"SELECT {whole}") > 0
        for number in (1, 2, 3):
            assert await one.durable.store.delete("ann", f"resp_{number}")
        assert await rows(two, "nodes", "events", "claims") == [0, 0, 0]


async def test_events_of_running_responses_count_against_the_bytes_that_a_store_may_hold(
    address: str,
) -> None:
    async with processes(address, bounds=Bounds(size=30_000)) as (one, _two):
        for number in range(4):
            one.clocks.pass_(1)
            await put(one.opened, saved(f"resp_{number}"))
        await one.durable.store.retention.look()
        assert await rows(one, "responses") == [4]
        await one.journal.begin(begun("resp_run"))
        one.journal.log(entry("resp_run", 0, 2000))
        await one.opened.flush()
        await one.durable.store.retention.look()
        assert await rows(one, "responses") == [1]
        assert len(await replayed(one.journal, "resp_run") or ()) == 2000


async def test_while_the_database_is_away_events_are_lost_and_the_log_ends_where_they_were(
    address: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with processes(address) as (one, _two):
        await left_behind(one, "resp_1", "resp_2")
        await rename(one, "events", "away")
        one.journal.log(entry("resp_1", 7, 3))
        with suppress(DatabaseError):
            await put(one.opened, ended("resp_2", terminal=7))
        await rename(one, "away", "events")
        one.journal.log(entry("resp_1", 10, 3))
        await put(one.opened, ended("resp_1", terminal=13))
        assert await one.journal.events("ann", "resp_1", after=-1, most=99) == numbers(7)
        assert await one.journal.events("ann", "resp_1", after=6, most=99) is None
        assert await one.journal.events("ann", "resp_1", after=12, most=99) == []
        assert caplog.messages.count("journal.events lost") == 1


async def test_events_that_wait_are_bounded(
    address: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(sql, "WAITING", 10_000)

    async with processes(address) as (one, _two):
        await one.journal.begin(begun("resp_1"))
        for first in range(0, 10_000, 100):
            one.journal.log(entry("resp_1", first, 100))
        await put(one.opened, ended("resp_1", terminal=10_000))
        found = await one.journal.events("ann", "resp_1", after=-1, most=10_000)
        assert found is not None
        assert 0 < sum(map(len, found)) <= 10_000
        assert found == numbers(len(found))
        assert "journal.events lost" in caplog.messages


async def test_a_process_beats_with_what_it_begins_and_not_with_each(address: str) -> None:
    async with processes(address) as (one, two):
        beat = "SELECT seen_at FROM processes WHERE id = 'one'"
        began = one.clocks.wall
        for number in range(8):
            name = f"resp_{number}"
            await one.journal.begin(begun(name))
            assert await two.durable.value(beat) == began + (5 if number > 4 else 0)
            one.clocks.pass_(1)
            await one.journal.claim(claim(name, key=name.encode(), stored=False))


async def test_what_could_not_be_ended_is_ended_by_a_later_look(address: str) -> None:
    async with processes(address) as (one, _two):
        await left_behind(one, "resp_1")
        await rename(one, "running", "away")
        one.journal.end("ann", "resp_1")
        one.journal.expire(claim("resp_1", key=b"resp_1"), at=None)
        with suppress(DatabaseError):
            await one.opened.flush()
        await rename(one, "away", "running")
        assert await one.journal.running("ann", "resp_1") is not None
        await one.journal.look()
        await one.opened.flush()
        assert await one.journal.running("ann", "resp_1") is None
        assert await rows(one, "events", "claims") == [0, 0]


async def test_a_begin_that_fails_or_is_cut_off_leaves_nothing_that_runs(address: str) -> None:
    async with processes(address) as (one, _two):
        beginning = asyncio.create_task(one.journal.begin(begun("resp_1")))
        claiming = asyncio.create_task(one.journal.claim(claim("resp_3")))
        await asyncio.sleep(0)
        for task in (beginning, claiming):
            task.cancel()
        await asyncio.gather(beginning, claiming, return_exceptions=True)
        await rename(one, "running", "away")
        with pytest.raises(DatabaseError):
            await one.journal.begin(begun("resp_2"))
        await rename(one, "away", "running")
        await one.journal.look()
        await one.opened.flush()
        assert await rows(one, "claims") == [0]
        assert await one.durable.value("SELECT count(*) FROM running WHERE owner = 'ann'") == 0


async def test_the_response_itself_is_written_once_and_its_events_make_it_what_it_is(
    address: str,
) -> None:
    async with processes(address) as (one, two):
        await one.journal.begin(begun("resp_1"))
        text = [
            OutputTextDelta(
                sequence_number=number,
                item_id="msg_1",
                output_index=0,
                content_index=0,
                delta=f"{number} ",
            )
            for number in range(30)
        ]
        for first in range(0, 30, 10):
            made = entry("resp_1", first, 10)
            said = tuple(map(encode, text[first : first + 10]))
            one.journal.log(replace(made, events=said))
            await one.opened.flush()
        usage = Usage.of(input=10, cached=0, output=30, reasoning=0)
        found = await two.journal.running("ann", "resp_1")
        assert found is not None
        assert found.response.usage == usage
        whole = "".join(f"{number} " for number in range(30)).encode()
        assert whole in bytes(found.response.output[0])
        # Without events to say it, an entry is written with the response.
        more = entry("resp_1", 30, 0)
        used = Usage.of(input=10, cached=0, output=31, reasoning=0)
        said_now = replace(more.standing, response=replace(more.standing.response, usage=used))
        one.journal.log(replace(more, standing=said_now))
        await one.opened.flush()
        found = await two.journal.running("ann", "resp_1")
        assert found is not None
        assert found.response.usage == used
        assert whole in bytes(found.response.output[0])


async def test_of_a_response_that_is_not_stored_only_digests_are_on_disk(tmp_path: Path) -> None:
    async with process(f"sqlite:///{tmp_path}/t.db") as one:
        mine = claim("resp_1", key=b"\x01" * 16, body=b"\x02" * 16, stored=False)
        await one.journal.claim(mine)
        tables = ("running", "events", "responses", "items", "nodes", "ledger", "claims")
        assert await rows(one, *tables) == [0, 0, 0, 0, 0, 0, 1]
        columns = "owner, key, body, response, stored, process, until"
        row = await one.durable.database.read(
            lambda connection: connection.execute(text(f"SELECT {columns} FROM claims")).one()
        )
        assert tuple(row) == ("ann", b"\x01" * 16, b"\x02" * 16, "resp_1", 0, "one", None)


async def test_of_a_begun_response_that_was_ended_nothing_stays_in_the_files(
    tmp_path: Path,
) -> None:
    def holding() -> list[str]:
        marker = b'"sequence_number":3'
        return [file.name for file in tmp_path.iterdir() if marker in file.read_bytes()]

    async with process(f"sqlite:///{tmp_path}/t.db") as one:
        await left_behind(one, "resp_1")
        assert holding() == ["t.db-wal"]
        one.journal.end("ann", "resp_1")
        await one.opened.flush()
        await one.journal.look()
        assert holding() == []


async def test_many_responses_with_events_in_bounded_storage_leave_no_row_behind(
    address: str, repeats: Callable[[int], int]
) -> None:
    """Small responses, some begun, some failed, some ended: what is past the bounds is gone."""

    async with processes(address, judge=one_is_dead, bounds=Bounds(responses=20, ttl=60)) as (
        one,
        two,
    ):
        store = one.durable.store
        for number in range(repeats(2000)):
            name = f"resp_{number}"
            one.clocks.pass_(0.1)
            if number % 10:
                await put(one.opened, saved(name))
                continue
            await left_behind(one, name)
            if number % 20:
                await put(one.opened, ended(name, terminal=7))
            elif number % 40:
                one.journal.end("ann", name)
        await two.journal.look()
        await store.retention.look()
        await one.opened.flush()
        assert await rows(one, "responses", "nodes") == [20, 20]
        begun_ones = int(
            await one.durable.value("SELECT count(*) FROM responses WHERE terminal IS NOT NULL")
        )
        assert begun_ones < 20
        (events,) = await rows(one, "events")
        assert events == begun_ones
        assert await one.durable.value("SELECT count(*) FROM running WHERE owner = 'ann'") == 0
        assert (await rows(one, "claims"))[0] <= begun_ones
        one.clocks.pass_(100)
        await put(one.opened, saved("resp_last"))
        await store.retention.look()
        assert await rows(one, "responses", "events", "claims") == [1, 0, 0]


async def rename(opened: Process, old: str, new: str) -> None:
    """Takes a table away, or brings it back."""
    statement = text(f"ALTER TABLE {old} RENAME TO {new}")
    await opened.durable.database.write(lambda connection: connection.execute(statement))


async def test_a_key_whose_claim_was_given_up_is_free_at_once_though_its_commit_went_through(
    address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with processes(address) as (one, _two):
        database, released = one.durable.database, asyncio.Event()
        write = database.write

        async def away(_change: Callable[[Connection], Any]) -> Any:
            released.set()
            raise Unavailable

        async def lost(change: Callable[[Connection], Any]) -> Any:
            monkeypatch.setattr(database, "write", away)
            await write(change)
            raise Unavailable

        monkeypatch.setattr(database, "write", lost)
        with pytest.raises(Unavailable):
            await one.opened.journal.claim(claim("resp_1"))
        await released.wait()
        monkeypatch.setattr(database, "write", write)
        # What is made after the release that failed is made after it was found out.
        await put(one.opened, saved("resp_other"))
        again = claim("resp_2")
        assert await one.opened.journal.claim(again) == again


async def test_a_sweep_removes_what_is_over_and_no_process_that_has_something_to_lose(
    address: str,
) -> None:
    clocks = Clocks()
    async with process(address, "used", clocks=clocks) as used:
        async with process(address, "old", clocks=clocks) as old:
            await old.journal.begin(begun("resp_old"))
            old.journal.end("ann", "resp_old")
            await old.opened.flush()
        await used.journal.begin(begun("resp_1"))
        clocks.pass_(sql.DAY)
        async with process(address, "new", clocks=clocks) as new:
            await new.journal.claim(claim("resp_2"))
            new.journal.expire(claim("resp_2"), at=clocks.wall + 10)
            await new.opened.flush()
            await new.journal.look()
            assert await rows(new, "claims") == [1]
            clocks.pass_(20)
            await new.journal.look()
            assert await rows(new, "claims") == [0]
