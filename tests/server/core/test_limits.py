"""Admission: lane names, queue places, active places."""

import pytest

from tieline.errors import ApiError
from tieline_server.core.limits import Admission, Limits


def test_the_defaults_are_those_of_the_protocol() -> None:
    """wire.md 5: 16 active, 32 names; design: 15 minutes held, 500 ms until created."""
    limits = Limits()
    assert (limits.active, limits.lanes) == (16, 32)
    assert (limits.held_timeout, limits.announce_after) == (900.0, 0.5)
    assert limits.merge_from == 16


@pytest.mark.parametrize("name", ["", "a b", "a/b", "ä", "x" * 257, "a\n"])
def test_a_bad_lane_name_is_refused(name: str) -> None:
    with pytest.raises(ApiError) as refused:
        Admission(Limits()).lane(name)
    assert (refused.value.status, refused.value.code) == (400, "invalid_stream_id")
    assert refused.value.param == "stream_id"


@pytest.mark.parametrize("name", ["a", "A-z_0.9", "x" * 256])
def test_a_good_lane_name_is_admitted_any_number_of_times(name: str) -> None:
    admission = Admission(Limits(lanes=1))
    for _ in range(3):
        admission.lane(name)


def test_the_name_after_the_last_one_is_refused_and_the_default_lane_never() -> None:
    admission = Admission(Limits())
    for index in range(32):
        admission.lane(f"lane-{index}")
    with pytest.raises(ApiError) as refused:
        admission.lane("lane-32")
    assert (refused.value.status, refused.value.code) == (400, "websocket_stream_limit_reached")
    admission.lane(None)
    admission.lane("lane-0")


def test_a_full_queue_is_429_with_a_time_to_retry_after() -> None:
    admission = Admission(Limits(queue=2))
    admission.queue(1)
    with pytest.raises(ApiError) as refused:
        admission.queue(2)
    assert (refused.value.status, refused.value.code) == (429, "queue_full")
    assert refused.value.retryable
    assert refused.value.retry_after == 1.0


def test_places_run_out_and_come_back() -> None:
    admission = Admission(Limits(active=2))
    assert admission.idle
    admission.enter()
    assert admission.has_place
    admission.enter()
    assert not admission.has_place
    admission.leave()
    assert admission.has_place
    admission.leave()
    assert admission.idle
