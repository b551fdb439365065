"""Turns that change their connection: those that outlive theirs, and those that are resumed."""

from collections.abc import Callable
from functools import partial
from itertools import product
from typing import Any, get_args

import pytest

from tests.properties.test_core import ARGUMENTS
from tests.support import turn_states
from tests.support.core import TEN, Lockstep, output, user, words
from tieline import events
from tieline.errors import ApiError
from tieline_server.core.create.limits import Limits
from tieline_server.core.deltas import Finish, TextDelta
from tieline_server.core.tables import TurnInput, TurnState
from tieline_server.core.turn.turn import Turn


def line_of(**members: Any) -> Lockstep:
    """A connection with ids of its own."""
    return Lockstep(seed=2, **members)


def move(source: Lockstep, target: Lockstep, response_id: str, after: int | None = None) -> Turn:
    """The driver's part of a resume that the target has asked for."""
    turn = source.turns.pop(response_id)
    follow = target.follows.pop(0)
    source._at()
    target._at()
    assert source.connection.give(response_id) is turn
    target.connection.take(turn, target.asking[follow.turn], after)
    # It was asked for by the id of the response, which is the turn's own now.
    target.turns[response_id] = turn
    source.settle()
    target.reading = False
    target.settle()
    return turn


def seen(driver: Lockstep) -> list[events.Event]:
    """What a client reads now."""
    taken = []
    while (event := driver.connection.outgoing.next()) is not None:
        taken.append(event)
    return taken


def resumed(driver: Lockstep, response_id: str, **members: Any) -> None:
    """A resume whose response is not there yet."""
    driver.send("response.resume", response_id=response_id, **members)


def _waiting(driver: Lockstep) -> str:
    driver.create("first", lane="z")
    return driver.create("hi", resumable=True)


_loading = partial(turn_states.loading, resumable=True)
_starting = partial(turn_states.starting, resumable=True)
_sampling = partial(turn_states.sampling, resumable=True)
_steered = partial(turn_states.steered, resumable=True)
_held = partial(turn_states.held, resumable=True)
_saving = partial(turn_states.saving, resumable=True)

STATES: dict[TurnState, Callable[[Lockstep], str]] = {
    "loading": _loading,
    "waiting": _waiting,
    "starting": _starting,
    "sampling": _sampling,
    "steered": _steered,
    "held": _held,
    "saving": _saving,
}
PLACED = ("starting", "sampling", "steered")
states = pytest.mark.parametrize("state", STATES)


@states
def test_a_turn_takes_all_that_it_counts_for_with_it(state: TurnState) -> None:
    source, target = Lockstep(store_answers=False, limits=Limits(active=1)), line_of()
    response_id = STATES[state](source)
    held, placed = source.connection.memory.size, source.connection.admission._active
    resumed(target, response_id, stream_id="b")
    turn = move(source, target, response_id)
    # A place that becomes free is taken; one that was waited for is there at once.
    assert turn.state == ("starting" if state == "waiting" else state)
    assert (turn.host, turn.lane) == (target.connection, "b")
    assert turn not in source.connection.waiting
    assert turn not in target.connection.waiting
    assert target.connection.memory.size + source.connection.memory.size == held
    assert target.connection.admission._active == (turn.state in PLACED)
    assert source.connection.admission._active == placed - (state in PLACED)
    lane = target.connection._lanes.get("b")
    assert lane.current is turn
    assert lane.state == ("held" if state == "held" else "busy")
    assert source.connection.find(response_id) is None
    assert source.connection.memory.latest(None) is None


@states
def test_a_connection_that_is_dropped_leaves_its_turn_and_holds_nothing(state: TurnState) -> None:
    driver = Lockstep(store_answers=False, limits=Limits(active=1))
    response_id = STATES[state](driver)
    driver.drop()
    (turn,) = driver.outlived
    assert turn.id == response_id
    assert turn.state is state
    assert driver.connection.admission.idle
    assert driver.connection.memory.size == 0
    assert not driver.connection.waiting
    assert [each.response_id for each in driver.records].count(response_id) == 0
    shelter = line_of()
    shelter._at()
    shelter.connection.shelter(turn, 120.0)
    assert shelter.connection.state == "draining"
    assert turn.lane is None
    assert shelter.connection.next_deadline() is not None
    assert seen(shelter) == []


@states
def test_what_nobody_resumes_is_cancelled_and_its_shelter_closes(state: TurnState) -> None:
    driver, shelter = Lockstep(store_answers=False, limits=Limits(active=1)), line_of()
    response_id = STATES[state](driver)
    driver.drop()
    (turn,) = driver.outlived
    shelter.connection.shelter(turn, 120.0)
    shelter.turns[response_id] = turn
    shelter.settle()
    shelter.wait(119.0)
    assert shelter.closed is None
    shelter.wait(1.0)
    for _ in [*driver.saves, *shelter.saves]:
        shelter.connection.saved(turn, None)
        shelter.settle()
    assert shelter.closed is not None
    assert shelter.record(response_id).outcome == (
        "completed" if state == "saving" else "cancelled"
    )
    assert turn.log is not None
    assert turn.log.whole
    assert turn.log.after(None)[-1].TERMINAL
    shelter.connection.memory.clear()
    assert shelter.connection.memory.size == 0


class TestReaders:
    def test_a_moved_turn_repeats_what_was_missed_and_no_more(self) -> None:
        source, target = Lockstep(), line_of()
        response_id = _sampling(source)
        resumed(target, response_id, stream_id="b")
        move(source, target, response_id, after=2)
        target.say(response_id, TextDelta("y"), Finish())
        log = target.turns[response_id].log
        assert log is not None
        missed = seen(target)
        assert [event.sequence_number for event in missed] == list(range(3, len(log.after(None))))
        assert {event.stream_id for event in missed} == {"b"}

    def test_the_earlier_reader_gets_what_was_unsent_and_then_hears_why_no_more_comes(self) -> None:
        source, target = Lockstep(), line_of()
        source.reading = False
        response_id = source.create("hi", resumable=True, lane="a")
        source.say(response_id, TEN, TextDelta("x"))
        resumed(target, response_id)
        turn = move(source, target, response_id)
        *told, last = seen(source)
        assert isinstance(last, events.ErrorEvent)
        assert (last.status, last.error.code) == (409, "resumed_elsewhere")
        assert (last.sequence_number, last.stream_id) == (turn.outbox.count, "a")
        assert [each.sequence_number for each in told] == list(range(turn.outbox.count))
        target.say(response_id, TextDelta("y"))
        assert seen(source) == []

    def test_its_lane_goes_on_with_what_waits_there(self) -> None:
        source, target = Lockstep(), line_of()
        response_id = source.create("hi", resumable=True)
        behind = source.create("next")
        resumed(target, response_id)
        move(source, target, response_id)
        assert source.sampling == [behind]

    def test_a_kept_event_never_joins_another(self) -> None:
        driver = Lockstep(merge=True, limits=Limits(merge_from=2))
        driver.reading = False
        response_id = driver.create("hi", resumable=True)
        driver.say(response_id, TEN, *[TextDelta("x")] * 50)
        log = driver.turns[response_id].log
        assert log is not None
        assert seen(driver) == log.after(None)
        assert sum(isinstance(each, events.OutputTextDelta) for each in log.after(None)) == 50


class TestTimes:
    def test_a_deadline_goes_along(self) -> None:
        source, target = Lockstep(), line_of()
        response_id = source.create("hi", resumable=True, timeout_ms=5000)
        source.wait(3.0)
        target.wait(3.0)
        resumed(target, response_id)
        turn = move(source, target, response_id)
        target.wait(1.9)
        assert turn.state == "starting"
        target.wait(0.1)
        assert (turn.status, turn.reason) == ("incomplete", "deadline")

    def test_a_held_turn_waits_no_longer_for_having_moved(self) -> None:
        limits = Limits(held_timeout=50.0)
        source, target = Lockstep(limits=limits), line_of(limits=limits)
        response_id = _held(source)
        source.wait(40.0)
        target.wait(40.0)
        resumed(target, response_id)
        turn = move(source, target, response_id)
        assert target.connection.next_deadline() == turn.wake_at
        target.wait(10.0)
        assert (turn.status, turn.reason) == ("incomplete", "held_timeout")

    def test_what_is_resumed_from_a_shelter_is_not_cut_by_its_window(self) -> None:
        driver, shelter, target = Lockstep(), line_of(), Lockstep(seed=3)
        response_id = _starting(driver)
        driver.drop()
        (turn,) = driver.outlived
        shelter.connection.shelter(turn, 120.0)
        shelter.turns[response_id] = turn
        resumed(target, response_id)
        move(shelter, target, response_id)
        assert shelter.closed is not None
        target.wait(500.0)
        assert turn.state == "starting"

    def test_a_process_that_stops_hurries_a_shelter(self) -> None:
        driver, shelter = Lockstep(), line_of()
        _starting(driver)
        driver.drop()
        (turn,) = driver.outlived
        shelter.connection.shelter(turn, None)
        assert shelter.connection._cut_at is None
        shelter._at()
        shelter.connection.hurry(5.0)
        shelter.reading = False
        shelter.wait(5.0)
        assert (turn.status, turn.reason) == ("incomplete", "server_draining")


class TestEnds:
    def test_of_several_lanes_those_outlive_that_can(self) -> None:
        driver = Lockstep()
        kept = driver.create("hi", lane="a", resumable=True)
        behind = driver.create("hi", lane="a", resumable=True)
        plain = driver.create("hi", lane="b")
        driver.drop()
        assert [turn.id for turn in driver.outlived] == [kept]
        assert {each.response_id: each.outcome for each in driver.records} == {
            plain: "disconnected",
            behind: "disconnected",
        }
        assert driver.stopped == [plain]

    def test_a_client_that_says_goodbye_leaves_its_held_turn_and_its_connection_closes(
        self,
    ) -> None:
        driver = Lockstep()
        _held(driver)
        driver.half_close()
        (turn,) = driver.outlived
        assert turn.state == "held"
        assert driver.closed is not None

    @pytest.mark.parametrize("how", ["drain", "age"])
    def test_a_held_turn_keeps_a_connection_that_was_told_goodbye_until_its_time(
        self, how: str
    ) -> None:
        driver = Lockstep()
        response_id = _held(driver)
        getattr(driver, how)()
        assert driver.closed is None
        driver.wait(901.0)
        assert driver.closed is not None
        assert driver.record(response_id).outcome == "incomplete"

    def test_a_turn_whose_log_was_dropped_ends_with_its_connection(self) -> None:
        driver = Lockstep()
        response_id = _starting(driver)
        log = driver.turns[response_id].log
        assert log is not None
        log.drop()
        driver.drop()
        assert driver.outlived == []
        assert driver.record(response_id).outcome == "disconnected"

    def test_a_steered_turn_that_moved_goes_on_in_a_successor_there(self) -> None:
        source, target = Lockstep(), line_of()
        response_id = _steered(source)
        resumed(target, response_id, stream_id="b")
        move(source, target, response_id)
        target.say(response_id, Finish())
        (successor,) = target.connection._lanes.turns()
        assert (successor.succeeds, successor.lane) == (response_id, "b")
        assert successor.log is not None, "it can be resumed as well"
        assert words(successor.node) == ["user: hi", "assistant: x", "user: shorter"]


class TestParked:
    """What is asked of a lane to which a response is on its way is meant for that response."""

    def test_an_append_behind_a_resume_answers_the_turn_that_comes(self) -> None:
        source, target = Lockstep(), line_of()
        response_id = source.create("hi", resumable=True, append=True)
        (call_id,) = source.call(response_id)
        resumed(target, response_id)
        target.append(output(call_id), response_id=response_id)
        assert target.errors == []
        turn = move(source, target, response_id)
        assert turn.state == "starting"
        assert words(turn.node) == ["user: hi", "call look", "output done"]

    def test_a_create_behind_a_resume_supersedes_a_held_turn_that_comes(self) -> None:
        source, target = Lockstep(), line_of()
        response_id = _held(source)
        resumed(target, response_id)
        assert target.create("next") == ""
        turn = move(source, target, response_id)
        assert (turn.status, turn.reason) == ("incomplete", "superseded")
        (current,) = target.connection._lanes.turns()
        assert current.state == "starting"

    def test_requests_keep_their_order(self) -> None:
        source, target = Lockstep(), line_of()
        response_id = _sampling(source)
        resumed(target, response_id)
        target.create("one", event_id="1")
        target.create("two", event_id="2")
        move(source, target, response_id)
        waiting = list(target.connection._lanes.turns())[1:]
        assert [turn.request.event_id for turn in waiting] == ["1", "2"]

    def test_where_nothing_comes_they_are_taken_as_they_are(self) -> None:
        target = Lockstep()
        resumed(target, "resp_x")
        target.create("one")
        target.append(user("two"))
        (follow,) = target.follows
        target._at()
        target.connection.lost(target.asking[follow.turn], ApiError.of("response_not_found", "No."))
        target.settle()
        (first,) = target.sampling
        target.answer(first)
        (second,) = target.sampling
        assert target.context(second) == ["user: one", "assistant: ok", "user: two"]

    def test_one_of_them_is_cancelled_by_its_event(self) -> None:
        target = Lockstep()
        resumed(target, "resp_x")
        target.create("one", event_id="e")
        target.cancel(event_id="e")
        assert target.errors == []
        (follow,) = target.follows
        target._at()
        target.connection.lost(target.asking[follow.turn], ApiError.of("response_not_found", "No."))
        target.settle()
        assert [each.outcome for each in target.records] == ["cancelled"]
        assert target.sampling == []

    def test_they_count_among_what_waits(self) -> None:
        target = Lockstep(limits=Limits(queue=2))
        resumed(target, "resp_x")
        for _ in range(3):
            target.create("hi")
        assert [code for code, _ in target.errors] == ["queue_full"]
        big = Lockstep(limits=Limits(queue_bytes=1000))
        resumed(big, "resp_x")
        big.create("x" * 900)
        big.create("x" * 900)
        assert [code for code, _ in big.errors] == ["queue_full"]

    def test_nothing_of_them_is_left_on_a_connection_that_is_dropped(self) -> None:
        target = Lockstep()
        resumed(target, "resp_x")
        target.create("hi")
        target.drop()
        assert target.records == []
        assert target.closed is not None

    def test_a_drain_at_its_deadline_begins_none_of_them(self) -> None:
        target = Lockstep()
        resumed(target, "resp_x")
        target.create("hi")
        target.drain(5.0)
        target.wait(5.0)
        assert target.records == []
        assert [code for code, _ in target.errors] == ["server_draining"] * 2
        assert target.closed is not None


@pytest.mark.parametrize(("state", "what"), list(product(STATES, get_args(TurnInput))))
def test_a_sheltered_turn_takes_every_input_in_every_state(
    state: TurnState, what: TurnInput
) -> None:
    driver, shelter = Lockstep(store_answers=False, limits=Limits(active=1)), line_of()
    response_id = STATES[state](driver)
    driver.drop()
    (turn,) = driver.outlived
    shelter.kept = driver.kept
    shelter.connection.shelter(turn, 120.0)
    shelter.turns[response_id] = turn
    shelter.settle()
    turn.handle(what, *ARGUMENTS[what])
    shelter.connection._follow(turn)
    shelter.settle()
    running = [each for each in shelter.connection._lanes.turns() if each.placed]
    assert shelter.connection.admission._active == len(running)
    shelter.wait(120.0)
    for _ in driver.saves:
        shelter.connection.saved(turn, None)
        shelter.settle()
    assert turn.ended
    assert shelter.closed is not None
    assert shelter.connection.admission.idle
    over = shelter.record(response_id).outcome
    assert turn.log is not None
    assert turn.log.whole is turn.log.ended is (over not in ("refused", "disconnected"))
    shelter.connection.memory.clear()
    assert shelter.connection.memory.size == 0
    assert seen(shelter) == []
