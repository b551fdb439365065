"""Protobuf's framing of fields: for runs of deltas, and around bytes that are built already."""

from typing import Final


class _Varints(dict[int, bytes]):
    """The small numbers are listed, since a line of code that looks one up is not a call."""

    def __missing__(self, value: int) -> bytes:
        if not 0 <= value < 1 << 64:
            raise ValueError(f"{value} has no varint")
        out = bytearray()
        while value > 0x7F:
            out.append(value & 0x7F | 0x80)
            value >>= 7
        out.append(value)
        return bytes(out)


VARINT: Final = _Varints({value: _Varints().__missing__(value) for value in range(4096)})
"""A number -> as protobuf writes it; ValueError for one below zero or of more than 64 bits.

>>> VARINT[300]
b'\\xac\\x02'
"""

NUMBER: Final = 0
BYTES: Final = 2
"""Wire types: an integer or a flag; a string or a message."""


def tag(number: int, wire_type: int = BYTES) -> bytes:
    """What a field begins with."""
    return VARINT[number << 3 | wire_type]


def field(tag: bytes, body: bytes) -> bytes:
    """A string or message field, whole.

    >>> field(tag(4), b"Hi")
    b'"\\x02Hi'
    """
    return b"".join((tag, VARINT[len(body)], body))


def repeated(message: bytes) -> list[bytes]:
    """A message of one repeated field whose number is below 16, cut where each element ends.

    >>> repeated(field(tag(1), b"Hi") + field(tag(1), b""))
    [b'\\n\\x02Hi', b'\\n\\x00']
    """
    cut, start = [], 0
    while start < len(message):
        at, size, shift = start + 1, 0, 0
        while (byte := message[at]) & 0x80:
            size |= (byte & 0x7F) << shift
            at, shift = at + 1, shift + 7
        end = at + 1 + (size | byte << shift)
        cut.append(message[start:end])
        start = end
    return cut
