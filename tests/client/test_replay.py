"""What is done about a turn that stopped, as a table."""

import itertools
from typing import Any

import pytest
from msgspec.structs import replace

from tieline.errors import ApiError
from tieline_client._replay import MOVES, NEEDS, Backoff, Fault, Means, Move, choose, fault
from tieline_client.errors import (
    ConnectionClosed,
    ConnectionLost,
    ConnectTimeout,
    IncompleteStream,
    NotSent,
    OutcomeUnknown,
    ProtocolViolation,
)

NOTHING = Means(
    attempts=True, keyed=False, unsafe=False, resumable=False, whole=False, other_transport=False
)
CUT = IncompleteStream("lost", text="", response_id="r", sequence_number=1)


def api(code: str, **members: Any) -> ApiError:
    return ApiError.of(code, "no", **members)


def test_every_fault_has_a_row_whose_last_move_needs_nothing() -> None:
    assert set(MOVES) == set(Fault)
    for what, moves in MOVES.items():
        assert (what, moves[-1]) not in NEEDS
        assert all((what, move) in NEEDS for move in moves[:-1])


@pytest.mark.parametrize("begun", [True, False])
@pytest.mark.parametrize(
    ("error", "what"),
    [
        (NotSent("x"), Fault.UNSENT),
        (ConnectTimeout("x"), Fault.UNSENT),
        (OutcomeUnknown("x"), Fault.LOST),
        (CUT, Fault.CUT),
        (ConnectionClosed("x"), Fault.FINAL),
        (ConnectionLost("x"), Fault.FINAL),
        (ProtocolViolation("x"), Fault.FINAL),
    ],
)
def test_a_loss_says_how_far_the_request_had_come(
    error: Exception, what: Fault, begun: bool
) -> None:
    assert fault(error, begun=begun, refused=False) is what


@pytest.mark.parametrize(
    ("error", "what"),
    [
        (api("server_error"), Fault.BUSY),
        (api("server_is_overloaded"), Fault.BUSY),
        (api("rate_limit_exceeded"), Fault.BUSY),
        (api("insufficient_quota"), Fault.FINAL),
        (api("invalid_value"), Fault.FINAL),
        (api("previous_response_not_found"), Fault.FORGOTTEN),
        (api("websocket_connection_limit_reached"), Fault.LEAVING),
        (api("server_draining"), Fault.LEAVING),
        (api("request_too_large"), Fault.TOO_LARGE),
    ],
)
def test_a_refusal_is_an_answer_and_none_once_the_response_has_begun(
    error: ApiError, what: Fault
) -> None:
    assert fault(error, begun=False, refused=True) is what
    assert fault(error, begun=True, refused=False) is Fault.FINAL


@pytest.mark.parametrize(
    ("code", "what"),
    [
        ("server_draining", Fault.LOST),
        ("server_error", Fault.LOST),
        ("invalid_api_key", Fault.FINAL),
        ("request_too_large", Fault.TOO_LARGE),
        ("websocket_connection_limit_reached", Fault.LEAVING),
    ],
)
def test_the_reason_of_a_lines_end_is_no_refusal_of_what_was_sent(code: str, what: Fault) -> None:
    """But two say that it was not taken (RFC 6455 7.4.1: 1009)."""
    assert fault(api(code), begun=False, refused=False) is what


@pytest.mark.parametrize(
    ("what", "means", "move"),
    [
        (Fault.UNSENT, {}, Move.ELSEWHERE),
        (Fault.UNSENT, {"attempts": False}, Move.RAISE),
        (Fault.LOST, {}, Move.UNKNOWN),
        (Fault.LOST, {"keyed": True}, Move.ATTACH),
        (Fault.LOST, {"unsafe": True}, Move.ELSEWHERE),
        (Fault.LOST, {"keyed": True, "unsafe": True}, Move.ATTACH),
        (Fault.LOST, {"keyed": True, "attempts": False}, Move.UNKNOWN),
        (Fault.CUT, {}, Move.RAISE),
        (Fault.CUT, {"keyed": True, "unsafe": True}, Move.RAISE),
        (Fault.CUT, {"resumable": True}, Move.RESUME),
        (Fault.FORGOTTEN, {}, Move.RAISE),
        (Fault.FORGOTTEN, {"whole": True, "attempts": False}, Move.WHOLE),
        (Fault.TOO_LARGE, {"other_transport": True}, Move.OTHER_TRANSPORT),
        (Fault.TOO_LARGE, {}, Move.RAISE),
    ],
)
def test_rc_04_what_may_be_done_follows_from_what_is_at_hand(
    what: Fault, means: dict[str, bool], move: Move
) -> None:
    assert choose(what, replace(NOTHING, **means)) is move


def test_rc_04_a_response_that_had_begun_is_never_asked_for_again() -> None:
    every = [
        replace(NOTHING, **dict(zip(Means.__struct_fields__, given, strict=True)))
        for given in itertools.product([False, True], repeat=6)
    ]
    assert {choose(Fault.CUT, means) for means in every} == {Move.RESUME, Move.RAISE}


@pytest.mark.parametrize("chance", [0.0, 0.5, 0.999])
def test_waits_grow_to_a_bound_and_half_of_each_is_by_chance(chance: float) -> None:
    backoff = Backoff(first=1.0, longest=4.0)
    waits = [backoff.wait(attempt, asked=None, chance=chance) for attempt in range(1, 6)]
    assert waits == [full * (1 + chance) / 2 for full in (1.0, 2.0, 4.0, 4.0, 4.0)]
    assert backoff.wait(10_000, asked=None, chance=chance) <= 4.0


def test_what_the_server_asked_for_is_the_least() -> None:
    assert Backoff(first=1.0).wait(1, asked=3.0, chance=0.5) == 3.5
