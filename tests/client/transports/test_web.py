"""What WebSocket and HTTP share."""

import asyncio
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web as server

from tests.client.web import endpoint, serving
from tieline import events
from tieline.errors import (
    ApiError,
    AuthenticationError,
    BadRequest,
    NotFound,
    RateLimited,
    ServerError,
    TielineError,
    Unavailable,
)
from tieline_client.errors import ConnectionLost, ProtocolViolation
from tieline_client.transports import Tls, web


@pytest.mark.parametrize(
    ("path", "url"),
    [
        ("", "ws://h:1/v1/responses"),
        ("/base", "ws://h:1/base/v1/responses"),
        ("/v1", "ws://h:1/v1/responses"),
        ("/openai/v1", "ws://h:1/openai/v1/responses"),
        ("/codex/responses", "ws://h:1/codex/responses"),
    ],
)
def test_a_base_path_is_kept_and_completed(path: str, url: str) -> None:
    assert web.responses_url(endpoint("ws", "h:1", path=path)) == url


def refused(status: int, body: str, **headers: str) -> TielineError:
    """What a real answer of this kind is to us."""

    async def answer(_: server.Request) -> server.Response:
        given = {name.replace("_", "-"): value for name, value in headers.items()}
        return server.Response(status=status, text=body, headers=given)

    async def main() -> TielineError:
        async with (
            serving(answer) as address,
            aiohttp.ClientSession() as session,
            session.get(f"http://{address}/", allow_redirects=False) as response,
        ):
            return await web.refusal(response, "host:1")

    return asyncio.run(main())


def test_sd_02_a_refusal_has_its_status_message_and_request_id() -> None:
    """SD-02: what the server says is what the caller sees."""
    error = refused(401, '{"error":{"message":"bad key"}}', x_request_id="req_1")
    assert isinstance(error, AuthenticationError)
    assert (str(error), error.status, error.request_id) == ("bad key", 401, "req_1")
    assert error.code == "invalid_api_key"


def test_a_refusal_keeps_code_param_and_type() -> None:
    body = '{"error":{"message":"m","code":"unsupported_parameter","param":"top_p","type":"t"}}'
    error = refused(400, body)
    assert isinstance(error, BadRequest)
    assert (error.code, error.param, error.type) == ("unsupported_parameter", "top_p", "t")


def test_sd_02_html_is_trimmed_to_its_words() -> None:
    """SD-02: a proxy's page is one short line."""
    page = (
        "<html><head><title>404 Not\nFound</title><style>b{}</style></head><body>...</body></html>"
    )
    error = refused(404, page)
    assert isinstance(error, NotFound)
    assert str(error) == "host:1 answered 404 Not Found: 404 Not Found"
    bare = refused(502, "<script>alert(1)</script><h1>Bad&amp;worse</h1> <p>sorry</p>")
    assert isinstance(bare, ServerError)
    assert str(bare) == "host:1 answered 502 Bad Gateway: Bad&worse sorry"
    long = refused(503, "x" * 100_000)
    assert isinstance(long, Unavailable)
    assert len(str(long)) < 300


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ('{"error":"short"}', "short"),
        ('{"message":"m"}', "m"),
        ('{"detail":"d"}', "d"),
        ("", "host:1 answered 400 Bad Request"),
        ("plain\n words", "host:1 answered 400 Bad Request: plain words"),
        ('{"error":{"message":7,"code":[]}}', "host:1 answered 400 Bad Request"),
        ("[1]", "host:1 answered 400 Bad Request: [1]"),
    ],
)
def test_other_shapes_of_error_say_what_they_can(body: str, says: str) -> None:
    assert str(refused(400, body)).startswith(says)


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"Retry-After": "3"}, 3.0),
        ({"Retry-After": "0.5"}, 0.5),
        ({"Retry-After": "9", "retry-after-ms": "250"}, 0.25),
        (
            {
                "Retry-After": "Tue, 01 Dec 2026 10:00:30 GMT",
                "Date": "Tue, 01 Dec 2026 10:00:00 GMT",
            },
            30.0,
        ),
        ({"Retry-After": "Tue, 01 Dec 2020 10:00:00 GMT"}, 0.0),
        ({"Retry-After": "-4"}, 0.0),
        ({"Retry-After": "nan"}, None),
        ({"Retry-After": "soon"}, None),
        ({}, None),
    ],
)
def test_sd_02_a_refusal_says_when_a_retry_can_help(
    headers: dict[str, str], seconds: float | None
) -> None:
    """SD-02: Retry-After as a number or a date, by the server's own clock."""
    error = refused(429, "{}", **headers)
    assert isinstance(error, RateLimited)
    assert error.retry_after == seconds


def test_a_redirect_is_not_the_api() -> None:
    error = refused(302, "", Location="http://elsewhere/")
    assert isinstance(error, ConnectionLost)
    assert "302, to http://elsewhere/" in str(error)


def test_an_event_that_is_no_json_is_a_violation() -> None:
    with pytest.raises(ProtocolViolation):
        web.decode(b"{")


def test_ev_09_an_unknown_event_keeps_its_bytes_and_its_lane() -> None:
    """EV-09: and so does one whose item is null."""
    raw = b'{"type":"acme:gauge","sequence_number":4,"v":1,"stream_id":"a"}'
    event = web.decode(raw)
    assert isinstance(event, events.Opaque)
    assert (event.type, bytes(event.raw), event.stream_id) == ("acme:gauge", raw, "a")
    null = web.decode(b'{"type":"response.output_item.added","output_index":0,"item":null}')
    assert isinstance(null, events.Opaque)


def test_timing_by_its_name_on_this_wire_is_timing() -> None:
    raw = b'{"type":"responsesapi.websocket_timing","response_id":"r","stream_id":"a",'
    metrics = b'{"decode_us":1500,"overhead_us":20,"engine_service_total_ms":1.5}'
    event = web.decode(raw + b'"timing_metrics":' + metrics + b"}")
    assert event == events.Timing(
        response_id="r", stream_id="a", phases={"decode": 1500, "overhead": 20}
    )


@pytest.mark.parametrize("metrics", ["null", '{"x_ms":1}', '{"decode_us":"soon"}', "[]"])
def test_timing_of_another_kind_is_handed_over_as_it_is(metrics: str) -> None:
    raw = f'{{"type":"responsesapi.websocket_timing","timing_metrics":{metrics}}}'.encode()
    assert isinstance(web.decode(raw), events.Opaque)


@pytest.mark.parametrize(
    "tls", [Tls(ca="/no/ca"), Tls(cert="/no/cert"), Tls(cert="/no/cert", key="/no/key")]
)
def test_a_file_that_cannot_be_read_is_named(tls: Tls) -> None:
    with pytest.raises(FileNotFoundError) as caught:
        web.secure(endpoint("wss", "h:1", tls=tls))
    assert caught.value.filename in ("/no/ca", "/no/cert")


def test_a_file_that_holds_no_certificate_is_an_error_of_the_system(tmp_path: Path) -> None:
    empty = tmp_path / "empty.pem"
    empty.write_text("")
    with pytest.raises(OSError, match="PEM"):
        web.secure(endpoint("https", "h:1", tls=Tls(cert=str(empty), key=str(empty))))


def test_tls_settings_are_for_tls_only() -> None:
    assert web.secure(endpoint("http", "h:1", tls=Tls(ca="/no/ca"))) is True


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (aiohttp.ConnectionTimeoutError("t"), "no answer from h:1"),
        (aiohttp.SocketTimeoutError("t"), "the server is silent"),
        (aiohttp.ServerDisconnectedError(), "Server disconnected"),
        (OSError(5, "input"), "input"),
        (aiohttp.ClientPayloadError(), "lost the connection to h:1: "),
    ],
)
def test_every_failure_of_the_connection_is_a_loss(error: BaseException, says: str) -> None:
    found: Any = web.loss(error, endpoint("http", "h:1"))
    assert isinstance(found, ConnectionLost)
    assert not isinstance(found, ApiError)
    assert says in str(found)
