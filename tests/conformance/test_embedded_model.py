"""Over every transport, with the real model behind the embedded engine."""

import json
from typing import Any

import pytest

from tests.conformance import server
from tests.conformance.server import Served, run
from tests.conformance.wire import Json, Peer, Wire, ask, collect, output, response
from tests.support.engine_contract import WEATHER
from tieline_server.engines.llama import LlamaEngine

pytestmark = pytest.mark.apart("a model's words are its own, and depend on what it has cached")


NAME = "smollm2-135m-instruct"


async def say(peer: Peer, served: Served, **members: Any) -> Json:
    """The response to one create."""
    events = await ask(peer, **{"model": NAME, "max_output_tokens": 3, "temperature": 0, **members})
    return response(events)


def prefilled(made: Json) -> int:
    usage = made["usage"]
    return int(usage["input_tokens"] - usage["input_tokens_details"]["cached_tokens"])


def held(made: Json) -> int:
    """Tokens that the model's cache has after a response: all but the last one sampled."""
    return int(made["usage"]["total_tokens"] - 1)


def test_a_continued_turn_computes_what_is_new_and_no_more(
    wire: Wire, embedded: LlamaEngine
) -> None:
    async def case() -> None:
        async with server.serve(model=embedded) as served, wire(served) as peer:
            words = f"I am {served.port}."
            made = await say(peer, served, input=words)
            for text in ("One.", "Two."):
                then = await say(peer, served, input=text, previous_response_id=made["id"])
                assert prefilled(then) == then["usage"]["input_tokens"] - held(made)
                made = then

    run(case())


@pytest.mark.needs("lanes")
def test_a_required_call_is_answered_and_the_chain_goes_on(
    wire: Wire, embedded: LlamaEngine
) -> None:
    async def case() -> None:
        async with server.serve(model=embedded) as served, wire(served) as peer:
            tools = {"tools": [WEATHER], "max_output_tokens": 60, "parallel_tool_calls": False}
            first = await say(
                peer, served, input=f"Oslo {served.port}?", tool_choice="required", **tools
            )
            calls = first["output"]
            for call in calls:
                assert json.loads(call["arguments"]).keys() == {"city", "unit"}
            outputs = [output(call["call_id"], "Rain.") for call in calls]
            follows = {"previous_response_id": first["id"], "tool_choice": "none"}
            second = await say(peer, served, input=outputs, **follows, **tools)
            assert [item["type"] for item in second["output"]] == ["message"]
            assert prefilled(second) == second["usage"]["input_tokens"] - held(first)

    run(case())


@pytest.mark.needs("append")
def test_a_turn_is_held_at_a_call_and_goes_on_in_its_slot(
    wire: Wire, embedded: LlamaEngine
) -> None:
    async def case() -> None:
        async with server.serve(model=embedded) as served, wire(served) as peer:
            asked = {"tools": [WEATHER], "tool_choice": "required", "parallel_tool_calls": False}
            events = await ask(
                peer,
                model=NAME,
                append=True,
                input="Oslo?",
                temperature=0,
                max_output_tokens=60,
                **asked,
            )
            assert events[-1]["type"] == "response.done"
            (call,) = response(events)["output"]
            rain = [output(call["call_id"], "Rain.")]
            await peer.send({"type": "response.append", "input": rain, "tool_choice": "none"})
            made = response(await collect(peer))
            assert [item["type"] for item in made["output"]] == ["function_call", "message"]
            assert made["usage"]["input_tokens_details"]["cached_tokens"] >= held(response(events))

    run(case())


@pytest.mark.needs("lanes")
def test_json_of_a_schema_and_a_prompt_that_is_too_long(wire: Wire, embedded: LlamaEngine) -> None:
    async def case() -> None:
        async with server.serve(model=embedded) as served, wire(served) as peer:
            schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
            form = {"type": "json_schema", "name": "x", "schema": schema}
            await peer.send({"type": "response.create", "model": NAME, "input": "word " * 3000})
            (error,) = await collect(peer)
            assert error["error"]["code"] == "context_length_exceeded"
            made = await say(
                peer, served, input="Count.", text={"format": form}, max_output_tokens=60
            )
            (item,) = made["output"]
            assert isinstance(json.loads(item["content"][0]["text"])["n"], int)

    run(case())
