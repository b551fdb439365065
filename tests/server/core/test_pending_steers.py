"""Steers that outlive their response: of which lane and with which settings they go on."""

from tests.support.core import TEN, Lockstep, output
from tieline_server.core.deltas import CallDelta, CallStart, Finish, ItemEnd, TextDelta
from tieline_server.core.limits import Limits
from tieline_server.core.pending_steers import WAITING

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


def takes(line: Lockstep, turn: str, size: int) -> bool:
    """Whether a steer of so many letters finds room."""
    before = line.types(turn).count("steer.accepted")
    line.steer(turn, "x" * size)
    return line.types(turn).count("steer.accepted") > before


def test_the_bytes_of_all_steers_that_wait_on_a_line_are_bounded() -> None:
    """Whether their response runs, has ended, or a create has taken them and waits itself."""
    line = Lockstep(limits=Limits(queue_bytes=1000))
    busy = line.create("go", lane="b")
    line.say(busy, TEN, TextDelta("x"))
    turn = waiting(line)
    (call,) = line.turns[turn].tip.open_calls  # type: ignore[union-attr]
    assert not takes(line, busy, 1000)
    assert takes(line, busy, 700)
    assert not takes(line, busy, 200)
    follower = line.create([output(call)], previous_response_id=turn, lane="b")
    assert not takes(line, busy, 200)
    line.cancel(stream_id="b")
    line.say(follower, TEN, TextDelta("x"))
    assert takes(line, follower, 900)


def test_a_successor_has_the_settings_and_the_lane_of_the_one_before() -> None:
    line = Lockstep()
    turn = line.create("go", lane="a", temperature=0.5, instructions="be brief", timeout_ms=9000)
    line.say(turn, TEN, TextDelta("x"))
    line.steer(turn)
    line.say(turn, ItemEnd(), TextDelta("never"))
    after = line.asked[-1].turn
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
    assert [each.turn.id for each in line.asked] == [turn]


def test_what_a_refused_create_had_taken_waits_for_the_next_one() -> None:
    line = Lockstep()
    turn = waiting(line)
    (call,) = line.turns[turn].tip.open_calls  # type: ignore[union-attr]
    line.create([output("other")], previous_response_id=turn, lane="b")
    again = line.create([output(call)], previous_response_id=turn, lane="b")
    assert line.context(again)[-1] == "user: shorter"
