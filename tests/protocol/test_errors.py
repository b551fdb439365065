"""The error table and its classes."""

import pytest

from tieline import errors
from tieline.errors import BY_GRPC, BY_STATUS, ERRORS, ApiError


@pytest.mark.parametrize("code", ERRORS)
def test_every_code_builds_the_class_of_its_status(code: str) -> None:
    error = ApiError.of(code, "text", param="p")
    row = ERRORS[code]
    assert type(error) is not ApiError
    assert (error.status, error.type, error.grpc, error.retryable) == row
    assert (error.code, error.message, error.param, str(error)) == (code, "text", "p", "text")


def test_the_tables_of_statuses_name_codes_that_exist() -> None:
    assert {*BY_STATUS.values(), *BY_GRPC.values()} <= ERRORS.keys()
    assert all(ERRORS[code].status == status for status, code in BY_STATUS.items())
    assert all(ERRORS[code].grpc == grpc for grpc, code in BY_GRPC.items())


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, errors.BadRequest),
        (401, errors.AuthenticationError),
        (404, errors.NotFound),
        (418, errors.BadRequest),
        (429, errors.RateLimited),
        (502, errors.ServerError),
        (503, errors.Unavailable),
    ],
)
def test_a_code_that_is_not_ours_keeps_its_status(status: int, kind: type[ApiError]) -> None:
    error = ApiError.of("their_code", "text", status=status, error_type="their_type")
    assert type(error) is kind
    assert (error.code, error.status, error.type) == ("their_code", status, "their_type")


def test_a_code_that_is_not_ours_takes_the_row_of_its_status() -> None:
    error = ApiError.of("their_code", "text", status=503)
    assert error.retryable
    assert error.grpc == errors.Grpc.UNAVAILABLE


def test_without_a_status_an_unknown_code_is_a_bad_request() -> None:
    assert ApiError.of("their_code", "text").status == 400


def test_retries_help_only_where_the_row_says_so() -> None:
    assert not ApiError.of("insufficient_quota", "x").retryable
    assert ApiError.of("rate_limit_exceeded", "x", retry_after=1.5).retry_after == 1.5


def test_a_bare_error_holds_no_frame_that_it_was_raised_in() -> None:
    try:
        try:
            raise KeyError
        except KeyError:
            raise ApiError.of("rate_limit_exceeded", "x") from None
    except ApiError as error:
        kept = error.bare()
    assert (kept.__traceback__, kept.__context__, kept.__cause__) == (None, None, None)
    assert kept.code == "rate_limit_exceeded"
