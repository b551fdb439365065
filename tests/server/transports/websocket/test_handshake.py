"""The upgrade: what is accepted, what is echoed, and how a refusal looks."""

import hashlib
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from tests.support.grpc_engine import Step, tool_call
from tests.support.websocket_client import Refused
from tests.support.websocket_harness import Served, serve
from tieline.errors import ApiError
from tieline_server.core.deltas import Accepted, Finish, TextDelta
from tieline_server.core.effects import Prompt

CODEX = {
    "session-id": "5d0d9a2e",
    "thread-id": "5d0d9a2e",
    "x-client-request-id": "5d0d9a2e",
    "originator": "codex_cli_rs",
    "version": "0.130.0",
    "User-Agent": "codex_cli_rs/0.130.0",
    "chatgpt-account-id": "acc",
    "x-codex-turn-metadata": '{"turn_id":"1"}',
    "x-codex-window-id": "5d0d9a2e:0",
    "x-codex-beta-features": "a,b",
    "Sec-WebSocket-Extensions": "permessage-deflate; client_max_window_bits",
}
"""What Codex sends (wire.md 1.2)."""


async def refused(served: Served, **how: Any) -> Refused:
    with pytest.raises(Refused) as caught:
        async with served.socket(**how):
            pass
    return caught.value


@pytest.mark.parametrize(
    "beta",
    [None, "responses_websockets=2026-02-06", "responses_multi_agent=v1", "something, else"],
)
async def test_a_codex_shaped_upgrade_is_accepted_with_any_beta(beta: str | None) -> None:
    headers = {**CODEX, **({} if beta is None else {"OpenAI-Beta": beta})}
    async with serve() as served, served.socket(headers=headers) as socket:
        assert socket.headers["x-request-id"].startswith("req_")
        assert "sec-websocket-extensions" not in socket.headers
        assert "sec-websocket-protocol" not in socket.headers
        assert "x-codex-turn-state" not in socket.headers
        assert (await socket.turn())[-1]["type"] == "response.completed"


async def test_codexs_turn_state_comes_back() -> None:
    headers = {"x-codex-turn-state": "opaque=="}
    async with serve() as served, served.socket(headers=headers) as socket:
        assert socket.headers["x-codex-turn-state"] == "opaque=="


@pytest.mark.parametrize(
    ("offered", "agreed"),
    [
        ("openai-beta.responses.v1", "openai-beta.responses.v1"),
        ("openai-insecure-api-key.x, responses", "responses"),
        ("realtime,responses , openai-insecure-api-key.x", "responses"),
    ],
)
async def test_cn_11_a_known_subprotocol_is_agreed_to(offered: str, agreed: str) -> None:
    headers = {"Sec-WebSocket-Protocol": offered}
    async with serve() as served, served.socket(headers=headers) as socket:
        assert socket.headers["sec-websocket-protocol"] == agreed
        assert (await socket.turn())[-1]["type"] == "response.completed"


async def test_cn_11_a_browser_brings_its_key_as_a_subprotocol(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """As with OpenAI: a page cannot send ``Authorization``, which wins where both are there."""
    caplog.set_level("DEBUG")
    digest = hashlib.sha256(b"sk-secret-1").hexdigest()
    keys = tmp_path / "keys.toml"
    keys.write_text(f'[[keys]]\nhash = "sha256:{digest}"\nowner = "a"\n')
    offer = {"Sec-WebSocket-Protocol": "responses, openai-insecure-api-key.sk-secret-1"}
    wrong = {"Sec-WebSocket-Protocol": "responses, openai-insecure-api-key.sk-secret-2"}

    async with serve(api_keys=keys) as served:
        async with served.socket(headers=offer) as socket:
            assert socket.headers["sec-websocket-protocol"] == "responses"
            assert (await socket.turn())[-1]["type"] == "response.completed"
        for refused in (wrong, {**offer, "Authorization": "Bearer sk-secret-2"}):
            with pytest.raises(Refused) as caught:
                async with served.socket(headers=refused):
                    pass
            assert caught.value.error["code"] == "invalid_api_key"
            assert "secret" not in str(caught.value.body)
    assert "secret" not in caplog.text


async def test_cn_11_an_unknown_subprotocol_is_no_reason_to_refuse_and_is_not_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    headers = {"Sec-WebSocket-Protocol": "realtime, openai-insecure-api-key.x"}
    async with serve() as served, served.socket(headers=headers) as socket:
        assert "sec-websocket-protocol" not in socket.headers
        assert (await socket.turn())[-1]["type"] == "response.completed"
    assert caplog.text == ""


async def test_the_v1_header_makes_every_create_a_rollout() -> None:
    headers = {"OpenAI-Beta": "responses_websockets=2026-02-04"}
    async with serve(tool_call) as served, served.socket(headers=headers) as socket:
        await socket.create()
        held = (await socket.until("response.done"))[-1]
        assert held["response"]["status"] == "in_progress"
        (call,) = held["response"]["output"]
        answer = {"type": "function_call_output", "call_id": call["call_id"], "output": "42"}
        await socket.send({"type": "response.append", "input": [answer]})
        rest = await socket.until("response.completed")
        assert rest[-1]["response"]["id"] == held["response"]["id"]
        assert rest[0]["sequence_number"] == held["sequence_number"] + 1


async def test_a_v1_client_that_goes_on_without_appending_gets_no_event_of_the_old_turn() -> None:
    headers = {"OpenAI-Beta": "responses_websockets=2026-02-04"}
    async with serve(tool_call) as served, served.socket(headers=headers) as socket:
        await socket.create()
        held = (await socket.until("response.done"))[-1]["response"]["id"]
        await socket.create("again")
        rest = await socket.until("response.done")
        assert {each["response"]["id"] for each in rest if "response" in each} != {held}
        assert all(each.get("response", {}).get("id") != held for each in rest)


async def test_without_the_v1_header_a_tool_call_completes_the_response() -> None:
    async with serve(tool_call) as served, served.socket() as socket:
        assert (await socket.turn())[-1]["type"] == "response.completed"


@pytest.mark.parametrize(
    ("how", "status"),
    [
        ({"drop": ("Upgrade", "Connection")}, 426),
        ({"drop": ("Connection",)}, 426),
        ({"version": "1.0"}, 426),  # RFC 9110 7.8: no upgrade from there
        ({"headers": {"Upgrade": "h2c"}}, 426),
        ({"headers": {"Sec-WebSocket-Version": "12"}}, 426),
        ({"drop": ("Sec-WebSocket-Key",)}, 400),
        ({"headers": {"Sec-WebSocket-Key": "c2hvcnQ="}}, 400),
        ({"headers": {"Sec-WebSocket-Key": "not base64 at all!"}}, 400),
    ],
)
async def test_au_07_what_is_no_upgrade_gets_an_http_error_with_a_json_body(
    how: dict[str, Any], status: int
) -> None:
    async with serve() as served:
        error = await refused(served, **how)
        assert error.status == status
        assert error.headers["content-type"].startswith("application/json")
        assert set(error.error) == {"message", "type", "param", "code"}
        assert error.error["type"] == "invalid_request_error"
        assert error.headers["x-request-id"].startswith("req_")
        assert error.headers["server"] == "tieline"
        if status == 426:
            assert error.headers["upgrade"] == "websocket"
            assert error.headers["sec-websocket-version"] == "13"
            assert error.error["code"] == "upgrade_required"


async def test_a_caller_without_a_key_is_refused_before_the_upgrade(tmp_path: Path) -> None:
    keys = tmp_path / "keys.toml"
    keys.write_text(f'[[keys]]\nhash = "sha256:{"0" * 64}"\nowner = "a"\n')

    async with serve(api_keys=keys) as served:
        error = await refused(served, headers={"Authorization": "Bearer wrong"})
        assert (error.status, error.error["code"]) == (401, "invalid_api_key")
        assert error.headers["www-authenticate"] == "Bearer"
        assert len(served.endpoint.live) == 0


async def test_a_guard_refuses_before_the_upgrade() -> None:
    def guard(request: web.Request) -> None:
        if request.headers.get("Origin"):
            raise ApiError.of("permission_denied", "Not from a browser.")

    async with serve(guard=guard) as served:
        error = await refused(served, headers={"Origin": "https://evil.example"})
        assert (error.status, error.error["code"]) == (403, "permission_denied")
        async with served.socket() as socket:
            assert (await socket.turn())[-1]["type"] == "response.completed"


async def test_a_draining_server_refuses_with_503_and_when_to_come_back() -> None:
    async with serve() as served:
        await served.endpoint.drain(1.0)
        error = await refused(served)
        assert (error.status, error.error["code"]) == (503, "server_draining")
        assert error.headers["retry-after"] == "1"


async def test_deflate_is_agreed_to_where_the_setting_is_on() -> None:
    headers = {"Sec-WebSocket-Extensions": "permessage-deflate; client_max_window_bits"}
    async with serve(deflate=True) as served, served.socket(headers=headers) as socket:
        assert "permessage-deflate" in socket.headers["sec-websocket-extensions"]
    async with serve(deflate=True) as served, served.socket() as socket:
        assert "sec-websocket-extensions" not in socket.headers


async def slow_start(prompt: Prompt) -> AsyncGenerator[Step, None]:
    yield [Accepted(input_tokens=1)]
    yield [TextDelta("x"), Finish()]


@pytest.mark.parametrize(
    ("headers", "query"),
    [
        ({"x-tieline-extensions": "heartbeat, timing"}, ""),
        ({"x-responsesapi-include-timing-metrics": "true"}, ""),
        ({}, "?x-tieline-extensions=timing"),
    ],
    ids=["header", "Codex's header", "query"],
)
async def test_timing_comes_to_who_asked_for_it(headers: dict[str, str], query: str) -> None:
    async with serve(slow_start) as served:
        async with served.socket(headers=headers, query=query) as socket:
            await socket.create(stream_id="a")
            found = (await socket.until("responsesapi.websocket_timing"))[-1]
            assert found["stream_id"] == "a"
            assert found["timing_metrics"]["total_us"] > 0
        async with served.socket() as other:
            types = {event["type"] for event in await other.turn()}
            assert "responsesapi.websocket_timing" not in types


@pytest.mark.parametrize(
    ("headers", "metadata", "expected"),
    [
        ({"traceparent": "00-a", "tracestate": "s"}, None, "00-a"),
        ({"traceparent": "00-a"}, {"ws_request_header_traceparent": "00-b"}, "00-b"),
        ({"tracestate": "alone"}, {"session_id": "s"}, None),
    ],
)
async def test_a_turn_carries_the_trace_of_its_create_or_of_the_handshake(
    headers: dict[str, str], metadata: dict[str, str] | None, expected: str | None
) -> None:
    async with serve() as served, served.socket(headers=headers) as socket:
        await socket.turn(client_metadata=metadata)
        trace = served.records[0].trace_context
        assert (trace or {}).get("traceparent") == expected
