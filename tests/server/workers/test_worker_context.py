"""A process's place among those of its server: alone, and as one of several workers."""

import os
import signal
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

from tests.support.scripted_peer import ScriptedPeer
from tests.support.signal import Signal
from tieline.ids import RESPONSE, IdSource
from tieline_server.workers.control import FROM_WORKER, Drain, Serve, Serving
from tieline_server.workers.framing import pack
from tieline_server.workers.shared_counters import SharedCounters
from tieline_server.workers.worker_context import COUNTERS, ENDS, ProcessContext, WorkerContext
from tieline_server.workers.worker_peers import socket_path

TAGS = (b"\1\2", b"\3\4")


class Ending:
    """What a process is ended by, as a test sees it."""

    def __init__(self) -> None:
        self.asked = 0
        self.pressed = 0
        self.news = Signal()

    def ask(self) -> None:
        """Asks for an end."""
        self.asked += 1
        self.news.notify()

    def press(self) -> None:
        """Does not wait for it."""
        self.pressed += 1
        self.news.notify()


@contextmanager
def posts(folder: Path) -> Iterator[list[tuple[WorkerContext, socket.socket]]]:
    """Two workers of one server, each with the supervisor's end of its control."""
    SharedCounters.make(folder / COUNTERS, rows=2).close()
    pairs = [socket.socketpair() for _ in TAGS]
    found = []
    for row, (tag, (ours, theirs)) in enumerate(zip(TAGS, pairs, strict=True)):
        order = Serve(config={}, tag=tag, folder=str(folder), row=row, seal_key="k")
        found.append((WorkerContext(order, theirs), ours))
    yield found
    for ours, theirs in pairs:
        ours.close()
        theirs.close()


@asynccontextmanager
async def directed(folder: Path) -> AsyncIterator[tuple[Ending, socket.socket]]:
    """A worker that is directed, and the supervisor's end of its control."""
    with posts(folder) as ((context, control), _):
        ending = Ending()
        async with context.directed(ending):
            yield ending, control


async def test_a_process_alone_has_no_peer_and_counts_by_itself() -> None:
    context, peer = ProcessContext(), ScriptedPeer()
    assert (context.signals, context.tag, context.shares_ports, context.seal_key) == (
        ENDS,
        b"",
        False,
        None,
    )
    assert context.capacity("calls", 3) is None
    assert (context.peers.peer_of("resp_1"), context.peers.others()) == (None, ())
    async with context.reachable(peer), context.directed(Ending()):
        context.ready()
        await context.drain(0.0)
        assert await context.metrics(peer) == b"turns 0\n"
    assert context.recorded(lambda: b"x")() == b"x"


def test_a_worker_is_what_its_order_says(tmp_path: Path) -> None:
    with posts(tmp_path) as ((context, _), (other, _)):
        assert (context.tag, other.tag) == TAGS
        assert (context.seal_key, context.shares_ports, tuple(context.signals)) == ("k", True, ())


def test_workers_count_a_cap_together(tmp_path: Path) -> None:
    with posts(tmp_path) as ((context, _), (other, _)):
        here, there = context.capacity("calls", 1), other.capacity("calls", 1)
        assert here.take()
        assert not there.take()
        here.give_back()
        assert there.take()


def test_a_worker_that_listens_tells_its_supervisor_if_that_is_there(tmp_path: Path) -> None:
    with posts(tmp_path) as ((context, control), (other, gone)):
        context.ready()
        assert FROM_WORKER.receive(control) == Serving()
        gone.close()
        other.ready()


async def test_a_worker_is_found_by_the_others_only_while_it_can_be_reached(tmp_path: Path) -> None:
    named = IdSource(os.urandom, TAGS[1]).new(RESPONSE)
    with posts(tmp_path) as ((context, _), (other, _)):
        assert context.peers.peer_of(named) is None
        async with other.reachable(ScriptedPeer()):
            peer = context.peers.peer_of(named)
            assert peer is not None
            assert await peer.metrics() == b"turns 0\n"
            await other.drain(0.0)
            assert context.peers.peer_of(named) is None


async def test_a_worker_that_stops_is_gone_even_if_it_was_not_drained(tmp_path: Path) -> None:
    with posts(tmp_path) as (_, (other, _)):
        await other.drain(0.0)
        async with other.reachable(ScriptedPeer()):
            assert socket_path(tmp_path, TAGS[1]).exists()
        assert not socket_path(tmp_path, TAGS[1]).exists()


def counted(number: int) -> bytes:
    """A counter as a worker tells it."""
    return f"# HELP n_total A counter.\n# TYPE n_total counter\nn_total {number}\n".encode()


class Counting(ScriptedPeer):
    """A peer that has counted."""

    def __init__(self, context: WorkerContext, number: int) -> None:
        super().__init__()
        self.number = number
        self._told = context.recorded(lambda: counted(self.number))

    async def metrics(self) -> bytes:
        """See ``Peer``."""
        return self._told()


async def test_what_workers_have_counted_is_told_together_and_outlives_one(tmp_path: Path) -> None:
    with posts(tmp_path) as ((context, _), (other, _)):
        here, there = Counting(context, 2), Counting(other, 3)
        async with context.reachable(here):
            async with other.reachable(there):
                assert b"n_total 5\n" in await context.metrics(here)
                there.number = 4
            assert b"n_total 6\n" in await context.metrics(here)


async def test_a_worker_ends_when_it_is_told_to_drain_and_does_not_wait_when_that_is_urgent(
    tmp_path: Path,
) -> None:
    async with directed(tmp_path) as (ending, control):
        control.sendall(pack(Drain()))
        await ending.news.until(lambda: ending.asked == 1)
        assert ending.pressed == 0
        control.sendall(pack(Drain(insist=True)))
        await ending.news.until(lambda: ending.pressed == 1)


async def test_a_worker_ends_when_its_supervisor_is_gone(tmp_path: Path) -> None:
    async with directed(tmp_path) as (ending, control):
        control.close()
        await ending.news.until(lambda: ending.asked == 1)
        assert ending.pressed == 0


async def test_signals_ask_a_worker_to_end_however_often_they_come(tmp_path: Path) -> None:
    before = signal.getsignal(signal.SIGTERM)
    async with directed(tmp_path) as (ending, _):
        for times in (1, 2):
            os.kill(os.getpid(), signal.SIGTERM)
            await ending.news.until(lambda times=times: ending.asked == times)  # type: ignore[misc]
        assert ending.pressed == 0
    signal.signal(signal.SIGTERM, before)
