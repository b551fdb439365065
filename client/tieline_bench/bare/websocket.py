"""A bare WebSocket server: aiohttp on uvloop, frames made beforehand, one write a turn.

It cannot be faster on this stack. The library reads and unmasks the frame, in C, and everything
above that is left out: no router, no middleware, no JSON, no frame headers. The answer goes to
the transport in one write, which costs one send; aiohttp's own ``send_frame`` would add a
coroutine and a send for each event. Tokens are written by the timer's own callback, without a
task that would have to wake, unless earlier ones still wait in the transport's buffer.
"""

import asyncio

from aiohttp import WSMsgType, web

from tieline_bench.bare.base import TURNS, Metronome, Order, run


async def serve(order: Order) -> str:
    """Starts to serve upgrades on any path; returns the address."""
    metronome = Metronome(order.rate)
    turn, delta, end = order.pieces

    def stream(transport: asyncio.Transport) -> None:
        left = order.tokens
        kept = 0

        def give(tokens: int) -> None:
            nonlocal left, kept
            left -= tokens
            kept += tokens
            if left and transport.get_write_buffer_size():
                return
            transport.write(delta * kept if left else delta * (kept - 1) + end)
            kept = 0

        metronome.feed(left, give)

    async def handle(request: web.BaseRequest) -> web.WebSocketResponse:
        socket = web.WebSocketResponse(compress=False, autoping=False)
        await socket.prepare(request)
        transport = request.transport
        assert transport is not None
        while (await socket.receive()).type is WSMsgType.TEXT:
            if order.mode == TURNS:
                transport.write(turn)
            else:
                stream(transport)
        return socket

    server = web.Server(handle)
    listening = await asyncio.get_running_loop().create_server(server, "127.0.0.1", 0)
    return f"127.0.0.1:{listening.sockets[0].getsockname()[1]}"


if __name__ == "__main__":
    run("http", serve)
