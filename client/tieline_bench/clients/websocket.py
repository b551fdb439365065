"""A WebSocket connection on a raw socket: hand-made masked frames, whole text frames back."""

import base64
import hashlib
import os
import struct
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

from tieline_bench.clients.base import LoadError, Seen, dial, some_bytes
from tieline_bench.clients.json_event import seen

PATH: Final = "/v1/responses"
GUID: Final = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
"""What a server appends to the key (RFC 6455 1.3)."""

TEXT: Final = 0x1
CLOSE: Final = 0x8
PING: Final = 0x9
PONG: Final = 0xA
_FINAL: Final = 0x80


def masked(payload: bytes, opcode: int = TEXT) -> bytes:
    """A client's frame (RFC 6455 5.2, 5.3)."""
    key = os.urandom(4)
    head = bytes((_FINAL | opcode,)) + _length(len(payload), 0x80) + key
    # One XOR of two large numbers: by far the fastest mask without a C extension.
    size = len(payload)
    mask = (key * (size // 4 + 1))[:size]
    mixed = int.from_bytes(payload, "big") ^ int.from_bytes(mask, "big")
    return head + mixed.to_bytes(size, "big")


def _length(size: int, mask_bit: int) -> bytes:
    if size < 126:
        return bytes((mask_bit | size,))
    if size < 1 << 16:
        return struct.pack(">BH", mask_bit | 126, size)
    return struct.pack(">BQ", mask_bit | 127, size)


class WebSocketConnection:
    """One connection; see ``base.Connection``. ``recorded`` holds whole frames."""

    def __init__(self, address: str, *, api_key: str | None = None, path: str = PATH) -> None:
        self.recorded: bytearray | None = None
        self._socket = dial(address)
        self._data = bytearray()
        try:
            self._upgrade(address, api_key, path)
        except BaseException:
            self._socket.close()
            raise

    def send(self, request: bytes) -> None:
        """Sends one text frame."""
        self._socket.sendall(masked(request))

    def receive(self) -> Sequence[Seen]:
        """The events of the text frames that are whole now; answers pings."""
        # What came behind the handshake, or behind the last whole frame, may be whole already.
        if _frame(self._data, 0) is None:
            self._data += some_bytes(self._socket)
        found: list[Seen] = []
        at = 0
        while (frame := _frame(self._data, at)) is not None:
            opcode, start, end = frame
            if self.recorded is not None and opcode == TEXT:
                self.recorded += self._data[at:end]
            payload = self._data[start:end]
            at = end
            if opcode == TEXT:
                found.append(seen(payload))
            elif opcode == PING:
                self._socket.sendall(masked(bytes(payload), PONG))
            elif opcode != PONG:
                raise LoadError(f"the server sent a frame with opcode {opcode}")
        del self._data[:at]
        return found

    def split(self, recorded: bytes) -> list[bytes]:
        """Each frame."""
        frames: list[bytes] = []
        at = 0
        while (frame := _frame(recorded, at)) is not None:
            frames.append(recorded[at : frame[2]])
            at = frame[2]
        return frames

    def fileno(self) -> int:
        """The socket's descriptor."""
        return self._socket.fileno()

    def close(self) -> None:
        """Says goodbye (1000) and drops the connection."""
        with suppress(OSError):
            self._socket.sendall(masked(struct.pack(">H", 1000), CLOSE))
        self._socket.close()

    def _upgrade(self, address: str, api_key: str | None, path: str) -> None:
        key = base64.b64encode(os.urandom(16)).decode()
        lines = [
            f"GET {path} HTTP/1.1",
            f"Host: {address}",
            "Upgrade: websocket",
            "Connection: Upgrade",
            f"Sec-WebSocket-Key: {key}",
            "Sec-WebSocket-Version: 13",
        ]
        if api_key:
            lines.append(f"Authorization: Bearer {api_key}")
        self._socket.sendall("\r\n".join([*lines, "", ""]).encode())
        while b"\r\n\r\n" not in self._data:
            self._data += some_bytes(self._socket)
        head, _, rest = bytes(self._data).partition(b"\r\n\r\n")
        accept = base64.b64encode(hashlib.sha1((key + GUID).encode()).digest())
        if not head.startswith(b"HTTP/1.1 101 ") or accept not in head:
            raise LoadError(f"no upgrade: {head.splitlines()[0].decode('latin-1')}")
        self._data = bytearray(rest)


def _frame(data: bytes | bytearray, at: int) -> tuple[int, int, int] | None:
    """(opcode, start, end) of the payload of a frame; None while it is not whole."""
    if len(data) - at < 2:
        return None
    first, size = data[at], data[at + 1]
    start = at + 2
    if not first & _FINAL or first & 0x70 or size & 0x80:
        raise LoadError("the server sent a fragment, an extension, or a masked frame")
    if size >= 126:
        start += 2 if size == 126 else 8
        if len(data) < start:
            return None
        size = int.from_bytes(data[at + 2 : start], "big")
    end = start + size
    return (first & 0xF, start, end) if len(data) >= end else None
