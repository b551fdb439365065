"""AU-01: what belongs to another owner is exactly like what does not exist, on every path.

Two callers with a key each talk to one server process. Whatever one of them asks about the
other's response is compared with the same question about an id that nobody has.
"""

import asyncio
import hashlib
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from aiohttp import ClientSession

from tests.support.grpc_client import RawConnection
from tests.support.grpc_harness import responses
from tests.support.server_process import ServerProcess, serving, write_script
from tieline.errors import ApiError
from tieline.v1 import requests_pb2, service_pb2
from tieline_client import connect

ANN, BOB = "key-of-ann", "key-of-bob"
UNKNOWN = "resp_" + "0" * 48
ITEM = "msg_" + "0" * 48

Outcome = tuple[Any, ...]
Ask = Callable[["Callers", str, str], Awaitable[Outcome]]
"""(callers, response id, item id) -> what Bob sees, with the ids taken out of its words."""


class Callers:
    """Where the server listens, and what Ann has stored there."""

    def __init__(self, server: ServerProcess) -> None:
        self.server = server
        self.response_id = ""
        self.item_id = ""

    async def store(self) -> None:
        """Ann has a stored response, with its events, whose codeword is nobody else's."""
        body = {"input": "codeword fig", "resumable": True}
        async with ClientSession(headers=bearer(ANN)) as session:
            url = f"http://{self.server.http}/v1/responses"
            async with session.post(url, json=body) as answer:
                made = await answer.json()
        self.response_id, self.item_id = made["id"], made["output"][0]["id"]


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


@pytest.fixture(scope="module")
def callers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callers]:
    folder = tmp_path_factory.mktemp("owners")
    keys = folder / "keys.toml"
    rows = [
        f'[[keys]]\nhash = "sha256:{hashlib.sha256(key.encode()).hexdigest()}"\nowner = "{owner}"'
        for key, owner in ((ANN, "ann"), (BOB, "bob"))
    ]
    keys.write_text("\n".join(rows))
    call = {"type": "function_call", "name": "look", "arguments": {}}
    rules = [
        {"id": "call", "when": {"user_contains": "call the tool"}, "emit": call},
        {"id": "context", "emit": {"type": "message", "text": "{context}"}},
    ]
    script = write_script(folder, rules=rules)
    with serving("--script", script, "--api-keys", str(keys)) as server:
        callers = Callers(server)
        asyncio.run(callers.store())
        yield callers


def faceless(words: str, *names: str) -> str:
    for name in names:
        words = words.replace(name, "ID")
    return words


async def _created(callers: Callers, scheme: str, response_id: str, **members: Any) -> Outcome:
    address = callers.server.address if scheme == "grpc" else callers.server.http
    async with connect(f"{scheme}://{address}", api_key=BOB) as line:
        try:
            result = await (await line.create(store=False, **members)).result()
        except ApiError as error:
            words = faceless(error.message, response_id, str(members))
            return error.status, error.type, error.code, error.param, words
        return (result.text,)


def continues(scheme: str) -> Ask:
    async def ask(callers: Callers, response_id: str, item_id: str) -> Outcome:
        members = {"input": "what codeword?", "previous_response_id": response_id}
        return await _created(callers, scheme, response_id, **members)

    return ask


def refers(scheme: str) -> Ask:
    async def ask(callers: Callers, response_id: str, item_id: str) -> Outcome:
        reference = {"type": "item_reference", "id": item_id}
        return await _created(callers, scheme, item_id, input=[reference])

    return ask


def resumes(scheme: str) -> Ask:
    async def ask(callers: Callers, response_id: str, item_id: str) -> Outcome:
        server = callers.server
        if scheme == "ws":
            async with ClientSession(headers=bearer(BOB)) as session:
                line = await session.ws_connect(f"http://{server.http}/v1/responses")
                await line.send_json({"type": "response.resume", "response_id": response_id})
                told = await line.receive_json()
            error = told["error"]
            return error["code"], told["status"], faceless(error["message"], response_id)
        port = int(server.address.rpartition(":")[2])
        metadata = tuple(bearer(BOB).items())
        async with RawConnection(port, metadata=metadata) as stream:
            resume = requests_pb2.ResponseResume(response_id=response_id)
            await stream.send(service_pb2.ConverseRequest(response_resume=resume))
            event = await stream.next()
            assert event is not None
            message = event.error.error
        return message.code, faceless(message.message, response_id)

    return ask


async def _read_on(callers: Callers, response_id: str, item_id: str) -> Outcome:
    async with grpc.aio.insecure_channel(callers.server.address) as channel:
        request = service_pb2.ResumeRequest(response_id=response_id)
        call = responses(channel).Resume(request, metadata=tuple(bearer(BOB).items()))
        try:
            await call.read()
        except grpc.aio.AioRpcError as error:
            return error.code(), faceless(error.details() or "", response_id)
        return ("answered",)


def over_http(method: str, path: str = "") -> Ask:
    async def ask(callers: Callers, response_id: str, item_id: str) -> Outcome:
        url = f"http://{callers.server.http}/v1/responses/{response_id}{path}"
        async with (
            ClientSession(headers=bearer(BOB)) as session,
            session.request(method, url) as answer,
        ):
            headers = {name.lower(): value for name, value in answer.headers.items()}
            for varying in ("date", "x-request-id", "openai-processing-ms", "content-length"):
                headers.pop(varying)
            return answer.status, headers, faceless(await answer.text(), response_id)

    return ask


def over_grpc(method: str, request: type[Any]) -> Ask:
    async def ask(callers: Callers, response_id: str, item_id: str) -> Outcome:
        async with grpc.aio.insecure_channel(callers.server.address) as channel:
            call = getattr(responses(channel), method)
            metadata = tuple(bearer(BOB).items())
            try:
                await call(request(response_id=response_id), metadata=metadata)
            except grpc.aio.AioRpcError as error:
                return error.code(), faceless(error.details() or "", response_id)
            return ("answered",)

    return ask


ASKS: dict[str, Ask] = {
    "continue over gRPC": continues("grpc"),
    "continue over WebSocket": continues("ws"),
    "continue over HTTP": continues("http"),
    "refer to an item over gRPC": refers("grpc"),
    "refer to an item over WebSocket": refers("ws"),
    "refer to an item over HTTP": refers("http"),
    "GET": over_http("GET"),
    "GET input_items": over_http("GET", "/input_items"),
    "GET stream": over_http("GET", "?stream=true&starting_after=1"),
    "resume over gRPC": resumes("grpc"),
    "resume over WebSocket": resumes("ws"),
    "Resume": _read_on,
    "POST cancel": over_http("POST", "/cancel"),
    "DELETE": over_http("DELETE"),
    "Get": over_grpc("Get", service_pb2.GetRequest),
    "ListInputItems": over_grpc("ListInputItems", service_pb2.ListInputItemsRequest),
    "Cancel": over_grpc("Cancel", service_pb2.CancelRequest),
    "Delete": over_grpc("Delete", service_pb2.DeleteRequest),
}
"""Every way to name a response or an item of one."""


@pytest.mark.parametrize("name", ASKS)
async def test_au_01_anothers_response_is_like_one_that_never_was(
    callers: Callers, name: str
) -> None:
    unknown = await ASKS[name](callers, UNKNOWN, ITEM)
    foreign = await ASKS[name](callers, callers.response_id, callers.item_id)
    assert foreign == unknown
    assert "fig" not in str(foreign)
    assert foreign[0] in (400, 404, "response_not_found", grpc.StatusCode.NOT_FOUND)


async def test_au_01_after_all_that_the_owner_still_has_it(callers: Callers) -> None:
    for name in ("DELETE", "POST cancel", "Delete", "Cancel"):
        await ASKS[name](callers, callers.response_id, callers.item_id)
    address = callers.server.address
    async with connect(f"grpc://{address}", api_key=ANN) as line:
        again = await line.create(input="and?", previous_response_id=callers.response_id)
        assert "fig" in (await again.result()).text


async def test_au_01_a_running_turn_of_another_is_neither_seen_nor_ended(callers: Callers) -> None:
    """A held turn of Ann's runs while Bob names it everywhere."""

    address = callers.server.http
    async with connect(f"ws://{address}", api_key=ANN) as line:
        turn = await line.create(input="call the tool look", tools=[LOOK], append=True)
        async for event in turn:
            if event.type == "response.done":
                break
        assert turn.held
        running = turn.response_id
        assert running is not None
        for name in ("GET", "POST cancel", "DELETE", "Cancel", "continue over gRPC"):
            unknown = await ASKS[name](callers, UNKNOWN, ITEM)
            assert await ASKS[name](callers, running, ITEM) == unknown
        assert turn.held
        await turn.cancel()
        ends = [event async for event in turn]
        assert ends[-1].response.status == "cancelled"  # type: ignore[attr-defined]


LOOK = {"type": "function", "name": "look", "parameters": {"type": "object", "properties": {}}}


async def test_the_paths_name_no_key(callers: Callers, tmp_path: Path) -> None:
    """What is logged of a refused question says who asked, and no secret."""

    await ASKS["continue over gRPC"](callers, callers.response_id, callers.item_id)
    refused = [line for line in callers.server.lines("turn") if line.get("outcome") == "refused"]
    assert any(
        line["owner"] == "bob" and line["error"] == "previous_response_not_found"
        for line in refused
    )
    log = callers.server.log()
    assert ANN not in log
    assert BOB not in log
