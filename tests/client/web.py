"""Real HTTP and WebSocket servers whose answers a test writes."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
from aiohttp import web

from tieline import requests
from tieline.codecs import json
from tieline.events import Event
from tieline.requests import Create, Request
from tieline_client.transports import Endpoint, Options

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@asynccontextmanager
async def serving(handler: Handler, **settings: Any) -> AsyncIterator[str]:
    """Serves every path by the handler while the body runs; yields HOST:PORT."""
    application = web.Application(client_max_size=64 * 1024 * 1024)
    application.router.add_route("*", "/{path:.*}", handler)
    runner = web.AppRunner(application, shutdown_timeout=0.1, **settings)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        host, port = runner.addresses[0][:2]
        yield f"{host}:{port}"
    finally:
        await runner.cleanup()


@asynccontextmanager
async def speaking(*answers: bytes, hold: bool = False) -> AsyncIterator[str]:
    """A raw server: reads a head and its body, sends one answer a connection, closes."""
    left = list(answers)
    open_ended = asyncio.Event()

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        sizes = [line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length")]
        if sizes:
            await reader.readexactly(int(sizes[0].partition(b":")[2]))
        writer.write(left.pop(0))
        await writer.drain()
        if hold:
            await open_ended.wait()
        writer.close()

    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    try:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        open_ended.set()
        server.close()
        await server.wait_closed()


def endpoint(scheme: str, address: str, *, path: str = "", **members: Any) -> Endpoint:
    """An endpoint; members that are no endpoint's are options."""
    host, _, port = address.rpartition(":")
    named = {name: members.pop(name) for name in ("api_key", "tls") if name in members}
    options = Options(**members)
    return Endpoint(scheme=scheme, host=host, port=int(port), path=path, options=options, **named)


class SocketPeer:
    """The server's side of one WebSocket."""

    def __init__(self, socket: web.WebSocketResponse, request: web.Request) -> None:
        self.socket = socket
        self.request = request

    async def receive(self) -> Request | None:
        """The next request; None when the client has closed or is gone."""
        message = await self.socket.receive()
        if message.type is not aiohttp.WSMsgType.TEXT:
            return None
        return json.decode_request(message.data.encode())

    async def create(self) -> Create:
        """The next request, which is a create."""
        request = await self.receive()
        assert isinstance(request, requests.Create), request
        return request

    async def send(self, *sent: Event) -> None:
        """These events, a frame each."""
        for event in sent:
            await self.say(json.encode(event).decode())

    async def say(self, text: str) -> None:
        """This text frame."""
        await self.socket.send_str(text)

    async def gone(self) -> None:
        """Waits until the client has gone."""
        while await self.receive() is not None:
            pass


SocketScript = Callable[[SocketPeer], Awaitable[None]]


def upgrading(script: SocketScript, **settings: Any) -> Handler:
    """Plays the script on every WebSocket."""

    async def handle(request: web.Request) -> web.StreamResponse:
        socket = web.WebSocketResponse(max_msg_size=64 * 1024 * 1024, **settings)
        await socket.prepare(request)
        await script(SocketPeer(socket, request))
        return socket

    return handle


class StreamPeer:
    """The server's side of one POST that is answered by events."""

    def __init__(self, request: web.Request, body: bytes) -> None:
        self.request = request
        self.body = body
        self.response = web.StreamResponse(headers={"content-type": "text/event-stream"})

    @property
    def create(self) -> Create:
        """The create of the body."""
        return json.RequestDecoder().create(self.body)

    async def send(self, *sent: Event) -> None:
        """These events in one write."""
        await self.write(b"".join(frame(event) for event in sent))

    async def write(self, data: bytes) -> None:
        """These bytes."""
        if not self.response.prepared:
            await self.response.prepare(self.request)
        await self.response.write(data)

    async def gone(self) -> None:
        """Waits until the client has dropped the connection: the handler is cancelled then."""
        await asyncio.Event().wait()


def frame(event: Event) -> bytes:
    """One event as an SSE frame."""
    return b"event: %s\ndata: %s\n\n" % (event.type.encode(), json.encode(event))


StreamScript = Callable[[StreamPeer], Awaitable[None]]


def posting(script: StreamScript) -> Handler:
    """Plays the script for every create that is posted."""

    async def handle(request: web.Request) -> web.StreamResponse:
        peer = StreamPeer(request, await request.read())
        await script(peer)
        return peer.response

    return handle
