"""Over every transport: what an upstream with the Responses API has said reaches the client."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tests.conformance.server import Served
from tests.conformance.server import serve as serve_behind
from tests.conformance.wire import Wire, ask, response
from tests.support.upstream_server import MODEL, Hang, Part, UpstreamServer, streamed, upstream
from tests.support.upstream_shapes import RESPONSES, added, ended, item, said, text

SEARCH = {"id": "ws_1", "status": "completed", "action": {"type": "search", "query": "q"}}
NOTE = {"type": "url_citation", "url": "http://a/", "title": "A", "start_index": 0, "end_index": 4}


@asynccontextmanager
async def before(parts: Sequence[Part]) -> AsyncIterator[tuple[UpstreamServer, Served]]:
    """An upstream that says this in every answer, and a server in front of it."""
    async with upstream(paths=("responses",)) as server:
        server.otherwise = streamed(*parts)
        async with serve_behind(upstream=(server.url, "key"), how=RESPONSES.how) as served:
            server.bodies.clear()
            yield server, served


@pytest.mark.needs("events", "custom_tools")
async def test_items_of_tools_that_ran_there_are_output_items_and_stay_in_the_chain(
    wire: Wire,
) -> None:
    parts = [
        added("web_search_call", **{**SEARCH, "status": "in_progress"}),
        said("web_search_call.searching", item_id="ws_1", output_index=0),
        item("web_search_call", **SEARCH),
        text("fine"),
        said("output_text.annotation.added", annotation=NOTE),
        item("message", content=[{"type": "output_text", "text": "fine", "annotations": [NOTE]}]),
        ended(used=(7, 9)),
    ]

    async with before(parts) as (server, served), wire(served) as peer:
        events = await ask(peer, model=MODEL, input="one", store=True)
        made = response(events)
        search, message = made["output"]
        assert search == {"type": "web_search_call", **SEARCH}
        assert message["content"][0]["annotations"] == [NOTE]
        kinds = [each["type"].removeprefix("response.") for each in events[2:-1]]
        assert kinds[:2] == ["output_item.added", "output_item.done"]
        assert "output_text.annotation.added" in kinds
        again = await ask(peer, model=MODEL, input="two", previous_response_id=made["id"])
        assert response(again)["status"] == "completed"
        assert [each["role"] for each in server.bodies[-1]["input"]] == [
            "user",
            "assistant",
            "user",
        ]


async def test_up_01_the_phase_of_a_message_is_kept_both_ways(wire: Wire) -> None:
    parts = [
        added("message", role="assistant", phase="commentary", content=[]),
        text("one"),
        item("message", phase="commentary", content=[{"type": "output_text", "text": "one"}]),
        text("two"),
        ended(),
    ]

    async with before(parts) as (server, served), wire(served) as peer:
        made = response(await ask(peer, model=MODEL, input="one", store=True))
        assert [each.get("phase") for each in made["output"]] == ["commentary", None]
        again = [{"role": "user", "content": "one"}, *made["output"]]
        for message in again:
            message.pop("id", None)
        for members in (
            {"previous_response_id": made["id"], "input": "go on"},
            {"input": again},
        ):
            await ask(peer, model=MODEL, **members)
            told = server.bodies[-1]["input"]
            assert [each.get("phase") for each in told[:3]] == [None, "commentary", None]


@pytest.mark.parametrize("second", ["\ude00b", "b"])
async def test_up_03_an_emoji_in_two_chunks_is_one_and_half_of_one_is_u_fffd(
    wire: Wire, second: str
) -> None:
    parts = [text("a\ud83d"), text(second), ended()]

    async with before(parts) as (_, served), wire(served) as peer:
        made = response(await ask(peer, model=MODEL, input="one"))
        assert made["status"] == "completed"
        whole = "a\U0001f600b" if second != "b" else "a\ufffdb"
        assert made["output"][0]["content"][0]["text"] == whole


async def test_up_02_null_in_an_item_is_as_if_absent(wire: Wire) -> None:
    items = [
        {"role": "user", "content": "one"},
        {"type": "reasoning", "id": None, "summary": []},
        {
            "type": "reasoning",
            "id": None,
            "summary": [],
            "encrypted_content": None,
            "content": None,
        },
        {"type": "message", "role": "assistant", "id": None, "phase": None, "content": "two"},
        {"role": "user", "content": "three"},
    ]

    async with before([text("fine"), ended()]) as (server, served), wire(served) as peer:
        made = response(await ask(peer, model=MODEL, input=items))
        assert made["status"] == "completed"
        told = server.bodies[-1]["input"]
        assert [each["content"] for each in told] == ["one", "two", "three"]


async def test_up_04_a_log_probability_of_minus_infinity_fails_no_turn(wire: Wire) -> None:
    entry = {"token": "a", "bytes": [97], "logprob": -0.5, "top_logprobs": []}
    never = {**entry, "logprob": float("-inf")}
    parts = [said("output_text.delta", delta="aa", logprobs=[entry, never]), ended()]

    async with before(parts) as (_, served), wire(served) as peer:
        include = ["message.output_text.logprobs"]
        made = response(await ask(peer, model=MODEL, input="one", include=include))
        assert made["status"] == "completed"
        assert made["output"][0]["content"][0]["logprobs"] == [entry]


async def test_up_05_no_tokens_are_said_to_be_written_to_a_cache_unless_that_is_stated(
    wire: Wire,
) -> None:
    details = {"cached_tokens": 40, "cache_write_tokens": 0}
    used = {"input_tokens": 100, "output_tokens": 1, "input_tokens_details": details}
    parts = [
        text("fine"),
        said("completed", response={"id": "r", "status": "completed", "usage": used}),
    ]

    async with before(parts) as (_, served), wire(served) as peer:
        made = response(await ask(peer, model=MODEL, input="one"))
        assert made["usage"]["input_tokens_details"] == details


@pytest.mark.apart("the union of Open Responses is closed")
async def test_items_that_a_profile_does_not_know_are_left_out_there(wire: Wire) -> None:
    parts = [item("web_search_call", **SEARCH), text("fine"), ended()]

    async with before(parts) as (_, served), wire(served) as peer:
        made = response(await ask(peer, model=MODEL, input="one"))
        kinds = [each["type"] for each in made["output"]]
        known = "custom_tools" in wire.offers
        assert kinds == (["web_search_call", "message"] if known else ["message"])


async def test_an_upstream_that_goes_on_past_the_limit_ends_the_response_there(wire: Wire) -> None:
    parts: list[Part] = [*(text(f" word{at}") for at in range(40)), Hang()]

    async with before(parts) as (server, served), wire(served) as peer:
        made = response(await ask(peer, model=MODEL, input="one", max_output_tokens=16))
        assert made["status"] == "incomplete"
        assert made["incomplete_details"] == {"reason": "max_output_tokens"}
        assert made["usage"]["output_tokens"] == 16
        told: Any = made["output"][0]["content"][0]["text"]
        assert told == "".join(f" word{at}" for at in range(16))
        await server.signal.until(lambda: server.gone == 1)
