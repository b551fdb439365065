"""Plain values: counters of work, principals, public names, and the row that a turn leaves."""

from typing import get_args

import msgspec
import pytest

from tests.support.core import Lockstep
from tests.support.records import turn
from tieline_server.core.values import (
    Outcome,
    Principal,
    UsageRecord,
    Work,
    is_response,
    usage_record_of,
)

RESPONSES = [each for each in get_args(Outcome) if each != "refused"]


def test_a_row_says_who_used_how_much_of_what_and_how_it_ended() -> None:
    row = usage_record_of(turn(), "grpc", ended_at=1_000_000.5)
    assert row == UsageRecord(
        response_id="resp_2",
        owner="ann",
        model="scripted",
        transport="grpc",
        outcome="completed",
        kind="turn",
        reason=None,
        error_code=None,
        input_tokens=100,
        cached_tokens=60,
        output_tokens=28,
        reasoning_tokens=8,
        phases={"prefill": 200_000, "decode": 300_000, "overhead": 900},
        started_at=1_000_000.0,
        ended_at=1_000_000.5,
        stored=True,
    )


def test_a_row_says_why_it_ended() -> None:
    cut = usage_record_of(turn(outcome="incomplete", reason="deadline"), "sse", ended_at=1.0)
    assert (cut.outcome, cut.reason, cut.error_code) == ("incomplete", "deadline", None)
    broken = usage_record_of(turn(outcome="failed", error_code="server_error"), "sse", ended_at=1.0)
    assert (broken.outcome, broken.reason, broken.error_code) == ("failed", None, "server_error")


def test_the_start_is_as_long_before_the_end_as_the_turn_took_whatever_the_wall_clock_did() -> None:
    row = usage_record_of(turn(started_at=3.0, ended_at=63.0), "sse", ended_at=100.0)
    assert (row.started_at, row.ended_at) == (40.0, 100.0)


def test_a_model_that_was_never_resolved_is_no_word_of_the_clients() -> None:
    waited = turn(model="x" * 1_000_000, settled=False, outcome="cancelled")
    assert usage_record_of(waited, "sse", ended_at=1.0).model == ""


def test_a_row_has_no_words_of_the_client() -> None:
    driver = Lockstep()
    response_id = driver.create("the secret word", metadata={"secret": "secret"}, user="secret")
    driver.answer(response_id, "secret too")
    row = usage_record_of(driver.record(response_id), "grpc", ended_at=1.0)
    assert b"secret" not in msgspec.json.encode(row)


@pytest.mark.parametrize("outcome", RESPONSES)
def test_whatever_became_a_response_has_a_row(outcome: Outcome) -> None:
    assert is_response(turn(outcome=outcome))
    assert is_response(turn(outcome=outcome, kind="prewarm"))


@pytest.mark.parametrize("settled", [True, False])
def test_what_was_refused_has_none(settled: bool) -> None:
    assert not is_response(turn(outcome="refused", settled=settled))


def test_what_still_waited_when_its_connection_went_has_none() -> None:
    assert not is_response(turn(outcome="disconnected", settled=False))


def test_what_was_cancelled_while_it_waited_has_one() -> None:
    assert is_response(turn(outcome="cancelled", settled=False))


def test_total_is_the_sum_of_all_stages() -> None:
    assert Work(decode=1, validate=2, render=4, encode=8).total == 15


def test_since_is_what_was_done_after_the_copy_alone() -> None:
    work = Work(decode=10, validate=20, render=30, encode=40)
    before = work.copy()
    work.decode += 1
    work.validate += 2
    work.render += 3
    work.encode += 4
    assert work.since(before) == Work(1, 2, 3, 4)


def test_a_copy_does_not_move_with_its_original() -> None:
    work = Work()
    copy = work.copy()
    work.decode = 7
    assert copy.decode == 0


def test_without_keys_everybody_is_local_and_may_use_every_model() -> None:
    assert Principal() == Principal(owner="local", models=None)


def test_a_model_has_a_public_name_where_it_was_resolved() -> None:
    assert turn(model="m").public_model == "m"
    assert turn(model="m", outcome="disconnected").public_model == "m"
    assert turn(model="m", outcome="cancelled", settled=False).public_model == ""
    assert turn(model="m", outcome="refused").public_model == ""
