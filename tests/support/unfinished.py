"""Clients that begin messages and never end them, on each transport, on raw sockets.

Each sends until it has sent what it wants, or until the server says something to it.
"""

import json
import select
import socket
import struct
from collections.abc import Callable
from typing import Any, Final

from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import ResponseReceived, TrailersReceived

from tests.support.http_client import request_bytes
from tieline.v1 import service_pb2

PIECE: Final = 64 * 1024
TIMEOUT: Final = 120.0
"""Seconds after which a server that should have answered is given up."""

LEFT: Final = 4096
"""Bytes of each message that are announced and not sent; by some of them it is kept alive."""

PATH: Final = "/v1/responses"
SERVICE: Final = service_pb2.DESCRIPTOR.services_by_name["ResponsesService"].full_name


def dial(address: str) -> socket.socket:
    """A connection to ``HOST:PORT``."""
    host, _, port = address.rpartition(":")
    return socket.create_connection((host, int(port)), timeout=TIMEOUT)


def readable(connection: socket.socket) -> bool:
    """Whether something has come on it."""
    poll = select.poll()
    poll.register(connection, select.POLLIN)
    return bool(poll.poll(0))


class Unfinished:
    """A connection with a message on it that does not end."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self.answer = b""
        """What the server has said."""

    @property
    def code(self) -> str | None:
        """The code of the error that it has said, if any."""
        _, found, rest = self.answer.partition(b'"code":"')
        return rest.partition(b'"')[0].decode() if found else None

    def send(self, size: int) -> None:
        """Sends so many bytes more, or fewer where the server says something."""
        while size and not self.told():
            piece = min(size, PIECE)
            self.connection.sendall(b" " * piece)
            size -= piece

    def told(self) -> bool:
        """Whether the server says something, which is read then."""
        if readable(self.connection):
            self.answer += self.connection.recv(PIECE)
            return True
        return False

    def close(self) -> None:
        """Goes away."""
        self.connection.close()


def http_body(address: str, key: str, size: int) -> Unfinished:
    """A POST whose body has more bytes than ``size``, which are sent."""
    head = request_bytes("POST", PATH, headers=_bearer(key))
    length = b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n" % (size + LEFT)
    return _begun(address, head.removesuffix(b"\r\n") + length, size)


def http_chunks(address: str, key: str, size: int) -> Unfinished:
    """The same in one chunk, which may not be the last."""
    head = request_bytes("POST", PATH, headers=_bearer(key))
    coding = b"Content-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n%x\r\n"
    coding %= size + LEFT
    return _begun(address, head.removesuffix(b"\r\n") + coding, size)


def websocket_frame(address: str, key: str, size: int) -> Unfinished:
    """A text frame of more bytes than ``size``; refused at its upgrade, there is none."""
    return _upgraded(address, key, size, b"\x81", LEFT)


def websocket_fragment(address: str, key: str, size: int) -> Unfinished:
    """A whole first fragment of ``size`` bytes, and a second one that is cut."""
    begun = _upgraded(address, key, size, b"\x01", 0)
    if begun.code is None:
        begun.connection.sendall(b"\x00\xff" + LEFT.to_bytes(8, "big") + bytes(4))
    return begun


BEGINNINGS: Final[dict[str, Callable[[str, str, int], Unfinished]]] = {
    "http, a body": http_body,
    "http, chunks": http_chunks,
    "websocket, a frame": websocket_frame,
    "websocket, fragments": websocket_fragment,
}


def _begun(address: str, head: bytes, size: int) -> Unfinished:
    begun = Unfinished(dial(address))
    begun.connection.sendall(head)
    begun.send(size)
    return begun


def _upgraded(address: str, key: str, size: int, first: bytes, left: int) -> Unfinished:
    upgrade = {
        **_bearer(key),
        "Upgrade": "websocket",
        "Connection": "Upgrade",
        "Sec-WebSocket-Version": "13",
        "Sec-WebSocket-Key": "AAAAAAAAAAAAAAAAAAAAAA==",
    }
    begun = Unfinished(dial(address))
    begun.connection.sendall(request_bytes("GET", PATH, headers=upgrade))
    while b"\r\n\r\n" not in begun.answer:
        begun.answer += begun.connection.recv(PIECE)
    if begun.answer.startswith(b"HTTP/1.1 101 "):
        begun.connection.sendall(first + b"\xff" + (size + left).to_bytes(8, "big") + bytes(4))
        begun.send(size)
    elif b'"code"' not in begun.answer:
        begun.answer += begun.connection.recv(PIECE)
    return begun


def _bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


class UnfinishedCalls:
    """One HTTP/2 connection; each call on it begins a message that does not end."""

    def __init__(self, address: str, key: str | None) -> None:
        self._address = address
        self._key = key
        self._connection = dial(address)
        self._h2 = H2Connection(H2Configuration(client_side=True, header_encoding="utf-8"))
        self._h2.initiate_connection()
        self._read()
        self.status: dict[int, str] = {}
        """Calls that have ended, and how."""

    def call(self, method: str, size: int) -> int:
        """Begins a message of a byte more than ``size``, which are sent; returns the call's id."""
        stream: int = self._h2.get_next_available_stream_id()
        self._h2.send_headers(stream, self._headers(method))
        self._send(stream, struct.pack(">BL", 0, size + 1) + b"\x0a" * size)
        return stream

    def told(self, stream: int) -> str:
        """Waits for a call's end; its status."""
        while stream not in self.status:
            self._read()
        return self.status[stream]

    def close(self) -> None:
        """Goes away."""
        self._connection.close()

    def _headers(self, method: str) -> list[tuple[str, str]]:
        service = method if "/" in method else f"{SERVICE}/{method}"
        headers = [
            (":method", "POST"),
            (":scheme", "http"),
            (":path", f"/{service}"),
            (":authority", self._address),
            ("te", "trailers"),
            ("content-type", "application/grpc"),
        ]
        return headers + ([("authorization", f"Bearer {self._key}")] if self._key else [])

    def _send(self, stream: int, data: bytes) -> None:
        left = memoryview(data)
        while left and stream not in self.status:
            room = min(self._h2.local_flow_control_window(stream), self._h2.max_outbound_frame_size)
            if room == 0:
                self._read()
                continue
            self._h2.send_data(stream, bytes(left[:room]))
            left = left[room:]
            if readable(self._connection):
                self._read()
            self._flush()

    def _read(self) -> None:
        self._flush()
        data = self._connection.recv(PIECE)
        assert data, "the server has closed the connection"
        for event in self._h2.receive_data(data):
            if isinstance(event, (ResponseReceived, TrailersReceived)):
                headers: dict[Any, Any] = dict(event.headers)
                if "grpc-status" in headers:
                    self.status[event.stream_id] = headers["grpc-status"]
        self._flush()

    def _flush(self) -> None:
        if pending := self._h2.data_to_send():
            self._connection.sendall(pending)


def created(address: str, key: str) -> dict[str, Any]:
    """A response, made over HTTP."""
    create = {"model": "scripted", "store": False, "input": "hi"}
    head = {**_bearer(key), "Connection": "close"}
    with dial(address) as connection:
        connection.sendall(request_bytes("POST", PATH, create, headers=head))
        answer = b""
        while more := connection.recv(PIECE):
            answer += more
    found: dict[str, Any] = json.loads(answer.partition(b"\r\n\r\n")[2])
    return found
