"""A WebSocket client that sends what it is told, byte by byte, and shows every frame it gets."""

import asyncio
import base64
import contextlib
import json
import os
import socket
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, Self

from msgspec import Struct

from tests.support.signal import PATIENCE

TEXT, BINARY, CLOSE, PING, PONG = 0x1, 0x2, 0x8, 0x9, 0xA

MASK = b"\x37\xfa\x21\x3d"
"""What its frames are masked with, always the same: that of the example in RFC 6455 5.7."""

TERMINAL = ("response.completed", "response.failed", "response.incomplete")


class Frame(Struct):
    """One frame of the server."""

    opcode: int
    payload: bytes
    head: int
    """Its first byte: FIN, the reserved bits, the opcode."""

    @property
    def close(self) -> tuple[int, str]:
        """Code and reason of a close frame."""
        return int.from_bytes(self.payload[:2], "big"), self.payload[2:].decode()


class Refused(Exception):
    """The upgrade was answered with something else than 101."""

    def __init__(self, status: int, headers: Mapping[str, str], body: bytes) -> None:
        super().__init__(f"{status} {body!r}")
        self.status = status
        self.headers = headers
        self.body = body

    @property
    def error(self) -> dict[str, Any]:
        """The error of the JSON envelope."""
        error: dict[str, Any] = json.loads(self.body)["error"]
        return error


def frame(
    payload: bytes, *, opcode: int = TEXT, fin: bool = True, masked: bool = True, bits: int = 0
) -> bytes:
    """A client's frame."""
    size, mask_bit = len(payload), 0x80 if masked else 0
    head = bytes(((0x80 if fin else 0) | bits | opcode,))
    if size < 126:
        head += bytes((mask_bit | size,))
    elif size < 65536:
        head += bytes((mask_bit | 126,)) + size.to_bytes(2, "big")
    else:
        head += bytes((mask_bit | 127,)) + size.to_bytes(8, "big")
    if not masked:
        return head + payload
    key = int.from_bytes((MASK * (size // 4 + 1))[:size], "big")
    return head + MASK + (int.from_bytes(payload, "big") ^ key).to_bytes(size, "big")


class RawSocket:
    """``async with`` upgrades, or raises :class:`Refused`; then frames in and out."""

    def __init__(
        self,
        port: int,
        path: str = "/v1/responses",
        *,
        headers: Mapping[str, str] | None = None,
        drop: Sequence[str] = (),
        version: str = "1.1",
        receive_buffer: int | None = None,
    ) -> None:
        self._port = port
        self._first = f"GET {path} HTTP/{version}"
        given = {
            "Host": f"127.0.0.1:{port}",
            "Upgrade": "websocket",
            "Connection": "Upgrade",
            "Sec-WebSocket-Version": "13",
            "Sec-WebSocket-Key": base64.b64encode(os.urandom(16)).decode(),
            **(headers or {}),
        }
        self._sent = {name: value for name, value in given.items() if name not in drop}
        self._receive_buffer = receive_buffer
        self.headers: dict[str, str] = {}
        """Of the answer, by lower-case name."""

    async def __aenter__(self) -> Self:
        sock = socket.socket()
        sock.setblocking(False)
        if self._receive_buffer:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, self._receive_buffer)
        loop = asyncio.get_running_loop()
        await loop.sock_connect(sock, ("127.0.0.1", self._port))
        # A small limit: the reader stops taking from the socket where the test does not read.
        self.reader, self.writer = await asyncio.open_connection(sock=sock, limit=4096)
        lines = [self._first, *(f"{k}: {v}" for k, v in self._sent.items())]
        self.writer.write("\r\n".join([*lines, "", ""]).encode())
        status, self.headers = await self._head()
        if status != 101:
            body = await self.reader.readexactly(int(self.headers.get("content-length", "0")))
            await self._shut()
            raise Refused(status, self.headers, body)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._shut()

    async def _shut(self) -> None:
        self.writer.close()
        with contextlib.suppress(ConnectionError):
            await self.writer.wait_closed()

    async def _head(self) -> tuple[int, dict[str, str]]:
        raw = await asyncio.wait_for(self.reader.readuntil(b"\r\n\r\n"), PATIENCE)
        first, *rest = raw.decode().split("\r\n")
        pairs = (line.partition(":") for line in rest if line)
        return int(first.split()[1]), {k.lower(): v.strip() for k, _, v in pairs}

    def abort(self) -> None:
        """Resets the connection."""
        sock = self.writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")
        self.writer.transport.abort()

    async def raw(self, data: bytes) -> None:
        """Sends bytes as they are."""
        self.writer.write(data)
        await self.writer.drain()

    async def send(self, message: object, **how: Any) -> None:
        """Sends one frame: a dict as JSON, text and bytes as they are."""
        if isinstance(message, dict):
            message = json.dumps(message)
        payload = message.encode() if isinstance(message, str) else message
        assert isinstance(payload, bytes)
        await self.raw(frame(payload, **how))

    async def create(self, input: object = "hi", **members: Any) -> None:
        """A create with ``store`` false unless said."""
        body = {"type": "response.create", "model": "tiny", "store": False, "input": input}
        await self.send({**body, **members})

    async def frame(self) -> Frame:
        """The server's next frame, of any kind; raises IncompleteReadError at the end."""
        async with asyncio.timeout(PATIENCE):
            head, size = await self.reader.readexactly(2)
            assert size < 0x80, "a server masks no frame (RFC 6455 5.1)"
            if size == 126:
                size = int.from_bytes(await self.reader.readexactly(2), "big")
            elif size == 127:
                size = int.from_bytes(await self.reader.readexactly(8), "big")
            payload = await self.reader.readexactly(size)
        return Frame(opcode=head & 0xF, payload=payload, head=head)

    async def event(self) -> dict[str, Any]:
        """The next text frame, read as JSON; pings and pongs are skipped."""
        async with asyncio.timeout(PATIENCE):
            while (got := await self.frame()).opcode in (PING, PONG):
                pass
        assert got.opcode == TEXT, f"{got}"
        event: dict[str, Any] = json.loads(got.payload)
        return event

    async def until(self, *types: str) -> list[dict[str, Any]]:
        """All events up to the first of these types."""
        events = [await self.event()]
        while events[-1]["type"] not in types:
            events.append(await self.event())
        return events

    async def turn(self, input: object = "hi", **members: Any) -> list[dict[str, Any]]:
        """A create and its events to the end."""
        await self.create(input, **members)
        return await self.until(*TERMINAL, "error")

    async def closed(self) -> tuple[int, str]:
        """Code and reason of the close frame, which must come next; pings are skipped."""
        async with asyncio.timeout(PATIENCE):
            while (got := await self.frame()).opcode in (PING, PONG):
                pass
        assert got.opcode == CLOSE, f"{got}"
        return got.close

    async def gone(self) -> None:
        """Waits until the server has ended the connection, with nothing more to say."""
        async with asyncio.timeout(PATIENCE):
            assert await self.reader.read() == b""
