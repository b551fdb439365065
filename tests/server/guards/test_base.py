"""What guards say of themselves, and what clients hear of them."""

import pytest

from tests.support.guards import Reader
from tieline.errors import ERRORS
from tieline_server.guards.base import REFUSED, UNCHECKED, Spent, refused, unchecked


def test_a_refusal_has_openais_code_and_says_nothing_of_the_guard() -> None:
    error = refused(Reader("secret phrase", name="inner-name"), "input")
    assert (error.code, error.message, error.param) == ("invalid_prompt", REFUSED, "input")
    assert (error.status, error.retryable) == (400, False)


def test_what_could_not_be_read_may_come_again() -> None:
    error = unchecked()
    assert (error.code, error.message, error.retry_after) == ("engine_unavailable", UNCHECKED, 1.0)
    assert ERRORS[error.code].retryable


def test_waiting_adds_up_in_microseconds_whatever_comes_of_it() -> None:
    spent = Spent()
    assert spent.phases == {"guard": 0}
    spent.nanoseconds = 5_000
    with pytest.raises(ValueError, match="x"), spent.waiting():
        raise ValueError("x")
    assert spent.nanoseconds > 5_000
    assert spent.phases["guard"] == spent.nanoseconds // 1000
