"""What RFC 6455 asks of a client's frames and aiohttp's reader lets pass.

The reader takes a frame without a mask (5.1: the server must close), and a new message after a
first fragment that was empty (5.4). Here only headers are looked at; frames go through unchanged.
"""

from typing import Final, Protocol

FORBIDDEN: Final = b"\xf0\x80"
"""A header with all reserved bits. The reader refuses it itself, with 1002, behind what it has."""

_LENGTH_BYTES: Final = {126: 2, 127: 8}
_MASK_BYTES: Final = 4
_FIN: Final = 0x80
_MASKED: Final = 0x80
_CONTROL: Final = 0x8


class FrameReader(Protocol):
    """What reads an upgraded connection: aiohttp's reader, and this module's in front of it."""

    def feed_data(self, data: bytes) -> tuple[bool, bytes]:
        """Takes what came; says whether it wants no more, and what it left."""
        ...

    def feed_eof(self) -> None:
        """Nothing comes any more."""
        ...


class ClientFrames:
    """Stands in front of ``reader`` and shows it :data:`FORBIDDEN` in place of a bad header."""

    __slots__ = ("_broken", "_held", "_in_message", "_reader", "_rest")

    def __init__(self, reader: FrameReader) -> None:
        self._reader = reader
        self._held = b""
        """The begin of a header whose length is not known yet."""
        self._rest = 0
        """Bytes of the present frame that are still to come."""
        self._in_message = False
        """Whether a fragmented message is open."""
        self._broken = False

    def feed_eof(self) -> None:
        """Nothing comes any more."""
        self._reader.feed_eof()

    def feed_data(self, data: bytes) -> tuple[bool, bytes]:
        """Takes what came, in pieces of any size."""
        if self._broken:
            return self._reader.feed_data(data)
        if self._held:
            data = self._held + data
            self._held = b""
        at, end = self._rest, len(data)
        while at < end:
            size = self._frame_size(data[at : at + 10])
            if size is None:
                self._held, data = data[at:], data[:at]
                at = end = len(data)
            elif self._is_bad(data[at], data[at + 1]):
                self._broken = True
                return self._reader.feed_data(data[:at] + FORBIDDEN)
            else:
                at += size
        self._rest = at - end
        return self._reader.feed_data(data) if data else (False, b"")

    def _frame_size(self, head: bytes) -> int | None:
        """Bytes of the frame that begins so; None where too little of it is there."""
        if len(head) < 2:
            return None
        size = head[1] & 0x7F
        extended = _LENGTH_BYTES.get(size, 0)
        if len(head) < 2 + extended:
            return None
        if extended:
            size = int.from_bytes(head[2 : 2 + extended], "big")
        return 2 + extended + _MASK_BYTES + size

    def _is_bad(self, first: int, second: int) -> bool:
        """Whether a header breaks one of the rules; notes what it does to the open message."""
        if not second & _MASKED:
            return True
        opcode = first & 0xF
        if opcode & _CONTROL:
            return False
        if self._in_message == bool(opcode):
            return True
        self._in_message = not first & _FIN
        return False
