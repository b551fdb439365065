"""A whole server in front of two replicas, one of which dies under load."""

import asyncio
import itertools
from collections import Counter
from contextlib import AsyncExitStack, suppress
from typing import Any

from tests.support.server_process import serving
from tests.support.upstream_server import (
    Hang,
    chunk,
    hanging,
    streamed,
    upstream,
    usage,
)
from tieline import events
from tieline_client import Connection, ServerError, connect

LINES, LANES = 3, 16
TURNS = LINES * LANES
GOOD = streamed(chunk(content="fine"), chunk("stop"), usage(7, 1))


async def test_the_death_of_a_replica_fails_what_had_begun_with_its_usage_and_nothing_else() -> (
    None
):
    async with AsyncExitStack() as stack:
        dying = await stack.enter_async_context(upstream())
        other = await stack.enter_async_context(upstream())
        urls = f"{dying.url},{other.url}"
        context = serving("--engine", "upstream", "--upstream", urls)
        # It asks for models before it is ready: the loop has to answer.
        server = await asyncio.to_thread(context.__enter__)
        stack.callback(context.__exit__, None, None, None)
        begun = streamed(chunk(content="half"), Hang(), whole=False)
        plans = itertools.cycle((begun, hanging(), streamed(Hang(), whole=False)))
        dying.otherwise = lambda *call: next(plans)(*call)
        other.otherwise = GOOD
        lines = [
            await stack.enter_async_context(connect(f"grpc://{server.address}"))
            for _ in range(LINES)
        ]
        heard: list[str] = []

        async def turn(line: Connection, at: int) -> tuple[Any, ...]:
            asked = await line.lane(f"lane{at}").create(
                input="go", prompt_cache_key=f"key {at}", store=False
            )
            with suppress(ServerError):
                async for event in asked:
                    if isinstance(event, events.OutputTextDelta):
                        heard.append(event.delta)
                        dying.signal.notify()
                    if isinstance(event, events.ResponseCompleted | events.ResponseFailed):
                        ended = event.response
            assert ended.usage is not None
            code = ended.error.code if ended.error is not None else None
            return ended.status, code, len(ended.output), ended.usage.output_tokens

        turns = [asyncio.create_task(turn(lines[at % LINES], at)) for at in range(TURNS)]
        await dying.signal.until(lambda: dying.running + heard.count("fine") == TURNS)
        cut = -(-dying.running // 3)
        await dying.signal.until(lambda: heard.count("half") == cut)
        await dying.stop()
        ends = Counter(await asyncio.gather(*turns))
        assert cut >= 3
        assert ends == {
            ("completed", None, 1, 1): TURNS - cut,
            ("failed", "server_error", 1, 1): cut,
        }
