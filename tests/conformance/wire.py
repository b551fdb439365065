"""The roads to one server: each case says JSON and hears JSON, whatever carries it.

``WIRES`` is the table of transports; a new one is one class and one line, and every case runs
over it. Whatever a case looks at, every event that it hears is held against the types of the
clients of that road as well.
"""

import asyncio
import socket
import struct
from collections.abc import AsyncIterator, Callable, Mapping, Set
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from typing import Any, Final, NamedTuple, Protocol

import grpc
import msgspec
from aiohttp import ClientResponse, ClientSession, ClientWebSocketResponse, WSMsgType

from tests.conformance import open_responses, openai_types
from tests.conformance.server import Served
from tests.conformance.transcript import TERMINAL
from tests.support.grpc_client import RawConnection, status_error
from tests.support.grpc_harness import responses
from tieline.codecs.json import encode
from tieline.codecs.proto import decode_event, from_response, item_to_json, request_to_proto
from tieline.responses import encode as encode_response
from tieline.v1 import requests_pb2, responses_pb2, service_pb2

Json = dict[str, Any]


class Refused(Exception):
    """A call by a response's id was refused."""

    def __init__(self, status: int, code: str) -> None:
        super().__init__(f"{status} {code}")
        self.status = status
        self.code = code


class Peer(Protocol):
    """One line to the server, as a client of its transport has it."""

    remembers: bool
    """Whether the line remembers what is not stored."""

    async def send(self, message: Json) -> None:
        """Sends one client event."""
        ...

    async def send_broken(self) -> None:
        """Sends bytes that are no message of this transport."""
        ...

    async def send_text(self, text: str) -> None:
        """Sends this text as a client event, or as its part that is JSON."""
        ...

    async def send_unknown(self, kind: str) -> None:
        """Sends a well-formed client event of a type that nobody knows."""
        ...

    async def send_untyped(self) -> None:
        """Sends a well-formed message that does not say what it is."""
        ...

    async def receive(self) -> Json:
        """The next event."""
        ...

    async def retrieve(self, response_id: str) -> Json:
        """The stored response of this id."""
        ...

    async def cancel(self, response_id: str) -> Json:
        """Cancels a response by its id, beside whatever runs; returns it as it then stands.

        Raises :class:`Refused`.
        """

    async def read(self, response_id: str, after: int | None = None) -> list[Json]:
        """A response's events behind one, by its id; raises :class:`Refused`."""
        ...

    async def begin(self, **members: Any) -> Json:
        """A create in the background, as it is acknowledged; raises :class:`Refused`."""
        ...

    async def compact(self, **members: Any) -> Json:
        """The window that stands for a longer history."""
        ...

    async def abort(self) -> None:
        """Drops the line without a goodbye."""
        ...


class GrpcPeer:
    """One ``Converse`` stream."""

    remembers = True

    def __init__(self, line: RawConnection) -> None:
        self._line = line

    async def send(self, message: Json) -> None:
        """Sends one client event."""
        await self._line.send(request_to_proto(msgspec.json.encode(message)))

    async def send_broken(self) -> None:
        """A length that runs past the end: no protobuf message."""
        await self._line.send(b"\x12\xff\x01{not proto")

    async def send_text(self, text: str) -> None:
        """An opaque arm that holds it."""
        opaque = requests_pb2.OpaqueRequest(type="response.create", json=text)
        await self._line.send(service_pb2.ConverseRequest(opaque=opaque))

    async def send_unknown(self, kind: str) -> None:
        """An opaque arm of this type."""
        opaque = requests_pb2.OpaqueRequest(type=kind, json=f'{{"type":"{kind}"}}')
        await self._line.send(service_pb2.ConverseRequest(opaque=opaque))

    async def send_untyped(self) -> None:
        """An envelope without an arm."""
        await self._line.send(service_pb2.ConverseRequest(event_id="evt"))

    async def receive(self) -> Json:
        """The next event as JSON."""
        event = await self._line.next()
        assert event is not None, "the line has ended"
        members: Json = msgspec.json.decode(encode(decode_event(event)))
        return members

    async def retrieve(self, response_id: str) -> Json:
        """``Get`` on the same channel."""
        ask = service_pb2.GetRequest(response_id=response_id)
        got = await responses(self._line.channel).Get(ask)
        members: Json = msgspec.json.decode(encode_response(from_response(got.response)))
        return members

    async def cancel(self, response_id: str) -> Json:
        """``Cancel`` on the same channel."""
        ask = service_pb2.CancelRequest(response_id=response_id)
        try:
            cut = await responses(self._line.channel).Cancel(ask)
        except grpc.aio.AioRpcError as error:
            raise _refused(error) from None
        members: Json = msgspec.json.decode(encode_response(from_response(cut.response)))
        return members

    async def read(self, response_id: str, after: int | None = None) -> list[Json]:
        """``Resume`` on the same channel."""
        ask = service_pb2.ResumeRequest(response_id=response_id, after=after)
        call = responses(self._line.channel).Resume(ask)
        try:
            heard = [event async for message in call for event in message.events]
        except grpc.aio.AioRpcError as error:
            raise _refused(error) from None
        return [msgspec.json.decode(encode(decode_event(event))) for event in heard]

    async def begin(self, **members: Any) -> Json:
        """``Create`` on the same channel."""
        create = request_to_proto(msgspec.json.encode({"type": "response.create", **members}))
        ask = service_pb2.CreateRequest(response_create=create.response_create)
        try:
            made = await responses(self._line.channel).Create(ask)
        except grpc.aio.AioRpcError as error:
            raise _refused(error) from None
        begun: Json = msgspec.json.decode(encode_response(from_response(made.response)))
        return begun

    async def compact(self, **members: Any) -> Json:
        """``Compact`` on the same channel."""
        create = request_to_proto(msgspec.json.encode({"type": "response.create", **members}))
        ask = service_pb2.CompactRequest(response_create=create.response_create)
        got = await responses(self._line.channel).Compact(ask)
        output = [msgspec.json.decode(item_to_json(item)) for item in got.output]
        usage = from_response(responses_pb2.Response(usage=got.usage)).usage
        return {"id": got.id, "output": output, "usage": msgspec.to_builtins(usage)}

    async def abort(self) -> None:
        """Cancels the call."""
        self._line.call.cancel()


class WebSocketPeer:
    """One WebSocket."""

    remembers = True

    def __init__(self, session: ClientSession, socket: ClientWebSocketResponse, base: str) -> None:
        self._session = session
        self._socket = socket
        self._base = base

    async def send(self, message: Json) -> None:
        """One text frame."""
        await self._socket.send_str(msgspec.json.encode(message).decode())

    async def send_broken(self) -> None:
        """A text frame that is no JSON."""
        await self._socket.send_str("{not json")

    async def send_text(self, text: str) -> None:
        """A text frame that is it."""
        await self._socket.send_str(text)

    async def send_unknown(self, kind: str) -> None:
        """An object of this type."""
        await self.send({"type": kind})

    async def send_untyped(self) -> None:
        """An object without a type."""
        await self.send({"input": "x"})

    async def receive(self) -> Json:
        """The next text frame."""
        frame = await self._socket.receive()
        assert frame.type is WSMsgType.TEXT, frame
        members: Json = msgspec.json.decode(frame.data)
        return members

    async def retrieve(self, response_id: str) -> Json:
        """``GET`` on the same host."""
        return await _get(self._session, f"{self._base}/{response_id}")

    async def cancel(self, response_id: str) -> Json:
        """``POST`` to the same host."""
        return await _cancel(self._session, f"{self._base}/{response_id}/cancel")

    async def read(self, response_id: str, after: int | None = None) -> list[Json]:
        """``GET`` with ``stream`` on the same host."""
        return await _read(self._session, f"{self._base}/{response_id}", after)

    async def begin(self, **members: Any) -> Json:
        """``POST`` on the same host."""
        return await _begin(self._session, self._base, members)

    async def compact(self, **members: Any) -> Json:
        """``POST`` on the same host."""
        return await _compact(self._session, self._base, members)

    async def abort(self) -> None:
        """Resets the connection."""
        transport = self._socket.get_extra_info("socket")
        linger = struct.pack("ii", 1, 0)
        transport.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        await self._session.close()


class HttpPeer:
    """Each request by itself: streamed, or answered whole."""

    remembers = False

    def __init__(self, session: ClientSession, base: str, *, stream: bool) -> None:
        self._session = session
        self._base = base
        self._stream = stream
        self._asked: asyncio.Task[ClientResponse] | None = None
        self._events: list[Json] = []

    async def send(self, message: Json) -> None:
        """A ``POST``; its answer is read by ``receive``."""
        body = {name: value for name, value in message.items() if name != "type"}
        await self._post(msgspec.json.encode({**body, "stream": self._stream}))

    async def send_broken(self) -> None:
        """A body that is no JSON."""
        await self._post(b"{not json")

    async def send_text(self, text: str) -> None:
        """A body that is it."""
        await self._post(text.encode())

    async def send_unknown(self, kind: str) -> None:
        """A path that nobody knows."""
        raise NotImplementedError(kind)

    async def send_untyped(self) -> None:
        """A request says what it is by its path."""
        raise NotImplementedError

    async def _post(self, body: bytes) -> None:
        headers = {"content-type": "application/json"}
        post = self._session.post(self._base, data=body, headers=headers)
        self._asked = asyncio.ensure_future(_answer(post))
        # The request is on its way when this returns, answered or not.
        await asyncio.wait((self._asked,), timeout=0.01)

    async def receive(self) -> Json:
        """The next event of the stream; or the whole answer, as the event that ends it."""
        assert self._asked is not None
        answer = await self._asked
        if answer.status != 200:
            envelope = msgspec.json.decode(await answer.read())
            return {"type": "error", "status": answer.status, "sequence_number": 0, **envelope}
        if not self._stream:
            whole = msgspec.json.decode(await answer.read())
            end = whole["status"] if whole["status"] in ("completed", "failed") else "incomplete"
            return {"type": f"response.{end}", "response": whole}
        event = await _next_event(answer)
        if event["type"] in TERMINAL:
            assert await answer.read() == b"data: [DONE]\n\n"
        return event

    async def retrieve(self, response_id: str) -> Json:
        """``GET`` on the same host."""
        return await _get(self._session, f"{self._base}/{response_id}")

    async def cancel(self, response_id: str) -> Json:
        """``POST`` on another connection."""
        return await _cancel(self._session, f"{self._base}/{response_id}/cancel")

    async def read(self, response_id: str, after: int | None = None) -> list[Json]:
        """``GET`` with ``stream`` on another connection."""
        return await _read(self._session, f"{self._base}/{response_id}", after)

    async def begin(self, **members: Any) -> Json:
        """``POST`` on another connection."""
        return await _begin(self._session, self._base, members)

    async def compact(self, **members: Any) -> Json:
        """``POST`` on the same host."""
        return await _compact(self._session, self._base, members)

    async def abort(self) -> None:
        """Closes the connection under the request."""
        assert self._asked is not None
        if self._asked.done():
            self._asked.result().close()
        else:
            self._asked.cancel()

    async def close(self) -> None:
        """Lets go of the last answer; what follows the events that a case has read is nobody's."""
        if self._asked is not None and self._asked.done() and not self._asked.cancelled():
            self._asked.result().close()


async def _answer(post: Any) -> ClientResponse:
    answer: ClientResponse = await post
    return answer


async def _next_event(answer: ClientResponse) -> Json:
    """One event of a stream: its type, its data and a blank line, nothing else (wire.md 7.3)."""
    named, data = await answer.content.readline(), await answer.content.readline()
    assert await answer.content.readline() == b"\n"
    event: Json = msgspec.json.decode(data.removeprefix(b"data: "))
    assert named == f"event: {event['type']}\n".encode()
    return event


async def _get(session: ClientSession, url: str) -> Json:
    async with session.get(url) as answer:
        assert answer.status == 200
        members: Json = msgspec.json.decode(await answer.read())
        return members


async def _cancel(session: ClientSession, url: str) -> Json:
    async with session.post(url, json={}) as answer:
        if answer.status != 200:
            raise Refused(answer.status, (await answer.json())["error"]["code"])
        members: Json = msgspec.json.decode(await answer.read())
        return members


async def _read(session: ClientSession, url: str, after: int | None) -> list[Json]:
    query = {"stream": "true", **({} if after is None else {"starting_after": str(after)})}
    async with session.get(url, params=query) as answer:
        if answer.status != 200:
            raise Refused(answer.status, (await answer.json())["error"]["code"])
        events = [await _next_event(answer)]
        while events[-1]["type"] not in TERMINAL:
            events.append(await _next_event(answer))
        assert await answer.read() == b"data: [DONE]\n\n"
        return events


async def _begin(session: ClientSession, url: str, members: Json) -> Json:
    async with session.post(url, json=members) as answer:
        made: Json = msgspec.json.decode(await answer.read())
        if answer.status != 200:
            raise Refused(answer.status, made["error"]["code"])
        return made


def _refused(error: grpc.aio.AioRpcError) -> Refused:
    said = status_error(error.trailing_metadata())
    assert said is not None, error
    return Refused(said.status, said.code)


class Types(NamedTuple):
    """The types of one kind of client, as checks that raise."""

    heard: Callable[[Json, Set[str]], None]
    """Of what ``receive`` gives, after the client has used these extensions."""
    stored: Callable[[Json, Set[str]], None]
    """Of a response by itself."""
    read: Callable[[Json, Set[str]], None]
    """Of an event of ``read``."""
    asked: frozenset[str] = frozenset()
    """Extensions that a client of this kind uses by being one."""


_OPENAI: Final = (openai_types.check_response, openai_types.check_event)
_OPEN: Final = (open_responses.check_response, open_responses.check_event)

GRPC_EVENTS: Final = Types(openai_types.check_event, *_OPENAI, frozenset({"grpc"}))
OPENAI_EVENTS: Final = Types(openai_types.check_event, *_OPENAI)
OPENAI_ANSWERS: Final = Types(openai_types.check_answer, *_OPENAI)
OPEN_EVENTS: Final = Types(open_responses.check_event, *_OPEN)
OPEN_ANSWERS: Final = Types(open_responses.check_answer, *_OPEN)


class CheckedPeer:
    """A peer that hears nothing but what the types of its client know."""

    def __init__(self, peer: Peer, types: Types, heard: list[Json] | None) -> None:
        self._peer = peer
        self._types = types
        self._heard = heard
        self._asked = set(types.asked)
        self.remembers = peer.remembers
        self.send_broken = peer.send_broken
        self.send_text = peer.send_text
        self.send_unknown = peer.send_unknown
        self.send_untyped = peer.send_untyped
        self.abort = peer.abort

    async def send(self, message: Json) -> None:
        """Sends one client event, and notes which extensions it uses."""
        # Who resumes may meet what was held.
        if message.get("append") or message["type"] in ("response.append", "response.resume"):
            self._asked.add("append")
        if "timeout_ms" in message:
            self._asked.add("timeout_ms")
        await self._peer.send(message)

    async def receive(self) -> Json:
        """The next event, which must be one."""
        event = await self._peer.receive()
        self._types.heard(event, self._asked)
        if self._heard is not None:
            self._heard.append(event)
        return event

    async def retrieve(self, response_id: str) -> Json:
        """The stored response of this id, which must be one."""
        found = await self._peer.retrieve(response_id)
        self._types.stored(found, self._asked)
        return found

    async def cancel(self, response_id: str) -> Json:
        """Cancels a response by its id; what it is then must be one."""
        cut = await self._peer.cancel(response_id)
        self._types.stored(cut, self._asked)
        return cut

    async def read(self, response_id: str, after: int | None = None) -> list[Json]:
        """A response's events by its id, which must be such."""
        events = await self._peer.read(response_id, after)
        for event in events:
            self._types.read(event, self._asked)
        return events

    async def begin(self, **members: Any) -> Json:
        """A create in the background; what it is then must be one."""
        made = await self._peer.begin(**{"model": "scripted", "background": True, **members})
        self._types.stored(made, self._asked)
        return made

    async def compact(self, **members: Any) -> Json:
        """The window that stands for a longer history."""
        return await self._peer.compact(**members)


async def _compact(session: ClientSession, base: str, members: Json) -> Json:
    async with session.post(f"{base}/compact", json=members) as answer:
        assert answer.status == 200, await answer.text()
        window: Json = msgspec.json.decode(await answer.read())
        return window


@asynccontextmanager
async def _grpc(served: Served) -> AsyncIterator[Peer]:
    async with RawConnection(served.port, metadata=tuple(served.headers.items())) as line:
        peer = GrpcPeer(line)
        await peer.send({"type": "tieline.session.start", "merge": "never"})
        assert (await peer.receive())["type"] == "tieline.session.started"
        yield peer


@asynccontextmanager
async def _websocket(served: Served, *, profile: str = "openai") -> AsyncIterator[Peer]:
    url = f"http://127.0.0.1:{served.http_ports[profile]}/v1/responses"
    async with (
        ClientSession(headers=served.headers) as session,
        session.ws_connect(url) as opened,
    ):
        yield WebSocketPeer(session, opened, url)


@asynccontextmanager
async def _http(served: Served, *, stream: bool, profile: str = "openai") -> AsyncIterator[Peer]:
    url = f"http://127.0.0.1:{served.http_ports[profile]}/v1/responses"
    async with ClientSession(headers=served.headers) as session:
        peer = HttpPeer(session, url, stream=stream)
        yield peer
        await peer.close()


OFFERS: Final[Mapping[str, str]] = {
    "events": "an answer comes event by event; a plain POST is answered whole",
    "connection": (
        "what is not stored is remembered between requests; "
        "over HTTP each request is a connection of its own"
    ),
    "messages": "several client events on one connection; an HTTP request is one",
    "lanes": "`stream_id`; needs a connection, and is no part of Open Responses",
    "cancel": "`response.cancel` as an event; needs a connection, and is an extension",
    "cancel_by_id": "a running response is cancelled by id; Open Responses has that for background",
    "steer": "`response.steer`; needs a connection, and is no part of Open Responses",
    "append": "`append` and `response.append`; needs a connection, and is an extension",
    "warm_up": "`generate: false`; needs a connection, and is no part of Open Responses",
    "deadline": "`timeout_ms`; an extension",
    "context_management": "automatic compaction; no part of Open Responses",
    "custom_tools": "custom tool calls; no part of Open Responses",
    "raw_reasoning": "raw reasoning by OpenAI's name for it; Open Responses has another",
    "resumable": "`resumable`: the events are read again by the response's id; an extension",
    "resume": (
        "`response.resume` brings a response to a connection; "
        "needs a connection, and is an extension"
    ),
    "background": (
        "`background: true` on a call of its own; on a connection the client is there to read"
    ),
}
"""What a case may need, and why some transport is without it."""

LINE: Final = frozenset(OFFERS) - {"background"}
"""What a transport with a line of its own offers: everything that concerns one."""

BACKGROUND: Final = frozenset({"background"})
"""What a call by itself offers; all that is left of one in the open-responses profile."""

REQUEST: Final = BACKGROUND | {
    "deadline",
    "custom_tools",
    "raw_reasoning",
    "cancel_by_id",
    "context_management",
    "resumable",
}
"""What one HTTP request offers, streamed or not."""

OPEN_CONNECTION: Final = frozenset({"events", "connection", "messages"})
"""What is left of a line in the open-responses profile."""

OPEN: Final = "open-responses"


class Wire(NamedTuple):
    """One transport: how a peer connects, what can be done there, what its clients know."""

    connect: Callable[[Served], AbstractAsyncContextManager[Peer]]
    types: Types
    offers: frozenset[str] = frozenset()
    heard: list[Json] | None = None
    """Where the events go that its peers hear."""
    upstream: str | None = None
    """Whether the server has its answers from another one (``upstream_way``)."""
    real: str | None = None
    """The way to a real model that answers, if any (``llama_way``)."""

    @asynccontextmanager
    async def __call__(self, served: Served) -> AsyncIterator[Peer]:
        """A peer of this transport."""
        async with self.connect(served) as peer:
            yield CheckedPeer(peer, self.types, self.heard)


WIRES: Final[Mapping[str, Wire]] = {
    # Its calls of one turn beside its lines may be in the background.
    "grpc": Wire(_grpc, GRPC_EVENTS, LINE | BACKGROUND),
    "websocket": Wire(_websocket, OPENAI_EVENTS, LINE),
    "sse": Wire(partial(_http, stream=True), OPENAI_EVENTS, REQUEST | {"events"}),
    "http": Wire(partial(_http, stream=False), OPENAI_ANSWERS, REQUEST),
    "open-websocket": Wire(partial(_websocket, profile=OPEN), OPEN_EVENTS, OPEN_CONNECTION),
    "open-sse": Wire(
        partial(_http, stream=True, profile=OPEN), OPEN_EVENTS, BACKGROUND | {"events"}
    ),
    "open-http": Wire(partial(_http, stream=False, profile=OPEN), OPEN_ANSWERS, BACKGROUND),
}


def offering(*needed: str) -> dict[str, Wire]:
    """The transports with all of this; there must be some."""
    unknown = set(needed) - OFFERS.keys()
    assert not unknown, f"nothing offers {sorted(unknown)}"
    return {name: wire for name, wire in WIRES.items() if wire.offers.issuperset(needed)}


async def collect(peer: Peer, *, lane: str | None = None) -> list[Json]:
    """Events up to the end of one request; other lanes' events may not come between."""
    seen: list[Json] = []
    while True:
        event = await peer.receive()
        assert event.get("stream_id") == lane, event
        seen.append(event)
        if event["type"] in TERMINAL:
            return seen


async def ask(peer: Peer, **members: Any) -> list[Json]:
    """Sends a create and collects its events.

    ``store`` is false unless the case says otherwise, or the transport has no line to remember.
    """
    defaults = {"model": "scripted", "store": not peer.remembers}
    create = {"type": "response.create", **defaults, **members}
    await peer.send(create)
    return await collect(peer, lane=members.get("stream_id"))


def response(events: list[Json]) -> Json:
    """The response that the last event carries."""
    final: Json = events[-1]["response"]
    return final


def text(events: list[Json]) -> str:
    """All visible text of the final response."""
    parts = (part for item in response(events)["output"] for part in item.get("content", ()))
    return "".join(part.get("text", "") for part in parts)


def context(events: list[Json]) -> list[Json]:
    """The effective input that a ``{context}`` rule echoed, ids and statuses left out."""
    items: list[Json] = msgspec.json.decode(text(events))
    return items


def said(items: list[Json]) -> list[tuple[str, str]]:
    """(role or type, text) of each item of an echoed context."""
    return [(item.get("role") or item["type"], _text(item)) for item in items]


def _text(item: Json) -> str:
    content: Any = item.get("content", item.get("output", item.get("arguments", "")))
    if isinstance(content, str):
        return content
    return "".join(part.get("text", "") for part in content)


def output(call_id: str, value: str, kind: str = "function_call_output") -> Json:
    """One tool output item."""
    return {"type": kind, "call_id": call_id, "output": value}
