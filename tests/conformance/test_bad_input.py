"""What is wrong with a request is told with its place; what clients repeat is understood."""

from typing import Any

import msgspec
import pytest

from tests.conformance.server import ECHO_CONTEXT, serve
from tests.conformance.test_append import TWO_CALLS
from tests.conformance.wire import Json, Refused, Wire, ask, context, output, response, said, text

FUNCTION: Json = {"type": "function", "name": "f"}
HELLO: Json = {"role": "user", "content": "hello"}


def parts(*some: Json, role: str = "user") -> Json:
    return {"type": "message", "role": role, "content": list(some)}


def allowing(*names: str, mode: str = "auto") -> Json:
    tools = [{"type": "function", "name": name} for name in names]
    return {"type": "allowed_tools", "mode": mode, "tools": tools}


MISSING = "missing_required_parameter"

CASES: dict[str, tuple[Json, str, str]] = {
    "IN-01 a part without its text": (
        {"input": [parts({"type": "input_text", "content": "hello"})]},
        MISSING,
        "input[0].content[0].text",
    ),
    "IN-01 another": (
        {"input": [HELLO, parts({"type": "output_text", "txt": "hello"}, role="assistant")]},
        MISSING,
        "input[1].content[0].text",
    ),
    "IN-01 a part of an output": (
        {"input": [{**output("c", ""), "output": [{"type": "input_text"}]}]},
        MISSING,
        "input[0].output[0].text",
    ),
    "IN-01 a message without content": (
        {"input": [{"role": "user", "text": "hello"}]},
        MISSING,
        "input[0].content",
    ),
    "IN-01 a part of an unknown type": (
        {"input": [parts({"type": "inputtext", "text": "hello"})]},
        "invalid_value",
        "input[0].content[0].type",
    ),
    "IN-01 a message of an unknown type": (
        {"input": [{"type": "mesage", "role": "user", "content": "hello"}]},
        "invalid_value",
        "input[0].type",
    ),
    "IN-01 a call without arguments": (
        {"input": [{"type": "function_call", "call_id": "c", "name": "f"}]},
        MISSING,
        "input[0].arguments",
    ),
    "IN-02 a tier that nobody knows": ({"service_tier": "bogus"}, "invalid_value", "service_tier"),
    "IN-03 include": ({"include": ["bogus"]}, "invalid_value", "include[0]"),
    "IN-03 two tools of one name": (
        {"tools": [FUNCTION, FUNCTION]},
        "invalid_value",
        "tools[1].name",
    ),
    "IN-03 an empty call_id": ({"input": [output("", "x")]}, "empty_string", "input[0].call_id"),
    "IN-03 an allowed tool that is not offered": (
        {"tools": [FUNCTION], "tool_choice": allowing("f", "g")},
        "invalid_value",
        "tool_choice.tools[1]",
    ),
    "IN-03 one that must be called": (
        {"tools": [FUNCTION], "tool_choice": allowing("g", mode="required")},
        "invalid_value",
        "tool_choice.tools[0]",
    ),
}


@pytest.mark.parametrize("row", CASES)
async def test_in_01_in_02_in_03_what_is_wrong_is_told_with_its_path(wire: Wire, row: str) -> None:
    members, code, param = CASES[row]

    async with serve(ECHO_CONTEXT) as served, wire(served) as peer:
        (refused,) = await ask(peer, **{"input": "hi", **members})
        assert (refused["type"], refused["status"]) == ("error", 400)
        error = refused["error"]
        assert (error["code"], error["param"]) == (code, param)
        assert error["type"] == "invalid_request_error"
        assert served.engine.samplings == 0
        assert response(await ask(peer, input="still?"))["status"] == "completed"


@pytest.mark.parametrize("tier", ["auto", "default", "flex", "scale", "priority"])
async def test_in_02_a_tier_is_served_and_the_one_that_served_is_told(
    wire: Wire, tier: str
) -> None:
    async with serve(ECHO_CONTEXT) as served, wire(served) as peer:
        events = await ask(peer, input="hi", service_tier=tier)
        assert response(events)["status"] == "completed"
        assert response(events)["service_tier"] == "default"


async def test_in_03_tools_that_the_input_brings_may_be_those_of_the_create(wire: Wire) -> None:
    brought = {"type": "additional_tools", "role": "developer", "tools": [FUNCTION]}

    async with serve(ECHO_CONTEXT) as served, wire(served) as peer:
        again = await ask(peer, input=[brought, HELLO], tools=[FUNCTION])
        assert response(again)["status"] == "completed"
        (twice,) = await ask(peer, input=[{**brought, "tools": [FUNCTION] * 2}, HELLO])
        assert twice["error"]["param"] == "input[0].tools[1].name"


async def test_in_03_a_choice_may_name_what_the_input_brings(wire: Wire) -> None:
    brought = {"type": "additional_tools", "role": "developer", "tools": [FUNCTION]}

    async with serve(ECHO_CONTEXT) as served, wire(served) as peer:
        fine = await ask(peer, input=[brought, HELLO], tool_choice=allowing("f"))
        assert response(fine)["status"] == "completed"
        after = {"previous_response_id": response(fine)["id"], "input": "go on"}
        on = await ask(peer, **after, tool_choice=allowing("f"))
        assert response(on)["status"] == "completed"
        (refused,) = await ask(peer, input="hi", tool_choice=allowing("f"))
        assert refused["error"]["param"] == "tool_choice.tools[0]"


SECRET = "hunter2"
BROKEN: dict[str, tuple[str, str]] = {
    "lone surrogate": ('"input":"' + SECRET + '\\ud83d"', "a lone surrogate at byte "),
    "NaN": ('"input":"' + SECRET + '","temperature":NaN', "NaN at byte "),
    "Infinity": ('"input":"' + SECRET + '","top_p":-Infinity', "-Infinity at byte "),
    "control character": ('"input":"' + SECRET + '\x07"', "a control character at byte "),
    "beyond a double": ('"input":"' + SECRET + '","tools":[1e999]', "a number beyond a double at "),
    "too deep": ('"input":' + "[" * 300 + "]" * 300, "it nests deeper than 256 levels at byte "),
    "single quotes": ('"input":\'' + SECRET + "'", "a character that JSON does not have there "),
}


@pytest.mark.parametrize("row", BROKEN)
async def test_in_04_what_is_no_json_is_told_with_its_byte_and_nothing_of_it(
    wire: Wire, row: str
) -> None:
    members, told = BROKEN[row]
    await_text = '{"type":"response.create","model":"scripted",' + members + "}"

    async with serve(ECHO_CONTEXT) as served, wire(served) as peer:
        await peer.send_text(await_text)
        refused = await peer.receive()
        assert (refused["status"], refused["error"]["code"]) == (400, "invalid_json")
        message = refused["error"]["message"]
        assert message.startswith(f"Invalid JSON: {told}")
        assert SECRET not in message
        assert response(await ask(peer, input="still?"))["status"] == "completed"


@pytest.mark.parametrize(
    ("sent", "told"),
    [
        ("\ufeff{}", "a byte-order mark at byte 0"),
        ('{"type":"response.create","input":"hun', "it ends too soon, at byte 38"),
        ('{"input":"x"} {}', "text behind its end at byte 14"),
    ],
)
async def test_in_04_the_text_as_a_whole_is_looked_at_too(wire: Wire, sent: str, told: str) -> None:
    async with serve(ECHO_CONTEXT) as served, wire(served) as peer:
        await peer.send_text(sent)
        refused = await peer.receive()
        assert (refused["status"], refused["error"]["code"]) == (400, "invalid_json")
        assert refused["error"]["message"].startswith(f"Invalid JSON: {told}")


@pytest.mark.needs("cancel_by_id")
@pytest.mark.apart("HTTP refuses a late cancel as OpenAI does, a line says nothing")
async def test_in_05_a_finished_response_is_not_cancelled_any_more(wire: Wire) -> None:
    async with serve(ECHO_CONTEXT) as served, wire(served) as peer:
        made = response(await ask(peer, input="hi", store=True))
        if "grpc" in wire.types.asked:
            assert (await peer.cancel(made["id"]))["status"] == "completed"
        else:
            with pytest.raises(Refused) as refused:
                await peer.cancel(made["id"])
            assert (refused.value.status, refused.value.code) == (400, "not_cancellable")
        assert (await peer.retrieve(made["id"]))["status"] == "completed"


def again(call: Json, **other: Any) -> Json:
    """A call as an agent without ids writes it anew."""
    arguments = msgspec.json.format(call["arguments"], indent=1)
    members = {"call_id": call["call_id"], "name": call["name"], "arguments": arguments}
    return {"type": "function_call", **members, **other}


FUNCTIONS = [{"type": "function", "name": name} for name in "fg"]


async def test_in_06_an_agent_may_send_its_whole_history_with_what_it_continues(wire: Wire) -> None:
    """As strands-agents does: every turn of the loop has all that came before, without ids."""

    async with serve(TWO_CALLS) as served, wire(served) as peer:
        asked = {"role": "user", "content": [{"type": "input_text", "text": "call both"}]}
        first = response(await ask(peer, input=[asked], tools=FUNCTIONS))
        one, two = first["output"]
        history = [asked, again(one), again(two)]
        history += [output(one["call_id"], "1"), output(two["call_id"], "2")]
        after = {"previous_response_id": first["id"], "tools": FUNCTIONS}
        second = response(await ask(peer, input=history, **after))
        assert second["status"] == "completed"
        history += [
            {"role": "assistant", "content": [{"type": "output_text", "text": "got 2"}]},
            {"role": "user", "content": "context"},
        ]
        third = await ask(peer, input=history, previous_response_id=second["id"])
        assert said(context(third)) == [
            ("user", "call both"),
            ("function_call", '{"n":1}'),
            ("function_call", '{"n":2}'),
            ("function_call_output", "1"),
            ("function_call_output", "2"),
            ("assistant", "got 2"),
            ("user", "context"),
        ]


@pytest.mark.parametrize("other", [{"arguments": '{"n":7}'}, {"name": "other"}], ids=str)
async def test_in_06_a_call_that_differs_is_refused(wire: Wire, other: Json) -> None:
    async with serve(TWO_CALLS) as served, wire(served) as peer:
        first = response(await ask(peer, input="call both", tools=FUNCTIONS))
        one, two = first["output"]
        items = [again(one, **other), output(one["call_id"], "1"), output(two["call_id"], "2")]
        (refused,) = await ask(peer, input=items, previous_response_id=first["id"])
        assert (refused["status"], refused["error"]["code"]) == (400, "duplicate_item")
        assert one["call_id"] in refused["error"]["message"]


@pytest.mark.needs("append")
async def test_in_06_an_append_may_repeat_the_calls_that_it_answers(wire: Wire) -> None:
    async with serve(TWO_CALLS) as served, wire(served) as peer:
        held = await ask(peer, append=True, input="call both", tools=FUNCTIONS)
        one, two = response(held)["output"]
        items = [again(one), output(one["call_id"], "1"), again(two)]
        items.append(output(two["call_id"], "2"))
        await peer.send({"type": "response.append", "input": items})
        while (event := await peer.receive())["type"] != "response.completed":
            assert event["type"] != "error", event
        assert text([event]) == "got 2"
