"""SR-06: what DELETE takes, and what it leaves to those who had built upon it.

r1 <- r2 <- r3 and r1 <- f1. The documents say: who continues a deleted response keeps what it
inherited, and nobody else can reach it any more.
"""

from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from aiohttp import ClientSession

from tests.support.grpc_harness import responses
from tests.support.server_process import ServerProcess, serving, write_script
from tieline.errors import ApiError
from tieline.v1 import service_pb2
from tieline_client import Connection, connect

RULES = [
    {
        "id": "context",
        "when": {"user_contains": "context?"},
        "emit": {"type": "message", "text": "{context}"},
    },
    {"id": "answer", "emit": {"type": "message", "text": "heard"}},
]

Delete = Callable[[ServerProcess, str], Coroutine[Any, Any, bool]]
"""(server, response id) -> whether there was such a response."""


async def over_http(server: ServerProcess, response_id: str) -> bool:
    where = f"http://{server.http}/v1/responses/{response_id}"
    async with ClientSession() as session, session.delete(where) as answer:
        assert answer.status in (200, 404)
        body = await answer.json()
        assert body.get("deleted", False) is (answer.status == 200)
        return answer.status == 200


async def over_grpc(server: ServerProcess, response_id: str) -> bool:
    async with grpc.aio.insecure_channel(server.address) as channel:
        ask = service_pb2.DeleteRequest(response_id=response_id)
        try:
            answer = await responses(channel).Delete(ask)
        except grpc.aio.AioRpcError as error:
            if error.code() is not grpc.StatusCode.NOT_FOUND:
                raise
            return False
        return bool(answer.deleted)


@asynccontextmanager
async def lines(server: ServerProcess) -> AsyncIterator[dict[str, Connection]]:
    """A line of each transport."""
    async with (
        connect(f"ws://{server.http}") as ws,
        connect(f"grpc://{server.address}") as over,
        connect(f"http://{server.http}") as http,
    ):
        yield {"ws": ws, "grpc": over, "http": http}


async def made(line: Connection, words: str, after: str | None = None) -> str:
    stream = await line.create(input=words, store=True, previous_response_id=after)
    return (await stream.response()).id


async def context(line: Connection, after: str) -> str | None:
    """The effective input of a continuation, or None where there is nothing to continue."""
    stream = await line.create(input="context?", store=False, previous_response_id=after)
    try:
        return (await stream.result()).text
    except ApiError as error:
        if error.code != "previous_response_not_found":
            raise
        return None


async def status(server: ServerProcess, response_id: str, path: str = "") -> int:
    where = f"http://{server.http}/v1/responses/{response_id}{path}"
    async with ClientSession() as session, session.get(where) as answer:
        return answer.status


@pytest.mark.parametrize("delete", [over_http, over_grpc])
@pytest.mark.parametrize("store", ["memory", "sqlite"])
async def test_sr_06_a_deleted_response_is_gone_and_its_descendants_keep_what_they_inherited(
    store: str, delete: Delete, tmp_path: Path
) -> None:
    address = "memory" if store == "memory" else f"sqlite:///{tmp_path}/tieline.db"
    script = write_script(tmp_path, rules=RULES)
    with serving("--script", script, "--store", address) as server:
        async with lines(server) as by:
            r1 = await made(by["ws"], "one.")
            r2 = await made(by["grpc"], "two.", r1)
            r3 = await made(by["http"], "three.", r2)
            f1 = await made(by["http"], "fork.", r1)

            assert await delete(server, r1)
            assert not await delete(server, r1)
            assert await status(server, r1) == 404
            assert await status(server, r1, "/input_items") == 404
            # Also on the line that made it and had it in memory.
            for line in by.values():
                assert await context(line, r1) is None
            for after, said in ((r2, ["one.", "two."]), (f1, ["one.", "fork."])):
                for line in by.values():
                    known = await context(line, after)
                    assert known is not None
                    assert [known.count(each) for each in said] == [1, 1]
            assert await status(server, r2) == 200

            assert await delete(server, r2)
            known = await context(by["ws"], r3)
            assert known is not None
            assert [known.count(each) for each in ("one.", "two.", "three.")] == [1, 1, 1]
            assert await delete(server, r3)
            assert await context(by["ws"], r3) is None
            assert await context(by["ws"], f1) is not None


async def test_sr_06_the_bytes_of_what_nobody_needs_are_gone_from_the_files(tmp_path: Path) -> None:
    """Deleted means deleted: neither the database nor its log has the words any more."""
    marker = "xylophone-of-ann"

    def found() -> bool:
        return any(marker.encode() in each.read_bytes() for each in tmp_path.glob("tieline.db*"))

    script = write_script(tmp_path, rules=RULES)
    with serving("--script", script, "--store", f"sqlite:///{tmp_path}/tieline.db") as server:
        async with lines(server) as by:
            r1 = await made(by["ws"], marker)
            r2 = await made(by["ws"], "two.", r1)
            assert found()
            assert await over_http(server, r1)
            assert found()
            assert await over_http(server, r2)
            assert not found()
        assert not found()
    assert not found()


@pytest.mark.parametrize("delete", [over_http, over_grpc])
async def test_sr_06_what_is_not_stored_cannot_be_deleted_and_lives_on(
    delete: Delete, tmp_path: Path
) -> None:
    with serving("--script", write_script(tmp_path, rules=RULES)) as server:
        async with connect(f"ws://{server.http}") as line:
            stream = await line.create(input="one.", store=False)
            passing = (await stream.response()).id
            assert not await delete(server, passing)
            assert "one." in (await context(line, passing) or "")
