"""What is flagged reaches nobody, whatever carries it, and what is not is as it was."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final

import grpc
import pytest

from tests.conformance.server import Served, run, serve
from tests.conformance.wire import (
    Json,
    Wire,
    ask,
    collect,
    context,
    output,
    response,
    said,
    text,
)
from tests.support.guards import Reader
from tests.support.moderation_server import moderation
from tieline_server.compaction.summaries import INSTRUCTION
from tieline_server.core.create.limits import Limits
from tieline_server.guards.base import REFUSED
from tieline_server.guards.pattern import PatternGuard
from tieline_server.guards.remote import RemoteGuard

PHRASE: Final = "bad zebra crossing"
"""Of several tokens; the first word alone is what the server of moderation flags."""

BEFORE: Final = "It is said. One two three four five six. "
TEXT: Final = f"{BEFORE}The {PHRASE} and more."

CUSTOM: Final = {"type": "custom", "name": "c"}
FUNCTION: Final = {"type": "function", "name": "f", "parameters": {"type": "object"}}

SCRIPT: Json = {
    "models": ["scripted"],
    "rules": [
        {"id": "answer", "when": {"last": "tool_output"}, "emit": {
            "type": "message", "text": "got {output}"}},
        {"id": "tool", "when": {"user_contains": "tool"}, "emit": {
            "type": "function_call", "name": "f", "arguments": {}}},
        {"id": "refusal", "when": {"user_contains": "refusal"}, "emit": {
            "type": "refusal", "text": TEXT}},
        {"id": "thought", "when": {"user_contains": "thought"}, "emit": [
            {"type": "reasoning", "text": TEXT}, {"type": "message", "text": "later"}]},
        {"id": "summary", "when": {"user_contains": "summary"}, "emit": [
            {"type": "reasoning", "summary": TEXT}, {"type": "message", "text": "later"}]},
        {"id": "call", "when": {"user_contains": "call"}, "emit": {
            "type": "function_call", "name": "f", "arguments": {"q": TEXT}}},
        {"id": "custom", "when": {"user_contains": "custom"}, "emit": {
            "type": "custom_tool_call", "name": "c", "input": TEXT}},
        {"id": "context", "when": {"user_contains": "context"}, "emit": {
            "type": "message", "text": "{context}"}},
        {"id": "fine", "when": {"user_contains": "fine"}, "emit": {
            "type": "message", "text": "All is fine, nothing to see."}},
        {"id": "text", "emit": {"type": "message", "text": TEXT}},
    ],
}  # fmt: skip

LOOKS: Final = pytest.mark.parametrize("kind", ["patterns", "moderation"])


@asynccontextmanager
async def guarded(kind: str = "patterns", **members: Any) -> AsyncIterator[Served]:
    """A server whose models have a guard of this kind."""
    if kind == "patterns":
        pattern = PatternGuard("g", [PHRASE, f"only in {PHRASE[::-1]}"])
        async with serve(SCRIPT, guards=[pattern], **members) as served:
            yield served
        return
    async with moderation() as server:
        remote = RemoteGuard("g", server.url)
        try:
            async with serve(SCRIPT, guards=[remote], **members) as served:
                yield served
        finally:
            await remote.close()


def leaked(heard: list[Json]) -> bool:
    """Whether anything of what was heard has the phrase, or makes it up."""
    deltas = "".join(event["delta"] for event in heard if isinstance(event.get("delta"), str))
    return PHRASE in deltas or PHRASE in json.dumps(heard)


KINDS: Final = [
    pytest.param("text", {}, id="text"),
    pytest.param("refusal", {}, id="refusal"),
    pytest.param("call", {"tools": [FUNCTION]}, id="call"),
]
MORE_KINDS: Final = [
    pytest.param("custom", {"tools": [CUSTOM]}, id="custom"),
    pytest.param("thought", {}, id="thought"),
]


async def flagged_answer(wire: Wire, guard: str, asked: str, members: Json) -> None:
    """Asks for an answer with the phrase, looks at all that comes, and reads it again."""
    async with guarded(guard) as served, wire(served) as peer:
        events = await ask(peer, input=asked, store=True, **members)
        end = response(events)
        assert events[-1]["type"] == "response.incomplete"
        assert (end["status"], end["incomplete_details"]) == (
            "incomplete",
            {"reason": "content_filter"},
        )
        assert not leaked(events)
        assert end["usage"]["output_tokens"] > 0
        if not wire.upstream and guard == "patterns":
            assert end["usage"]["output_tokens"] == served.engine.said
        assert not leaked([await peer.retrieve(end["id"])])
        assert [row.reason for row in served.rows] == ["content_filter"]
        await served.signal.until(lambda: served.engine.running == 0)
        # The lane lives on, and the answer can be continued as far as it went.
        after = await ask(peer, previous_response_id=end["id"], input="fine context", store=True)
        assert response(after)["status"] == "completed"
        assert not leaked(after)


@LOOKS
@pytest.mark.parametrize(("asked", "members"), KINDS)
def test_a_phrase_that_is_split_over_many_deltas_reaches_nobody(
    wire: Wire, kind: str, asked: str, members: Json
) -> None:
    run(flagged_answer(wire, kind, asked, members))


@LOOKS
@pytest.mark.needs("custom_tools", "raw_reasoning")
@pytest.mark.parametrize(("asked", "members"), MORE_KINDS)
def test_nor_in_a_thought_or_the_input_of_a_custom_tool(
    wire: Wire, kind: str, asked: str, members: Json
) -> None:
    run(flagged_answer(wire, kind, asked, members))


@LOOKS
@pytest.mark.needs("raw_reasoning")
def test_nor_in_the_summary_of_a_thought(wire: Wire, kind: str) -> None:
    run(flagged_answer(wire, kind, "summary", {}))


async def test_what_stands_before_it_has_left_and_counts(wire: Wire) -> None:
    async with guarded() as served, wire(served) as peer:
        assert text(await ask(peer, input="text")) == f"{BEFORE}The "


@LOOKS
async def test_an_answer_that_is_not_flagged_is_the_very_same(wire: Wire, kind: str) -> None:
    async with serve(SCRIPT) as served, wire(served) as peer:
        plain = await ask(peer, input="fine")
    async with guarded(kind) as served, wire(served) as peer:
        events = await ask(peer, input="fine")
    assert [text(events), response(events)["usage"]] == [text(plain), response(plain)["usage"]]
    kinds = [event["type"] for event in events]
    assert kinds == [event["type"] for event in plain]


@LOOKS
@pytest.mark.parametrize(
    ("members", "param"),
    [
        ({"input": f"so {PHRASE}"}, "input"),
        ({"input": [{"role": "user", "content": [
            {"type": "input_text", "text": "so bad zeb"},
            {"type": "input_text", "text": "ra crossing"}]}]}, "input"),
        ({"input": "fine", "instructions": PHRASE}, "instructions"),
        ({"input": "fine", "tools": [{**FUNCTION, "description": PHRASE}]}, "tools"),
    ],
)  # fmt: skip
async def test_input_is_refused_before_anything_is_sampled_and_the_line_lives_on(
    wire: Wire, kind: str, members: Json, param: str
) -> None:
    async with guarded(kind) as served, wire(served) as peer:
        first = response(await ask(peer, input="fine"))
        for _ in range(2):
            (refused,) = await ask(peer, previous_response_id=first["id"], **members)
            assert refused["type"] == "error"
            assert (refused["status"], refused["error"]["code"]) == (400, "invalid_prompt")
            assert refused["error"]["param"] == param
            assert refused["error"]["message"] == REFUSED
        if kind == "patterns":
            assert served.engine.samplings == 1
        assert [row.outcome for row in served.rows] == ["completed"]
        last = served.records[-1]
        assert (last.outcome, last.error_code) == ("refused", "invalid_prompt")
        assert last.times.phases()["guard"] > 0
        again = await ask(peer, previous_response_id=first["id"], input="context, fine")
        assert [who for who, _ in said(context(again))] == ["user", "assistant", "user"]
        assert not leaked(again)


@pytest.mark.needs("events")
async def test_a_verdict_that_comes_after_created_fails_the_response(wire: Wire) -> None:
    reader = Reader(PHRASE)
    limits = Limits(announce_after=0.01)
    async with serve(SCRIPT, guards=[reader], limits=limits) as served, wire(served) as peer:
        first = response(await ask(peer, input="fine"))
        reader.gate.clear()
        create = {"type": "response.create", "model": "scripted", "store": not peer.remembers}
        follows = {"previous_response_id": first["id"]}
        await peer.send({**create, **follows, "input": PHRASE})
        created = await peer.receive()
        assert created["type"] == "response.created"
        reader.gate.set()
        events = await collect(peer)
        assert events[-1]["type"] == "response.failed"
        assert response(events)["error"]["code"] == "invalid_prompt"
        assert "output_text.delta" not in str([event["type"] for event in events])
        again = await ask(peer, input="fine again", **follows)
        assert response(again)["status"] == "completed"


@pytest.mark.needs("append")
async def test_an_appended_output_that_is_flagged_fails_the_rollout_and_not_the_lane(
    wire: Wire,
) -> None:
    async with guarded() as served, wire(served) as peer:
        first = response(await ask(peer, input="fine"))
        follows = {"previous_response_id": first["id"]}
        for value, end in (("good", "response.completed"), (PHRASE, "response.failed")):
            held = await ask(peer, append=True, input="tool", tools=[FUNCTION], **follows)
            (call,) = response(held)["output"]
            answer = output(call["call_id"], value)
            await peer.send({"type": "response.append", "input": [answer]})
            events = await collect(peer)
            assert events[-1]["type"] == end
            assert not leaked(events)
            if value == "good":
                follows = {"previous_response_id": response(events)["id"]}
        assert response(events)["error"]["code"] == "invalid_prompt"
        again = await ask(peer, input="context, fine", **follows)
        assert "good" in str(context(again))
        # Six items of the client's (fine, tool, good, tool, the phrase, fine), and the tools.
        assert served.counts.checks["g", "input"] == 7


@pytest.mark.needs("resumable", "events")
async def test_who_reads_the_events_again_reads_no_more_than_the_first_one(wire: Wire) -> None:
    async with guarded() as served, wire(served) as peer:
        events = await ask(peer, input="text", resumable=True, store=True)
        assert response(events)["status"] == "incomplete"
        again = await peer.read(response(events)["id"])
        assert [event["type"] for event in again] == [event["type"] for event in events]
        assert not leaked(again)


@pytest.mark.needs("connection")
@LOOKS
async def test_each_item_of_200_turns_is_read_once(wire: Wire, kind: str) -> None:
    async with guarded(kind) as served, wire(served) as peer:
        previous = None
        for number in range(200):
            members = {"previous_response_id": previous, "instructions": "Be brief."}
            previous = response(await ask(peer, input=f"fine {number}", **members))["id"]
        # Instructions once, each message once on its way in, each answer once on its way out.
        assert served.counts.checks["g", "input"] == 201
        assert served.counts.checks["g", "output"] == 200
        assert not served.counts.hits
        assert all(record.times.phases()["guard"] > 0 for record in served.records)


async def test_input_that_is_compacted_is_read_first(wire: Wire) -> None:
    async with guarded() as served, wire(served) as peer:
        # What a peer of each transport makes of an answer that is no window.
        with pytest.raises((AssertionError, grpc.aio.AioRpcError), match=REFUSED):
            await peer.compact(model="scripted", input=f"so {PHRASE}")
        assert [row.kind for row in served.rows] == []
        window = await peer.compact(model="scripted", input="fine")
        after = await ask(peer, input=[*window["output"], {"role": "user", "content": "fine"}])
        assert response(after)["status"] == "completed"


@pytest.mark.apart("nothing is sealed twice the same")
@pytest.mark.needs("context_management")
@pytest.mark.parametrize("store", [True, False])
async def test_a_history_that_is_folded_into_a_summary_is_read_as_any_answer(
    wire: Wire, store: bool
) -> None:
    rules = [
        {
            "id": "folded",
            "when": {"user_contains": INSTRUCTION[:40]},
            "emit": {"type": "message", "text": TEXT},
        },
        *SCRIPT["rules"],
    ]
    script = {**SCRIPT, "rules": rules}
    guard = PatternGuard("g", [PHRASE])
    async with (
        serve(script, guards=[guard], compaction="summary") as served,
        wire(served) as peer,
    ):
        first = response(await ask(peer, input="fine " * 1200, store=True))
        events = await ask(
            peer,
            previous_response_id=first["id"],
            input="fine context",
            context_management=[{"type": "compaction", "compact_threshold": 1000}],
            store=store or not peer.remembers,
        )
        assert response(events)["status"] == "completed"
        assert response(events)["output"][0]["type"] == "compaction"
        assert "It is said." in json.dumps(context(events))
        assert not leaked(events)
        assert served.counts.hits == {("g", "output"): 1}
