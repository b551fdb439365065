"""Responses in the background: durable before they are acknowledged, and nobody need stay."""

import asyncio
from typing import Any

import pytest

from tests.support.grpc_engine import INPUT_TOKENS, gated
from tests.support.http_client import Connection, Reply
from tests.support.http_harness import Served, serve
from tieline_server.core.create.profile import PROFILES
from tieline_server.storage.base import RunningResponse
from tieline_server.storage.memory import MemoryJournal

PATH = "/v1/responses"
BACKGROUND = {"model": "tiny", "input": "hi", "background": True}


class Slow(MemoryJournal):
    """Says that a response runs once it is let, or that it cannot be said."""

    def __init__(self, *, fails: bool = False) -> None:
        super().__init__(now=lambda: 0.0)
        self.gate = asyncio.Event()
        self.fails = fails

    async def begin(self, response: RunningResponse) -> None:
        """As the journal's own, when the gate is open."""
        await self.gate.wait()
        if self.fails:
            raise OSError("full")
        await super().begin(response)


async def client_of(served: Served) -> Reply:
    """An answer to somebody else, for which the server had time enough."""
    async with served.connection() as client:
        return await client.ask("GET", "/healthz")


async def ended(served: Served, client: Connection, response_id: str) -> dict[str, Any]:
    """The response once it has ended."""
    await served.until(lambda: len(served.records) == 1)
    found: dict[str, Any] = (await client.ask("GET", f"{PATH}/{response_id}")).json
    return found


@pytest.mark.parametrize("profile", PROFILES)
async def test_the_call_is_answered_at_once_and_the_response_read_by_its_id(profile: str) -> None:
    gate = asyncio.Event()
    async with serve(gated(gate), profile=PROFILES[profile]) as served:
        async with served.connection() as client:
            reply = await client.ask("POST", PATH, BACKGROUND)
            made = reply.json
            assert (reply.status, made["status"], made["background"]) == (200, "queued", True)
            await served.until(lambda: served.engine.started == 1)
        async with served.connection() as client:
            where = f"{PATH}/{made['id']}"
            standing = (await client.ask("GET", where)).json
            assert standing["status"] == "in_progress"
            assert standing["usage"]["input_tokens"] == INPUT_TOKENS
            (item,) = (await client.ask("GET", f"{where}/input_items")).json["data"]
            assert item["content"] == [{"type": "input_text", "text": "hi"}]
            gate.set()
            whole = await ended(served, client, made["id"])
            assert whole["status"] == "completed"
            assert whole["usage"]["total_tokens"] == INPUT_TOKENS + 1
            assert (await client.ask("GET", f"{where}/input_items")).json["data"] == [item]


async def test_nobody_hears_of_it_before_it_lasts() -> None:
    journal = Slow()
    served_by = serve(gated(asyncio.Event()), journal=journal)
    async with served_by as served, served.connection() as client:
        answer = asyncio.create_task(client.ask("POST", PATH, BACKGROUND))
        await served.until(lambda: served.engine.started == 1)
        assert (await client_of(served)).status == 200
        assert not answer.done()
        journal.gate.set()
        assert (await answer).json["status"] == "queued"


@pytest.mark.parametrize("stream", [False, True])
async def test_one_that_cannot_be_made_to_last_is_an_error_and_does_not_run(stream: bool) -> None:
    journal = Slow(fails=True)
    journal.gate.set()
    served_by = serve(gated(asyncio.Event()), journal=journal)
    async with served_by as served, served.connection() as client:
        reply = await client.ask("POST", PATH, {**BACKGROUND, "stream": stream})
        assert (reply.status, reply.error["code"]) == (500, "server_error")
        assert "full" not in reply.error["message"]
        await served.until(lambda: len(served.records) == 1)
        assert served.records[0].outcome == "cancelled"


async def test_leaving_its_stream_does_not_end_it() -> None:
    gate = asyncio.Event()
    async with serve(gated(gate)) as served:
        async with served.connection() as client:
            client.request("POST", PATH, {**BACKGROUND, "stream": True})
            assert (await client.head()).status == 200
            begun = [chunk async for chunk in _first(client)]
            assert begun[0].startswith(b"event: response.created\n")
            assert b"event: response.queued\n" in begun[0]
            made = begun[0].partition(b'"id":"')[2].partition(b'"')[0].decode()
            client.reset()
        gate.set()
        async with served.connection() as client:
            assert (await ended(served, client, made))["status"] == "completed"


@pytest.mark.parametrize("profile", PROFILES)
async def test_it_is_cancelled_by_its_id_and_stays_so(profile: str) -> None:
    served_by = serve(gated(asyncio.Event()), profile=PROFILES[profile])
    async with served_by as served, served.connection() as client:
        made = (await client.ask("POST", PATH, BACKGROUND)).json["id"]
        await served.until(lambda: served.engine.started == 1)
        where = f"{PATH}/{made}"
        cut = (await client.ask("POST", f"{where}/cancel")).json
        assert (cut["status"], cut["usage"]["input_tokens"]) == ("cancelled", INPUT_TOKENS)
        assert (await client.ask("GET", where)).json == cut
        assert (await client.ask("POST", f"{where}/cancel")).json == cut
        assert served.engine.cancelled == 1
        assert [record.outcome for record in served.records] == ["cancelled"]


async def test_deleting_it_ends_it_and_leaves_nothing() -> None:
    async with serve(gated(asyncio.Event())) as served, served.connection() as client:
        made = (await client.ask("POST", PATH, BACKGROUND)).json["id"]
        await served.until(lambda: served.engine.started == 1)
        where = f"{PATH}/{made}"
        assert (await client.ask("DELETE", where)).json["deleted"] is True
        assert served.engine.cancelled == 1
        for path in (where, f"{where}?stream=true", f"{where}/input_items"):
            assert (await client.ask("GET", path)).status == 404
        assert (await client.ask("DELETE", where)).status == 404


async def test_a_key_finds_it_whatever_has_become_of_it() -> None:
    gate = asyncio.Event()
    async with serve(gated(gate)) as served, served.connection() as client:
        key = {"idempotency_key": "k"}
        first = (await client.ask("POST", PATH, BACKGROUND, **key)).json
        await served.until(lambda: served.engine.started == 1)
        again = (await client.ask("POST", PATH, BACKGROUND, **key)).json
        assert (again["id"], again["status"]) == (first["id"], "in_progress")
        gate.set()
        whole = await ended(served, client, first["id"])
        assert (await client.ask("POST", PATH, BACKGROUND, **key)).json == whole
        assert served.engine.started == 1


async def test_a_drain_gives_it_its_time_and_then_stores_what_there_is() -> None:
    async with serve(gated(asyncio.Event())) as served, served.connection() as client:
        made = (await client.ask("POST", PATH, BACKGROUND)).json["id"]
        await served.until(lambda: served.engine.started == 1)
        await served.services.running.drain(0.05)
        (record,) = served.records
        assert (record.outcome, record.reason) == ("incomplete", "server_draining")
        saved = await served.services.store.get("local", made)
        assert saved is not None
        assert saved.response.status == "incomplete"
        assert saved.response.usage is not None
        assert saved.response.usage.input_tokens == INPUT_TOKENS


async def _first(client: Connection) -> Any:
    async for chunk in client.chunks():
        yield chunk
        return
