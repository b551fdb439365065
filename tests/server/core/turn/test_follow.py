"""Turns that have no response of their own: they read another one's events."""

import pytest
from msgspec import UNSET
from msgspec.structs import replace

from tests.support.core import TEN, Lockstep, output, words
from tieline import events
from tieline.errors import ApiError
from tieline.events import Event
from tieline_server.core.create.limits import Limits
from tieline_server.core.deltas import TextDelta
from tieline_server.core.history.chain import ChainHead
from tieline_server.core.turn.follow import relaned
from tieline_server.core.turn.turn import Turn

NOT_FOUND = ApiError.of("response_not_found", "No.")


def source(text: str = "hi") -> tuple[Lockstep, str, list[Event]]:
    """A line on which a response has ended that can be read again."""
    line = Lockstep(seed=5)
    response_id = line.create(text, resumable=True, lane="theirs")
    line.answer(response_id)
    log = line.turns[response_id].log
    assert log is not None
    return line, response_id, log.after(None)


def reader_of(line: Lockstep) -> Turn:
    return line.asking[line.follows[-1].turn]


def drain_of(line: Lockstep) -> list[Event]:
    taken = []
    while (event := line.line.outgoing.next()) is not None:
        taken.append(event)
    return taken


class TestResumes:
    def test_what_is_asked_for_is_said_to_the_driver(self) -> None:
        line = Lockstep()
        line.send("response.resume", response_id="resp_x", after=3, stream_id="a")
        (follow,) = line.follows
        assert (follow.response_id, follow.after, follow.moves) == ("resp_x", 3, True)
        reader = line.asking[follow.turn]
        assert (reader.id, reader.lane) == ("resp_x", "a")

    def test_events_pass_with_their_numbers_and_the_readers_lane(self) -> None:
        _, response_id, told = source()
        line = Lockstep()
        line.reading = False
        line.send("response.resume", response_id=response_id, stream_id="mine")
        line.line.relayed(reader_of(line), told[:3])
        line.line.relayed(reader_of(line), told[3:])
        seen = drain_of(line)
        assert seen == relaned(told, "mine")
        assert {event.stream_id for event in seen} == {"mine"}
        assert [event.sequence_number for event in seen] == list(range(len(told)))

    def test_with_its_chain_the_response_is_the_lanes_latest(self) -> None:
        theirs, response_id, told = source()
        line = Lockstep()
        line.send("response.resume", response_id=response_id)
        line.line.relayed(reader_of(line), told)
        line.line.followed(reader_of(line), theirs.line.memory.latest("theirs"))
        line.settle()
        assert line.line.find(response_id) is None
        turn = line.create("more", previous_response_id=response_id)
        assert line.context(turn) == ["user: hi", "assistant: ok", "user: more"]
        line.answer(turn)
        line.line.memory.clear()
        assert line.line.memory.size == 0

    def test_a_cancel_of_what_could_not_be_read_is_not_late(self) -> None:
        line = Lockstep()
        line.send("response.resume", response_id="resp_x")
        line.line.lost(reader_of(line), NOT_FOUND)
        line.send("response.cancel", response_id="resp_x")
        assert line.cancelled_sources == ["resp_x"]

    def test_a_reader_leaves_no_record(self) -> None:
        line = Lockstep()
        line.send("response.resume", response_id="resp_x")
        line.line.lost(reader_of(line), NOT_FOUND)
        line.settle()
        line.drop()
        assert line.records == []


class TestErrors:
    def test_what_cannot_be_read_is_an_error_of_the_request(self) -> None:
        line = Lockstep()
        line.send("response.resume", response_id="resp_x", event_id="e", stream_id="a")
        line.line.lost(reader_of(line), NOT_FOUND)
        line.settle()
        (error,) = line.error_events
        assert (error.status, error.error.code, error.error.event_id) == (
            404,
            "response_not_found",
            "e",
        )
        assert (error.sequence_number, error.stream_id) == (0, "a")
        assert line.create("the lane lives", lane="a") in line.sampling

    def test_an_error_in_the_middle_has_the_responses_next_number(self) -> None:
        _, response_id, told = source()
        line = Lockstep()
        line.reading = False
        line.send("response.resume", response_id=response_id)
        line.line.relayed(reader_of(line), told[:3])
        line.line.lost(reader_of(line), ApiError.of("not_resumable", "No."))
        line.settle()
        *_, error = drain_of(line)
        assert isinstance(error, events.ErrorEvent)
        assert error.sequence_number == 3

    def test_a_successors_numbers_begin_at_zero(self) -> None:
        _, response_id, told = source()
        line = Lockstep()
        line.reading = False
        line.send("response.resume", response_id="resp_before")
        reader = reader_of(line)
        line.line.relayed(reader, [replace(told[-1], sequence_number=70)])
        line.line.relayed(reader, told[:2])
        assert (reader.id, reader.outbox.count) == (response_id, 2)

    @pytest.mark.parametrize("how", ["drop", "drain"])
    def test_one_whose_line_ends_stops_reading_and_cancels_nothing(self, how: str) -> None:
        line = Lockstep()
        line.send("response.resume", response_id="resp_x")
        if how == "drop":
            line.drop()
        else:
            line.drain(5.0)
            line.wait(5.0)
            assert line.errors == [("server_draining", None)]
        assert line.stopped == [line.follows[0].turn]
        assert line.cancelled_sources == []
        assert line.closed is not None
        assert reader_of(line).ended

    def test_a_steer_or_an_event_too_late_is_no_harm(self) -> None:
        _, response_id, told = source()
        line = Lockstep()
        line.reading = False
        line.send("response.resume", response_id=response_id)
        reader = reader_of(line)
        line.line.lost(reader, NOT_FOUND)
        line.settle()
        drain_of(line)
        line.line.relayed(reader, told)
        line.line.followed(reader, None)
        line.line.lost(reader, NOT_FOUND)
        assert drain_of(line) == []


class TestKeys:
    def test_a_second_create_of_a_key_reads_the_first_from_its_beginning(self) -> None:
        line = Lockstep()
        first = line.create("hi", lane="a", idempotency_key="k", timeout_ms=5000)
        assert line.create("hi", lane="b", idempotency_key="k", timeout_ms=5000) != first
        (follow,) = line.follows
        assert (follow.response_id, follow.after, follow.moves) == (first, None, False)
        line.wait(4.0)
        assert line.asking[follow.turn].expires_at is None, (
            "the response has a deadline, its reader has none"
        )
        assert len(line.asked) == 1

    def test_a_create_sent_again_on_the_lane_of_its_held_turn_does_not_end_it(self) -> None:
        line = Lockstep()
        first = line.create("hi", append=True, idempotency_key="k")
        (call_id,) = line.call(first)
        line.create("hi", append=True, idempotency_key="k")
        assert line.turns[first].state == "held"
        line.append(output(call_id))
        line.answer(first)
        (follow,) = line.follows
        assert (follow.response_id, line.turns[first].status) == (first, "completed")
        held = line.create("hi", lane="b", append=True, idempotency_key="l")
        line.call(held)
        line.create("hi", lane="b", append=True, idempotency_key="m")
        assert line.turns[held].reason == "superseded"

    def test_a_key_of_another_body_is_refused(self) -> None:
        line = Lockstep()
        line.create("hi", lane="a", idempotency_key="k")
        line.create("other", lane="b", idempotency_key="k", event_id="e")
        (error,) = line.error_events
        assert (error.status, error.error.code, error.error.param) == (
            409,
            "idempotency_conflict",
            "idempotency_key",
        )
        assert line.follows == []
        assert line.released == []

    def test_where_the_first_came_to_nothing_the_second_has_the_key(self) -> None:
        line = Lockstep()
        first = line.create("hi", lane="a", idempotency_key="k")
        own = line.create("hi", lane="b", idempotency_key="k", timeout_ms=None)
        reader = reader_of(line)
        line.fail(first)
        assert line.released == [(first, True)]
        line.keys.clear()
        line.line.lost(reader, NOT_FOUND)
        line.settle()
        assert (reader.id, reader.state, reader.reading) == (own, "starting", None)
        line.turns[own] = reader
        line.say(own, TEN, TextDelta("x"))
        assert line.types(own)[:2] == ["created", "in_progress"]
        line.answer(own)
        assert line.record(own).outcome == "completed"
        assert line.released[1:] == [(own, False)]
        assert words(reader.node) == ["user: hi", "assistant: xok"]

    def test_its_own_deadline_counts_from_its_create(self) -> None:
        line = Lockstep()
        line.create("hi", lane="a", idempotency_key="k", timeout_ms=9000)
        line.create("hi", lane="b", idempotency_key="k", timeout_ms=9000)
        reader = reader_of(line)
        line.wait(3.0)
        line.keys.clear()
        line.line.lost(reader, NOT_FOUND)
        line.settle()
        assert reader.expires_at == line.now - 3.0 + 9.0

    def test_a_key_that_is_never_freed_is_asked_for_a_few_times_only(self) -> None:
        line = Lockstep()
        line.create("hi", lane="a", idempotency_key="k")
        line.create("hi", lane="b", idempotency_key="k")
        reader = reader_of(line)
        for _ in range(10):
            line.line.lost(reader, NOT_FOUND)
            line.settle()
        assert reader.ended
        assert line.errors == [("server_error", None)], (
            "not what a create asks for: it may come again"
        )
        assert len(line.claims) == 4, "the first's, and three"

    def test_one_that_has_heard_something_runs_nothing(self) -> None:
        line = Lockstep()
        line.reading = False
        first = line.create("hi", lane="a", idempotency_key="k")
        line.create("hi", lane="b", idempotency_key="k")
        reader = reader_of(line)
        line.say(first, TEN, TextDelta("x"))
        log = line.turns[first].log
        assert log is not None
        line.line.relayed(reader, log.after(None))
        line.line.lost(reader, NOT_FOUND)
        line.settle()
        assert reader.ended
        assert len(line.asked) == 1


def test_only_the_lane_of_an_event_changes_for_its_reader() -> None:
    _, _, told = source()
    for lane in (None, "a", "theirs"):
        seen = relaned(told, lane)
        assert [replace(each, stream_id=UNSET) for each in seen] == [
            replace(each, stream_id=UNSET) for each in told
        ]
        assert {each.stream_id for each in seen} == {UNSET if lane is None else lane}
    assert all(each is same for each, same in zip(told, relaned(told, "theirs"), strict=True))


def test_a_chain_that_comes_with_a_response_is_bounded_like_any_other() -> None:
    line = Lockstep(limits=Limits(connection_bytes=3000))
    line.reading = False
    for number in range(6):
        theirs, response_id, told = source("x" * 1000)
        tip = theirs.line.memory.latest("theirs")
        assert tip is not None
        line.send("response.resume", response_id=response_id, stream_id=f"lane-{number}")
        line.line.relayed(reader_of(line), told[-1:])
        line.line.followed(reader_of(line), replace_id(tip, f"resp_{number}"))
        line.settle()
        assert line.line.memory.size <= 3000
    assert line.line.memory.latest("lane-5") is not None, "the one that came last is kept"


def replace_id(tip: ChainHead, response_id: str) -> ChainHead:
    """The same chain as another response's."""
    return ChainHead(response_id, tip.node, owner=tip.owner, settings=tip.settings)
