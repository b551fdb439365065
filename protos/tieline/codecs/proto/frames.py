"""Protobuf's framing of a field, for messages that are joined from parts built before."""

from typing import Final


def varint(value: int) -> bytes:
    """A number as protobuf writes it.

    >>> varint(300)
    b'\\xac\\x02'
    """
    if value < len(_KNOWN):
        return _KNOWN[value]
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


_KNOWN: Final = tuple(
    bytes((value,)) if value < 0x80 else bytes((value & 0x7F | 0x80, value >> 7))
    for value in range(4096)
)


def tag(number: int) -> bytes:
    """The tag of a field that carries its length: a string or a message."""
    return varint(number << 3 | 2)


def field(number: int, body: bytes) -> bytes:
    """A string or message field, whole."""
    return tag(number) + varint(len(body)) + body
