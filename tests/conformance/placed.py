"""Clients whose connection is at a worker of their choice.

The kernel spreads connections over the workers; each opens until one is where it is wanted. Where
it is, the id of a response tells that was made on it.
"""

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, Final

from aiohttp import ClientSession, ClientTimeout, TCPConnector

from tests.conformance.transcript import TERMINAL
from tests.conformance.wire import GrpcPeer, HttpPeer, Peer, WebSocketPeer
from tests.support.grpc_client import RawConnection
from tests.support.server_process import ServerProcess
from tests.support.several import tag_of

Json = dict[str, Any]

ENOUGH: Final = 64
"""Connections of which one is where it is wanted, or none ever will be."""

PATIENCE: Final = ClientTimeout(total=60)


async def events(peer: Peer, *, most: int | None = None) -> list[Json]:
    """So many events, or all to the terminal one."""
    heard: list[Json] = []
    while len(heard) != most:
        heard.append(await peer.receive())
        if heard[-1]["type"] in TERMINAL or heard[-1]["type"] == "error":
            break
    return heard


async def _tag(peer: Peer) -> str:
    """Which worker it is at."""
    await peer.send({"type": "response.create", "model": "scripted", "input": "hi", "store": False})
    return tag_of((await events(peer))[-1]["response"]["id"])


@asynccontextmanager
async def _grpc(server: ServerProcess) -> AsyncIterator[Peer]:
    async with RawConnection(int(server.address.rpartition(":")[2])) as line:
        yield GrpcPeer(line)


@asynccontextmanager
async def _websocket(server: ServerProcess) -> AsyncIterator[Peer]:
    url = f"http://{server.http}/v1/responses"
    async with ClientSession(timeout=PATIENCE) as session, session.ws_connect(url) as opened:
        yield WebSocketPeer(session, opened, url)


@asynccontextmanager
async def _http(server: ServerProcess) -> AsyncIterator[Peer]:
    url = f"http://{server.http}/v1/responses"
    # One connection, which is kept: what is asked next goes to the same worker.
    async with ClientSession(connector=TCPConnector(limit=1), timeout=PATIENCE) as session:
        peer = HttpPeer(session, url, stream=True)
        yield peer
        await peer.close()


KINDS: Final[dict[str, Callable[[ServerProcess], AbstractAsyncContextManager[Peer]]]] = {
    "grpc": _grpc,
    "ws": _websocket,
    "http": _http,
}


@asynccontextmanager
async def placed(server: ServerProcess, kind: str, tag: str) -> AsyncIterator[Peer]:
    """A client of this kind at this worker."""
    for _ in range(ENOUGH):
        async with KINDS[kind](server) as peer:
            if await _tag(peer) == tag:
                yield peer
                return
    raise AssertionError(f"no connection of {ENOUGH} was at {tag}")
