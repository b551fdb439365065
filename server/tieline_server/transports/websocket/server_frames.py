"""Frames as a server sends them: never masked, never fragmented (RFC 6455 5.1, 5.2).

Reading is aiohttp's. Writing is ours, because several frames then leave in one write.
"""

from typing import Final

PING: Final = b"\x89\x00"
"""A ping without a payload: proof of life that every client library answers by itself."""

REASON_BYTES: Final = 123
"""What a close frame has room for beside its code (RFC 6455 5.5: 125 bytes in all)."""


def text_header(size: int) -> bytes:
    """What stands before a text of ``size`` bytes: FIN and opcode, then the length.

    >>> text_header(5).hex()
    '8105'
    """
    if size < 126:
        return bytes((0x81, size))
    if size < 65536:
        return b"\x81\x7e" + size.to_bytes(2, "big")
    return b"\x81\x7f" + size.to_bytes(8, "big")


USUAL: Final = 4096
"""The end of the sizes that events mostly have."""

TEXT_HEADERS: Final = tuple(map(text_header, range(USUAL)))
"""The headers of those: looking one up is not a call."""


def close_frame(code: int, reason: str = "") -> bytes:
    """The last frame (RFC 6455 5.5.1); a reason that is too long is cut.

    >>> close_frame(1000).hex()
    '880203e8'
    """
    text = reason.encode()[:REASON_BYTES].decode("utf-8", "ignore").encode()
    return bytes((0x88, 2 + len(text))) + code.to_bytes(2, "big") + text
