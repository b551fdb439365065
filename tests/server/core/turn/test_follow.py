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
    """A connection on which a response has ended that can be read again."""
    driver = Lockstep(seed=5)
    response_id = driver.create(text, resumable=True, lane="theirs")
    driver.answer(response_id)
    log = driver.turns[response_id].log
    assert log is not None
    return driver, response_id, log.after(None)


def reader_of(driver: Lockstep) -> Turn:
    return driver.asking[driver.follows[-1].turn]


def drain_of(driver: Lockstep) -> list[Event]:
    taken = []
    while (event := driver.connection.outgoing.next()) is not None:
        taken.append(event)
    return taken


class TestResumes:
    def test_what_is_asked_for_is_said_to_the_driver(self) -> None:
        driver = Lockstep()
        driver.send("response.resume", response_id="resp_x", after=3, stream_id="a")
        (follow,) = driver.follows
        assert (follow.response_id, follow.after, follow.moves) == ("resp_x", 3, True)
        reader = driver.asking[follow.turn]
        assert (reader.id, reader.lane) == ("resp_x", "a")

    def test_events_pass_with_their_numbers_and_the_readers_lane(self) -> None:
        _, response_id, told = source()
        driver = Lockstep()
        driver.reading = False
        driver.send("response.resume", response_id=response_id, stream_id="mine")
        driver.connection.relayed(reader_of(driver), told[:3])
        driver.connection.relayed(reader_of(driver), told[3:])
        seen = drain_of(driver)
        assert seen == relaned(told, "mine")
        assert {event.stream_id for event in seen} == {"mine"}
        assert [event.sequence_number for event in seen] == list(range(len(told)))

    def test_with_its_chain_the_response_is_the_lanes_latest(self) -> None:
        theirs, response_id, told = source()
        driver = Lockstep()
        driver.send("response.resume", response_id=response_id)
        driver.connection.relayed(reader_of(driver), told)
        driver.connection.followed(reader_of(driver), theirs.connection.memory.latest("theirs"))
        driver.settle()
        assert driver.connection.find(response_id) is None
        turn = driver.create("more", previous_response_id=response_id)
        assert driver.context(turn) == ["user: hi", "assistant: ok", "user: more"]
        driver.answer(turn)
        driver.connection.memory.clear()
        assert driver.connection.memory.size == 0

    def test_a_cancel_of_what_could_not_be_read_is_not_late(self) -> None:
        driver = Lockstep()
        driver.send("response.resume", response_id="resp_x")
        driver.connection.lost(reader_of(driver), NOT_FOUND)
        driver.send("response.cancel", response_id="resp_x")
        assert driver.cancelled_sources == ["resp_x"]

    def test_a_reader_leaves_no_record(self) -> None:
        driver = Lockstep()
        driver.send("response.resume", response_id="resp_x")
        driver.connection.lost(reader_of(driver), NOT_FOUND)
        driver.settle()
        driver.drop()
        assert driver.records == []


class TestErrors:
    def test_what_cannot_be_read_is_an_error_of_the_request(self) -> None:
        driver = Lockstep()
        driver.send("response.resume", response_id="resp_x", event_id="e", stream_id="a")
        driver.connection.lost(reader_of(driver), NOT_FOUND)
        driver.settle()
        (error,) = driver.error_events
        assert (error.status, error.error.code, error.error.event_id) == (
            404,
            "response_not_found",
            "e",
        )
        assert (error.sequence_number, error.stream_id) == (0, "a")
        assert driver.create("the lane lives", lane="a") in driver.sampling

    def test_an_error_in_the_middle_has_the_responses_next_number(self) -> None:
        _, response_id, told = source()
        driver = Lockstep()
        driver.reading = False
        driver.send("response.resume", response_id=response_id)
        driver.connection.relayed(reader_of(driver), told[:3])
        driver.connection.lost(reader_of(driver), ApiError.of("not_resumable", "No."))
        driver.settle()
        *_, error = drain_of(driver)
        assert isinstance(error, events.ErrorEvent)
        assert error.sequence_number == 3

    def test_a_successors_numbers_begin_at_zero(self) -> None:
        _, response_id, told = source()
        driver = Lockstep()
        driver.reading = False
        driver.send("response.resume", response_id="resp_before")
        reader = reader_of(driver)
        driver.connection.relayed(reader, [replace(told[-1], sequence_number=70)])
        driver.connection.relayed(reader, told[:2])
        assert (reader.id, reader.outbox.count) == (response_id, 2)

    @pytest.mark.parametrize("how", ["drop", "drain"])
    def test_one_whose_connection_ends_stops_reading_and_cancels_nothing(self, how: str) -> None:
        driver = Lockstep()
        driver.send("response.resume", response_id="resp_x")
        if how == "drop":
            driver.drop()
        else:
            driver.drain(5.0)
            driver.wait(5.0)
            assert driver.errors == [("server_draining", None)]
        assert driver.stopped == [driver.follows[0].turn]
        assert driver.cancelled_sources == []
        assert driver.closed is not None
        assert reader_of(driver).ended

    def test_a_steer_or_an_event_too_late_is_no_harm(self) -> None:
        _, response_id, told = source()
        driver = Lockstep()
        driver.reading = False
        driver.send("response.resume", response_id=response_id)
        reader = reader_of(driver)
        driver.connection.lost(reader, NOT_FOUND)
        driver.settle()
        drain_of(driver)
        driver.connection.relayed(reader, told)
        driver.connection.followed(reader, None)
        driver.connection.lost(reader, NOT_FOUND)
        assert drain_of(driver) == []


class TestKeys:
    def test_a_second_create_of_a_key_reads_the_first_from_its_beginning(self) -> None:
        driver = Lockstep()
        first = driver.create("hi", lane="a", idempotency_key="k", timeout_ms=5000)
        assert driver.create("hi", lane="b", idempotency_key="k", timeout_ms=5000) != first
        (follow,) = driver.follows
        assert (follow.response_id, follow.after, follow.moves) == (first, None, False)
        driver.wait(4.0)
        assert driver.asking[follow.turn].expires_at is None, (
            "the response has a deadline, its reader has none"
        )
        assert len(driver.asked) == 1

    def test_a_create_sent_again_on_the_lane_of_its_held_turn_does_not_end_it(self) -> None:
        driver = Lockstep()
        first = driver.create("hi", append=True, idempotency_key="k")
        (call_id,) = driver.call(first)
        driver.create("hi", append=True, idempotency_key="k")
        assert driver.turns[first].state == "held"
        driver.append(output(call_id))
        driver.answer(first)
        (follow,) = driver.follows
        assert (follow.response_id, driver.turns[first].status) == (first, "completed")
        held = driver.create("hi", lane="b", append=True, idempotency_key="l")
        driver.call(held)
        driver.create("hi", lane="b", append=True, idempotency_key="m")
        assert driver.turns[held].reason == "superseded"

    def test_a_key_of_another_body_is_refused(self) -> None:
        driver = Lockstep()
        driver.create("hi", lane="a", idempotency_key="k")
        driver.create("other", lane="b", idempotency_key="k", event_id="e")
        (error,) = driver.error_events
        assert (error.status, error.error.code, error.error.param) == (
            409,
            "idempotency_conflict",
            "idempotency_key",
        )
        assert driver.follows == []
        assert driver.released == []

    def test_where_the_first_came_to_nothing_the_second_has_the_key(self) -> None:
        driver = Lockstep()
        first = driver.create("hi", lane="a", idempotency_key="k")
        own = driver.create("hi", lane="b", idempotency_key="k", timeout_ms=None)
        reader = reader_of(driver)
        driver.fail(first)
        assert driver.released == [(first, True)]
        driver.keys.clear()
        driver.connection.lost(reader, NOT_FOUND)
        driver.settle()
        assert (reader.id, reader.state, reader.reading) == (own, "starting", None)
        driver.turns[own] = reader
        driver.say(own, TEN, TextDelta("x"))
        assert driver.types(own)[:2] == ["created", "in_progress"]
        driver.answer(own)
        assert driver.record(own).outcome == "completed"
        assert driver.released[1:] == [(own, False)]
        assert words(reader.node) == ["user: hi", "assistant: xok"]

    def test_its_own_deadline_counts_from_its_create(self) -> None:
        driver = Lockstep()
        driver.create("hi", lane="a", idempotency_key="k", timeout_ms=9000)
        driver.create("hi", lane="b", idempotency_key="k", timeout_ms=9000)
        reader = reader_of(driver)
        driver.wait(3.0)
        driver.keys.clear()
        driver.connection.lost(reader, NOT_FOUND)
        driver.settle()
        assert reader.expires_at == driver.now - 3.0 + 9.0

    def test_a_key_that_is_never_freed_is_asked_for_a_few_times_only(self) -> None:
        driver = Lockstep()
        driver.create("hi", lane="a", idempotency_key="k")
        driver.create("hi", lane="b", idempotency_key="k")
        reader = reader_of(driver)
        for _ in range(10):
            driver.connection.lost(reader, NOT_FOUND)
            driver.settle()
        assert reader.ended
        assert driver.errors == [("server_error", None)], (
            "not what a create asks for: it may come again"
        )
        assert len(driver.claims) == 4, "the first's, and three"

    def test_one_that_has_heard_something_runs_nothing(self) -> None:
        driver = Lockstep()
        driver.reading = False
        first = driver.create("hi", lane="a", idempotency_key="k")
        driver.create("hi", lane="b", idempotency_key="k")
        reader = reader_of(driver)
        driver.say(first, TEN, TextDelta("x"))
        log = driver.turns[first].log
        assert log is not None
        driver.connection.relayed(reader, log.after(None))
        driver.connection.lost(reader, NOT_FOUND)
        driver.settle()
        assert reader.ended
        assert len(driver.asked) == 1


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
    driver = Lockstep(limits=Limits(connection_bytes=3000))
    driver.reading = False
    for number in range(6):
        theirs, response_id, told = source("x" * 1000)
        tip = theirs.connection.memory.latest("theirs")
        assert tip is not None
        driver.send("response.resume", response_id=response_id, stream_id=f"lane-{number}")
        driver.connection.relayed(reader_of(driver), told[-1:])
        driver.connection.followed(reader_of(driver), replace_id(tip, f"resp_{number}"))
        driver.settle()
        assert driver.connection.memory.size <= 3000
    assert driver.connection.memory.latest("lane-5") is not None, "the one that came last is kept"


def replace_id(tip: ChainHead, response_id: str) -> ChainHead:
    """The same chain as another response's."""
    return ChainHead(response_id, tip.node, owner=tip.owner, settings=tip.settings)
