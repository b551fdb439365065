"""The server: its paths, its answers, and how it says goodbye."""

import asyncio
import ssl
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from aiohttp import web

from tests.support.grpc_certificates import Authority
from tests.support.grpc_engine import gated
from tests.support.http_client import Connection
from tests.support.http_harness import Served, serve
from tests.support.runtime import until
from tests.support.websocket_client import RawSocket, Refused
from tieline_server.core.create.limits import Share
from tieline_server.runtime import Services
from tieline_server.transports.client_frames import Gated
from tieline_server.transports.websocket import WebSocketConfig, WebSocketEndpoint
from tieline_server.transports.websocket.incoming import IncomingMessages

PATH = "/v1/responses"
CREATE = {"model": "tiny", "input": "hi", "store": False}
UPGRADE = {
    "Upgrade": "websocket",
    "Connection": "Upgrade",
    "Sec-WebSocket-Version": "13",
    "Sec-WebSocket-Key": "AAAAAAAAAAAAAAAAAAAAAA==",
}


class Echo:
    """Stands where the WebSocket endpoint does: sends back one message, then waits."""

    def __init__(self, _services: Services) -> None:
        self.seconds: float | None = None
        self.over = asyncio.Event()
        self.handled = 0

    async def handle(self, request: web.Request) -> web.StreamResponse:
        socket = web.WebSocketResponse()
        connection = request.protocol
        assert isinstance(connection, Gated)
        connection.gate = IncomingMessages(
            Share(), "local", most=1024, patience=30.0, deflate=False
        )
        await socket.prepare(request)
        self.handled += 1
        try:
            await self.over.wait()
        finally:
            self.handled -= 1
        await socket.close()
        return socket

    async def drain(self, seconds: float) -> None:
        self.seconds = seconds
        self.over.set()


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", "/", 404, "unknown_url"),
        ("POST", "/v1/chat/completions", 404, "unknown_url"),
        ("GET", "/v1/responses/resp_1/nothing", 404, "unknown_url"),
        ("GET", "/v1/responses/", 404, "response_not_found"),
        ("PUT", "/v1/responses", 405, "method_not_allowed"),
        ("POST", "/v1/models", 405, "method_not_allowed"),
        ("GET", "/v1/responses/compact", 405, "method_not_allowed"),
        ("OPTIONS", "/v1/responses", 405, "method_not_allowed"),
        ("GET", "/v1/responses", 426, "upgrade_required"),
        ("GET", "/v1/responses/../models", 404, "unknown_url"),
        ("GET", "/v1/responses/%2e%2e%2fmodels", 404, "unknown_url"),
        ("GET", "//v1/models", 404, "unknown_url"),
        ("GET", "/v1/responses/%ff", 404, "response_not_found"),
        ("GET", "/v1/models/%ED%A0%80", 404, "model_not_found"),
        ("POST", "/v1/responses/resp_1%2Fcancel", 404, "response_not_found"),
        ("CONNECT", "localhost:80", 404, "unknown_url"),
        ("TRACE", "/v1/responses", 405, "method_not_allowed"),
    ],
)
async def test_what_is_not_there_is_a_typed_error(
    method: str, path: str, status: int, code: str
) -> None:
    async with serve() as served, served.connection() as client:
        reply = await client.ask(method, path)
        assert (reply.status, reply.error["code"]) == (status, code)
        if status == 405:
            assert reply.headers["allow"]


async def test_au_07_a_handshake_is_426_with_a_body_where_there_is_no_websocket() -> None:
    async with serve() as served, served.connection() as client:
        client.request("GET", PATH, headers=UPGRADE)
        reply = await client.reply()
        assert (reply.status, reply.error["code"]) == (426, "upgrade_required")
        assert reply.headers["upgrade"] == "websocket"
        assert await client.eof() == b""


def websocket(services: Services) -> WebSocketEndpoint:
    """The real endpoint."""
    return WebSocketEndpoint(services, WebSocketConfig())


async def test_a_head_does_not_upgrade() -> None:
    """RFC 6455 4.1: the method is GET."""

    async with serve(upgrade=websocket) as served, served.connection() as client:
        client.request("HEAD", PATH, headers=UPGRADE)
        assert (await client.head()).status == 426


async def test_health_is_ok_without_a_key_and_head_has_no_body(tmp_path: Path) -> None:
    keys = tmp_path / "keys.toml"
    keys.write_text("keys = []\n")

    async with serve(api_keys=keys) as served, served.connection() as client:
        assert (await client.ask("GET", "/healthz")).json == {"status": "ok"}
        assert (await client.ask("HEAD", "/healthz")).body == b""
        assert (await client.ask("GET", "/metrics")).status == 401
        assert (await client.ask("GET", "/v1/models")).status == 401


async def test_metrics_are_the_text_that_is_given() -> None:
    async def metrics() -> bytes:
        return b"a 1\n"

    async with serve(metrics=metrics) as served, served.connection() as client:
        reply = await client.ask("GET", "/metrics")
        assert reply.body == b"a 1\n"
        assert reply.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"


async def test_a_fault_of_ours_is_a_500_that_says_nothing(caplog: pytest.LogCaptureFixture) -> None:
    async def broken() -> bytes:
        raise OSError("a secret")

    async with serve(metrics=broken) as served, served.connection() as client:
        reply = await client.ask("GET", "/metrics")
        assert (reply.status, reply.error["code"]) == (500, "server_error")
        assert reply.headers["x-request-id"] in caplog.text
        assert b"secret" not in reply.body


async def test_lb_05_websockets_count_among_the_connections_and_resets_free_their_places() -> None:
    """LB-05: the storm on one port, through both servers as the server mounts them."""

    def upgrade(services: Services) -> WebSocketEndpoint:
        return WebSocketEndpoint(services, WebSocketConfig(max_connections=4, merge=False))

    async with serve(upgrade=upgrade, max_connections=4) as served, AsyncExitStack() as stack:

        async def dial() -> RawSocket:
            return await stack.enter_async_context(RawSocket(served.port))

        four = [await dial() for _ in range(4)]
        with pytest.raises(Refused) as caught:
            await dial()
        assert caught.value.status == 429
        assert caught.value.headers["retry-after"] == "1"
        assert caught.value.error["code"] == "too_many_connections"
        four[0].abort()
        four[1].abort()
        async with asyncio.timeout(1.0):
            await gone(served, 2)
        for socket in (four[2], await dial(), await dial()):
            assert (await socket.turn())[-1]["type"] == "response.completed"


async def gone(served: Served, count: int) -> None:
    """Until the server counts so many connections."""
    await until(lambda: served.server.connections.admitted == count)


async def test_a_connection_that_says_nothing_is_closed() -> None:
    async with serve(keepalive_timeout=0.05) as served, served.connection() as client:
        client.send(b"GET /healthz HT")
        assert await client.eof() == b""


async def test_op_02_readiness_is_apart_from_life_and_says_what_is_lacking(tmp_path: Path) -> None:
    keys = tmp_path / "keys.toml"
    keys.write_text("keys = []\n")

    async with serve(api_keys=keys) as served, served.connection() as client:
        readiness = served.services.readiness
        assert (await client.ask("GET", "/readyz")).json == {"status": "ready"}
        readiness.lack("database", "it is away")
        reply = await client.ask("GET", "/readyz")
        assert reply.status == 503
        assert reply.json == {"status": "not_ready", "lacking": {"database": "it is away"}}
        assert (await client.ask("GET", "/healthz")).status == 200
        readiness.have("database")
        assert (await client.ask("HEAD", "/readyz")).status == 200


async def test_a_drain_closes_idle_connections_and_lets_requests_end() -> None:
    gate = asyncio.Event()
    async with (
        serve(gated(gate)) as served,
        served.connection() as idle,
        served.connection() as busy,
    ):
        await idle.ask("GET", "/healthz")
        busy.request("POST", PATH, CREATE)
        await served.until(lambda: served.engine.started == 1)
        drained = asyncio.create_task(served.server.drain(30.0))
        assert await idle.eof() == b""
        async with served.connection() as late:
            reply = await late.ask("GET", "/healthz")
            assert (reply.status, reply.error["code"]) == (503, "server_draining")
            assert reply.headers["connection"] == "close"
        async with served.connection() as late:
            assert (await late.ask("GET", "/readyz")).error["code"] == "server_draining"
        async with served.connection() as late:
            reply = await late.ask("POST", PATH, CREATE)
            assert (reply.status, reply.error["code"]) == (503, "server_draining")
            assert reply.headers["x-should-retry"] == "true"
        gate.set()
        reply = await busy.reply()
        assert (reply.status, reply.headers["connection"]) == (200, "close")
        await drained
        with pytest.raises(ConnectionRefusedError):
            await Connection.open(served.port)


async def test_a_stream_that_does_not_end_in_time_is_cut_with_what_it_has() -> None:
    gate = asyncio.Event()
    async with serve(gated(gate)) as served, served.connection() as client:
        client.request("POST", PATH, {**CREATE, "stream": True})
        await client.head()
        await served.until(lambda: served.engine.started == 1)
        await served.server.drain(0.05)
        last = (await client.events())[-1]
        assert last["type"] == "response.incomplete"
        assert last["response"]["status"] == "incomplete"
        # OpenAI's list of reasons has none for this.
        assert last["response"]["incomplete_details"] is None


async def test_stop_ends_what_runs_and_can_be_called_again() -> None:
    async with serve(gated(asyncio.Event())) as served, served.connection() as client:
        client.request("POST", PATH, CREATE)
        await served.until(lambda: served.engine.started == 1)
        await served.server.stop()
        await served.server.stop()
        assert served.engine.cancelled == 1
        assert served.records[0].outcome == "disconnected"


async def test_a_handshake_goes_to_the_endpoint_which_is_drained_too() -> None:
    async with serve(upgrade=Echo) as served, served.connection() as client:
        echo = served.server._upgrade_to
        assert isinstance(echo, Echo)
        client.request("GET", PATH, headers=UPGRADE)
        assert (await client.head()).status == 101
        assert echo.handled == 1
        async with served.connection() as other:
            other.request("GET", PATH, headers={**UPGRADE, "Origin": "https://evil.example"})
            assert (await other.reply()).status == 403
        drained = asyncio.create_task(served.server.drain(7.0))
        assert (await client.reader.readexactly(2))[0] == 0x88
        client.send(b"\x88\x80\x00\x00\x00\x00")
        await drained
        assert (echo.seconds, echo.handled) == (7.0, 0)


async def test_tls_serves_the_same(tmp_path: Path) -> None:
    authority = Authority(tmp_path, "root")
    pem = authority.sign("server")

    from tieline_server.transports.http.config import tls_context

    context = tls_context(pem.certificate, pem.key, authority.pem.certificate)
    mine = authority.sign("client")
    trust = ssl.create_default_context(cafile=str(authority.pem.certificate))
    trust.load_cert_chain(mine.certificate, mine.key)
    async with serve(tls=context) as served:
        async with served.connection(tls=trust) as client:
            client.request("POST", PATH, {**CREATE, "stream": True})
            assert (await client.head()).status == 200
            assert (await client.events())[-1]["type"] == "response.completed"
        stranger = ssl.create_default_context(cafile=str(authority.pem.certificate))
        with pytest.raises((ssl.SSLError, ConnectionError, asyncio.IncompleteReadError)):
            async with served.connection(tls=stranger) as client:
                await client.ask("GET", "/healthz")


@pytest.mark.parametrize("how", ["closed", "reset", "asked"])
async def test_many_short_connections_leave_nothing_behind(
    how: str, repeats: Callable[[int], int]
) -> None:
    async with serve() as served:
        for _ in range(repeats(1000)):
            async with served.connection() as client:
                if how == "asked":
                    await client.ask("GET", "/healthz")
                elif how == "reset":
                    client.reset()
        async with asyncio.timeout(5.0):
            await until(lambda: not served.server.connections.admitted)
        assert not served.server.connections.open
