"""A client that sees every byte: HTTP/1.1 over a socket of its own."""

import asyncio
import contextlib
import json
import socket
import ssl
import struct
from collections.abc import AsyncIterator, Mapping
from typing import Any, Self

from msgspec import Struct

from tests.support.signal import PATIENCE


class Head(Struct, frozen=True):
    """The first line and the headers of an answer, names in small letters."""

    status: int
    headers: dict[str, str]


class Reply(Struct, frozen=True):
    """A whole answer."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        """The body, read."""
        return json.loads(self.body)

    @property
    def error(self) -> dict[str, Any]:
        """The envelope's content."""
        assert self.headers["content-type"].startswith("application/json")
        assert set(self.json) == {"error"}
        error: dict[str, Any] = self.json["error"]
        assert set(error) == {"message", "type", "param", "code"}
        return error


class Connection:
    """One connection; several requests may go over it, one after the other."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    @classmethod
    async def open(
        cls, port: int, *, receive_buffer: int | None = None, tls: ssl.SSLContext | None = None
    ) -> Self:
        """Connects; ``receive_buffer`` bounds what the kernel takes for a reader that stops."""
        bare = socket.socket()
        if receive_buffer is not None:
            bare.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        bare.setblocking(False)
        try:
            await asyncio.get_running_loop().sock_connect(bare, ("127.0.0.1", port))
        except OSError:
            bare.close()
            raise
        name = None if tls is None else "localhost"
        reader, writer = await asyncio.open_connection(
            sock=bare, limit=2**16, ssl=tls, server_hostname=name
        )
        return cls(reader, writer)

    def send(self, data: bytes) -> None:
        """Bytes as they are."""
        self.writer.write(data)

    def request(
        self,
        method: str,
        path: str,
        body: object = None,
        *,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        """Sends a request; a body that is no bytes goes as JSON."""
        self.send(request_bytes(method, path, body, headers=headers))

    async def ask(self, method: str, path: str, body: object = None, **headers: str) -> Reply:
        """A request and its whole answer; ``x_y`` names the header ``x-y``."""
        given = {name.replace("_", "-"): value for name, value in headers.items()}
        self.request(method, path, body, headers=given)
        return await self.reply(bodyless=method == "HEAD")

    async def head(self) -> Head:
        """The next answer's head."""
        async with asyncio.timeout(PATIENCE):
            raw = (await self.reader.readuntil(b"\r\n\r\n")).decode()
        first, *lines = raw.rstrip().split("\r\n")
        pairs = (line.partition(": ") for line in lines)
        return Head(int(first.split()[1]), {name.lower(): value for name, _, value in pairs})

    async def reply(self, *, bodyless: bool = False) -> Reply:
        """The next answer, whole."""
        head = await self.head()
        if bodyless or head.status in (204, 304):
            return Reply(head.status, head.headers, b"")
        if head.headers.get("transfer-encoding") == "chunked":
            return Reply(
                head.status, head.headers, b"".join([each async for each in self.chunks()])
            )
        async with asyncio.timeout(PATIENCE):
            body = await self.reader.readexactly(int(head.headers["content-length"]))
        return Reply(head.status, head.headers, body)

    async def chunks(self) -> AsyncIterator[bytes]:
        """The chunks of a chunked body: what the server wrote at once."""
        while True:
            async with asyncio.timeout(PATIENCE):
                size = int(await self.reader.readuntil(b"\r\n"), 16)
                data = await self.reader.readexactly(size + 2)
            if not size:
                return
            yield data[:-2]

    async def events(self) -> list[dict[str, Any]]:
        """The events of the rest of a stream."""
        return read_events(b"".join([each async for each in self.chunks()]))

    async def eof(self) -> bytes:
        """What comes until the server closes."""
        async with asyncio.timeout(PATIENCE):
            return await self.reader.read()

    def reset(self) -> None:
        """Goes away without a goodbye: RST."""
        bare = self.writer.get_extra_info("socket")
        bare.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.writer.transport.abort()

    async def close(self) -> None:
        """Closes it."""
        self.writer.close()
        with contextlib.suppress(ConnectionError, ssl.SSLError):
            await self.writer.wait_closed()


def request_bytes(
    method: str, path: str, body: object = None, *, headers: Mapping[str, str] | None = None
) -> bytes:
    """A request on the wire."""
    given = {"Host": "localhost", **(headers or {})}
    if body is not None:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        given = {"Content-Type": "application/json", "Content-Length": str(len(data)), **given}
    else:
        data = b""
    lines = [f"{method} {path} HTTP/1.1", *(f"{name}: {value}" for name, value in given.items())]
    return "\r\n".join([*lines, "", ""]).encode() + data


def read_events(stream: bytes) -> list[dict[str, Any]]:
    """The events of a whole stream, whose framing must be exact (wire.md 7.3)."""
    assert stream.endswith(b"\n\n")
    *frames, last = stream[:-2].split(b"\n\n")
    assert last == b"data: [DONE]"
    events = []
    for frame in frames:
        if frame.startswith(b":"):
            continue
        first, second = frame.split(b"\n")
        assert second.startswith(b"data: ")
        event = json.loads(second.removeprefix(b"data: "))
        assert first == b"event: " + event["type"].encode()
        events.append(event)
    return events
