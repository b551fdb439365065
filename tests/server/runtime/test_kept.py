"""Turns that can be found by their response's id, and what is written down of them."""

import asyncio
import time
from collections.abc import Sequence

import msgspec
import pytest

from tests.support.core import LOCAL, append_of, output
from tests.support.runtime import (
    Answer,
    Failing,
    Stage,
    endless,
    hello,
    looker,
    loop_turns,
    raising,
    run,
    silent,
    until,
)
from tieline import events
from tieline.codecs.json import decode_event, encode
from tieline.requests import Cancel, Resume
from tieline_server.core.budget import Budget
from tieline_server.core.limits import Limits
from tieline_server.core.reading import relaned
from tieline_server.journals.base import Begun, Claim, Entry
from tieline_server.journals.memory import MemoryJournal


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

    async def begin(self, begun: Begun) -> None:
        """Notes it when the gate is open, or cannot."""
        await self.gate.wait()
        if not self.begins:
            raise OSError("the disk is full")
        self.told.append("begin")
        await super().begin(begun)

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
    """Ends the line and the process."""
    await stage.line.close()
    await stage.services.running.close()
    assert len(stage.services.running.kept) == 0
    assert stage.services.logs.size == 0


class TestJournals:
    def test_all_but_the_end_of_a_stored_response_is_written_down_before_it_is_stored(self) -> None:
        async def test() -> None:
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

        run(test)

    def test_what_is_written_down_names_no_lane(self) -> None:
        async def test() -> None:
            diary = Diary()
            stage = stage_of(hello, diary)
            stage.create(store=True, resumable=True, stream_id="a")
            await stage.until(events.ResponseCompleted)
            raws = written(diary.entries)
            assert all(b"stream_id" not in raw for raw in raws)
            assert relaned([decode_event(raw) for raw in raws], "a") == stage.seen[:-1]
            await close(stage)

        run(test)

    def test_events_are_written_down_while_it_runs_with_the_usage_so_far(self) -> None:
        async def test() -> None:
            diary = Diary()
            stage = stage_of(endless, diary)
            stage.create(store=True, resumable=True)
            while not diary.entries:
                await stage.until(events.OutputTextDelta)
            begun = diary.entries[-1].begun
            assert begun.response.usage is not None
            assert begun.response.usage.output_tokens > 0
            assert (begun.response.status, begun.transport) == ("in_progress", "test")
            stage.line.receive(Cancel(), size=1)
            last = await stage.until(events.ResponseIncomplete)
            assert diary.entries[-1].begun.response.status == "in_progress", "until it is stored"
            assert written(diary.entries) == [encode(each) for each in stage.seen[:-1]]
            assert last.response.status == "cancelled"
            await close(stage)

        run(test)

    @pytest.mark.parametrize(
        ("answer", "put", "how"),
        [
            (raising(RuntimeError(), accepted=False), False, "refused"),
            (hello, True, "unsaved"),
            (silent, False, "dropped"),
        ],
        ids=["refused", "unsaved", "dropped"],
    )
    def test_a_response_that_will_never_be_stored_is_told_of_no_more(
        self, answer: Answer, put: bool, how: str
    ) -> None:
        async def test() -> None:
            diary = Diary()
            stage = stage_of(answer, diary, Failing(put=put))
            diary.gate.clear()
            stage.create(store=True, resumable=True, idempotency_key="k")
            await loop_turns()
            if how == "dropped":
                (turn,) = stage.line.line._lanes.turns()
                assert turn.log is not None
                turn.log.drop()
                stage.line.drop()
            diary.gate.set()
            await until(lambda: "end" in diary.told)
            assert (diary.told[0], diary.told[-1]) == ("begin", "end")
            assert await diary.running("local", stage.records[0][0].response_id) is None
            assert len(diary.expired) == 1, "its key ends as well"
            await close(stage)

        run(test)

    def test_a_stored_response_that_has_no_chain_yet_frees_its_key_after_the_window(self) -> None:
        async def test() -> None:
            diary, store = Diary(), Failing()
            stage = stage_of(hello, diary, store)
            store.gate.clear()
            stage.create(store=True, idempotency_key="k", previous_response_id="resp_x")
            await until(lambda: diary.told == ["begin"])
            stage.line.receive(Cancel(), size=1)
            await stage.until(events.ResponseIncomplete)
            await until(lambda: "end" in diary.told)
            (at,) = diary.expired
            assert at is not None
            store.gate.set()
            await close(stage)

        run(test)

    @pytest.mark.parametrize("broken", [False, True])
    def test_a_stored_response_keeps_its_key_also_where_it_failed(self, broken: bool) -> None:
        async def test() -> None:
            diary = Diary()
            answer = raising(RuntimeError(), accepted=True) if broken else hello
            stage = stage_of(answer, diary)
            stage.create(store=True, idempotency_key="k")
            await stage.until(events.ResponseFailed if broken else events.ResponseCompleted)
            assert diary.expired == []
            assert "end" not in diary.told
            await close(stage)

        run(test)

    def test_a_journal_that_fails_takes_nothing_from_the_response(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        async def test() -> None:
            diary = Diary()
            diary.begins = False
            stage = stage_of(hello, diary)
            stage.create(store=True, resumable=True)
            last = await stage.until(events.ResponseCompleted)
            kept = stage.services.running.kept.find("local", last.response.id)
            assert kept is not None
            assert kept.log.after(None) == stage.seen
            await close(stage)

        run(test)
        assert any(record.exc_info for record in caplog.records)

    def test_nothing_of_a_response_that_is_not_stored_is_written_down(self) -> None:
        async def test() -> None:
            diary = Diary()
            stage = stage_of(hello, diary)
            stage.create(resumable=True, idempotency_key="k")
            await stage.until(events.ResponseCompleted)
            await close(stage)
            assert diary.told == []
            assert len(diary.expired) == 1

        run(test)


class TestKept:
    def test_a_response_is_looked_at_as_it_stands_and_as_it_ended(self) -> None:
        async def test() -> None:
            stage = Stage(looker)
            stage.create(resumable=True, append=True)
            done = await stage.until(events.ResponseDone)
            kept = stage.services.running.kept.find("local", done.response.id)
            assert kept is not None
            standing = kept.look()
            assert standing is not None
            assert (standing.status, len(standing.output)) == ("in_progress", 1)
            assert standing.usage is not None
            assert standing.usage.input_tokens == 3
            call = msgspec.json.decode(done.response.output[0])
            stage.line.receive(append_of(output(call["call_id"])), size=1)
            last = await stage.until(events.ResponseCompleted)
            assert kept.look() == last.response
            await close(stage)

        run(test)

    def test_before_its_first_event_there_is_nothing_to_look_at(self) -> None:
        async def test() -> None:
            stage = Stage(silent)
            stage.create(resumable=True)
            (turn,) = stage.line.line._lanes.turns()
            kept = stage.services.running.kept.find("local", turn.id)
            assert kept is not None
            assert kept.look() is None
            await close(stage)

        run(test)

    def test_while_it_is_being_stored_it_has_not_ended(self) -> None:
        async def test() -> None:
            store = Failing()
            stage = stage_of(hello, Diary(), store)
            store.gate.clear()
            stage.create(store=True, resumable=True)
            done = await stage.until(events.OutputItemDone)
            await until(lambda: stage.engine.finished == 1)
            (turn,) = stage.line.line._lanes.turns()
            kept = stage.services.running.kept.find("local", turn.id)
            assert kept is not None
            standing = kept.look()
            assert standing is not None
            assert (standing.status, standing.completed_at) == ("in_progress", None)
            assert standing.output == [done.item]
            store.gate.set()
            await stage.until(events.ResponseCompleted)
            await close(stage)

        run(test)

    def test_one_whose_events_had_to_make_room_is_not_looked_at_here(self) -> None:
        async def test() -> None:
            stage = Stage(hello)
            stage.create(resumable=True)
            last = await stage.until(events.ResponseCompleted)
            kept = stage.services.running.kept.find("local", last.response.id)
            assert kept is not None
            kept.log.drop()
            assert kept.look() is None
            await close(stage)

        run(test)

    def test_what_has_ended_stays_for_the_window_and_then_goes_by_itself(self) -> None:
        async def test() -> None:
            stage = Stage(hello, limits=Limits(resume_window=0.02))
            gone = []
            for _ in range(3):
                stage.create(resumable=True)
                last = await stage.until(events.ResponseCompleted)
                kept = stage.services.running.kept.find("local", last.response.id)
                assert kept is not None
                assert kept.log.whole
                gone.append(asyncio.Event())
                kept.log.listen(gone[-1].set)
            for event in gone:
                await asyncio.wait_for(event.wait(), 10)
            assert len(stage.services.running.kept) == 0
            assert stage.services.logs.size == 0
            await close(stage)

        run(test)

    def test_only_what_has_ended_is_forgotten_and_only_by_its_owner(self) -> None:
        async def test() -> None:
            stage = Stage(looker)
            stage.create(resumable=True, append=True)
            done = await stage.until(events.ResponseDone)
            running = stage.services.running
            running.forget("local", done.response.id)
            assert running.kept.find("local", done.response.id) is not None
            assert running.kept.find("other", done.response.id) is None
            stage.line.receive(Cancel(), size=1)
            await stage.until(events.ResponseIncomplete)
            running.forget("other", done.response.id)
            assert running.kept.find("local", done.response.id) is not None
            running.forget("local", done.response.id)
            assert running.kept.find("local", done.response.id) is None
            await close(stage)

        run(test)


class TestChains:
    def test_a_chain_that_waits_to_be_resumed_counts_and_goes_when_room_is_needed(self) -> None:
        async def test() -> None:
            stage = Stage(hello)
            stage.services = msgspec.structs.replace(stage.services, budget=Budget(total=5000))
            await stage.line.close()
            stage.line = stage.open()
            kept = stage.services.running.kept
            ids = []
            for _ in range(8):
                peer = stage.peer()
                peer.create("x" * 1000, resumable=True)
                ids.append((await peer.until(events.ResponseCompleted)).response.id)
                assert stage.services.budget.size <= 5000
                await peer.line.close()
            found = [kept.find("local", each) for each in ids]
            tips = [each.tip for each in found if each is not None]
            assert len(tips) == len(ids)
            assert tips[0] is None
            assert tips[-1] is not None
            assert stage.services.budget.size > 1000
            await close(stage)
            assert stage.services.budget.size == 0

        run(test)

    def test_one_that_goes_from_line_to_line_counts_once_and_stays_until_its_window_ends(
        self,
    ) -> None:
        async def test() -> None:
            stage = Stage(hello)
            peer = stage.peer()
            peer.create("x" * 1000, resumable=True)
            last = (await peer.until(events.ResponseCompleted)).response
            await peer.line.close()
            budget = stage.services.budget
            size = budget.size
            assert size > 1000
            for _ in range(2):
                peer = stage.peer()
                peer.resume(last.id, stream_id="a")
                await peer.until(events.ResponseCompleted)
                await loop_turns()
                assert peer.line.line.memory.find(last.id) is not None
                assert budget.size == size
                await peer.line.close()
                assert budget.size == size
            kept = stage.services.running.kept.find("local", last.id)
            assert kept is not None
            assert kept.tip is not None
            stage.services.running.kept.forget("local", last.id)
            assert budget.size == 0
            await close(stage)

        run(test)

    def test_one_that_its_lane_has_as_well_makes_room_all_the_same(self) -> None:
        async def test() -> None:
            stage = Stage(hello)
            stage.services = msgspec.structs.replace(stage.services, budget=Budget(total=5000))
            await stage.line.close()
            stage.line = stage.open()
            for number in range(8):
                stage.create("x" * 1000, resumable=True, stream_id=f"lane-{number}")
                await stage.until(events.ResponseCompleted)
            assert stage.services.budget.size <= 5000
            await close(stage)
            assert stage.services.budget.size == 0

        run(test)


class TestRunning:
    """While the turn runs."""

    def test_a_response_runs_until_its_end_is_durable(self) -> None:
        async def test() -> None:
            store = Failing()
            stage = Stage(hello, store=store)
            stage.create(resumable=True, store=True)
            made = (await stage.until(events.ResponseCreated)).response
            store.gate.clear()
            await stage.until(events.OutputItemDone)
            kept = stage.services.running.kept.find(LOCAL.owner, made.id)
            assert kept is not None
            standing = kept.look()
            assert standing is not None
            assert (standing.status, standing.completed_at) == ("in_progress", None)
            assert standing.usage is not None
            assert (standing.usage.input_tokens, len(standing.output)) == (3, 1)
            waiting = asyncio.create_task(kept.over())
            await loop_turns()
            assert not waiting.done()
            store.gate.set()
            ended = (await stage.until(events.ResponseCompleted)).response
            assert kept.look() == ended
            await waiting
            await kept.over()
            found = kept.find()
            assert found is not None
            assert found.input_from is None
            await stage.line.close()
            await stage.services.running.close()

        run(test)

    def test_what_will_never_be_stored_leaves_nothing_in_the_journal(self) -> None:
        async def test() -> None:
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
            await stage.line.close()
            assert len(journal.ended) == 2
            await stage.services.running.close()

        run(test)


class TestReaders:
    """Those that read a response of elsewhere."""

    def test_a_further_reader_moves_nothing(self) -> None:
        async def test() -> None:
            stage = Stage(endless)
            stage.create(resumable=True)
            made = (await stage.until(events.ResponseCreated)).response
            other = stage.open()
            other.read(Resume(response_id=made.id, after=0))
            other.half_close()
            await other.wait()
            first = other.next_event()
            assert isinstance(first, events.ResponseInProgress)
            assert not other.runs(made.id)
            assert stage.line.runs(made.id)
            await other.close()
            assert stage.line.runs(made.id)
            await stage.line.close()
            await stage.services.running.close()

        run(test)

    def test_a_cancel_by_id_means_the_response_and_not_who_reads_it(self) -> None:
        async def test() -> None:
            stage = Stage(endless)
            stage.create(resumable=True)
            made = (await stage.until(events.ResponseCreated)).response
            readers = [stage.open() for _ in range(8)]
            for reader in readers:
                reader.read(Resume(response_id=made.id))
                reader.half_close()
            cut = await stage.services.running.end(LOCAL.owner, made.id)
            assert cut is not None
            assert cut.status == "cancelled"
            heard = (await stage.until(events.ResponseIncomplete)).response
            assert heard == cut
            for reader in readers:
                while not reader.closed:
                    reader.take(1000)
                    await reader.wait()
                assert reader.error is None
                await reader.close()
            await stage.line.close()
            await stage.services.running.close()

        run(test)


class Noting(MemoryJournal):
    """Notes which responses it was told to forget."""

    def __init__(self) -> None:
        super().__init__(now=lambda: 0.0)
        self.ended: list[str] = []

    def end(self, owner: str, response_id: str) -> None:
        """As the journal's own."""
        self.ended.append(response_id)
        super().end(owner, response_id)
