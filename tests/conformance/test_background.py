"""Responses in the background: nobody need be connected while they are made."""

import asyncio

import pytest

from tests.conformance.server import Served, serve
from tests.conformance.wire import Json, Refused, Wire, ask, output, response, text
from tieline_server.runtime import ended

SCRIPT: Json = {
    "models": ["scripted"],
    "pace": {"tokens_per_second": 5000},
    "rules": [
        {"id": "context", "when": {"user_contains": "context"}, "emit": {
            "type": "message", "text": "{context}"}},
        # A pause of its own between them: what comes after it is another step.
        {"id": "count", "emit": [
            {"type": "message", "text": "one two three"},
            {"type": "stall", "seconds": 0.01},
            {"type": "message", "text": "four five six seven eight nine ten"}]},
    ],
}  # fmt: skip


async def over(served: Served) -> None:
    """Returns when the only response has ended."""
    await served.signal.until(lambda: served.engine.samplings == 1)
    kept = served.services.running.logs
    (only,) = kept._by_id.values()
    await ended(only)


@pytest.mark.needs("background")
@pytest.mark.apart("what is made in the background is not heard")
async def test_it_is_acknowledged_as_queued_and_read_by_its_id(wire: Wire) -> None:
    async with serve(SCRIPT) as served:
        served.engine.pause_after = 3
        async with wire(served) as peer:
            begun = await peer.begin(input="count")
            assert (begun["status"], begun["background"]) == ("queued", True)
            assert (begun["output"], begun["usage"]) == ([], None)
        async with wire(served) as peer:
            await served.signal.until(lambda: served.engine.said >= 3)
            standing = await peer.retrieve(begun["id"])
            assert standing["status"] == "in_progress"
            assert standing["usage"]["output_tokens"] >= 3
            reading = asyncio.ensure_future(peer.read(begun["id"]))
            served.engine.go.set()
            events = await reading
            kinds = [event["type"] for event in events]
            assert kinds[:3] == [
                "response.created",
                "response.queued",
                "response.in_progress",
            ]
            assert [event["sequence_number"] for event in events] == list(range(len(events)))
            whole = await peer.retrieve(begun["id"])
            assert response(events) == whole
            assert (whole["status"], whole["usage"]["total_tokens"] > 0) == ("completed", True)
            assert await peer.read(begun["id"], 4) == events[5:]
            again = await ask(peer, input="context", previous_response_id=begun["id"])
            assert "nine ten" in text(again)
        assert [row.outcome for row in served.rows] == ["completed", "completed"]


@pytest.mark.needs("background")
@pytest.mark.apart("what is made in the background is not heard")
async def test_it_is_cancelled_by_its_id_as_often_as_one_likes(wire: Wire) -> None:
    async with serve(SCRIPT) as served, wire(served) as peer:
        served.engine.pause_after = 3
        begun = await peer.begin(input="count")
        await served.signal.until(lambda: served.engine.said >= 3)
        cut = await peer.cancel(begun["id"])
        assert (cut["status"], cut["incomplete_details"]) == ("cancelled", None)
        assert cut["usage"]["output_tokens"] >= 3
        assert await peer.cancel(begun["id"]) == cut == await peer.retrieve(begun["id"])
        last = (await peer.read(begun["id"]))[-1]
        assert (last["type"], last["response"]) == ("response.incomplete", cut)
        assert [row.outcome for row in served.rows] == ["cancelled"]


REFUSED: list[tuple[Json, int, str]] = [
    ({"store": False}, 400, "invalid_value"),
    ({"model": "none"}, 404, "model_not_found"),
    ({"previous_response_id": "resp_no"}, 400, "previous_response_not_found"),
    ({"input": [output("call_no", "x")]}, 400, "tool_call_not_found"),
    ({"append": True}, 400, "unsupported_parameter"),
    ({"temperature": 7}, 400, "decimal_above_max_value"),
]


@pytest.mark.needs("background")
@pytest.mark.parametrize(("members", "status", "code"), REFUSED, ids=str)
async def test_sr_07_what_is_wrong_with_it_is_said_at_once_and_nothing_is_left(
    wire: Wire, members: Json, status: int, code: str
) -> None:
    """SR-07: never a zombie id."""

    async with serve(SCRIPT) as served, wire(served) as peer:
        with pytest.raises(Refused) as refused:
            await peer.begin(**{"input": "count", **members})
        assert (refused.value.status, refused.value.code) == (status, code)
        assert not served.rows
        assert not len(served.services.running.logs)


@pytest.mark.needs("connection")
async def test_a_line_is_no_place_for_it(wire: Wire) -> None:
    async with serve(SCRIPT) as served, wire(served) as peer:
        for stored in (True, False):
            (refused,) = await ask(peer, input="count", background=True, store=stored)
            assert (refused["status"], refused["error"]["param"]) == (400, "background")
            assert refused["error"]["code"] == "unsupported_parameter"
            assert "send it as a POST" in refused["error"]["message"]
        assert served.engine.samplings == 0


@pytest.mark.needs("background")
@pytest.mark.apart("what is made in the background is not heard")
async def test_sr_02_what_was_kept_of_it_goes_with_its_window(wire: Wire) -> None:
    """SR-02: logs of events are no leak; the response itself is the store's."""

    async with serve(SCRIPT) as served, wire(served) as peer:
        begun = await peer.begin(input="count")
        await over(served)
        services = served.services
        assert services.running.logs.size > 0
        services.running.logs.forget("local", begun["id"])
        assert (len(services.running.logs), services.running.logs.size) == (0, 0)
