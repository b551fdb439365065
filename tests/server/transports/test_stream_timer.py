"""The timer of a writer."""

import asyncio

from tests.support.grpc_harness import run
from tieline_server.transports.stream import PACE, WriterTimer


def test_the_timer_leaves_a_cancellation_of_the_call_alone() -> None:
    async def writer(made: "asyncio.Future[WriterTimer]", heartbeat: float) -> bool:
        timer = WriterTimer(heartbeat=heartbeat, write_timeout=heartbeat)
        made.set_result(timer)
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return timer.fired()
        finally:
            timer.stop()
        return False

    async def main(also_cancelled: bool) -> None:
        made: asyncio.Future[WriterTimer] = asyncio.get_running_loop().create_future()
        task = asyncio.create_task(writer(made, 60.0 if also_cancelled else 0.01))
        timer = await made
        if also_cancelled:
            timer.interrupt()
            assert not timer.cancelled()
            task.cancel()
            assert timer.cancelled()
        assert await task is not also_cancelled

    run(main(False))
    run(main(True))


async def test_a_write_is_stuck_when_the_peer_takes_less_of_it_than_of_a_usual_one_in_time() -> (
    None
):
    """A large event is one write, which a reader that takes it slowly is given the time for."""

    async def looks(*unsent: int) -> int:
        """How often is looked at a write of a megabyte of which so much is left each time."""
        left = list(unsent)
        timer = WriterTimer(heartbeat=60.0, write_timeout=0.01, unsent=lambda: left.pop(0))
        timer.begin(1024 * 1024)
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            assert timer.fired()
        finally:
            timer.stop()
        return len(unsent) - len(left)

    some = 1024 * 1024 - PACE
    assert await looks(some, some - PACE, some - 2 * PACE + 1, 0) == 3
    assert await looks(some + 1, 0) == 1


async def test_a_stopped_timer_interrupts_nobody() -> None:
    timer = WriterTimer(heartbeat=60.0, write_timeout=60.0)
    timer.stop()
    assert timer.cancelled()
    timer.interrupt()
    await asyncio.sleep(0)
