"""Where a request ends must be what every reader on its way says (RFC 9112 11.2)."""

import asyncio
import json

import pytest

from tests.support.grpc_engine import gated
from tests.support.http_client import Connection
from tests.support.http_harness import Served, serve
from tieline_server.runtime import Services
from tieline_server.transports.http.tcp_connection import HEAD_BYTES, PIPELINED
from tieline_server.transports.websocket import WebSocketConfig, WebSocketEndpoint

BODY = json.dumps({"model": "tiny", "input": "hi", "store": False}).encode()
SIZE = len(BODY)
CHUNKED = b"%x\r\n%b\r\n0\r\n\r\n" % (SIZE, BODY)
LENGTH = b"Content-Length: %d" % SIZE
FIRST = b"POST /v1/responses HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
TE = b"Transfer-Encoding: chunked"
UPGRADE = (
    b"GET /v1/responses HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\n"
    b"Connection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
    b"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n"
)


def endpoint(services: Services) -> WebSocketEndpoint:
    return WebSocketEndpoint(services, WebSocketConfig())


def request(*headers: bytes, body: bytes = CHUNKED, first: bytes = FIRST) -> bytes:
    return first + b"".join(each + b"\r\n" for each in headers) + b"\r\n" + body


async def told(served: Served, data: bytes) -> tuple[int, str]:
    """Status and code of the answer; the connection is closed behind it."""
    client = await Connection.open(served.port)
    client.send(data)
    reply = await client.reply()
    assert await client.reader.read() == b"", "nothing behind it was read as a request"
    await client.close()
    return reply.status, reply.error["code"]


SMUGGLED = {
    "identity, chunked": request(b"Transfer-Encoding: identity, chunked"),
    "chunked, identity": request(b"Transfer-Encoding: chunked, identity"),
    "chunked, chunked": request(b"Transfer-Encoding: chunked, chunked"),
    "gzip, chunked": request(b"Transfer-Encoding: gzip, chunked"),
    "xchunked": request(b"Transfer-Encoding: xchunked"),
    "identity": request(b"Transfer-Encoding: identity", body=b""),
    "identity and a length": request(b"Transfer-Encoding: identity", LENGTH, body=BODY),
    "no coding": request(b"Transfer-Encoding:", LENGTH, body=BODY),
    "an empty coding": request(b"Transfer-Encoding: , chunked"),
    "an empty coding behind": request(b"Transfer-Encoding: chunked,"),
    "a parameter": request(b"Transfer-Encoding: chunked;q=1"),
    "quoted": request(b'Transfer-Encoding: "chunked"'),
    "a vertical tab": request(b"Transfer-Encoding: \x0bchunked"),
    "a letter that folds": request("Transfer-Encoding: chun\u212aed".encode()),
    "two codings": request(TE, TE),
    "two codings that differ": request(b"Transfer-Encoding: identity", TE),
    "coding and length": request(TE, LENGTH),
    "length and coding": request(LENGTH, TE),
    "two lengths": request(LENGTH, LENGTH, body=BODY),
    "two lengths that differ": request(LENGTH, b"Content-Length: 3", body=BODY),
    "a list of lengths": request(b"Content-Length: %d, %d" % (SIZE, SIZE), body=BODY),
    "a length with a sign": request(b"Content-Length: +%d" % SIZE, body=BODY),
    "a negative length": request(b"Content-Length: -1", body=BODY),
    "a hexadecimal length": request(b"Content-Length: 0x2f", body=BODY),
    "a length with a space": request(b"Content-Length: 4 7", body=BODY),
    "a length past 2^64": request(b"Content-Length: %d" % (2**64 + SIZE), body=BODY),
    "no length": request(b"Content-Length:", body=BODY),
    "a folded header": request(b"X-A: b\r\n c", LENGTH, body=BODY),
    "a folded coding": request(b"Transfer-Encoding:\r\n chunked"),
    "a space before the colon": request(b"Transfer-Encoding : chunked"),
    "a tab before the colon": request(b"Content-Length\t: %d" % SIZE, body=BODY),
    "no colon": request(b"Content-Length", LENGTH, body=BODY),
    "no name": request(b": x", LENGTH, body=BODY),
    "a bare CR": request(b"X: a\rContent-Length: 3", LENGTH, body=BODY),
    "bare LFs": request(LENGTH, body=BODY).replace(b"\r\n", b"\n"),
    "a bare LF": request(b"X: y\n" + LENGTH, body=BODY),
    "a bare LF at the end": FIRST + LENGTH + b"\r\n\n" + BODY,
    "a NUL": request(b"X: a\0b", LENGTH, body=BODY),
    "a space before the first header": FIRST.replace(b"Host", b" Host")
    + LENGTH
    + b"\r\n\r\n"
    + BODY,
    "two hosts": request(b"Host: other", LENGTH, body=BODY),
    "no host": request(LENGTH, body=BODY, first=FIRST.replace(b"Host: localhost\r\n", b"")),
    "a tab in the first line": request(LENGTH, body=BODY, first=FIRST.replace(b" HTTP", b"\tHTTP")),
    "HTTP/1.0 with a coding": request(TE, first=FIRST.replace(b"1.1", b"1.0")),
    "HTTP/2.0": request(LENGTH, body=BODY, first=FIRST.replace(b"1.1", b"2.0")),
    "HTTP/1.2": request(LENGTH, body=BODY, first=FIRST.replace(b"1.1", b"1.2")),
    "HTTP/0.9": b"GET /v1/models\r\n\r\n",
    "a coding on a GET": request(
        b"Transfer-Encoding: identity, chunked", first=FIRST.replace(b"POST", b"GET")
    ),
    "a coding on an upgrade": request(b"Transfer-Encoding: identity, chunked", first=UPGRADE),
}

CHUNKS = {
    "a sign": b"+%x\r\n%b\r\n0\r\n\r\n" % (SIZE, BODY),
    "a negative size": b"-%x\r\n%b\r\n0\r\n\r\n" % (SIZE, BODY),
    "0x": b"0x%x\r\n%b\r\n0\r\n\r\n" % (SIZE, BODY),
    "a space": b"%x \r\n%b\r\n0\r\n\r\n" % (SIZE, BODY),
    "a space before": b" %x\r\n%b\r\n0\r\n\r\n" % (SIZE, BODY),
    "a size past 2^64": b"1000000000000002f\r\n%b\r\n0\r\n\r\n" % BODY,
    "no size": b"\r\n%b\r\n0\r\n\r\n" % BODY,
    "bare LFs": b"%x\n%b\n0\n\n" % (SIZE, BODY),
    "a bare LF behind an extension": b"%x;a=b\n%b\r\n0\r\n\r\n" % (SIZE, BODY),
    "a bare LF in an extension": b"%x;a\nb\r\n%b\r\n0\r\n\r\n" % (SIZE, BODY),
    "a bare LF behind the data": b"%x\r\n%b\n0\r\n\r\n" % (SIZE, BODY),
    "nothing behind the data": b"%x\r\n%b0\r\n\r\n" % (SIZE, BODY),
    "more data than its size": b"%x\r\n%bXX\r\n0\r\n\r\n" % (SIZE, BODY),
    "a bare LF behind the last size": b"%x\r\n%b\r\n0\n\n" % (SIZE, BODY),
    "a length as a trailer": b"%x\r\n%b\r\n0\r\nContent-Length: 3\r\n\r\n" % (SIZE, BODY),
    "a coding as a trailer": b"%x\r\n%b\r\n0\r\nTransfer-Encoding: chunked\r\n\r\n" % (SIZE, BODY),
}


@pytest.mark.parametrize("how", SMUGGLED)
async def test_cn_23_a_request_that_readers_may_end_elsewhere_is_400(how: str) -> None:
    async with serve() as served:
        assert await told(served, SMUGGLED[how]) == (400, "invalid_request")
        assert served.engine.started == 0


@pytest.mark.parametrize("how", CHUNKS)
async def test_cn_23_so_is_a_body_whose_chunks_are_not_as_they_must_be(how: str) -> None:
    async with serve() as served:
        assert await told(served, request(TE, body=CHUNKS[how])) == (400, "invalid_request")
        assert served.engine.started == 0


@pytest.mark.parametrize(
    "data",
    [
        request(TE),
        request(b"Transfer-Encoding: CHUNKED"),
        request(LENGTH, body=BODY),
        request(LENGTH, body=BODY, first=FIRST.replace(b"1.1", b"1.0")),
        request(TE, body=b"%x;a=b\r\n%b\r\n0\r\nX-Trailer: a\r\n\r\n" % (SIZE, BODY)),
    ],
)
@pytest.mark.parametrize("piece", [1, 1 << 16])
async def test_what_is_sound_is_answered_however_it_comes(data: bytes, piece: int) -> None:
    async with serve() as served, served.connection() as client:
        for at in range(0, len(data), piece):
            client.send(data[at : at + piece])
        assert (await client.reply()).status == 200


@pytest.mark.parametrize("length", [LENGTH, TE])
async def test_cn_23_an_upgrade_has_no_body(length: bytes) -> None:
    """What one reader takes for frames the other would take for a body."""

    async with serve(upgrade=endpoint) as served, served.connection() as client:
        client.send(request(length, first=UPGRADE, body=BODY))
        assert (await client.reply()).error["code"] == "invalid_request"


@pytest.mark.parametrize("piece", [1000, 1 << 20])
@pytest.mark.parametrize("ends", [True, False])
async def test_cn_21_a_head_has_a_bound_before_any_key_is_known(piece: int, ends: bool) -> None:
    """Each header may be 32 KiB: without one for all, a connection could hold 4 MiB of them."""

    def head(size: int) -> bytes:
        each = b"X-Codex: %b\r\n" % (b"x" * 9988)
        rows = FIRST + each * (size // 10_000)
        return rows + b"X: " + b"x" * (size - len(rows)) + b"\r\n"

    async with serve() as served:
        async with served.connection() as client:
            client.send(head(HEAD_BYTES - 1000) + LENGTH + b"\r\n\r\n" + BODY)
            assert (await client.reply()).status == 200
        data = head(HEAD_BYTES + 1000) + (b"\r\n" if ends else b"")
        client = await Connection.open(served.port)
        for at in range(0, len(data), piece):
            client.send(data[at : at + piece])
        reply = await client.reply()
        assert (reply.status, reply.error["code"]) == (413, "request_too_large")
        assert str(HEAD_BYTES) in reply.error["message"]
        await client.close()


async def test_cn_21_few_requests_wait_behind_the_one_that_is_answered() -> None:
    gate = asyncio.Event()
    async with serve(gated(gate)) as served, served.connection() as client:
        client.send(request(LENGTH, body=BODY) * (3 * PIPELINED))
        await served.until(lambda: served.engine.started == 1)
        (connection,) = served.server.connections.open
        assert len(connection._messages) == PIPELINED
        gate.set()
        for _ in range(3 * PIPELINED):
            assert (await client.reply()).status == 200
