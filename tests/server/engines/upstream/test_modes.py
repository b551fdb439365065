"""Good, slow, cut, wrong, hanging: whichever mode an upstream is asked in, it means the same."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import aclosing, asynccontextmanager
from typing import Any, TypeVar

import pytest

from tests.support.engine_contract import (
    WEATHER,
    EngineContract,
    deltas_of,
    finish_of,
    link,
    prompt,
    text_in,
)
from tests.support.upstream_server import (
    MODEL,
    Cut,
    Handler,
    Hang,
    Part,
    Repeated,
    call,
    cutting,
    event,
    hanging,
    refusing,
    streamed,
    upstream,
)
from tests.support.upstream_shapes import CHAT, COMPLETIONS, RESPONSES, SHAPES, Shape, opened
from tieline_server.core.create.settings import SettingsCache
from tieline_server.core.deltas import Accepted, CallDelta, CallStart, Delta, Finish, TextDelta
from tieline_server.core.effects import Prompt
from tieline_server.core.history.chain import ChainNode
from tieline_server.core.values import Work
from tieline_server.engines.base import EngineError
from tieline_server.engines.upstream import UpstreamEngine
from tieline_server.engines.upstream.exchange import Patience

T = TypeVar("T")

SHORT = Patience(connect=1.0, first=0.2, between=0.2)

in_each_mode = pytest.mark.parametrize("shape", SHAPES, ids=str)


class ModeContract(EngineContract):
    """What every engine promises, in a mode that is not the usual one."""

    model = MODEL
    shape: Shape

    @asynccontextmanager
    async def engine(self) -> AsyncIterator[UpstreamEngine]:
        async with upstream() as server, opened(self.shape, server) as engine:
            yield engine


class TestCompletionsKeepTheContract(ModeContract):
    shape = COMPLETIONS


class TestResponsesKeepTheContract(ModeContract):
    shape = RESPONSES


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


CUT_BEFORE = [cutting(), streamed(Cut(), whole=False), streamed(whole=False)]
TRANSIENT = [*CUT_BEFORE, refusing(500), refusing(502), refusing(503)]


@in_each_mode
@pytest.mark.parametrize("fault", TRANSIENT)
async def test_what_fails_before_the_first_token_is_tried_again(
    shape: Shape, fault: Handler
) -> None:
    async with upstream() as server, opened(shape, server) as engine:
        server.plans.extend([fault, shape.good])
        deltas = await deltas_of(engine, ask())
        assert text_in(deltas) == "fine"
        assert [type(each) for each in deltas if type(each) in (Accepted, Finish)] == [
            Accepted,
            Finish,
        ]
        assert len(server.bodies) == 2


@in_each_mode
@pytest.mark.parametrize("aborted", [True, False], ids=["aborted", "ended"])
async def test_what_is_cut_after_the_first_token_fails_and_is_not_asked_again(
    shape: Shape, aborted: bool
) -> None:
    async with upstream() as server, opened(shape, server) as engine:
        parts: list[Part] = [shape.text("half"), *([Cut()] if aborted else [])]
        server.plans.append(streamed(*parts, whole=False))
        seen: list[Delta] = []

        async def read() -> None:
            async for step in engine.sample(ask()):
                seen.extend(step)

        with pytest.raises(EngineError) as caught:
            await read()
        assert caught.value.code == "server_error"
        assert text_in(seen) == "half"
        assert len(server.bodies) == 1


WRONG: dict[str, Callable[[Shape], bytes]] = {
    "no json": lambda shape: b"data: {not json\n\n",
    "wrong shape": lambda shape: event({"choices": 7, "type": 7}),
    "wrong type": lambda shape: shape.wrong,
    "endless event": lambda shape: b"data: " + b"x" * (5 << 20),
}


@in_each_mode
@pytest.mark.parametrize("wrong", WRONG.values(), ids=WRONG)
async def test_what_is_no_answer_fails_typed_and_the_engine_goes_on(
    shape: Shape, wrong: Callable[[Shape], bytes]
) -> None:
    async with upstream() as server, opened(shape, server) as engine:
        server.plans.append(streamed(wrong(shape), whole=False))
        error = await refusal(engine)
        assert (error.code, error.status) == ("server_error", 500)
        assert text_in(await deltas_of(engine, ask()))
        assert len(server.bodies) == 2


@in_each_mode
async def test_an_answer_that_is_no_event_stream_fails_typed(shape: Shape) -> None:
    async with upstream() as server, opened(shape, server) as engine:
        server.plans.append(refusing(200, {"choices": []}))
        assert (await refusal(engine)).code == "server_error"


@in_each_mode
@pytest.mark.parametrize(
    ("plan", "code", "asked"),
    [
        (refusing(400, {"message": "bad tool"}), "invalid_request", 1),
        (
            refusing(400, {"message": "This model's maximum context length is 5."}),
            "context_length_exceeded",
            1,
        ),
        (refusing(401, {"message": "no"}), "server_error", 1),
        (refusing(404, {"message": "no"}), "model_not_found", 1),
        (refusing(413), "request_too_large", 1),
        (refusing(422, "wrong"), "invalid_request", 1),
        (refusing(429, {"message": "slow"}, Retry_After="7"), "rate_limit_exceeded", 1),
        (refusing(503, b"<html>", Retry_After="7"), "engine_unavailable", 1),
        (refusing(500, {"message": "Traceback: secret"}), "server_error", 3),
        (streamed(event({"error": {"message": "secret", "code": 500}})), "server_error", 3),
        (streamed(event({"error": "secret"})), "server_error", 3),
    ],
)
async def test_errors_of_the_upstream_become_ours(
    shape: Shape, plan: Handler, code: str, asked: int
) -> None:
    async with upstream() as server, opened(shape, server) as engine:
        server.otherwise = plan
        error = await refusal(engine)
        assert error.code == code
        assert "secret" not in error.message
        assert len(server.bodies) == asked
        if code in ("rate_limit_exceeded", "engine_unavailable"):
            assert error.retry_after == 7.0


HANGING: dict[str, Callable[[Shape], Handler]] = {
    "no head": lambda shape: hanging(),
    "no first token": lambda shape: streamed(Hang()),
    "no further token": lambda shape: streamed(shape.text("one"), Hang()),
}


@in_each_mode
@pytest.mark.parametrize("plan", HANGING.values(), ids=HANGING)
async def test_an_upstream_that_hangs_is_given_up_and_left(
    shape: Shape, plan: Callable[[Shape], Handler]
) -> None:
    async with upstream() as server, opened(shape, server, patience=SHORT) as engine:
        server.otherwise = plan(shape)
        error = await refusal(engine)
        assert (error.code, error.message) == (
            "engine_unavailable",
            "The upstream did not answer in time.",
        )
        await server.signal.until(lambda: server.running == 0)


LIVES = {
    "comments": b": ping\n\n",
    "events that say nothing": event({"type": "keepalive", "choices": []}),
}


@in_each_mode
@pytest.mark.parametrize("piece", LIVES.values(), ids=LIVES)
@pytest.mark.parametrize("said", [[], ["one"]], ids=["before the first token", "after it"])
async def test_an_upstream_that_only_shows_that_it_lives_is_given_up(
    shape: Shape, piece: bytes, said: list[str]
) -> None:
    async with upstream() as server, opened(shape, server, patience=SHORT) as engine:
        server.otherwise = streamed(*map(shape.text, said), Repeated(piece))
        error = await refusal(engine)
        assert error.message == "The upstream did not answer in time."
        await server.signal.until(lambda: server.running == 0)


@in_each_mode
@pytest.mark.parametrize("piece", LIVES.values(), ids=LIVES)
async def test_one_that_does_so_while_it_works_has_the_patience_for_a_first_token(
    shape: Shape, piece: bytes
) -> None:
    patient = Patience(connect=1.0, first=20.0, between=0.2)

    async with upstream() as server, opened(shape, server, patience=patient) as engine:
        lives = Repeated(piece)
        server.plans.append(streamed(shape.text("one"), lives, shape.text("two"), *shape.stop))
        asyncio.get_running_loop().call_later(3 * patient.between, lives.go.set)
        assert text_in(await deltas_of(engine, ask())) == "onetwo"


def test_a_call_that_is_held_back_while_it_grows_is_no_silence() -> None:
    patient = Patience(connect=1.0, first=0.4, between=0.4)

    async def main() -> list[Delta]:
        async with upstream() as server, opened(CHAT, server, patience=patient) as engine:
            grows = Repeated(call(0, "x"))
            begin = call(0, '{"input":"', id="call_1", name="run")
            server.plans.append(streamed(begin, grows, call(0, '"}'), *CHAT.stop))
            asyncio.get_running_loop().call_later(2 * patient.first, grows.go.set)
            return await deltas_of(engine, ask(tools=[{"type": "custom", "name": "run"}]))

    (said,) = [each.text for each in run(main()) if isinstance(each, CallDelta)]
    assert said.strip("x") == ""


@in_each_mode
@pytest.mark.parametrize("after", [Accepted, TextDelta])
async def test_closing_it_closes_the_request_upstream_at_once(shape: Shape, after: type) -> None:
    async with upstream() as server, opened(shape, server) as engine:
        parts = [shape.text("one")] if after is TextDelta else []
        server.plans.append(streamed(*parts, Hang()))
        steps = engine.sample(ask())
        while not any(type(delta) is after for delta in await anext(steps)):
            pass
        await steps.aclose()
        await server.signal.until(lambda: server.gone == 1, seconds=1.0)
        assert server.running == 0


@in_each_mode
async def test_it_accepts_at_the_head_of_the_answer_before_any_token(shape: Shape) -> None:
    async with upstream() as server, opened(shape, server) as engine:
        hang = Hang()
        server.plans.append(streamed(hang, shape.text("late"), *shape.stop))
        async with aclosing(engine.sample(ask())) as steps:
            assert [type(each) for each in await anext(steps)] == [Accepted]
            hang.go.set()
            said = await anext(steps)
            assert isinstance(said[0], TextDelta)


@in_each_mode
@pytest.mark.parametrize("broken", ['{"city":"O', '{"city":"O"]', "{city}"])
async def test_a_call_that_is_no_json_when_it_ends_fails_typed(shape: Shape, broken: str) -> None:
    async with upstream() as server, opened(shape, server) as engine:
        server.plans.append(streamed(*shape.call("get_weather", broken), *shape.stop))
        given = ask(tools=[WEATHER], tool_choice="required")
        error = await refusal(engine, given)
        assert error.code in ("server_error", "invalid_function_parameters")
        assert text_in(await deltas_of(engine, ask()))


@in_each_mode
def test_a_limit_may_cut_a_call(shape: Shape) -> None:
    async def main() -> list[Delta]:
        async with upstream() as server, opened(shape, server) as engine:
            pieces = shape.call("get_weather", '{"city":"O')[:2]
            server.plans.append(streamed(*pieces, *shape.length))
            return await deltas_of(engine, ask(tools=[WEATHER], tool_choice="required"))

    deltas = run(main())
    assert finish_of(deltas).reason == "length"
    assert [type(each) for each in deltas[1:3]] == [CallStart, CallDelta]


@in_each_mode
def test_a_chain_of_200_turns_is_rendered_once(shape: Shape) -> None:
    async def main() -> list[int]:
        async with upstream() as server, opened(shape, server) as engine:
            server.otherwise = shape.good
            tools = [{**WEATHER, "name": f"tool_{at}"} for at in range(5)]
            work, costs = Work(), []
            recall = SettingsCache(work)
            tip: ChainNode | None = None
            for at in range(200):
                before = work.render
                given = ask(f"{at:04}", after=tip, tools=tools, work=work, recall=recall)
                await deltas_of(engine, given)
                costs.append(work.render - before)
                said = [{"role": "assistant", "content": "fine"}]
                tip = link(said, given.chain, output=True)
            return costs

    costs = run(main())
    assert 0 < costs[199] <= 1.15 * costs[4]


async def test_one_replica_that_answers_is_enough_to_choose() -> None:
    async with upstream() as dead, upstream() as alive:
        await dead.stop()
        async with opened(RESPONSES, dead, alive) as engine:
            assert text_in(await deltas_of(engine, ask()))
