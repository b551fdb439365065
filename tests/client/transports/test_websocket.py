"""The WebSocket transport against real servers: aiohttp's, and raw sockets."""

import asyncio
import base64
import hashlib
import json
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest
import uvloop
from aiohttp import web

from tests.client.aio.connections import ours
from tests.client.relay import Relay
from tests.client.servicer import Speaker
from tests.client.web import SocketPeer, SocketScript, endpoint, serving, speaking, upgrading
from tieline import events, requests
from tieline.errors import (
    ApiError,
    AuthenticationError,
    BadRequest,
    NotFound,
    PermissionDenied,
    RateLimited,
    RequestTimeout,
    RequestTooLarge,
    ServerError,
    Unavailable,
)
from tieline_client.aio import Connection, connect
from tieline_client.errors import (
    ConnectionLost,
    ConnectTimeout,
    IncompleteStream,
    ProtocolViolation,
)
from tieline_client.transports import Options
from tieline_client.transports.websocket import WebSocketTransport, open_connection


@asynccontextmanager
async def transport_to(script: SocketScript, **options: Any) -> AsyncIterator[WebSocketTransport]:
    """A transport to a server that plays the script."""
    async with serving(upgrading(script)) as address:
        transport = await open_connection(endpoint("ws", address, **options))
        try:
            yield transport
        finally:
            await transport.close()


@asynccontextmanager
async def connected(script: SocketScript, **options: Any) -> AsyncIterator[Connection]:
    """A connection to a server that plays the script; then no task of ours may be left."""
    async with serving(upgrading(script)) as address:
        async with connect(f"ws://{address}", options=Options(**options)) as line:
            yield line
        assert ours() == []


async def echoing(peer: SocketPeer) -> None:
    """Answers every create with its own input."""
    count = 0
    while (request := await peer.receive()) is not None:
        if isinstance(request, requests.Create):
            count += 1
            text = json.loads(bytes(request.input)) if request.input else ""
            await peer.send(*Speaker(request, f"r{count}").answer(text))


async def quiet(peer: SocketPeer) -> None:
    await peer.gone()


async def test_the_upgrade_asks_for_extensions_and_for_no_compression() -> None:
    got: dict[str, str] = {}

    async def script(peer: SocketPeer) -> None:
        got.update({name.lower(): value for name, value in peer.request.headers.items()})
        got["path"] = peer.request.path

    async with transport_to(script, api_key="sk-1", path="/base") as transport:
        assert await transport.receive() == ()
    assert got["path"] == "/base/v1/responses"
    assert got["authorization"] == "Bearer sk-1"
    assert got["x-tieline-extensions"] == "heartbeat,session,timing,warnings"
    assert not {"sec-websocket-extensions", "origin", "cookie"} & set(got)


@pytest.mark.parametrize("extended", [True, False])
async def test_only_a_server_with_our_extensions_is_told_what_we_can_take(extended: bool) -> None:
    got: list[requests.Request | None] = []
    headers = {"x-tieline-extensions": "heartbeat"} if extended else {}

    async def handle(request: web.Request) -> web.StreamResponse:
        socket = web.WebSocketResponse()
        socket.headers.update(headers)
        await socket.prepare(request)
        got.append(await SocketPeer(socket, request).receive())
        return socket

    async with serving(handle) as address:
        transport = await open_connection(endpoint("ws", address, merge="never"))
        await transport.send(requests.Create(event_id="1"))
        await transport.receive()
        await transport.close()
    start = requests.SessionStart(max_receive_bytes=32 * 1024 * 1024, merge="never")
    assert got == [start if extended else requests.Create(event_id="1")]


async def test_turns_and_lanes_run_as_on_any_line() -> None:
    async def script(peer: SocketPeer) -> None:
        speakers = [Speaker(await peer.create(), f"r{number}") for number in range(3)]
        for step in zip(*[speaker.answer(speaker.id) for speaker in speakers], strict=True):
            await peer.send(*reversed(step))
        await echoing(peer)

    async with connected(script) as line:
        assert line.transport == "websocket"
        streams = [
            await line.lane("a").create(input="1"),
            await line.lane("b").create(input="2"),
            await line.create(input="3"),
        ]
        results = await asyncio.gather(*(stream.result() for stream in streams))
        assert [result.text for result in results] == ["r0", "r1", "r2"]
        assert (await (await line.create(input="x")).result()).text == "x"


async def test_requests_go_out_in_order_and_a_sender_that_gives_up_harms_nobody() -> None:
    async with transport_to(echoing) as transport:
        for number in range(50):
            task = asyncio.create_task(transport.send(requests.Create(event_id=str(number))))
            await asyncio.sleep(0)
            task.cancel()
        await transport.send(requests.Create(event_id="last"))
        seen: list[Any] = []
        while seen[-1:] != ["last"]:
            event = (await transport.receive())[0]
            if isinstance(event, events.ResponseCreated):
                seen.append(event.event_id)
        assert seen == [*map(str, range(50)), "last"]


async def test_pings_are_answered_while_a_turn_runs() -> None:
    async def script(peer: SocketPeer) -> None:
        speaker = Speaker(await peer.create())
        await peer.send(speaker.created())
        await peer.socket.ping(b"are you there")
        message = await peer.socket.receive()
        assert (message.type, message.data) == (aiohttp.WSMsgType.PONG, b"are you there")
        await peer.send(*speaker.text("x"), speaker.completed())
        await peer.gone()

    async with (
        serving(upgrading(script, autoping=False)) as address,
        connect(f"ws://{address}") as line,
    ):
        assert (await (await line.create(input="a")).result()).text == "x"


@pytest.mark.parametrize(
    ("code", "reason", "kind"),
    [
        (1008, "", PermissionDenied),
        (1008, "invalid_api_key", AuthenticationError),
        (1008, "slow_consumer: 30 s", RateLimited),
        (1009, "too big", RequestTooLarge),
        (1001, "server_draining", Unavailable),
        (1011, "", ServerError),
        (1012, "", Unavailable),
        (1013, "", Unavailable),
        (3000, "", AuthenticationError),
        (3008, "", RequestTimeout),
        (1002, "", ConnectionLost),
        (4711, "own", ConnectionLost),
    ],
)
async def test_a_close_code_is_the_error_that_it_states(
    code: int, reason: str, kind: type[Exception]
) -> None:
    async def script(peer: SocketPeer) -> None:
        await peer.socket.close(code=code, message=reason.encode())

    async with transport_to(script) as transport:
        with pytest.raises(kind, match=str(code)):
            await transport.receive()


async def test_an_error_event_says_more_than_the_close_that_repeats_it() -> None:
    async def script(peer: SocketPeer) -> None:
        await peer.send(Speaker(await peer.create()).created())
        detail = events.ErrorDetail.of(ApiError.of("invalid_api_key", "The key was revoked."))
        await peer.send(events.ErrorEvent(sequence_number=0, status=401, error=detail))
        await peer.socket.close(code=1008, message=b"invalid_api_key")

    async with connected(script) as line:
        stream = await line.create(input="a")
        with pytest.raises(IncompleteStream) as caught:
            await stream.response()
        assert isinstance(caught.value.__cause__, AuthenticationError)
        assert str(caught.value.__cause__) == "The key was revoked."


@pytest.mark.parametrize(
    ("status", "body", "headers", "kind"),
    [
        (401, '{"error":{"message":"bad key"}}', {"x-request-id": "req_9"}, AuthenticationError),
        (404, "<html><title>gone</title></html>", {}, NotFound),
        (429, '{"error":{"message":"slow"}}', {"Retry-After": "3"}, RateLimited),
        (503, "", {}, Unavailable),
    ],
)
async def test_sd_02_a_refused_upgrade_is_what_the_server_said(
    status: int, body: str, headers: dict[str, str], kind: type[ApiError]
) -> None:
    """SD-02: status, message, request id, Retry-After; HTML is trimmed."""

    async def refuse(_: web.Request) -> web.Response:
        return web.Response(status=status, text=body, headers=headers)

    async with serving(refuse) as address:
        with pytest.raises(kind) as caught:
            await open_connection(endpoint("ws", address))
    error = caught.value
    assert error.status == status
    assert error.request_id == headers.get("x-request-id")
    assert error.retry_after == (3.0 if status == 429 else None)
    assert "<" not in str(error)


async def test_a_redirect_is_not_followed() -> None:
    """The key is for the host that the caller named."""
    asked: list[str] = []

    async def move(request: web.Request) -> web.Response:
        asked.append(request.path)
        return web.Response(status=307, headers={"Location": "/elsewhere"})

    async with serving(move) as address:
        with pytest.raises(ConnectionLost, match="307, to /elsewhere"):
            await open_connection(endpoint("ws", address))
    assert asked == ["/v1/responses"]


async def test_what_is_no_websocket_server_is_told_apart() -> None:
    answers = [
        b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n",
        b"HTTP/1.1 101 Switching\r\nupgrade: websocket\r\nconnection: upgrade\r\n"
        b"sec-websocket-accept: wrong\r\n\r\n",
        b"SSH-2.0-OpenSSH_9.6\r\n",
        b"",
    ]

    async with speaking(*answers) as address:
        for _ in answers:
            with pytest.raises(ConnectionLost):
                await open_connection(endpoint("ws", address))


async def test_a_refused_connection_is_told_at_once() -> None:
    async with serving(upgrading(quiet)) as address:
        pass
    with pytest.raises(ConnectionLost, match=f"^cannot connect to {address}: .*refused"):
        await open_connection(endpoint("ws", address))


async def test_a_server_that_does_not_answer_is_a_connect_timeout() -> None:
    # The kernel accepts, and nobody speaks.
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        with pytest.raises(ConnectTimeout, match=r"0\.05 s"):
            await open_connection(endpoint("ws", address, connect_timeout=0.05))


async def test_a_binary_frame_of_the_server_is_a_violation() -> None:
    async def script(peer: SocketPeer) -> None:
        await peer.socket.send_bytes(b"{}")
        await peer.gone()

    async with transport_to(script) as transport:
        with pytest.raises(ProtocolViolation, match="binary"):
            await transport.receive()


@pytest.mark.parametrize(
    ("opcode", "payload"),
    [(1, b"{broken"), (1, b'{"type":"x\xff"}'), (11, b""), (1, b"[" * 100_000)],
)
async def test_a_frame_that_cannot_be_read_is_a_violation(opcode: int, payload: bytes) -> None:
    async def script(peer: SocketPeer) -> None:
        await peer.socket.send_frame(payload, opcode)  # type: ignore[arg-type]
        await peer.gone()

    async with transport_to(script) as transport:
        with pytest.raises(ProtocolViolation):
            await transport.receive()


async def test_a_frame_beyond_our_limit_is_told() -> None:
    async def script(peer: SocketPeer) -> None:
        await peer.say(json.dumps({"type": "x", "text": "x" * 10_000}))
        await peer.gone()

    async with transport_to(script, max_receive_bytes=1000) as transport:
        with pytest.raises(RequestTooLarge):
            await transport.receive()


async def test_a_request_beyond_the_servers_limit_is_not_sent() -> None:
    """A frame of 16 MiB would end the connection and all that it remembers (close 1009)."""

    async with transport_to(echoing) as transport:
        with pytest.raises(RequestTooLarge, match="16777215"):
            await transport.send(requests.Create(model="x" * 16 * 1024 * 1024))
        transport.limit(1000)
        with pytest.raises(RequestTooLarge, match="1000"):
            await transport.send(requests.Create(model="x" * 1000))
        await transport.send(requests.Create(event_id="small"))
        assert isinstance((await transport.receive())[0], events.ResponseCreated)


async def test_after_the_end_requests_are_known_not_to_be_sent_and_hang_nobody() -> None:
    async def script(_: SocketPeer) -> None:
        return

    async with transport_to(script) as transport:
        assert await transport.receive() == ()
        assert [await transport.send(requests.Create()) for _ in range(5)] == [False] * 5


async def test_an_idle_line_closes_with_1000() -> None:
    codes: list[int | None] = []

    async def script(peer: SocketPeer) -> None:
        await echoing(peer)
        codes.append(peer.socket.close_code)

    async with connected(script) as line:
        await (await line.create(input="a")).response()
    assert codes == [1000]


async def test_an_idle_line_that_closes_against_a_silent_peer_waits_close_timeout_at_most() -> None:
    async def script(_: SocketPeer) -> None:
        await asyncio.Event().wait()

    async with connected(script, close_timeout=0.1) as line:
        async with asyncio.timeout(5):
            await line.close()
            await line.close()


async def test_lb_03_a_burst_of_tiny_deltas_comes_whole_and_in_order() -> None:
    """LB-03: 5,000 deltas in one write, and a consumer that comes late."""
    count = 5000
    written = asyncio.Event()

    async def handle(request: web.Request) -> web.StreamResponse:
        socket = web.WebSocketResponse(writer_limit=64 * 1024 * 1024)
        await socket.prepare(request)
        peer = SocketPeer(socket, request)
        speaker = Speaker(await peer.create())
        await peer.send(speaker.created(), *speaker.open_text())
        # No write waits for the one before it: the kernel sees one long burst.
        await peer.send(*(speaker.delta(chr(97 + index % 26)) for index in range(count)))
        await peer.send(speaker.completed())
        written.set()
        await peer.gone()
        return socket

    async with serving(handle) as address:
        options = Options(merge="never")
        async with connect(f"ws://{address}", options=options) as line:
            stream = await line.create(input="a")
            await written.wait()
            deltas = [e.delta async for e in stream if isinstance(e, events.OutputTextDelta)]
            assert deltas == [chr(97 + index % 26) for index in range(count)]


async def test_lb_06_a_slow_application_does_not_end_the_line() -> None:
    """LB-06 (a): what is not read cannot show that the server lives."""
    count = 2000

    async def script(peer: SocketPeer) -> None:
        speaker = Speaker(await peer.create())
        await peer.send(speaker.created(), *speaker.open_text())
        for _ in range(count):
            await peer.send(speaker.delta("x" * 1000))
        await peer.send(speaker.completed())
        await peer.gone()

    async with connected(script, keepalive=0.05, keepalive_timeout=0.05, merge="never") as line:
        stream = await line.create(input="a")
        total = 0
        async for event in stream:
            if isinstance(event, events.OutputTextDelta):
                total += len(event.delta)
                if total == 100_000:
                    # Many times longer than a ping may go unanswered.
                    await asyncio.sleep(0.6)
        assert total == count * 1000


async def test_lb_06_bytes_of_a_frame_that_is_not_whole_are_proof_of_life() -> None:
    """LB-06 (b): a pong cannot overtake a large frame on a slow link."""
    payload = json.dumps({"type": "acme:big", "text": "x" * 300_000}).encode()

    async def test(transport: WebSocketTransport) -> None:
        (event,) = await transport.receive()
        assert isinstance(event, events.Opaque)
        assert len(bytes(event.raw)) == len(payload)

    async with raw_socket(slowly(payload, parts=30, pause=0.02)) as address:
        transport = await open_connection(
            endpoint("ws", address, keepalive=0.05, keepalive_timeout=0.1)
        )
        await test(transport)
        await transport.close()


RawScript = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


def slowly(payload: bytes, *, parts: int, pause: float) -> RawScript:
    """One frame in parts, no pong at all meanwhile."""

    async def script(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"\x81\x7f" + len(payload).to_bytes(8, "big"))
        step = -(-len(payload) // parts)
        for start in range(0, len(payload), step):
            writer.write(payload[start : start + step])
            await writer.drain()
            await asyncio.sleep(pause)

    return script


@asynccontextmanager
async def raw_socket(script: RawScript) -> AsyncIterator[str]:
    """A server that upgrades by hand and then plays the script."""

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        (key,) = [
            line.partition(b":")[2].strip()
            for line in head.split(b"\r\n")
            if line.lower().startswith(b"sec-websocket-key")
        ]
        accepted = hashlib.sha1(key + b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11").digest()
        writer.write(
            b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            b"Sec-WebSocket-Accept: " + base64.b64encode(accepted) + b"\r\n\r\n"
        )
        try:
            await script(reader, writer)
        finally:
            writer.close()

    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    try:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
        await server.wait_closed()


async def partial(peer: SocketPeer) -> None:
    speaker = Speaker(await peer.create())
    await peer.send(speaker.created(), *speaker.open_text(), speaker.delta("par"))
    await peer.send(speaker.delta("tial"))


@pytest.mark.parametrize("loop", [asyncio.new_event_loop, uvloop.new_event_loop])
@pytest.mark.parametrize("way", ["close 1000", "reset", "half-open", "no close frame"])
def test_rc_10_and_rc_06_a_line_that_ends_in_a_turn_ends_all_that_waits(
    way: str, loop: Callable[[], asyncio.AbstractEventLoop]
) -> None:
    """RC-10 (c), RC-06: never a result, never a hang; the partial text is not lost."""

    async def script(peer: SocketPeer) -> None:
        await partial(peer)
        if way == "no close frame":
            assert peer.request.transport is not None
            peer.request.transport.close()
        if way != "close 1000":
            await peer.gone()

    half_open = way == "half-open"
    options = Options(keepalive=0.1, keepalive_timeout=0.1) if half_open else Options()

    async def main() -> None:
        async with serving(upgrading(script)) as address, Relay(address) as relay:
            # The relay keeps its side open when the server closes its own.
            to = address if way == "no close frame" else relay.address
            async with connect(f"ws://{to}", options=options) as line:
                stream = await line.create(input="a")
                other = await line.lane("b").create(input="b")
                async for _ in stream:
                    if stream.text == "partial":
                        break
                if way == "reset":
                    relay.reset()
                elif half_open:
                    relay.forget()
                async with asyncio.timeout(5):
                    with pytest.raises(IncompleteStream) as caught:
                        await stream.response()
                    with pytest.raises(ConnectionLost):
                        await other.response()
                assert (caught.value.text, caught.value.response_id) == ("partial", "r1")
                assert not line.alive
            assert ours() == []

    with asyncio.Runner(loop_factory=loop) as runner:
        runner.run(main())


async def test_er_06_a_bare_error_before_the_response_is_the_answer() -> None:
    """ER-06: no number, no event_id, and a close right behind it."""
    connections = 0

    async def script(peer: SocketPeer) -> None:
        nonlocal connections
        connections += 1
        await peer.receive()
        error = {"code": "unsupported_parameter", "param": "top_p", "message": "m"}
        await peer.say(json.dumps({"type": "error", "status": 400, "error": error}))

    async with connected(script) as line:
        stream = await line.create(input="a")
        with pytest.raises(BadRequest) as caught:
            await stream.response()
        assert (caught.value.param, str(caught.value)) == ("top_p", "m")
    assert connections == 1


async def test_ev_08_and_ev_09_text_is_exact_and_the_unknown_is_handed_over() -> None:
    """EV-08, EV-09: separators and emoji survive; new events and missing numbers break nothing."""
    odd = "a\u2028b\u0085\U0001f468\u200d\U0001f469\u200d\U0001f467"

    async def script(peer: SocketPeer) -> None:
        speaker = Speaker(await peer.create())
        await peer.send(speaker.created(), *speaker.open_text())
        await peer.say('{"type":"acme:gauge","sequence_number":4,"v":1}')
        await peer.say('{"type":"response.output_item.added","output_index":0,"item":null}')
        at = {"item_id": speaker.item_id, "output_index": 0, "content_index": 0}
        await peer.say(json.dumps({"type": "response.output_text.delta", "delta": odd, **at}))
        await peer.send(*speaker.close_text(odd), speaker.completed())
        await peer.gone()

    async with connected(script) as line:
        stream = await line.create(input="a")
        types = [event.type async for event in stream]
        assert types.count("acme:gauge") == 1
        assert types[-1] == "response.completed"
        assert stream.text == odd
