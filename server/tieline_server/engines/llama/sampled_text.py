"""Reads an answer as it is sampled: text, JSON, or a call whose arguments stream.

A call starts when its name is known. What does not follow the schema that it was sampled under is
an error, never a call: the runtime constrains nothing, without a word, when it cannot compile a
schema (``engines.bounded_schema``).
"""

import json
import re
from collections.abc import Sequence
from typing import Final, Protocol

import msgspec
from msgspec import Struct

from tieline_server.core.deltas import CallDelta, CallStart, Delta, FinishReason, TextDelta
from tieline_server.core.settings import Tool
from tieline_server.engines.base import EngineError

Heads = Sequence[tuple[str, Tool]]
"""What a call of each tool begins with, up to its arguments."""


class Piece(Struct, frozen=True, gc=False):
    """What was sampled in one step: text, and the tokens it stands for."""

    text: str
    tokens: int
    logprobs: tuple[msgspec.Raw, ...] = ()


class Reader(Protocol):
    """Turns sampled text into deltas."""

    def feed(self, piece: Piece) -> list[Delta]:
        """The deltas that ``piece`` completes. Raises :class:`EngineError` off the schema."""
        ...

    def end(self, reason: FinishReason) -> FinishReason:
        """Why the answer ended, told why the model stopped.

        What is whole has ended by itself, even when its last token was the last one allowed.
        Raises :class:`EngineError` when the model stopped by itself and something is missing.
        """
        ...


class PlainReader:
    """Text as it comes."""

    def feed(self, piece: Piece) -> list[Delta]:
        return [TextDelta(piece.text, tokens=piece.tokens, logprobs=piece.logprobs)]

    def end(self, reason: FinishReason) -> FinishReason:
        return reason


class JsonReader:
    """Text that is one JSON value."""

    def __init__(self) -> None:
        self._scan = JsonScan()
        self._text: list[str] = []
        self._rest: str | None = None
        """What came behind the value: None while it runs, then nothing."""

    def feed(self, piece: Piece) -> list[Delta]:
        self._rest = self._scan.feed(piece.text)
        if self._rest:
            raise off_schema()
        self._text.append(piece.text)
        return [TextDelta(piece.text, tokens=piece.tokens, logprobs=piece.logprobs)]

    def end(self, reason: FinishReason) -> FinishReason:
        if reason == "length" and self._rest is None:
            return reason
        _check_json("".join(self._text))
        return "stop"


class CallReader:
    """One call: its head, then its arguments (as they are) or its input (un-escaped)."""

    def __init__(self, heads: Heads) -> None:
        self._heads = heads
        self._head = ""
        self._tool: Tool | None = None
        self._value: list[str] = []
        self._scan = JsonScan()
        self._string = StringText()
        self._tokens = 0
        self._over: str | None = None
        """What came behind the arguments, or None while they run."""

    def feed(self, piece: Piece) -> list[Delta]:
        self._tokens += piece.tokens
        deltas: list[Delta] = []
        text = piece.text
        if self._tool is None:
            self._head += text
            text = self._begin(deltas)
        if self._tool is not None and text:
            self._go_on(text, deltas)
        return deltas

    def end(self, reason: FinishReason) -> FinishReason:
        if self._over != "}":
            if reason == "stop":
                raise off_schema()
            return reason
        _check_json("".join(self._value))
        return "stop"

    def _begin(self, deltas: list[Delta]) -> str:
        """Looks for a whole head; returns what is behind it."""
        for head, tool in self._heads:
            if self._head.startswith(head):
                self._tool = tool
                start = CallStart(
                    kind="custom_tool_call" if tool.type == "custom" else "function_call",
                    name=tool.name or "",
                    namespace=tool.namespace,
                    tokens=self._take_tokens(),
                )
                deltas.append(start)
                return self._head[len(head) :]
        if not any(head.startswith(self._head) for head, _ in self._heads):
            raise off_schema()
        return ""

    def _go_on(self, text: str, deltas: list[Delta]) -> None:
        if self._over is None:
            rest = self._scan.feed(text)
            inside = text if rest is None else text[: len(text) - len(rest)]
            self._over = rest
            self._value.append(inside)
            custom = self._tool is not None and self._tool.type == "custom"
            shown = self._string.feed(inside) if custom else inside
            if shown:
                deltas.append(CallDelta(shown, tokens=self._take_tokens()))
        else:
            self._over += text
        if self._over is not None and not "}".startswith(self._over):
            raise off_schema()

    def _take_tokens(self) -> int:
        tokens, self._tokens = self._tokens, 0
        return tokens


class EitherReader:
    """A call, or another answer: whichever it turns out to be."""

    def __init__(self, heads: Heads, other: Reader) -> None:
        self._heads = heads
        self._other = other
        self._reader: Reader | None = None
        self._held: list[Piece] = []

    def feed(self, piece: Piece) -> list[Delta]:
        if self._reader is not None:
            return self._reader.feed(piece)
        self._held.append(piece)
        self._reader = reader = self._decide("".join(each.text for each in self._held))
        if reader is None:
            return []
        return [delta for each in self._held for delta in reader.feed(each)]

    def end(self, reason: FinishReason) -> FinishReason:
        return (self._reader or self._other).end(reason)

    def _decide(self, text: str) -> Reader | None:
        if any(text.startswith(head) for head, _ in self._heads):
            return CallReader(self._heads)
        undecided = any(head.startswith(text) for head, _ in self._heads)
        return None if undecided else self._other


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


def _check_json(text: str) -> None:
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
