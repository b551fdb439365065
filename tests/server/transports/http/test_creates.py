"""``POST /v1/responses``: one turn, whole or streamed; what refuses it; who leaves early."""

import asyncio
import json
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest

from tests.support.garbage import none_left
from tests.support.grpc_engine import INPUT_TOKENS, Answer, Step, endless, gated, hello, tool_call
from tests.support.http_client import request_bytes
from tests.support.http_harness import serve
from tieline import responses
from tieline_server.core.create.limits import Limits
from tieline_server.core.create.profile import PROFILES
from tieline_server.core.deltas import Accepted, TextDelta
from tieline_server.core.effects import Prompt
from tieline_server.engines.base import EngineError
from tieline_server.runtime import ConnectionDriver

PATH = "/v1/responses"
CREATE = {"model": "tiny", "input": "hi"}
STREAM = {**CREATE, "stream": True}
KEYS = '[[keys]]\nhash = "sha256:{}"\nowner = "ann"\nmodels = ["tiny"]\n'
SECRET = "2bb80d537b1da3e38bd30361aa855686bde0eacd7162fef6a25fe97bf527a25b"
CODEX = {
    "session-id": "7b0c",
    "thread-id": "7b0c",
    "session_id": "7b0c",
    "conversation_id": "7b0c",
    "originator": "codex_cli",
    "version": "0.171.0",
    "OpenAI-Beta": "responses=experimental",
    "chatgpt-account-id": "acc",
    "x-codex-turn-state": "opaque",
    "x-codex-turn-metadata": json.dumps({"note": "x" * 9000}),
    "x-codex-window-id": "7b0c:0",
    "x-codex-installation-id": "i",
    "x-codex-parent-thread-id": "p",
    "x-openai-subagent": "review",
    "x-codex-beta-features": "a,b",
    "x-codex-sandbox": "seccomp",
    "x-oai-attestation": "v1.x",
    "x-openai-internal-codex-responses-lite": "true",
    "x-openai-memgen-request": "true",
    "OpenAI-Project": "proj",
    "Idempotency-Key": "k",
    "OpenAI-Organization": "o",
    "X-Client-Request-Id": "mine",
}


def refusing(code: str, *, accepted: bool) -> Answer:
    async def answer(prompt: Prompt) -> AsyncGenerator[Step, None]:
        if accepted:
            yield [Accepted(input_tokens=INPUT_TOKENS), TextDelta("half")]
        raise EngineError.of(code, "No.")
        yield []

    return answer


async def test_a_response_comes_whole_with_all_its_members_and_its_headers() -> None:
    async with serve() as served, served.connection() as client:
        reply = await client.ask("POST", PATH, CREATE)
        assert reply.status == 200
        assert reply.headers["content-type"] == "application/json"
        assert reply.headers["x-request-id"].startswith("req_")
        assert reply.headers["openai-version"] == "2020-10-01"
        assert int(reply.headers["openai-processing-ms"]) >= 0
        timings = reply.headers["server-timing"].split(", ")
        assert {"total", "prefill", "overhead"} <= {each.split(";dur=")[0] for each in timings}
        assert set(reply.json) == set(responses.Response.__struct_fields__)
        assert reply.json["status"] == "completed"
        assert reply.json["output"][0]["content"][0]["text"] == "Hello, world."
        assert reply.json["usage"]["total_tokens"] == INPUT_TOKENS + 2
        assert served.transports == ["http"]


async def test_a_stream_is_the_events_of_the_turn_numbered_from_zero() -> None:
    async with serve() as served, served.connection() as client:
        client.request("POST", PATH, STREAM)
        head = await client.head()
        assert head.status == 200
        assert head.headers["content-type"] == "text/event-stream; charset=utf-8"
        assert head.headers["server-timing"].startswith("created;dur=")
        assert head.headers["x-request-id"].startswith("req_")
        events = await client.events()
        assert [event["sequence_number"] for event in events] == list(range(10))
        assert [event["type"].removeprefix("response.") for event in events] == [
            "created",
            "in_progress",
            "output_item.added",
            "content_part.added",
            "output_text.delta",
            "output_text.delta",
            "output_text.done",
            "content_part.done",
            "output_item.done",
            "completed",
        ]
        assert served.transports == ["sse"]


async def test_many_requests_go_over_one_connection() -> None:
    async with serve() as served, served.connection() as client:
        for number in range(50):
            client.request("POST", PATH, STREAM if number % 2 else CREATE)
            reply = await client.reply()
            assert reply.status == 200
        assert len(served.records) == 50
        assert len(served.server.connections.open) == 1


ODD = {"tempratur": 1, "ünknown": 2, "tools": [{"type": "web_search"}]}


async def test_in_07_what_is_ignored_is_in_a_header_of_the_answer() -> None:
    async with serve() as served, served.connection() as client:
        for body in ({**CREATE, **ODD}, {**CREATE, **ODD, "background": True}):
            reply = await client.ask("POST", PATH, body)
            assert reply.status == 200
            assert "warnings" not in reply.json
            said = reply.headers["x-tieline-warnings"]
            assert said.isascii()
            assert [(each["code"], each["param"]) for each in json.loads(said)] == [
                ("unknown_parameter", "tempratur"),
                ("unknown_parameter", "ünknown"),
                ("unsupported_tool", "tools[0].type"),
            ]
            assert "'temperature'" in json.loads(said)[0]["message"]
        plain: dict[str, Any] = {**CREATE, "stream_options": {}, "moderation": None}
        assert "x-tieline-warnings" not in (await client.ask("POST", PATH, plain)).headers


async def test_in_07_a_stream_has_the_header_and_openais_events_unless_more_is_asked_for() -> None:
    async with serve() as served, served.connection() as client:
        for headers in ({}, {"x-tieline-extensions": "warnings"}):
            client.request("POST", PATH, {**STREAM, **ODD}, headers=headers)
            head = await client.head()
            assert len(json.loads(head.headers["x-tieline-warnings"])) == 3
            created, *others = await client.events()
            assert ("warnings" in created) is bool(headers)
            assert not any("warnings" in event for event in others)


async def test_in_07_a_header_of_warnings_ends_where_clients_would_refuse_it() -> None:
    async with serve() as served, served.connection() as client:
        odd = {"ü" * 60 + str(number): 1 for number in range(20)}
        reply = await client.ask("POST", PATH, {**CREATE, **odd})
        said = reply.headers["x-tieline-warnings"]
        assert len(said) < 4200
        assert 1 < len(json.loads(said)) < 16


async def test_in_07_where_nothing_may_be_ignored_it_is_the_status() -> None:
    async with serve(limits=Limits(ignores=False)) as served, served.connection() as client:
        for body in ({**CREATE, "tempratur": 1}, {**STREAM, "tempratur": 1}):
            reply = await client.ask("POST", PATH, body)
            assert reply.status == 400
            assert reply.json["error"]["code"] == "unknown_parameter"
            assert reply.json["error"]["param"] == "tempratur"


async def test_pipelined_requests_are_answered_in_order() -> None:
    async with serve() as served, served.connection() as client:
        paths = ["/v1/models", "/healthz", "/v1/responses/resp_1"]
        client.send(b"".join(request_bytes("GET", path) for path in paths))
        assert [(await client.reply()).status for _ in paths] == [200, 200, 404]


async def test_a_chain_goes_on_by_its_id_from_any_connection() -> None:
    async with serve(tool_call) as served:
        tools = [{"type": "function", "name": "look", "parameters": {}}]
        async with served.connection() as client:
            first = (await client.ask("POST", PATH, {**CREATE, "tools": tools})).json
            (call,) = first["output"]
            assert call["name"] == "look"
        output = {"type": "function_call_output", "call_id": call["call_id"], "output": "cat"}
        body = {"model": "tiny", "previous_response_id": first["id"], "input": [output]}
        async with served.connection() as client:
            second = (await client.ask("POST", PATH, body)).json
            assert second["output"][0]["content"][0]["text"] == "seen"
            assert second["previous_response_id"] == first["id"]
            lost = await client.ask("POST", PATH, {**body, "input": []})
            assert lost.error["code"] == "tool_output_missing"


async def test_headers_of_known_clients_are_accepted() -> None:
    async with serve() as served, served.connection() as client:
        client.request("POST", PATH, CREATE, headers=CODEX)
        assert (await client.reply()).status == 200


async def test_a_trace_context_is_the_parent_of_the_turn() -> None:
    async with serve() as served, served.connection() as client:
        parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
        await client.ask("POST", PATH, CREATE, traceparent=parent, tracestate="a=b")
        assert served.records[0].trace_context == {"traceparent": parent, "tracestate": "a=b"}


@pytest.mark.parametrize(
    ("body", "status", "code", "param"),
    [
        (b"{not json", 400, "invalid_json", None),
        (b"", 400, "invalid_json", None),
        (b"\xff\xfe", 400, "invalid_json", None),
        (b"[1]", 400, "invalid_type", None),
        (b'"text"', 400, "invalid_type", None),
        (b'{"input": ' + b"[" * 300 + b"]" * 300 + b"}", 400, "invalid_json", "input"),
        ({"input": 7}, 400, "invalid_type", "input"),
        ({"input": "x", "top_p": "high"}, 400, "invalid_type", "top_p"),
        ({"input": "x", "temperature": 9}, 400, "decimal_above_max_value", "temperature"),
        ({"input": "x", "stream": "yes"}, 400, "invalid_type", "stream"),
        ({"model": "tiny"}, 400, "missing_required_parameter", "input"),
        ({"input": "x", "model": "none"}, 404, "model_not_found", "model"),
        ({"input": "x", "background": True, "store": False}, 400, "invalid_value", "background"),
        ({"input": "x", "append": True}, 400, "unsupported_parameter", "append"),
        ({"input": "x", "generate": False}, 400, "unsupported_parameter", "generate"),
        ({"input": "x", "stream_id": "a"}, 400, "unsupported_parameter", "stream_id"),
        ({"input": "x", "conversation": "c"}, 400, "unsupported_parameter", "conversation"),
        (
            {"input": "x", "previous_response_id": "resp_x"},
            400,
            "previous_response_not_found",
            "previous_response_id",
        ),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
async def test_er_06_a_refusal_is_a_status_and_never_a_stream(
    body: Any, status: int, code: str, param: str | None, stream: bool
) -> None:
    if isinstance(body, dict):
        body = {"stream": stream, **body}

    async with serve() as served, served.connection() as client:
        reply = await client.ask("POST", PATH, body)
        assert reply.status == status
        assert (reply.error["code"], reply.error["param"]) == (code, param)
        assert reply.headers["x-should-retry"] == "false"
        assert reply.headers["x-request-id"].startswith("req_")
        assert (await client.ask("GET", "/healthz")).status == 200


@pytest.mark.parametrize("stream", [False, True])
async def test_an_engine_that_refuses_is_its_status(stream: bool) -> None:
    answer = refusing("engine_unavailable", accepted=False)
    async with serve(answer) as served, served.connection() as client:
        reply = await client.ask("POST", PATH, {**CREATE, "stream": stream})
        assert (reply.status, reply.error["code"]) == (503, "engine_unavailable")
        assert reply.headers["x-should-retry"] == "true"


async def test_a_response_that_fails_after_its_start_is_an_event_or_its_status() -> None:
    answer = refusing("context_length_exceeded", accepted=True)
    async with serve(answer) as served, served.connection() as client:
        whole = await client.ask("POST", PATH, CREATE)
        assert (whole.status, whole.error["code"]) == (400, "context_length_exceeded")
        client.request("POST", PATH, STREAM)
        assert (await client.head()).status == 200
        last = (await client.events())[-1]
        assert last["type"] == "response.failed"
        assert last["response"]["error"]["code"] == "context_length_exceeded"


async def test_an_engines_own_code_is_a_server_error_to_who_asks_for_the_whole() -> None:
    answer = refusing("gpu_on_fire", accepted=True)
    async with serve(answer) as served, served.connection() as client:
        reply = await client.ask("POST", PATH, CREATE)
        assert (reply.status, reply.error["code"]) == (500, "server_error")
        assert reply.error["message"] == "No."


async def test_what_an_exception_said_reaches_no_client(caplog: pytest.LogCaptureFixture) -> None:
    async def broken(prompt: Prompt) -> AsyncGenerator[Step, None]:
        raise RuntimeError("a secret")
        yield []

    async with serve(broken) as served, served.connection() as client:
        reply = await client.ask("POST", PATH, CREATE)
        assert reply.status == 500
        assert b"secret" not in reply.body
        assert reply.headers["x-should-retry"] == "true"


async def test_keys_say_who_may_ask_and_for_which_models(tmp_path: Path) -> None:
    path = tmp_path / "keys.toml"
    path.write_text(KEYS.format(SECRET))

    async with serve(api_keys=path) as served, served.connection() as client:
        for header in ({}, {"authorization": "Bearer wrong"}, {"authorization": "secret"}):
            reply = await client.ask("POST", PATH, CREATE, **header)
            assert (reply.status, reply.error["code"]) == (401, "invalid_api_key")
            assert reply.headers["www-authenticate"] == "Bearer"
        mine = {"authorization": "Bearer secret"}
        assert (await client.ask("POST", PATH, CREATE, **mine)).status == 200
        other = await client.ask("POST", PATH, {**CREATE, "model": "other"}, **mine)
        assert (other.status, other.error["code"]) == (403, "model_not_allowed")
        assert [record.owner for record in served.records] == ["ann", "ann"]


async def test_who_is_not_known_is_told_before_the_body_is_read(tmp_path: Path) -> None:
    path = tmp_path / "keys.toml"
    path.write_text(KEYS.format(SECRET))

    async with serve(api_keys=path, linger_timeout=0) as served, served.connection() as client:
        client.send(b"POST /v1/responses HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\n\r\n")
        assert (await client.reply()).status == 401
        assert await client.eof() == b""


@pytest.mark.parametrize("stream", [False, True])
async def test_cn_01_a_client_that_leaves_before_the_first_token_ends_its_turn(
    stream: bool,
) -> None:
    async with serve(gated(asyncio.Event())) as served:
        async with served.connection() as client:
            client.request("POST", PATH, {**CREATE, "stream": stream, "store": False})
            await served.until(lambda: served.engine.started == 1)
        await served.until(lambda: len(served.records) == 1, seconds=1.0)
        assert served.engine.cancelled == 1
        (record,) = served.records
        assert record.outcome == "disconnected"
        assert record.usage.input_tokens == INPUT_TOKENS


async def test_cn_01_a_client_that_resets_amid_a_stream_ends_its_turn() -> None:
    async with serve(endless) as served, served.connection() as client:
        client.request("POST", PATH, {**STREAM, "store": False})
        await client.head()
        await anext(client.chunks())
        client.reset()
        await served.until(lambda: len(served.records) == 1, seconds=1.0)
        assert (served.engine.cancelled, served.records[0].outcome) == (1, "disconnected")
        assert served.records[0].usage.output_tokens > 0


async def test_cn_01_a_client_that_leaves_a_whole_answer_ends_its_turn() -> None:
    async with serve(endless) as served:
        async with served.connection() as client:
            client.request("POST", PATH, {**CREATE, "store": False})
            await served.until(lambda: served.engine.started == 1)
        await served.until(lambda: len(served.records) == 1, seconds=1.0)
        assert served.engine.cancelled == 1


async def test_a_stream_that_its_client_left_is_not_stored() -> None:
    async with serve(endless) as served:
        async with served.connection() as client:
            client.request("POST", PATH, {**STREAM, "store": True})
            await client.head()
            first = await anext(client.chunks())
        await served.until(lambda: len(served.records) == 1, seconds=1.0)
        response_id = json.loads(first.split(b"\n")[1][6:])["response"]["id"]
        async with served.connection() as client:
            gone = await client.ask("GET", f"{PATH}/{response_id}")
            assert (gone.status, gone.error["code"]) == (404, "response_not_found")


async def test_a_turn_of_a_stream_can_be_cancelled_by_its_id() -> None:
    async with (
        serve(gated(asyncio.Event())) as served,
        served.connection() as client,
        served.connection() as other,
    ):
        client.request("POST", PATH, STREAM)
        await client.head()
        first = await anext(client.chunks())
        response_id = json.loads(first.split(b"\n")[1][6:])["response"]["id"]
        reply = await other.ask("POST", f"{PATH}/{response_id}/cancel")
        assert (reply.json["id"], reply.json["status"]) == (response_id, "cancelled")
        rest = b"".join([chunk async for chunk in client.chunks()])
        assert rest.startswith(b"event: response.incomplete\n")
        assert b'"status":"cancelled"' in rest
        assert rest.endswith(b"data: [DONE]\n\n")


async def test_timing_is_an_event_of_the_stream_for_who_asks() -> None:
    async with serve() as served, served.connection() as client:
        client.request("POST", PATH, STREAM, headers={"x-tieline-extensions": "timing"})
        await client.head()
        events = await client.events()
        assert [event["type"] for event in events[-2:]] == [
            "responsesapi.websocket_timing",
            "response.completed",
        ]


async def test_the_open_responses_profile_writes_one_event_at_a_time_and_only_known_ones() -> None:
    profile = PROFILES["open-responses"]
    async with serve(profile=profile) as served, served.connection() as client:
        headers = {"x-tieline-extensions": "timing,heartbeat"}
        client.request("POST", PATH, STREAM, headers=headers)
        await client.head()
        chunks = [chunk async for chunk in client.chunks()]
        assert [chunk.count(b"data: ") for chunk in chunks] == [1] * 11
        assert chunks[-1] == b"data: [DONE]\n\n"
        refused = await client.ask("POST", PATH, {**CREATE, "timeout_ms": 5})
        assert refused.error["code"] == "unsupported_parameter"


async def test_an_old_client_gets_a_stream_that_ends_with_its_connection() -> None:
    async with serve(hello) as served, served.connection() as client:
        body = json.dumps(STREAM).encode()
        client.send(
            b"POST /v1/responses HTTP/1.0\r\nContent-Type: application/json\r\n"
            b"Content-Length: %d\r\n\r\n%b" % (len(body), body)
        )
        assert (await client.head()).headers.get("transfer-encoding") is None
        assert (await client.eof()).endswith(b"data: [DONE]\n\n")


@pytest.mark.parametrize("members", [{}, {"stream": True}, {"stream": True, "resumable": True}])
async def test_a_request_that_is_over_leaves_nothing_for_the_garbage_collector(
    members: dict[str, object],
) -> None:
    """A line for each request that waited for a collection would cost a fortieth of the CPU."""

    async with serve(hello) as served, served.connection() as client:
        with none_left(ConnectionDriver):
            for _ in range(3):
                client.request("POST", PATH, {**CREATE, **members})
                await client.reply()
            await served.until(lambda: not served.services.running.connections)
            await client.ask("GET", "/healthz")
