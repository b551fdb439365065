"""JSON that comes piece by piece: where a value ends, and the text of a string."""

import json
import re
from typing import Final

import msgspec

from tieline_server.engines.base import EngineError

_encode: Final = msgspec.json.Encoder().encode


def quoted(text: str) -> str:
    """``text`` as a JSON string."""
    return _encode(text).decode()


class JsonScan:
    """Finds the end of one JSON value, piece by piece. Numbers and words end with the text."""

    __slots__ = ("_depth", "_done", "_escaped", "_string")

    OUTSIDE: Final = frozenset(' \t\r\n,:-+.0123456789eEtrufalsn"[]{}')
    """All that JSON has outside strings."""

    def __init__(self) -> None:
        self._depth = 0
        self._string = False
        self._escaped = False
        self._done = False

    def feed(self, text: str) -> str | None:
        """What of ``text`` is behind the value's end, or None while the value runs.

        Raises :class:`EngineError` at a character that no JSON has there.
        """
        if self._done:
            return text
        for index, letter in enumerate(text):
            if self._string and (self._escaped or letter != '"'):
                self._escaped = letter == "\\" and not self._escaped
                continue
            if letter not in self.OUTSIDE:
                raise off_schema()
            self._step(letter)
            if self._done:
                return text[index + 1 :]
        return None

    def _step(self, letter: str) -> None:
        if letter == '"':
            self._string = not self._string
        elif letter in "[{":
            self._depth += 1
        elif letter in "]}":
            self._depth -= 1
        self._done = letter in ']}"' and self._depth <= 0 and not self._string


class StringText:
    """The text of a JSON string, piece by piece: quotes dropped, escapes resolved."""

    __slots__ = ("_held", "_open")

    WHOLE: Final = re.compile(
        r'[^\\"]+|\\[^u]|\\u(?![dD][89abAB])[0-9a-fA-F]{4}'
        r"|\\u[dD][89abAB][0-9a-fA-F]{2}(?:\\u[0-9a-fA-F]{4}|(?=[^\\]|\\[^u]))"
    )
    """Text, or an escape that is whole: a high surrogate only with what follows it."""

    def __init__(self) -> None:
        self._held = ""
        """The beginning of an escape that is not whole yet."""
        self._open = False

    def feed(self, text: str) -> str:
        """The text that ``text``, the next part of the string's JSON, adds."""
        if not self._open and text:
            self._open, text = True, text[1:]
        text = self._held + text
        at = 0
        while match := self.WHOLE.match(text, at):
            at = match.end()
        self._held = text[at:]
        return _unescape(text[:at])


def _unescape(text: str) -> str:
    if "\\" not in text:
        return text
    loose: str = json.loads(f'"{text}"', strict=False)
    # Half a surrogate pair is no text: it becomes U+FFFD.
    return loose.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


class UntilText:
    """Text up to what ends it, piece by piece."""

    __slots__ = ("_end", "_text")

    def __init__(self, end: str) -> None:
        self._end = end
        self._text = ""

    def feed(self, text: str) -> tuple[str, str | None]:
        """What ``text`` adds, and what of it is from the end on, or None while there is none."""
        self._text += text
        at = self._text.find(self._end)
        if at >= 0:
            return self._text[:at], self._text[at:]
        at = len(self._text) - overlap(self._text, self._end)
        shown, self._text = self._text[:at], self._text[at:]
        return shown, None


def overlap(text: str, until: str) -> int:
    """How much of the end of ``text`` may be the beginning of ``until``."""
    sizes = range(min(len(text), len(until) - 1), 0, -1)
    return next((size for size in sizes if text.endswith(until[:size])), 0)


def check_json(text: str) -> None:
    """Raises :class:`EngineError` unless ``text`` is one whole JSON value."""
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        raise off_schema() from None


def off_schema() -> EngineError:
    """The error of an answer that does not follow its schema."""
    return EngineError(
        "invalid_function_parameters",
        "The model cannot follow the schema of a tool or of 'text.format': "
        "simplify its patterns and check that its bounds leave something.",
    )
