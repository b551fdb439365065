"""A bare SSE server: aiohttp on uvloop, the body made beforehand, one chunk a turn.

It cannot be faster on this stack. ``web.Server`` without a router or middleware is the lowest
level that aiohttp documents; the request's body is read, as every server must, and not parsed;
the response is chunked, because a stream has no length, and all its events are one chunk, which
leaves with the head in one send. Tokens are written by the timer's own callback, in chunks made
by hand, unless earlier ones still wait in the transport's buffer.
"""

import asyncio

from aiohttp import web

from tieline_client.bench.bare.base import TURNS, Metronome, Order, run

HEADERS = {"Content-Type": "text/event-stream; charset=utf-8", "Cache-Control": "no-cache"}


async def serve(order: Order) -> str:
    """Starts to serve posts on any path; returns the address."""
    metronome = Metronome(order.rate)
    turn, delta, end = order.pieces

    async def turns(request: web.BaseRequest) -> web.StreamResponse:
        await request.read()
        response = web.StreamResponse(headers=HEADERS)
        response.enable_chunked_encoding()
        await response.prepare(request)
        await response.write_eof(turn)
        return response

    async def tokens(request: web.BaseRequest) -> web.StreamResponse:
        await request.read()
        response = web.StreamResponse(headers=HEADERS)
        response.enable_chunked_encoding()
        await response.prepare(request)
        # The head leaves with the first write.
        await response.write(b": tokens\n\n")
        transport = request.transport
        assert transport is not None
        await _stream(transport)
        await response.write_eof()
        return response

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
            body = delta * kept if left else delta * (kept - 1) + end
            transport.write(b"%x\r\n%b\r\n" % (len(body), body))
            kept = 0
            if not left:
                done.set_result(None)

        metronome.feed(left, give)
        return done

    server = web.Server(turns if order.mode == TURNS else tokens)
    listening = await asyncio.get_running_loop().create_server(server, "127.0.0.1", 0)
    return f"127.0.0.1:{listening.sockets[0].getsockname()[1]}"


if __name__ == "__main__":
    run("http", serve)
