"""Completions of token ids: in front of llama.cpp's own server, and of one that looks like vLLM."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager
from itertools import pairwise
from typing import Any, TypeVar

import pytest
from aiohttp import web
from msgspec.structs import replace

from tests.support.engine_contract import WEATHER, deltas_of, finish_of, link, prompt, text_in
from tests.support.model_server import KEY, model_server
from tests.support.upstream_server import MODEL, UpstreamServer, streamed, upstream
from tests.support.upstream_shapes import COMPLETIONS, TOKENIZER
from tieline_server.core.deltas import CallDelta, CallStart, Delta, TextDelta
from tieline_server.core.effects import Prompt
from tieline_server.core.history.chain import ChainNode
from tieline_server.core.values import Work
from tieline_server.engines.base import EngineError
from tieline_server.engines.upstream import UpstreamEngine
from tieline_server.engines.upstream.choice import Wanted
from tieline_server.engines.upstream.probe import UpstreamError

T = TypeVar("T")

SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 8},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
    },
    "required": ["name", "age"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with model_server() as url:
        yield url


@asynccontextmanager
async def opened(url: str, **how: Any) -> AsyncIterator[UpstreamEngine]:
    engine = UpstreamEngine([url], key=KEY, how=Wanted(tokenizer=TOKENIZER, **how))
    await engine.probe()
    try:
        yield engine
    finally:
        await engine.close()


def run(main: Coroutine[Any, Any, T]) -> T:
    async def bounded() -> T:
        async with asyncio.timeout(90):
            return await main

    return asyncio.run(bounded())


def ask(engine: UpstreamEngine, content: Any = "hello", **members: Any) -> Prompt:
    model = engine.models()[0].id
    return prompt(content, model=model, **{"max_output_tokens": 16, "temperature": 0, **members})


def arguments_in(deltas: list[Delta]) -> Any:
    return json.loads("".join(each.text for each in deltas if isinstance(each, CallDelta)))


# A real model.


def test_a_conversation_prefills_what_is_new_in_it(url: str) -> None:
    async def main() -> list[Any]:
        async with opened(url) as engine:
            tip: ChainNode | None = None
            ends = []
            for at in range(3):
                content = "Tell me about the sea. " * 8 if at == 0 else f"Go on, {at}."
                given = ask(engine, content, after=tip)
                counted = await engine.count(given)
                deltas = await deltas_of(engine, given)
                end = finish_of(deltas)
                assert end.input_tokens == counted
                ends.append(end)
                said = [{"role": "assistant", "content": text_in(deltas)}]
                tip = link(said, given.chain, output=True)
            return ends

    ends = run(main())
    for before, after in pairwise(ends):
        # All of the past but the last token that was sampled, which nobody has computed.
        past = before.input_tokens + before.output_tokens
        assert past - 2 <= after.cached_tokens <= past


def test_forced_calls_parse_and_fit_their_schema(url: str, repeats: Callable[[int], int]) -> None:
    async def main() -> list[list[Delta]]:
        async with opened(url) as engine:
            asked = (
                ask(
                    engine,
                    f"Weather in town {at}?",
                    tools=[WEATHER],
                    tool_choice="required",
                    parallel_tool_calls=False,
                    temperature=1,
                    max_output_tokens=64,
                )
                for at in range(repeats(20))
            )
            return await asyncio.gather(*(deltas_of(engine, each) for each in asked))

    answers = run(main())
    for deltas in answers:
        (call,) = [each for each in deltas if isinstance(each, CallStart)]
        assert call.name == "get_weather"
        arguments = arguments_in(deltas)
        assert arguments.keys() == {"city", "unit"}
        assert arguments["unit"] in ("celsius", "fahrenheit")
        assert finish_of(deltas).reason == "stop"


def test_formats_are_kept_to(url: str, repeats: Callable[[int], int]) -> None:
    text = {"format": {"type": "json_schema", "name": "person", "schema": SCHEMA, "strict": True}}

    async def main() -> list[list[Delta]]:
        async with opened(url) as engine:
            asked = (
                ask(engine, f"Invent {at}.", text=text, temperature=1, max_output_tokens=64)
                for at in range(repeats(20))
            )
            return await asyncio.gather(*(deltas_of(engine, each) for each in asked))

    for deltas in run(main()):
        assert json.loads(text_in(deltas)).keys() == {"name", "age"}


def test_log_probabilities_come_in_the_form_of_this_api(url: str) -> None:
    async def main() -> list[Delta]:
        async with opened(url) as engine:
            wanted = {"include": ["message.output_text.logprobs"], "top_logprobs": 2}
            return await deltas_of(engine, ask(engine, "Say hello.", **wanted))

    said = [each for each in run(main()) if isinstance(each, TextDelta)]
    entries = [json.loads(bytes(entry)) for each in said for entry in each.logprobs]
    assert "".join(entry["token"] for entry in entries) == text_in(said)
    for entry in entries:
        assert entry.keys() == {"token", "bytes", "logprob", "top_logprobs"}
        assert len(entry["top_logprobs"]) == 2


# One that looks like vLLM.


class Scripted:
    """Says some ids; keeps to ``structured_outputs`` where ``obeys`` says so."""

    def __init__(self, *texts: str, obeys: str | None = None) -> None:
        self.texts = texts
        self.obeys = obeys

    async def __call__(
        self, server: UpstreamServer, body: dict[str, Any], request: web.Request
    ) -> web.StreamResponse:
        assert all(isinstance(each, int) for each in body["prompt"])
        if not body.get("stream"):
            held = body.get("structured_outputs", {})
            text = "7" if self.obeys in held else "I would say 7"
            usage = {"prompt_tokens": len(body["prompt"])}
            return web.json_response({"choices": [{"text": text}], "usage": usage})
        parts = [COMPLETIONS.text(each) for each in self.texts]
        return await streamed(*parts, *COMPLETIONS.stop)(server, body, request)


@asynccontextmanager
async def scripted(plan: Any, **members: Any) -> AsyncIterator[tuple[UpstreamServer, Any]]:
    async with upstream() as server:
        server.otherwise = plan
        for name, value in members.items():
            setattr(server, name, value)
        async with opened(server.url) as engine:
            server.bodies.clear()
            yield server, engine


async def test_a_turn_is_ids_and_asks_for_ids() -> None:
    async with scripted(Scripted("fine")) as (server, engine):
        assert text_in(await deltas_of(engine, ask(engine))) == "fine"
        (body,) = server.bodies
        assert body["model"] == MODEL
        assert body["return_token_ids"] is True
        assert body["max_tokens"] == 16
        assert body["stop_token_ids"] == [2]
        assert body["prompt"][0] == 1
        assert "messages" not in body


async def test_what_was_said_is_sent_as_the_ids_that_it_came_as() -> None:
    odd = (*"fi", "ne")

    async with scripted(Scripted(*odd)) as (server, engine):
        first = ask(engine)
        await deltas_of(engine, first)
        answer = link([{"role": "assistant", "content": "fine"}], first.chain, output=True)
        await deltas_of(engine, ask(engine, "on", after=answer))
        sampled = [each for text in odd for each in COMPLETIONS.ids(text)]
        before, after = (body["prompt"] for body in server.bodies)
        assert after[: len(before) + len(sampled)] == before + sampled
        assert COMPLETIONS.ids("fine") != sampled


@pytest.mark.parametrize("instructions", [None, "Be brief."])
async def test_the_ids_of_turns_and_forks_are_those_of_the_whole(instructions: str | None) -> None:
    async with scripted(Scripted("fine")) as (server, engine):
        first = ask(engine, instructions=instructions)
        said = [{"role": "assistant", "content": "fine"}]
        answer = link(said, first.chain, output=True)
        one, two = link("one", answer), link("two", answer)
        further = link("more", link(said, one, output=True))
        for tip in (first.chain, one, two, further):
            given = ask(engine, tip=tip, instructions=instructions)
            await deltas_of(engine, given)
            whole = engine._mode._builder(given).build(given)
            assert server.bodies[-1]["prompt"] == whole.ids


async def test_owners_are_kept_apart_by_salts_that_do_not_name_them() -> None:
    async with scripted(Scripted("fine")) as (server, engine):
        for owner in ("alice", "bob", "alice"):
            await deltas_of(engine, replace(ask(engine), owner=owner))
        salts = [body["cache_salt"] for body in server.bodies]
        assert salts[0] == salts[2] != salts[1]
        assert not any(name in salt for salt in salts for name in ("alice", "bob"))
    async with scripted(Scripted("fine")) as (server, engine):
        await deltas_of(engine, replace(ask(engine), owner="alice"))
        assert server.bodies[0]["cache_salt"] not in salts


@pytest.mark.parametrize("obeys", ["grammar", "json", None])
@pytest.mark.parametrize(
    "call",
    [
        '{"name":"get_weather","arguments":{"city":"Oslo","unit":"celsius"}}',
        '\n{ "name": "get_weather",\n "arguments": {"city": "Oslo", "unit": "celsius"} }',
    ],
    ids=["compact", "with white space"],
)
async def test_a_forced_call_is_asked_for_as_the_upstream_keeps_to_it_and_read(
    obeys: str | None, call: str
) -> None:
    pieces = [call[at : at + 3] for at in range(0, len(call), 3)]
    if obeys == "grammar":
        pieces = [each for each in pieces if call[0] == "{"] or [call.replace("\n", "").strip()]

    async with scripted(Scripted(*pieces, obeys=obeys)) as (server, engine):
        given = ask(engine, tools=[WEATHER], tool_choice="required", max_output_tokens=64)
        if obeys == "grammar" and call[0] != "{":
            with pytest.raises(EngineError):
                await deltas_of(engine, given)
            return
        deltas = await deltas_of(engine, given)
        assert [type(each) for each in deltas if isinstance(each, CallStart)] == [CallStart]
        assert arguments_in(deltas) == {"city": "Oslo", "unit": "celsius"}
        (body,) = server.bodies
        assert body.get("structured_outputs", {}).keys() == ({obeys} if obeys else set())


@pytest.mark.parametrize("obeys", ["grammar", "json", None])
async def test_only_one_that_samples_by_llguidance_is_sent_what_that_follows(
    obeys: str | None,
) -> None:
    """SC-11, SC-15: the rows hold for it; others are sent the client's schema as it is."""
    parameters = {
        "type": "object",
        "properties": {"city": {"$ref": "#/$defs/City"}, "unit": {"type": "STRING"}},
        "$defs": {"City": {"type": "string", "maxLenght": 3}},
    }
    tool = {"type": "function", "name": "look", "parameters": parameters, "strict": True}
    form = {"type": "json_schema", "name": "x", "schema": parameters, "strict": True}

    said = '{"name":"get_weather","arguments":{}}'
    async with scripted(Scripted(said, obeys=obeys)) as (server, engine):
        forced = ask(engine, tools=[WEATHER, tool], tool_choice="required")
        written = ask(engine, text={"format": form})
        if obeys == "grammar":
            for given, code, param in (
                (forced, "invalid_function_parameters", "tools[1].parameters"),
                (written, "invalid_json_schema", "text.format.schema"),
            ):
                with pytest.raises(EngineError) as caught:
                    await deltas_of(engine, given)
                assert (caught.value.code, caught.value.param) == (code, param)
            assert not server.bodies
            return
        for given in (forced, written):
            await deltas_of(engine, given)
        bodies = [body.get("structured_outputs") for body in server.bodies]
        if obeys is None:
            assert bodies == [None, None]
            return
        calls, text = (body["json"] for body in bodies if body is not None)
        arguments = calls["anyOf"][1]["properties"]["arguments"]
        assert arguments["$defs"] == parameters["$defs"]
        assert arguments["properties"]["unit"] == {"type": "STRING"}
        assert text == parameters


@pytest.mark.parametrize(
    ("said", "kind"),
    [
        (' {"name": "get_weather", "arguments": {"city": "O", "unit": "celsius"}}', CallStart),
        ('{"name": "nobody"}', TextDelta),
        ("The weather is fine.", TextDelta),
        ('{"na', TextDelta),
    ],
)
async def test_where_the_model_may_choose_its_text_decides(said: str, kind: type) -> None:
    async with scripted(Scripted(*said)) as (_, engine):
        deltas = await deltas_of(engine, ask(engine, tools=[WEATHER], max_output_tokens=64))
        assert isinstance(deltas[1], kind)
        if kind is TextDelta:
            assert text_in(deltas) == said


@pytest.mark.parametrize(
    "said", ['{"name": "get_weather", "arguments": {"city"', '{"name":"get_weather","arguments":x']
)
async def test_a_call_that_is_no_json_fails_typed(said: str) -> None:
    async with scripted(Scripted(*said)) as (_, engine):
        given = ask(engine, tools=[WEATHER], tool_choice="required", max_output_tokens=64)
        with pytest.raises(EngineError) as caught:
            await deltas_of(engine, given)
        assert caught.value.code == "server_error"


async def test_what_does_not_fit_is_refused_or_cut_at_the_beginning_by_count() -> None:
    async with scripted(Scripted("fine")) as (server, engine):
        tip = link("word " * 900)
        for at in range(8):
            said = [{"role": "assistant", "content": f"answer {at} " + "yes " * 200}]
            tip = link("word " * 300, link(said, tip, output=True))
        with pytest.raises(EngineError) as caught:
            await deltas_of(engine, ask(engine, tip=tip))
        assert caught.value.code == "context_length_exceeded"
        await deltas_of(engine, ask(engine, tip=tip, truncation="auto"))
        (body,) = server.bodies
        assert 3500 < len(body["prompt"]) <= 4096 - 16


async def test_turn_200_renders_what_turn_5_does() -> None:
    async with scripted(Scripted("fine")) as (_, engine):
        work, costs = Work(), []
        tip: ChainNode | None = None
        for at in range(200):
            before = work.render
            given = ask(engine, f"{at:04}", after=tip, work=work)
            await deltas_of(engine, given)
            costs.append(work.render - before)
            said = [{"role": "assistant", "content": "fine"}]
            tip = link(said, given.chain, output=True)
        assert costs[199] / costs[4] <= 1.15


@pytest.mark.parametrize(
    ("members", "how", "says"),
    [
        ({"otherwise": Scripted("x"), "tokens": [1, 2, 3]}, {}, "has another tokenizer than"),
        ({"paths": ("chat/completions",)}, {}, "/completions answers with status 404"),
    ],
)
async def test_what_cannot_be_used_is_said_in_one_line(members: Any, how: Any, says: str) -> None:
    async with upstream(paths=members.pop("paths", ("completions",))) as server:
        for name, value in members.items():
            setattr(server, name, value)
        wanted = Wanted(**{"tokenizer": TOKENIZER, **how})
        engine = UpstreamEngine([server.url], how=wanted)
        with pytest.raises(UpstreamError, match=says):
            await engine.probe()
        await engine.close()


async def test_a_server_that_reads_ids_as_something_else_is_not_used() -> None:
    async def otherwise(_s: Any, _b: Any, _r: Any) -> web.Response:
        return web.json_response({"choices": [{"text": "x"}], "usage": {"prompt_tokens": 1}})

    async with upstream() as server:
        server.otherwise = otherwise
        engine = UpstreamEngine([server.url], how=Wanted(tokenizer=TOKENIZER))
        with pytest.raises(UpstreamError, match="it is no completion of ids"):
            await engine.probe()
        await engine.close()
