"""A local OpenAI-compatible server that plays what a test says: good, slow, cut, wrong, hanging."""

import asyncio
import json
import threading
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import Any

from aiohttp import web
from msgspec import Struct, field

from tests.support.signal import Signal

MODEL = "upstream-model"
DONE = b"data: [DONE]\n\n"
ASKED = {"messages", "input", "prompt"}
"""The members of requests that ask something."""


class Hang(Struct):
    """Says nothing more until ``go`` is set, or until the client is gone."""

    go: asyncio.Event = field(default_factory=asyncio.Event)


class Repeated(Struct):
    """Comes again and again until ``go`` is set, or until the client is gone."""

    piece: bytes
    go: asyncio.Event = field(default_factory=asyncio.Event)


class Cut(Struct):
    """Breaks the connection."""


Part = bytes | Hang | Repeated | Cut
Handler = Callable[["UpstreamServer", dict[str, Any], web.Request], Awaitable[web.StreamResponse]]


def event(chunk: Any) -> bytes:
    """A chunk as an event."""
    return b"data: " + json.dumps(chunk).encode() + b"\n\n"


def chunk(reason: str | None = None, **delta: Any) -> bytes:
    """One chunk of the first choice."""
    return event({"choices": [{"index": 0, "delta": delta, "finish_reason": reason}]})


def call(index: int | None, arguments: str = "", **members: Any) -> bytes:
    """A piece of a tool call; ``name`` begins one."""
    function: dict[str, Any] = {"arguments": arguments}
    if "name" in members:
        function["name"] = members.pop("name")
    entry: dict[str, Any] = {"function": function, **members}
    if index is not None:
        entry["index"] = index
    return chunk(tool_calls=[entry])


def usage(prompt: int, completion: int, **details: Any) -> bytes:
    """The last chunk, with what was used."""
    used = {"prompt_tokens": prompt, "completion_tokens": completion, **details}
    return event({"choices": [], "usage": used})


def streamed(*parts: Part, whole: bool = True) -> Handler:
    """Streams these; ``whole`` ends as it should."""

    async def play(
        server: "UpstreamServer", _body: dict[str, Any], request: web.Request
    ) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        response.enable_chunked_encoding()
        await response.prepare(request)
        for part in (*parts, DONE) if whole else parts:
            if isinstance(part, Hang):
                await part.go.wait()
            elif isinstance(part, Repeated):
                while not part.go.is_set():
                    await response.write(part.piece)
                    await asyncio.sleep(0)
            elif isinstance(part, Cut):
                assert request.transport is not None
                request.transport.abort()
                return response
            else:
                await response.write(part)
                # So that the part arrives by itself.
                await asyncio.sleep(0)
        return response

    return play


def refusing(status: int, error: Any = None, **headers: str) -> Handler:
    """Answers with an error; ``Retry_After`` names the header."""

    async def refuse(
        _server: "UpstreamServer", _body: dict[str, Any], _request: web.Request
    ) -> web.StreamResponse:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        if isinstance(error, bytes):
            return web.Response(status=status, body=error, headers=named)
        return web.json_response({"error": error}, status=status, headers=named)

    return refuse


def trailing_off(status: int, *, cut: bool, **headers: str) -> Handler:
    """Begins to say an error, and is then cut or says no more."""

    async def trail(
        _server: "UpstreamServer", _body: dict[str, Any], request: web.Request
    ) -> web.StreamResponse:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        response = web.StreamResponse(status=status, headers=named)
        response.content_length = 1000
        await response.prepare(request)
        await response.write(b'{"error":')
        if not cut:
            await asyncio.Event().wait()
        assert request.transport is not None
        request.transport.close()
        return response

    return trail


def cutting() -> Handler:
    """Breaks the connection before it answers."""

    async def cut(
        _server: "UpstreamServer", _body: dict[str, Any], request: web.Request
    ) -> web.StreamResponse:
        assert request.transport is not None
        request.transport.abort()
        return web.Response()

    return cut


def hanging() -> Handler:
    """Never answers."""

    async def hang(
        _server: "UpstreamServer", _body: dict[str, Any], _request: web.Request
    ) -> web.StreamResponse:
        await asyncio.Event().wait()
        raise AssertionError

    return hang


async def talk(
    _server: "UpstreamServer", body: dict[str, Any], request: web.Request
) -> web.StreamResponse:
    """Answers as a model would: words up to a limit, or the first tool where one is required."""
    if body.get("tool_choice") not in (None, "auto", "none"):
        arguments = ('{"city":"Os', 'lo","unit":"celsius"}')
        name = body["tools"][0]["function"]["name"]
        parts = [call(0, id="call_1", name=name), *(call(0, each) for each in arguments)]
        parts.append(chunk("tool_calls"))
        return await streamed(*parts, usage(9, 12))(_server, body, request)
    words = 200 if len(json.dumps(body)) > 500 else 5
    most = body.get("max_tokens") or body.get("max_completion_tokens") or words
    said = [chunk(content=f"word{at} ") for at in range(min(words, most))]
    reason = "length" if most < words else "stop"
    played = streamed(*said, chunk(reason), usage(9, len(said)))
    return await played(_server, body, request)


class UpstreamServer:
    """What runs: ``plans`` are played one after the other, then ``otherwise``."""

    def __init__(
        self,
        *,
        models: Sequence[str] = (MODEL,),
        key: str | None = None,
        paths: Sequence[str] = ("chat/completions", "completions", "responses"),
    ) -> None:
        self.models = models
        self.key = key
        self.paths = paths
        self.plans: deque[Handler] = deque()
        self.otherwise: Handler = talk
        self.bodies: list[dict[str, Any]] = []
        """The requests so far."""
        self.sizes: list[int] = []
        """Bytes of each."""
        self.running = 0
        self.gone = 0
        """Requests whose client went away before their end."""
        self.most = 0
        """Requests that ran side by side."""
        self.connections: set[object] = set()
        """Those that requests came over."""
        self.tokenizes = False
        self.counts = False
        """Whether it counts the input of a Responses request."""
        self.tokens: list[int] | None = None
        """What it makes of any text."""
        self.signal = Signal()
        self.url = ""
        self._port = 0
        self._runner: web.AppRunner | None = None

    async def start(self) -> None:
        """Listens on a free port; after a stop, on the one that it had."""
        app = web.Application(client_max_size=1 << 26)
        app.router.add_get("/v1/models", self._list)
        for path in self.paths:
            app.router.add_post(f"/v1/{path}", self._complete)
        app.router.add_post("/tokenize", self._tokenize)
        app.router.add_post("/v1/responses/input_tokens", self._count)
        self._runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.05)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", self._port)
        await site.start()
        self._port = self._runner.addresses[0][1]
        self.url = f"http://127.0.0.1:{self._port}/v1"

    async def stop(self) -> None:
        """Ends it with all its connections."""
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    async def _list(self, request: web.Request) -> web.Response:
        if self.key is not None and request.headers.get("Authorization") != f"Bearer {self.key}":
            return web.json_response({"error": {"message": "no"}}, status=401)
        entries = [{"id": name, "object": "model", "max_model_len": 4096} for name in self.models]
        return web.json_response({"object": "list", "data": entries})

    async def _tokenize(self, request: web.Request) -> web.Response:
        if not self.tokenizes and self.tokens is None:
            return web.json_response({"error": "no such path"}, status=404)
        body = await request.json()
        if "messages" not in body:
            return web.json_response({} if self.tokens is None else {"tokens": self.tokens})
        text = json.dumps(body["messages"])
        return web.json_response({"count": len(text), "tokens": []})

    async def _count(self, request: web.Request) -> web.Response:
        if not self.counts:
            return web.json_response({"error": "no such path"}, status=404)
        body = await request.json()
        return web.json_response({"input_tokens": len(json.dumps(body["input"]))})

    async def _complete(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        if not body.keys() & ASKED:
            return web.json_response({"error": {"message": "it asks nothing"}}, status=400)
        self.bodies.append(body)
        self.sizes.append(int(request.headers["Content-Length"]))
        self.connections.add(request.transport)
        plan = self.plans.popleft() if self.plans else self.otherwise
        self.running += 1
        self.most = max(self.most, self.running)
        self.signal.notify()
        try:
            return await plan(self, self.bodies[-1], request)
        except (asyncio.CancelledError, ConnectionError):
            self.gone += 1
            raise
        finally:
            self.running -= 1
            self.signal.notify()


@asynccontextmanager
async def upstream(**options: Any) -> AsyncIterator[UpstreamServer]:
    """A server that listens."""
    server = UpstreamServer(**options)
    await server.start()
    try:
        yield server
    finally:
        await server.stop()


@contextmanager
def upstream_beside(**options: Any) -> Iterator[UpstreamServer]:
    """A server on a loop of its own, for tests that block."""
    server = UpstreamServer(**options)
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        asyncio.run_coroutine_threadsafe(server.start(), loop).result(20)
        yield server
    finally:
        asyncio.run_coroutine_threadsafe(server.stop(), loop).result(20)
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
