"""What is written down of a stored response as it runs."""

import asyncio
import time
from collections.abc import Sequence

import pytest

from tests.support.garbage import none_left
from tests.support.runtime import (
    Answer,
    Failing,
    Stage,
    endless,
    hello,
    loop_turns,
    raising,
    silent,
    until,
)
from tieline import events
from tieline.codecs.json import decode_event, encode
from tieline.requests import Cancel
from tieline_server.core.connection.connection import Connection
from tieline_server.core.turn.follow import relaned
from tieline_server.core.turn.turn import Turn
from tieline_server.storage.base import Claim, Entry, RunningResponse
from tieline_server.storage.memory import MemoryJournal


class Diary(MemoryJournal):
    """A journal that notes in which order it was told things, and may be slow to begin."""

    def __init__(self) -> None:
        super().__init__(now=time.time)
        self.told: list[str] = []
        self.entries: list[Entry] = []
        self.expired: list[float | None] = []
        self.gate = asyncio.Event()
        self.gate.set()
        self.begins = True

    async def begin(self, response: RunningResponse) -> None:
        """Notes it when the gate is open, or cannot."""
        await self.gate.wait()
        if not self.begins:
            raise OSError("the disk is full")
        self.told.append("begin")
        await super().begin(response)

    def log(self, entry: Entry) -> None:
        """Takes events."""
        self.told.append("log")
        self.entries.append(entry)
        super().log(entry)

    def end(self, owner: str, response_id: str) -> None:
        """Forgets it."""
        self.told.append("end")
        super().end(owner, response_id)

    def expire(self, claim: Claim, *, at: float | None) -> None:
        """Lets a key end."""
        self.expired.append(at)
        super().expire(claim, at=at)


def stage_of(answer: Answer, diary: Diary, store: Failing | None = None) -> Stage:
    """A process that writes down what it does."""
    return Stage(answer, store=store, journal=diary)


def written(entries: Sequence[Entry]) -> list[bytes]:
    """All events that were handed over, which leave no gap."""
    every: list[bytes] = []
    for entry in entries:
        assert entry.first == len(every)
        every += entry.events
    return every


async def close(stage: Stage) -> None:
    """Ends the connection and the process."""
    await stage.driver.close()
    await stage.services.running.close()
    assert len(stage.services.running.logs) == 0
    assert stage.services.running.logs.size == 0


class TestJournals:
    async def test_all_but_the_end_of_a_stored_response_is_written_down_before_it_is_stored(
        self,
    ) -> None:
        diary = Diary()
        stage = stage_of(hello, diary)
        stage.create(store=True, resumable=True)
        diary.gate.clear()
        await until(lambda: stage.engine.finished == 1)
        await loop_turns()
        assert stage.records == [], "it is stored once it is known to run"
        diary.gate.set()
        last = await stage.until(events.ResponseCompleted)
        assert diary.told == ["begin", "log"]
        assert written(diary.entries) == [encode(each) for each in stage.seen[:-1]]
        saved = await stage.services.store.get("local", last.response.id)
        assert saved is not None
        assert saved.terminal == last.sequence_number == len(stage.seen) - 1
        await close(stage)

    async def test_what_is_written_down_names_no_lane(self) -> None:
        diary = Diary()
        stage = stage_of(hello, diary)
        stage.create(store=True, resumable=True, stream_id="a")
        await stage.until(events.ResponseCompleted)
        raws = written(diary.entries)
        assert all(b"stream_id" not in raw for raw in raws)
        assert relaned([decode_event(raw) for raw in raws], "a") == stage.seen[:-1]
        await close(stage)

    async def test_events_are_written_down_while_it_runs_with_the_usage_so_far(self) -> None:
        diary = Diary()
        stage = stage_of(endless, diary)
        stage.create(store=True, resumable=True)
        while not diary.entries:
            await stage.until(events.OutputTextDelta)
        begun = diary.entries[-1].standing
        assert begun.response.usage is not None
        assert begun.response.usage.output_tokens > 0
        assert (begun.response.status, begun.transport) == ("in_progress", "test")
        stage.driver.receive(Cancel())
        last = await stage.until(events.ResponseIncomplete)
        assert diary.entries[-1].standing.response.status == "in_progress", "until it is stored"
        assert written(diary.entries) == [encode(each) for each in stage.seen[:-1]]
        assert last.response.status == "cancelled"
        await close(stage)

    @pytest.mark.parametrize(
        ("answer", "put", "how"),
        [
            (raising(RuntimeError(), accepted=False), False, "refused"),
            (hello, True, "unsaved"),
            (silent, False, "dropped"),
        ],
        ids=["refused", "unsaved", "dropped"],
    )
    async def test_a_response_that_will_never_be_stored_is_told_of_no_more(
        self, answer: Answer, put: bool, how: str
    ) -> None:
        diary = Diary()
        stage = stage_of(answer, diary, Failing(put=put))
        diary.gate.clear()
        stage.create(store=True, resumable=True, idempotency_key="k")
        await loop_turns()
        if how == "dropped":
            (turn,) = stage.driver.connection._lanes.turns()
            assert turn.log is not None
            turn.log.drop()
            stage.driver.drop()
        diary.gate.set()
        await until(lambda: "end" in diary.told)
        assert (diary.told[0], diary.told[-1]) == ("begin", "end")
        assert await diary.running("local", stage.records[0][0].response_id) is None
        assert len(diary.expired) == 1, "its key ends as well"
        await close(stage)

    async def test_a_stored_response_that_has_no_chain_yet_frees_its_key_after_the_window(
        self,
    ) -> None:
        diary, store = Diary(), Failing()
        stage = stage_of(hello, diary, store)
        store.gate.clear()
        stage.create(store=True, idempotency_key="k", previous_response_id="resp_x")
        await until(lambda: diary.told == ["begin"])
        stage.driver.receive(Cancel())
        await stage.until(events.ResponseIncomplete)
        await until(lambda: "end" in diary.told)
        (at,) = diary.expired
        assert at is not None
        store.gate.set()
        await close(stage)

    @pytest.mark.parametrize("broken", [False, True])
    async def test_a_stored_response_keeps_its_key_also_where_it_failed(self, broken: bool) -> None:
        diary = Diary()
        answer = raising(RuntimeError(), accepted=True) if broken else hello
        stage = stage_of(answer, diary)
        stage.create(store=True, idempotency_key="k")
        await stage.until(events.ResponseFailed if broken else events.ResponseCompleted)
        assert diary.expired == []
        assert "end" not in diary.told
        await close(stage)

    async def test_a_journal_that_fails_takes_nothing_from_the_response(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        diary = Diary()
        diary.begins = False
        stage = stage_of(hello, diary)
        stage.create(store=True, resumable=True)
        last = await stage.until(events.ResponseCompleted)
        kept = stage.kept(last.response.id)
        assert kept.after(None) == stage.seen
        await close(stage)
        assert any(record.exc_info for record in caplog.records)

    async def test_nothing_of_a_response_that_is_not_stored_is_written_down(self) -> None:
        diary = Diary()
        stage = stage_of(hello, diary)
        stage.create(resumable=True, idempotency_key="k")
        await stage.until(events.ResponseCompleted)
        await close(stage)
        assert diary.told == []
        assert len(diary.expired) == 1

    @pytest.mark.parametrize("ends", [True, False])
    async def test_what_is_left_of_a_stored_turn_keeps_neither_it_nor_its_connection(
        self, ends: bool
    ) -> None:
        stage = Stage(hello if ends else endless)
        with none_left(Turn, Connection):
            client = stage.client()
            client.create(resumable=True, store=True)
            if ends:
                await client.until(events.ResponseCompleted)
            else:
                await client.until(events.OutputTextDelta)
                client.driver.receive(Cancel())
                await client.until(events.ResponseIncomplete)
            await client.driver.close()
            del client
            await loop_turns()
            assert len(stage.services.running.logs) == 1
        await close(stage)

    async def test_what_will_never_be_stored_leaves_nothing_in_the_journal(self) -> None:
        journal = Noting()
        stage = Stage(hello, store=Failing(put=True))
        stage.replace(journal=journal)
        stage.create(resumable=True, store=True, previous_response_id="resp_no")
        await stage.until(events.ErrorEvent)
        await until(lambda: len(journal.ended) == 1)
        stage.create(resumable=True, store=True)
        await stage.until(events.ResponseFailed)
        await until(lambda: len(journal.ended) == 2)
        assert journal.ended == [record.response_id for record, _ in stage.records]
        stage.create(resumable=True, store=False)
        await stage.until(events.ResponseCompleted)
        await stage.driver.close()
        assert len(journal.ended) == 2
        await stage.services.running.close()


class Noting(MemoryJournal):
    """Notes which responses it was told to forget."""

    def __init__(self) -> None:
        super().__init__(now=lambda: 0.0)
        self.ended: list[str] = []

    def end(self, owner: str, response_id: str) -> None:
        """As the journal's own."""
        self.ended.append(response_id)
        super().end(owner, response_id)
