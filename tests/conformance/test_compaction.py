"""Folded history and sealed thoughts: what a client carries opens on any transport."""

from typing import Any

import msgspec
import pytest

from tests.conformance.server import ECHO_CONTEXT, serve
from tests.conformance.wire import (
    WIRES,
    Json,
    Wire,
    ask,
    context,
    offering,
    output,
    response,
    said,
    text,
)
from tieline_server.compaction.summaries import INSTRUCTION

pytestmark = pytest.mark.apart(
    "nothing is sealed twice the same, and an echoed context is spelled as its transport spells it"
)

LONG = "word " * 600
"""More than 600 tokens."""

AT_1000 = [{"type": "compaction", "compact_threshold": 1000}]

HISTORY: list[Json] = [
    {"role": "user", "content": "list the files"},
    {"type": "function_call", "call_id": "call_1", "name": "ls", "arguments": "{}"},
    output("call_1", "a.txt"),
    {"role": "assistant", "content": "a.txt"},
    {"role": "user", "content": "thanks"},
]

CALLS: dict[str, Any] = {
    "models": ["scripted"],
    "rules": [
        {
            "id": "call",
            "when": {"user_contains": "call", "last": "message"},
            "emit": {"type": "function_call", "name": "f", "arguments": {}},
        },
        *ECHO_CONTEXT["rules"],
    ],
}

THINKS: dict[str, Any] = {
    "models": ["scripted"],
    "rules": [
        {
            "id": "think",
            "when": {"turn": 1, "user_contains": "think"},
            "emit": [
                {"type": "reasoning", "text": "deep thought", "summary": "pondering"},
                {"type": "message", "text": "done"},
            ],
        },
        *ECHO_CONTEXT["rules"],
    ],
}

SUMMARISES: dict[str, Any] = {
    "models": ["scripted"],
    "rules": [
        {
            "id": "summary",
            "when": {"user_contains": INSTRUCTION[:40]},
            "emit": {"type": "message", "text": "words were said"},
        },
        *ECHO_CONTEXT["rules"],
    ],
}


def message(content: str, role: str = "user") -> Json:
    return {"role": role, "content": content}


def heads(items: list[Json]) -> list[tuple[str, str]]:
    """(role or type, the first letters) of each item."""
    return [(who, words[:12].strip()) for who, words in said(items)]


async def test_a_window_starts_a_chain_that_knows_everything_in_its_true_order(wire: Wire) -> None:
    async with serve(ECHO_CONTEXT) as served, wire(served) as peer:
        window = await peer.compact(model="scripted", input=HISTORY)
        turn = await ask(peer, input=[*window["output"], message("and now?")])

        types = [item.get("type", "message") for item in window["output"]]
        assert types == ["message", "message", "compaction"]
        assert window["usage"]["input_tokens"] > 0
        assert said(context(turn)) == said([*HISTORY, message("and now?")])


@pytest.mark.needs("context_management")
async def test_what_one_transport_has_sealed_starts_a_chain_on_every_other(wire: Wire) -> None:
    async with serve(ECHO_CONTEXT) as served, wire(served) as peer:
        window = (await peer.compact(model="scripted", input=HISTORY))["output"]
        long = [message(LONG), message(LONG, "assistant"), message("go on")]
        turn = await ask(peer, context_management=AT_1000, input=long)
        item = response(turn)["output"][0]
        for other in offering("context_management").values():
            async with other(served) as there:
                goes_on = await ask(there, input=[*window, message("and now?")])
                folded = await ask(there, input=[item, message("and now?")])

                assert said(context(goes_on)) == said([*HISTORY, message("and now?")])
                assert said(context(folded)) == [("user", "go on"), ("user", "and now?")]


async def test_a_window_that_the_client_has_changed_keeps_what_it_holds(wire: Wire) -> None:
    async with serve(ECHO_CONTEXT) as served, wire(served) as peer:
        window = await peer.compact(model="scripted", input=HISTORY)
        turn = await ask(peer, input=[*window["output"][1:], message("and now?")])

        assert [who for who, _ in said(context(turn))] == [
            "user",
            "function_call",
            "function_call_output",
            "assistant",
            "user",
        ]


async def test_a_stored_chain_with_an_open_call_goes_on_from_its_window(wire: Wire) -> None:
    async with serve(CALLS) as served, wire(served) as peer:
        first = response(await ask(peer, store=True, input="call it"))
        call_id = first["output"][0]["call_id"]
        window = await peer.compact(model="scripted", previous_response_id=first["id"])
        unanswered = await ask(peer, input=[*window["output"], message("hm")])
        answered = await ask(peer, input=[*window["output"], output(call_id, "found")])

        assert unanswered[0]["error"]["code"] == "tool_output_missing"
        assert [who for who, _ in said(context(answered))] == [
            "user",
            "function_call",
            "function_call_output",
        ]


@pytest.mark.needs("context_management")
async def test_past_the_threshold_the_output_begins_with_a_compaction_item(wire: Wire) -> None:
    async with serve(ECHO_CONTEXT) as served, wire(served) as peer:
        first = await ask(peer, context_management=AT_1000, input=f"one {LONG}")
        second = await ask(
            peer,
            context_management=AT_1000,
            previous_response_id=response(first)["id"],
            input="two",
        )
        third = await ask(peer, previous_response_id=response(second)["id"], input="three")

        assert [item["type"] for item in response(first)["output"]] == ["message"]
        folded, answer = response(second)["output"]
        assert set(folded) == {"id", "type", "encrypted_content"}
        assert heads(context(second)) == [("user", "two")]
        assert response(second)["usage"]["input_tokens"] < 100
        assert [who for who, _ in said(context(third))] == ["user", "assistant", "user"]
        assert folded["encrypted_content"] not in text(third)
        assert response(second)["output"][1]["id"] == answer["id"]


@pytest.mark.needs("events")
@pytest.mark.needs("context_management")
async def test_a_compaction_item_is_added_and_done_before_anything_else(wire: Wire) -> None:
    async with serve(ECHO_CONTEXT) as served, wire(served) as peer:
        history = [message(LONG), message(LONG, "assistant"), message("go on")]
        events = await ask(peer, context_management=AT_1000, input=history)

        assert [event["type"].removeprefix("response.") for event in events[:5]] == [
            "created",
            "in_progress",
            "output_item.added",
            "output_item.done",
            "output_item.added",
        ]
        added, done = events[2:4]
        assert added["item"] == done["item"] == response(events)["output"][0]
        assert [event.get("output_index") for event in events[2:5]] == [0, 0, 1]
        assert [event["sequence_number"] for event in events] == list(range(len(events)))


@pytest.mark.needs("context_management")
async def test_what_came_before_a_compaction_item_may_stay_or_go(wire: Wire) -> None:
    async with serve(ECHO_CONTEXT) as served, wire(served) as peer:
        history = [message(LONG), message(LONG, "assistant"), message("go on")]
        made = response(await ask(peer, context_management=AT_1000, input=history))
        rest = [*made["output"], message("and?")]
        pruned = await ask(peer, input=rest)
        unpruned = await ask(peer, input=[*history, *rest])

        assert heads(context(pruned))[0] == ("user", "go on")
        assert context(pruned) == context(unpruned)


@pytest.mark.needs("context_management")
async def test_tool_outputs_that_pass_the_threshold_keep_their_call(wire: Wire) -> None:
    async with serve(CALLS) as served, wire(served) as peer:
        first = response(await ask(peer, input="call it"))
        call_id = first["output"][0]["call_id"]
        second = await ask(
            peer,
            context_management=AT_1000,
            previous_response_id=first["id"],
            input=[message(LONG, "assistant"), output(call_id, LONG)],
        )

        assert response(second)["output"][0]["type"] == "compaction"
        assert [who for who, _ in said(context(second))] == [
            "user",
            "function_call",
            "function_call_output",
        ]


@pytest.mark.needs("context_management")
async def test_a_history_of_which_nothing_can_go_is_left_alone(wire: Wire) -> None:
    async with serve(ECHO_CONTEXT) as served, wire(served) as peer:
        turn = await ask(peer, context_management=AT_1000, input=[message(LONG * 2)])

        assert [item["type"] for item in response(turn)["output"]] == ["message"]


@pytest.mark.needs("context_management")
async def test_with_summary_the_model_says_what_to_remember_and_that_is_used(wire: Wire) -> None:
    async with serve(SUMMARISES, compaction="summary") as served, wire(served) as peer:
        history = [message(LONG), message(LONG, "assistant"), message("go on")]
        turn = await ask(peer, context_management=AT_1000, max_output_tokens=200, input=history)
        plain = await ask(peer, input=[message("go on")])

        assert said(context(turn)) == [
            ("assistant", "Summary of what came before: words were said"),
            ("user", "go on"),
        ]
        used, least = response(turn)["usage"], response(plain)["usage"]
        assert used["input_tokens"] > 1200 + least["input_tokens"]
        (booked,) = [r for r in served.records if r.response_id == response(turn)["id"]]
        assert booked.usage.output_tokens == used["output_tokens"]


async def test_a_window_with_summary_is_booked_once_as_what_it_used(wire: Wire) -> None:
    async with serve(SUMMARISES, compaction="summary") as served, wire(served) as peer:
        window = await peer.compact(model="scripted", input=HISTORY)
        turn = await ask(peer, input=[*window["output"], message("and now?")])

        assert [text for who, text in said(context(turn)) if who == "assistant"] == [
            "Summary of what came before: words were said"
        ]
        (booked,) = [r for r in served.records if r.kind == "compaction"]
        assert booked.response_id == window["id"]
        assert booked.usage.output_tokens == window["usage"]["output_tokens"] > 0


@pytest.mark.parametrize("kind", ["compaction", "reasoning"])
async def test_what_cannot_be_verified_is_one_refusal_and_the_line_lives_on(
    wire: Wire, kind: str
) -> None:
    async with serve(THINKS) as served, wire(served) as peer:
        seal = served.services.sealer.seal
        good = seal("local", b'{"type":"compaction","items":[]}')
        flipped = ("A" if good[40] != "A" else "B").join([good[:40], good[41:]])
        alien = seal("somebody else", msgspec.json.encode({"type": kind, "items": []}))
        other = seal("local", b'{"type":"nothing"}')
        bad = [flipped, alien, other, "garbage", good[:-4], "é", "A" * 400]
        errors = []
        for sealed in bad:
            item = {"type": kind, "summary": [], "encrypted_content": sealed}
            events = await ask(peer, input=[item, message("hi")])
            assert [event["type"] for event in events] == ["error"], sealed
            errors.append((events[0]["status"], events[0]["error"]))

        assert errors[0][0] == 400
        assert errors[0][1]["code"] == "invalid_encrypted_content"
        assert errors[0][1]["param"] == "input"
        assert all(error == errors[0] for error in errors)
        alive = await ask(peer, input="hi")
        assert said(context(alive)) == [("user", "hi")]


async def test_a_sealed_thought_is_restored_for_the_model(wire: Wire) -> None:
    async with serve(THINKS) as served, wire(served) as peer:
        include = ["reasoning.encrypted_content"]
        first = response(await ask(peer, include=include, input="think"))
        thought, answer = first["output"]
        carried = {**thought, "content": []}
        items = [message("think"), carried, answer, message("what?")]
        second = await ask(peer, input=items)

        assert thought["encrypted_content"]
        assert "deep thought" not in str(carried)
        seen = context(second)[1]
        assert seen["content"] == [{"type": "reasoning_text", "text": "deep thought"}]
        assert seen["summary"] == [{"type": "summary_text", "text": "pondering"}]
        assert "encrypted_content" not in seen


async def test_the_model_never_reads_sealed_text_of_its_own_chain(wire: Wire) -> None:
    async with serve(THINKS) as served, wire(served) as peer:
        include = ["reasoning.encrypted_content"]
        first = response(await ask(peer, include=include, input="think"))
        second = await ask(peer, previous_response_id=first["id"], input="what?")

        assert first["output"][0]["encrypted_content"] not in text(second)
        assert "deep thought" in text(second)


async def test_a_thought_is_sealed_only_where_the_client_asks_for_it(wire: Wire) -> None:
    async with serve(THINKS) as served, wire(served) as peer:
        first = response(await ask(peer, input="think"))

        assert first["output"][0]["encrypted_content"] is None


@pytest.mark.needs("steer")
async def test_a_response_with_automatic_compaction_cannot_be_steered(wire: Wire) -> None:
    script = {
        "models": ["scripted"],
        "rules": [
            {
                "id": "slow",
                "emit": [{"type": "message", "text": "a b"}, {"type": "stall", "seconds": 60}],
            }
        ],
    }

    async with serve(script) as served, wire(served) as peer:
        create = {"type": "response.create", "model": "scripted", "store": False}
        await peer.send({**create, "input": "hi", "context_management": AT_1000})
        begun = await peer.receive()
        steer = {"previous_response_id": begun["response"]["id"], "input": "shorter"}
        await peer.send({"type": "response.steer", **steer})
        while (event := await peer.receive())["type"] != "response.steer.failed":
            pass

        assert event["error"]["code"] == "steering_not_supported"


async def test_the_neutral_profile_has_windows_but_no_context_management() -> None:

    async with (
        serve(ECHO_CONTEXT) as served,
        WIRES["open-http"](served) as peer,
    ):
        refused = await ask(peer, context_management=AT_1000, input="hi")
        window = await peer.compact(model="scripted", input=HISTORY)
        turn = await ask(peer, input=[*window["output"], message("and now?")])

        assert refused[0]["error"]["code"] == "unsupported_parameter"
        assert refused[0]["error"]["param"] == "context_management"
        assert said(context(turn)) == said([*HISTORY, message("and now?")])
