"""GR-04: calls that are cancelled in the middle of a read leave nothing behind.

The gRPC library has leaked native memory with each of them; what is measured is the process.
"""

import asyncio
import os
from collections.abc import Awaitable, Callable
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import grpc
import pytest

from tests.support.counted_server import CountedServer, counting
from tests.support.grpc_client import CONNECT, create
from tests.support.process_state import ProcessState, until
from tests.support.server_process import write_script

AT_ONCE: Final = 20
"""Calls that run side by side on one connection."""

PATIENCE: Final = 0.002
"""Seconds after which a read that would last a minute is given up."""

PARTS: Final = 10
"""After each of which memory is looked at."""

BUDGET: Final = 100
"""Bytes of the server that each further call may cost."""

MORE: Final = 4 * 1024 * 1024
"""Bytes by which a process may grow in any case: what malloc holds is no leak."""

RULE: Final = {
    "id": "slow",
    "emit": {"type": "message", "text": "one two"},
    "pace": {"tokens_per_second": 1 / 60},
}


async def _read_on(call: Any) -> None:
    while await call.read() is not grpc.aio.EOF:
        pass


async def _cancel(call: Any) -> None:
    """By the call, while a read waits."""
    asyncio.get_running_loop().call_later(PATIENCE, call.cancel)
    with pytest.raises(asyncio.CancelledError):
        await _read_on(call)


async def _time_out(call: Any) -> None:
    """By the end of the caller's patience."""
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(_read_on(call), PATIENCE)
    assert call.cancelled()


Stop = Callable[[Any], Awaitable[None]]


async def _calls(server: CountedServer, count: int, stop: Stop) -> None:
    request = create("hi").SerializeToString()
    left = iter(range(count))
    options = [("grpc.use_local_subchannel_pool", 1)]

    async with grpc.aio.insecure_channel(server.address, options=options) as channel:

        async def work() -> None:
            for _ in left:
                call: Any = channel.stream_stream(CONNECT)()
                await call.write(request)
                assert await call.read() is not grpc.aio.EOF
                await stop(call)

        async with asyncio.TaskGroup() as group:
            for _ in range(AT_ONCE):
                group.create_task(work())


def test_gr_04_a_call_that_is_cancelled_in_a_read_leaves_no_memory_behind(
    tmp_path: Path, repeats: Callable[[int], int]
) -> None:
    """GR-04: 20,000 calls under --soak, half of them each way."""
    part = repeats(20_000) // PARTS
    sizes: list[int] = []
    own: list[int] = []
    with counting(script=write_script(tmp_path, rules=[RULE]), arenas=2) as server:
        for number in range(PARTS):
            asyncio.run(_calls(server, part, (_cancel, _time_out)[number % 2]))
            until(lambda: server.open_connections() == 0)
            server.state.rest()
            sizes.append(server.state.memory)
            own.append(ProcessState(os.getpid()).memory)
        assert server.ended() == PARTS * part
    # The first half fills what a process of this load needs anyway, and the ledger's bound.
    half = PARTS // 2
    slope, client = ((each[-1] - each[half - 1]) / (half * part) for each in (sizes, own))
    steps = [(after - before) // part for before, after in pairwise(sizes)]
    print(f"server {slope:.0f} bytes a call ({steps} by {part} calls), client {client:.0f}")
    assert slope < BUDGET + MORE / (half * part)
