"""What a connection says of a request that it cannot take."""

import pytest

from tests.support.core import raw
from tieline.errors import ApiError
from tieline.requests import EVENT_ID, Cancel, Create, Opaque
from tieline_server.core.connection import refusals

ERROR = ApiError.of("server_error", "It broke.")


def test_an_error_outside_any_response_has_number_zero() -> None:
    event = refusals.error_event(ERROR, "e", "a", begins=False)
    assert (event.sequence_number, event.status, event.stream_id) == (0, 500, "a")
    assert (event.error.code, event.error.event_id) == ("server_error", "e")
    assert not event.TERMINAL


@pytest.mark.parametrize("name", [None, "", "no name", "x" * 257, "\n"])
def test_a_bad_lane_is_not_echoed(name: str | None) -> None:
    assert not refusals.error_event(ERROR, None, name, begins=True).stream_id


@pytest.mark.parametrize(("size", "echoed"), [(EVENT_ID, True), (EVENT_ID + 1, False)])
def test_an_event_id_is_echoed_up_to_its_bound(size: int, echoed: bool) -> None:
    event = refusals.error_event(ERROR, "e" * size, None, begins=True)
    assert (event.error.event_id == "e" * size) is echoed


@pytest.mark.parametrize(
    ("error", "status", "code", "param"),
    [
        (refusals.unknown(Opaque(name="x.y", raw=raw({}))), 400, "invalid_event", None),
        (refusals.late(Create()), 400, "invalid_event", None),
        (refusals.draining(), 503, "server_draining", None),
        (refusals.too_old(), 400, "websocket_connection_limit_reached", None),
        (refusals.other_body(), 409, "idempotency_conflict", "idempotency_key"),
        (refusals.no_target(Cancel()), 404, "response_not_found", "response_id"),
    ],
)
def test_each_refusal_has_its_code(
    error: ApiError, status: int, code: str, param: str | None
) -> None:
    assert (error.status, error.code, error.param) == (status, code, param)


def test_what_is_told_apart_by_its_time_says_when() -> None:
    assert refusals.draining().retry_after == 1.0


@pytest.mark.parametrize(
    ("cancel", "named"),
    [
        (Cancel(response_id="resp_x", event_id="e"), "resp_x"),
        (Cancel(event_id="e"), "'e'"),
        (Cancel(), "Nothing runs"),
    ],
)
def test_a_cancel_in_vain_says_what_it_named(cancel: Cancel, named: str) -> None:
    assert named in refusals.no_target(cancel).message


def test_long_names_are_cut_short() -> None:
    long = "x" * 100_000
    assert len(refusals.no_target(Cancel(response_id=long)).message) < 300
    assert len(refusals.unknown(Opaque(name=long, raw=raw({}))).message) < 300
