"""Which links are sent where not all fit, and what of that a turn pays for."""

import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tests.support.engine_contract import deltas_of, link, prompt, text_in
from tests.support.upstream_server import (
    MODEL,
    UpstreamServer,
    chunk,
    refusing,
    streamed,
    upstream,
    usage,
)
from tieline_server.core.effects import Prompt
from tieline_server.core.history.chain import ChainNode
from tieline_server.core.values import Work
from tieline_server.engines.base import EngineError
from tieline_server.engines.upstream import UpstreamEngine
from tieline_server.engines.upstream.truncation import room_of, start_of, tokens_in

CALL = {"type": "function_call", "call_id": "c", "name": "look", "arguments": "{}"}
OUTPUT = {"type": "function_call_output", "call_id": "c", "output": "x" * 400}
GOOD = streamed(chunk(content="fine"), chunk("stop"), usage(7, 1))


def turns(count: int, *, size: int = 400) -> ChainNode:
    """A chain of so many turns of about ``size`` bytes a message, and one more question."""
    tip = link(f"question 0 {'x' * size}")
    for at in range(1, count + 1):
        said = [{"role": "assistant", "content": f"answer {at} {'y' * size}"}]
        tip = link(f"question {at} {'x' * size}", link(said, tip, output=True))
    return tip


def ask(tip: ChainNode, **members: Any) -> Prompt:
    return prompt(tip=tip, model=MODEL, **{"truncation": "auto", **members})


@asynccontextmanager
async def opened(server: UpstreamServer) -> AsyncIterator[UpstreamEngine]:
    engine = UpstreamEngine([server.url])
    await engine.probe()
    try:
        yield engine
    finally:
        await engine.close()


@pytest.mark.parametrize(
    ("members", "context", "room"),
    [
        ({}, 4096, 4096 - 512),
        ({"max_output_tokens": 100}, 4096, 3996),
        ({"max_output_tokens": 9000}, 4096, 2048),
        ({"truncation": "disabled"}, 4096, None),
        ({}, None, None),
    ],
)
def test_the_room_is_the_context_less_what_the_answer_may_take(
    members: Any, context: int | None, room: int | None
) -> None:
    assert room_of(ask(turns(1), **members), context) == room


def test_what_fits_is_sent_whole() -> None:
    assert start_of(ask(turns(3)), 4000) is None
    assert start_of(ask(turns(300)), None) is None


def test_what_is_sent_begins_at_a_question_and_fits() -> None:
    tip = turns(100)
    start = start_of(ask(tip), 4000)
    assert start is not None
    assert b"question" in start.shown[0].raw
    sent = [each for each in tip.path() if each.depth >= start.depth]
    assert 2000 < tokens_in(sum(each.size for each in sent)) <= 3000


def test_the_beginning_stays_where_it_is_until_something_has_to_go_again() -> None:
    tip, starts = turns(100), []
    for at in range(40):
        starts.append(start_of(ask(tip), 4000))
        said = [{"role": "assistant", "content": f"answer {at} {'y' * 400}"}]
        tip = link(f"question {at} {'x' * 400}", link(said, tip, output=True))
    moved = sum(1 for a, b in itertools.pairwise(starts) if a is not b)
    assert all(starts)
    assert 1 <= moved <= 12


def test_a_tools_output_is_never_sent_without_its_call() -> None:
    tip = turns(20)
    tip = link([OUTPUT], link([CALL], tip, output=True))
    start = start_of(ask(tip), tokens_in(500))
    assert start is not None
    assert b"question" in start.shown[0].raw


def test_the_newest_question_is_sent_even_where_it_does_not_fit() -> None:
    tip = link("x" * 4000, turns(3))
    assert start_of(ask(tip), 100) is tip


async def test_a_long_chat_leaves_its_beginning_out_only_where_the_client_says_so() -> None:
    async with upstream() as server, opened(server) as engine:
        server.otherwise = GOOD
        tip = turns(100)
        await deltas_of(engine, ask(tip))
        await deltas_of(engine, ask(tip, truncation="disabled"))
        cut, whole = (body["messages"] for body in server.bodies)
        assert len(whole) == 201
        assert cut == whole[-len(cut) :]
        assert cut[0]["role"] == "user"
        assert 10 < len(cut) < 40


async def test_a_prompt_that_is_too_long_all_the_same_is_tried_with_less() -> None:
    async with upstream() as server, opened(server) as engine:
        long = refusing(400, {"message": "This model's maximum context length is 5."})
        server.plans.extend([long, long, GOOD])
        assert text_in(await deltas_of(engine, ask(turns(100)))) == "fine"
        sizes = [len(body["messages"]) for body in server.bodies]
        assert sizes[0] > sizes[1] > sizes[2] > 1


async def test_what_cannot_be_made_shorter_is_refused_once_and_typed() -> None:
    async with upstream() as server, opened(server) as engine:
        server.otherwise = refusing(400, {"code": "context_length_exceeded"})
        with pytest.raises(EngineError) as caught:
            await deltas_of(engine, ask(link("hello")))
        assert caught.value.code == "context_length_exceeded"
        assert len(server.bodies) == 1


async def test_a_turn_of_a_history_that_is_cut_renders_what_is_new() -> None:
    async with upstream() as server, opened(server) as engine:
        server.otherwise = GOOD
        tip, work, costs = turns(100), Work(), []
        for at in range(60):
            before = work.render
            await deltas_of(engine, ask(tip, work=work))
            costs.append(work.render - before)
            said = [{"role": "assistant", "content": f"answer {at} {'y' * 400}"}]
            tip = link(f"question {at} {'x' * 400}", link(said, tip, output=True))
        assert sorted(costs)[len(costs) // 2] < 2000
