"""A client's frames before aiohttp's reader sees them: sound ones, and whole messages only.

The reader takes a frame without a mask (RFC 6455 5.1: the server must close), and a new message
after a first fragment that was empty (5.4). And it gathers what comes of a message by itself,
where nothing counts it. So headers are looked at here. What is whole goes through unchanged; a
message that is not yet is kept until it is, as long as its :class:`Gate` lets it be. Control
frames between its fragments go through at once.
"""

from typing import Final, Protocol, runtime_checkable

FORBIDDEN: Final = b"\xf0\x80"
"""A header with all reserved bits. The reader refuses it itself, with 1002, behind what it has."""

TOO_LARGE: Final = b"\x82\xff\x7f" + b"\xff" * 7
"""A header of 2^63-1 bytes, which the reader refuses itself, with 1009."""

_LENGTH_BYTES: Final = {126: 2, 127: 8}
_MASK_BYTES: Final = 4
_FIN: Final = 0x80
_DEFLATED: Final = 0x40
_RESERVED: Final = 0x30
_MASKED: Final = 0x80
_CONTROL: Final = 0x8
_CONTROL_BYTES: Final = 125
_OPCODES: Final = frozenset({0x0, 0x1, 0x2, 0x8, 0x9, 0xA})


class FrameReader(Protocol):
    """What reads an upgraded connection: aiohttp's reader, and this module's in front of it."""

    def feed_data(self, data: bytes) -> tuple[bool, bytes]:
        """Takes what came; says whether it wants no more, and what it left."""
        ...

    def feed_eof(self) -> None:
        """Nothing comes any more."""
        ...


class Gate(Protocol):
    """What says how much of a message that is still coming may be kept."""

    most: int
    """Bytes that a message may have."""
    deflate: bool
    """Whether messages may be compressed."""

    def take(self, size: int) -> bool:
        """So many bytes more are to be kept; False: none of the message may be."""
        ...

    def complete(self, number: int) -> None:
        """The message has come; it is the ``number``-th that the reader is given."""
        ...

    def wait(self) -> None:
        """A message or a header has begun, and its rest is due. Called again with each piece."""
        ...

    def rest(self) -> None:
        """Nothing is due any more."""
        ...


@runtime_checkable
class Gated(Protocol):
    """A connection that reads an upgrade's frames through a gate, which the handshake sets."""

    gate: Gate | None


class ClientFrames:
    """Stands in front of ``reader``; shows it :data:`FORBIDDEN` in place of a bad header."""

    __slots__ = ("_broken", "_gate", "_held", "_in_message", "_kept", "_messages",
                 "_reader", "_rest", "_size", "_skips", "_waits")  # fmt: skip

    def __init__(self, reader: FrameReader, gate: Gate) -> None:
        self._reader = reader
        self._gate = gate
        self._held = b""
        """The begin of a header whose length is not known yet, or of a control frame."""
        self._rest = 0
        """Bytes of the present frame, kept or skipped, that are still to come."""
        self._in_message = False
        """Whether more frames of the present message are to come after this one."""
        self._size = 0
        """Payload bytes of the present message, by the headers seen so far."""
        self._kept = bytearray()
        """The frames of the present message."""
        self._skips = False
        """Whether the gate has refused the present message, of which nothing is kept then."""
        self._messages = 0
        """Messages that the reader has been given."""
        self._waits = False
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
        begin = at = 0
        """What of ``data`` lies between them goes through unchanged."""
        end = len(data)
        while at < end:
            if self._rest:
                begin = at = self._follow(data, at)
                continue
            if end - at >= 2 and self._is_bad(data[at], data[at + 1]):
                return self._refuse(data[begin:at], FORBIDDEN)
            sizes = _sizes(data, at)
            control = data[at] & _CONTROL
            size = 0 if sizes is None else sizes[0] + sizes[1]
            if sizes is None or (control and size > end - at):
                self._held = data[at:]
                break
            if not control:
                self._size += sizes[1]
                if self._size > self._gate.most:
                    return self._refuse(data[begin:at], TOO_LARGE)
                if not self._is_whole(data[at], end - at - size):
                    self._pass(data[begin:at])
                    begin = at
                    self._begin(data[at], size)
                    continue
            at += size
        if self._held or self._rest or self._in_message or self._waits:
            self._tell()
        return self._pass(data if at - begin == len(data) else data[begin:at])

    def _is_bad(self, first: int, second: int) -> bool:
        """Whether a header breaks a rule (RFC 6455 5.1 to 5.5)."""
        opcode = first & 0xF
        if not second & _MASKED or first & _RESERVED or opcode not in _OPCODES:
            return True
        if first & _DEFLATED and not self._gate.deflate:
            return True
        if opcode & _CONTROL:
            return not first & _FIN or second & 0x7F > _CONTROL_BYTES
        return self._in_message == bool(opcode)

    def _is_whole(self, first: int, behind: int) -> bool:
        """Whether a message is one frame that is all there; then it is not kept here."""
        if self._in_message or not first & _FIN or behind < 0:
            return False
        self._messages += 1
        self._size = 0
        return True

    def _begin(self, first: int, size: int) -> None:
        """A frame of ``size`` bytes is followed from here on, until its message is whole."""
        self._rest = size
        self._in_message = not first & _FIN

    def _follow(self, data: bytes, at: int) -> int:
        """Keeps or skips what is there of the present frame; returns where that ends."""
        end = min(len(data), at + self._rest)
        self._rest -= end - at
        if not self._skips:
            if self._gate.take(end - at):
                self._kept += memoryview(data)[at:end]
            else:
                self._skips = True
                self._kept = bytearray()
        if not self._rest and not self._in_message:
            self._complete()
        return end

    def _complete(self) -> None:
        """The last byte of a message has come."""
        self._size = 0
        if self._skips:
            self._skips = False
            return
        self._messages += 1
        self._gate.complete(self._messages)
        kept, self._kept = bytes(self._kept), bytearray()
        self._pass(kept)

    def _tell(self) -> None:
        """Tells the gate whether more is due."""
        follows = (self._rest or self._in_message) and not self._skips
        if self._held or follows:
            self._waits = True
            self._gate.wait()
        elif self._waits:
            self._waits = False
            self._gate.rest()

    def _pass(self, data: bytes) -> tuple[bool, bytes]:
        return self._reader.feed_data(data) if data else (False, b"")

    def _refuse(self, before: bytes, header: bytes) -> tuple[bool, bytes]:
        """Shows the reader what it refuses itself, behind what came before it."""
        self._broken = True
        self._kept = bytearray()
        self._gate.rest()
        return self._reader.feed_data(before + header)


def _sizes(data: bytes, at: int) -> tuple[int, int] | None:
    """Bytes of a frame's header and of its payload; None where too little of it is there."""
    if len(data) < at + 2:
        return None
    size = data[at + 1] & 0x7F
    header = 2 + _LENGTH_BYTES.get(size, 0)
    if len(data) < at + header:
        return None
    if size in _LENGTH_BYTES:
        size = int.from_bytes(data[at + 2 : at + header], "big")
    return header + _MASK_BYTES, size
