"""The face of an error."""

import json

from tieline.errors import ApiError
from tieline_server.transports.http.request import error_response


def test_the_envelope_is_openais_and_headers_say_when_to_retry() -> None:
    error = ApiError.of("queue_full", "Wait.", param="input", retry_after=1.25)
    response = error_response(error)
    assert isinstance(response.body, bytes)
    assert json.loads(response.body) == {
        "error": {
            "message": "Wait.",
            "type": "rate_limit_error",
            "param": "input",
            "code": "queue_full",
        }
    }
    assert response.status == 429
    assert response.headers["Retry-After"] == "2"
    assert response.headers["retry-after-ms"] == "1250"
    assert response.headers["x-should-retry"] == "true"


def test_what_will_fail_again_says_so() -> None:
    response = error_response(ApiError.of("invalid_json", "No."))
    assert response.headers["x-should-retry"] == "false"
    assert "Retry-After" not in response.headers
