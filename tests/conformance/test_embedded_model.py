"""Over every transport, with the real model behind the embedded engine."""

import json
from typing import Any

import pytest

from tests.conformance import server
from tests.conformance.server import Served
from tests.conformance.wire import Json, Peer, Wire, ask, collect, output, response
from tests.support.engine_contract import WEATHER
from tieline_server.engines.llama import LlamaEngine

pytestmark = pytest.mark.apart("a model's words are its own, and depend on what it has cached")


NAME = "smollm2-135m-instruct"


async def say(peer: Peer, served: Served, **members: Any) -> Json:
    """The response to one create."""
    events = await ask(peer, **{"model": NAME, "max_output_tokens": 3, "temperature": 0, **members})
    return response(events)


async def fault(peer: Peer, **members: Any) -> Json:
    """The one error that answers a create."""
    await peer.send({"type": "response.create", "model": NAME, **members})
    event = await peer.receive()
    assert (event["type"], event["status"]) == ("error", 400)
    return dict(event["error"])


def prefilled(made: Json) -> int:
    usage = made["usage"]
    return int(usage["input_tokens"] - usage["input_tokens_details"]["cached_tokens"])


def held(made: Json) -> int:
    """Tokens that the model's cache has after a response: all but the last one sampled."""
    return int(made["usage"]["total_tokens"] - 1)


async def test_a_continued_turn_computes_what_is_new_and_no_more(
    wire: Wire, embedded: LlamaEngine
) -> None:
    async with server.serve(model=embedded) as served, wire(served) as peer:
        words = f"I am {served.port}."
        made = await say(peer, served, input=words)
        for text in ("One.", "Two."):
            then = await say(peer, served, input=text, previous_response_id=made["id"])
            assert prefilled(then) == then["usage"]["input_tokens"] - held(made)
            made = then


@pytest.mark.needs("lanes")
async def test_a_required_call_is_answered_and_the_chain_goes_on(
    wire: Wire, embedded: LlamaEngine
) -> None:
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


@pytest.mark.needs("append")
async def test_a_turn_is_held_at_a_call_and_goes_on_in_its_slot(
    wire: Wire, embedded: LlamaEngine
) -> None:
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


@pytest.mark.needs("lanes")
async def test_json_of_a_schema_and_a_prompt_that_is_too_long(
    wire: Wire, embedded: LlamaEngine
) -> None:
    async with server.serve(model=embedded) as served, wire(served) as peer:
        schema = {
            "type": "object",
            "properties": {"n": {"type": "integer", "minimum": 0, "maximum": 99}},
            "required": ["n"],
        }
        form = {"type": "json_schema", "name": "x", "schema": schema}
        await peer.send({"type": "response.create", "model": NAME, "input": "word " * 3000})
        (error,) = await collect(peer)
        assert error["error"]["code"] == "context_length_exceeded"
        made = await say(peer, served, input="Count.", text={"format": form}, max_output_tokens=60)
        (item,) = made["output"]
        assert isinstance(json.loads(item["content"][0]["text"])["n"], int)


FULL: dict[str, Any] = {
    "type": "function",
    "name": "tick",
    "parameters": {
        "type": "object",
        "properties": {
            "boxes": {"type": "array", "items": {"type": "boolean"}, "minItems": 8},
        },
        "required": ["boxes"],
    },
}
"""A list that reaches the bound of the packaged model, whatever it writes."""


@pytest.mark.needs("lanes")
async def test_sc_16_a_call_whose_value_reached_a_bound_is_incomplete_and_can_be_answered(
    wire: Wire, embedded: LlamaEngine
) -> None:
    async with server.serve(model=embedded) as served, wire(served) as peer:
        options = {"tools": [FULL], "max_output_tokens": 80, "parallel_tool_calls": False}
        first = await say(peer, served, input="Tick.", tool_choice="required", **options)
        [called] = first["output"]
        assert (first["status"], called["status"]) == ("completed", "incomplete")
        assert len(json.loads(called["arguments"])["boxes"]) == 8
        answer = {
            "type": "function_call_output",
            "call_id": called["call_id"],
            "output": "ticked",
        }
        then = await say(peer, served, input=[answer], previous_response_id=first["id"])
        assert then["status"] in ("completed", "incomplete")


REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("SC-02", {"enum": [1234567890123456789]}, "/properties/a/enum"),
    ("SC-03", {"allOf": [{"enum": ["a"]}, {"enum": ["c"]}]}, "/properties/a"),
    ("SC-06", {"$ref": "#/$defs/Missing"}, "/properties/a/$ref"),
    ("SC-07", {"oneOf": [{"type": "integer"}, {"type": "number"}]}, "/properties/a/oneOf"),
    ("SC-08", {"type": "string", "format": "frob"}, "/properties/a/format"),
    ("SC-10", {"type": "object", "properties": {"b": False}, "required": ["b"]}, "/properties/a"),
    ("SC-11", {"enum": []}, "/properties/a/enum"),
    ("SC-11", {"type": "STRING"}, "/properties/a/type"),
    ("SC-14", {"type": "object"}, "/properties/a"),
]


def placed_in(where: str, schema: dict[str, Any], *, strict: bool) -> dict[str, Any]:
    """The members of a create that has a tool with this schema, beside another one."""
    tool = {"type": "function", "name": "odd", "parameters": schema, "strict": strict}
    fine = {"type": "function", "name": "fine", "parameters": {"type": "object"}}
    places: dict[str, dict[str, Any]] = {
        "tools": {"input": "Go.", "tools": [fine, tool]},
        "namespace": {
            "input": "Go.",
            "tools": [fine, {"type": "namespace", "name": "n", "tools": [fine, tool]}],
        },
        "input": {
            "input": [
                {"type": "message", "role": "user", "content": "Go."},
                {"type": "additional_tools", "role": "developer", "tools": [fine, tool]},
            ]
        },
    }
    return places[where]


@pytest.mark.parametrize(
    ("where", "param"),
    [
        ("tools", "tools[1].parameters"),
        ("namespace", "tools[1].tools[1].parameters"),
        ("input", "input[1].tools[1].parameters"),
    ],
)
async def test_sc_15_a_schema_that_is_refused_is_named_and_the_connection_lives(
    wire: Wire, embedded: LlamaEngine, where: str, param: str
) -> None:
    """SC-02, SC-03, SC-06 to SC-08, SC-10, SC-11, SC-14, SC-15, and SC-13 below."""

    async with server.serve(model=embedded) as served, wire(served) as peer:
        for _, schema, at in REFUSED:
            parameters = {"properties": {"a": schema}, "required": ["a"]}
            members = placed_in(where, parameters, strict=True)
            error = await fault(peer, **members)
            assert (error["code"], error["param"]) == ("invalid_function_parameters", param)
            assert f"function '{'n.' if where == 'namespace' else ''}odd'" in error["message"]
            assert f"at '{at}'" in error["message"]
        array = placed_in(where, {"type": "array"}, strict=False)
        error = await fault(peer, **array)
        assert (error["code"], error["param"]) == ("invalid_function_parameters", param)
        assert (await say(peer, served, input="Go on."))["status"] == "incomplete"


async def test_sc_15_a_text_format_that_is_refused_has_its_own_code(
    wire: Wire, embedded: LlamaEngine
) -> None:
    async with server.serve(model=embedded) as served, wire(served) as peer:
        for _, schema, at in REFUSED:
            form = {"type": "json_schema", "name": "x", "strict": True}
            wanted = {"properties": {"a": schema}, "required": ["a"]}
            error = await fault(peer, input="Go.", text={"format": {**form, "schema": wanted}})
            assert error["code"] == "invalid_json_schema"
            assert error["param"] == "text.format.schema"
            assert f"at '{at}'" in error["message"]
        assert (await say(peer, served, input="Go on."))["status"] == "incomplete"
