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
    driver = Lockstep()
    turn = driver.create("hi", store=True, resumable=kept)
    driver.say(turn, TEN, TextDelta("x"))
    if status == "cancelled":
        driver.cancel()
    elif status == "failed":
        driver.fail(turn)
    else:
        driver.say(turn, Finish(reason="stop" if status == "completed" else "length"))
    (save,) = driver.saves
    last = driver.audit.by_response[turn][-1]
    assert save.record.terminal == (last.sequence_number if kept else None)
    assert terminal_event(save.record.response, last.sequence_number or 0) == last


def test_what_is_open_is_closed_before_the_end() -> None:
    driver = Lockstep()
    turn = driver.create("hi")
    driver.say(turn, TEN, TextDelta("half"))
    driver.cancel()
    assert driver.types(turn)[-4:] == [
        "output_text.done",
        "content_part.done",
        "output_item.done",
        "incomplete",
    ]
    (item,) = driver.response(turn).output
    assert msgspec.json.decode(item)["status"] == "incomplete"


def test_a_commit_that_fails_is_a_failed_response_and_its_key_ends() -> None:
    driver = Lockstep(store_answers=False)
    turn = driver.create("hi", store=True, idempotency_key="k")
    driver.claimed(driver.claims.pop())
    driver.settle()
    driver.answer(turn)
    driver.saved(driver.saves.pop(), ApiError.of("server_error", "No."))
    driver.settle()
    assert driver.status(turn) == ("failed", None)
    assert driver.released == [(turn, False)]
    assert driver.turns[turn].booked is False


@pytest.mark.parametrize("how", ["answer", "cancel", "fail", "drop", "late"])
def test_a_key_ends_once_however_its_turn_does(how: str) -> None:
    driver = Lockstep(store_answers=how != "late")
    turn = driver.create("hi", idempotency_key="k")
    if how == "answer":
        driver.answer(turn)
    elif how == "cancel":
        driver.cancel()
        driver.cancel()
    elif how == "fail":
        driver.fail(turn)
    elif how == "drop":
        log = driver.turns[turn].log
        assert log is not None
        log.drop()
        driver.drop()
    else:
        driver.cancel()
        driver.claimed(driver.claims.pop())
        driver.settle()
    assert driver.released == [(turn, how in ("fail", "drop", "late"))]
    driver.drop()
    assert len(driver.released) == 1


def test_a_key_that_another_has_is_not_ended_by_who_asked_in_vain() -> None:
    driver = Lockstep(store_answers=False)
    driver.create("hi", idempotency_key="k", lane="a")
    driver.claimed(driver.claims.pop())
    driver.settle()
    driver.create("hi", idempotency_key="k", lane="b")
    driver.cancel(stream_id="b")
    driver.claimed(driver.claims.pop())
    driver.settle()
    assert driver.released == []


def test_a_held_turn_that_ends_without_a_word_ends_in_its_log_all_the_same() -> None:
    driver = Lockstep(profile=OPENAI.v1())
    turn = driver.create("hi", resumable=True)
    (call_id,) = driver.call(turn)
    driver.create([output(call_id)], previous_response_id=turn)
    log = driver.turns[turn].log
    assert log is not None
    assert driver.types(turn)[-1] == "done"
    assert log.ended
    assert log.after(None)[:-1] == driver.audit.by_response[turn]
    assert log.after(None)[-1].sequence_number == len(log.after(None)) - 1
