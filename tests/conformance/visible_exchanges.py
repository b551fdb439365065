"""Requests to real servers, and what a client sees beside the messages.

The servers are processes of their own, started by their command; the clients are plain aiohttp and
plain grpcio. Of each exchange the status and the names of headers or of metadata are kept, and of
what a client sends only what has an effect that it can see.
"""

import asyncio
import gzip
import hashlib
import signal
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

import grpc
import msgspec
from aiohttp import ClientResponse, ClientSession
from google.rpc import error_details_pb2, status_pb2
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from tests.conformance.visible_conversation import (
    OPEN_SETTINGS,
    PATH,
    RULES,
    SETTINGS,
    GrpcTalk,
    Seen,
    Talk,
    WebSocketTalk,
    converse,
    converse_by_requests,
    faced,
    refuse,
    stream,
    turn,
    until,
)
from tests.support.grpc_client import RawConnection
from tests.support.grpc_harness import models, responses
from tests.support.server_process import ServerProcess, serving, write_script
from tieline.errors import ERRORS
from tieline.v1 import models_pb2, requests_pb2, service_pb2

KEY: Final = "key-of-ann"
PAGE: Final = "https://page.example"
BEARER: Final = {"Authorization": f"Bearer {KEY}"}
JSON: Final = {"Content-Type": "application/json"}
EXTENSIONS: Final = "heartbeat,limits,session,timing,warnings"
PATHS: Final = (
    PATH,
    f"{PATH}/input_tokens",
    f"{PATH}/compact",
    f"{PATH}/resp_0",
    f"{PATH}/resp_0/cancel",
    f"{PATH}/resp_0/input_items",
    "/v1/models",
    "/v1/models/scripted",
    "/v1/usage",
    "/v1/capabilities",
    "/healthz",
    "/readyz",
    "/metrics",
)
USUAL: Final = frozenset(
    {
        "content-length",
        "content-type",
        "date",
        "openai-processing-ms",
        "openai-version",
        "server",
        "x-request-id",
    }
)
"""Headers of nearly every answer."""

UPGRADE: Final = {
    "Connection": "Upgrade",
    "Upgrade": "websocket",
    "Sec-WebSocket-Version": "13",
    "Sec-WebSocket-Key": "AAAAAAAAAAAAAAAAAAAAAA==",
}


def look(folder: Path) -> Seen:
    """Starts the servers, talks to them over every wire, and says what was seen."""
    seen = Seen()
    script = ("--script", write_script(folder, rules=RULES))
    keys = folder / "keys.toml"
    keys.write_text(
        f'[[keys]]\nhash = "sha256:{hashlib.sha256(KEY.encode()).hexdigest()}"\nowner = "ann"\n'
    )
    # One place, so that a second response waits. A short silence, so that a heartbeat comes, where
    # nothing else is looked at: an answer that begins with one has other headers.
    place = ("--max-active", "1", "--allowed-origins", PAGE)
    silence = ("--heartbeat", "0.2", "--api-keys", str(keys))
    with ExitStack() as stack:
        ours = stack.enter_context(serving(*script, *place))
        keyed = stack.enter_context(serving(*script, *silence))
        open_responses = stack.enter_context(serving(*script, "--profile", "open-responses"))
        asyncio.run(_look(seen, ours, keyed, open_responses))
    return seen


async def _look(
    seen: Seen, ours: ServerProcess, keyed: ServerProcess, open_responses: ServerProcess
) -> None:
    async with ClientSession(f"http://{ours.http}") as session:
        await converse_by_requests(session, seen)
        await _routes(session, seen)
        await _request_headers(session, seen)
        await _refused_requests(session, seen)
        await _upgrades(session, seen)
        await _web_sockets(session, seen)
    async with ClientSession(f"http://{open_responses.http}") as session:
        await _open_responses(session, seen)
    await _grpc(seen, ours)
    async with ClientSession(f"http://{keyed.http}") as session:
        await _keys(session, seen, keyed)


# HTTP


async def _ask(
    session: ClientSession,
    seen: Seen,
    method: str,
    path: str,
    *,
    heading: str | None = None,
    note: str = "",
    **how: Any,
) -> Any:
    """One request; notes its status, its headers and the shape of its body."""
    async with session.request(method, path, **how) as answer:
        body = await answer.read()
        heading = heading or f"{method} {path}"
        _note(seen, f"{heading}{note}", answer)
        if answer.content_type != "application/json" or not body:
            return body
        value = msgspec.json.decode(body)
        shape = "error" if answer.status >= 400 and "error" in value else heading
        seen.shapes.add(shape, value, "http")
        return value


def _note(seen: Seen, what: str, answer: ClientResponse) -> None:
    seen.exchanges.append(f"{what}: {answer.status} {_headers(answer)}")


def _headers(answer: ClientResponse) -> str:
    """The names of an answer's headers, by what sets them apart from the usual ones."""
    names = {name.lower() for name in answer.headers}
    more = [f"+{name}" for name in sorted(names - USUAL)]
    less = [f"-{name}" for name in sorted(USUAL - names)]
    return " ".join((*more, *less)) or "the usual"


async def _routes(session: ClientSession, seen: Seen) -> None:
    async def ask(method: str, path: str, **how: Any) -> Any:
        return await _ask(session, seen, method, path, **how)

    create = {"model": "scripted", "input": "hi", "store": True}
    made = await ask("POST", PATH, json={**create, **SETTINGS})
    one, other = f"{PATH}/{made['id']}", f"{PATH}/{{id}}"
    await ask("POST", PATH, note=" (stream)", json={**create, "stream": True})
    await ask("POST", f"{PATH}/input_tokens", json={"model": "scripted", "input": "hi"})
    await ask("POST", f"{PATH}/compact", json={"model": "scripted", "input": "hi"})
    await ask("GET", one, heading=f"GET {other}")
    page = {"limit": "1", "order": "asc", "include[]": "message.output_text.logprobs"}
    items = f"GET {other}/input_items"
    listed = await ask("GET", f"{one}/input_items", heading=items, params=page)
    after = {"after": listed["last_id"]}
    await ask("GET", f"{one}/input_items", heading=items, note="?after", params=after)
    await ask("DELETE", one, heading=f"DELETE {other}")
    begun = await ask(
        "POST", PATH, note=" (background)", json={**create, "input": "stall", "background": True}
    )
    await ask("POST", PATH, note=" (failed, 503)", json={**create, "input": "be busy"})
    one = f"{PATH}/{begun['id']}"
    await ask("POST", f"{one}/cancel", heading=f"POST {other}/cancel", json={})
    await ask(
        "GET",
        one,
        heading=f"GET {other}",
        note="?stream&starting_after",
        params={"stream": "true", "starting_after": "0"},
    )
    for path in PATHS[6:]:
        await ask("GET", path)
    await ask("GET", "/v1/models", note="?client_version", params={"client_version": "1"})
    await ask("GET", "/v1/usage", note="?by&since&until", params={"by": "model", "since": "1d"})


async def _request_headers(session: ClientSession, seen: Seen) -> None:
    """What a request's headers change, where a client can see it."""
    create = {"model": "scripted", "input": "hi"}

    async def ask(note: str, headers: Mapping[str, str], **how: Any) -> Any:
        how = how or {"json": create}
        return await _ask(session, seen, "POST", PATH, note=f" ({note})", headers=headers, **how)

    keys = [await ask("Idempotency-Key", {"Idempotency-Key": "one"}) for _ in range(2)]
    assert keys[0]["id"] == keys[1]["id"]
    async with session.post(PATH, json=create, headers={"x-request-id": "from-a-proxy"}) as answer:
        assert answer.headers["x-request-id"] == "from-a-proxy"
    body = msgspec.json.encode(create)
    packed = {"Content-Encoding": "gzip", **JSON}
    await ask("Content-Encoding: gzip", packed, data=gzip.compress(body))
    await ask("Content-Encoding: rot13", {**packed, "Content-Encoding": "rot13"}, data=body)
    await ask("Content-Type: text/plain", {"Content-Type": "text/plain"}, data=body)
    await ask("Expect: 100-continue", {"Expect": "100-continue"})
    await ask("Origin, listed", {"Origin": PAGE})
    await ask("Origin, another", {"Origin": "https://evil.example"})
    await ask("Host, another", {"Host": "evil.example"})
    beforehand = {
        "Origin": PAGE,
        "Access-Control-Request-Method": "POST",
        "Access-Control-Request-Headers": "content-type",
        "Access-Control-Request-Private-Network": "true",
    }
    await _ask(session, seen, "OPTIONS", PATH, headers=beforehand)
    asked = {"x-tieline-extensions": EXTENSIONS}
    body_ = {**create, "stream": True, "tempratur": 1}
    async with session.post(PATH, json=body_, headers=asked) as answer:
        _events(seen, "sse, extensions", await answer.text())
    async with session.get("/v1/models", params={"client_version": "1"}) as answer:
        etag = {"If-None-Match": answer.headers["ETag"]}
    path = "/v1/models"
    query = {"client_version": "1"}
    await _ask(session, seen, "GET", path, note=" (If-None-Match)", headers=etag, params=query)


def _events(seen: Seen, wire: str, text: str) -> None:
    for line in text.splitlines():
        if line.startswith("data: {"):
            event = msgspec.json.decode(line.removeprefix("data: "))
            seen.shapes.add(event["type"], event, wire)


async def _refused_requests(session: ClientSession, seen: Seen) -> None:
    """Paths and methods, and every code of the table as the answer to a request."""
    for path in (*PATHS, "/v1/nothing"):
        async with session.patch(path) as answer:
            allowed = answer.headers.get("Allow", "")
            seen.exchanges.append(f"PATCH {path}: {answer.status} {allowed}".rstrip())
    await _ask(session, seen, "PATCH", PATH)
    await _ask(
        session, seen, "GET", f"{PATH}/resp_0", heading=f"GET {PATH}/{{id}}", note=", unknown"
    )
    await _ask(session, seen, "POST", PATH, note=", no JSON", data=b"{", headers=JSON)
    for code in ERRORS:
        body = {"model": "scripted", "input": f"refuse {code}."}
        async with session.post(PATH, json=body) as answer:
            value = await answer.json()
            seen.shapes.add("error", value, "http")
            found = faced(code, answer.status, value["error"])
            seen.refusals[code]["http"] = f"{found} {_headers(answer)}"


# WebSocket


async def _upgrades(session: ClientSession, seen: Seen) -> None:
    for name, value in (
        ("x-codex-turn-state", "sticky"),
        ("x-request-id", "from-a-proxy"),
        ("x-tieline-extensions", EXTENSIONS),
        ("Sec-WebSocket-Protocol", "responses"),
        ("Sec-WebSocket-Protocol", "another, openai-beta.responses.v1"),
        ("Sec-WebSocket-Protocol", "another"),
        ("Sec-WebSocket-Extensions", "permessage-deflate"),
        ("Sec-WebSocket-Version", "8"),
        ("Sec-WebSocket-Key", "short"),
        ("Origin", "https://evil.example"),
    ):
        await _upgrade(session, seen, f"{name}: {value}", {name: value})
    await _upgrade(session, seen, "nothing more", {})
    await _ask(session, seen, "GET", PATH, note=", no upgrade")


async def _upgrade(
    session: ClientSession, seen: Seen, note: str, headers: Mapping[str, str]
) -> None:
    """A handshake; the value of each header that the server agrees by is kept."""
    async with session.get(PATH, headers={**UPGRADE, **headers}) as answer:
        said = [answer.headers[name] for name in headers if name in answer.headers]
        _note(seen, f"upgrade ({note}{''.join(f' -> {each}' for each in said)})", answer)
        answer.close()


async def _web_sockets(session: ClientSession, seen: Seen) -> None:
    async with session.ws_connect(PATH) as socket:
        talk = WebSocketTalk(socket, seen, "websocket")
        await converse(talk)
        await refuse(talk, seen, "websocket")
        await socket.send_str("{")
        await until(talk, "error")
    asked = {"x-tieline-extensions": EXTENSIONS}
    async with session.ws_connect(PATH, headers=asked) as socket:
        talk = WebSocketTalk(socket, seen, "websocket, extensions")
        await _greet(talk)
        await turn(talk, "hi", tempratur=1)
    asked = {"x-responsesapi-include-timing-metrics": "true"}
    async with session.ws_connect(PATH, headers=asked) as socket:
        talk = WebSocketTalk(socket, seen, "websocket, timing alone")
        await turn(talk, "hi", stream_id="lane.1")
    beta = {"OpenAI-Beta": "responses_websockets=2026-02-04"}
    async with session.ws_connect(PATH, headers=beta) as socket:
        talk = WebSocketTalk(socket, seen, "websocket, append prototype")
        tools = [{"type": "function", "name": "f", "parameters": {"type": "object"}}]
        await turn(talk, "call", tools=tools)


async def _open_responses(session: ClientSession, seen: Seen) -> None:
    async with session.ws_connect(PATH) as socket:
        talk = WebSocketTalk(socket, seen, "open websocket")
        await turn(talk, "say some", **OPEN_SETTINGS)
        await turn(talk, "hi", model="nobody")
    await stream(session, seen, "open sse", "say some", **OPEN_SETTINGS)
    await _ask(session, seen, "POST", PATH, note=" (open-responses)", json={"model": "nobody"})


# gRPC


async def _grpc(seen: Seen, server: ServerProcess) -> None:
    port = int(server.address.rpartition(":")[2])
    async with RawConnection(port) as connection:
        talk = GrpcTalk(connection, seen)
        await talk.say("tieline.session.start", merge="never", extensions=["timing"])
        await until(talk, "tieline.session.started")
        await converse(talk)
        await refuse(talk, seen, "grpc")
        await talk.say("tieline.session.end")
        await connection.rest()
        await _note_call(seen, "Converse", connection.call)
        await _calls(connection.channel, seen)
        await _services(connection.channel, seen)
    async with RawConnection(port, metadata=(("x-request-id", "from-a-proxy"),)) as connection:
        await _greet(GrpcTalk(connection, seen))
        await connection.half_close()
        trailing = dict(await connection.call.trailing_metadata())
        assert trailing["x-request-id"] == "from-a-proxy"


async def _greet(talk: Talk) -> None:
    await talk.say("tieline.session.start")
    await until(talk, "tieline.session.started")


async def _note_call(seen: Seen, what: str, call: Any) -> None:
    code = (await call.code()).name
    details = " ".join(_details(await call.trailing_metadata()))
    initial = [key for key, _ in await call.initial_metadata() or ()]
    trailing = [key for key, _ in await call.trailing_metadata() or ()]
    said = f"initial {' '.join(initial) or 'none'}, trailing {' '.join(trailing) or 'none'}"
    seen.exchanges.append(f"{what}: {code} {details}, metadata: {said}")


async def _calls(channel: grpc.aio.Channel, seen: Seen) -> None:
    """Every RPC but ``Converse``."""
    stub = responses(channel)

    async def ask(name: str, request: Any, *, of: Any = stub, note: str = "") -> Any:
        call = getattr(of, name)(request)
        answer = None
        try:
            if hasattr(call, "__aiter__"):
                async for answer in call:
                    seen.fields.add(answer)
            else:
                answer = await call
                seen.fields.add(answer)
        except grpc.aio.AioRpcError:
            pass
        await _note_call(seen, f"{name}{note}", call)
        return answer

    def create(words: str, **members: Any) -> requests_pb2.ResponseCreate:
        return requests_pb2.ResponseCreate(model="scripted", input_text=words, **members)

    whole = service_pb2.CreateRequest
    made = await ask("Create", whole(response_create=create("hi", store=True)))
    one = made.response.id
    await ask("Stream", service_pb2.StreamRequest(response_create=create("hi")))
    await ask("Get", service_pb2.GetRequest(response_id=one))
    await ask("ListInputItems", service_pb2.ListInputItemsRequest(response_id=one))
    counted = service_pb2.CountInputTokensRequest(response_create=create("hi"))
    await ask("CountInputTokens", counted)
    await ask("Compact", service_pb2.CompactRequest(response_create=create("hi")))
    await ask("Delete", service_pb2.DeleteRequest(response_id=one))
    begun = await ask(
        "Create",
        whole(response_create=create("stall", background=True)),
        note=" (background)",
    )
    one = begun.response.id
    await ask("Cancel", service_pb2.CancelRequest(response_id=one))
    busy = whole(response_create=create("be busy"))
    await ask("Create", busy, note=" (failed, 503)")
    await ask("Resume", service_pb2.ResumeRequest(response_id=one))
    await ask("Get", service_pb2.GetRequest(response_id="resp_0"), note=", unknown")
    await ask("ListModels", models_pb2.ListModelsRequest(), of=models(channel))
    for code in ERRORS:
        call = stub.Create(whole(response_create=create(f"refuse {code}.")))
        seen.refusals[code]["grpc status"] = await _status(code, call)


async def _status(code: str, call: Any) -> str:
    """The status of an RPC that is refused, and its details."""
    number = (await call.code()).value[0]
    row = "as its row says" if number == ERRORS[code].grpc else str(number)
    said = " ".join(_details(await call.trailing_metadata()))
    return f"{row} {said.replace(code.upper(), 'its code in capitals')}"


def _details(trailing: Any) -> Iterator[str]:
    """The messages inside a status, and of what names the error its members."""
    found = dict(trailing or ()).get("grpc-status-details-bin", b"")
    for detail in status_pb2.Status.FromString(found).details:
        yield detail.TypeName()
        info = error_details_pb2.ErrorInfo()
        if detail.Unpack(info):
            yield f"({info.domain}, {info.reason}: {' '.join(sorted(info.metadata))})"


async def _services(channel: grpc.aio.Channel, seen: Seen) -> None:
    """What reflection says is served."""
    # The stub is typed for a blocking channel.
    blocking: Any = channel
    stub: Any = reflection_pb2_grpc.ServerReflectionStub(blocking)
    ask = reflection_pb2.ServerReflectionRequest(list_services="")
    async for answer in stub.ServerReflectionInfo(iter([ask])):
        names = sorted(service.name for service in answer.list_services_response.service)
        seen.exchanges.append(f"services: {', '.join(names)}")


# Keys


async def _keys(session: ClientSession, seen: Seen, server: ServerProcess) -> None:
    create = {"model": "scripted", "input": "hi"}
    await _ask(session, seen, "POST", PATH, note=", no key", json=create)
    await _ask(session, seen, "POST", PATH, note=" (Authorization)", json=create, headers=BEARER)
    await _upgrade(session, seen, "no key", {})
    await _upgrade(session, seen, "Authorization", BEARER)
    offered = {"Sec-WebSocket-Protocol": f"responses, openai-insecure-api-key.{KEY}"}
    await _upgrade(session, seen, "a key as a subprotocol", offered)
    port = int(server.address.rpartition(":")[2])
    async with RawConnection(port) as connection:
        await _note_call(seen, "Converse (no key)", connection.call)
    async with RawConnection(
        port, metadata=(("authorization", BEARER["Authorization"]),)
    ) as connection:
        await _greet(GrpcTalk(connection, seen))
        await _heartbeat(GrpcTalk(connection, seen))
        await connection.half_close()
        await _note_call(seen, "Converse (authorization)", connection.call)
    asked = {"x-tieline-extensions": EXTENSIONS, **BEARER}
    async with session.ws_connect(PATH, headers=asked) as socket:
        await _heartbeat(WebSocketTalk(socket, seen, "websocket, extensions"))
    await _goodbye(session, seen, server)


async def _goodbye(session: ClientSession, seen: Seen, server: ServerProcess) -> None:
    """What connections hear when the server is told to end."""
    port = int(server.address.rpartition(":")[2])
    asked = {"x-tieline-extensions": EXTENSIONS, **BEARER}
    metadata = (("authorization", BEARER["Authorization"]),)
    async with (
        session.ws_connect(PATH, headers=asked) as socket,
        RawConnection(port, metadata=metadata) as connection,
    ):
        talks = (
            WebSocketTalk(socket, seen, "websocket, extensions"),
            GrpcTalk(connection, seen),
        )
        for talk in talks:
            await _greet(talk)
        server.signal(signal.SIGTERM)
        for talk in talks:
            await until(talk, "tieline.session.going_away")
        await socket.receive()
        seen.exchanges.append(f"the server ends: a WebSocket is closed with {socket.close_code}")
        await connection.rest()
        await _note_call(seen, "the server ends: Converse", connection.call)


async def _heartbeat(talk: Talk) -> None:
    await talk.say("response.create", model="scripted", input="stall")
    await until(talk, "tieline.heartbeat")
    await talk.say("response.cancel")
    await until(talk, "response.incomplete")
