"""A loop of its own in a thread, and aiohttp's lowest server on it, for clients that block."""

import asyncio
import threading
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from aiohttp import web

T = TypeVar("T")
Handler = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]
Run = Callable[[Coroutine[Any, Any, T]], T]

PATIENCE = 30.0
"""Seconds that anything done on the loop may take."""


@contextmanager
def looping() -> Iterator[Callable[[Coroutine[Any, Any, Any]], Any]]:
    """Runs a loop in a thread; yields what runs a coroutine on it and waits for the result."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()

    def run(work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, loop).result(PATIENCE)

    try:
        yield run
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


@contextmanager
def serving(handle: Handler) -> Iterator[str]:
    """Serves every request by ``handle``; yields the address."""

    async def start() -> tuple[Any, asyncio.Server]:
        server = web.Server(handle)
        return server, await asyncio.get_running_loop().create_server(server, "127.0.0.1", 0)

    async def stop() -> None:
        listening.close()
        await server.shutdown()
        await listening.wait_closed()

    with looping() as run:
        server, listening = run(start())
        try:
            yield f"127.0.0.1:{listening.sockets[0].getsockname()[1]}"
        finally:
            run(stop())
