"""Logs of responses: runs of deltas, bounds, and what is left once a turn has ended."""

import asyncio
from itertools import pairwise

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

from tests.support.core import Lockstep, append_of, output
from tests.support.runtime import (
    Failing,
    Stage,
    hello,
    looker,
    loop_turns,
    silent,
    until,
)
from tieline import events
from tieline.events import (
    ErrorDetail,
    ErrorEvent,
    Event,
    OutputItemDone,
    OutputTextDelta,
    ReasoningSummaryTextDelta,
    ResponseCompleted,
    ResponseCreated,
)
from tieline.requests import Cancel
from tieline.responses import Response
from tieline_server.core.create.limits import Limits
from tieline_server.core.deltas import Accepted, Finish, SummaryDelta, TextDelta
from tieline_server.core.history.holdings import Budget
from tieline_server.core.stream.replay_log import (
    DELTA,
    EVENT,
    LITTLE,
    TEXT,
    DeltaRun,
    EventLog,
    EventLogs,
)
from tieline_server.runtime import ended


def summaries(first: int, texts: list[str]) -> list[Event]:
    return [
        ReasoningSummaryTextDelta(
            sequence_number=number,
            stream_id="a",
            item_id="rs_1",
            output_index=2,
            summary_index=1,
            delta=text,
        )
        for number, text in enumerate(texts, first)
    ]


@given(
    first=st.integers(0, 9),
    texts=st.lists(st.text(min_size=1), min_size=1),
    number=st.integers(0, 30),
    most=st.none() | st.integers(0, 9),
)
def test_whoever_reads_from_anywhere_gets_the_very_events(
    first: int, texts: list[str], number: int, most: int | None
) -> None:
    every = summaries(first, texts)
    run = DeltaRun(every[0], [*texts])
    behind = [each for each in every if (each.sequence_number or 0) >= number]
    assert run.behind(number, most) == behind[:most]


def test_what_comes_one_by_one_and_what_comes_together_is_the_same_to_who_reads_it_again() -> None:
    driver = Lockstep()
    turn = driver.create("hi", resumable=True)
    driver.say(turn, Accepted())
    driver.say(turn, SummaryDelta("I "), SummaryDelta("think"))
    for word in ("so", " it", " is"):
        driver.say(turn, TextDelta(word))
    driver.say(turn, TextDelta(" so"), TextDelta("."))
    driver.say(turn, Finish())
    log = driver.turns[turn].log
    assert log is not None
    assert log.after(None) == driver.audit.by_response[turn]
    said = [each.delta for each in log.after(None) if isinstance(each, OutputTextDelta)]
    assert said == ["so", " it", " is", " so", "."]


def delta(number: int, text: str = "x") -> Event:
    return OutputTextDelta(
        sequence_number=number, item_id="i", output_index=0, content_index=0, delta=text
    )


def item(number: int, size: int = 100) -> OutputItemDone:
    raw = Raw(b'"' + b"x" * (size - 2) + b'"')
    return OutputItemDone(sequence_number=number, output_index=0, item=raw)


def end(number: int) -> Event:
    return ResponseCompleted(sequence_number=number, response=Response())


def say(log: EventLog, event: OutputItemDone) -> None:
    """As an output says that an item is whole."""
    log.add(event)
    log.count(len(event.item))


def ended_log(logs: EventLogs, size: int = 1000) -> EventLog:
    log = EventLog(logs)
    say(log, item(0, size))
    log.end(end(1))
    return log


class TestReading:
    @given(
        count=st.integers(0, 12),
        cuts=st.sets(st.integers(0, 12)),
        over=st.booleans(),
        after=st.none() | st.integers(0, 20),
        most=st.none() | st.just(3),
    )
    def test_a_reader_gets_what_lies_behind_what_it_has_seen(
        self, count: int, cuts: set[int], over: bool, after: int | None, most: int | None
    ) -> None:
        log = EventLog(EventLogs())
        said = [delta(number, str(number)) for number in range(count)]
        # Some come alone and some together, and something else comes between them.
        for begin, stop in pairwise([0, *sorted(cut for cut in cuts if cut < count), count]):
            some = said[begin:stop]
            if len(some) == 1:
                log.add(some[0])
            elif some:
                log.extend(some[0], [str(number) for number in range(begin, stop)])
        if over:
            said.append(end(count))
            log.end(said[-1])
        behind = [each for each in said if after is None or (each.sequence_number or 0) > after]
        last = said[-1:] if over else []
        assert log.after(after, most) == (behind[:most] or last)
        assert log.ended is over

    def test_it_is_a_copy(self) -> None:
        log = EventLog(EventLogs())
        log.add(delta(0))
        before = log.after(None)
        log.add(delta(1))
        assert len(before) == 1

    def test_what_comes_after_the_end_is_no_part_of_it(self) -> None:
        log = EventLog(EventLogs())
        log.end(end(0))
        log.add(delta(1))
        log.extend(delta(2), ["x"])
        assert log.after(None) == [end(0)]

    def test_an_error_is_not_the_end(self) -> None:
        log = EventLog(EventLogs())
        log.add(ErrorEvent(sequence_number=0, status=400, error=ErrorDetail(message="no")))
        assert not log.ended

    def test_a_listener_is_told_of_all_that_comes_and_of_the_drop(self) -> None:
        told: list[int] = []
        log = EventLog(EventLogs())
        log.listen(lambda: told.append(len(log.after(None))))
        log.add(delta(0))
        log.extend(delta(1), ["x", "x"])
        log.end(end(3))
        log.drop()
        log.drop()
        assert told == [1, 3, 4, 0]

    def test_who_has_left_is_told_no_more_and_what_comes_is_kept_all_the_same(self) -> None:
        told: list[str] = []
        log = EventLog(EventLogs())
        leaves, stays = (lambda: told.append("one")), (lambda: told.append("other"))
        log.listen(leaves)
        log.listen(stays)
        log.add(delta(0))
        log.unlisten(leaves)
        log.add(delta(1))
        log.unlisten(stays)
        log.add(delta(2))
        assert told == ["one", "other", "other"]
        assert log.after(None) == [delta(0), delta(1), delta(2)]

    def test_a_listener_that_comes_or_goes_late_opens_nothing_again(self) -> None:
        log = EventLog(EventLogs())
        log.end(end(0))
        log.listen(print)
        log.add(delta(1))
        log.unlisten(print)
        log.add(delta(1))
        assert log.after(None) == [end(0)]


class TestBounds:
    def test_what_is_dropped_is_gone_and_takes_nothing_more(self) -> None:
        logs = EventLogs()
        log = EventLog(logs)
        say(log, item(0))
        log.drop()
        log.add(delta(1))
        log.extend(delta(2), ["x"])
        assert (log.whole, log.after(None), log.size, logs.size) == (False, [], 0, 0)
        assert log.after(None) == log.after(0) == []

    def test_one_that_outgrows_its_bound_is_dropped_and_no_other(self) -> None:
        logs = EventLogs(each=10_000)
        other, log = ended_log(logs), EventLog(logs)
        say(log, item(0, 2000))
        assert log.whole
        say(log, item(1, 2000))
        assert not log.whole
        assert other.whole
        assert logs.size == other.size

    def test_one_that_outgrows_it_with_its_last_event_is_not_whole(self) -> None:
        logs = EventLogs(each=EVENT)
        log = EventLog(logs)
        log.add(delta(0))
        log.end(end(1))
        assert (log.whole, logs.size) == (False, 0)
        assert log.after(None) == []

    def test_where_all_are_too_many_the_oldest_that_has_ended_goes_first(self) -> None:
        size = 2 * EVENT + TEXT * 1000
        logs = EventLogs(most=3 * size + 1000)
        running = EventLog(logs)
        running.add(delta(0))
        ended = [ended_log(logs) for _ in range(3)]
        assert all(log.whole for log in ended)
        newest = ended_log(logs)
        assert [log.whole for log in ended] == [False, True, True]
        assert newest.whole
        say(running, item(1, 1100))
        assert [log.whole for log in ended] == [False, False, True]
        assert running.whole
        assert logs.size == sum(log.size for log in (running, newest, *ended)) <= 3 * size + 1000

    def test_where_none_has_ended_the_one_that_grows_goes(self) -> None:
        logs = EventLogs(most=10_000)
        first, second = EventLog(logs), EventLog(logs)
        say(first, item(0, 1500))
        say(second, item(0, 1500))
        assert (first.whole, second.whole) == (True, False)
        assert logs.size == first.size

    def test_many_small_events_count_too(self) -> None:
        logs = EventLogs(each=1000 * DELTA)
        log = EventLog(logs)
        for number in range(0, 2000, 10):
            log.extend(delta(number), ["x"] * 10)
            if log.whole:
                assert log.size >= DELTA * (number + 10) - LITTLE
        assert not log.whole

    @given(
        st.lists(
            st.tuples(st.integers(0, 3), st.sampled_from(["delta", "item", "end", "drop"])),
            max_size=60,
        )
    )
    def test_the_sum_of_all_is_always_right_and_within_its_bound(
        self, steps: list[tuple[int, str]]
    ) -> None:
        logs = EventLogs(each=6000, most=12_000)
        every = [EventLog(logs) for _ in range(4)]
        for which, what in steps:
            log = every[which]
            number = len(log.after(None))
            if what == "delta":
                log.extend(delta(number), ["x"] * 16)
            elif what == "drop":
                log.drop()
            elif what == "end":
                log.end(end(number))
            else:
                say(log, item(number, 300))
            assert logs.size == sum(each.size for each in every) <= 12_000
            assert all(each.size <= 6000 for each in every)
            assert all(each.whole or not each.after(None) for each in every)


class TestTurns:
    @pytest.mark.parametrize(
        "asked", [{}, {"resumable": False}, {"resumable": True}, {"idempotency_key": "k"}]
    )
    def test_events_are_kept_where_they_may_be_asked_for_again(self, asked: dict[str, str]) -> None:
        driver = Lockstep()
        turn = driver.create("hi", **asked)
        driver.answer(turn)
        log = driver.turns[turn].log
        wanted = asked.get("resumable", False) or "idempotency_key" in asked
        assert (log is not None) is wanted
        assert (driver.connection.logs.find("local", turn) is not None) is wanted
        if log is not None:
            assert log.after(None) == driver.audit.by_response[turn]
            assert isinstance(log.after(None)[0], ResponseCreated)

    def test_those_of_a_stored_response_are_written_down_as_well(self) -> None:
        driver = Lockstep()
        driver.create("hi", resumable=True, stream_id="a")
        stored = driver.create("hi", resumable=True, stream_id="b", store=True)
        assert driver.begun == [stored]

    def test_what_the_client_said_once_is_counted_with_the_events_that_echo_it(self) -> None:
        driver = Lockstep()
        driver.create("hi", resumable=True, instructions="x" * 100_000)
        assert driver.connection.logs.size > 100_000
        driver.drop()
        (turn,) = driver.outlived
        assert turn.log is not None
        turn.log.drop()
        assert driver.connection.logs.size == 0

    def test_a_refused_response_leaves_no_events(self) -> None:
        driver = Lockstep()
        turn = driver.create("hi", resumable=True)
        driver.fail(turn)
        assert driver.turns[turn].log is not None
        assert driver.connection.logs.size == 0


async def close(stage: Stage) -> None:
    """Ends the connection and the process."""
    await stage.driver.close()
    await stage.services.running.close()
    assert len(stage.services.running.logs) == 0
    assert stage.services.running.logs.size == 0


class TestReplayLogs:
    async def test_a_response_is_looked_at_as_it_stands_and_as_it_ended(self) -> None:
        stage = Stage(looker)
        stage.create(resumable=True, append=True)
        done = await stage.until(events.ResponseDone)
        kept = stage.kept(done.response.id)
        standing = kept.look()
        assert standing is not None
        assert (standing.status, len(standing.output)) == ("in_progress", 1)
        assert standing.usage is not None
        assert standing.usage.input_tokens == 3
        call = msgspec.json.decode(done.response.output[0])
        stage.driver.receive(append_of(output(call["call_id"])))
        last = await stage.until(events.ResponseCompleted)
        assert kept.look() == last.response
        await close(stage)

    async def test_before_its_first_event_there_is_nothing_to_look_at(self) -> None:
        stage = Stage(silent)
        stage.create(resumable=True)
        (turn,) = stage.driver.connection._lanes.turns()
        kept = stage.kept(turn.id)
        assert kept.look() is None
        await close(stage)

    async def test_one_whose_events_had_to_make_room_is_not_looked_at_here(self) -> None:
        stage = Stage(hello)
        stage.create(resumable=True)
        last = await stage.until(events.ResponseCompleted)
        kept = stage.kept(last.response.id)
        kept.drop()
        assert kept.look() is None
        await close(stage)

    async def test_what_has_ended_stays_for_the_window_and_then_goes_by_itself(self) -> None:
        stage = Stage(hello, limits=Limits(resume_window=0.02))
        gone = []
        for _ in range(3):
            stage.create(resumable=True)
            last = await stage.until(events.ResponseCompleted)
            kept = stage.kept(last.response.id)
            assert kept.whole
            gone.append(asyncio.Event())
            kept.listen(gone[-1].set)
        for event in gone:
            await asyncio.wait_for(event.wait(), 10)
        assert len(stage.services.running.logs) == 0
        assert stage.services.running.logs.size == 0
        await close(stage)

    async def test_only_what_has_ended_is_forgotten_and_only_by_its_owner(self) -> None:
        stage = Stage(looker)
        stage.create(resumable=True, append=True)
        done = await stage.until(events.ResponseDone)
        running = stage.services.running
        running.forget("local", done.response.id)
        assert running.logs.find("local", done.response.id) is not None
        assert running.logs.find("other", done.response.id) is None
        stage.driver.receive(Cancel())
        await stage.until(events.ResponseIncomplete)
        running.forget("other", done.response.id)
        assert running.logs.find("local", done.response.id) is not None
        running.forget("local", done.response.id)
        assert running.logs.find("local", done.response.id) is None
        await close(stage)

    async def test_a_response_runs_until_its_end_is_durable(self) -> None:
        store = Failing()
        stage = Stage(hello, store=store)
        stage.create(resumable=True, store=True)
        made = (await stage.until(events.ResponseCreated)).response
        store.gate.clear()
        done = await stage.until(events.OutputItemDone)
        await until(lambda: stage.engine.finished == 1)
        kept = stage.kept(made.id)
        standing = kept.look()
        assert standing is not None
        assert (standing.status, standing.completed_at) == ("in_progress", None)
        assert standing.output == [done.item]
        assert standing.usage is not None
        assert standing.usage.input_tokens == 3
        waiting = asyncio.create_task(ended(kept))
        await loop_turns()
        assert not waiting.done()
        store.gate.set()
        last = (await stage.until(events.ResponseCompleted)).response
        assert kept.look() == last
        await waiting
        await ended(kept)
        found = kept.find()
        assert found is not None
        assert found.input_from is None
        await stage.driver.close()
        await stage.services.running.close()


class TestChains:
    async def test_a_chain_that_waits_to_be_resumed_counts_and_goes_when_room_is_needed(
        self,
    ) -> None:
        stage = Stage(hello)
        stage.services = msgspec.structs.replace(stage.services, budget=Budget(total=5000))
        await stage.driver.close()
        stage.driver = stage.open()
        kept = stage.services.running.logs
        ids = []
        for _ in range(8):
            peer = stage.client()
            peer.create("x" * 1000, resumable=True)
            ids.append((await peer.until(events.ResponseCompleted)).response.id)
            assert stage.services.budget.size <= 5000
            await peer.driver.close()
        found = [kept.find("local", each) for each in ids]
        tips = [each.head for each in found if each is not None]
        assert len(tips) == len(ids)
        assert tips[0] is None
        assert tips[-1] is not None
        assert stage.services.budget.size > 1000
        await close(stage)
        assert stage.services.budget.size == 0

    async def test_one_that_moves_between_connections_counts_once_and_stays_until_its_window_ends(
        self,
    ) -> None:
        stage = Stage(hello)
        peer = stage.client()
        peer.create("x" * 1000, resumable=True)
        last = (await peer.until(events.ResponseCompleted)).response
        await peer.driver.close()
        budget = stage.services.budget
        size = budget.size
        assert size > 1000
        for _ in range(2):
            peer = stage.client()
            peer.resume(last.id, stream_id="a")
            await peer.until(events.ResponseCompleted)
            await loop_turns()
            assert peer.driver.connection.memory.find(last.id) is not None
            assert budget.size == size
            await peer.driver.close()
            assert budget.size == size
        kept = stage.kept(last.id)
        assert kept.head is not None
        stage.services.running.logs.forget("local", last.id)
        assert budget.size == 0
        await close(stage)

    @pytest.mark.parametrize("when", ["before its connection goes", "after its connection went"])
    async def test_nothing_is_left_of_a_chain_whose_turn_cannot_be_resumed_any_more(
        self, when: str
    ) -> None:
        stage = Stage(hello)
        peer = stage.client()
        peer.create("x" * 1000, resumable=True)
        last = (await peer.until(events.ResponseCompleted)).response
        kept = stage.kept(last.id)
        if when == "after its connection went":
            await peer.driver.close()
            assert stage.services.budget.size > 1000
        kept.drop()
        await peer.driver.close()
        assert kept.head is None
        assert stage.services.budget.size == 0
        await close(stage)

    async def test_one_that_its_lane_has_as_well_makes_room_all_the_same(self) -> None:
        stage = Stage(hello)
        stage.services = msgspec.structs.replace(stage.services, budget=Budget(total=5000))
        await stage.driver.close()
        stage.driver = stage.open()
        for number in range(8):
            stage.create("x" * 1000, resumable=True, stream_id=f"lane-{number}")
            await stage.until(events.ResponseCompleted)
        assert stage.services.budget.size <= 5000
        await close(stage)
        assert stage.services.budget.size == 0
