"""The upstream engine in front of llama.cpp's own server: real inference, real chunks."""

import asyncio
import json
from collections.abc import AsyncIterator, Coroutine, Iterator
from contextlib import aclosing, asynccontextmanager
from typing import Any, TypeVar

import pytest

from tests.support.engine_contract import deltas_of, finish_of, link, prompt, text_in
from tests.support.model_server import KEY, model_server
from tieline_server.core.deltas import Accepted, Delta, TextDelta
from tieline_server.core.effects import Prompt
from tieline_server.core.history.chain import ChainNode
from tieline_server.engines.base import EngineError
from tieline_server.engines.upstream import UpstreamEngine

T = TypeVar("T")


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with model_server() as url:
        yield url


@asynccontextmanager
async def opened(url: str) -> AsyncIterator[UpstreamEngine]:
    engine = UpstreamEngine([url], key=KEY)
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


def ask(engine: UpstreamEngine, content: Any, **members: Any) -> Prompt:
    model = engine.models()[0].id
    return prompt(content, model=model, **{"max_output_tokens": 16, "temperature": 0, **members})


def test_it_says_text_and_what_it_used_and_a_count_before_is_the_one_after(url: str) -> None:
    async def main() -> tuple[int, list[Delta]]:
        async with opened(url) as engine:
            given = ask(engine, "What is the capital of France?", instructions="Answer briefly.")
            return await engine.count(given), await deltas_of(engine, given)

    counted, deltas = run(main())
    end = finish_of(deltas)
    assert text_in(deltas)
    assert end.input_tokens == counted > 10
    assert 1 <= (end.output_tokens or 0) <= 16


def test_the_second_turn_of_a_conversation_finds_its_prefix_cached(url: str) -> None:
    async def main() -> Any:
        async with opened(url) as engine:
            first = ask(engine, "Tell me about the sea. " * 20)
            said = text_in(await deltas_of(engine, first))
            answer = link([{"role": "assistant", "content": said}], first.chain, output=True)
            tip: ChainNode = link([{"role": "user", "content": "Go on."}], answer)
            return finish_of(await deltas_of(engine, ask(engine, "", tip=tip)))

    end = run(main())
    assert end.cached_tokens > 100
    assert end.cached_tokens < end.input_tokens


def test_a_schema_is_kept_to(url: str) -> None:
    schema = {
        "type": "object",
        "properties": {
            "name": {"type": "string", "maxLength": 8},
            "age": {"type": "integer", "minimum": 0, "maximum": 150},
        },
        "required": ["name", "age"],
        "additionalProperties": False,
    }
    text = {"format": {"type": "json_schema", "name": "person", "schema": schema, "strict": True}}

    async def main() -> list[Delta]:
        async with opened(url) as engine:
            return await deltas_of(
                engine, ask(engine, "Invent a person.", text=text, max_output_tokens=64)
            )

    deltas = run(main())
    assert finish_of(deltas).reason == "stop"
    assert json.loads(text_in(deltas)).keys() == {"name", "age"}


def test_log_probabilities_come_along(url: str) -> None:
    async def main() -> list[Delta]:
        async with opened(url) as engine:
            wanted = {"include": ["message.output_text.logprobs"], "top_logprobs": 2}
            return await deltas_of(engine, ask(engine, "Say hello.", **wanted))

    deltas = [each for each in run(main()) if isinstance(each, TextDelta)]
    assert all(each.logprobs for each in deltas)
    entry = json.loads(bytes(deltas[0].logprobs[0]))
    assert entry["logprob"] <= 0.0
    assert len(entry["top_logprobs"]) == 2


def test_a_prompt_that_is_too_long_is_refused_as_such(url: str) -> None:
    async def main() -> EngineError:
        async with opened(url) as engine:
            with pytest.raises(EngineError) as caught:
                await deltas_of(engine, ask(engine, "word " * 6000))
            return caught.value

    assert run(main()).code == "context_length_exceeded"


def test_closing_it_frees_the_place_of_the_model(url: str) -> None:
    async def main() -> str:
        async with opened(url) as engine:
            for _ in range(6):
                long = ask(engine, "Tell me a long story.", max_output_tokens=1500)
                async with aclosing(engine.sample(long)) as steps:
                    assert isinstance((await anext(steps))[0], Accepted)
                    await anext(steps)
            return text_in(await deltas_of(engine, ask(engine, "Say hello.")))

    assert run(main())
