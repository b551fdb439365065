"""Messages that are still coming on a WebSocket: how many bytes of them, and how slowly."""

import asyncio
import json
import zlib
from typing import Any

import pytest

from tests.support.http_harness import Served, serve
from tests.support.runtime import until
from tests.support.websocket_client import CLOSE, PING, PONG, RawSocket, frame
from tieline_server.core.create.limits import Share
from tieline_server.runtime import Services
from tieline_server.transports.websocket import WebSocketConfig, WebSocketEndpoint
from tieline_server.transports.websocket.incoming import IncomingMessages

CREATE = {"type": "response.create", "model": "tiny", "store": False, "input": "x"}


def upgrade(**settings: Any) -> Any:
    def endpoint(services: Services) -> WebSocketEndpoint:
        return WebSocketEndpoint(services, WebSocketConfig(**{"merge": False, **settings}))

    return endpoint


def create(size: int) -> bytes:
    """A create of so many bytes."""
    text = json.dumps(CREATE)
    return json.dumps({**CREATE, "input": "x" * (size - len(text) + 1)}).encode()


def bounded(served: Served, *, each: int, total: int = 1 << 40) -> Share:
    """Sets what may still be coming."""
    share = served.services.incoming
    share.each, share.total = each, total
    return share


async def test_cn_21_a_message_past_the_owners_bound_is_answered_and_the_connection_lives() -> None:
    async with serve(upgrade=upgrade()) as served:
        share = bounded(served, each=20_000)
        large = frame(create(30_000))
        async with RawSocket(served.port) as socket:
            await socket.raw(large[:25_000])
            error = await socket.event()
            assert (error["status"], error["error"]["code"]) == (429, "memory_limit_exceeded")
            assert (error["type"], error["sequence_number"]) == ("error", 0)
            assert share.taken == 0
            # What still comes of it is read, and dropped.
            await socket.raw(large[25_000:] + frame(create(200)))
            assert (await socket.until("response.completed"))[-1]
            await socket.raw(frame(create(15_000))[:14_000])
            await until(lambda: 0 < share.taken <= 14_014)
        await until(lambda: share.taken == 0)


async def test_cn_21_past_the_bound_of_all_it_is_503() -> None:
    async with serve(upgrade=upgrade()) as served, RawSocket(served.port) as socket:
        bounded(served, each=20_000, total=10_000)
        await socket.raw(frame(create(15_000))[:12_000])
        error = await socket.event()
        assert (error["status"], error["error"]["code"]) == (503, "server_is_overloaded")


async def test_cn_21_a_message_that_was_cut_is_read_when_its_rest_has_come() -> None:
    async with serve(upgrade=upgrade()) as served, RawSocket(served.port) as socket:
        share = bounded(served, each=20_000)
        data = frame(create(15_000))
        await socket.raw(data[:7000])
        await until(lambda: share.taken == 7000)
        await socket.raw(data[7000:])
        await socket.until("response.completed")
        assert share.taken == 0


async def test_cn_21_a_ping_between_fragments_is_answered_at_once() -> None:
    async with serve(upgrade=upgrade()) as served, RawSocket(served.port) as socket:
        data = create(5000)
        await socket.raw(frame(data[:2000], fin=False) + frame(b"now", opcode=PING))
        pong = await socket.frame()
        assert (pong.opcode, pong.payload) == (PONG, b"now")
        await socket.raw(frame(data[2000:], opcode=0))
        await socket.until("response.completed")


@pytest.mark.parametrize(
    "begun",
    [frame(create(15_000))[:1], frame(create(15_000))[:9000], frame(b"{", fin=False)],
    ids=["a header", "a frame", "a fragment"],
)
async def test_cn_21_what_does_not_come_in_time_ends_the_connection(begun: bytes) -> None:
    async with serve(upgrade=upgrade(read_timeout=0.05)) as served:
        async with RawSocket(served.port) as socket:
            await socket.raw(begun)
            error = await socket.event()
            assert (error["status"], error["error"]["code"]) == (408, "idle_timeout")
            assert await socket.closed() == (1008, "idle_timeout")
        await until(lambda: served.services.incoming.taken == 0)


async def test_cn_21_a_trickle_is_not_kept_alive_by_each_byte() -> None:
    """A byte now and then is not silence, but slower than any message may be."""

    slow = upgrade(read_timeout=0.2)
    async with serve(upgrade=slow) as served, RawSocket(served.port) as socket:
        data = frame(create(15_000))
        await socket.raw(data[:50])
        ended = asyncio.ensure_future(socket.until("error"))
        at = 50
        while not ended.done():
            await socket.raw(data[at : at + 1])
            at += 1
            await asyncio.sleep(0.01)
        assert (await ended)[-1]["error"]["code"] == "idle_timeout"
        assert at < 1000


async def test_an_idle_connection_is_not_waited_for() -> None:
    brief = upgrade(read_timeout=0.05)
    async with serve(upgrade=brief) as served, RawSocket(served.port) as socket:
        await socket.raw(frame(create(200)))
        await socket.until("response.completed")
        await asyncio.sleep(0.2)
        await socket.raw(frame(create(200)))
        await socket.until("response.completed")


class Transport:
    """Says whether this side reads."""

    def __init__(self) -> None:
        self.reads = False

    def is_reading(self) -> bool:
        return self.reads


async def test_a_message_is_not_late_while_this_side_does_not_read() -> None:
    given_up: list[str] = []
    incoming = IncomingMessages(Share(), "a", most=1000, patience=0.01, deflate=False)
    transport = Transport()
    incoming.transport = transport  # type: ignore[assignment]
    incoming.give_up = lambda error: given_up.append(error.code)
    assert incoming.take(10)
    incoming.wait()
    await asyncio.sleep(0.1)
    assert given_up == []
    transport.reads = True
    async with asyncio.timeout(10.0):
        while not given_up:  # noqa: ASYNC110
            await asyncio.sleep(0)
    assert given_up == ["idle_timeout"]


async def test_what_is_whole_counts_until_the_reader_takes_it() -> None:
    share = Share()
    incoming = IncomingMessages(share, "a", most=1000, patience=30.0, deflate=False)
    assert incoming.take(10)
    incoming.complete(2)
    assert incoming.take(100)
    incoming.complete(3)
    assert incoming.take(1000)
    for left in (1110, 1100, 1000, 1000):
        incoming.taken()
        assert share.taken == left
    incoming.close()
    assert share.taken == 0


def deflated(data: bytes) -> bytes:
    """A frame with a compressed message (RFC 7692 7.2.1)."""
    squeeze = zlib.compressobj(wbits=-15)
    packed = squeeze.compress(data) + squeeze.flush(zlib.Z_SYNC_FLUSH)
    return frame(packed.removesuffix(b"\x00\x00\xff\xff"), bits=0x40)


@pytest.mark.parametrize("piece", [100, 1 << 20])
@pytest.mark.parametrize("over", [1, 2, 50_000])
async def test_cn_12_an_inflated_message_has_the_same_limit(over: int, piece: int) -> None:
    limit = 20_000
    offer = {"Sec-WebSocket-Extensions": "permessage-deflate"}

    small = upgrade(deflate=True, max_message_bytes=limit)
    async with serve(upgrade=small) as served, RawSocket(served.port, headers=offer) as socket:
        assert "permessage-deflate" in socket.headers["sec-websocket-extensions"]
        data = deflated(create(limit))
        for at in range(0, len(data), piece):
            await socket.raw(data[at : at + piece])
        seen = 0
        while not seen:
            seen = (await socket.frame()).head & 0x40
        await socket.raw(deflated(create(limit + over)))
        while (last := await socket.frame()).opcode != CLOSE:
            pass
        assert last.close == (1009, f"request_too_large: at most {limit} bytes")


async def test_cn_12_a_message_of_just_the_limit_passes_and_a_byte_more_does_not() -> None:
    small = upgrade(max_message_bytes=20_000)
    async with serve(upgrade=small) as served, RawSocket(served.port) as socket:
        await socket.raw(frame(create(20_000)))
        await socket.until("response.completed")
        await socket.raw(frame(create(20_001))[:-5000])
        assert (await socket.event())["error"]["code"] == "request_too_large"
        assert await socket.closed() == (1009, "request_too_large: at most 20000 bytes")
