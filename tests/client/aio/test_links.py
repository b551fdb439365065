"""The lines of a session: dialled once, checked, and closed when their last turn has ended."""

import asyncio
import gc
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from tests.client.aio.lines import ours
from tests.client.aio.sessions import LINES, Peer, Server
from tests.client.relay import Relay
from tests.client.servicer import Speaker
from tieline_client.aio import Session
from tieline_client.aio.links import Links
from tieline_client.errors import ConnectionClosed, NotSent
from tieline_client.transports import Options


async def quiet(peer: Peer) -> None:
    await peer.gone()


@asynccontextmanager
async def links_to(
    server: Server, *, kind: str, age: float = 1e9
) -> AsyncIterator[tuple[Links, Relay]]:
    async with server.serving(kind) as address, Relay(address) as relay:
        url = f"{kind}://{relay.address}"
        links = Links(url, api_key=None, tls=None, options=Options(), max_age=age)
        yield links, relay
        await links.close()
        assert ours() == []


@pytest.mark.parametrize("kind", LINES)
async def test_rc_05_parallel_calls_share_a_dial_and_a_dead_line_costs_one_more(kind: str) -> None:
    """RC-05: the connection is killed without a close frame; one call follows."""
    server = Server(quiet)

    async with links_to(server, kind=kind) as (links, relay):
        taken = await asyncio.gather(*(links.take() for _ in range(3)))
        assert len({id(link) for link in taken}) == 1
        for link in taken:
            links.release(link)
        relay.reset()
        if kind == "grpc":
            # The library hears of it in a thread of its own.
            await asyncio.wait((taken[0].line._reader,))
        fresh = await links.take()
        assert fresh is not taken[0]
        assert fresh.line.alive
    assert server.dials == 2


@pytest.mark.parametrize("kind", LINES)
async def test_an_old_line_is_closed_with_its_last_turn(kind: str) -> None:
    async with links_to(Server(quiet), kind=kind, age=0.0) as (links, _relay):
        old = await links.take()
        new = await links.take()
        assert old is not new
        assert old.line.alive
        links.release(old)
        await asyncio.wait((old.line._reader,))
        assert (old.line.alive, new.line.alive) == (False, True)


async def test_closed_links_lend_nothing() -> None:
    async with links_to(Server(quiet), kind="grpc") as (links, _relay):
        link = await links.take()
        await links.close()
        assert not link.line.alive
        with pytest.raises(ConnectionClosed):
            await links.take()
        await links.close()


@pytest.mark.parametrize("scheme", ["ws", "grpc"])
async def test_a_dial_that_fails_has_sent_nothing(scheme: str) -> None:
    listener = await asyncio.start_server(lambda *_: None, "127.0.0.1", 0)
    port = listener.sockets[0].getsockname()[1]
    listener.close()
    await listener.wait_closed()
    async with asyncio.timeout(20):
        with pytest.raises(NotSent):
            await Session(f"{scheme}://127.0.0.1:{port}").ready()


async def test_a_stream_that_was_dropped_unread_does_not_keep_its_line() -> None:
    server = Server()

    async def script(peer: Peer) -> None:
        await peer.send(Speaker(await server.create(peer)).created())
        await peer.gone()

    server.scripts = (script,)

    async with server.serving("grpc") as address:
        session = Session(f"grpc://{address}")
        stream = await session.create(input="a")
        link = stream._link
        assert link is not None
        session._links.retire(link)
        del stream
        gc.collect()
        async with asyncio.timeout(20):
            await asyncio.wait((link.line._reader,))
        assert not link.line.alive
        await session.close()
