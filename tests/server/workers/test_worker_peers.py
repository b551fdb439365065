"""Workers find one another: who lives, and a turn that is asked for at the wrong one."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp

from tests.support.scripted_peer import ScriptedPeer
from tests.support.server_process import write_script
from tests.support.several import Several, several, tag_of
from tieline.ids import RESPONSE, IdSource
from tieline_server.workers.peer_socket import PeerSocket
from tieline_server.workers.worker_peers import WorkerPeers, socket_path

OWN, OTHER = b"\1\2", b"\3\4"
SLOW = {
    "pace": {"ttft_ms": 0, "tokens_per_second": 20},
    "rules": [{"id": "slow", "when": {}, "emit": {"type": "message", "text": "word " * 40}}],
}


class TestWorkerPeers:
    async def test_those_that_listen_are_found_and_those_that_have_gone_are_not(
        self, tmp_path: Path
    ) -> None:
        peers = WorkerPeers(tmp_path, OWN)
        named = IdSource(os.urandom, OTHER).new(RESPONSE)
        assert peers.peer_of(named) is None
        served = PeerSocket(ScriptedPeer(), socket_path(tmp_path, OTHER))
        await served.open()
        peer = peers.peer_of(named)
        assert peer is not None
        assert await peer.metrics() == b"turns 0\n"
        assert list(peers.others()) == [peer]
        await served.close()
        assert peers.peer_of(named) is None
        assert peers.others() == []
        peers.close()

    async def test_no_worker_is_its_own_peer(self, tmp_path: Path) -> None:
        served = PeerSocket(ScriptedPeer(), socket_path(tmp_path, OWN))
        await served.open()
        peers = WorkerPeers(tmp_path, OWN)
        assert peers.peer_of(IdSource(os.urandom, OWN).new(RESPONSE)) is None
        assert peers.others() == []
        await served.close()

    def test_ids_that_name_no_process_have_no_home(self, tmp_path: Path) -> None:
        peers = WorkerPeers(tmp_path / "none", OWN)
        for name in ("", "resp_1", "resp_../../../../etc/passwd", "x" * 10_000):
            assert peers.peer_of(name) is None
        assert peers.others() == []


class Socket:
    """A WebSocket to some worker."""

    def __init__(self, ws: aiohttp.ClientWebSocketResponse) -> None:
        self._ws = ws

    async def send(self, **event: Any) -> None:
        """A client event."""
        await self._ws.send_json(event)

    async def event(self) -> dict[str, Any]:
        """The next event."""
        found: dict[str, Any] = await self._ws.receive_json(timeout=60)
        return found

    async def until(self, kind: str) -> list[dict[str, Any]]:
        """The events up to one of this type; an error that is not wanted is none."""
        found = [await self.event()]
        while found[-1]["type"] not in (kind, "error"):
            found.append(await self.event())
        assert found[-1]["type"] == kind
        return found

    async def worker(self) -> str:
        """The tag of the worker at the other end."""
        await self.send(
            type="response.create",
            model="scripted",
            input="x",
            generate=False,
            store=False,
            stream_id="probe",
        )
        created = await self.event()
        await self.until("response.completed")
        return tag_of(created["response"]["id"])


@asynccontextmanager
async def connected(server: Several) -> AsyncIterator[Socket]:
    """A connection of its own."""
    async with (
        aiohttp.ClientSession() as session,
        session.ws_connect(f"http://{server.http}/v1/responses") as ws,
    ):
        yield Socket(ws)


async def elsewhere(server: Several, tag: str, then: Any) -> None:
    """Does something over a connection to another worker than this one."""
    while True:
        async with connected(server) as connection:
            if await connection.worker() != tag:
                await then(connection)
                return


async def dropped(server: Several) -> tuple[str, list[dict[str, Any]]]:
    """A resumable response whose connection has gone: its id, and the events that were seen."""
    async with connected(server) as connection:
        await connection.send(
            type="response.create", model="scripted", input="hi", store=False, resumable=True
        )
        seen = await connection.until("response.output_text.delta")
    return seen[0]["response"]["id"], seen


class TestElsewhere:
    async def test_a_turn_is_resumed_at_the_other_worker_and_goes_on_from_there(
        self, tmp_path: Path
    ) -> None:
        with several(tmp_path, "--script", write_script(tmp_path, **SLOW)) as server:
            named, seen = await dropped(server)

            async def resume(connection: Socket) -> None:
                await connection.send(type="response.resume", response_id=named, after=1)
                events = await connection.until("response.completed")
                numbers = [event["sequence_number"] for event in events]
                assert numbers == list(range(2, 2 + len(numbers)))
                assert events[: len(seen) - 2] == seen[2:]
                assert events[-1]["response"]["id"] == named
                await connection.send(
                    type="response.create",
                    model="scripted",
                    input="more",
                    store=False,
                    previous_response_id=named,
                )
                assert (await connection.event())["response"]["previous_response_id"] == named
                await connection.until("response.completed")

            await elsewhere(server, tag_of(named), resume)

    async def test_a_worker_that_is_restarted_lets_what_was_resumed_elsewhere_end(
        self, tmp_path: Path
    ) -> None:
        with several(tmp_path, "--script", write_script(tmp_path, **SLOW)) as server:
            named, _ = await dropped(server)
            peer = server.workers[tag_of(named)]

            async def resume(connection: Socket) -> None:
                await connection.send(type="response.resume", response_id=named)
                await connection.event()
                os.kill(peer, signal.SIGTERM)
                events = await connection.until("response.completed")
                assert events[-1]["response"]["id"] == named

            await elsewhere(server, tag_of(named), resume)

    async def test_a_worker_that_is_killed_ends_what_was_resumed_elsewhere_with_an_error(
        self, tmp_path: Path
    ) -> None:
        with several(tmp_path, "--script", write_script(tmp_path, **SLOW)) as server:
            named, _ = await dropped(server)
            peer = server.workers[tag_of(named)]

            async def resume(connection: Socket) -> None:
                await connection.send(type="response.resume", response_id=named)
                await connection.event()
                os.kill(peer, signal.SIGKILL)
                error = (await connection.until("error"))[-1]
                assert error["error"]["code"] == "server_error"
                # The connection lives on, and no worker has the response any more.
                await connection.send(type="response.resume", response_id=named)
                error = (await connection.until("error"))[-1]
                assert error["error"]["code"] in ("response_not_found", "server_error")
                await connection.worker()

            await elsewhere(server, tag_of(named), resume)


async def test_workers_that_write_to_one_file_at_once_lose_nothing(tmp_path: Path) -> None:
    """Stored responses one after another on many connections: none may find the file locked."""

    async def chain(server: Several, session: aiohttp.ClientSession) -> list[str]:
        ids: list[str] = []
        for _ in range(8):
            body = {"input": "x" * 2000, "previous_response_id": ids[-1] if ids else None}
            where = f"http://{server.http}/v1/responses"
            async with session.post(where, json=body) as answer:
                found = await answer.json()
                assert found["status"] == "completed"
                ids.append(found["id"])
        return ids

    with several(tmp_path, "--log-level", "info") as server:
        connector = aiohttp.TCPConnector(limit=0, force_close=True)
        async with aiohttp.ClientSession(connector=connector) as session:
            chains = await asyncio.gather(*(chain(server, session) for _ in range(16)))
        ids = [each for ids in chains for each in ids]
        assert set(map(tag_of, ids)) == server.workers.keys()
        assert len(set(ids)) == 16 * 8
        assert [line for line in server.lines() if line["level"] != "info"] == []
