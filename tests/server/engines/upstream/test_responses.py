"""The Responses API as an upstream: what is sent, and how little where the upstream keeps state."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web

from tests.support.engine_contract import WEATHER, deltas_of, link, prompt, text_in
from tests.support.upstream_server import (
    MODEL,
    Handler,
    UpstreamServer,
    refusing,
    streamed,
    upstream,
)
from tests.support.upstream_shapes import RESPONSES, added, ended, item, said, text
from tieline_server.core.create.settings import SettingsCache
from tieline_server.core.effects import Prompt
from tieline_server.core.history.chain import ChainNode
from tieline_server.core.values import Work
from tieline_server.engines.base import EngineError
from tieline_server.engines.upstream import UpstreamEngine
from tieline_server.engines.upstream.choice import Wanted
from tieline_server.engines.upstream.probe import UpstreamError

STATE = Wanted(mode="responses", state=True)
ANSWER = [{"type": "message", "role": "assistant", "content": "fine"}]
PATCH = {"type": "custom", "name": "patch", "format": {"type": "text"}}


def keeping(*events: bytes) -> Handler:
    """Answers with ``fine``, and continues what it has answered itself and nothing else."""
    count = 0

    async def answer(
        server: UpstreamServer, body: dict[str, Any], request: web.Request
    ) -> web.StreamResponse:
        nonlocal count
        before = body.get("previous_response_id")
        if before is not None and before not in {f"up_{at}" for at in range(count + 1)}:
            return web.json_response({"error": {"message": "not found"}}, status=404)
        count += 1
        if not body.get("stream"):
            return web.json_response({"id": f"up_{count}"})
        said = events or (text("fine"), item("message"))
        return await streamed(*said, ended(response_id=f"up_{count}"))(server, body, request)

    return answer


@asynccontextmanager
async def opened(
    *servers: UpstreamServer, how: Wanted = RESPONSES.how
) -> AsyncIterator[UpstreamEngine]:
    engine = UpstreamEngine([server.url for server in servers], how=how)
    await engine.probe()
    for server in servers:
        server.bodies.clear()
        server.sizes.clear()
    try:
        yield engine
    finally:
        await engine.close()


def ask(content: Any = "hello", **members: Any) -> Prompt:
    return prompt(content, model=MODEL, **members)


def answered(tip: ChainNode, said: Any = ANSWER) -> ChainNode:
    return link(said, tip, output=True)


async def test_a_turn_is_one_streamed_request_that_leaves_nothing_there() -> None:
    async with upstream() as server, opened(server) as engine:
        server.plans.append(RESPONSES.good)
        given = ask(instructions="Be brief.", max_output_tokens=20, temperature=0.5)
        assert text_in(await deltas_of(engine, given)) == "fine"
        assert server.bodies == [
            {
                "model": MODEL,
                "instructions": "Be brief.",
                "temperature": 0.5,
                "store": False,
                "max_output_tokens": 20,
                "input": [{"type": "message", "role": "user", "content": "hello"}],
                "stream": True,
            }
        ]


@pytest.mark.parametrize(
    ("members", "expected"),
    [
        ({"reasoning": {"effort": "low"}}, {"reasoning": {"effort": "low", "summary": None}}),
        (
            {"text": {"verbosity": "low"}},
            {"text": {"format": {"type": "text"}, "verbosity": "low"}},
        ),
        ({"truncation": "auto"}, {"truncation": "auto"}),
        ({"prompt_cache_key": "k"}, {"prompt_cache_key": "k"}),
        (
            {"include": ["message.output_text.logprobs"], "top_logprobs": 2},
            {"include": ["message.output_text.logprobs"], "top_logprobs": 2},
        ),
        ({"include": ["reasoning.encrypted_content"]}, {}),
        ({"tools": [WEATHER]}, {"tools": [WEATHER], "tool_choice": "auto"}),
        (
            {
                "tools": [WEATHER],
                "tool_choice": {"type": "function", "name": "get_weather"},
                "parallel_tool_calls": False,
            },
            {
                "tools": [WEATHER],
                "tool_choice": {"type": "function", "name": "get_weather"},
                "parallel_tool_calls": False,
            },
        ),
        ({"tools": [{"type": "web_search"}]}, {}),
    ],
)
async def test_settings_go_as_they_are(members: Any, expected: Any) -> None:
    async with upstream() as server, opened(server) as engine:
        server.otherwise = RESPONSES.good
        await deltas_of(engine, ask(**members))
        (body,) = server.bodies
        for name in ("model", "store", "input", "stream"):
            del body[name]
        assert body == expected


@pytest.mark.parametrize("counts", [True, False], ids=["knows them", "does not"])
async def test_custom_tools_are_themselves_where_the_upstream_counts_them(counts: bool) -> None:
    async with upstream() as server:
        server.counts = counts
        async with opened(server) as engine:
            server.otherwise = RESPONSES.good
            choice = {"type": "custom", "name": "patch"}
            await deltas_of(engine, ask(tools=[PATCH], tool_choice=choice))
            (body,) = server.bodies
            kind = "custom" if counts else "function"
            assert body["tool_choice"] == {"type": kind, "name": "patch"}
            (tool,) = body["tools"]
            assert tool["type"] == kind
            assert ("format" in tool) == counts


async def test_without_state_everything_goes_and_is_rendered_once() -> None:
    async with upstream() as server, opened(server) as engine:
        server.otherwise = RESPONSES.good
        given = ask("x" * 100_000)
        await deltas_of(engine, given)
        first = given.work.render
        following = prompt(model=MODEL, work=given.work, tip=link("again", answered(given.chain)))
        await deltas_of(engine, following)
        assert following.work.render - first < 300
        assert [len(body["input"]) for body in server.bodies] == [1, 3]
        assert all("previous_response_id" not in body for body in server.bodies)


async def test_with_state_a_turn_sends_what_is_new() -> None:
    async with upstream() as server:
        server.otherwise = keeping()
        async with opened(server, how=STATE) as engine:
            given = ask("first")
            await deltas_of(engine, given)
            following = ask(tip=link("second", answered(given.chain)))
            assert text_in(await deltas_of(engine, following)) == "fine"
            one, two = server.bodies
            assert one["store"] is True
            assert "previous_response_id" not in one
            assert two["previous_response_id"] == "up_3"
            assert [each["content"] for each in two["input"]] == ["second"]


async def test_the_bytes_of_turn_200_are_those_of_turn_5_where_the_upstream_keeps_state() -> None:
    async with upstream() as server:
        server.otherwise = keeping()
        async with opened(server, how=STATE) as engine:
            tools = [{**WEATHER, "name": f"tool_{at}"} for at in range(40)]
            work = Work()
            recall, costs = SettingsCache(work), []
            tip: ChainNode | None = None
            for at in range(200):
                before = work.render
                question = link(f"{at:04} {'x' * 1000}", tip)
                given = ask(tip=question, tools=tools, work=work, recall=recall)
                await deltas_of(engine, given)
                costs.append(work.render - before)
                tip = answered(question)
            assert server.sizes[199] / server.sizes[4] <= 1.15
            assert costs[199] / costs[4] <= 1.15
            assert len(server.bodies[199]["input"]) == 1


async def test_what_the_upstream_has_lost_is_sent_whole_once() -> None:
    async with upstream() as server:
        server.otherwise = keeping()
        async with opened(server, how=STATE) as engine:
            given = ask("first")
            await deltas_of(engine, given)
            server.otherwise = keeping()  # It was started anew.
            second = ask(tip=link("second", answered(given.chain)))
            assert text_in(await deltas_of(engine, second)) == "fine"
            third = ask(tip=link("third", answered(second.chain)))
            assert text_in(await deltas_of(engine, third)) == "fine"
            asked = [
                (body.get("previous_response_id"), len(body["input"])) for body in server.bodies
            ]
            assert asked == [(None, 1), ("up_3", 1), (None, 3), ("up_1", 1)]


async def test_a_request_that_is_wrong_in_any_form_is_refused_after_one_more_try() -> None:
    async with upstream() as server:
        server.otherwise = keeping()
        async with opened(server, how=STATE) as engine:
            given = ask("first")
            await deltas_of(engine, given)
            server.otherwise = refusing(400, {"message": "bad tool"})
            with pytest.raises(EngineError, match="bad tool"):
                await deltas_of(engine, ask(tip=link("second", answered(given.chain))))
            assert len(server.bodies) == 3


@pytest.mark.parametrize(
    "said_instead",
    [
        [],
        [{"type": "message", "role": "assistant", "content": "f"}] * 2,
        [{"type": "message", "role": "assistant", "content": "f", "status": "incomplete"}],
    ],
    ids=["nothing", "other items", "less of it"],
)
async def test_an_answer_that_the_chain_has_otherwise_is_not_continued(said_instead: Any) -> None:
    async with upstream() as server:
        server.otherwise = keeping()
        async with opened(server, how=STATE) as engine:
            given = ask("first")
            await deltas_of(engine, given)
            tip = answered(given.chain, said_instead) if said_instead else given.chain
            await deltas_of(engine, ask(tip=link("second", tip)))
            assert "previous_response_id" not in server.bodies[1]


@pytest.mark.parametrize(
    ("said_here", "sent"),
    [([{"type": "web_search_call", "id": "ws_1"}, *ANSWER], 1), (ANSWER, 3)],
    ids=["shown", "left out"],
)
async def test_an_answer_with_an_item_that_came_whole_is_continued_where_the_chain_has_it(
    said_here: Any, sent: int
) -> None:
    async with upstream() as server:
        search = item("web_search_call", id="ws_1")
        server.otherwise = keeping(search, text("fine"), item("message"))
        async with opened(server, how=STATE) as engine:
            given = ask("first")
            await deltas_of(engine, given)
            await deltas_of(engine, ask(tip=link("second", answered(given.chain, said_here))))
            last = server.bodies[1]
            assert ("previous_response_id" in last) is (sent == 1)
            assert len(last["input"]) == sent


async def test_a_cut_answer_is_not_continued_and_an_earlier_one_is() -> None:
    async with upstream() as server:
        server.otherwise = keeping()
        async with opened(server, how=STATE) as engine:
            given = ask("first")
            await deltas_of(engine, given)
            limited = streamed(text("hal"), ended("incomplete", reason="max_output_tokens"))
            server.plans.append(limited)
            second = ask(tip=link("second", answered(given.chain)))
            await deltas_of(engine, second)
            half = [{"type": "message", "role": "assistant", "content": "hal"}]
            await deltas_of(engine, ask(tip=link("third", answered(second.chain, half))))
            last = server.bodies[-1]
            assert last["previous_response_id"] == "up_3"
            assert [each["content"] for each in last["input"]] == ["second", "hal", "third"]


async def test_a_held_rollout_and_forks_each_go_on_from_what_they_continue() -> None:
    call = {"type": "function_call", "call_id": "c", "name": "get_weather", "arguments": "{}"}
    output = {"type": "function_call_output", "call_id": "c", "output": "sun"}
    begin = added("function_call", name="get_weather")
    done = item("function_call", name="get_weather", arguments="{}")
    pieces = (begin, said("function_call_arguments.delta", delta="{}"), done)

    async with upstream() as server:
        server.otherwise = keeping(*pieces)
        async with opened(server, how=STATE) as engine:
            given = ask("first", tools=[WEATHER])
            await deltas_of(engine, given)
            called = answered(given.chain, [call])
            for content in ([output], [output]):
                await deltas_of(engine, ask(tip=link(content, called), tools=[WEATHER]))
            for body in server.bodies[1:]:
                assert body["previous_response_id"] == "up_3"
                assert [each["type"] for each in body["input"]] == ["function_call_output"]


async def test_each_replica_is_sent_what_it_does_not_have_itself() -> None:
    async with upstream() as one, upstream() as two:
        one.otherwise = two.otherwise = keeping()
        async with opened(one, two, how=STATE) as engine:
            given = ask("first", prompt_cache_key="key")
            await deltas_of(engine, given)
            home, other = (one, two) if one.bodies else (two, one)
            home.plans.append(refusing(503))
            second = ask(tip=link("second", answered(given.chain)), prompt_cache_key="key")
            await deltas_of(engine, second)
            assert "previous_response_id" not in other.bodies[0]
            assert len(other.bodies[0]["input"]) == 3
            third = ask(tip=link("third", answered(second.chain)), prompt_cache_key="key")
            await deltas_of(engine, third)
            last = home.bodies[-1]
            assert last["previous_response_id"] == home.bodies[1]["previous_response_id"]
            assert [each["content"] for each in last["input"]] == ["second", "fine", "third"]


@pytest.mark.parametrize("long", [True, False], ids=["counts", "does not"])
async def test_counting_asks_the_api_itself_where_it_can(long: bool) -> None:
    async with upstream() as server:
        server.counts = long
        async with opened(server) as engine:
            counted = await engine.count(ask("x" * 400))
            whole = len(json.dumps([{"type": "message", "role": "user", "content": "x" * 400}]))
            assert counted == whole if long else 100 < counted < 150


@pytest.mark.parametrize(
    ("how", "plan", "says"),
    [
        (STATE, refusing(400, {"message": "no"}), "keeps no responses .status 400."),
        (STATE, refusing(200, {"no": "id"}), "keeps no responses"),
    ],
)
async def test_an_upstream_that_keeps_nothing_is_said_at_the_start(
    how: Wanted, plan: Handler, says: str
) -> None:
    async with upstream() as server:
        server.otherwise = plan
        engine = UpstreamEngine([server.url], how=how)
        with pytest.raises(UpstreamError, match=says):
            await engine.probe()
        await engine.close()
