"""Sessions with scripted servers: each line to one plays the next script."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import msgspec
from aiohttp import web
from msgspec import Raw

from tests.client import servicer
from tests.client import web as http
from tests.client.aio.connections import ours
from tieline import events, requests
from tieline.errors import ApiError
from tieline_client._replay import Backoff, Policy
from tieline_client.aio import Session, connect_session
from tieline_client.transports import Options

LINES = ("grpc", "ws")
"""The transports on which a session has lines."""

QUICK = Policy(backoff=Backoff(first=0.001, longest=0.002))
EXTENSIONS = ("idempotency_key", "resumable")

Peer = Any
"""A servicer's Peer or a web SocketPeer: both receive, create, send."""
Script = Callable[[Peer], Awaitable[None]]


class Server:
    """Plays one script a connection, in their order, the last one on every further connection."""

    def __init__(self, *scripts: Script, extensions: tuple[str, ...] | None = EXTENSIONS) -> None:
        self.scripts = scripts
        self.extensions = extensions
        """None: a server that knows nothing of ours."""
        self.dials = 0
        self.creates: list[requests.Create] = []

    async def play(self, peer: Peer) -> None:
        script = self.scripts[min(self.dials, len(self.scripts) - 1)]
        self.dials += 1
        if self.extensions is not None:
            start = await peer.receive()
            assert isinstance(start, requests.SessionStart), start
            await peer.send(self.started())
        await script(peer)

    def started(self) -> events.Event:
        return events.SessionStarted(
            session_id="s", revision="1", extensions=list(self.extensions or ()), limits={}
        )

    async def create(self, peer: Peer) -> requests.Create:
        """The next create of the connection, which is kept."""
        create: requests.Create = await peer.create()
        self.creates.append(create)
        return create

    @asynccontextmanager
    async def serving(self, kind: str, **settings: Any) -> AsyncIterator[str]:
        """Serves over this transport; yields the address."""
        if kind == "grpc":
            async with servicer.serving(self.play) as address:
                yield address
            return

        async def handle(request: web.Request) -> web.StreamResponse:
            socket = web.WebSocketResponse(**{"max_msg_size": 64 * 1024 * 1024, **settings})
            if self.extensions is not None:
                socket.headers["x-tieline-extensions"] = "session"
            await socket.prepare(request)
            await self.play(http.SocketPeer(socket, request))
            return socket

        async with http.serving(handle) as address:
            yield address


@asynccontextmanager
async def session_with(
    server: Server, *, kind: str, policy: Policy = QUICK, options: Options | None = None
) -> AsyncIterator[Session]:
    """A session with the server; then no task may be left."""
    async with server.serving(kind) as address:
        url = f"{kind}://{address}"
        async with connect_session(url, policy=policy, options=options) as session:
            yield session
        assert ours() == []


def items_of(request: requests.Create | requests.Append) -> list[dict[str, Any]]:
    """The items of a request's input."""
    assert isinstance(request.input, Raw)
    items: list[dict[str, Any]] = msgspec.json.decode(request.input)
    return items


def said(request: requests.Create | requests.Append) -> list[str]:
    """The words of a request's input, item by item."""
    return [_words(item) for item in items_of(request)]


def _words(item: dict[str, Any]) -> str:
    content = item.get("content") or item.get("output") or item.get("arguments") or ""
    return content if isinstance(content, str) else "".join(part["text"] for part in content)


def refusal(code: str | None, create: requests.Request, **members: Any) -> events.Event:
    """An error event that answers a request; without a code as some servers send them."""
    if code is None:
        detail = events.ErrorDetail(
            type="server_error", message="m", event_id=create.event_id or ""
        )
        return events.ErrorEvent(error=detail)
    error = ApiError.of(code, "no", **members)
    detail = events.ErrorDetail.of(error, create.event_id)
    return events.ErrorEvent(status=error.status, error=detail)
