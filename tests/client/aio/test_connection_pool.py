"""The lines of a session: dialled once, checked, and closed when their last turn has ended."""

import asyncio
import gc
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from tests.client.aio.connections import ours
from tests.client.aio.sessions import LINES, Peer, Server
from tests.client.relay import Relay
from tests.client.servicer import Speaker
from tieline_client.aio import Session
from tieline_client.aio.connection_pool import ConnectionPool
from tieline_client.errors import ConnectionClosed, NotSent
from tieline_client.transports import Options


async def quiet(peer: Peer) -> None:
    await peer.gone()


@asynccontextmanager
async def links_to(
    server: Server, *, kind: str, age: float = 1e9
) -> AsyncIterator[tuple[ConnectionPool, Relay]]:
    async with server.serving(kind) as address, Relay(address) as relay:
        url = f"{kind}://{relay.address}"
        pool = ConnectionPool(url, api_key=None, tls=None, options=Options(), max_age=age)
        yield pool, relay
        await pool.close()
        assert ours() == []


@pytest.mark.parametrize("kind", LINES)
async def test_rc_05_parallel_calls_share_a_dial_and_a_dead_line_costs_one_more(kind: str) -> None:
    """RC-05: the connection is killed without a close frame; one call follows."""
    server = Server(quiet)

    async with links_to(server, kind=kind) as (pool, relay):
        taken = await asyncio.gather(*(pool.take() for _ in range(3)))
        assert len({id(leased) for leased in taken}) == 1
        for leased in taken:
            pool.release(leased)
        relay.reset()
        if kind == "grpc":
            # The library hears of it in a thread of its own.
            await asyncio.wait((taken[0].connection._reader,))
        fresh = await pool.take()
        assert fresh is not taken[0]
        assert fresh.connection.alive
    assert server.dials == 2


@pytest.mark.parametrize("kind", LINES)
async def test_an_old_line_is_closed_with_its_last_turn(kind: str) -> None:
    async with links_to(Server(quiet), kind=kind, age=0.0) as (pool, _relay):
        old = await pool.take()
        new = await pool.take()
        assert old is not new
        assert old.connection.alive
        pool.release(old)
        await asyncio.wait((old.connection._reader,))
        assert (old.connection.alive, new.connection.alive) == (False, True)


async def test_closed_links_lend_nothing() -> None:
    async with links_to(Server(quiet), kind="grpc") as (pool, _relay):
        leased = await pool.take()
        await pool.close()
        assert not leased.connection.alive
        with pytest.raises(ConnectionClosed):
            await pool.take()
        await pool.close()


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
        leased = stream._leased
        assert leased is not None
        session._pool.retire(leased)
        del stream
        gc.collect()
        async with asyncio.timeout(20):
            await asyncio.wait((leased.connection._reader,))
        assert not leased.connection.alive
        await session.close()
