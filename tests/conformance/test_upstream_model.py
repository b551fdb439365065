"""Over every transport, with a real model behind llama.cpp's own server as the upstream."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.conformance.server import Served
from tests.conformance.server import serve as serve_behind
from tests.conformance.wire import Json, Peer, Wire, ask, collect, response
from tests.support.model_server import KEY, model_server
from tieline_server.engines.upstream.choice import Wanted
from tieline_server.models.packaged import find

pytestmark = pytest.mark.apart("a model's words are its own, and depend on what it has cached")


@pytest.fixture(scope="module")
def model() -> Iterator[tuple[str, str]]:
    with model_server() as url:
        yield url, KEY


async def say(peer: Peer, served: Served, **members: Any) -> Json:
    """The response to one create."""
    (engine,) = served.services.engines.values()
    name = engine.models()[0].id
    events = await ask(
        peer, **{"model": name, "max_output_tokens": 16, "temperature": 0, **members}
    )
    return response(events)


def text_of(made: Json) -> str:
    return "".join(part["text"] for item in made["output"] for part in item["content"])


async def test_a_conversation_of_two_turns_finds_its_prefix_cached(
    wire: Wire, model: tuple[str, str]
) -> None:
    async with serve_behind(upstream=model) as served, wire(served) as peer:
        first = await say(peer, served, input="Tell me about the sea. " * 20)
        second = await say(peer, served, input="Go on.", previous_response_id=first["id"])
        for made in (first, second):
            assert made["status"] in ("completed", "incomplete")
            assert text_of(made)
            assert 1 <= made["usage"]["output_tokens"] <= 16
        usage = second["usage"]
        assert usage["input_tokens_details"]["cached_tokens"] > 100
        assert usage["input_tokens"] > first["usage"]["input_tokens"]
        booked = [row.output_tokens for row in served.rows]
        assert booked == [each["usage"]["output_tokens"] for each in (first, second)]


@pytest.mark.needs("connection", "lanes")
@pytest.mark.parametrize(
    "how",
    [Wanted(mode="responses"), Wanted(mode="completions", tokenizer=find())],
    ids=["responses", "completions"],
)
async def test_the_other_modes_hold_a_conversation_too(
    wire: Wire, model: tuple[str, str], how: Wanted
) -> None:
    async with serve_behind(upstream=model, how=how) as served, wire(served) as peer:
        short = {"max_output_tokens": 8}
        first = await say(peer, served, **short, input="Tell me about the sea. " * 6)
        second = await say(peer, served, input="Go on.", previous_response_id=first["id"], **short)
        for made in (first, second):
            assert text_of(made)
            assert 1 <= made["usage"]["output_tokens"] <= 8
        assert second["usage"]["input_tokens_details"]["cached_tokens"] > 30


async def test_an_answer_keeps_to_its_schema(wire: Wire, model: tuple[str, str]) -> None:
    schema = {
        "type": "object",
        "properties": {"age": {"type": "integer", "minimum": 0, "maximum": 150}},
        "required": ["age"],
        "additionalProperties": False,
    }
    form = {"type": "json_schema", "name": "person", "schema": schema, "strict": True}

    async with serve_behind(upstream=model) as served, wire(served) as peer:
        made = await say(
            peer,
            served,
            input="Invent a person.",
            text={"format": form},
            max_output_tokens=64,
        )
        assert made["status"] == "completed"
        assert json.loads(text_of(made)).keys() == {"age"}


async def test_a_prompt_that_is_too_long_is_one_typed_error(
    wire: Wire, model: tuple[str, str]
) -> None:
    async with serve_behind(upstream=model) as served, wire(served) as peer:
        (engine,) = served.services.engines.values()
        await peer.send(
            {
                "type": "response.create",
                "model": engine.models()[0].id,
                "store": False,
                "input": "word " * 6000,
            }
        )
        (error,) = await collect(peer)
        assert error["error"]["code"] == "context_length_exceeded"
        assert text_of(await say(peer, served, input="Say hello."))
