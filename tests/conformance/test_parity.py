"""The same conversation over every transport: same items, events, usage and errors."""

from contextlib import AsyncExitStack
from typing import Any

from tests.conformance.server import serve
from tests.conformance.transcript import outcomes, renamed
from tests.conformance.wire import WIRES, Json, Peer, ask, offering, output, response, text

SCRIPT: Json = {
    "models": ["scripted"],
    "rules": [
        {
            "id": "both",
            "when": {"turn": 1},
            "emit": [
                {"type": "reasoning", "text": "two tools", "summary": "thinking"},
                {"type": "function_call", "name": "f", "arguments": {"n": 1}},
                {"type": "custom_tool_call", "name": "c", "input": "x"},
            ],
        },
        {
            "id": "again",
            "when": {"turn": 2},
            "emit": {"type": "function_call", "name": "f", "arguments": {"n": 2}},
        },
        {
            "id": "answer",
            "when": {"turn": 3},
            "emit": [
                {"type": "message", "text": "it is {output} 👩‍👩‍👧‍👦"},
                {"type": "refusal", "text": "no more"},
            ],
        },
        {"id": "last", "emit": {"type": "message", "text": "you said {user}"}},
    ],
}

ROADS = offering("custom_tools", "raw_reasoning")
"""The transports that can carry this conversation."""


async def conversation(peers: list[Peer]) -> list[list[Json]]:
    """Four turns and a refused one, each by the next peer in turn; all stored."""
    turns: list[list[Json]] = []

    async def turn(**members: Any) -> Json:
        peer = peers[len(turns) % len(peers)]
        turns.append(await ask(peer, store=True, **members))
        return turns[-1][-1]

    first = (await turn(input="go"))["response"]
    f, c = (item["call_id"] for item in first["output"][1:])
    await turn(previous_response_id=first["id"], input=[output("call_no", "x")])
    outputs = [output(f, "1"), output(c, "2", "custom_tool_call_output")]
    second = (await turn(previous_response_id=first["id"], input=outputs))["response"]
    call = second["output"][0]["call_id"]
    third = await turn(previous_response_id=second["id"], input=[output(call, "three")])
    await turn(previous_response_id=third["response"]["id"], input="and?")
    return turns


async def test_sd_03_events_items_usage_and_errors_are_the_same_over_every_transport() -> None:
    seen: dict[str, list[list[Json]]] = {}
    for name, wire in ROADS.items():
        async with serve(SCRIPT) as served, wire(served) as peer:
            seen[name] = await conversation([peer])

    streamed = [name for name, wire in ROADS.items() if "events" in wire.offers]
    assert len(streamed) > 1
    turns = [renamed(turn) for turn in seen["grpc"]]
    for name in streamed:
        assert [renamed(turn) for turn in seen[name]] == turns, name
    for name in ROADS:
        # An answer that comes whole is what the last event of a streamed one carries.
        for whole, events in zip(seen[name], seen["grpc"], strict=True):
            assert outcomes(whole) == outcomes(events), name


async def test_sd_03_a_conversation_can_change_its_transport_at_every_turn() -> None:
    async with serve(SCRIPT) as served, AsyncExitStack() as stack:
        peers = [await stack.enter_async_context(wire(served)) for wire in ROADS.values()]
        turns = await conversation(peers)

    async with serve(SCRIPT) as served, WIRES["grpc"](served) as peer:
        alone = await conversation([peer])
    assert [outcomes(turn) for turn in turns] == [outcomes(turn) for turn in alone]
    assert text(turns[2 + 1]) == "it is three 👩‍👩‍👧‍👦"
    assert response(turns[-1])["status"] == "completed"
