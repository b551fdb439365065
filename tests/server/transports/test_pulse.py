"""The timer of a writer."""

import asyncio

from tests.support.grpc_harness import run
from tieline_server.transports.pulse import Pulse


def test_the_pulse_leaves_a_cancellation_of_the_call_alone() -> None:
    async def writer(made: "asyncio.Future[Pulse]") -> bool:
        pulse = Pulse(heartbeat=0.01, write_timeout=1.0)
        made.set_result(pulse)
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return pulse.fired()
        finally:
            pulse.stop()
        return False

    async def main(also_cancelled: bool) -> None:
        made: asyncio.Future[Pulse] = asyncio.get_running_loop().create_future()
        task = asyncio.create_task(writer(made))
        pulse = await made
        if also_cancelled:
            pulse.stop()
            pulse.interrupt()
            task.cancel()
        assert await task is not also_cancelled

    run(main(False))
    run(main(True))
