"""Lanes: first in first out on each, side by side across them, bounded in all."""

from typing import Any

import pytest

from tests.conformance.server import serve
from tests.conformance.wire import Json, Peer, Wire, ask, response, text
from tieline_server.core.create.limits import Limits

PACED: Json = {
    "models": ["scripted"],
    "rules": [
        {
            "id": "slow",
            "when": {"user_contains": "slow"},
            "pace": {"ttft_ms": 150},
            "emit": {"type": "message", "text": "slow answer"},
        },
        {
            "id": "stall",
            "when": {"user_contains": "stall"},
            "emit": [{"type": "stall", "seconds": 600}],
        },
        {"id": "echo", "emit": {"type": "message", "text": "{user}"}},
    ],
}


async def _create(peer: Peer, lane: str | None = None, **members: Any) -> None:
    create = {"type": "response.create", "model": "scripted", "store": False, **members}
    await peer.send(create if lane is None else {**create, "stream_id": lane})


async def _until(peer: Peer, count: int, kind: str = "response.completed") -> list[Json]:
    """Events up to the ``count``-th of this type."""
    seen: list[Json] = []
    while count:
        seen.append(await peer.receive())
        count -= seen[-1]["type"] == kind
    return seen


@pytest.mark.needs("lanes")
async def test_mx_03_one_lane_is_strictly_first_in_first_out(wire: Wire) -> None:
    async with serve(PACED) as served, wire(served) as peer:
        for words in ("slow one", "two", "three"):
            await _create(peer, input=words)
        events = await _until(peer, 3)

        ids = [e["response"]["id"] for e in events if e["type"] == "response.created"]
        ends = [e["response"]["id"] for e in events if e["type"] == "response.completed"]
        assert ids == ends
        # No overlap: each begins after the one before has ended.
        kinds = [e["type"] for e in events if e["type"].startswith("response.c")]
        lifecycle = [k for k in kinds if k in ("response.created", "response.completed")]
        assert lifecycle == ["response.created", "response.completed"] * 3


@pytest.mark.needs("lanes")
async def test_mx_03_lanes_overlap_and_each_event_names_its_lane(wire: Wire) -> None:
    async with serve(PACED) as served, wire(served) as peer:
        await _create(peer, "a", input="slow one")
        await _create(peer, "b", input="quick")
        events = await _until(peer, 2)

        ends = [e["stream_id"] for e in events if e["type"] == "response.completed"]
        assert ends == ["b", "a"]
        for lane in "ab":
            numbers = [e["sequence_number"] for e in events if e["stream_id"] == lane]
            assert list(range(len(numbers))) == numbers


@pytest.mark.needs("lanes")
async def test_mx_03_the_seventeenth_waits_visibly_and_starts_when_one_ends(wire: Wire) -> None:
    async with serve(PACED) as served, wire(served) as peer:
        for number in range(16):
            await _create(peer, f"lane{number}", input="stall")
        await _until(peer, 16, "response.in_progress")
        await _create(peer, "late", input="seventeenth")
        queued = [await peer.receive(), await peer.receive()]
        await peer.send({"type": "response.cancel", "stream_id": "lane3"})
        events = await _until(peer, 1)

        assert [e["type"] for e in queued] == ["response.created", "response.queued"]
        assert {e["stream_id"] for e in queued} == {"late"}
        own = [e for e in events if e["stream_id"] == "late"]
        assert own[0]["type"] == "response.in_progress"
        assert text(own) == "seventeenth"


@pytest.mark.needs("lanes")
async def test_mx_03_a_queued_create_can_be_cancelled_by_its_event_id(wire: Wire) -> None:
    async with serve(PACED) as served, wire(served) as peer:
        await _create(peer, input="slow one")
        await _create(peer, input="never", event_id="evt_never")
        await _create(peer, input="last")
        await peer.send({"type": "response.cancel", "event_id": "evt_never"})
        events = await _until(peer, 2)

        ends = [e["response"] for e in events if "response" in e and e["response"]["status"]
                in ("completed", "cancelled")]  # fmt: skip
        assert [end["status"] for end in ends] == ["completed", "cancelled", "completed"]
        assert ends[1]["usage"]["output_tokens"] == 0


@pytest.mark.apart("a refusal at once may come before what waits or behind it")
@pytest.mark.needs("lanes")
async def test_mx_03_the_queue_of_a_lane_is_bounded(wire: Wire) -> None:
    limits = Limits(queue=2)
    async with serve(PACED, limits=limits) as served, wire(served) as peer:
        for _ in range(4):
            await _create(peer, input="slow one")
        events = await _until(peer, 3)

        errors = [e for e in events if e["type"] == "error"]
        assert [(e["status"], e["error"]["code"]) for e in errors] == [(429, "queue_full")]


@pytest.mark.needs("lanes")
async def test_the_thirty_third_lane_name_is_refused_and_echoed(wire: Wire) -> None:
    async with serve(PACED) as served, wire(served) as peer:
        for number in range(32):
            await ask(peer, stream_id=f"lane{number}", input="x")
        await _create(peer, "one-too-many", input="x")
        refused = await peer.receive()
        await _create(peer, "lane0", input="known")
        events = await _until(peer, 1)

        assert refused["error"]["code"] == "websocket_stream_limit_reached"
        assert refused["stream_id"] == "one-too-many"
        assert response(events)["status"] == "completed"
