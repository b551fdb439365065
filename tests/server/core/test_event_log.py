"""The events of a response that can be read again, and the bounds of them all."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

from tests.support.core import Lockstep
from tieline.events import (
    ErrorDetail,
    ErrorEvent,
    Event,
    OutputItemDone,
    OutputTextDelta,
    ResponseCompleted,
    ResponseCreated,
)
from tieline.responses import Response
from tieline_server.core.event_log import EVENT, FEW, TEXT, EventLog, EventLogs


def delta(number: int, text: str = "x") -> Event:
    return OutputTextDelta(
        sequence_number=number, item_id="i", output_index=0, content_index=0, delta=text
    )


def item(number: int, size: int = 100) -> Event:
    raw = Raw(b'"' + b"x" * (size - 2) + b'"')
    return OutputItemDone(sequence_number=number, output_index=0, item=raw)


def end(number: int) -> Event:
    return ResponseCompleted(sequence_number=number, response=Response())


def ended_log(logs: EventLogs, size: int = 1000) -> EventLog:
    log = logs.open()
    log.add(item(0, size))
    log.add(end(1))
    return log


numbers = st.integers(0, 12)


class TestReading:
    @given(
        st.integers(0, 12), st.booleans(), st.none() | st.integers(0, 20), st.none() | st.just(3)
    )
    def test_a_reader_gets_what_lies_behind_what_it_has_seen(
        self, count: int, over: bool, after: int | None, most: int | None
    ) -> None:
        log = EventLogs().open()
        said = [delta(number) for number in range(count)]
        log.extend(said)
        if over:
            said.append(end(count))
            log.add(said[-1])
        behind = [each for each in said if after is None or (each.sequence_number or 0) > after]
        last = said[-1:] if over else []
        assert log.after(after, most) == (behind[:most] or last)
        assert log.ended is over

    def test_it_is_a_copy(self) -> None:
        log = EventLogs().open()
        log.add(delta(0))
        before = log.after(None)
        log.add(delta(1))
        assert len(before) == 1

    def test_what_comes_after_the_end_is_no_part_of_it(self) -> None:
        log = EventLogs().open()
        log.add(end(0))
        log.add(delta(1))
        log.extend([delta(2)])
        assert log.after(None) == [end(0)]

    def test_an_error_is_not_the_end(self) -> None:
        log = EventLogs().open()
        log.add(ErrorEvent(sequence_number=0, status=400, error=ErrorDetail(message="no")))
        assert not log.ended

    def test_a_listener_is_told_of_all_that_comes_and_of_the_drop(self) -> None:
        told: list[int] = []
        log = EventLogs().open()
        log.listen(lambda: told.append(len(log.events)))
        log.add(delta(0))
        log.extend([delta(1), delta(2)])
        log.add(end(3))
        log.drop()
        log.drop()
        assert told == [1, 3, 4, 0]


class TestBounds:
    def test_what_is_dropped_is_gone_and_takes_nothing_more(self) -> None:
        logs = EventLogs()
        log = logs.open()
        log.add(item(0))
        log.drop()
        log.add(delta(1))
        log.extend([delta(2)])
        assert (log.whole, log.events, log.size, logs.size) == (False, [], 0, 0)
        assert log.after(None) == log.after(0) == []

    def test_one_that_outgrows_its_bound_is_dropped_and_no_other(self) -> None:
        logs = EventLogs(each=10_000)
        other, log = ended_log(logs), logs.open()
        log.add(item(0, 2000))
        assert log.whole
        log.add(item(1, 2000))
        assert not log.whole
        assert other.whole
        assert logs.size == other.size

    def test_one_that_outgrows_it_with_its_last_event_is_not_whole(self) -> None:
        logs = EventLogs(each=EVENT)
        log = logs.open()
        log.add(delta(0))
        log.add(end(1))
        assert (log.whole, logs.size) == (False, 0)
        assert log.after(None) == []

    def test_where_all_are_too_many_the_oldest_that_has_ended_goes_first(self) -> None:
        size = 2 * EVENT + TEXT * 1000
        logs = EventLogs(most=3 * size)
        running = logs.open()
        running.add(delta(0))
        ended = [ended_log(logs) for _ in range(3)]
        assert all(log.whole for log in ended)
        newest = ended_log(logs)
        assert [log.whole for log in ended] == [False, True, True]
        assert newest.whole
        running.add(item(1, 1000))
        assert [log.whole for log in ended] == [False, False, True]
        assert running.whole
        assert logs.size == sum(log.size for log in (running, newest, *ended)) <= 3 * size

    def test_where_none_has_ended_the_one_that_grows_goes(self) -> None:
        logs = EventLogs(most=10_000)
        first, second = logs.open(), logs.open()
        first.add(item(0, 1500))
        second.add(item(0, 1500))
        assert (first.whole, second.whole) == (True, False)
        assert logs.size == first.size

    def test_many_small_events_count_too(self) -> None:
        logs = EventLogs(each=1000 * EVENT)
        log = logs.open()
        for number in range(0, 2000, 10):
            log.extend([delta(each) for each in range(number, number + 10)])
            if log.whole:
                assert log.size >= EVENT * (len(log.events) - FEW)
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
        every = [logs.open() for _ in range(4)]
        for which, what in steps:
            log = every[which]
            number = len(log.events)
            if what == "delta":
                log.extend([delta(number + at) for at in range(FEW + 1)][: FEW // 4])
            elif what == "drop":
                log.drop()
            else:
                log.add(end(number) if what == "end" else item(number, 300))
            assert logs.size == sum(each.size for each in every) <= 12_000
            assert all(each.size <= 6000 for each in every)
            assert all(each.whole or not each.events for each in every)


class TestTurns:
    @pytest.mark.parametrize(
        "asked", [{}, {"resumable": False}, {"resumable": True}, {"idempotency_key": "k"}]
    )
    def test_events_are_kept_where_they_may_be_asked_for_again(self, asked: dict[str, str]) -> None:
        line = Lockstep()
        turn = line.create("hi", **asked)
        line.answer(turn)
        log = line.turns[turn].log
        wanted = asked.get("resumable", False) or "idempotency_key" in asked
        assert (log is not None) is wanted
        assert line.begun == [turn] * bool(wanted)
        if log is not None:
            assert log.events == line.audit.by_response[turn]
            assert isinstance(log.events[0], ResponseCreated)

    def test_what_the_client_said_once_is_counted_with_the_events_that_echo_it(self) -> None:
        line = Lockstep()
        line.create("hi", resumable=True, instructions="x" * 100_000)
        assert line.line.logs.size > 100_000
        line.drop()
        (turn,) = line.outlived
        assert turn.log is not None
        turn.log.drop()
        assert line.line.logs.size == 0

    def test_a_refused_response_leaves_no_events(self) -> None:
        line = Lockstep()
        turn = line.create("hi", resumable=True)
        line.fail(turn)
        assert line.turns[turn].log is not None
        assert line.line.logs.size == 0
