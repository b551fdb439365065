"""A response's events over HTTP once more, from any of them on; and keys that name a create."""

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

import pytest

from tests.support.grpc_engine import INPUT_TOKENS, Step, gated, text
from tests.support.http_client import Connection
from tests.support.http_harness import Served, serve
from tests.support.signal import PATIENCE
from tieline_server.core.deltas import Accepted, Finish, TextDelta
from tieline_server.core.effects import Prompt

PATH = "/v1/responses"
CREATE = {"model": "tiny", "input": "hi"}
STREAM = {**CREATE, "stream": True}
BACKGROUND = {**CREATE, "background": True}


async def events_of(served: Served, path: str) -> list[dict[str, Any]]:
    """The events of a stream on a connection of its own."""
    async with served.connection() as client:
        client.request("GET", path)
        head = await client.head()
        assert head.status == 200
        assert head.headers["content-type"] == "text/event-stream; charset=utf-8"
        return await client.events()


async def next_of(client: Connection) -> str:
    """The id of the response whose stream begins."""
    async for chunk in client.chunks():
        return chunk.partition(b'"id":"')[2].partition(b'"')[0].decode()
    raise AssertionError("the stream has ended")


@pytest.mark.parametrize("store", [True, False])
async def test_rc_09_a_stream_goes_on_behind_any_event_with_the_same_numbers(store: bool) -> None:
    """RC-09: cut after event 3, read on from there; each event once, also when it has ended."""
    gate = asyncio.Event()

    async def answer(prompt: Prompt) -> AsyncGenerator[Step, None]:
        yield [Accepted(input_tokens=INPUT_TOKENS), TextDelta("a")]
        await gate.wait()
        yield [TextDelta("b"), TextDelta("c"), Finish()]

    async with serve(answer) as served:
        async with served.connection() as client:
            client.request("POST", PATH, {**STREAM, "resumable": True, "store": store})
            await client.head()
            made = await next_of(client)
            client.reset()
        reading = asyncio.create_task(
            events_of(served, f"{PATH}/{made}?stream=true&starting_after=3")
        )
        gate.set()
        rest = await reading
        whole = await events_of(served, f"{PATH}/{made}?stream=true")
        assert [event["sequence_number"] for event in whole] == list(range(len(whole)))
        assert whole[4:] == rest
        assert whole[-1]["type"] == "response.completed"
        assert whole[-1]["response"]["output"][0]["content"][0]["text"] == "abc"
        for beyond in (len(whole) - 1, len(whole) + 5, 10**30):
            last = await events_of(served, f"{PATH}/{made}?stream=1&starting_after={beyond}")
            assert last == whole[-1:]
        assert served.engine.started == 1
        assert [record.outcome for record in served.records] == ["completed"]


@pytest.mark.parametrize(
    ("query", "param"),
    [
        ("stream=true&starting_after=-1", "starting_after"),
        ("stream=true&starting_after=", "starting_after"),
        ("stream=true&starting_after=one", "starting_after"),
        ("stream=true&starting_after=1.5", "starting_after"),
        ("stream=true&starting_after=%C2%B2", "starting_after"),
        ("starting_after=-1", "starting_after"),
        ("stream=maybe", "stream"),
    ],
)
async def test_what_is_no_place_in_a_stream_is_a_400(query: str, param: str) -> None:
    async with serve() as served, served.connection() as client:
        made = (await client.ask("POST", PATH, {**CREATE, "resumable": True})).json["id"]
        reply = await client.ask("GET", f"{PATH}/{made}?{query}")
        assert (reply.status, reply.error["param"]) == (400, param)


async def test_a_reader_that_leaves_ends_nothing_and_a_silent_stream_says_that_it_lives() -> None:
    gate = asyncio.Event()
    async with serve(gated(gate), heartbeat=0.05) as served, served.connection() as owner:
        owner.request("POST", PATH, {**STREAM, "resumable": True})
        await owner.head()
        made = await next_of(owner)
        async with served.connection() as reader:
            reader.request("GET", f"{PATH}/{made}?stream=true")
            await reader.head()
            async for chunk in reader.chunks():
                if chunk.startswith(b": "):
                    break
            reader.reset()
        gate.set()
        await served.until(lambda: len(served.records) == 1)
        assert served.records[0].outcome == "completed"


async def test_a_reader_that_takes_nothing_is_cut_and_the_response_goes_on() -> None:
    answer = text(["x" * 1024] * 4096)
    async with serve(answer, write_timeout=0.2) as served:
        async with served.connection() as owner:
            made = (await owner.ask("POST", PATH, BACKGROUND)).json["id"]
        await served.until(lambda: len(served.records) == 1)
        async with served.connection(receive_buffer=4096) as stuck:
            stuck.request("GET", f"{PATH}/{made}?stream=true")
            assert (await stuck.head()).status == 200
            assert len(served.server.live) == 1
            async with asyncio.timeout(PATIENCE):
                await served.server.live.empty()
        whole = await events_of(served, f"{PATH}/{made}?stream=true")
        assert whole[-1]["type"] == "response.completed"


async def test_a_key_is_one_response_however_often_it_is_asked_for() -> None:
    async with serve() as served, served.connection() as client:
        key = {"idempotency_key": "k-1"}
        first = await client.ask("POST", PATH, CREATE, **key)
        again = await client.ask("POST", PATH, {"input": "hi", "model": "tiny"}, **key)
        member = await client.ask("POST", PATH, {**CREATE, "idempotency_key": "k-1"})
        both = await client.ask("POST", PATH, {**CREATE, "idempotency_key": "k-1"}, **key)
        assert first.status == 200
        assert first.json == again.json == member.json == both.json
        client.request("POST", PATH, STREAM, headers={"Idempotency-Key": "k-1"})
        assert (await client.head()).status == 200
        events = await client.events()
        assert [event["sequence_number"] for event in events] == list(range(10))
        assert events[-1]["response"] == first.json
        other = await client.ask("POST", PATH, {**CREATE, "input": "other"}, **key)
        assert (other.status, other.error["code"]) == (409, "idempotency_conflict")
        assert served.engine.started == 1
        assert [record.outcome for record in served.records] == ["completed", "refused"]


@pytest.mark.parametrize(
    ("headers", "member"),
    [
        (["Idempotency-Key: "], None),
        (["Idempotency-Key: " + "k" * 257], None),
        (["Idempotency-Key: two words"], None),
        (["Idempotency-Key: \u00e4"], None),
        (["Idempotency-Key: one", "Idempotency-Key: two"], None),
        (["Idempotency-Key: one"], "two"),
    ],
)
async def test_what_is_no_key_is_a_400_and_nothing_runs(
    headers: list[str], member: str | None
) -> None:
    async with serve() as served, served.connection() as client:
        body = b'{"model":"tiny","input":"hi","idempotency_key":"%s"}' % (member or "").encode()
        if member is None:
            body = b'{"model":"tiny","input":"hi"}'
        lines = [
            f"POST {PATH} HTTP/1.1",
            "Host: localhost",
            "Content-Type: application/json",
            f"Content-Length: {len(body)}",
            *headers,
        ]
        client.send("\r\n".join([*lines, "", ""]).encode() + body)
        reply = await client.reply()
        assert reply.status == 400
        assert (reply.error["code"], reply.error["param"]) == (
            "invalid_value",
            "idempotency_key",
        )
        assert served.engine.started == 0
