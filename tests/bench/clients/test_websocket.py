"""The load client of WebSocket beside aiohttp's server."""

from typing import Any

import pytest
from aiohttp import WSMsgType, web

from tests.bench.clients.http_server import serving
from tieline_bench.clients import LoadError, WebSocketConnection, take_turn
from tieline_bench.clients.websocket import masked

COMPLETED = '{"type":"response.completed","response":{"id":"resp_7"}}'


def delta(text: str) -> str:
    return f'{{"type":"response.output_text.delta","delta":"{text}"}}'


@pytest.mark.parametrize("size", [1, 125, 126, 65_535, 65_536, 200_000])
def test_the_library_unmasks_what_was_sent_and_its_frames_are_read(size: int) -> None:
    got: list[str] = []

    async def handle(request: web.BaseRequest) -> web.WebSocketResponse:
        socket = web.WebSocketResponse(compress=False)
        await socket.prepare(request)
        got.append((await socket.receive()).data)
        await socket.ping(b"alive")
        await socket.send_str(delta("x" * size))
        await socket.send_str(COMPLETED)
        got.append((await socket.receive()).type.name)
        return socket

    with serving(handle) as address:
        connection = WebSocketConnection(address, api_key="k")
        turn = take_turn(connection, b"y" * size)
        connection.close()
    assert got == ["y" * size, WSMsgType.CLOSE.name]
    assert (turn.events, turn.response_id, turn.text) == (2, "resp_7", "x" * size)


def test_frames_that_come_together_are_recorded_whole() -> None:
    async def handle(request: web.BaseRequest) -> web.WebSocketResponse:
        socket = web.WebSocketResponse(compress=False)
        await socket.prepare(request)
        await socket.receive()
        transport = request.transport
        assert transport is not None
        transport.write(frames)
        await socket.receive()
        return socket

    events = [delta("a").encode(), delta("b").encode(), COMPLETED.encode()]
    frames = b"".join(bytes((0x81, len(event))) + event for event in events)
    with serving(handle) as address:
        connection = WebSocketConnection(address)
        connection.recorded = bytearray()
        assert take_turn(connection, b"{}").text == "ab"
        connection.close()
    assert connection.recorded == frames
    assert b"".join(connection.split(frames)) == frames
    assert len(connection.split(frames)) == 3


def test_a_turn_that_ends_badly_is_an_error() -> None:
    async def handle(request: web.BaseRequest) -> web.WebSocketResponse:
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        await socket.receive()
        await socket.send_str('{"type":"error"}')
        await socket.receive()
        return socket

    with serving(handle) as address:
        connection = WebSocketConnection(address)
        with pytest.raises(LoadError, match="ended with error"):
            take_turn(connection, b"{}")
        connection.close()


def test_a_server_that_does_not_upgrade_is_an_error() -> None:
    async def handle(_: web.BaseRequest) -> web.Response:
        return web.Response(status=426)

    with serving(handle) as address, pytest.raises(LoadError, match="426"):
        WebSocketConnection(address)


@pytest.mark.parametrize("frame", [b"\x01\x01a", b"\xc1\x01a", b"\x81\x81abcd"], ids=str)
def test_what_a_server_must_not_send_unasked_is_an_error(frame: bytes) -> None:
    async def handle(request: web.BaseRequest) -> Any:
        socket = web.WebSocketResponse(compress=False)
        await socket.prepare(request)
        assert request.transport is not None
        request.transport.write(frame)
        await socket.receive()
        return socket

    with serving(handle) as address:
        connection = WebSocketConnection(address)
        with pytest.raises(LoadError, match="fragment"):
            connection.receive()
        connection.close()


def test_a_mask_is_an_exclusive_or_with_its_key() -> None:
    frame = masked(b"hello")
    key, payload = frame[2:6], frame[6:]
    assert frame[:2] == b"\x81\x85"
    assert bytes(byte ^ key[at % 4] for at, byte in enumerate(payload)) == b"hello"
