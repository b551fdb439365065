"""The table of transports, and each entry against the real server."""

import asyncio
import inspect
import json
import logging
import subprocess
import sys
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from tests.client import web as scripted
from tests.client.servicer import Speaker
from tests.support.grpc_certificates import Authority
from tests.support.server_process import ServerProcess, serving, write_script
from tieline.errors import ERRORS, ApiError, BadRequest, NotFound, RateLimited
from tieline_client import connect_session, connect_session_sync, connect_sync
from tieline_client.agent import Agent
from tieline_client.aio import connect
from tieline_client.errors import ConnectionLost, FailedResponse
from tieline_client.transports import TRANSPORTS, Options, Tls, opener


@pytest.mark.parametrize("scheme", list(TRANSPORTS))
def test_every_entry_is_an_opener(scheme: str) -> None:
    assert inspect.iscoroutinefunction(opener(scheme))


def say(url: str, tls: Tls | None = None) -> str:
    async def main() -> str:
        async with connect(url, tls=tls) as connection:
            return (await (await connection.create(input="hello")).result()).text

    return asyncio.run(main())


PLAIN = ("grpc", "ws", "http")


@pytest.fixture(scope="module")
def server() -> Iterator[ServerProcess]:
    with serving() as process:
        yield process


def url_of(server: ServerProcess, scheme: str) -> str:
    address = server.address if scheme.startswith("grpc") else server.http
    return f"{scheme}://{address}"


@pytest.mark.parametrize("scheme", PLAIN)
def test_plain_text(server: ServerProcess, scheme: str) -> None:
    assert "hello" in say(url_of(server, scheme))


BROKEN = {
    "id": "break",
    "when": {},
    "emit": [
        {"type": "message", "text": "a b c d"},
        {
            "type": "error",
            "status": 429,
            "code": "rate_limit_exceeded",
            "message": "It broke.",
            "after_tokens": 2,
        },
    ],
}


@pytest.fixture(scope="module")
def breaking(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server whose responses all fail after two tokens."""
    script = write_script(tmp_path_factory.mktemp("breaking"), rules=[BROKEN])
    with serving("--script", script) as process:
        yield process


async def on_line(url: str) -> None:
    async with connect(url) as connection:
        await (await connection.create(input="a")).result()


async def on_session(url: str) -> None:
    async with connect_session(url) as session:
        await (await session.conversation().create(input="a")).result()


async def of_agent(url: str) -> None:
    async with connect_session(url) as session:
        await Agent(session).run("a")


async def of_blocking_line(url: str) -> None:
    def work() -> None:
        with connect_sync(url) as connection:
            connection.create(input="a").result()

    await asyncio.to_thread(work)


async def of_blocking_session(url: str) -> None:
    def work() -> None:
        with connect_session_sync(url) as session:
            list(session.conversation().create(input="a"))

    await asyncio.to_thread(work)


FACES = (on_line, on_session, of_agent, of_blocking_line, of_blocking_session)


@pytest.mark.parametrize("scheme", PLAIN)
@pytest.mark.parametrize("face", FACES)
def test_cn_13_a_response_that_fails_is_on_the_exception(
    breaking: ServerProcess, scheme: str, face: Callable[[str], Coroutine[Any, Any, None]]
) -> None:
    """CN-13: with its id, its model, its partial output and the tokens that it has used."""
    with pytest.raises(FailedResponse) as caught:
        asyncio.run(face(url_of(breaking, scheme)))
    error = caught.value
    assert isinstance(error, RateLimited)
    assert (error.code, str(error)) == ("rate_limit_exceeded", "It broke.")
    assert error.response_id.startswith("resp_")
    assert error.model == "scripted"
    assert error.response.status == "failed"
    assert error.usage is not None
    assert error.usage.output_tokens == 2
    assert error.usage.input_tokens > 0


@pytest.mark.parametrize("scheme", PLAIN)
async def test_cn_13_a_response_that_is_cut_or_cancelled_is_a_result_with_its_usage(
    server: ServerProcess, scheme: str
) -> None:
    """CN-13: those raise nowhere."""

    async with connect(url_of(server, scheme)) as connection:
        cut = await (await connection.create(input="hello you", max_output_tokens=1)).result()
        assert (cut.response.status, cut.response.model) == ("incomplete", "scripted")
        assert cut.usage is not None
        assert cut.usage.output_tokens == 1


@pytest.mark.parametrize("scheme", PLAIN)
async def test_a_stored_response_is_continued_and_its_time_is_told(
    server: ServerProcess, scheme: str
) -> None:
    async with connect(url_of(server, scheme)) as connection:
        first = await (await connection.lane("a").create(input="one", store=True)).result()
        assert first.timing is not None
        assert {"decode", "overhead"} <= set(first.timing)
        parent = first.response.id
        stream = await connection.lane("a").create(input="two", previous_response_id=parent)
        second = await stream.result()
        assert second.response.previous_response_id == parent
        assert second.usage is not None
        assert first.usage is not None
        assert second.usage.input_tokens > first.usage.input_tokens


@pytest.mark.parametrize("scheme", PLAIN)
async def test_sd_03_a_chain_without_a_store_lives_as_long_as_its_line(
    server: ServerProcess, scheme: str
) -> None:
    """SD-03: over HTTP there is no line, and the error is that of any unknown response."""

    async with connect(url_of(server, scheme)) as connection:
        first = await (await connection.create(input="one", store=False)).result()
        stream = await connection.create(input="two", previous_response_id=first.response.id)
        if scheme == "http":
            with pytest.raises(BadRequest) as caught:
                await stream.response()
            assert caught.value.code == "previous_response_not_found"
        else:
            assert (await stream.response()).status == "completed"


@pytest.mark.parametrize("scheme", PLAIN)
async def test_what_the_server_refuses_is_the_same_error_on_each(
    server: ServerProcess, scheme: str
) -> None:
    async with connect(url_of(server, scheme)) as connection:
        with pytest.raises(NotFound) as caught:
            await (await connection.create(input="a", model="nope")).response()
        assert (caught.value.code, caught.value.param) == ("model_not_found", "model")
        assert (await (await connection.create(input="b")).result()).text


REFUSALS = (
    "invalid_request",
    "invalid_api_key",
    "permission_denied",
    "model_not_found",
    "lane_busy",
    "request_too_large",
    "rate_limit_exceeded",
    "cancelled",
    "server_error",
    "server_is_overloaded",
    "deadline_exceeded",
)
"""A code for each status of GR-07."""


CALLS = ("slow", "broken", "quick")
"""Tools of TL-06, in the order in which they are called."""


@pytest.fixture(scope="module")
def ruled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server that fails as it is told, early or late in a response, and calls three tools."""
    errors = [
        {
            "type": "error",
            "status": ERRORS[code].status,
            "code": code,
            "message": f"{code} it is",
            **({"after_tokens": 1} if late else {}),
        }
        for late in (True, False)
        for code in REFUSALS
    ]
    rules: list[dict[str, Any]] = [
        {
            "id": f"rule-{number}",
            "when": {"user_contains": f"{'late' if 'after_tokens' in error else 'early'} {name}"},
            "emit": error,
        }
        for number, error in enumerate(errors)
        for name in [error["code"]]
    ]
    rules += [
        {
            "id": "said",
            "when": {"last": "tool_output"},
            "emit": {"type": "message", "text": "{context}"},
        },
        {"id": "calls", "emit": [{"type": "function_call", "name": name} for name in CALLS]},
    ]
    script = write_script(tmp_path_factory.mktemp("script"), rules=rules)
    with serving("--script", script) as process:
        yield process


@pytest.mark.parametrize("scheme", PLAIN)
@pytest.mark.parametrize("code", REFUSALS)
async def test_gr_07_a_refusal_is_the_same_class_over_every_transport(
    ruled: ServerProcess, scheme: str, code: str
) -> None:
    """GR-07: class, code, status and words; and the line takes the next request."""

    async with connect(url_of(ruled, scheme)) as connection:
        for _ in range(2):
            with pytest.raises(ApiError, match=f"{code} it is") as caught:
                await (await connection.create(input=f"early {code}")).response()
            error = caught.value
            assert type(error) is type(ApiError.of(code, ""))
            assert (error.code, error.status) == (code, ERRORS[code].status)


@pytest.mark.parametrize("scheme", PLAIN)
@pytest.mark.parametrize("code", ["rate_limit_exceeded", "server_error", "server_is_overloaded"])
async def test_gr_07_a_failure_amid_a_response_is_the_same_class_over_every_transport(
    ruled: ServerProcess, scheme: str, code: str
) -> None:
    """GR-07: of the codes that JSON clients are told."""

    async with connect(url_of(ruled, scheme)) as connection:
        with pytest.raises(ApiError, match=f"{code} it is") as caught:
            await (await connection.create(input=f"late {code}")).response()
        assert isinstance(caught.value, type(ApiError.of(code, "")))
        assert caught.value.code == code


@pytest.mark.parametrize("scheme", PLAIN)
@pytest.mark.parametrize("concurrency", [8, 1])
def test_tl_06_parallel_calls_are_answered_each_by_its_own_id_over_every_transport(
    ruled: ServerProcess, scheme: str, concurrency: int
) -> None:
    """TL-06: the slowest first, one that raises between; the model sees three, in call order."""
    release = asyncio.Event()
    finished: list[str] = []

    async def slow() -> str:
        if concurrency > 1:
            await release.wait()
        finished.append("slow")
        return "one"

    async def broken() -> str:
        finished.append("broken")
        raise ValueError("no such thing")

    async def quick() -> str:
        finished.append("quick")
        release.set()
        return "three"

    async def main() -> str:
        async with connect(url_of(ruled, scheme)) as connection:
            tools = [slow, broken, quick]
            agent = Agent(connection, tools=tools, concurrency=concurrency, store=True)
            return (await agent.run("go")).text

    seen = json.loads(asyncio.run(main()))
    made = [item["call_id"] for item in seen if item.get("type") == "function_call"]
    outputs = [item for item in seen if item.get("type") == "function_call_output"]
    assert [item["call_id"] for item in outputs] == made
    assert [item["output"] for item in outputs] == [
        "one",
        "Error: broken raised ValueError: no such thing",
        "three",
    ]
    assert finished == (["broken", "quick", "slow"] if concurrency > 1 else list(CALLS))


@pytest.mark.parametrize("scheme", PLAIN)
async def test_a_running_turn_is_cancelled_with_its_usage(tmp_path: Path, scheme: str) -> None:
    rule = {"id": "long", "emit": {"type": "message", "text": "word " * 2000}}
    script = write_script(tmp_path, rules=[rule], pace={"tokens_per_second": 200})

    with serving("--script", script) as server:
        async with connect(url_of(server, scheme)) as connection:
            stream = await connection.create(input="a", store=False)
            async for _ in stream:
                if stream.text:
                    break
            await stream.cancel()
            response = await stream.response()
            assert response.status == "cancelled"
            assert response.usage is not None
            assert 0 < response.usage.output_tokens < 2000
            assert stream.text


@pytest.mark.parametrize("scheme", ["grpc", "ws"])
async def test_a_line_has_its_session(server: ServerProcess, scheme: str) -> None:
    async with connect(url_of(server, scheme), options=Options(merge="never")) as connection:
        await (await connection.create(input="a")).response()
        assert connection.session is not None
        assert {"heartbeat", "timing"} <= set(connection.session.extensions)


async def test_au_07_the_real_server_without_websocket() -> None:
    """AU-07: its 426 is what the client understands."""

    with serving("--no-websocket") as server:
        async with connect(url_of(server, "ws")) as connection:
            assert connection.transport == "sse"
            assert "hello" in (await (await connection.create(input="hello")).result()).text


def test_tls_with_certificates_on_both_sides(tmp_path: Path) -> None:
    authority = Authority(tmp_path, "authority")
    other = Authority(tmp_path, "other")
    ours, mine, theirs = authority.sign("server"), authority.sign("client"), other.sign("stranger")
    flags = ("--tls-cert", str(ours.certificate), "--tls-key", str(ours.key))
    ca = str(authority.pem.certificate)
    with serving(*flags, "--tls-client-ca", ca) as server:
        port = server.address.rpartition(":")[2]
        url = f"grpcs://localhost:{port}"
        assert "hello" in say(url, Tls(ca=ca, cert=str(mine.certificate), key=str(mine.key)))
        # As a name that the certificate holds, whatever the address is called.
        named = Tls(ca=ca, cert=str(mine.certificate), key=str(mine.key), server_name="localhost")
        assert "hello" in say(f"grpcs://127.0.0.1:{port}", named)
        for refused in (
            Tls(ca=ca),
            Tls(ca=ca, cert=str(theirs.certificate), key=str(theirs.key)),
            Tls(cert=str(mine.certificate), key=str(mine.key)),
        ):
            with pytest.raises(ConnectionLost):
                say(url, refused)
        with pytest.raises(ConnectionLost):
            say(f"grpc://localhost:{port}")
        for scheme in ("wss", "https"):
            port = server.http.rpartition(":")[2]
            url = f"{scheme}://localhost:{port}"
            trusted = Tls(ca=ca, cert=str(mine.certificate), key=str(mine.key))
            assert "hello" in say(url, trusted)
            other_name = Tls(ca=ca, cert=trusted.cert, key=trusted.key, server_name="localhost")
            assert "hello" in say(f"{scheme}://127.0.0.1:{port}", other_name)
            wrong = Tls(ca=ca, cert=trusted.cert, key=trusted.key, server_name="elsewhere")
            for refused in (Tls(ca=ca), Tls(cert=trusted.cert, key=trusted.key), wrong):
                with pytest.raises(ConnectionLost):
                    say(url, refused)


async def without_websocket(request: web.Request) -> web.StreamResponse:
    """A server that serves HTTP and answers 426 to an upgrade."""
    if request.method == "GET":
        error = {"message": "WebSocket is off.", "code": "upgrade_required"}
        return web.json_response({"error": error}, status=426)
    peer = scripted.StreamPeer(request, await request.read())
    await peer.send(*Speaker(peer.create).answer("over HTTP"))
    return peer.response


async def test_au_07_a_server_without_websocket_is_spoken_to_over_http_at_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """AU-07: one refused upgrade, one line at INFO, no error."""
    upgrades = 0

    async def handle(request: web.Request) -> web.StreamResponse:
        nonlocal upgrades
        upgrades += request.method == "GET"
        return await without_websocket(request)

    with caplog.at_level(logging.INFO, logger="tieline_client"):
        async with scripted.serving(handle) as address, connect(f"ws://{address}") as connection:
            assert connection.transport == "sse"
            for _ in range(3):
                assert (await (await connection.create(input="a")).result()).text == "over HTTP"
    assert upgrades == 1
    said = [each for each in caplog.records if each.name == "tieline_client"]
    assert [each.levelname for each in said] == ["INFO"]


async def test_another_refusal_is_no_reason_to_change_the_transport() -> None:
    async def refuse(request: web.Request) -> web.StreamResponse:
        return web.Response(status=404)

    async with scripted.serving(refuse) as address:
        with pytest.raises(NotFound):
            async with connect(f"ws://{address}"):
                pass


def test_a_transport_is_imported_when_its_scheme_is_used() -> None:
    """Importing the client costs neither gRPC nor aiohttp."""
    code = "import sys, tieline_client; print({'grpc', 'aiohttp'} & set(sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout == "set()\n"
