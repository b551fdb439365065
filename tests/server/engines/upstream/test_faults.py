"""What a client hears when an upstream refuses."""

import pytest

from tieline.errors import ERRORS
from tieline_server.engines.upstream.faults import (
    LONGEST,
    Said,
    refused,
    said_in,
    said_of,
    status_in,
)


@pytest.mark.parametrize("status", [300, *range(400, 430), *range(500, 530)])
def test_every_status_has_a_row_of_our_table(status: int) -> None:
    failure = refused(status, Said(message="secret\nof it"))
    assert failure.error.code in ERRORS
    told = "secret" in failure.error.message
    assert told == (failure.error.code == "invalid_request")
    assert "\n" not in failure.error.message


def test_a_sentence_of_the_upstream_is_clipped() -> None:
    assert len(refused(400, Said(message="x" * 10_000)).error.message) < LONGEST + 50


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (b'{"error":{"message":"a","code":"b","param":"c"}}', ("a", "b", "c")),
        (b'{"error":"a"}', ("a", None, None)),
        (b'{"object":"error","message":"a","code":400}', ("a", 400, None)),
        (b'{"error":{"message":7}}', ("", None, None)),
        (b'{"error":[1]}', ("", None, None)),
        (b"<html>", ("", None, None)),
        (b"[" * 5000, ("", None, None)),
        (b"", ("", None, None)),
    ],
)
def test_bodies_of_every_shape_are_read(body: bytes, expected: object) -> None:
    said = said_in(body)
    assert (said.message, said.code, said.param) == expected


@pytest.mark.parametrize(
    ("said", "status"),
    [
        (Said(code=429), 429),
        (Said(code="503"), 503),
        (Said(code="server_error"), 500),
        (Said(code=7), 500),
        (Said(code="rate_limit_exceeded"), 429),
        (Said(type="rate_limit_error"), 429),
        (Said(type="overloaded_error"), 529),
        (Said(code=503, type="server_error"), 503),
        (Said(), 500),
        (said_of("broken"), 500),
    ],
)
def test_an_error_in_a_stream_stands_for_a_status(said: Said, status: int) -> None:
    assert status_in(said) == status


@pytest.mark.parametrize(
    "said",
    [
        Said(message="This model's maximum context length is 4096 tokens."),
        Said(message="the request exceeds the available context size, try increasing it"),
        Said(type="exceed_context_size_error"),
        Said(code="context_length_exceeded"),
    ],
)
def test_a_prompt_that_is_too_long_is_known_by_its_many_names(said: Said) -> None:
    assert refused(400, said).error.code == "context_length_exceeded"
