"""Append shape: one response for a whole rollout, held at each tool call."""

from typing import Any

import pytest

from tests.conformance.server import serve
from tests.conformance.wire import Json, Peer, Refused, Wire, ask, collect, output, response, text
from tieline_server.core.create.limits import Limits

TWO_CALLS: Json = {
    "models": ["scripted"],
    "rules": [
        {
            "id": "answer",
            "when": {"last": "tool_output"},
            "emit": {"type": "message", "text": "got {output}"},
        },
        {
            "id": "calls",
            "when": {"user_contains": "call"},
            "emit": [
                {"type": "function_call", "name": "f", "arguments": {"n": 1}},
                {"type": "function_call", "name": "g", "arguments": {"n": 2}},
            ],
        },
        {"id": "context", "emit": {"type": "message", "text": "{context}"}},
    ],
}


async def _held(peer: Peer, **members: Any) -> tuple[list[Json], list[str]]:
    """A turn held at two calls, and their call ids."""
    events = await ask(peer, append=True, input="call both", **members)
    assert events[-1]["type"] == "response.done"
    return events, [item["call_id"] for item in response(events)["output"]]


async def _append(peer: Peer, *items: Json, **members: Any) -> list[Json]:
    await peer.send({"type": "response.append", "input": list(items), **members})
    return await collect(peer)


@pytest.mark.needs("append")
async def test_sampling_goes_on_in_the_same_response_with_the_same_counting(wire: Wire) -> None:
    async with serve(TWO_CALLS) as served, wire(served) as peer:
        first, (one, two) = await _held(peer)
        rest = await _append(peer, output(one, "1"), output(two, "2"))

        assert response(first)["status"] == "in_progress"
        assert response(first)["usage"]["output_tokens"] > 0
        assert response(rest)["id"] == response(first)["id"]
        events = [*first, *rest]
        assert list(range(len(events))) == [e["sequence_number"] for e in events]
        added = [e["output_index"] for e in events if e["type"] == "response.output_item.added"]
        assert added == [0, 1, 2]
        kinds = [item["type"] for item in response(rest)["output"]]
        assert kinds == ["function_call", "function_call", "message"]
        usage, before = response(rest)["usage"], response(first)["usage"]
        assert usage["output_tokens"] > before["output_tokens"]
        assert text(rest) == "got 2"
        assert [record.outcome for record in served.records] == ["completed"]


@pytest.mark.needs("append")
async def test_outputs_that_do_not_fit_are_refused_and_the_turn_stays_held(wire: Wire) -> None:
    async with serve(TWO_CALLS) as served, wire(served) as peer:
        first, (one, two) = await _held(peer)
        missing = await _append(peer, output(one, "1"), event_id="evt_a")
        foreign = await _append(peer, output("call_x", "1"), output(one, "1"), output(two, "2"))
        double = await _append(peer, output(one, "1"), output(one, "1"), output(two, "2"))
        rest = await _append(peer, output(two, "2"), output(one, "1"))

        refused = [missing, foreign, double]
        assert [len(events) for events in refused] == [1, 1, 1]
        assert [events[0]["error"]["code"] for events in refused] == [
            "tool_output_missing",
            "tool_call_not_found",
            "duplicate_item",
        ]
        assert missing[0]["error"]["event_id"] == "evt_a"
        events = [*first, *missing, *foreign, *double, *rest]
        assert list(range(len(events))) == [e["sequence_number"] for e in events]
        assert response(rest)["status"] == "completed"


@pytest.mark.needs("append")
async def test_a_create_behind_a_held_turn_ends_it_and_then_runs(wire: Wire) -> None:
    async with serve(TWO_CALLS) as served, wire(served) as peer:
        await _held(peer)
        superseded = await ask(peer, input="something else")
        fresh = await collect(peer)

        assert superseded[-1]["type"] == "response.incomplete"
        assert response(superseded)["incomplete_details"] == {"reason": "superseded"}
        assert response(superseded)["usage"]["output_tokens"] > 0
        assert response(fresh)["status"] == "completed"


@pytest.mark.needs("append")
async def test_cancel_ends_a_held_turn_with_its_usage(wire: Wire) -> None:
    async with serve(TWO_CALLS) as served, wire(served) as peer:
        first, _ = await _held(peer)
        await peer.send({"type": "response.cancel", "response_id": response(first)["id"]})
        end = await collect(peer)

        assert end[-1]["type"] == "response.incomplete"
        assert response(end)["status"] == "cancelled"
        assert response(end)["incomplete_details"] is None
        assert response(end)["usage"] == response(first)["usage"]


@pytest.mark.needs("append")
async def test_a_turn_held_for_too_long_ends_as_incomplete(wire: Wire) -> None:
    limits = Limits(held_timeout=0.1)
    async with serve(TWO_CALLS, limits=limits) as served, wire(served) as peer:
        await _held(peer)
        end = await collect(peer)

        assert response(end)["incomplete_details"] == {"reason": "held_timeout"}


@pytest.mark.needs("append")
async def test_a_held_turn_whose_connection_is_lost_makes_no_response(wire: Wire) -> None:
    """Over each transport, however it notices that its peer is gone."""
    async with serve(TWO_CALLS) as served:
        async with wire(served) as peer:
            first, _ = await _held(peer, store=True)
            await peer.abort()
        await served.signal.until(lambda: len(served.records) == 1)
        with pytest.raises(Refused) as refused:
            async with wire(served) as peer:
                await peer.cancel(response(first)["id"])
        assert refused.value.code == "response_not_found"
        assert [row.outcome for row in served.rows] == ["disconnected"]


@pytest.mark.needs("append")
async def test_a_steer_joins_the_next_append(wire: Wire) -> None:
    script = {**TWO_CALLS, "rules": TWO_CALLS["rules"][1:]}
    async with serve(script) as served, wire(served) as peer:
        first, (one, two) = await _held(peer)
        steer = {"previous_response_id": response(first)["id"], "input": "be brief"}
        await peer.send({"type": "response.steer", **steer})
        accepted = await peer.receive()
        rest = await _append(peer, output(one, "1"), output(two, "2"))

        assert accepted["type"] == "response.steer.accepted"
        assert "be brief" in text(rest)


@pytest.mark.needs("append")
async def test_an_append_may_carry_user_messages_too(wire: Wire) -> None:
    script = {**TWO_CALLS, "rules": TWO_CALLS["rules"][1:]}
    async with serve(script) as served, wire(served) as peer:
        _, (one, two) = await _held(peer)
        more = {"role": "user", "content": "and hurry"}
        rest = await _append(peer, output(one, "1"), output(two, "2"), more)

        assert "and hurry" in text(rest)


@pytest.mark.needs("append")
async def test_an_append_on_a_lane_that_holds_nothing_continues_its_latest_response(
    wire: Wire,
) -> None:
    async with serve(TWO_CALLS) as served, wire(served) as peer:
        first = await ask(peer, input="call both", instructions="keep these")
        one, two = (item["call_id"] for item in response(first)["output"])
        rest = await _append(peer, output(one, "1"), output(two, "2"))

        assert response(rest)["id"] != response(first)["id"]
        assert response(rest)["previous_response_id"] == response(first)["id"]
        assert response(rest)["instructions"] == "keep these"
        assert text(rest) == "got 2"


@pytest.mark.needs("append")
async def test_an_append_to_an_empty_lane_is_refused(wire: Wire) -> None:
    async with serve(TWO_CALLS) as served, wire(served) as peer:
        refused = await _append(peer, {"role": "user", "content": "x"})

        assert refused[0]["error"]["code"] == "nothing_to_append"


@pytest.mark.needs("append")
async def test_the_token_budget_spans_the_whole_rollout(wire: Wire) -> None:
    async with serve(TWO_CALLS) as served, wire(served) as peer:
        whole, calls = await _held(peer)
        spent = response(whole)["usage"]["output_tokens"]
        await _append(peer, *(output(call, "1") for call in calls))
        _, calls = await _held(peer, max_output_tokens=spent + 1)
        rest = await _append(peer, *(output(call, "1") for call in calls))

        assert response(rest)["incomplete_details"] == {"reason": "max_output_tokens"}
        assert response(rest)["usage"]["output_tokens"] == spent + 1
