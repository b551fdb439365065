"""Clients on raw sockets, one for each way to stream: they read when told to, and cheaply.

Each request is made once for all lines of a kind, and what came is decoded only when it is
looked at, so that a test of many lines measures the server.
"""

import json
import os
import socket
from collections import defaultdict
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final, NamedTuple

from tests.support.server_process import ServerProcess
from tieline import events
from tieline.codecs import json as json_codec
from tieline.codecs import proto
from tieline.fold import Fold
from tieline.v1 import service_pb2
from tieline_bench.clients.base import Connection
from tieline_bench.clients.grpc import GrpcConnection
from tieline_bench.clients.sse import SseConnection
from tieline_bench.clients.websocket import WebSocketConnection

STALLED_BUFFER: Final = 64 * 1024
"""What the kernel keeps for a client that does not read (Linux doubles it)."""

READING_BUFFER: Final = 1024 * 1024
"""For a client that reads on: with a small one every few kB wait for a delayed ACK."""

TERMINAL: Final = frozenset({"response.completed", "response.incomplete", "response.failed"})


class Wire(NamedTuple):
    """A way to stream."""

    connect: Callable[[str], Connection]
    request: Callable[[dict[str, Any]], bytes]
    decode: Callable[[bytes], events.Event]
    grpc: bool = False
    """Whether it is at the gRPC address."""

    def open(self, server: ServerProcess) -> Connection:
        """A new connection, whose events are kept."""
        line = self.connect(server.address if self.grpc else server.http)
        line.recorded = bytearray()
        return line

    def create(self, says: str, **members: Any) -> bytes:
        """A create that is not stored, as it is sent."""
        return self.request({"model": "scripted", "store": False, "input": says, **members})


def _websocket_request(members: dict[str, Any]) -> bytes:
    return json.dumps({"type": "response.create", **members}).encode()


def _sse_request(members: dict[str, Any]) -> bytes:
    return json.dumps({**members, "stream": True}).encode()


def _grpc_request(members: dict[str, Any]) -> bytes:
    request = json_codec.RequestDecoder().decode(_websocket_request(members))
    return proto.encode_request(request).SerializeToString()


def _websocket_event(frame: bytes) -> events.Event:
    header = {126: 4, 127: 10}.get(frame[1], 2)
    return json_codec.decode_event(frame[header:])


def _sse_event(block: bytes) -> events.Event:
    _, _, data = block.partition(b"data: ")
    return json_codec.decode_event(data.partition(b"\n\n")[0])


def _grpc_event(message: bytes) -> events.Event:
    return proto.decode_event(service_pb2.ConverseResponse.FromString(message).events[0])


WIRES: Final = {
    "websocket": Wire(WebSocketConnection, _websocket_request, _websocket_event),
    "sse": Wire(SseConnection, _sse_request, _sse_event),
    "grpc": Wire(GrpcConnection, _grpc_request, _grpc_event, grpc=True),
}


def set_receive_buffer(line: Connection, size: int) -> None:
    """Bounds what the kernel keeps for the client."""
    with _same_socket(line) as same:
        same.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, size)


def _same_socket(line: Connection) -> socket.socket:
    """A second descriptor of the line's socket: closing it leaves the line's own."""
    return socket.socket(fileno=os.dup(line.fileno()))


def read_turns(wire: Wire, line: Connection, turns: int) -> dict[str | None, list[events.Event]]:
    """Reads until so many turns have ended; every event that came, by lane."""
    ended = 0
    while ended < turns:
        ended += sum(seen.kind in TERMINAL for seen in line.receive())
    assert line.recorded is not None
    lanes: defaultdict[str | None, list[events.Event]] = defaultdict(list)
    for piece in line.split(bytes(line.recorded)):
        event = wire.decode(piece)
        lanes[event.stream_id or None].append(event)
    return dict(lanes)


def folded(turn: list[events.Event]) -> str:
    """The text of a turn that ended well, whose numbers have no gap."""
    assert [event.sequence_number for event in turn] == list(range(len(turn)))
    assert turn[-1].type == "response.completed"
    fold = Fold()
    for event in turn[:-1]:
        fold.push(event)
    grown = fold.text
    fold.push(turn[-1])
    assert fold.text == grown
    return grown


def drop(line: Connection) -> None:
    """Goes away without a goodbye."""
    with suppress(OSError), _same_socket(line) as same:
        same.shutdown(socket.SHUT_RDWR)
    line.close()
