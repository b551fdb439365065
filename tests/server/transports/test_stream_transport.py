"""What the loop itself writes: on to a peer that keeps up, and no further where it does not."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from tieline_server.transports.stream import PACE, Stuck, TransportWriter, WriterTimer

BEHIND = 64
PIECE = b"x" * 65_536


class Written:
    """A connection whose one end is written to, and whose other end reads as it is told."""

    def __init__(
        self, near: asyncio.StreamWriter, reader: asyncio.StreamReader, *, write_timeout: float
    ) -> None:
        self.near = near.transport
        self.reader = reader
        unsent = self.near.get_write_buffer_size
        self.timer = WriterTimer(heartbeat=60.0, write_timeout=write_timeout, unsent=unsent)
        self.near.set_write_buffer_limits(high=BEHIND)
        self.writer = TransportWriter(self.near, self.timer, behind=BEHIND, drain=near.drain)

    def fill(self) -> int:
        """Writes until the peer is behind; how many bytes that took."""
        size = len(PIECE)
        while self.writer.put(PIECE):
            size += len(PIECE)
        return size


@asynccontextmanager
async def connected(*, write_timeout: float = 60.0) -> AsyncIterator[Written]:
    """Such a connection, closed at the end."""
    accepted: asyncio.Queue[asyncio.StreamWriter] = asyncio.Queue()
    server = await asyncio.start_server(lambda _, near: accepted.put(near), "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()
    reader, far = await asyncio.open_connection(host, port, limit=1024)
    near = await accepted.get()
    written = Written(near, reader, write_timeout=write_timeout)
    try:
        yield written
    finally:
        written.timer.stop()
        for each in (near, far):
            each.transport.abort()
        server.close()
        await server.wait_closed()


async def test_a_peer_that_keeps_up_leaves_no_write_in_flight() -> None:
    async with connected() as line:
        assert line.writer.put(b"one")
        assert not line.timer.writing
        assert await line.reader.readexactly(3) == b"one"


async def test_a_peer_that_is_behind_is_waited_for_and_loses_nothing() -> None:
    async with connected() as line:
        size = line.fill()
        assert line.timer.writing
        read = asyncio.ensure_future(line.reader.readexactly(size))
        await line.writer.drain()
        assert not line.timer.writing
        assert await read == b"x" * size


async def test_a_peer_that_takes_nothing_for_too_long_is_stuck() -> None:
    async with connected(write_timeout=0.02) as line:
        line.fill()
        with pytest.raises(Stuck):
            await line.writer.drain()


async def test_a_peer_that_takes_a_large_write_slowly_is_seen_to_move() -> None:
    async with connected() as line:
        line.fill()
        left = line.near.get_write_buffer_size()
        assert left > PACE
        while left - line.near.get_write_buffer_size() < PACE:
            await line.reader.read(1024)
        assert line.timer._moves()
        assert not line.timer._moves()


async def test_who_is_cancelled_while_it_waits_is_not_stuck() -> None:
    async with connected() as line:
        line.fill()
        task = asyncio.current_task()
        assert task is not None
        asyncio.get_running_loop().call_soon(task.cancel)
        with pytest.raises(asyncio.CancelledError):
            await line.writer.drain()
        task.uncancel()


@pytest.mark.parametrize("known", [True, False], ids=["closing", "without a transport"])
async def test_a_peer_that_is_gone_is_told(known: bool) -> None:
    async with connected() as line:
        line.near.abort()
        gone = line.near if known else None
        writer = TransportWriter(gone, line.timer, behind=BEHIND, drain=lambda: asyncio.sleep(0))
        with pytest.raises(ConnectionResetError):
            writer.put(b"x")
