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


def waiting(driver: Lockstep) -> str:
    """A response whose steer waits for the output of its call."""
    turn = driver.create("go")
    driver.say(turn, TEN, LOOK, CallDelta("{}"))
    driver.steer(turn)
    driver.say(turn, Finish())
    return turn


def test_of_calls_that_are_never_answered_only_the_latest_are_kept() -> None:
    driver = Lockstep()
    turns = [waiting(driver) for _ in range(WAITING + 44)]
    succession = driver.connection._pending_steers
    assert len(succession._waiting) == WAITING
    assert succession.take(turns[0]) == ()
    assert succession.take(turns[-1]) != ()
    assert succession.take(turns[-1]) == ()


def running(driver: Lockstep, *, principal: Principal = LOCAL, **members: Any) -> str:
    """A response that says something."""
    body = {"model": MODEL, "store": False, "input": "go", **members}
    turn = driver.send("response.create", principal=principal, **body)
    driver.say(turn, TEN, TextDelta("x"))
    return turn


def refusal(driver: Lockstep) -> str:
    """The code of the one steer that was refused."""
    (failed,) = driver.loose(events.SteerFailed)
    assert isinstance(failed, events.SteerFailed)
    assert failed.error.code is not None
    return failed.error.code


def _steered(driver: Lockstep, **members: Any) -> str:
    turn = running(driver, **members)
    driver.steer(turn)
    assert driver.connection.queued.taken > 0
    return turn


def _followed(driver: Lockstep) -> None:
    driver.say(_steered(driver), Finish())
    assert len(driver.asked) == 2


def _failed(driver: Lockstep) -> None:
    driver.fail(_steered(driver))


def _cancelled(driver: Lockstep) -> None:
    driver.cancel(response_id=_steered(driver))


def _dropped(driver: Lockstep) -> None:
    _steered(driver)
    driver.drop()
    assert driver.connection.queued.taken == 0


def _dropped_while_it_is_saved(driver: Lockstep) -> None:
    driver.say(_steered(driver, store=True), Finish())
    driver.drop()
    assert driver.connection.queued.taken > 0
    driver.saved(driver.saves.pop())
    assert driver.connection.queued.taken == 0


def _not_saved(driver: Lockstep) -> None:
    driver.say(_steered(driver, store=True), Finish())
    driver.saved(driver.saves.pop(), ApiError.of("server_error", "No."))
    assert driver.connection.queued.taken == 0


def _drained(driver: Lockstep) -> None:
    turn = _steered(driver)
    driver.drain(1.0)
    driver.wait(2.0)
    assert driver.types(turn)[-1] == "steer.failed"


def _left_waiting(driver: Lockstep) -> None:
    waiting(driver)
    driver.half_close()
    assert driver.closed is not None


def _held_and_answered(driver: Lockstep) -> None:
    turn = driver.create("go", append=True)
    (call,) = driver.call(turn)
    driver.steer(turn)
    assert driver.connection.queued.taken > 0
    driver.append(output(call))
    assert driver.context(turn)[-1] == "user: shorter"


def _superseded(driver: Lockstep) -> None:
    turn = driver.create("go", append=True)
    (call,) = driver.call(turn)
    driver.steer(turn)
    driver.create([output(call)], previous_response_id=turn)
    assert driver.context(driver.asked[-1].turn)[-1] == "user: shorter"


def _taken_by_a_create_that_is_dropped(driver: Lockstep) -> None:
    turn = waiting(driver)
    driver.create("busy", lane="b")
    driver.create("waits", previous_response_id=turn, lane="b")
    driver.drop()


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


def takes(driver: Lockstep, turn: str, size: int) -> bool:
    """Whether a steer of so many letters finds room."""
    before = driver.types(turn).count("steer.accepted")
    driver.steer(turn, "x" * size)
    return driver.types(turn).count("steer.accepted") > before


def test_the_bytes_of_all_steers_that_wait_on_a_connection_are_bounded() -> None:
    """Whether their response runs, has ended, or a create has taken them and waits itself."""
    driver = Lockstep(limits=Limits(queue_bytes=2000))
    busy = driver.create("go", lane="b")
    driver.say(busy, TEN, TextDelta("x"))
    turn = waiting(driver)
    (call,) = driver.turns[turn].node.open_calls  # type: ignore[union-attr]
    assert not takes(driver, busy, 2000)
    assert takes(driver, busy, 1200)
    assert not takes(driver, busy, 300)
    follower = driver.create([output(call)], previous_response_id=turn, lane="b")
    assert not takes(driver, busy, 300)
    driver.cancel(stream_id="b")
    driver.say(follower, TEN, TextDelta("x"))
    assert takes(driver, follower, 1500)


class TestWhatWaitsOnAllConnections:
    """Steers count with the requests that wait, against their owner and the whole."""

    def test_an_owner_has_a_bound_over_all_connections_and_another_owner_is_served(self) -> None:
        queued = Share(each=3000)
        drivers = [Lockstep(queued=queued, seed=seed) for seed in range(3)]
        turns = [running(driver) for driver in drivers]
        taken = [takes(*each, 1000) for each in zip(drivers, turns, strict=True)]
        assert taken == [True, True, False]
        assert refusal(drivers[2]) == "too_many_pending_steers"
        other = Lockstep(queued=queued, seed=4)
        theirs = running(other, principal=Principal(owner="other"))
        assert takes(other, theirs, 1000)
        drivers[0].drop()
        assert takes(drivers[2], turns[2], 1000)

    def test_past_the_bound_of_all_owners_the_server_is_overloaded(self) -> None:
        queued = Share(total=3000)
        assert queued.take("other", 2000)
        driver = Lockstep(queued=queued)
        turn = running(driver)
        assert not takes(driver, turn, 1000)
        assert refusal(driver) == "server_is_overloaded"

    def test_requests_and_steers_have_one_bound(self) -> None:
        driver = Lockstep(queued=Share(each=5000))
        turn = running(driver)
        assert driver.create("waits") != ""
        assert not takes(driver, turn, 1000)
        assert takes(driver, turn, 100)
        assert driver.create("waits", lane="b") != "", "what need not wait is served"

    @pytest.mark.parametrize("end", ENDS)
    def test_however_a_steer_ends_nothing_is_counted_any_more(self, end: str) -> None:
        driver = Lockstep(store_answers=False)
        ENDS[end](driver)
        driver.check()
        driver.connection.let_go()
        assert driver.connection.queued.taken == 0

    def test_of_those_that_are_kept_no_more_nothing_is_counted(self) -> None:
        driver = Lockstep()
        for _ in range(WAITING):
            waiting(driver)
        before = driver.connection.queued.taken
        waiting(driver)
        assert driver.connection.queued.taken == before > 0

    def test_what_an_engine_refused_to_take_waits_again_whatever_the_bound(self) -> None:
        queued = Share(each=1000)
        driver = Lockstep(queued=queued)
        turn = waiting(driver)
        (call,) = driver.turns[turn].node.open_calls  # type: ignore[union-attr]
        again = driver.create([output(call)], previous_response_id=turn)
        assert queued.taken == 0, "its chain has it"
        assert queued.take("local", 900)
        driver.fail(again)
        assert queued.taken > 1000
        assert driver.connection._pending_steers.take(turn) != ()
        assert queued.taken == 900


def test_a_successor_has_the_settings_and_the_lane_of_the_one_before() -> None:
    driver = Lockstep()
    turn = driver.create("go", lane="a", temperature=0.5, instructions="be brief", timeout_ms=9000)
    driver.say(turn, TEN, TextDelta("x"))
    driver.steer(turn)
    driver.say(turn, ItemEnd(), TextDelta("never"))
    after = driver.asking[driver.asked[-1].turn]
    assert after.id != turn
    assert after.succeeds == turn
    assert (after.lane, after.follows) == ("a", turn)
    assert after.settings is not None
    assert after.settings.temperature == 0.5
    assert after.settings.instructions == "be brief"
    assert after.settings.timeout_ms is None


def test_on_a_connection_that_is_gone_nothing_goes_on() -> None:
    driver = Lockstep()
    turn = driver.create("go")
    driver.say(turn, TEN, TextDelta("x"))
    driver.steer(turn)
    driver.drop()
    assert [each.turn for each in driver.asked] == [turn]


def test_what_a_refused_create_had_taken_waits_for_the_next_one() -> None:
    driver = Lockstep()
    turn = waiting(driver)
    (call,) = driver.turns[turn].node.open_calls  # type: ignore[union-attr]
    driver.create([output("other")], previous_response_id=turn, lane="b")
    again = driver.create([output(call)], previous_response_id=turn, lane="b")
    assert driver.context(again)[-1] == "user: shorter"
