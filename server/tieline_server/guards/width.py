"""How long and how short a match of a pattern can be: what has to be held back for it.

RE2 does not tell, so its syntax is read here (https://github.com/google/re2/wiki/Syntax). Lengths
are in characters. Only patterns that RE2 has taken are read; what this module does not know is
refused rather than guessed.
"""

import re
from typing import Final

from msgspec import Struct

_REPEAT: Final = re.compile(r"\{(\d{1,4})(?:(,)(\d{1,4})?)?\}")
_NAME: Final = re.compile(r"P?<[^<>]*>")
_FLAGS: Final = re.compile(r"[imsU]*(?:-[imsU]+)?([:)])")
_CLASS: Final = re.compile(r"\[\^?\]?(?:\[:\^?[a-z]+:\]|\\.|[^\]\\])*\]", re.DOTALL)
_CHARACTER: Final = re.compile(
    r"[pP](?:\{[^}]*\}|.)|x(?:\{[0-9A-Fa-f]+\}|[0-9A-Fa-f]{2})|[0-7]{1,3}|[dswDSWaftnrv]|[^\w\s]|_",
    re.DOTALL,
)
_ASSERTIONS: Final = "AzbB"


class UnknownWidth(ValueError):
    """The pattern has something that this module does not know."""


class Width(Struct, frozen=True):
    """Characters of the shortest and of the longest match; None where there is no longest."""

    shortest: int = 0
    longest: int | None = 0
    asserts: bool = False
    """Whether a match depends on what stands beside it."""

    def then(self, other: "Width") -> "Width":
        """One after the other."""
        unbounded = self.longest is None or other.longest is None
        longest = None if unbounded else (self.longest or 0) + (other.longest or 0)
        return Width(self.shortest + other.shortest, longest, self.asserts or other.asserts)

    def either(self, other: "Width") -> "Width":
        """One or the other."""
        unbounded = self.longest is None or other.longest is None
        longest = None if unbounded else max(self.longest or 0, other.longest or 0)
        shortest = min(self.shortest, other.shortest)
        return Width(shortest, longest, self.asserts or other.asserts)

    def times(self, least: int, most: int | None) -> "Width":
        """Repeated; ``most`` None is without end."""
        if self.longest == 0 or most == 0:
            longest: int | None = 0
        else:
            longest = None if most is None or self.longest is None else self.longest * most
        return Width(self.shortest * least, longest, self.asserts)


_ONE: Final = Width(1, 1)
_BESIDE: Final = Width(0, 0, asserts=True)


def width_of(pattern: str) -> Width:
    """The width of a pattern's matches; raises :class:`UnknownWidth`.

    >>> width_of("colou?r|[a-z]{2,4}")
    Width(shortest=2, longest=6, asserts=False)
    """
    reader = _Reader(pattern)
    try:
        width = reader.alternatives()
    except RecursionError:
        raise UnknownWidth("too many groups inside one another") from None
    if reader.rest:
        raise UnknownWidth("a parenthesis too many")
    return width


class _Reader:
    """Reads a pattern from left to right."""

    def __init__(self, pattern: str) -> None:
        self._pattern = pattern
        self._at = 0

    @property
    def rest(self) -> bool:
        """Whether something is left to read."""
        return self._at < len(self._pattern)

    def alternatives(self) -> Width:
        """Up to the end, or to the parenthesis that closes the group."""
        width = self._sequence()
        while self._take("|"):
            width = width.either(self._sequence())
        return width

    def _sequence(self) -> Width:
        width = Width()
        while self.rest and self._pattern[self._at] not in "|)":
            if self._take("\\Q"):
                before, last = self._quoted()
                width = width.then(before).then(self._repeated(last))
            else:
                width = width.then(self._repeated(self._atom()))
        return width

    def _quoted(self) -> tuple[Width, Width]:
        """What is quoted, and its last character, which alone may repeat."""
        end = self._pattern.find("\\E", self._at)
        if end < 0:
            # Joined with others it would swallow what comes behind it.
            raise UnknownWidth("\\Q without \\E")
        size = end - self._at
        self._at = end + 2
        return _ONE.times(max(0, size - 1), max(0, size - 1)), _ONE if size else Width()

    def _repeated(self, width: Width) -> Width:
        while True:
            if self._take("*"):
                width = width.times(0, None)
            elif self._take("+"):
                width = width.times(1, None)
            elif self._take("?"):
                width = width.times(0, 1)
            elif match := self._match(_REPEAT):
                least = int(match[1])
                bound = match[3] if match[2] else match[1]
                width = width.times(least, int(bound) if bound else None)
            else:
                return width
            self._take("?")

    def _atom(self) -> Width:
        if self._take("("):
            return self._group()
        if self._take("\\"):
            return self._escape()
        if self._pattern[self._at] == "[":
            if not self._match(_CLASS):
                raise UnknownWidth("a class that does not end")
            return _ONE
        self._at += 1
        return _BESIDE if self._pattern[self._at - 1] in "^$" else _ONE

    def _group(self) -> Width:
        if self._take("?") and not self._match(_NAME):
            flags = self._match(_FLAGS)
            if flags is None:
                raise UnknownWidth("a group of an unknown kind")
            if flags[1] == ")":
                return Width()
        width = self.alternatives()
        if not self._take(")"):
            raise UnknownWidth("a group that does not end")
        return width

    def _escape(self) -> Width:
        if self.rest and self._pattern[self._at] in _ASSERTIONS:
            self._at += 1
            return _BESIDE
        if not self._match(_CHARACTER):
            raise UnknownWidth(f"the escape \\{self._pattern[self._at : self._at + 1]}")
        return _ONE

    def _take(self, text: str) -> bool:
        found = self._pattern.startswith(text, self._at)
        if found:
            self._at += len(text)
        return found

    def _match(self, what: re.Pattern[str]) -> re.Match[str] | None:
        match = what.match(self._pattern, self._at)
        if match is not None:
            self._at = match.end()
        return match
