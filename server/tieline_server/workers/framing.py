"""Framing of messages on a stream of bytes: the length of each, then msgpack.

Both ends are processes of one server and one user: a message that is too long is a bug.
"""

import asyncio
import socket
from struct import Struct as Layout
from typing import Final, TypeVar

import msgspec

M = TypeVar("M")

LENGTH: Final = Layout(">I")
LONGEST: Final = 2**30
"""Bytes of a message: a response with all its output is one."""

_encoder: Final = msgspec.msgpack.Encoder()


class BrokenMessage(Exception):
    """The stream ended inside a message, or the bytes are none."""


def pack(message: msgspec.Struct) -> bytes:
    """Encodes a message and its length."""
    body = _encoder.encode(message)
    return LENGTH.pack(len(body)) + body


def send(writer: asyncio.StreamWriter, message: msgspec.Struct) -> None:
    """Writes a message; raises :class:`ConnectionError` where the connection is gone.

    uvloop raises a RuntimeError for a write to what is closed, and asyncio's own loops nothing.
    """
    if writer.transport.is_closing():
        raise ConnectionResetError("the connection is gone")
    writer.write(pack(message))


class Decoder:
    """Reads messages of some types off a stream."""

    __slots__ = ("_decoder",)

    def __init__(self, types: object) -> None:
        self._decoder: msgspec.msgpack.Decoder[object] = msgspec.msgpack.Decoder(types)

    async def read(self, reader: asyncio.StreamReader) -> object | None:
        """Reads a message; None where the stream ended before it. Raises :class:`BrokenMessage`."""
        try:
            size = self._size(await reader.readexactly(LENGTH.size))
            return self._decode(await reader.readexactly(size))
        except asyncio.IncompleteReadError as error:
            if error.partial or error.expected != LENGTH.size:
                raise BrokenMessage from None
            return None
        except OSError:
            raise BrokenMessage from None

    def receive(self, sock: socket.socket) -> object | None:
        """Reads a message from a blocking socket, and nothing beyond it."""
        head = _receive(sock, LENGTH.size)
        if not head:
            return None
        return self._decode(_receive(sock, self._size(head)))

    def unpack(self, packet: bytes) -> object:
        """Decodes a message that came as one packet. Raises :class:`BrokenMessage`."""
        if len(packet) != LENGTH.size + self._size(packet[: LENGTH.size]):
            raise BrokenMessage
        return self._decode(packet[LENGTH.size :])

    def _size(self, head: bytes) -> int:
        if len(head) < LENGTH.size:
            raise BrokenMessage
        size: int = LENGTH.unpack(head)[0]
        if size > LONGEST:
            raise BrokenMessage
        return size

    def _decode(self, body: bytes) -> object:
        try:
            return self._decoder.decode(body)
        except (msgspec.MsgspecError, ValueError):
            raise BrokenMessage from None


def _receive(sock: socket.socket, size: int) -> bytes:
    parts = bytearray()
    while len(parts) < size:
        part = sock.recv(size - len(parts))
        if not part:
            break
        parts += part
    return bytes(parts)
