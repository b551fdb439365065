"""A bare SSE server: aiohttp on uvloop, the whole response made beforehand, one write a turn.

It cannot be faster on this stack. ``web.Server`` without a router, middleware or access log is
the lowest level that aiohttp documents: its parser in C, a request object and a task for each
request. The request's body is taken, as every server must, but not joined and not parsed. Head
and body go to the transport in one write, which costs one send; a ``StreamResponse`` would build
its headers and chunks anew each time, for half as much again. Chunked, because a stream has no
length; without ``Date``, which a server makes once a second. Tokens are written by the timer's
own callback, unless earlier ones still wait in the transport's buffer.
"""

import asyncio

from aiohttp import web
from aiohttp.abc import AbstractStreamWriter

from tieline_bench.bare.base import TURNS, Metronome, Order, run

HEAD = (
    b"HTTP/1.1 200 OK\r\n"
    b"Content-Type: text/event-stream; charset=utf-8\r\n"
    b"Cache-Control: no-cache\r\n"
    b"Transfer-Encoding: chunked\r\n"
    b"Connection: keep-alive\r\n\r\n"
)
LAST_CHUNK = b"0\r\n\r\n"


class _Written(web.StreamResponse):
    """What a handler returns that wrote its response itself: aiohttp has nothing left to send."""

    @property
    def keep_alive(self) -> bool:
        return True

    async def prepare(self, request: web.BaseRequest) -> AbstractStreamWriter | None:
        return None

    async def write_eof(self, data: bytes = b"") -> None:
        return None


async def serve(order: Order) -> str:
    """Starts to serve posts on any path; returns the address."""
    metronome = Metronome(order.rate)
    turn, delta, end = order.pieces
    answer = HEAD + chunk(turn) + LAST_CHUNK
    written = _Written()

    async def turns(request: web.BaseRequest) -> web.StreamResponse:
        (await _requested(request)).write(answer)
        return written

    async def tokens(request: web.BaseRequest) -> web.StreamResponse:
        transport = await _requested(request)
        transport.write(HEAD)
        await _stream(transport)
        return written

    def _stream(transport: asyncio.Transport) -> asyncio.Future[None]:
        done = asyncio.get_running_loop().create_future()
        left = order.tokens
        kept = 0

        def give(tokens: int) -> None:
            nonlocal left, kept
            left -= tokens
            kept += tokens
            if left and transport.get_write_buffer_size():
                return
            if left:
                transport.write(chunk(delta * kept))
            else:
                transport.write(chunk(delta * (kept - 1) + end) + LAST_CHUNK)
                done.set_result(None)
            kept = 0

        metronome.feed(left, give)
        return done

    server = web.Server(turns if order.mode == TURNS else tokens, access_log=None)
    listening = await asyncio.get_running_loop().create_server(server, "127.0.0.1", 0)
    return f"127.0.0.1:{listening.sockets[0].getsockname()[1]}"


async def _requested(request: web.BaseRequest) -> asyncio.Transport:
    """Takes the request to its end; where to answer it."""
    while not request.content.at_eof():
        await request.content.readany()
    transport = request.transport
    assert transport is not None
    return transport


def chunk(body: bytes) -> bytes:
    """A chunk of a body (RFC 9112 7.1)."""
    return b"%x\r\n%b\r\n" % (len(body), body)


if __name__ == "__main__":
    run("http", serve)
