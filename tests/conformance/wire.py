"""The roads to one server: each case says JSON and hears JSON, whatever carries it.

``WIRES`` is the table of transports; a new one is one class and one line, and every case runs
over it.
"""

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, Final, NamedTuple, Protocol

import msgspec

from tests.conformance.server import Served
from tests.support.grpc_client import RawLine
from tests.support.grpc_harness import responses
from tieline.codecs.json import encode
from tieline.codecs.proto import decode_event, from_response, request_to_proto
from tieline.responses import encode as encode_response
from tieline.v1 import line_pb2, requests_pb2

Json = dict[str, Any]

TERMINAL: Final = frozenset(
    {"response.completed", "response.incomplete", "response.failed", "response.done", "error"}
)
"""Events after which a request has had its answer (a held turn's is ``response.done``)."""


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

    async def abort(self) -> None:
        """Drops the line without a goodbye."""
        ...


class GrpcPeer:
    """One ``Connect`` stream."""

    remembers = True

    def __init__(self, line: RawLine) -> None:
        self._line = line

    async def send(self, message: Json) -> None:
        """Sends one client event."""
        await self._line.send(request_to_proto(msgspec.json.encode(message)))

    async def send_broken(self) -> None:
        """A length that runs past the end: no protobuf message."""
        await self._line.send(b"\x12\xff\x01{not proto")

    async def send_unknown(self, kind: str) -> None:
        """An opaque arm of this type."""
        opaque = requests_pb2.OpaqueRequest(type=kind, json=f'{{"type":"{kind}"}}')
        await self._line.send(line_pb2.ConnectRequest(opaque=opaque))

    async def send_untyped(self) -> None:
        """An envelope without an arm."""
        await self._line.send(line_pb2.ConnectRequest(event_id="evt"))

    async def receive(self) -> Json:
        """The next event as JSON."""
        event = await self._line.next()
        assert event is not None, "the line has ended"
        members: Json = msgspec.json.decode(encode(decode_event(event)))
        return members

    async def retrieve(self, response_id: str) -> Json:
        """``GetResponse`` on the same channel."""
        ask = line_pb2.GetResponseRequest(response_id=response_id)
        got = await responses(self._line.channel).GetResponse(ask)
        members: Json = msgspec.json.decode(encode_response(from_response(got.response)))
        return members

    async def abort(self) -> None:
        """Cancels the call."""
        self._line.call.cancel()


@asynccontextmanager
async def _grpc(served: Served) -> AsyncIterator[Peer]:
    async with RawLine(served.port) as line:
        peer = GrpcPeer(line)
        await peer.send({"type": "tieline.session.start", "merge": "never"})
        assert (await peer.receive())["type"] == "tieline.session.started"
        yield peer


LINE: Final = frozenset({"line", "lanes", "cancel", "steer", "append", "messages"})
"""What a transport with a line of its own offers."""


class Wire(NamedTuple):
    """One transport: how a peer connects, and what can be done there."""

    connect: Callable[[Served], AbstractAsyncContextManager[Peer]]
    offers: frozenset[str] = frozenset()

    def __call__(self, served: Served) -> AbstractAsyncContextManager[Peer]:
        """A peer of this transport."""
        return self.connect(served)


WIRES: Final[Mapping[str, Wire]] = {"grpc": Wire(_grpc, LINE)}


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
