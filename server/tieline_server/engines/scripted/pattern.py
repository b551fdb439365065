"""Text that matches a regular expression, and whether a name does.

Patterns come from clients, inside JSON schemas, and Python's ``re`` can be made to run for ever
by a pattern made for it. Reading one and writing down a text that it matches is linear. What is
understood: literals, classes, groups, alternatives, counts, anchors, the usual escapes. Names are
matched by RE2, which is linear as well.
"""

import string
from collections.abc import Callable
from typing import Any, Final

import re2

LONGEST: Final = 10_000
"""Characters of a text, and of a pattern."""

DEEPEST: Final = 50
"""Groups inside groups."""

MEMORY: Final = 1 << 20
"""Bytes that RE2 may take for a pattern."""

_SETS: Final = {"d": string.digits, "w": string.ascii_letters + string.digits + "_", "s": " \t\n"}
_CONTROLS: Final = {"n": "\n", "t": "\t", "r": "\r", "f": "\f", "v": "\v"}
_ANY: Final = "a0A_- .,:;/@#+~é"
"""Where a class says only what a character is not, one of these is taken."""


class NoSample(ValueError):
    """The pattern is not understood, or its text would be too long."""


def sample(pattern: str, *, shortest: int = 0, longest: int | None = None) -> str:
    """A text that ``pattern`` matches, of ``shortest`` to ``longest`` characters.

    Always the same for the same arguments. Raises :class:`NoSample`.

    >>> sample(r"^[A-Z]{3}-\\d+$")
    'AAA-0'
    """
    # What may repeat is repeated as little as it takes to be long enough.
    for repeat in {0: None, 1: None, shortest: None}:
        text = _Reader(pattern, repeat).read()
        if shortest <= len(text) and (longest is None or len(text) <= longest):
            return text
    raise NoSample("no text of that length")


def matcher(pattern: str) -> Callable[[str], bool] | None:
    """Whether a text has a match of ``pattern`` in it; None where RE2 does not understand it.

    >>> matcher("^n_")("n_1")
    True
    """
    options: Any = re2.Options()
    options.never_capture = True
    options.log_errors = False
    options.max_mem = MEMORY
    try:
        compiled = re2.compile(pattern, options=options)
    except (re2.error, UnicodeEncodeError):
        return None
    return lambda text: compiled.search(text) is not None


class _Reader:
    """Reads a pattern from left to right; ``repeat`` is how often an open count repeats."""

    def __init__(self, pattern: str, repeat: int) -> None:
        if len(pattern) > LONGEST:
            raise NoSample("too long")
        self._pattern = pattern
        self._repeat = repeat
        self._at = 0
        self._depth = 0

    def read(self) -> str:
        text = self._alternatives()
        if self._at < len(self._pattern):
            raise NoSample("a parenthesis too many")
        return text

    def _peek(self) -> str:
        return self._pattern[self._at : self._at + 1]

    def _next(self) -> str:
        char = self._peek()
        if not char:
            raise NoSample("ends too soon")
        self._at += 1
        return char

    def _skip(self, text: str) -> bool:
        found = self._pattern.startswith(text, self._at)
        self._at += len(text) if found else 0
        return found

    def _alternatives(self) -> str:
        """The first alternative; the others are only read over."""
        first = self._sequence()
        while self._skip("|"):
            self._sequence()
        return first

    def _sequence(self) -> str:
        text = ""
        while self._peek() not in ("", "|", ")"):
            text += self._counted(self._atom())
            if len(text) > LONGEST:
                raise NoSample("too long")
        return text

    def _atom(self) -> str:
        char = self._next()
        if char == "(":
            return self._group()
        if char == "[":
            return self._class()
        if char == "\\":
            return self._escape()
        if char in "*+?":
            raise NoSample("nothing to repeat")
        return {"^": "", "$": "", ".": "a"}.get(char, char)

    def _group(self) -> str:
        if self._skip("?") and not self._skip(":"):
            named = self._skip("P<") or self._skip("<")
            if not named or self._peek() in ("=", "!"):
                raise NoSample("looks around")
            while self._next() != ">":
                pass
        self._depth += 1
        if self._depth > DEEPEST:
            raise NoSample("too deep")
        text = self._alternatives()
        self._depth -= 1
        if not self._skip(")"):
            raise NoSample("a parenthesis is missing")
        return text

    def _escape(self) -> str:
        """An escape outside of a class."""
        char = self._next()
        if char in "bB":
            return ""
        if char in "DWS":
            return _outside(_SETS[char.lower()])
        return self._members(char)[0]

    def _members(self, char: str) -> str:
        """The characters that ``\\char`` stands for."""
        if char in _SETS:
            return _SETS[char]
        if char in "xu":
            digits = "".join(self._next() for _ in range(2 if char == "x" else 4))
            return _code_point(digits)
        if char in _CONTROLS:
            return _CONTROLS[char]
        if char.isalnum():
            raise NoSample("an escape that is not understood")
        return char

    def _class(self) -> str:
        negated = self._skip("^")
        members = ""
        first = True
        while first or self._peek() != "]":
            first = False
            start = self._class_member()
            if self._peek() == "-" and self._pattern[self._at + 1 : self._at + 2] != "]":
                self._next()
                start = _range(start, self._class_member(), all_of_it=negated)
            members += start
        self._next()
        return _outside(members) if negated else members[0]

    def _class_member(self) -> str:
        char = self._next()
        return self._members(self._next()) if char == "\\" else char

    def _counted(self, atom: str) -> str:
        """``atom`` as often as the count behind it says."""
        least, most = self._count()
        self._skip("?")
        times = max(least, self._repeat) if most is None else min(most, max(least, self._repeat))
        if times * len(atom) > LONGEST:
            raise NoSample("too long")
        return atom * times

    def _count(self) -> tuple[int, int | None]:
        for sign, bounds in (("*", (0, None)), ("+", (1, None)), ("?", (0, 1))):
            if self._skip(sign):
                return bounds
        if not self._skip("{"):
            return 1, 1
        end = self._pattern.find("}", self._at)
        least, comma, most = self._pattern[self._at : end].partition(",")
        if end < 0 or not least.isdecimal() or not (most.isdecimal() or not most):
            raise NoSample("a count that is not understood")
        self._at = end + 1
        if max(len(least), len(most)) > len(str(LONGEST)):
            raise NoSample("too long")
        return int(least), (int(most) if most else None) if comma else int(least)


def _code_point(digits: str) -> str:
    try:
        return chr(int(digits, 16))
    except ValueError:
        raise NoSample("not a code point") from None


def _range(first: str, last: str, *, all_of_it: bool) -> str:
    """``first-last``: its characters, or only the first where one is enough."""
    if len(first) != 1 or len(last) != 1 or first > last:
        raise NoSample("a range that is not understood")
    if not all_of_it:
        return first
    return "".join(char for char in _ANY if first <= char <= last)


def _outside(members: str) -> str:
    """A character that is not one of ``members``."""
    found = next((char for char in _ANY if char not in members), None)
    if found is None:
        raise NoSample("nothing is left")
    return found
