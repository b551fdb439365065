"""What a message that is still coming may hold, and until when more of it is due."""

import pytest

from tieline.errors import ApiError
from tieline_server.core.create.limits import Share
from tieline_server.transports.arrivals import SLOWEST, Arrival


def arriving(share: Share, owner: str = "a", *, started: float = 100.0) -> Arrival:
    return Arrival(share, owner, patience=30.0, started=started)


def test_cn_21_bytes_are_counted_before_they_are_kept_and_given_back_at_the_end() -> None:
    share = Share(each=1000, total=1500)
    message = arriving(share)
    message.take(600, 100.0)
    message.take(400, 100.0)
    assert (share.held_by("a"), share.taken, message.size) == (1000, 1000, 1000)
    message.end()
    message.end()
    assert (share.held_by("a"), share.taken) == (0, 0)


def test_cn_21_past_the_owners_bound_it_is_429_and_past_that_of_all_503() -> None:
    share = Share(each=1000, total=1500)
    first, second, other = arriving(share), arriving(share), arriving(share, "b")
    first.take(900, 100.0)
    with pytest.raises(ApiError) as refused:
        second.take(101, 100.0)
    error = refused.value
    assert (error.status, error.code, error.retry_after) == (429, "memory_limit_exceeded", 1.0)
    assert "1000 bytes" in error.message
    other.take(600, 100.0)
    with pytest.raises(ApiError) as refused:
        other.take(1, 100.0)
    error = refused.value
    assert (error.status, error.code, error.retry_after) == (503, "server_is_overloaded", 1.0)
    assert share.taken == 1500, "what is refused is not counted"
    first.end()
    other.take(400, 100.0)


def test_cn_21_a_message_may_be_silent_but_not_slow_on_the_whole() -> None:
    message = arriving(Share())
    assert message.due == 130.0
    message.take(1, 129.0)
    assert message.due == pytest.approx(130.0, abs=0.01), "a byte buys a thousandth of a second"
    message.take(60 * SLOWEST, 129.5)
    assert message.due == 159.5
    message.take(1, 170.0)
    assert message.due == pytest.approx(190.0, abs=0.01)


def test_a_message_that_this_side_did_not_read_is_on_time_again() -> None:
    message = arriving(Share())
    message.take(10, 100.0)
    message.forgive(500.0)
    assert message.due == 530.0
    message.take(SLOWEST, 501.0)
    assert message.due == 531.0
