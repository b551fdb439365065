"""One request as its handler sees it, and what every answer says."""

import re
from typing import Any

import pytest

from tests.support.http_harness import serve
from tieline_server.core.create.limits import Limits
from tieline_server.transports.http.request import API_VERSION
from tieline_server.transports.live_calls import TRACE_HEADERS

PATH = "/v1/responses"
CREATE = {"model": "tiny", "input": "hi", "store": False}
PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("GET", "/healthz", None, 200),
        ("GET", "/v1/models", None, 200),
        ("POST", PATH, CREATE, 200),
        ("POST", PATH, {**CREATE, "stream": True}, 200),
        ("POST", PATH, {}, 400),
        ("GET", "/v1/responses/resp_none", None, 404),
        ("GET", "/nowhere", None, 404),
        ("PUT", PATH, None, 405),
        ("POST", PATH, b"x" * 300, 413),
        ("GET", PATH, None, 426),
    ],
)
async def test_every_answer_says_who_gave_it_and_its_requests_id(
    method: str, path: str, body: Any, status: int
) -> None:
    limits = Limits(message_bytes=256)
    async with serve(limits=limits) as served, served.connection() as client:
        seen = set()
        for _ in range(2):
            reply = await client.ask(method, path, body)
            assert reply.status == status
            headers = reply.headers
            assert headers["server"] == "tieline"
            assert headers["openai-version"] == API_VERSION
            assert int(headers["openai-processing-ms"]) >= 0
            seen.add(headers["x-request-id"])
            if status in (413, 426):
                return
        assert len(seen) == 2
        assert all(re.fullmatch("req_[0-9a-f]{32}", each) for each in seen)


async def test_a_whole_answer_says_where_its_time_went() -> None:
    async with serve() as served, served.connection() as client:
        reply = await client.ask("POST", PATH, CREATE)
        phases = dict(each.split(";dur=") for each in reply.headers["server-timing"].split(", "))
        assert {"validate", "decode", "total"} <= set(phases)
        # Microseconds are three decimals of a millisecond.
        assert float(phases["total"]) * 1000 == served.records[0].times.phases()["total"]


async def test_a_stream_says_when_it_was_created() -> None:
    async with serve() as served, served.connection() as client:
        reply = await client.ask("POST", PATH, {**CREATE, "stream": True})
        name, spent = reply.headers["server-timing"].split(";dur=")
        assert (name, float(spent) > 0) == ("created", True)


@pytest.mark.parametrize(
    ("headers", "seen"),
    [
        ({}, None),
        ({"tracestate": "a=b", "baggage": "c=d"}, None),
        ({"traceparent": PARENT}, {"traceparent": PARENT}),
        (
            {"traceparent": PARENT, "tracestate": "a=b", "baggage": "c=d"},
            {"traceparent": PARENT, "tracestate": "a=b", "baggage": "c=d"},
        ),
    ],
)
async def test_a_trace_context_is_three_headers_of_which_the_first_must_be_there(
    headers: dict[str, str], seen: dict[str, str] | None
) -> None:
    async with serve() as served, served.connection() as client:
        await client.ask("POST", PATH, CREATE, **headers)
        assert served.records[0].trace_context == seen
        assert set(seen or ()) <= set(TRACE_HEADERS)


async def test_the_id_in_a_path_is_all_of_its_part() -> None:
    async with serve() as served, served.connection() as client:
        for name, shown in (("a.b-c_d", "a.b-c_d"), ("%41", "A"), ("%ff", "%ff"), ("..", "..")):
            reply = await client.ask("GET", f"{PATH}/{name}")
            assert reply.error["message"] == f"Response with id '{shown}' not found."
        long = await client.ask("GET", f"{PATH}/{'x' * 9000}")
        assert long.error["message"] == f"Response with id '{'x' * 128}' not found."
