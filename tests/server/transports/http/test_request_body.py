"""Bodies: limits, encodings, slow and broken ones."""

import asyncio
import gzip
import json
import sys

import pytest

from tests.support.http_client import request_bytes
from tests.support.http_harness import serve
from tests.support.runtime import until
from tieline_server.core.create.limits import Limits

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

PATH = "/v1/responses"
CREATE = {"model": "tiny", "input": "hi", "store": False}
BODY = json.dumps(CREATE).encode()
SMALL = Limits(message_bytes=1024)


@pytest.mark.parametrize(
    ("name", "encode"),
    [
        ("gzip", gzip.compress),
        ("zstd", zstd.compress),
        ("ZSTD", zstd.compress),
        ("identity", bytes),
    ],
)
async def test_known_encodings_are_decoded(name: str, encode: object) -> None:
    async with serve() as served, served.connection() as client:
        assert callable(encode)
        client.request("POST", PATH, encode(BODY), headers={"Content-Encoding": name})
        assert (await client.reply()).status == 200


@pytest.mark.parametrize("name", ["br", "gzip, zstd", "deflate", "x"])
async def test_other_encodings_are_415(name: str) -> None:
    async with serve() as served, served.connection() as client:
        client.request("POST", PATH, BODY, headers={"Content-Encoding": name})
        reply = await client.reply()
        assert (reply.status, reply.error["code"]) == (415, "unsupported_media_type")


@pytest.mark.parametrize("name", ["gzip", "zstd"])
@pytest.mark.parametrize("data", [b"\x00 is neither", b"", "cut", "junk behind", "twice"])
async def test_a_body_that_is_not_what_it_says_is_400(name: str, data: bytes | str) -> None:
    whole = gzip.compress(BODY) if name == "gzip" else zstd.compress(BODY)
    broken = {"cut": whole[:-5], "junk behind": whole + b"junk", "twice": whole * 2}
    sent = broken[data] if isinstance(data, str) else data

    async with serve() as served, served.connection() as client:
        client.request("POST", PATH, sent, headers={"Content-Encoding": name})
        reply = await client.reply()
        assert (reply.status, reply.error["code"]) == (400, "invalid_request")


@pytest.mark.parametrize("name", ["gzip", "zstd"])
async def test_a_small_body_that_would_become_a_large_one_is_413(name: str) -> None:
    bomb = (gzip if name == "gzip" else zstd).compress(b" " * 10_000_000)

    limits = Limits(message_bytes=20_000)
    async with serve(limits=limits) as served, served.connection() as client:
        client.request("POST", PATH, bomb, headers={"Content-Encoding": name})
        reply = await client.reply()
        assert (reply.status, reply.error["code"]) == (413, "request_too_large")


async def test_a_body_past_the_limit_is_413_before_it_is_read() -> None:
    async with serve(limits=SMALL) as served, served.connection() as client:
        client.send(b"POST %b HTTP/1.1\r\nHost: localhost\r\n" % PATH.encode())
        client.send(b"Content-Type: application/json\r\nContent-Length: 1025\r\n\r\n")
        reply = await client.reply()
        assert (reply.status, reply.error["code"]) == (413, "request_too_large")


async def test_a_chunked_body_past_the_limit_is_413_when_it_gets_there() -> None:
    async with serve(limits=SMALL) as served, served.connection() as client:
        client.send(b"POST %b HTTP/1.1\r\nHost: localhost\r\n" % PATH.encode())
        client.send(b"Content-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n")
        client.send(b"258\r\n" + b" " * 600 + b"\r\n")
        client.send(b"258\r\n" + b" " * 600 + b"\r\n")
        assert (await client.reply()).status == 413


async def test_a_body_at_the_limit_is_taken() -> None:
    async with serve(limits=SMALL) as served, served.connection() as client:
        assert (await client.ask("POST", PATH, BODY.ljust(1024))).status == 200
        assert (await client.ask("POST", PATH, BODY.ljust(1025))).status == 413


async def test_a_body_may_come_in_chunks_of_one_byte() -> None:
    async with serve() as served, served.connection() as client:
        client.send(b"POST %b HTTP/1.1\r\nHost: localhost\r\n" % PATH.encode())
        client.send(b"Content-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n")
        for byte in BODY:
            client.send(b"1\r\n%c\r\n" % byte)
            await asyncio.sleep(0)
        client.send(b"0\r\n\r\n")
        assert (await client.reply()).status == 200


async def test_a_request_may_come_byte_by_byte() -> None:
    async with serve() as served, served.connection() as client:
        for byte in request_bytes("POST", PATH, CREATE):
            client.send(bytes((byte,)))
            await client.writer.drain()
            await asyncio.sleep(0)
        assert (await client.reply()).status == 200


async def test_a_body_that_falls_silent_is_408() -> None:
    async with serve(read_timeout=0.05) as served, served.connection() as client:
        client.send(b"POST %b HTTP/1.1\r\nHost: localhost\r\n" % PATH.encode())
        client.send(b"Content-Type: application/json\r\nContent-Length: 100\r\n\r\n{")
        reply = await client.reply()
        assert (reply.status, reply.error["code"]) == (408, "idle_timeout")


async def test_a_body_that_trickles_is_408_though_it_is_never_silent_for_long() -> None:
    async with serve(read_timeout=0.2) as served, served.connection() as client:
        client.send(b"POST %b HTTP/1.1\r\nHost: localhost\r\n" % PATH.encode())
        client.send(b"Content-Type: application/json\r\nContent-Length: 9999\r\n\r\n")

        async def trickle() -> None:
            while True:
                client.send(b" ")
                await asyncio.sleep(0.02)

        feeding = asyncio.create_task(trickle())
        reply = await client.reply()
        feeding.cancel()
        assert (reply.status, reply.error["code"]) == (408, "idle_timeout")


async def test_a_body_that_is_cut_short_harms_nobody() -> None:
    async with serve() as served:
        async with served.connection() as client:
            client.send(b"POST %b HTTP/1.1\r\nHost: localhost\r\n" % PATH.encode())
            client.send(b"Content-Type: application/json\r\nContent-Length: 100\r\n\r\n{")
        async with served.connection() as client:
            assert (await client.ask("POST", PATH, CREATE)).status == 200
        assert len(served.records) == 1


async def test_who_asks_whether_to_send_a_body_is_told_to() -> None:
    async with serve() as served, served.connection() as client:
        whole = request_bytes("POST", PATH, CREATE, headers={"Expect": "100-continue"})
        head, _, body = whole.partition(b"\r\n\r\n")
        client.send(head + b"\r\n\r\n")
        assert (await client.head()).status == 100
        client.send(body)
        assert (await client.reply()).status == 200


async def test_an_old_client_that_asks_whether_to_send_a_body_is_not_answered_in_between() -> None:
    """RFC 9110 10.1.1: HTTP/1.0 knows no 100."""

    async with serve() as served, served.connection() as client:
        whole = request_bytes("POST", PATH, CREATE, headers={"Expect": "100-continue"})
        head, _, body = whole.replace(b"HTTP/1.1", b"HTTP/1.0").partition(b"\r\n\r\n")
        client.send(head + b"\r\n\r\n" + body[:-1])
        await until(lambda: any(each.busy for each in served.server.connections.open))
        client.send(body[-1:])
        assert (await client.head()).status == 200


async def test_broken_chunks_are_a_typed_400() -> None:
    async with serve() as served, served.connection() as client:
        client.send(b"POST %b HTTP/1.1\r\nHost: localhost\r\n" % PATH.encode())
        client.send(b"Content-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n")
        reply = await client.reply()
        assert (reply.status, reply.error["code"]) == (400, "invalid_request")
