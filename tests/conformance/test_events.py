"""Order, shape and identity of events."""

import msgspec
import pytest

from tests.conformance.server import serve
from tests.conformance.wire import Json, Wire, ask, collect, response, text
from tieline import events as vocabulary

TOOL = {"type": "function", "name": "f", "parameters": {"type": "object"}}


async def test_ev_03_a_call_is_the_same_in_the_stream_the_end_and_the_store(wire: Wire) -> None:
    async with serve() as served, wire(served) as peer:
        events = await ask(peer, store=True, tools=[TOOL], tool_choice="required", input="go")
        stored = await peer.retrieve(response(events)["id"])

        assert [item["type"] for item in stored["output"]] == ["function_call"]
        assert stored["output"] == response(events)["output"]
        if "events" not in wire.offers:
            return
        done = {
            event["output_index"]: event["item"]
            for event in events
            if event["type"] == "response.output_item.done"
        }
        assert done == dict(enumerate(stored["output"]))
        added = next(e["item"] for e in events if e["type"] == "response.output_item.added")
        for member in ("id", "call_id", "name", "type"):
            assert added[member] == done[0][member]


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
            "id": "calls",
            "when": {"user_contains": "call"},
            "emit": [
                {"type": "function_call", "name": "f", "arguments": {"n": 1}},
                {"type": "function_call", "name": "f", "arguments": {"n": 2}},
            ],
        },
        {
            "id": "open",
            "when": {"user_contains": "no custom tools"},
            "emit": [
                {"type": "reasoning", "text": "let me think", "summary": "thinking"},
                {"type": "message", "text": "here it is"},
                {"type": "refusal", "text": "but not that"},
                {"type": "function_call", "name": "f", "arguments": {"a": 1}},
            ],
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


OTHERWISE = {
    "response.queued": "lanes",
    "response.done": "append",
    "response.incomplete": "a limit, below",
    "response.failed": "a failure, below",
    "response.output_text.annotation.added": "no engine of ours makes one",
    "error": "refusals",
    "response.steer.accepted": "steering",
    "response.steer.pending": "steering",
    "response.steer.failed": "steering",
}
"""Types that a turn which completes does not have -> where they are heard."""


@pytest.mark.needs("events", "custom_tools", "raw_reasoning")
async def test_ev_06_a_turn_with_all_kinds_of_output_has_every_event_that_it_can(
    wire: Wire,
) -> None:
    """EV-06: and each is valid, as is every event of every case (``CheckedPeer``)."""

    async with serve(ALL_KINDS) as served, wire(served) as peer:
        events = await ask(peer, input="all")

        made = {str(kind.__struct_config__.tag) for kind in vocabulary.CLASSES}
        ours = {kind for kind in made if kind.startswith("tieline.")}
        assert {event["type"] for event in events} == made - ours - OTHERWISE.keys()


@pytest.mark.needs("events")
async def test_ev_06_lifecycle_events_are_whole_and_items_have_their_status(wire: Wire) -> None:
    async with serve(ALL_KINDS) as served, wire(served) as peer:
        events = await ask(peer, input="no custom tools")

        for event in events[:2]:
            assert event["response"]["status"] == "in_progress"
            assert event["response"]["output"] == []
            assert event["response"]["error"] is None
        added = [e["item"] for e in events if e["type"] == "response.output_item.added"]
        done = [e["item"] for e in events if e["type"] == "response.output_item.done"]
        assert len(added) == len(done) == 4 == len(response(events)["output"])
        assert {item["status"] for item in added} == {"in_progress"}
        assert {item["status"] for item in done} == {"completed"}
        assert response(events)["output"] == done
        assert list(range(len(events))) == [event["sequence_number"] for event in events]


@pytest.mark.needs("events")
async def test_ev_06_a_failure_after_the_start_is_numbered_and_typed(wire: Wire) -> None:
    async with serve(ALL_KINDS) as served, wire(served) as peer:
        events = await ask(peer, input="fail")

        assert events[-1]["type"] == "response.failed"
        assert response(events)["error"] == {
            "code": "rate_limit_exceeded",
            "message": "Slow down.",
        }
        assert list(range(len(events))) == [event["sequence_number"] for event in events]
        assert response(events)["usage"]["output_tokens"] == 2


@pytest.mark.needs("events")
async def test_ev_07_each_end_of_a_stream_is_followed_by_what_its_transport_ends_with(
    wire: Wire,
) -> None:
    """EV-07: on SSE ``[DONE]`` and the end (``HttpPeer``); on a line the next answer's events."""

    async with serve(ALL_KINDS) as served, wire(served) as peer:
        ends = [
            (await ask(peer, **members))[-1]["type"]
            for members in (
                {"input": "no custom tools"},
                {"input": "no custom tools", "max_output_tokens": 1},
                {"input": "fail"},
                {"input": "no custom tools"},
            )
        ]

        assert ends == [
            "response.completed",
            "response.incomplete",
            "response.failed",
            "response.completed",
        ]


@pytest.mark.needs("events")
async def test_ev_08_text_survives_whatever_its_code_points(wire: Wire) -> None:
    hostile = "a\u2028b \u0085 👩‍👩‍👧‍👦 漢字 \U0001f9d1\u200d\U0001f680 é"
    script = {
        "models": ["scripted"],
        "rules": [{"id": "echo", "emit": {"type": "message", "text": "{user}"}}],
    }

    async with serve(script) as served, wire(served) as peer:
        events = await ask(peer, input=hostile)

        deltas = [e["delta"] for e in events if e["type"] == "response.output_text.delta"]
        assert "".join(deltas) == hostile == text(events)
        # Some of these characters are several tokens: a piece is held until it is whole.
        assert len(deltas) < response(events)["usage"]["output_tokens"]
        assert not any("\ufffd" in delta for delta in deltas)
        msgspec.json.encode(deltas)


@pytest.mark.needs("events")
async def test_each_end_of_a_turn_closes_what_is_open_before_its_terminal_event(wire: Wire) -> None:
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


@pytest.mark.apart("over gRPC, whose protocol is ours, the reason is told")
async def test_a_reason_outside_openais_closed_list_is_told_to_no_json_client(wire: Wire) -> None:
    """``CheckedPeer`` refuses it everywhere but over gRPC, whose protocol is ours."""

    async with serve(ALL_KINDS) as served, wire(served) as peer:
        end = response(await ask(peer, input="call twice", max_tool_calls=1, store=True))
        stored = await peer.retrieve(end["id"])

        assert stored == end
        assert end["status"] == "incomplete"
        assert end["incomplete_details"] in (None, {"reason": "max_tool_calls"})
        assert [item["type"] for item in end["output"]] == ["function_call"]


@pytest.mark.needs("warm_up")
async def test_a_warm_up_samples_nothing_and_can_be_continued(wire: Wire) -> None:
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
