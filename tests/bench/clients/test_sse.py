"""The load client of SSE beside aiohttp's server."""

import pytest
from aiohttp import web

from tests.bench.clients.http_server import serving
from tieline_bench.clients import LoadError, SseConnection, take_turn

DELTA = b"event: response.output_text.delta\n"
EVENTS = (
    b": alive\n\n"
    + DELTA
    + b'data: {"type":"response.output_text.delta","delta":"a"}\n\n'
    + DELTA
    + b'data: {"type":"response.output_text.delta","delta":"b"}\n\n'
    b'event: response.completed\ndata: {"type":"response.completed","response":{"id":"r"}}\n\n'
    b"data: [DONE]\n\n"
)


@pytest.mark.parametrize("size", [1, 7, 100, 10_000])
def test_events_are_read_however_the_chunks_are_cut_and_the_connection_lives(size: int) -> None:
    asked: list[tuple[str, bytes, str | None]] = []

    async def handle(request: web.BaseRequest) -> web.StreamResponse:
        body = await request.read()
        asked.append((request.path, body, request.headers.get("Authorization")))
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        response.enable_chunked_encoding()
        await response.prepare(request)
        for at in range(0, len(EVENTS), size):
            await response.write(EVENTS[at : at + size])
        await response.write_eof()
        return response

    with serving(handle) as address:
        connection = SseConnection(address, api_key="k")
        connection.recorded = bytearray()
        for _ in range(2):
            turn = take_turn(connection, b'{"n":1}')
            assert (turn.events, turn.response_id, turn.text) == (3, "r", "ab")
        connection.close()
    assert asked == [("/v1/responses", b'{"n":1}', "Bearer k")] * 2
    assert connection.recorded == EVENTS * 2
    assert b"".join(connection.split(EVENTS)) == EVENTS
    assert len(connection.split(EVENTS)) == 4


def test_a_refusal_is_an_error() -> None:
    async def handle(_: web.BaseRequest) -> web.Response:
        return web.Response(status=401, text="no")

    with serving(handle) as address:
        connection = SseConnection(address)
        with pytest.raises(LoadError, match="401"):
            take_turn(connection, b"{}")
        connection.close()


def test_a_connection_that_ends_early_is_an_error() -> None:
    async def handle(request: web.BaseRequest) -> web.StreamResponse:
        assert request.transport is not None
        request.transport.close()
        return web.Response()

    with serving(handle) as address:
        connection = SseConnection(address)
        with pytest.raises(LoadError, match="closed"):
            take_turn(connection, b"{}")
        connection.close()
