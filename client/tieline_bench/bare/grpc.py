"""A bare gRPC server: grpc.aio on uvloop, bytes in, the product's own bytes out, in one write.

It cannot be faster on this stack. No serializer is given, so a message is handed over as it is;
a turn is one read and one write, the least that a stream allows, through ``context.read`` and
``context.write``, the shortest way into the C core (the iterator API costs the same). Everything
else (a poller thread that wakes the loop by a socket, one sendmsg a message) is the library's.
Tokens are adaptive: what comes due while a write is in flight leaves in the next one.
"""

import asyncio
from typing import Any

import grpc

from tieline_bench.bare.base import TURNS, Metronome, Order, run
from tieline_bench.clients.grpc import SERVICE


class _Gathered:
    """Tokens of one stream that were not yet written."""

    def __init__(self) -> None:
        self._count = 0
        self._waiter: asyncio.Future[None] | None = None
        self._loop = asyncio.get_running_loop()

    def give(self, tokens: int) -> None:
        self._count += tokens
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def take(self) -> int:
        """Waits for tokens; all that there are."""
        if not self._count:
            self._waiter = self._loop.create_future()
            await self._waiter
            self._waiter = None
        taken, self._count = self._count, 0
        return taken


async def serve(order: Order) -> str:
    """Starts to serve ``Converse``; returns the address."""
    metronome = Metronome(order.rate)
    turn, delta, end = order.pieces

    async def turns(_: Any, context: Any) -> None:
        while await context.read() is not grpc.aio.EOF:
            await context.write(turn)

    async def tokens(_: Any, context: Any) -> None:
        while await context.read() is not grpc.aio.EOF:
            gathered, left = _Gathered(), order.tokens
            metronome.feed(left, gathered.give)
            while left:
                count = await gathered.take()
                left -= count
                await context.write(delta * count if left else delta * (count - 1) + end)

    behaviour = turns if order.mode == TURNS else tokens
    handler: grpc.RpcMethodHandler[bytes, bytes] = grpc.stream_stream_rpc_method_handler(behaviour)
    server = grpc.aio.server()
    server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler(SERVICE, {"Converse": handler}),)
    )
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    # The library ends a server without a reference.
    serve.server = server  # type: ignore[attr-defined]
    return f"127.0.0.1:{port}"


if __name__ == "__main__":
    run("grpc", serve)
