"""The events of a response that can be read again, and the bounds of them all."""

from itertools import pairwise

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
from tieline_server.core.event_log import DELTA, EVENT, LITTLE, TEXT, EventLog, EventLogs


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
        line = Lockstep()
        turn = line.create("hi", **asked)
        line.answer(turn)
        log = line.turns[turn].log
        wanted = asked.get("resumable", False) or "idempotency_key" in asked
        assert (log is not None) is wanted
        assert (line.line.kept.find("local", turn) is not None) is wanted
        if log is not None:
            assert log.after(None) == line.audit.by_response[turn]
            assert isinstance(log.after(None)[0], ResponseCreated)

    def test_those_of_a_stored_response_are_written_down_as_well(self) -> None:
        line = Lockstep()
        line.create("hi", resumable=True, stream_id="a")
        stored = line.create("hi", resumable=True, stream_id="b", store=True)
        assert line.begun == [stored]

    def test_what_the_client_said_once_is_counted_with_the_events_that_echo_it(self) -> None:
        line = Lockstep()
        line.create("hi", resumable=True, instructions="x" * 100_000)
        assert line.line.kept.size > 100_000
        line.drop()
        (turn,) = line.outlived
        assert turn.log is not None
        turn.log.drop()
        assert line.line.kept.size == 0

    def test_a_refused_response_leaves_no_events(self) -> None:
        line = Lockstep()
        turn = line.create("hi", resumable=True)
        line.fail(turn)
        assert line.turns[turn].log is not None
        assert line.line.kept.size == 0
