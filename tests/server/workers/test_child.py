"""A worker as its supervisor sees it: a real process that serves, drains, fails, or dies."""

import asyncio
import gc
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from tests.support.loop import run
from tests.support.process_state import ProcessState
from tests.support.worker_process import (
    ORDER,
    SERVES,
    UNTIL_DRAINED,
    WorkerProcess,
    gone,
    worker_process,
)
from tieline_server.workers.child import Child, NotServing


@asynccontextmanager
async def child_that(does: str) -> AsyncIterator[tuple[Child, WorkerProcess]]:
    """A child that does this."""
    with worker_process(does) as process:
        yield process.child(), process


async def test_it_serves_when_the_worker_says_so_and_the_order_has_reached_it() -> None:
    async with child_that(SERVES + "print(order); hear()") as (child, process):
        assert (child.serves, child.served) == (False, 0.0)
        await child.serve(ORDER)
        assert (child.serves, child.order) == (True, ORDER)
        child.drain()
        await gone(child)
        assert process.printed() == repr(ORDER)


@pytest.mark.parametrize(
    ("does", "says"),
    [
        ("hear(); say(Failed('no such file'))", "no such file"),
        ("hear()", "a worker ended before it was ready"),
        ("control.sendall(b'no message'); hear()", "a worker ended before it was ready"),
    ],
    ids=["with a reason", "without a word", "with nonsense"],
)
async def test_one_that_ends_before_it_serves_says_why_in_one_line(
    does: str, says: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with child_that(does) as (child, _):
        with pytest.raises(NotServing) as caught:
            await child.serve(ORDER)
        assert str(caught.value) == says
        assert not child.serves
        await gone(child)
    gc.collect()
    assert caplog.messages == []


async def test_one_that_cannot_be_told_any_more_is_heard_of_by_its_end() -> None:
    async with child_that("") as (child, _):
        await child.ended.wait()
        with pytest.raises(NotServing):
            await child.serve(ORDER)
        child.drain()
        await gone(child)


@pytest.mark.parametrize("insist", [False, True])
async def test_it_is_told_to_drain_and_whether_that_is_urgent(insist: bool) -> None:
    async with child_that(SERVES + "print(hear())") as (child, process):
        await child.serve(ORDER)
        assert not child.asked
        child.drain(insist=insist)
        assert child.asked
        await gone(child)
        assert process.printed() == f"Drain(insist={insist})"


async def test_a_kill_does_not_ask_and_is_nothing_to_one_that_has_ended() -> None:
    async with child_that(
        f"signal.signal(signal.SIGTERM, signal.SIG_IGN); {UNTIL_DRAINED}print('drained')"
    ) as (child, process):
        await child.serve(ORDER)
        child.kill()
        assert child.asked
        await gone(child)
        child.kill()
        assert process.printed() == ""


async def test_one_that_dies_by_itself_was_not_asked_and_did_serve() -> None:
    async with child_that(UNTIL_DRAINED) as (child, _):
        await child.serve(ORDER)
        os.kill(child.pid, signal.SIGKILL)
        await gone(child, -9)
        assert (child.asked, child.serves, child.status) == (False, True, -9)


async def test_the_time_that_it_has_served_grows_until_it_ends() -> None:
    async with child_that(UNTIL_DRAINED) as (child, _):
        await child.serve(ORDER)
        before = child.served
        while child.served <= before:
            pass
        child.kill()
        await gone(child)
        served = child.served
        now = asyncio.get_running_loop().time
        begun = now()
        while now() == begun:
            pass
        assert child.served == served > before


def test_it_is_closed_when_it_has_ended_and_is_buried_and_leaves_nothing_open() -> None:
    async def case() -> None:
        async with child_that(UNTIL_DRAINED) as (child, process):
            await child.serve(ORDER)
            closing = asyncio.create_task(child.close())
            child.kill()
            await child.ended.wait()
            await asyncio.wait([child._listening])
            for _ in range(10):
                await asyncio.sleep(0)
            assert not closing.done()
            child.reaped(None)
            await closing
            assert process.control.fileno() == -1

    # What an event loop has open by itself, and Python's first of all processes, stays.
    run(case())
    before = ProcessState(os.getpid()).descriptors
    run(case())
    assert ProcessState(os.getpid()).descriptors == before
