"""How a turn ends: output made whole, the store asked, the terminal event."""

import msgspec
import pytest

from tests.support.core import TEN, Lockstep, output
from tieline.errors import ApiError
from tieline.responses import Response
from tieline_server.core.create.profile import OPENAI
from tieline_server.core.deltas import Finish, TextDelta
from tieline_server.core.turn.finish import terminal_event

STATUSES = {
    "completed": "response.completed",
    "incomplete": "response.incomplete",
    "cancelled": "response.incomplete",
    "failed": "response.failed",
}


@pytest.mark.parametrize("status", STATUSES)
def test_each_end_has_its_event(status: str) -> None:
    event = terminal_event(Response(status=status), 7, stream_id="a")
    assert (event.type, event.sequence_number, event.stream_id) == (STATUSES[status], 7, "a")
    assert event.TERMINAL
    assert not terminal_event(Response(status=status), 7).stream_id


@pytest.mark.parametrize("kept", [False, True])
@pytest.mark.parametrize("status", STATUSES)
def test_a_stored_response_knows_the_number_of_its_end(status: str, kept: bool) -> None:
    line = Lockstep()
    turn = line.create("hi", store=True, resumable=kept)
    line.say(turn, TEN, TextDelta("x"))
    if status == "cancelled":
        line.cancel()
    elif status == "failed":
        line.fail(turn)
    else:
        line.say(turn, Finish(reason="stop" if status == "completed" else "length"))
    (save,) = line.saves
    last = line.audit.by_response[turn][-1]
    assert save.record.terminal == (last.sequence_number if kept else None)
    assert terminal_event(save.record.response, last.sequence_number or 0) == last


def test_what_is_open_is_closed_before_the_end() -> None:
    line = Lockstep()
    turn = line.create("hi")
    line.say(turn, TEN, TextDelta("half"))
    line.cancel()
    assert line.types(turn)[-4:] == [
        "output_text.done",
        "content_part.done",
        "output_item.done",
        "incomplete",
    ]
    (item,) = line.response(turn).output
    assert msgspec.json.decode(item)["status"] == "incomplete"


def test_a_commit_that_fails_is_a_failed_response_and_its_key_ends() -> None:
    line = Lockstep(store_answers=False)
    turn = line.create("hi", store=True, idempotency_key="k")
    line.claimed(line.claims.pop())
    line.settle()
    line.answer(turn)
    line.saved(line.saves.pop(), ApiError.of("server_error", "No."))
    line.settle()
    assert line.status(turn) == ("failed", None)
    assert line.released == [(turn, False)]
    assert line.turns[turn].booked is False


@pytest.mark.parametrize("how", ["answer", "cancel", "fail", "drop", "late"])
def test_a_key_ends_once_however_its_turn_does(how: str) -> None:
    line = Lockstep(store_answers=how != "late")
    turn = line.create("hi", idempotency_key="k")
    if how == "answer":
        line.answer(turn)
    elif how == "cancel":
        line.cancel()
        line.cancel()
    elif how == "fail":
        line.fail(turn)
    elif how == "drop":
        log = line.turns[turn].log
        assert log is not None
        log.drop()
        line.drop()
    else:
        line.cancel()
        line.claimed(line.claims.pop())
        line.settle()
    assert line.released == [(turn, how in ("fail", "drop", "late"))]
    line.drop()
    assert len(line.released) == 1


def test_a_key_that_another_has_is_not_ended_by_who_asked_in_vain() -> None:
    line = Lockstep(store_answers=False)
    line.create("hi", idempotency_key="k", lane="a")
    line.claimed(line.claims.pop())
    line.settle()
    line.create("hi", idempotency_key="k", lane="b")
    line.cancel(stream_id="b")
    line.claimed(line.claims.pop())
    line.settle()
    assert line.released == []


def test_a_held_turn_that_ends_without_a_word_ends_in_its_log_all_the_same() -> None:
    line = Lockstep(profile=OPENAI.v1())
    turn = line.create("hi", resumable=True)
    (call_id,) = line.call(turn)
    line.create([output(call_id)], previous_response_id=turn)
    log = line.turns[turn].log
    assert log is not None
    assert line.types(turn)[-1] == "done"
    assert log.ended
    assert log.after(None)[:-1] == line.audit.by_response[turn]
    assert log.after(None)[-1].sequence_number == len(log.after(None)) - 1
