"""The proxy breaks connections exactly as its plans say."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress

import pytest

from tests.support.fault_proxy import BOTH, Fault, FaultProxy, Faults, Plan, Way
from tests.support.signal import PATIENCE

SILENCE = 0.05
"""Seconds in which something that comes at all would have come."""

DOWN = frozenset({Way.DOWN})
UP = frozenset({Way.UP})


class Peer:
    """One end of a connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def receive(self, size: int) -> bytes:
        return await self.reader.readexactly(size)

    async def rest(self) -> bytes:
        """All that still comes; raises ConnectionResetError after a reset."""
        return await self.reader.read(-1)

    async def silent(self) -> bool:
        """Whether neither bytes nor an end come."""
        try:
            async with asyncio.timeout(SILENCE):
                await self.reader.read(1)
        except TimeoutError:
            return True
        return False

    async def end(self) -> None:
        self.writer.transport.abort()
        with suppress(OSError):
            await self.writer.wait_closed()


Case = Callable[[FaultProxy, Peer, Peer], Awaitable[None]]


class Listener:
    """The server: each connection that comes to it is a peer."""

    def __init__(self) -> None:
        self._accepted: asyncio.Queue[Peer] = asyncio.Queue()

    async def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._accepted.put_nowait(Peer(reader, writer))

    async def connect(self, proxy: FaultProxy) -> tuple[Peer, Peer]:
        """Both ends of a new connection through the proxy."""
        client = Peer(*await asyncio.open_connection("127.0.0.1", proxy.port))
        return client, await self._accepted.get()


def through(case: Case, *plans: Plan, then: Case | None = None) -> None:
    """Runs a case with the two ends of a connection; ``then`` with those of a second one."""

    async def main() -> None:
        listener = Listener()
        server = await asyncio.start_server(listener.accept, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        async with asyncio.timeout(PATIENCE), FaultProxy(port, plans=plans) as proxy:
            for each in (case,) if then is None else (case, then):
                client, far = await listener.connect(proxy)
                try:
                    await each(proxy, client, far)
                finally:
                    await client.end()
                    await far.end()
        server.close()

    asyncio.run(main())


def test_a_plan_follows_from_the_seed_and_the_number_of_the_connection() -> None:
    plans = [Faults().plan(seed, number) for seed in range(20) for number in range(20)]
    assert plans == [Faults().plan(seed, number) for seed in range(20) for number in range(20)]
    assert len(set(plans)) > 300
    assert {(plan.fault, plan.hit, plan.counted) for plan in plans} == {
        (fault, hit, counted) for fault in Fault for hit in (BOTH, UP, DOWN) for counted in Way
    }


def test_a_share_that_changes_moves_no_other_draw() -> None:
    whole = Faults(broken=1.0, split=0.0)
    split = Faults(broken=1.0, split=1.0)
    for number in range(50):
        one, other = whole.plan(1, number), split.plan(1, number)
        assert (one.fault, one.hit, one.after) == (other.fault, other.hit, other.after)
        assert one.piece is None
        assert other.piece is not None


def test_without_a_fault_every_byte_passes_and_so_does_each_half_of_the_end() -> None:
    async def case(proxy: FaultProxy, client: Peer, server: Peer) -> None:
        await client.send(b"question")
        assert await server.receive(8) == b"question"
        client.writer.write_eof()
        assert await server.rest() == b""
        await server.send(b"answer")
        server.writer.close()
        assert await client.rest() == b"answer"
        assert not proxy.struck

    through(case, Plan())


def test_writes_are_cut_into_pieces_that_together_are_what_was_written() -> None:
    async def case(_proxy: FaultProxy, client: Peer, server: Peer) -> None:
        data = bytes(range(256)) * 8
        await client.send(data)
        pieces: list[bytes] = []
        while len(b"".join(pieces)) < len(data):
            pieces.append(await server.reader.read(65536))
        assert b"".join(pieces) == data
        assert len(pieces) > 1

    through(case, Plan(piece=100, delay=0.002))


@pytest.mark.parametrize("after", [0, 1, 5])
def test_fin_ends_one_way_after_so_many_bytes_and_leaves_the_other(after: int) -> None:
    async def case(proxy: FaultProxy, client: Peer, server: Peer) -> None:
        await server.send(b"0123456789")
        assert await client.rest() == b"0123456789"[:after]
        await client.send(b"still here")
        assert await server.receive(10) == b"still here"
        assert proxy.struck == {Fault.FIN: 1}

    through(case, Plan(fault=Fault.FIN, hit=DOWN, counted=Way.DOWN, after=after))


def test_what_is_counted_need_not_be_what_is_hit() -> None:
    """The way that is counted goes on with every byte."""

    async def case(_proxy: FaultProxy, client: Peer, server: Peer) -> None:
        await client.send(b"0123456789")
        assert await server.receive(10) == b"0123456789"
        assert await client.rest() == b""
        await client.send(b"more")
        assert await server.receive(4) == b"more"

    through(case, Plan(fault=Fault.FIN, hit=DOWN, counted=Way.UP, after=3))


def test_a_reset_of_one_side_is_not_told_to_the_other() -> None:
    async def case(_proxy: FaultProxy, client: Peer, server: Peer) -> None:
        await server.send(b"0123456789")
        with pytest.raises(ConnectionResetError):
            await client.rest()
        assert await server.silent()

    through(case, Plan(fault=Fault.RST, hit=DOWN, counted=Way.DOWN, after=4))


def test_a_reset_of_both_sides_is_told_to_both() -> None:
    async def case(_proxy: FaultProxy, client: Peer, server: Peer) -> None:
        await client.send(b"0123456789")
        with pytest.raises(ConnectionResetError):
            await client.rest()
        with pytest.raises(ConnectionResetError):
            await server.rest()

    through(case, Plan(fault=Fault.RST, hit=BOTH, counted=Way.UP, after=4))


def test_a_stall_is_silent_and_leaves_the_other_way() -> None:
    async def case(_proxy: FaultProxy, client: Peer, server: Peer) -> None:
        await server.send(b"0123456789")
        assert await client.receive(4) == b"0123"
        assert await client.silent()
        await client.send(b"are you there?")
        assert await server.receive(14) == b"are you there?"

    through(case, Plan(fault=Fault.STALL, hit=DOWN, counted=Way.DOWN, after=4))


def test_after_a_break_nobody_listens_for_a_while_and_then_the_same_port_does() -> None:
    async def case(proxy: FaultProxy, client: Peer, server: Peer) -> None:
        await server.send(b"0123456789")
        with pytest.raises(ConnectionResetError):
            await client.rest()
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection("127.0.0.1", proxy.port)
        await proxy.listening.wait()

    async def then(_proxy: FaultProxy, client: Peer, server: Peer) -> None:
        await client.send(b"again")
        assert await server.receive(5) == b"again"

    plan = Plan(fault=Fault.RST, hit=BOTH, counted=Way.DOWN, after=4, refuse=SILENCE)
    through(case, plan, Plan(), then=then)
