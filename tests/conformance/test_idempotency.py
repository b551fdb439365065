"""A key makes one response of creates that say the same, however they come."""

import asyncio
import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import ClientSession

from tests.conformance.server import serve
from tests.conformance.wire import WIRES, Json, Wire, ask, collect, response, text
from tests.support.server_process import ServerProcess, serving, write_script

SCRIPT: Json = {
    "models": ["scripted", "other"],
    "rules": [
        {"id": "fail", "when": {"user_contains": "fail"}, "emit": {
            "type": "error", "status": 503, "code": "server_is_overloaded",
            "message": "Too much.", "after_tokens": 1}},
        {"id": "context", "when": {"user_contains": "context"}, "emit": {
            "type": "message", "text": "{context}"}},
        # A pause of its own between them: what comes after it is another step.
        {"id": "count", "emit": [
            {"type": "message", "text": "one two three"},
            {"type": "stall", "seconds": 0.01},
            {"type": "message", "text": "four five six"}]},
    ],
}  # fmt: skip
CREATE: Json = {"type": "response.create", "model": "scripted", "input": "count"}


async def test_the_same_create_again_is_the_same_response(wire: Wire) -> None:
    async with serve(SCRIPT) as served, wire(served) as peer, wire(served) as other:
        first = await ask(peer, input="count", idempotency_key="k")
        again = await ask(peer, input="count", idempotency_key="k")
        elsewhere = await ask(other, input="count", idempotency_key="k")
        assert first == again == elsewhere
        assert text(first) == "one two threefour five six"
        assert served.engine.samplings == 1
        assert [row.response_id for row in served.rows] == [response(first)["id"]]


async def test_another_body_under_the_key_is_a_conflict_and_runs_nothing(wire: Wire) -> None:
    async with serve(SCRIPT) as served, wire(served) as peer:
        await ask(peer, input="count", idempotency_key="k")
        for members in ({"input": "other"}, {"model": "other"}, {"temperature": 1.5}):
            create = {"input": "count", "idempotency_key": "k", **members}
            (refused,) = await ask(peer, **create)
            assert (refused["type"], refused["status"]) == ("error", 409)
            assert refused["error"]["code"] == "idempotency_conflict"
        assert (await ask(peer, input="count"))[-1]["type"] == "response.completed"
        assert served.engine.samplings == 2
        assert len(served.rows) == 2


@pytest.mark.apart("two peers hear the same events side by side")
async def test_a_create_that_comes_again_while_it_runs_reads_along(wire: Wire) -> None:
    async with serve(SCRIPT) as served, wire(served) as peer, wire(served) as other:
        served.engine.pause_after = 3
        create = {**CREATE, "store": not peer.remembers, "idempotency_key": "k"}
        await peer.send(create)
        await served.signal.until(lambda: served.engine.said >= 3)
        reading = asyncio.ensure_future(ask(other, input="count", idempotency_key="k"))
        served.engine.go.set()
        assert await collect(peer) == await reading
        assert served.engine.samplings == 1
        assert len(served.rows) == 1


@pytest.mark.needs("events")
@pytest.mark.apart("how many deltas had come before the cut differs")
async def test_rc_04_a_create_that_comes_again_after_a_cut_has_every_event(wire: Wire) -> None:
    """RC-04: sent, and unknown what became of it: with a key it is safe to send again."""

    async with serve(SCRIPT) as served:
        served.engine.pause_after = 3
        async with wire(served) as peer:
            create = {**CREATE, "store": not peer.remembers, "idempotency_key": "k"}
            await peer.send(create)
            assert (await peer.receive())["type"] == "response.created"
            await served.signal.until(lambda: served.engine.said >= 3)
            await peer.abort()
        async with wire(served) as peer:
            reading = asyncio.ensure_future(ask(peer, input="count", idempotency_key="k"))
            served.engine.go.set()
            whole = await reading
            numbers = [event["sequence_number"] for event in whole]
            assert numbers == list(range(len(whole)))
            assert text(whole) == "one two threefour five six"
        assert served.engine.samplings == 1
        assert [row.outcome for row in served.rows] == ["completed"]


async def test_what_was_refused_leaves_its_key_free(wire: Wire) -> None:
    async with serve(SCRIPT) as served, wire(served) as peer:
        missing = {"previous_response_id": "resp_no", "idempotency_key": "k"}
        (refused,) = await ask(peer, input="count", **missing)
        assert refused["error"]["code"] == "previous_response_not_found"
        whole = await ask(peer, input="count", idempotency_key="k")
        assert whole[-1]["type"] == "response.completed"


@pytest.mark.needs("connection", "append")
async def test_a_replay_leaves_the_lane_as_it_was(wire: Wire) -> None:
    async with serve(SCRIPT) as served, wire(served) as peer:
        await ask(peer, input="count", idempotency_key="k")
        latest = await ask(peer, input="context")
        await ask(peer, input="count", idempotency_key="k")
        await peer.send({"type": "response.append", "input": "context again"})
        after = await collect(peer)
        assert response(after)["previous_response_id"] == response(latest)["id"]


@pytest.mark.parametrize("maker", ["grpc", "websocket", "sse", "http"])
async def test_a_key_means_the_same_over_every_transport(maker: str) -> None:
    async with serve(SCRIPT) as served:
        members = {"input": "count", "store": True, "idempotency_key": "k"}
        async with WIRES[maker](served) as peer:
            first = await ask(peer, **members)
        for name in ("grpc", "websocket", "sse", "http"):
            async with WIRES[name](served) as peer:
                again = await ask(peer, **members)
                assert response(again) == response(first), name
                assert response(again)["id"] == response(first)["id"]
        assert served.engine.samplings == 1
        assert len(served.rows) == 1


@pytest.fixture(scope="module")
def owned(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server with two owners."""
    folder = tmp_path_factory.mktemp("owners")
    keys = folder / "keys.toml"
    rows = [
        f'[[keys]]\nhash = "sha256:{hashlib.sha256(name.encode()).hexdigest()}"\nowner = "{name}"'
        for name in ("ann", "bob")
    ]
    keys.write_text("\n".join(rows))
    script = write_script(Path(folder), **SCRIPT)
    with serving("--script", script, "--api-keys", str(keys)) as server:
        yield server


async def test_a_key_of_another_owner_is_another_key(owned: ServerProcess) -> None:
    url = f"http://{owned.http}/v1/responses"
    body = {"model": "scripted", "input": "count"}

    async def made(owner: str) -> Any:
        headers = {"authorization": f"Bearer {owner}", "idempotency-key": "k"}
        async with (
            ClientSession(headers=headers) as session,
            session.post(url, json=body) as answer,
        ):
            assert answer.status == 200
            return (await answer.json())["id"]

    anns, bobs = await made("ann"), await made("bob")
    assert anns != bobs
    assert (await made("ann"), await made("bob")) == (anns, bobs)
