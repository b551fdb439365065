"""State and chaining: what the next turn sees, and what a failure takes away."""

from typing import Any

import pytest

from tests.conformance.server import ECHO_CONTEXT, run, serve
from tests.conformance.wire import Wire, ask, context, output, response, said, text

COLOURS: dict[str, Any] = {
    "models": ["scripted", "fake-context"],
    "rules": [
        {
            "id": "context",
            "when": {"model": "fake-context"},
            "emit": {"type": "message", "text": "{context}"},
        },
        {"id": "teal", "emit": {"type": "message", "text": "teal"}},
    ],
}

CALLS: dict[str, Any] = {
    "models": ["scripted"],
    "rules": [
        {
            "id": "call",
            "when": {"user_contains": "call"},
            "emit": {"type": "function_call", "name": "f", "arguments": {}},
        },
        {
            "id": "custom",
            "when": {"user_contains": "custom"},
            "emit": {"type": "custom_tool_call", "name": "c", "input": "x"},
        },
        *ECHO_CONTEXT["rules"],
    ],
}


async def test_st_02_the_next_turn_sees_the_models_own_answer_and_no_instructions(
    wire: Wire,
) -> None:
    async with serve(COLOURS) as served, wire(served) as peer:
        first = await ask(peer, instructions="be terse", input="pick a colour")
        second = await ask(
            peer,
            model="fake-context",
            previous_response_id=response(first)["id"],
            input="which colour?",
        )

        assert said(context(second)) == [
            ("user", "pick a colour"),
            ("assistant", "teal"),
            ("user", "which colour?"),
        ]
        assert response(second)["instructions"] is None


async def test_st_05_a_long_chain_keeps_every_fact_once_and_in_order(wire: Wire) -> None:
    async with serve(COLOURS) as served, wire(served) as peer:
        previous, facts = None, []
        for number in range(1, 6):
            turn = await ask(peer, previous_response_id=previous, input=f"fact {number}")
            previous = response(turn)["id"]
            facts += [("user", f"fact {number}"), ("assistant", "teal")]
        last = await ask(peer, model="fake-context", previous_response_id=previous, input="all?")

        assert [*facts, ("user", "all?")] == said(context(last))


async def test_st_06_a_delta_with_only_the_tool_output_gives_each_item_once(wire: Wire) -> None:
    async with serve(CALLS) as served, wire(served) as peer:
        first = await ask(peer, input="call it")
        call = response(first)["output"][0]
        second = await ask(
            peer,
            previous_response_id=response(first)["id"],
            input=[output(call["call_id"], "ok"), {"role": "user", "content": "and?"}],
        )

        items = context(second)
        assert [item.get("type", "message") for item in items] == [
            "message",
            "function_call",
            "function_call_output",
            "message",
        ]
        assert [call["id"]] == [item["id"] for item in items if item.get("id")]


async def test_st_06_a_delta_that_repeats_the_call_is_refused_by_its_id(wire: Wire) -> None:
    async with serve(CALLS) as served, wire(served) as peer:
        first = await ask(peer, input="call it")
        call = response(first)["output"][0]
        repeated = await ask(
            peer,
            previous_response_id=response(first)["id"],
            input=[call, output(call["call_id"], "ok")],
        )

        assert [event["type"] for event in repeated] == ["error"]
        assert repeated[0]["status"] == 400
        assert repeated[0]["error"]["type"] == "invalid_request_error"
        assert repeated[0]["error"]["param"] == "input"
        assert call["id"] in repeated[0]["error"]["message"]


async def test_st_08_a_create_without_a_previous_id_begins_a_new_chain(wire: Wire) -> None:
    async with serve(CALLS) as served, wire(served) as peer:
        await ask(peer, input="call it")
        fresh = await ask(
            peer,
            input=[
                {"role": "user", "content": "summary: we use port 9"},
                {"role": "user", "content": "go on"},
            ],
        )

        assert said(context(fresh)) == [
            ("user", "summary: we use port 9"),
            ("user", "go on"),
        ]


@pytest.mark.needs("connection")
async def test_st_09_a_failed_continuation_drops_its_parent_and_the_line_lives(wire: Wire) -> None:
    async with serve(COLOURS) as served, wire(served) as peer:
        parent = response(await ask(peer, input="one"))["id"]
        bad = await ask(peer, previous_response_id=parent, input=[output("nope", "x")])
        gone = await ask(peer, previous_response_id=parent, input="hello")
        alive = await ask(peer, input="hello")

        assert bad[0]["error"]["message"].startswith("No tool call found")
        assert gone[0]["status"] == 400
        assert gone[0]["error"]["code"] == "previous_response_not_found"
        assert gone[0]["error"]["param"] == "previous_response_id"
        assert text(alive) == "teal"


async def test_st_09_a_stored_parent_survives_a_failed_continuation(wire: Wire) -> None:
    async with serve(COLOURS) as served, wire(served) as peer:
        parent = response(await ask(peer, store=True, input="one"))["id"]
        await ask(peer, previous_response_id=parent, input=[output("nope", "x")])
        again = await ask(peer, previous_response_id=parent, input="hello")

        assert text(again) == "teal"


async def _leaves_a_call_open(wire: Wire, words: str, kind: str, answer: str) -> None:
    """TL-03: refused by the call's name and kind, with nothing generated; then put right."""
    async with serve(CALLS) as served, wire(served) as peer:
        first = await ask(peer, store=True, input=words)
        call = response(first)["output"][0]
        parent = response(first)["id"]
        refused = await ask(peer, previous_response_id=parent, input="hi")
        begun = len(served.records)
        done = output(call["call_id"], "done", answer)
        retried = await ask(peer, previous_response_id=parent, input=[done])

        assert [event["type"] for event in refused] == ["error"]
        assert refused[0]["status"] == 400
        assert refused[0]["error"]["type"] == "invalid_request_error"
        assert refused[0]["error"]["param"] == "input"
        assert call["call_id"] in refused[0]["error"]["message"]
        assert kind in refused[0]["error"]["message"]
        assert sum(record.usage.output_tokens for record in served.records[1:begun]) == 0
        assert retried[-1]["type"] == "response.completed"


def test_tl_03_an_open_function_call_is_named_with_its_kind(wire: Wire) -> None:
    run(_leaves_a_call_open(wire, "call it", "function call", "function_call_output"))


@pytest.mark.needs("custom_tools")
def test_tl_03_an_open_custom_tool_call_is_named_with_its_kind(wire: Wire) -> None:
    run(_leaves_a_call_open(wire, "custom", "custom tool call", "custom_tool_call_output"))


@pytest.mark.needs("lanes")
async def test_mx_05_a_queued_fork_keeps_the_parent_that_its_lane_has_left_behind(
    wire: Wire,
) -> None:
    slow = {**ECHO_CONTEXT["rules"][0], "id": "slow", "when": {"user_contains": "slow"}}
    script = {
        "models": ["scripted"],
        "rules": [{**slow, "pace": {"ttft_ms": 200}}, *ECHO_CONTEXT["rules"]],
    }

    async with serve(script) as served, wire(served) as peer:
        first = response(await ask(peer, stream_id="m", input="one"))["id"]
        create = {"type": "response.create", "model": "scripted", "store": False}
        await peer.send({**create, "stream_id": "f", "input": "slow"})
        await peer.send(
            {**create, "stream_id": "f", "previous_response_id": first, "input": "fork"}
        )
        await peer.send({**create, "stream_id": "m", "previous_response_id": first, "input": "on"})
        ends: list[Any] = []
        while len(ends) < 3:
            event = await peer.receive()
            if event["type"] == "response.completed":
                ends.append((event["stream_id"], said(context([event]))[0::2]))

        assert ends == [
            ("m", [("user", "one"), ("user", "on")]),
            ("f", [("user", "slow")]),
            ("f", [("user", "one"), ("user", "fork")]),
        ]


@pytest.mark.needs("lanes")
async def test_mx_05_a_failed_fork_on_another_lane_leaves_the_parent_alone(wire: Wire) -> None:
    async with serve(COLOURS) as served, wire(served) as peer:
        parent = response(await ask(peer, stream_id="m", input="one"))["id"]
        failed = await ask(
            peer, stream_id="f2", previous_response_id=parent, input=[output("nope", "x")]
        )
        kept = await ask(peer, stream_id="m", previous_response_id=parent, input="on")

        assert failed[0]["type"] == "error"
        assert text(kept) == "teal"
