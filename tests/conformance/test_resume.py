"""A dropped line loses nothing: the events are read on, and the response goes on elsewhere."""

import asyncio
from typing import Any

import pytest

from tests.conformance.server import Served, serve
from tests.conformance.transcript import TERMINAL, renamed
from tests.conformance.wire import Json, Peer, Refused, Wire, ask, collect, output, response, text
from tieline_server.core.create.limits import Limits

PACE = {"tokens_per_second": 5000}
SCRIPT: Json = {
    "models": ["scripted"],
    "rules": [
        {
            "id": "answer",
            "when": {"last": "tool_output"},
            "emit": {"type": "message", "text": "got {output}"},
        },
        {
            "id": "call",
            "when": {"user_contains": "call"},
            "emit": {"type": "function_call", "name": "f", "arguments": {"n": 1}},
        },
        {"id": "context", "when": {"user_contains": "context"}, "emit": {
            "type": "message", "text": "{context}"}},
        # A pause of its own between them: what comes after it is another step.
        {"id": "count", "emit": [
            {"type": "message", "text": "one two three"},
            {"type": "stall", "seconds": 0.01},
            {"type": "message", "text": "four five six seven eight nine ten"}]},
    ],
    "pace": PACE,
}  # fmt: skip
CREATE: Json = {"type": "response.create", "model": "scripted", "store": False, "input": "count"}


async def begun(served: Served, peer: Peer, *, tokens: int = 3, **members: Any) -> list[Json]:
    """A resumable response that has said so many tokens and says no more until it may."""
    served.engine.pause_after = tokens
    await peer.send({**CREATE, "resumable": True, **members})
    events = [await peer.receive()]
    while "delta" not in events[-1]:
        events.append(await peer.receive())
    return events


async def resume(peer: Peer, response_id: str, after: int | None = None, **members: Any) -> None:
    """Asks for it on this line."""
    asked = {} if after is None else {"after": after}
    await peer.send({"type": "response.resume", "response_id": response_id, **asked, **members})


def numbers(events: list[Json]) -> list[int]:
    return [event["sequence_number"] for event in events]


@pytest.mark.needs("resume")
@pytest.mark.apart("how many deltas had come before the cut differs")
async def test_rc_09_after_a_cut_the_events_go_on_as_if_there_had_been_none(wire: Wire) -> None:
    """RC-09: the very numbers, each event once, and what an uncut line hears."""

    async with serve(SCRIPT) as served:
        async with wire(served) as peer:
            first = await begun(served, peer)
            await peer.abort()
        async with wire(served) as peer:
            await resume(peer, response(first[:1])["id"], first[-1]["sequence_number"])
            served.engine.go.set()
            rest = await collect(peer)
            whole = [*first, *rest]
            assert numbers(whole) == list(range(len(whole)))
            # The lane has it: it is gone on with as if it had begun here.
            follow = await ask(peer, input="context", previous_response_id=response(whole)["id"])
            assert "nine ten" in text(follow)
            uncut = await ask(peer, input="count", resumable=True)
            assert renamed(whole) == renamed(uncut)
        assert served.engine.samplings == 3
        assert [row.outcome for row in served.rows] == ["completed"] * 3


@pytest.mark.needs("resume", "append", "lanes")
async def test_a_held_turn_is_resumed_and_answered_on_another_line(wire: Wire) -> None:
    async with serve(SCRIPT) as served:
        async with wire(served) as peer:
            held = await ask(peer, input="call", append=True, resumable=True)
            assert held[-1]["type"] == "response.done"
            await peer.abort()
        async with wire(served) as peer:
            made = response(held)
            await resume(peer, made["id"], 1, stream_id="b")
            again = await collect(peer, lane="b")
            assert [{**event, "stream_id": "b"} for event in held[2:]] == again
            (call,) = made["output"]
            items = [output(call["call_id"], "42")]
            await peer.send({"type": "response.append", "input": items, "stream_id": "b"})
            rest = await collect(peer, lane="b")
            assert rest[-1]["type"] == "response.completed"
            assert text(rest) == "got 42"
            assert numbers([*held, *rest]) == list(range(len(held) + len(rest)))
        assert [row.outcome for row in served.rows] == ["completed"]


@pytest.mark.needs("resume", "append")
@pytest.mark.apart("how many deltas had come before the second line came differs")
async def test_a_second_resume_takes_over_and_the_first_reader_is_told(wire: Wire) -> None:
    async with serve(SCRIPT) as served, wire(served) as one, wire(served) as two:
        first = await begun(served, one)
        made = response(first[:1])["id"]
        await resume(two, made)
        told = await one.receive()
        while told["type"] != "error":
            told = await one.receive()
        assert (told["status"], told["error"]["code"]) == (409, "resumed_elsewhere")
        served.engine.go.set()
        whole = await collect(two)
        assert numbers(whole) == list(range(len(whole)))
        assert whole[: len(first)] == first
        # The first reader's lane is free, and has nothing to go on from.
        await one.send({"type": "response.append", "input": "and?"})
        (refused,) = await collect(one)
        assert refused["error"]["code"] == "nothing_to_append"
        gone = await ask(one, input="context", previous_response_id=made)
        assert gone[-1]["error"]["code"] == "previous_response_not_found"
        assert served.engine.samplings == 1
        assert [row.outcome for row in served.rows] == ["completed"]


@pytest.mark.needs("resume")
async def test_a_resume_behind_the_end_is_the_terminal_event_alone(wire: Wire) -> None:
    async with serve(SCRIPT) as served, wire(served) as peer:
        whole = await ask(peer, input="count", resumable=True)
        for after in (whole[-1]["sequence_number"], 10_000):
            await resume(peer, response(whole)["id"], after)
            assert await collect(peer) == whole[-1:]
        await resume(peer, response(whole)["id"], 2)
        assert await collect(peer) == whole[3:]
        assert served.engine.samplings == 1


@pytest.mark.needs("resume")
async def test_what_cannot_be_resumed_is_one_error_and_the_line_lives(wire: Wire) -> None:
    window = Limits(resume_window=0.0)
    async with serve(SCRIPT, limits=window) as served, wire(served) as peer:
        plain = response(await ask(peer, input="count", store=True))["id"]
        over = response(await ask(peer, input="count", resumable=True))["id"]
        codes = []
        for named in (plain, over, "resp_no", None):
            await peer.send({"type": "response.resume", "response_id": named, "event_id": "e"})
            (refused,) = await collect(peer)
            codes.append((refused["status"], refused["error"]["code"]))
        assert codes == [
            (400, "not_resumable"),
            (404, "response_not_found"),
            (404, "response_not_found"),
            (400, "missing_required_parameter"),
        ]
        assert (await ask(peer, input="count"))[-1]["type"] == "response.completed"


@pytest.mark.needs("resume", "lanes")
@pytest.mark.apart("how many deltas had come before the second line came differs")
async def test_a_lane_that_is_busy_takes_no_response(wire: Wire) -> None:
    async with serve(SCRIPT) as served, wire(served) as one, wire(served) as two:
        first = await begun(served, one)
        await two.send({**CREATE, "stream_id": "b"})
        assert (await two.receive())["type"] == "response.created"
        await resume(two, response(first[:1])["id"], stream_id="b")
        event = await two.receive()
        while event["type"] != "error":
            event = await two.receive()
        assert (event["status"], event["error"]["code"]) == (409, "lane_busy")
        # Nothing has moved.
        served.engine.go.set()
        rest = await collect(one)
        assert rest[-1]["type"] == "response.completed"
        assert (await collect(two, lane="b"))[-1]["type"] == "response.completed"


@pytest.mark.needs("resumable")
@pytest.mark.apart("what is read by id is not heard on the line")
async def test_rc_09_the_events_are_read_again_by_the_responses_id(wire: Wire) -> None:
    """RC-09: by a further reader, while it is made and after, on a connection of its own."""

    async with serve(SCRIPT) as served, wire(served) as peer, wire(served) as reader:
        served.engine.pause_after = 3
        await peer.send({**CREATE, "resumable": True})
        await served.signal.until(lambda: served.engine.said >= 3)
        made = "resp_" + f"{_made(served):032d}"
        reading = asyncio.ensure_future(reader.read(made, 3))
        standing = await reader.retrieve(made)
        assert (standing["id"], standing["status"]) == (made, "in_progress")
        assert standing["usage"]["output_tokens"] >= 3
        served.engine.go.set()
        rest = await reading
        whole = await reader.read(made)
        assert numbers(whole) == list(range(len(whole)))
        assert whole[4:] == rest
        heard = await collect(peer)
        assert response(heard) == response(whole) == await reader.retrieve(made)
        assert await reader.read(made, len(whole) + 7) == whole[-1:]
        assert all("stream_id" not in event for event in whole)
        for named, status in (("resp_no", 404), (await _plain(peer), 400)):
            with pytest.raises(Refused) as refused:
                await reader.read(named)
            assert refused.value.status == status


def _made(served: Served) -> int:
    """The number in the id of the only response that is kept."""
    (kept,) = served.services.running.logs._by_id
    return int(kept.removeprefix("resp_"))


async def _plain(peer: Peer) -> str:
    """A stored response whose events nobody asked to keep."""
    made: str = response(await ask(peer, input="count", store=True))["id"]
    return made


@pytest.mark.needs("resumable", "events")
@pytest.mark.apart("how many deltas had come before the cut differs")
async def test_a_resumable_response_outlives_its_connection_for_its_window_only(wire: Wire) -> None:
    window = Limits(resume_window=0.05)
    async with serve(SCRIPT, limits=window) as served:
        async with wire(served) as peer:
            first = await begun(served, peer)
            await peer.abort()
        await served.signal.until(lambda: len(served.rows) == 1)
        (row,) = served.rows
        assert row.outcome == "cancelled"
        assert row.output_tokens >= 3
        assert not [event for event in first if event["type"] in TERMINAL]
