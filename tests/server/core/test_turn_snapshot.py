"""A response as clients see it at one moment of its turn."""

import pytest

from tests.support.core import TEN, Lockstep
from tieline.errors import ApiError
from tieline_server.core.deltas import Finish, TextDelta


def test_while_it_runs_it_has_no_usage_and_no_end() -> None:
    line = Lockstep()
    turn = line.create("hi", temperature=0.5)
    line.say(turn, TEN, TextDelta("a"))
    seen = line.turns[turn].snapshot("in_progress")
    assert (seen.id, seen.status, seen.temperature) == (turn, "in_progress", 0.5)
    assert (seen.usage, seen.completed_at, seen.error, seen.incomplete_details) == (None,) * 4


def test_it_names_what_it_continues_also_where_the_create_did_not() -> None:
    line = Lockstep()
    first = line.create("hi")
    line.answer(first)
    second = line.append({"role": "user", "content": "more"})
    line.answer(second)
    assert line.turns[second].snapshot("completed").previous_response_id == first


@pytest.mark.parametrize("status", ["completed", "incomplete", "failed", "cancelled"])
def test_reason_and_error_belong_to_their_own_status(status: str) -> None:
    line = Lockstep()
    turn = line.turns[line.create("hi")]
    turn.reason, turn.failure = "deadline", ApiError.of("server_error", "no")
    seen = turn.snapshot(status)
    assert (seen.incomplete_details is not None) == (status == "incomplete")
    assert (seen.error is not None) == (status == "failed")
    assert seen.usage is not None


def test_a_snapshot_does_not_change_with_its_turn() -> None:
    line = Lockstep()
    turn = line.create("hi")
    line.say(turn, TEN, TextDelta("a"))
    before = line.turns[turn].snapshot("in_progress")
    line.say(turn, Finish())
    assert before.output == []
    assert len(line.turns[turn].snapshot("completed").output) == 1
