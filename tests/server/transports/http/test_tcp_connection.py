"""One connection: how many there may be, what they buffer, what is no HTTP, and which frames."""

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import pytest

from tests.support.garbage import none_left
from tests.support.grpc_engine import gated, hello, text
from tests.support.grpc_harness import run
from tests.support.http_client import Connection
from tests.support.http_harness import Served, serve
from tests.support.runtime import until
from tests.support.signal import PATIENCE
from tests.support.websocket_client import CLOSE, PING, PONG, TERMINAL, RawSocket, frame
from tieline_server.runtime import Services
from tieline_server.transports.http import tcp_connection
from tieline_server.transports.http.request import CreateReader
from tieline_server.transports.http.tcp_connection import NOTSENT_LOWAT, UNSENT_BYTES
from tieline_server.transports.websocket import WebSocketConfig, WebSocketEndpoint

PATH = "/v1/responses"
CREATE = {"model": "tiny", "input": "hi", "store": False}
EVENT = json.dumps({"type": "response.create", **CREATE}).encode()


def endpoint(services: Services) -> WebSocketEndpoint:
    """The WebSocket endpoint of the same port."""
    return WebSocketEndpoint(services, WebSocketConfig())


@asynccontextmanager
async def upgraded(served: Served) -> AsyncIterator[RawSocket]:
    """A WebSocket through this server."""
    async with RawSocket(served.port) as client:
        yield client


@pytest.mark.parametrize(
    "data",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03 this is TLS\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"POST / HTTP/1.1\r\nContent-Length: x\r\n\r\n",
        b"GET / HTTP/1.1\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n",
    ],
)
async def test_what_is_no_http_is_a_400_without_its_own_words(data: bytes) -> None:
    async with serve() as served, served.connection() as client:
        client.send(data)
        reply = await client.reply()
        assert (reply.status, reply.error["message"]) == (400, "The request is not valid HTTP.")
        assert reply.headers["server"] == "tieline"
        assert await client.eof() == b""
        async with served.connection() as other:
            assert (await other.ask("GET", "/healthz")).status == 200


@pytest.mark.parametrize(
    "data",
    [
        b"GET /" + b"x" * 40_000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: localhost\r\nX-A: " + b"x" * 40_000 + b"\r\n\r\n",
    ],
)
async def test_a_path_or_a_header_that_is_too_long_is_told_so(data: bytes) -> None:
    async with serve() as served, served.connection() as client:
        client.send(data)
        reply = await client.reply()
        assert (reply.status, reply.error["code"]) == (413, "request_too_large")
        assert reply.error["message"] == "The path, or one header, is larger than 32768 bytes."
        assert await client.eof() == b""


async def test_lb_05_a_connection_past_the_limit_is_refused_until_another_ends() -> None:
    async with serve(max_connections=4) as served, AsyncExitStack() as stack:

        async def connect() -> Connection:
            return await stack.enter_async_context(served.connection())

        first = [await connect() for _ in range(4)]
        for client in first:
            assert (await client.ask("GET", "/healthz")).status == 200
        fifth = await connect()
        reply = await fifth.ask("POST", PATH, CREATE)
        assert (reply.status, reply.error["code"]) == (429, "too_many_connections")
        assert reply.headers["retry-after"] == "1"
        assert reply.headers["retry-after-ms"] == "1000"
        assert await fifth.eof() == b""
        for client in first[:2]:
            client.reset()
        async with asyncio.timeout(1.0):
            await gone(served, 2)
        for client in (await connect(), await connect()):
            assert (await client.ask("POST", PATH, CREATE)).status == 200


async def gone(served: Served, count: int) -> None:
    """Until the server counts so many connections."""
    await until(lambda: served.server.connections.admitted == count)


async def test_connections_far_past_the_limit_are_reset_and_all_give_their_places_back() -> None:
    async with serve(max_connections=1) as served:
        async with AsyncExitStack() as stack:
            for _ in range(70):
                await stack.enter_async_context(served.connection())
            async with served.connection() as last:
                last.request("GET", "/healthz")
                with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
                    await last.head()
        async with asyncio.timeout(5.0):
            await until(lambda: not served.server.connections.open)
        assert served.server.connections.admitted == 0


async def test_a_connection_buffers_little_for_a_reader_that_stops() -> None:
    async with serve() as served, served.connection() as client:
        assert (await client.ask("GET", "/healthz")).status == 200
        (connection,) = served.server.connections.open
        transport = connection.transport
        assert transport is not None
        assert transport.get_write_buffer_limits()[1] == UNSENT_BYTES
        assert NOTSENT_LOWAT is not None
        bare = transport.get_extra_info("socket")
        assert bare.getsockopt(socket.IPPROTO_TCP, NOTSENT_LOWAT) == UNSENT_BYTES


async def test_a_task_answers_each_connection_and_ends_with_it() -> None:
    async with serve() as served:
        async with served.connection() as client:
            assert (await client.ask("GET", "/healthz")).status == 200
            assert len(served.server.connections.tasks) == 1
        await until(lambda: not served.server.connections.tasks)


@pytest.mark.parametrize(
    "last", [b"", b"\x00\x01\r\n\r\n", b"GET / HTTP/1.1\r\nA: " + b"x" * 60_000]
)
def test_a_connection_that_is_over_takes_all_that_came_on_it_along(last: bytes) -> None:
    """Hundreds of kilobytes where tools came: garbage is looked for after 10,000 objects."""

    async def main() -> None:
        async with serve() as served, served.connection() as client:
            create = {"model": "tiny", "input": "hi", "tools": [{"type": "function", "name": "f"}]}
            assert (await client.ask("POST", "/v1/responses", create)).status == 200
            client.send(last)
            if last:
                assert (await client.reply()).status in (400, 413)

    with none_left(tcp_connection.TcpConnection, CreateReader):
        run(main())


@pytest.mark.parametrize(
    "data",
    [
        frame(EVENT, masked=False),
        frame(b"x", opcode=PING, masked=False),
        frame(b"\x03\xe8", opcode=CLOSE, masked=False),
        frame(b"", fin=False) + frame(EVENT),  # RFC 6455 5.4: a message inside a message
    ],
)
@pytest.mark.parametrize("together", [True, False])
async def test_a_frame_that_no_client_may_send_closes_with_1002_and_ends_what_runs(
    data: bytes, together: bool
) -> None:
    """RFC 6455 5.1: a server closes on a frame without a mask."""

    never = gated(asyncio.Event())
    async with serve(never, upgrade=endpoint) as served, upgraded(served) as client:
        await client.send(EVENT)
        await client.until("response.in_progress")
        for piece in [data] if together else [data[at : at + 1] for at in range(len(data))]:
            await client.raw(piece)
        assert (await client.closed())[0] == 1002
        await served.until(lambda: len(served.records) == 1)
        assert served.records[0].outcome == "disconnected"


async def test_frames_before_a_forbidden_one_are_still_read() -> None:
    async with serve(upgrade=endpoint) as served, upgraded(served) as client:
        await client.raw(frame(b"first", opcode=PING) + frame(b"bare", masked=False))
        pong = await client.frame()
        assert (pong.opcode, pong.payload) == (PONG, b"first")
        assert (await client.closed())[0] == 1002


async def test_a_masked_message_passes_whole_in_fragments_and_byte_by_byte() -> None:
    async with serve(upgrade=endpoint) as served, upgraded(served) as client:
        half = len(EVENT) // 2
        parts = (
            frame(EVENT[:half], fin=False),
            frame(b"", opcode=PING),
            frame(b"", opcode=0, fin=False),
            frame(EVENT[half:], opcode=0),
        )
        await client.raw(frame(EVENT) + b"".join(parts))
        for byte in b"".join(parts):
            await client.raw(bytes((byte,)))
        for _ in range(3):
            assert (await client.until(*TERMINAL))[-1]["type"] == "response.completed"
        assert len(served.records) == 3


@pytest.mark.parametrize(("long", "pauses"), [(-1.0, True), (3600.0, False)])
async def test_after_long_work_on_what_came_a_connection_is_not_read_for_a_while(
    long: float, pauses: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads: list[bool] = []
    take = tcp_connection.TcpConnection.data_received

    def watched(self: tcp_connection.TcpConnection, data: bytes) -> None:
        take(self, data)
        assert self.transport is not None
        reads.append(self.transport.is_reading())

    monkeypatch.setattr(tcp_connection, "LONG", long)
    monkeypatch.setattr(tcp_connection.TcpConnection, "data_received", watched)

    async with serve(upgrade=endpoint) as served, upgraded(served) as client:
        for begin in range(len(EVENT)):
            opcode, fin = (0 if begin else 1), begin == len(EVENT) - 1
            await client.raw(frame(EVENT[begin : begin + 1], opcode=opcode, fin=fin))
        assert (await client.until(*TERMINAL))[-1]["type"] == "response.completed"
    assert set(reads) == {not pauses}


async def test_a_connection_that_waits_for_its_reader_is_not_read_on_by_the_clock() -> None:
    async with serve(upgrade=endpoint) as served, upgraded(served) as client:
        (one,) = served.server.connections.open
        one.pause_reading()
        one._read_on()
        assert one.transport is not None
        assert not one.transport.is_reading()
        one.resume_reading()
        await client.raw(frame(EVENT))
        assert (await client.until(*TERMINAL))[-1]["type"] == "response.completed"


async def test_frames_that_came_with_the_handshake_obey_the_same_rules() -> None:
    async with serve(upgrade=endpoint) as served, served.connection() as client:
        client.send(
            b"GET /v1/responses HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\n"
            b"Connection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
            b"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n" + frame(EVENT, masked=False)
        )
        head = await client.head()
        assert (head.status, head.headers["server"]) == (101, "tieline")
        assert await client.reader.readexactly(4) == b"\x88\x02\x03\xea"


LONG = "x" * 2**20


async def test_a_reader_that_takes_nothing_of_its_answer_loses_its_connection() -> None:
    async with (
        serve(text([LONG]), write_timeout=0.1) as served,
        served.connection(receive_buffer=4096) as client,
    ):
        client.request("POST", PATH, CREATE)
        await served.until(lambda: len(served.records) == 1)
        (answering,) = served.server.connections.tasks
        await asyncio.wait({answering}, timeout=PATIENCE)
        assert not served.server.connections.open
        assert served.server.connections.admitted == 0
        served.engine.answer = hello
        async with served.connection() as other:
            assert (await other.ask("POST", PATH, CREATE)).status == 200


async def test_a_reader_that_is_slow_gets_all_of_its_answer() -> None:
    """Longer than the timeout in all, and never so long without a byte."""

    loop = asyncio.get_running_loop()
    async with (
        serve(text([LONG]), write_timeout=1.0) as served,
        served.connection(receive_buffer=4096) as client,
    ):
        began = loop.time()
        client.request("POST", PATH, CREATE)
        size = int((await client.head()).headers["content-length"])
        body = b""
        while len(body) < size:
            body += await client.reader.read(2**15)
            if loop.time() < began + 1.5:
                await asyncio.sleep(0.05)
        assert json.loads(body)["output"][0]["content"][0]["text"] == LONG
