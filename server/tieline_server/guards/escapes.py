"""JSON text without its escapes (RFC 8259 7), piece by piece, with the way back to the text.

The arguments of a call are JSON text: a client reads ``b\\u0061d`` as ``bad``, so a guard has to.
"""

from typing import Final

_SHORT: Final = {"b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"}
_HEX: Final = frozenset("0123456789abcdefABCDEF")
_ALONE: Final = "\ufffd"
"""Stands for half a surrogate pair."""


class Unescaper:
    """Takes JSON text as it comes; an escape that is not whole yet waits."""

    __slots__ = ("_waiting", "at")

    def __init__(self, at: int = 0) -> None:
        self.at = at
        """Characters of the text that are read, without those that wait."""
        self._waiting = ""

    def feed(self, text: str, *, last: bool = False) -> tuple[str, list[int]]:
        """What the next characters mean, and where in the text each character of it begins."""
        text = self._waiting + text
        out: list[str] = []
        starts: list[int] = []
        at, end = 0, len(text)
        while at < end:
            found = text.find("\\", at)
            plain = end if found < 0 else found
            out.append(text[at:plain])
            starts += range(self.at + at, self.at + plain)
            at = plain
            if at == end:
                break
            read = _escape(text, at, last=last)
            if read is None:
                break
            char, size = read
            out.append(char)
            starts.append(self.at + at)
            at += size
        self.at += at
        self._waiting = text[at:]
        return "".join(out), starts


def unescaped(text: str) -> str:
    """JSON text without its escapes.

    >>> unescaped('{"q":"b\\\\u0061d"}')
    '{"q":"bad"}'
    """
    return Unescaper().feed(text, last=True)[0] if "\\" in text else text


def _escape(text: str, at: int, *, last: bool) -> tuple[str, int] | None:
    """The character of the escape at a backslash, and its length; None where it is not whole."""
    kind = text[at + 1 : at + 2]
    if kind == "u":
        return _code(text, at, last=last)
    if not kind:
        return ("\\", 1) if last else None
    return _SHORT.get(kind, kind), 2


def _code(text: str, at: int, *, last: bool) -> tuple[str, int] | None:
    unit = _unit(text, at)
    if unit is None:
        if len(text) - at < 6 and not last:
            return None
        return "\\", 1
    if not 0xD800 <= unit < 0xE000:
        return chr(unit), 6
    if unit >= 0xDC00:
        return _ALONE, 6
    low = _unit(text, at + 6)
    if low is not None and 0xDC00 <= low < 0xE000:
        return chr(0x10000 + ((unit - 0xD800) << 10) + (low - 0xDC00)), 12
    if low is None and len(text) - at < 12 and not last and "\\u".startswith(text[at + 6 : at + 8]):
        return None
    return _ALONE, 6


def _unit(text: str, at: int) -> int | None:
    digits = text[at + 2 : at + 6]
    whole = text.startswith("\\u", at) and len(digits) == 4 and _HEX.issuperset(digits)
    return int(digits, 16) if whole else None
