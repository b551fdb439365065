"""What only a client meets."""

import pytest

from tieline.errors import ERRORS, ApiError, TielineError
from tieline.responses import Response, Usage
from tieline_client import errors


def test_every_error_has_the_one_root_and_its_place_in_the_overview() -> None:
    classes = {
        name: each
        for name, each in vars(errors).items()
        if isinstance(each, type) and each.__module__ == errors.__name__
    }
    assert len(classes) >= 8
    for name, each in classes.items():
        assert issubclass(each, TielineError)
        assert f":class:`{name}`" in (errors.__doc__ or "")


def test_an_incomplete_stream_says_what_there_is_of_it() -> None:
    error = errors.IncompleteStream("it broke", text="par", response_id="r1", sequence_number=3)
    assert isinstance(error, errors.ConnectionLost)
    assert str(error) == "it broke; response r1 is incomplete"
    assert (error.text, error.response_id, error.sequence_number) == ("par", "r1", 3)
    assert error.response == Response(id="r1")


@pytest.mark.parametrize("code", ["insufficient_quota", "future_code", *ERRORS])
def test_cn_13_an_error_of_a_response_is_of_its_own_class_and_has_the_response(code: str) -> None:
    usage = Usage.of(input=3, cached=0, output=2, reasoning=0)
    response = Response(id="r1", model="m", status="failed", usage=usage)
    plain = ApiError.of(code, "It broke.", param="input", retry_after=2.0, request_id="q1")
    error = errors.failed(plain, response)
    assert isinstance(error, errors.FailedResponse)
    assert isinstance(error, type(plain))
    assert type(error).__name__ == type(plain).__name__
    given = {name: value for name, value in vars(error).items() if name != "response"}
    assert given == vars(plain)
    assert str(error) == "It broke."
    assert (error.response_id, error.model, error.usage) == ("r1", "m", usage)
