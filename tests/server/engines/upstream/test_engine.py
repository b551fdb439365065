"""The upstream engine against real local servers that behave and misbehave."""

import asyncio
import itertools
import json
import logging
from collections import Counter
from collections.abc import AsyncIterator, Coroutine
from contextlib import AsyncExitStack, aclosing, asynccontextmanager, suppress
from typing import Any, TypeVar

import pytest
from msgspec.structs import replace

from tests.support.engine_contract import (
    EngineContract,
    deltas_of,
    finish_of,
    link,
    prompt,
    text_in,
)
from tests.support.garbage import none_left
from tests.support.upstream_server import (
    MODEL,
    Handler,
    Hang,
    UpstreamServer,
    chunk,
    hanging,
    refusing,
    streamed,
    trailing_off,
    upstream,
    usage,
)
from tieline_server.core.deltas import Finish, TextDelta
from tieline_server.core.effects import Prompt
from tieline_server.core.history.chain import ChainNode
from tieline_server.engines.base import EngineError
from tieline_server.engines.upstream import UpstreamEngine
from tieline_server.engines.upstream.exchange import Exchange, Patience
from tieline_server.engines.upstream.probe import UpstreamError

T = TypeVar("T")

SHORT = Patience(connect=1.0, first=0.2, between=0.2)
GOOD = streamed(chunk(content="fine"), chunk("stop"), usage(7, 1))


class TestUpstreamKeepsTheContract(EngineContract):
    model = MODEL

    @asynccontextmanager
    async def engine(self) -> AsyncIterator[UpstreamEngine]:
        async with upstream() as server, opened(server) as engine:
            yield engine


@asynccontextmanager
async def opened(*servers: UpstreamServer, **options: Any) -> AsyncIterator[UpstreamEngine]:
    engine = UpstreamEngine([server.url for server in servers], **options)
    await engine.probe()
    try:
        yield engine
    finally:
        await engine.close()


def run(main: Coroutine[Any, Any, T]) -> T:
    async def bounded() -> T:
        async with asyncio.timeout(30):
            return await main

    return asyncio.run(bounded())


def ask(content: Any = "hello", **members: Any) -> Prompt:
    return prompt(content, model=MODEL, **members)


async def refusal(engine: UpstreamEngine, given: Prompt | None = None) -> EngineError:
    """The error that an answer ends with."""
    with pytest.raises(EngineError) as caught:
        await deltas_of(engine, given or ask())
    return caught.value


async def test_a_turn_is_one_chat_completion_with_usage_asked_for() -> None:
    async with upstream() as server, opened(server) as engine:
        server.plans.append(GOOD)
        deltas = await deltas_of(engine, ask(instructions="Be brief.", max_output_tokens=9))
        assert deltas[1:2] == [TextDelta("fine")]
        end = finish_of(deltas)
        assert (end.reason, end.input_tokens, end.output_tokens) == ("stop", 7, 1)
        assert set(end.phases or ()) == {"render", "queue", "prefill", "decode"}
        assert server.bodies == [
            {
                "model": MODEL,
                "messages": [
                    {"role": "system", "content": "Be brief."},
                    {"role": "user", "content": "hello"},
                ],
                "max_tokens": 9,
                "stream": True,
                "stream_options": {"include_usage": True},
            }
        ]


async def test_turns_one_after_the_other_share_a_connection() -> None:
    async with upstream() as server, opened(server) as engine:
        for _ in range(5):
            await deltas_of(engine, ask())
            while engine._closing:
                await asyncio.wait(engine._closing)
        assert len(server.connections) == 1


async def test_cancelling_it_before_the_head_of_the_answer_closes_the_request() -> None:
    async with upstream() as server, opened(server, places=1) as engine:
        server.plans.append(hanging())
        asking = asyncio.create_task(deltas_of(engine, ask()))
        await server.signal.until(lambda: server.running == 1)
        asking.cancel()
        await server.signal.until(lambda: server.gone == 1, seconds=1.0)
        assert text_in(await deltas_of(engine, ask()))


async def test_a_reader_that_takes_long_is_no_fault_of_the_upstream() -> None:
    async with upstream() as server, opened(server, patience=SHORT) as engine:
        gone = asyncio.Event()
        loop = asyncio.get_running_loop()
        server.plans.append(streamed(chunk(content="a"), chunk(content="b"), chunk("stop")))
        async with aclosing(engine.sample(ask())) as steps:
            await anext(steps)
            loop.call_later(3 * SHORT.between, gone.set)
            await gone.wait()
            rest = [each async for step in steps for each in step]
        assert isinstance(rest[-1], Finish)


async def test_an_upstream_that_wants_the_newer_name_of_the_limit_gets_it_from_then_on() -> None:
    async with upstream() as server, opened(server) as engine:
        says = "Unsupported parameter: 'max_tokens'. Use 'max_completion_tokens' instead."
        server.plans.append(refusing(400, {"message": says, "param": "max_tokens"}))
        for _ in range(2):
            assert text_in(await deltas_of(engine, ask(max_output_tokens=3)))
        assert "max_tokens" in server.bodies[0]
        assert [body["max_completion_tokens"] for body in server.bodies[1:]] == [3, 3]
        assert all("max_tokens" not in body for body in server.bodies[1:])


def test_replicas_that_serve_other_models_are_said_in_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def main() -> list[str]:
        async with (
            upstream() as one,
            upstream(models=("other",)) as two,
            opened(one, two) as engine,
        ):
            return [model.id for model in engine.models()]

    assert run(main()) == [MODEL]
    assert "do not serve the same models" in caplog.text


async def test_several_replicas_a_conversation_stays_at_one_and_all_are_used() -> None:
    async with AsyncExitStack() as stack:
        servers = [await stack.enter_async_context(upstream()) for _ in range(3)]
        engine = await stack.enter_async_context(opened(*servers))
        for key in range(24):
            before = [len(server.bodies) for server in servers]
            for _ in range(2):
                await deltas_of(engine, ask(prompt_cache_key=f"conversation {key}"))
            after = [len(server.bodies) for server in servers]
            assert sorted(b - a for a, b in zip(before, after, strict=True)) == [0, 0, 2]
        assert all(server.bodies for server in servers)


async def test_a_chain_stays_at_its_replica_whatever_line_it_goes_on_on() -> None:
    async with AsyncExitStack() as stack:
        servers = [await stack.enter_async_context(upstream()) for _ in range(4)]
        engine = await stack.enter_async_context(opened(*servers))
        for chain in range(8):
            tip = None
            before = [len(server.bodies) for server in servers]
            for turn in range(4):
                given = replace(ask("go", after=tip), session=f"line {chain} {turn}/")
                await deltas_of(engine, given)
                tip = link([{"role": "assistant", "content": "a"}], given.chain, output=True)
            after = [len(server.bodies) for server in servers]
            assert sorted(b - a for a, b in zip(before, after, strict=True)) == [0, 0, 0, 4]
        assert sum(1 for server in servers if server.bodies) > 1


BEGUN = streamed(chunk(content="half"), Hang(), whole=False)
UNBEGUN = (hanging(), streamed(Hang(), whole=False))


async def test_a_replica_that_dies_under_load_loses_only_what_had_begun_to_stream() -> None:
    async with upstream() as dying, upstream() as other, opened(dying, other) as engine:
        other.otherwise = GOOD
        plans = itertools.cycle((BEGUN, *UNBEGUN))
        dying.otherwise = lambda *call: next(plans)(*call)
        texts: list[str] = []

        async def turn(at: int) -> str:
            steps = engine.sample(ask(prompt_cache_key=f"key {at}"))
            said = ""
            try:
                async for step in steps:
                    if text := text_in(step):
                        texts.append(text)
                        said += text
                        dying.signal.notify()
            except EngineError as error:
                return f"{said}, then {error.code}"
            return said

        turns = [asyncio.create_task(turn(at)) for at in range(60)]
        await dying.signal.until(lambda: dying.running + len(other.bodies) == 60)
        there = dying.running
        begun = -(-there // 3)
        await dying.signal.until(lambda: texts.count("half") == begun)
        await dying.stop()
        ends = Counter(await asyncio.gather(*turns))
        assert begun >= 3
        assert ends == {"half, then server_error": begun, "fine": 60 - begun}


async def test_a_replica_that_fails_again_and_again_is_left_alone_and_then_tried_by_one() -> None:
    now = 0.0

    async with upstream() as server, opened(server, clock=lambda: now) as engine:
        server.otherwise = refusing(503)
        await refusal(engine)
        assert len(server.bodies) == 3
        error = await refusal(engine)
        assert len(server.bodies) == 3
        assert error.code == "engine_unavailable"
        assert error.retry_after == 1.0
        now = 1.0
        await refusal(engine)
        assert len(server.bodies) == 4
        now, server.otherwise = 10.0, GOOD
        assert text_in(await deltas_of(engine, ask())) == "fine"
        assert text_in(await deltas_of(engine, ask())) == "fine"


async def test_bad_requests_of_one_client_shut_nobody_out() -> None:
    async with upstream() as server, opened(server) as engine:
        for status in (400, 422, 429, 500):
            server.plans.extend([refusing(status)] * (3 if status == 500 else 1))
            await refusal(engine)
        assert text_in(await deltas_of(engine, ask()))


async def test_an_end_without_an_answer_is_no_answer_and_is_tried_again() -> None:
    async with upstream() as server, opened(server) as engine:
        server.plans.extend([streamed(), GOOD])
        assert text_in(await deltas_of(engine, ask())) == "fine"
        assert len(server.bodies) == 2


async def test_no_more_requests_run_at_a_replica_than_it_has_places() -> None:
    async with upstream() as server, opened(server, places=2) as engine:
        answers = await asyncio.gather(*(deltas_of(engine, ask()) for _ in range(8)))
        assert all(map(text_in, answers))
        assert server.most <= 2
        assert len(server.bodies) == 8


async def test_counting_asks_an_upstream_that_can_count_and_estimates_at_others() -> None:
    counts = []
    for tokenizes in (True, False):
        async with upstream() as server:
            server.tokenizes = tokenizes
            async with opened(server) as engine:
                counts.append(await engine.count(ask("x" * 400)))
    counted, estimated = counts
    assert counted == len(json.dumps([{"role": "user", "content": "x" * 400}]))
    assert 100 <= estimated <= 130


@pytest.mark.parametrize(
    ("options", "engine", "says"),
    [
        ({"models": ()}, {}, "names no model"),
        ({"key": "right"}, {"key": "wrong"}, "answers with status 401: it wants another key"),
        ({}, {"model": "other"}, f"serves no model 'other'; it has: {MODEL}"),
    ],
)
async def test_what_cannot_be_used_is_said_in_one_line(
    options: Any, engine: Any, says: str
) -> None:
    async with upstream(**options) as server:
        given = UpstreamEngine([server.url], **engine)
        with pytest.raises(UpstreamError, match=says):
            await given.probe()
        await given.close()


async def test_nobody_there_is_said_in_one_line() -> None:
    async with upstream() as server:
        url = server.url
    engine = UpstreamEngine([url])
    with pytest.raises(UpstreamError, match=f"no upstream answers at {url}/models"):
        await engine.probe()
    await engine.close()


async def test_one_replica_of_two_is_enough_to_start() -> None:
    async with upstream() as dead, upstream() as alive:
        await dead.stop()
        async with opened(dead, alive) as engine:
            for at in range(8):
                assert text_in(await deltas_of(engine, ask(prompt_cache_key=f"key {at}")))


@pytest.mark.parametrize(
    "answer",
    [
        refusing(400),
        refusing(429, Retry_After="0"),
        streamed(b"data: {\n\n"),
        trailing_off(500, cut=True),
    ],
    ids=["refused", "busy", "no answer", "cut"],
)
async def test_an_answer_that_fails_leaves_nothing_of_its_prompt(answer: Handler) -> None:
    """A prompt holds its chain: garbage is looked for after 10,000 objects."""

    async with upstream() as server, opened(server) as engine:
        server.otherwise = answer
        with none_left(Prompt, ChainNode, Exchange), suppress(EngineError):
            await deltas_of(engine, ask())


@pytest.mark.parametrize("cut", [True, False])
async def test_a_refusal_whose_body_never_ends_is_told_by_its_status(cut: bool) -> None:
    patience = Patience(first=60.0)
    async with upstream() as server, opened(server, patience=patience) as engine:
        server.otherwise = trailing_off(429, cut=cut, Retry_After="7")
        error = await refusal(engine)
        assert (error.code, error.retry_after) == ("rate_limit_exceeded", 7.0)


@pytest.mark.parametrize(("status", "logged"), [(400, False), (422, False), (401, True)])
async def test_what_an_upstream_says_of_a_request_is_for_its_client_and_not_for_the_log(
    caplog: pytest.LogCaptureFixture, status: int, logged: bool
) -> None:
    async with upstream() as server, opened(server) as engine:
        server.otherwise = refusing(status, {"message": "no such thing as 'my secret'"})
        with pytest.raises(EngineError) as caught:
            await deltas_of(engine, ask("my secret"))
        assert ("my secret" in caught.value.message) is not logged
    assert "upstream refused" in caplog.text
    assert ("my secret" in caplog.text) is logged


async def test_the_key_is_sent_and_never_logged(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG):
        async with upstream(key="s3cret") as server, opened(server, key="s3cret") as engine:
            server.plans.append(refusing(400, {"message": "no"}))
            await refusal(engine)
    assert "upstream refused" in caplog.text
    assert "s3cret" not in caplog.text


async def test_a_turn_of_a_long_history_renders_only_what_is_new() -> None:
    async with upstream() as server, opened(server) as engine:
        server.otherwise = GOOD
        tip = link("x" * 1_000_000)
        given = ask(tip=tip)
        await deltas_of(engine, given)
        first = given.work.render
        following = prompt(model=MODEL, work=given.work, tip=link("again", tip))
        await deltas_of(engine, following)
        assert first >= 1_000_000
        assert following.work.render - first < 200
        assert len(server.bodies[1]["messages"]) == 2
