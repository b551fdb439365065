"""Order, shape and identity of events."""

from typing import Any, get_args

import msgspec
import pytest
from openai.types.responses import ResponseStreamEvent

from tests.conformance.server import run, serve
from tests.conformance.wire import Json, Wire, ask, collect, response, text

TOOL = {"type": "function", "name": "f", "parameters": {"type": "object"}}


@pytest.mark.needs("events")
def test_ev_03_a_call_is_the_same_in_the_stream_the_end_and_the_store(wire: Wire) -> None:
    async def case() -> None:
        async with serve() as served, wire(served) as peer:
            events = await ask(peer, store=True, tools=[TOOL], tool_choice="required", input="go")
            stored = await peer.retrieve(response(events)["id"])

            done = {
                event["output_index"]: event["item"]
                for event in events
                if event["type"] == "response.output_item.done"
            }
            assert [item["type"] for item in done.values()] == ["function_call"]
            for index, item in done.items():
                for end in (response(events)["output"][index], stored["output"][index]):
                    assert end == item
            added = next(e["item"] for e in events if e["type"] == "response.output_item.added")
            for member in ("id", "call_id", "name", "type"):
                assert added[member] == done[0][member]

    run(case())


ALL_KINDS: Json = {
    "models": ["scripted"],
    "rules": [
        {
            "id": "late",
            "when": {"user_contains": "fail"},
            "emit": {
                "type": "error",
                "status": 429,
                "code": "rate_limit_exceeded",
                "message": "Slow down.",
                "after_tokens": 2,
            },
        },
        {
            "id": "all",
            "emit": [
                {"type": "reasoning", "text": "let me think", "summary": "thinking"},
                {"type": "message", "text": "here it is"},
                {"type": "refusal", "text": "but not that"},
                {"type": "function_call", "name": "f", "arguments": {"a": 1}},
                {"type": "custom_tool_call", "name": "c", "input": "free text"},
            ],
        },
    ],
}


def _classes() -> dict[str, Any]:
    union = get_args(ResponseStreamEvent)[0]
    return {get_args(kind.model_fields["type"].annotation)[0]: kind for kind in get_args(union)}


def _validate(event: Json) -> None:
    _classes()[event["type"]].model_validate(event, strict=False)


@pytest.mark.needs("events")
def test_ev_06_every_event_of_every_kind_validates_with_openais_own_types(wire: Wire) -> None:
    async def case() -> None:
        async with serve(ALL_KINDS) as served, wire(served) as peer:
            events = await ask(peer, input="all")

            for event in events:
                _validate(event)
            created = events[0]["response"]
            assert (created["output"], created["error"]) == ([], None)
            items = [e["item"] for e in events if e["type"] == "response.output_item.added"]
            assert {item["status"] for item in items} == {"in_progress"}
            assert {item["status"] for item in response(events)["output"]} == {"completed"}
            assert list(range(len(events))) == [event["sequence_number"] for event in events]

    run(case())


@pytest.mark.needs("events")
def test_ev_06_a_failure_after_the_start_is_numbered_and_typed(wire: Wire) -> None:
    async def case() -> None:
        async with serve(ALL_KINDS) as served, wire(served) as peer:
            events = await ask(peer, input="fail")

            for event in events:
                _validate(event)
            assert events[-1]["type"] == "response.failed"
            assert response(events)["error"] == {
                "code": "rate_limit_exceeded",
                "message": "Slow down.",
            }
            assert list(range(len(events))) == [event["sequence_number"] for event in events]
            assert response(events)["usage"]["output_tokens"] == 2

    run(case())


@pytest.mark.needs("events")
def test_ev_08_text_survives_whatever_its_code_points(wire: Wire) -> None:
    hostile = "a\u2028b \u0085 👩‍👩‍👧‍👦 漢字 \U0001f9d1\u200d\U0001f680 é"
    script = {
        "models": ["scripted"],
        "rules": [{"id": "echo", "emit": {"type": "message", "text": "{user}"}}],
    }

    async def case() -> None:
        async with serve(script) as served, wire(served) as peer:
            events = await ask(peer, input=hostile)

            deltas = [e["delta"] for e in events if e["type"] == "response.output_text.delta"]
            assert "".join(deltas) == hostile == text(events)
            # Some of these characters are several tokens: a piece is held until it is whole.
            assert len(deltas) < response(events)["usage"]["output_tokens"]
            assert not any("\ufffd" in delta for delta in deltas)
            msgspec.json.encode(deltas)

    run(case())


@pytest.mark.needs("events")
def test_each_end_of_a_turn_closes_what_is_open_before_its_terminal_event(wire: Wire) -> None:
    async def case() -> None:
        async with serve() as served, wire(served) as peer:
            events = await ask(peer, input="one two three four five", max_output_tokens=3)

            kinds = [event["type"] for event in events]
            assert kinds[-4:] == [
                "response.output_text.done",
                "response.content_part.done",
                "response.output_item.done",
                "response.incomplete",
            ]
            end = response(events)
            assert end["incomplete_details"] == {"reason": "max_output_tokens"}
            assert end["output"][0]["status"] == "incomplete"
            assert end["usage"]["output_tokens"] == 3

    run(case())


@pytest.mark.needs("line")
def test_a_warm_up_samples_nothing_and_can_be_continued(wire: Wire) -> None:
    async def case() -> None:
        async with serve() as served, wire(served) as peer:
            warm = await ask(peer, generate=False, input="remember the fig")
            await peer.send(
                {
                    "type": "response.create",
                    "model": "scripted",
                    "store": False,
                    "previous_response_id": response(warm)["id"],
                    "input": "go",
                }
            )
            events = await collect(peer)

            assert [event["type"] for event in warm] == [
                "response.created",
                "response.in_progress",
                "response.completed",
            ]
            usage = response(warm)["usage"]
            assert usage["output_tokens"] == 0
            assert usage["input_tokens"] > 0
            cached = response(events)["usage"]["input_tokens_details"]["cached_tokens"]
            assert cached == usage["input_tokens"]

    run(case())
