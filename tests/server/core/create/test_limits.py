"""Admission: lane names, queue places, active places."""

from typing import Any

import pytest
from msgspec import Raw, structs

from tieline.errors import ApiError
from tieline.requests import Append, Create
from tieline_server.core.create.limits import Admission, Limits, Share, admit_steer, size_of


def test_cn_21_an_owner_has_a_bound_and_so_have_all_together() -> None:
    share = Share(each=3, total=4)
    assert [share.take("a"), share.take("a", 2), share.take("a")] == [True, True, False]
    assert not share.take("b", 2)
    assert share.take("b")
    assert (share.held_by("a"), share.held_by("b"), share.taken) == (3, 1, 4)
    assert (share.fits("a"), share.fits("b", 2), share.fits("c", 4)) == (False, True, False)
    room = (share.has_room("a", 0), share.has_room("b"), share.has_room("c", 0))
    assert room == (True, False, True), "there is no more for all together"
    share.give_back("a", 3)
    assert (share.held_by("a"), share.taken) == (0, 1)
    assert share.take("b", 2)


def test_an_owner_that_has_nothing_is_not_remembered() -> None:
    share = Share()
    for name in range(100):
        share.take(str(name))
        share.give_back(str(name))
    assert share._owners == {}


def test_what_is_there_already_counts_whatever_the_bounds() -> None:
    share = Share(each=3, total=4)
    share.add("a", 5)
    assert (share.held_by("a"), share.taken) == (5, 5)
    assert not share.take("b")
    share.give_back("a", 5)
    assert share.take("b")


LARGE: dict[str, Any] = {
    "Raw": Raw(b"x" * 999),
    "dict": {"k": "x" * 998},
    "list": ["x" * 999],
    "str": "x" * 999,
}
"""Type of a member -> a value of 999 bytes."""


def test_the_defaults_are_those_of_the_protocol() -> None:
    """wire.md 5.4 and 5.5, 3.2.1 and 2.2.3, 3.3.3."""
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


EMPTY = size_of(Create())


def test_what_waits_has_a_bound_in_bytes_but_one_request_may_always_wait() -> None:
    admission = Admission(Limits(queue_bytes=EMPTY + 100))
    admission.queue_bytes(0, Create(user="u" * 1000))
    admission.queue_bytes(90, Create(user="u" * 10))
    admission.queue_bytes(90, Append(input=Raw(b'"12345678"')))
    with pytest.raises(ApiError) as refused:
        admission.queue_bytes(90, Create(user="u" * 11))
    assert (refused.value.status, refused.value.code) == (429, "queue_full")
    assert refused.value.retry_after == 1.0


@pytest.mark.parametrize(
    ("owner", "code", "status"),
    [("ann", "too_many_pending_steers", 429), ("bob", "server_is_overloaded", 503)],
)
def test_a_steer_past_the_bound_of_its_owner_or_of_all_is_refused(
    owner: str, code: str, status: int
) -> None:
    queued = Share(each=100, total=150)
    assert queued.take("ann", 60)
    admit_steer(queued, "ann", 40)
    assert queued.take("carl", 60)
    with pytest.raises(ApiError) as refused:
        admit_steer(queued, owner, 41)
    assert (refused.value.status, refused.value.code) == (status, code)


UNBOUNDED = {
    field.name: next(kind for kind in LARGE if kind in str(field.type))
    for field in structs.fields(Create)
    if any(kind in str(field.type) for kind in LARGE)
}
BOUNDED = ("event_id", "idempotency_key", "safety_identifier", "stream_id", "unknown")


@pytest.mark.parametrize("name", [name for name in UNBOUNDED if name not in BOUNDED])
def test_every_member_of_a_create_that_may_be_large_counts(name: str) -> None:
    value = LARGE[UNBOUNDED[name]]
    assert 990 < size_of(Create(**{name: value})) - EMPTY < 1000
