"""The two profiles, and the append prototype's variant: what each refuses and what it does not."""

from typing import Any

import pytest

from tests.support.core import TEN, Lockstep, output
from tieline import events
from tieline_server.core.create.profile import OPENAI, PROFILES
from tieline_server.core.deltas import Finish, TextDelta

STRICT = PROFILES["open-responses"]


@pytest.mark.parametrize(
    ("members", "param"),
    [
        ({"lane": "a"}, "stream_id"),
        ({"append": True}, "append"),
        ({"generate": False}, "generate"),
        ({"timeout_ms": 1000}, "timeout_ms"),
        ({"context_management": [{"type": "compaction"}]}, "context_management"),
        ({"tools": [{"type": "custom", "name": "patch"}]}, "tools"),
    ],
)
def test_what_open_responses_lacks_is_unsupported_there_alone(
    members: dict[str, Any], param: str
) -> None:
    strict, ours = Lockstep(profile=STRICT), Lockstep(profile=OPENAI)
    strict.create("hi", **members)
    assert strict.errors == [("unsupported_parameter", param)]
    assert strict.sampling == []
    assert ours.create("hi", **members) in ours.sampling


@pytest.mark.parametrize(
    "members", [{}, {"append": False}, {"generate": True}, {"tools": [{"type": "web_search"}]}]
)
def test_what_it_has_runs_there(members: dict[str, Any]) -> None:
    driver = Lockstep(profile=STRICT)
    turn = driver.create("hi", **members)
    driver.answer(turn)
    assert driver.status(turn) == ("completed", None)


def test_a_refused_create_leaves_its_connection_as_it_was() -> None:
    driver = Lockstep(profile=STRICT)
    first = driver.create("one")
    driver.answer(first)
    driver.create("two", lane="a")
    assert driver.create("two", previous_response_id=first) in driver.sampling


def test_open_responses_cannot_be_steered_and_has_no_event_that_says_so() -> None:
    driver = Lockstep(profile=STRICT)
    turn = driver.create("hi")
    driver.say(turn, TEN, TextDelta("x"))
    driver.steer(turn)
    assert driver.errors == [("unsupported_parameter", "response.steer")]
    assert driver.loose(events.SteerFailed) == []
    driver.say(turn, Finish())
    assert driver.status(turn) == ("completed", None)


class TestPrototype:
    """wire.md 2.2.4: that client sends no ``append`` and took ``response.done`` as the end."""

    def test_every_create_is_in_append_shape(self) -> None:
        driver = Lockstep(profile=OPENAI.v1())
        turn = driver.create("go")
        (call_id,) = driver.call(turn)
        assert driver.types(turn)[-1] == "done"
        driver.append(output(call_id))
        driver.answer(turn)
        assert driver.types(turn)[-1] == "completed"

    @pytest.mark.parametrize("end", ["create", "cancel", "time"])
    def test_the_end_of_a_held_turn_sends_no_event_and_is_booked(self, end: str) -> None:
        driver = Lockstep(profile=OPENAI.v1())
        turn = driver.create("go")
        driver.call(turn)
        if end == "create":
            after = driver.create("new")
            driver.answer(after)
            assert driver.types(after)[-1] == "completed"
        elif end == "cancel":
            driver.cancel()
        else:
            driver.wait(900)
        own = driver.turns[turn]
        assert own.ended
        assert driver.record(turn).outcome in ("incomplete", "cancelled")
        assert driver.audit.by_response[turn][-1].type == "response.done"

    def test_what_is_cut_while_it_samples_says_so(self) -> None:
        driver = Lockstep(profile=OPENAI.v1())
        turn = driver.create("go")
        (call_id,) = driver.call(turn)
        driver.append(output(call_id))
        driver.cancel()
        assert driver.types(turn)[-1] == "incomplete"
