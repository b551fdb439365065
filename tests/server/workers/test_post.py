"""A process's place among those of its server: alone, and as one of several workers."""

import os
import signal
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

from tests.support.desk import Desk
from tests.support.signal import Signal
from tieline.ids import RESPONSE, IdSource
from tieline_server.workers.board import Board
from tieline_server.workers.control import FROM_WORKER, Drain, Serve, Serving
from tieline_server.workers.frames import pack
from tieline_server.workers.neighbourhood import socket_path
from tieline_server.workers.post import BOARD, ENDS, Post, WorkerPost

MARKS = (b"\1\2", b"\3\4")


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
def posts(folder: Path) -> Iterator[list[tuple[WorkerPost, socket.socket]]]:
    """Two workers of one server, each with the supervisor's end of its control."""
    Board.make(folder / BOARD, rows=2).close()
    pairs = [socket.socketpair() for _ in MARKS]
    found = []
    for row, (mark, (ours, theirs)) in enumerate(zip(MARKS, pairs, strict=True)):
        order = Serve(config={}, mark=mark, folder=str(folder), row=row, seal_key="k")
        found.append((WorkerPost(order, theirs), ours))
    yield found
    for ours, theirs in pairs:
        ours.close()
        theirs.close()


@asynccontextmanager
async def directed(folder: Path) -> AsyncIterator[tuple[Ending, socket.socket]]:
    """A worker that is directed, and the supervisor's end of its control."""
    with posts(folder) as ((post, control), _):
        ending = Ending()
        async with post.directed(ending):
            yield ending, control


async def test_a_process_alone_has_nobody_to_ask_and_counts_by_itself() -> None:
    post, desk = Post(), Desk()
    assert (post.signals, post.mark, post.shares_ports, post.seal_key) == (
        ENDS,
        b"",
        False,
        None,
    )
    assert post.places("calls", 3) is None
    assert (post.homes.home_of("resp_1"), post.homes.others()) == (None, ())
    async with post.reachable(desk), post.directed(Ending()):
        post.ready()
        await post.drain(0.0)
        assert await post.metrics(desk) == b"turns 0\n"
    assert post.recorded(lambda: b"x")() == b"x"


def test_a_worker_is_what_its_order_says(tmp_path: Path) -> None:
    with posts(tmp_path) as ((post, _), (other, _)):
        assert (post.mark, other.mark) == MARKS
        assert (post.seal_key, post.shares_ports, tuple(post.signals)) == ("k", True, ())


def test_workers_count_a_cap_together(tmp_path: Path) -> None:
    with posts(tmp_path) as ((post, _), (other, _)):
        here, there = post.places("calls", 1), other.places("calls", 1)
        assert here.take()
        assert not there.take()
        here.give_back()
        assert there.take()


def test_a_worker_that_listens_tells_its_supervisor_if_that_is_there(tmp_path: Path) -> None:
    with posts(tmp_path) as ((post, control), (other, gone)):
        post.ready()
        assert FROM_WORKER.receive(control) == Serving()
        gone.close()
        other.ready()


async def test_a_worker_is_found_by_the_others_only_while_it_can_be_reached(tmp_path: Path) -> None:
    named = IdSource(os.urandom, MARKS[1]).new(RESPONSE)
    with posts(tmp_path) as ((post, _), (other, _)):
        assert post.homes.home_of(named) is None
        async with other.reachable(Desk()):
            home = post.homes.home_of(named)
            assert home is not None
            assert await home.metrics() == b"turns 0\n"
            await other.drain(0.0)
            assert post.homes.home_of(named) is None


async def test_a_worker_that_stops_is_gone_even_if_it_was_not_drained(tmp_path: Path) -> None:
    with posts(tmp_path) as (_, (other, _)):
        await other.drain(0.0)
        async with other.reachable(Desk()):
            assert socket_path(tmp_path, MARKS[1]).exists()
        assert not socket_path(tmp_path, MARKS[1]).exists()


def counted(number: int) -> bytes:
    """A counter as a worker tells it."""
    return f"# HELP n_total A counter.\n# TYPE n_total counter\nn_total {number}\n".encode()


class Counting(Desk):
    """A home that has counted."""

    def __init__(self, post: WorkerPost, number: int) -> None:
        super().__init__()
        self.number = number
        self._told = post.recorded(lambda: counted(self.number))

    async def metrics(self) -> bytes:
        """See ``Home``."""
        return self._told()


async def test_what_workers_have_counted_is_told_together_and_outlives_one(tmp_path: Path) -> None:
    with posts(tmp_path) as ((post, _), (other, _)):
        here, there = Counting(post, 2), Counting(other, 3)
        async with post.reachable(here):
            async with other.reachable(there):
                assert b"n_total 5\n" in await post.metrics(here)
                there.number = 4
            assert b"n_total 6\n" in await post.metrics(here)


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
