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
    line = Lockstep(profile=STRICT)
    turn = line.create("hi", **members)
    line.answer(turn)
    assert line.status(turn) == ("completed", None)


def test_a_refused_create_leaves_its_line_as_it_was() -> None:
    line = Lockstep(profile=STRICT)
    first = line.create("one")
    line.answer(first)
    line.create("two", lane="a")
    assert line.create("two", previous_response_id=first) in line.sampling


def test_open_responses_cannot_be_steered_and_has_no_event_that_says_so() -> None:
    line = Lockstep(profile=STRICT)
    turn = line.create("hi")
    line.say(turn, TEN, TextDelta("x"))
    line.steer(turn)
    assert line.errors == [("unsupported_parameter", "response.steer")]
    assert line.loose(events.SteerFailed) == []
    line.say(turn, Finish())
    assert line.status(turn) == ("completed", None)


class TestPrototype:
    """wire.md 2.2.4: that client sends no ``append`` and took ``response.done`` as the end."""

    def test_every_create_is_in_append_shape(self) -> None:
        line = Lockstep(profile=OPENAI.v1())
        turn = line.create("go")
        (call_id,) = line.call(turn)
        assert line.types(turn)[-1] == "done"
        line.append(output(call_id))
        line.answer(turn)
        assert line.types(turn)[-1] == "completed"

    @pytest.mark.parametrize("end", ["create", "cancel", "time"])
    def test_the_end_of_a_held_turn_sends_no_event_and_is_booked(self, end: str) -> None:
        line = Lockstep(profile=OPENAI.v1())
        turn = line.create("go")
        line.call(turn)
        if end == "create":
            after = line.create("new")
            line.answer(after)
            assert line.types(after)[-1] == "completed"
        elif end == "cancel":
            line.cancel()
        else:
            line.wait(900)
        own = line.turns[turn]
        assert own.ended
        assert line.record(turn).outcome in ("incomplete", "cancelled")
        assert line.audit.by_response[turn][-1].type == "response.done"

    def test_what_is_cut_while_it_samples_says_so(self) -> None:
        line = Lockstep(profile=OPENAI.v1())
        turn = line.create("go")
        (call_id,) = line.call(turn)
        line.append(output(call_id))
        line.cancel()
        assert line.types(turn)[-1] == "incomplete"
