"""Errors as google.rpc.Status, and back."""

import pytest
from google.rpc.error_details_pb2 import BadRequest, ErrorInfo, RetryInfo
from google.rpc.status_pb2 import Status

from tieline.codecs.proto.errors import MAX_TEXT, error_of_status, error_status
from tieline.errors import DOMAIN, ERRORS, ApiError


def details(status: Status) -> dict[str, ErrorInfo | RetryInfo | BadRequest]:
    found = {}
    for detail in status.details:
        for kind in (ErrorInfo, RetryInfo, BadRequest):
            message = kind()
            if detail.Unpack(message):
                found[kind.__name__] = message
    assert len(found) == len(status.details)
    return found


@pytest.mark.parametrize("code", ERRORS)
def test_every_error_survives_the_way_there_and_back(code: str) -> None:
    error = ApiError.of(code, "What went wrong.", param="tools[3].name", retry_after=2.5)
    back = error_of_status(error_status(error, "req_1"))
    assert type(back) is type(error)
    for name in ("code", "message", "status", "type", "param", "grpc", "retryable", "retry_after"):
        assert getattr(back, name) == getattr(error, name), name
    assert back.request_id == "req_1"


def test_details_are_those_of_the_error() -> None:
    status = error_status(ApiError.of("model_not_found", "No model."), "req_1")
    found = details(status)
    assert found.keys() == {"ErrorInfo"}
    info = found["ErrorInfo"]
    assert isinstance(info, ErrorInfo)
    assert (status.code, info.reason, info.domain) == (5, "MODEL_NOT_FOUND", DOMAIN)
    assert info.metadata["request_id"] == "req_1"


def test_a_retry_and_a_wrong_member_have_details_of_their_own() -> None:
    limit = details(error_status(ApiError.of("rate_limit_exceeded", "Slow.", retry_after=1.5)))
    retry = limit["RetryInfo"]
    assert isinstance(retry, RetryInfo)
    assert retry.retry_delay.ToMilliseconds() == 1500
    wrong = details(error_status(ApiError.of("invalid_type", "No.", param="tools[0]")))
    bad = wrong["BadRequest"]
    assert isinstance(bad, BadRequest)
    assert [(v.field, v.description) for v in bad.field_violations] == [("tools[0]", "No.")]


def test_a_code_that_is_not_ours_comes_back_as_it_was() -> None:
    error = ApiError.of("vendor.Code-7", "text", status=502)
    status = error_status(error)
    info = details(status)["ErrorInfo"]
    assert isinstance(info, ErrorInfo)
    assert info.reason == "VENDOR_CODE_7"
    back = error_of_status(status)
    assert (back.code, back.status) == ("vendor.Code-7", 502)


def test_a_status_stays_far_below_the_limit_of_trailers() -> None:
    error = ApiError.of("invalid_type", "x" * 100_000, param="y" * 100_000)
    assert error_status(error).ByteSize() < 4 * 1024
    assert error_of_status(error_status(error)).message == "x" * MAX_TEXT


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        (14, "server_is_overloaded"),
        (16, "invalid_api_key"),
        (2, "server_error"),
        (99, "server_error"),
    ],
)
def test_a_bare_status_is_the_row_of_its_code(code: int, expected: str) -> None:
    assert error_of_status(Status(code=code, message="m")).code == expected


def test_foreign_and_broken_details_are_passed_over() -> None:
    status = Status(code=5, message="m")
    status.details.add().Pack(ErrorInfo(reason="THEIRS", domain="elsewhere"))
    broken = status.details.add()
    broken.type_url = "type.googleapis.com/google.rpc.RetryInfo"
    broken.value = b"\xff\xff\xff"
    status.details.add().type_url = "type.googleapis.com/unknown.Thing"
    back = error_of_status(status)
    assert (back.code, back.retry_after) == ("response_not_found", None)
