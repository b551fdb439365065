"""Steers that outlive their response: of which lane and with which settings they go on."""

from collections.abc import Callable
from typing import Any, Final

import pytest

from tests.support.core import LOCAL, MODEL, TEN, Lockstep, output
from tieline import events
from tieline.errors import ApiError
from tieline_server.core.connection.pending_steers import WAITING
from tieline_server.core.create.limits import Limits, Share
from tieline_server.core.deltas import CallDelta, CallStart, Finish, ItemEnd, TextDelta
from tieline_server.core.values import Principal

LOOK = CallStart(kind="function_call", name="look")


def waiting(line: Lockstep) -> str:
    """A response whose steer waits for the output of its call."""
    turn = line.create("go")
    line.say(turn, TEN, LOOK, CallDelta("{}"))
    line.steer(turn)
    line.say(turn, Finish())
    return turn


def test_of_calls_that_are_never_answered_only_the_latest_are_kept() -> None:
    line = Lockstep()
    turns = [waiting(line) for _ in range(WAITING + 44)]
    succession = line.line._succession
    assert len(succession._waiting) == WAITING
    assert succession.take(turns[0]) == ()
    assert succession.take(turns[-1]) != ()
    assert succession.take(turns[-1]) == ()


def running(line: Lockstep, *, principal: Principal = LOCAL, **members: Any) -> str:
    """A response that says something."""
    body = {"model": MODEL, "store": False, "input": "go", **members}
    turn = line.send("response.create", principal=principal, **body)
    line.say(turn, TEN, TextDelta("x"))
    return turn


def refusal(line: Lockstep) -> str:
    """The code of the one steer that was refused."""
    (failed,) = line.loose(events.SteerFailed)
    assert isinstance(failed, events.SteerFailed)
    assert failed.error.code is not None
    return failed.error.code


def _steered(line: Lockstep, **members: Any) -> str:
    turn = running(line, **members)
    line.steer(turn)
    assert line.line.queued.taken > 0
    return turn


def _followed(line: Lockstep) -> None:
    line.say(_steered(line), Finish())
    assert len(line.asked) == 2


def _failed(line: Lockstep) -> None:
    line.fail(_steered(line))


def _cancelled(line: Lockstep) -> None:
    line.cancel(response_id=_steered(line))


def _dropped(line: Lockstep) -> None:
    _steered(line)
    line.drop()
    assert line.line.queued.taken == 0


def _dropped_while_it_is_saved(line: Lockstep) -> None:
    line.say(_steered(line, store=True), Finish())
    line.drop()
    assert line.line.queued.taken > 0
    line.saved(line.saves.pop())
    assert line.line.queued.taken == 0


def _not_saved(line: Lockstep) -> None:
    line.say(_steered(line, store=True), Finish())
    line.saved(line.saves.pop(), ApiError.of("server_error", "No."))
    assert line.line.queued.taken == 0


def _drained(line: Lockstep) -> None:
    turn = _steered(line)
    line.drain(1.0)
    line.wait(2.0)
    assert line.types(turn)[-1] == "steer.failed"


def _left_waiting(line: Lockstep) -> None:
    waiting(line)
    line.half_close()
    assert line.closed is not None


def _held_and_answered(line: Lockstep) -> None:
    turn = line.create("go", append=True)
    (call,) = line.call(turn)
    line.steer(turn)
    assert line.line.queued.taken > 0
    line.append(output(call))
    assert line.context(turn)[-1] == "user: shorter"


def _superseded(line: Lockstep) -> None:
    turn = line.create("go", append=True)
    (call,) = line.call(turn)
    line.steer(turn)
    line.create([output(call)], previous_response_id=turn)
    assert line.context(line.asked[-1].turn)[-1] == "user: shorter"


def _taken_by_a_create_that_is_dropped(line: Lockstep) -> None:
    turn = waiting(line)
    line.create("busy", lane="b")
    line.create("waits", previous_response_id=turn, lane="b")
    line.drop()


ENDS: Final[dict[str, Callable[[Lockstep], None]]] = {
    "followed": _followed,
    "failed": _failed,
    "cancelled": _cancelled,
    "dropped": _dropped,
    "dropped while it is saved": _dropped_while_it_is_saved,
    "not saved": _not_saved,
    "drained": _drained,
    "left waiting": _left_waiting,
    "held and answered": _held_and_answered,
    "superseded": _superseded,
    "taken by a create that is dropped": _taken_by_a_create_that_is_dropped,
}
"""How what a steer says ends, or comes into a chain."""


def takes(line: Lockstep, turn: str, size: int) -> bool:
    """Whether a steer of so many letters finds room."""
    before = line.types(turn).count("steer.accepted")
    line.steer(turn, "x" * size)
    return line.types(turn).count("steer.accepted") > before


def test_the_bytes_of_all_steers_that_wait_on_a_line_are_bounded() -> None:
    """Whether their response runs, has ended, or a create has taken them and waits itself."""
    line = Lockstep(limits=Limits(queue_bytes=2000))
    busy = line.create("go", lane="b")
    line.say(busy, TEN, TextDelta("x"))
    turn = waiting(line)
    (call,) = line.turns[turn].node.open_calls  # type: ignore[union-attr]
    assert not takes(line, busy, 2000)
    assert takes(line, busy, 1200)
    assert not takes(line, busy, 300)
    follower = line.create([output(call)], previous_response_id=turn, lane="b")
    assert not takes(line, busy, 300)
    line.cancel(stream_id="b")
    line.say(follower, TEN, TextDelta("x"))
    assert takes(line, follower, 1500)


class TestWhatWaitsOnAllConnections:
    """Steers count with the requests that wait, against their owner and the whole."""

    def test_an_owner_has_a_bound_over_all_lines_and_another_owner_is_served(self) -> None:
        queued = Share(each=3000)
        lines = [Lockstep(queued=queued, seed=seed) for seed in range(3)]
        turns = [running(line) for line in lines]
        taken = [takes(*each, 1000) for each in zip(lines, turns, strict=True)]
        assert taken == [True, True, False]
        assert refusal(lines[2]) == "too_many_pending_steers"
        other = Lockstep(queued=queued, seed=4)
        theirs = running(other, principal=Principal(owner="other"))
        assert takes(other, theirs, 1000)
        lines[0].drop()
        assert takes(lines[2], turns[2], 1000)

    def test_past_the_bound_of_all_owners_the_server_is_overloaded(self) -> None:
        queued = Share(total=3000)
        assert queued.take("other", 2000)
        line = Lockstep(queued=queued)
        turn = running(line)
        assert not takes(line, turn, 1000)
        assert refusal(line) == "server_is_overloaded"

    def test_requests_and_steers_have_one_bound(self) -> None:
        line = Lockstep(queued=Share(each=5000))
        turn = running(line)
        assert line.create("waits") != ""
        assert not takes(line, turn, 1000)
        assert takes(line, turn, 100)
        assert line.create("waits", lane="b") != "", "what need not wait is served"

    @pytest.mark.parametrize("end", ENDS)
    def test_however_a_steer_ends_nothing_is_counted_any_more(self, end: str) -> None:
        line = Lockstep(store_answers=False)
        ENDS[end](line)
        line.check()
        line.line.let_go()
        assert line.line.queued.taken == 0

    def test_of_those_that_are_kept_no_more_nothing_is_counted(self) -> None:
        line = Lockstep()
        for _ in range(WAITING):
            waiting(line)
        before = line.line.queued.taken
        waiting(line)
        assert line.line.queued.taken == before > 0

    def test_what_an_engine_refused_to_take_waits_again_whatever_the_bound(self) -> None:
        queued = Share(each=1000)
        line = Lockstep(queued=queued)
        turn = waiting(line)
        (call,) = line.turns[turn].node.open_calls  # type: ignore[union-attr]
        again = line.create([output(call)], previous_response_id=turn)
        assert queued.taken == 0, "its chain has it"
        assert queued.take("local", 900)
        line.fail(again)
        assert queued.taken > 1000
        assert line.line._succession.take(turn) != ()
        assert queued.taken == 900


def test_a_successor_has_the_settings_and_the_lane_of_the_one_before() -> None:
    line = Lockstep()
    turn = line.create("go", lane="a", temperature=0.5, instructions="be brief", timeout_ms=9000)
    line.say(turn, TEN, TextDelta("x"))
    line.steer(turn)
    line.say(turn, ItemEnd(), TextDelta("never"))
    after = line.asking[line.asked[-1].turn]
    assert after.id != turn
    assert after.succeeds == turn
    assert (after.lane, after.follows) == ("a", turn)
    assert after.settings is not None
    assert after.settings.temperature == 0.5
    assert after.settings.instructions == "be brief"
    assert after.settings.timeout_ms is None


def test_on_a_line_that_is_gone_nothing_goes_on() -> None:
    line = Lockstep()
    turn = line.create("go")
    line.say(turn, TEN, TextDelta("x"))
    line.steer(turn)
    line.drop()
    assert [each.turn for each in line.asked] == [turn]


def test_what_a_refused_create_had_taken_waits_for_the_next_one() -> None:
    line = Lockstep()
    turn = waiting(line)
    (call,) = line.turns[turn].node.open_calls  # type: ignore[union-attr]
    line.create([output("other")], previous_response_id=turn, lane="b")
    again = line.create([output(call)], previous_response_id=turn, lane="b")
    assert line.context(again)[-1] == "user: shorter"
