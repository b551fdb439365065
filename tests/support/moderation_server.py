"""A local server with OpenAI's ``POST /v1/moderations`` that plays what a test says."""

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any, Final

from aiohttp import web

from tests.support.signal import Signal

FLAGGED: Final = "bad"
"""A text, or the URL of an image, with this in it is flagged, as violence."""

Answer = Callable[["ModerationServer", Any], Awaitable[web.StreamResponse]]


class ModerationServer:
    """What was asked, and what is answered: ``answers`` first, then verdicts."""

    def __init__(self, key: str | None = None) -> None:
        self.url = ""
        self.key = key
        self.bodies: list[Any] = []
        self.answers: list[Answer] = []
        self.signal = Signal()
        self.connections: set[object] = set()
        self.running = 0
        self.most = 0
        """Requests that ran at once, at most."""
        self.gate = asyncio.Event()
        """Closed, it makes verdicts wait."""
        self.gate.set()

    @property
    def inputs(self) -> list[str]:
        """The texts that were asked about, in order."""
        asked = [body["input"] for body in self.bodies]
        return [text for each in asked for text in each if isinstance(text, str)]

    async def handle(self, request: web.Request) -> web.StreamResponse:
        """Answers one request."""
        if self.key is not None and request.headers.get("Authorization") != f"Bearer {self.key}":
            return web.Response(status=401)
        self.connections.add(request.transport)
        self.bodies.append(await request.json())
        self.running += 1
        self.most = max(self.most, self.running)
        self.signal.notify()
        try:
            await self.gate.wait()
            if self.answers:
                return await self.answers.pop(0)(self, request)
            return web.json_response({"id": "modr-1", "model": "m", "results": self._results()})
        finally:
            self.running -= 1
            self.signal.notify()

    def _results(self) -> list[dict[str, Any]]:
        asked = self.bodies[-1]["input"]
        if isinstance(asked[0], dict):
            return [_result(str(asked))]
        return [_result(text) for text in asked]


def _result(text: str) -> dict[str, Any]:
    found = FLAGGED in text
    categories = {"violence": found, "spam": "spam" in text, "unused": None}
    scores = dict.fromkeys(categories, 0.5)
    return {"flagged": any(categories.values()), "categories": categories, "scores": scores}


def replying(status: int = 200, body: bytes = b"", **headers: str) -> Answer:
    """Answers with these bytes."""

    async def reply(_server: ModerationServer, _request: web.Request) -> web.StreamResponse:
        return web.Response(status=status, body=body, headers=headers)

    return reply


def hanging() -> Answer:
    """Never answers."""

    async def hang(_server: ModerationServer, _request: web.Request) -> web.StreamResponse:
        await asyncio.Event().wait()
        raise AssertionError

    return hang


def cutting(after: bytes | None = None) -> Answer:
    """Breaks the connection, before the head of the answer or in its body."""

    async def cut(_server: ModerationServer, request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Length": "1000"})
        if after is not None:
            await response.prepare(request)
            await response.write(after)
        assert request.transport is not None
        request.transport.abort()
        return response

    return cut


@asynccontextmanager
async def moderation(key: str | None = None) -> AsyncIterator[ModerationServer]:
    """A server on a free port."""
    server = ModerationServer(key)
    app = web.Application(client_max_size=64 * 1024 * 1024)
    app.router.add_post("/v1/moderations", server.handle)
    runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        server.url = f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
        yield server
    finally:
        await runner.cleanup()


@contextmanager
def moderation_beside(key: str | None = None) -> Iterator[ModerationServer]:
    """A server on a loop of its own, for tests that block."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    running = moderation(key)
    try:
        server = asyncio.run_coroutine_threadsafe(running.__aenter__(), loop).result(20)
        yield server
    finally:
        leave = running.__aexit__(None, None, None)
        asyncio.run_coroutine_threadsafe(leave, loop).result(20)
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
