"""The metronome that the bare servers share."""

import asyncio
from functools import partial

from tieline_bench.bare.base import Metronome


async def test_every_stream_is_told_all_its_tokens_and_no_more() -> None:
    metronome = Metronome(1000)
    totals = {5: 0, 17: 0}
    ended = asyncio.Event()

    def give(stream: int, tokens: int) -> None:
        totals[stream] += tokens
        assert tokens > 0
        if all(total >= stream for stream, total in totals.items()):
            ended.set()

    for stream in totals:
        metronome.feed(stream, partial(give, stream))
    async with asyncio.timeout(10):
        await ended.wait()
    # A later stream starts the timer again.
    again: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    metronome.feed(1, again.set_result)
    async with asyncio.timeout(10):
        assert await again == 1
    assert totals == {5: 5, 17: 17}
