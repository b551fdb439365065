"""Reads an answer as it is sampled: thoughts, text, JSON, and calls whose arguments stream.

A call starts when its name is known, and ends as an item of its own when it is whole. What does
not follow the schema that it was sampled under is an error, never a call. A value that follows it
and yet has lost something (``guidance``) ends an item that says ``incomplete``.

Readers are nested: what a thought, or a head that is always the same, leaves over goes to the
next one. How the text is cut into pieces makes no difference to what is read.
"""

from collections.abc import Sequence
from typing import Protocol

import msgspec
from msgspec import Struct

from tieline_server.core.create.tools import Tool
from tieline_server.core.deltas import (
    CallDelta,
    CallStart,
    Delta,
    FinishReason,
    ItemEnd,
    ReasoningDelta,
    TextDelta,
)
from tieline_server.engines.chat_format.guidance import FREE, Followed
from tieline_server.engines.chat_format.json_scan import (
    JsonScan,
    StringText,
    UntilText,
    check_json,
    off_schema,
    overlap,
)
from tieline_server.engines.chat_format.parameters import ParameterScan, Row
from tieline_server.engines.chat_format.syntax.base import may_start, starts


class Frame(Struct, frozen=True, kw_only=True):
    """What a call of one tool looks like around its arguments or input."""

    tool: Tool
    head: str
    tail: str
    followed: Followed = FREE
    """The schema of its arguments."""
    row: Row | None = None
    """Its parameters, where they are written one by one."""
    bare: bool = False
    """Whether its input is text up to the tail, and no JSON."""

    def scan(self) -> "ValueScan":
        """Reads what is between head and tail."""
        if self.row is not None:
            return ParameterScan(self.row, self.tail)
        if self.bare:
            return UntilText(self.tail)
        return JsonValue(text=self.tool.type == "custom")

    def falls_short(self, scan: "ValueScan", shown: str) -> bool:
        """Whether a value that was read, and shown so, has lost something (``guidance``)."""
        return not self.bare and self.followed.falls_short(
            scan.json if isinstance(scan, JsonValue) else shown
        )


class ValueScan(Protocol):
    """Reads the value of a call, piece by piece."""

    def feed(self, text: str) -> tuple[str, str | None]:
        """What ``text`` adds to the call, and what is behind the value; None while that runs."""
        ...


class JsonValue:
    """A value that is JSON; with ``text`` it is a string, and its text is what counts."""

    def __init__(self, *, text: bool) -> None:
        self._scan = JsonScan()
        self._string = StringText() if text else None
        self._json: list[str] = []

    @property
    def json(self) -> str:
        """What has come of it."""
        return "".join(self._json)

    def feed(self, text: str) -> tuple[str, str | None]:
        """As :class:`ValueScan` has it."""
        rest = self._scan.feed(text)
        inside = text if rest is None else text[: len(text) - len(rest)]
        self._json.append(inside)
        if rest is not None:
            check_json(self.json)
        return inside if self._string is None else self._string.feed(inside), rest


class Calls(Struct, frozen=True, kw_only=True):
    """What the calls of an answer look like; see ``syntax``."""

    frames: Sequence[Frame]
    lead: bool = False
    opens: str = ""
    may_open: str = ""
    between: str | None = None
    closes: str = ""
    begins: str | None = None

    @property
    def heads(self) -> list[str]:
        """All that the first call may begin with."""
        opens = [self.opens, *([self.may_open + self.opens] if self.may_open else ())]
        return [each + frame.head for each in opens for frame in self.frames]


class Piece(Struct, frozen=True, gc=False):
    """What was sampled in one step: text, and the tokens it stands for."""

    text: str
    tokens: int
    logprobs: tuple[msgspec.Raw, ...] = ()

    def cut(self, at: int) -> tuple["Piece | None", "Piece | None"]:
        """What is before and behind a place in the text; the tokens go with the first part."""
        if at >= len(self.text):
            return self, None
        if at <= 0:
            return None, self
        return Piece(self.text[:at], self.tokens, self.logprobs), Piece(self.text[at:], 0)


class Reader(Protocol):
    """Turns sampled text into deltas."""

    def feed(self, piece: Piece) -> list[Delta]:
        """The deltas that ``piece`` completes. Raises :class:`EngineError` off the schema."""
        ...

    def end(self, reason: FinishReason) -> tuple[list[Delta], FinishReason]:
        """What was held back, and why the answer ended, told why the model stopped.

        What is whole has ended by itself, even when its last token was the last one allowed.
        Raises :class:`EngineError` when the model stopped by itself and something is missing.
        """
        ...


class PlainReader:
    """Text as it comes."""

    def feed(self, piece: Piece) -> list[Delta]:
        return [TextDelta(piece.text, tokens=piece.tokens, logprobs=piece.logprobs)]

    def end(self, reason: FinishReason) -> tuple[list[Delta], FinishReason]:
        return [], reason


class UnblankReader:
    """Text as it comes, but for white space that nothing follows."""

    def __init__(self) -> None:
        self._held: list[Piece] = []
        self._begun = False

    def feed(self, piece: Piece) -> list[Delta]:
        self._held.append(piece)
        self._begun = self._begun or not piece.text.isspace()
        return self._taken() if self._begun else []

    def end(self, reason: FinishReason) -> tuple[list[Delta], FinishReason]:
        return self._taken(), reason

    def _taken(self) -> list[Delta]:
        held, self._held = self._held, []
        return [TextDelta(each.text, tokens=each.tokens, logprobs=each.logprobs) for each in held]


class JsonReader:
    """Text that is one JSON value, of a schema."""

    def __init__(self, followed: Followed = FREE) -> None:
        self._followed = followed
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

    def end(self, reason: FinishReason) -> tuple[list[Delta], FinishReason]:
        if reason == "length" and self._rest is None:
            return [], reason
        check_json(text := "".join(self._text))
        short = self._followed.falls_short(text)
        return [ItemEnd(incomplete=True)] if short else [], "stop"


class CallsReader:
    """Calls, one after the other: of each its head, then its arguments (or its input, un-escaped),
    then its tail."""

    def __init__(self, calls: Calls) -> None:
        self._calls = calls
        self._text = ""
        """What has come of a head, a tail, or what ends the answer."""
        self._number = 0
        self._frame: Frame | None = None
        """The call that is being written."""
        self._scan: ValueScan | None = None
        self._shown: list[str] = []
        self._short = False
        self._tokens = 0

    def feed(self, piece: Piece) -> list[Delta]:
        self._tokens += piece.tokens
        deltas: list[Delta] = []
        self._text += piece.text
        while self._step(deltas):
            pass
        return deltas

    def end(self, reason: FinishReason) -> tuple[list[Delta], FinishReason]:
        if self._number and self._frame is None and self._text == self._calls.closes:
            return [], "stop"
        if reason == "stop":
            raise off_schema()
        return [], reason

    def _step(self, deltas: list[Delta]) -> bool:
        """Takes what it can of the text; whether there may be more to take."""
        if self._frame is None:
            return self._begin(deltas)
        if self._scan is not None:
            return self._go_on(self._scan, deltas)
        return self._finish(self._frame, deltas)

    def _begin(self, deltas: list[Delta]) -> bool:
        calls = self._calls
        if self._number == 0:
            heads = calls.heads
        elif calls.between is None:
            heads = []
        else:
            heads = [calls.between + frame.head for frame in calls.frames]
        for at, head in enumerate(heads):
            if starts(self._text, head):
                self._text = self._text[len(head) :]
                self._start(calls.frames[at % len(calls.frames)], deltas)
                return True
        # Nothing may follow the last call but what closes them.
        ended = bool(self._number) and calls.closes.startswith(self._text)
        if self._text and not ended and not any(may_start(self._text, each) for each in heads):
            raise off_schema()
        return False

    def _start(self, frame: Frame, deltas: list[Delta]) -> None:
        self._frame, self._number = frame, self._number + 1
        self._scan, self._shown = frame.scan(), []
        tool = frame.tool
        start = CallStart(
            kind=tool.call_kind,
            name=tool.name or "",
            namespace=tool.namespace,
            tokens=self._take_tokens(),
        )
        deltas.append(start)

    def _go_on(self, scan: ValueScan, deltas: list[Delta]) -> bool:
        text, self._text = self._text, ""
        if not text:
            return False
        shown, rest = scan.feed(text)
        if shown:
            self._shown.append(shown)
            deltas.append(CallDelta(shown, tokens=self._take_tokens()))
        if rest is None:
            return False
        if self._frame is not None:
            self._short = self._frame.falls_short(scan, "".join(self._shown))
        self._scan, self._text = None, rest
        return True

    def _finish(self, frame: Frame, deltas: list[Delta]) -> bool:
        if starts(self._text, frame.tail):
            self._text = self._text[len(frame.tail) :]
            self._frame = None
            deltas.append(ItemEnd(tokens=self._take_tokens(), incomplete=self._short))
            return True
        if not may_start(self._text, frame.tail):
            raise off_schema()
        return False

    def _take_tokens(self) -> int:
        tokens, self._tokens = self._tokens, 0
        return tokens


class EitherReader:
    """Calls, or another answer: whichever its beginning turns out to be."""

    def __init__(self, calls: Calls, other: Reader) -> None:
        self._calls = calls
        self._heads = calls.heads
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

    def end(self, reason: FinishReason) -> tuple[list[Delta], FinishReason]:
        return (self._reader or self._other).end(reason)

    def _decide(self, text: str) -> Reader | None:
        if any(starts(text, head) for head in self._heads):
            return CallsReader(self._calls)
        undecided = any(may_start(text, head) for head in self._heads)
        return None if undecided else self._other


class Held:
    """Pieces that wait until it is known what they belong to."""

    def __init__(self) -> None:
        self._pieces: list[Piece] = []

    @property
    def text(self) -> str:
        """All of their text."""
        return "".join(piece.text for piece in self._pieces)

    def add(self, piece: Piece) -> None:
        """One piece more."""
        self._pieces.append(piece)

    def take(self, size: int) -> list[Piece]:
        """The first ``size`` characters, which wait no longer."""
        taken: list[Piece] = []
        while size > 0 and self._pieces:
            piece = self._pieces.pop(0)
            first, rest = piece.cut(size)
            if first is not None:
                taken.append(first)
                size -= len(first.text)
            if rest is not None:
                self._pieces.insert(0, rest)
        return taken


class UntilReader:
    """One reader until some text comes, another one behind it.

    The text itself goes to the second one where ``kept``, and nowhere otherwise.
    """

    def __init__(self, until: str, first: Reader, then: Reader, *, kept: bool) -> None:
        self._until = until
        self._first = first
        self._then = then
        self._kept = kept
        self._held = Held()
        self._over = False

    def feed(self, piece: Piece) -> list[Delta]:
        if self._over:
            return self._then.feed(piece)
        self._held.add(piece)
        text = self._held.text
        at = text.find(self._until)
        if at < 0:
            return _fed(self._first, self._held.take(len(text) - overlap(text, self._until)))
        self._over = True
        deltas = _fed(self._first, self._held.take(at))
        if not self._kept:
            skipped = self._held.take(len(self._until))
            tokens = sum(each.tokens for each in skipped)
            # What is left of a piece has no tokens of its own; those of the tag end the item.
            deltas.append(ItemEnd(tokens=tokens))
        return deltas + _fed(self._then, self._held.take(len(text)))

    def end(self, reason: FinishReason) -> tuple[list[Delta], FinishReason]:
        if self._over:
            return self._then.end(reason)
        deltas = _fed(self._first, self._held.take(len(self._until)))
        more, reason = self._first.end(reason)
        return deltas + more, reason


class ThoughtReader:
    """Reasoning as it comes."""

    def feed(self, piece: Piece) -> list[Delta]:
        return [ReasoningDelta(piece.text, tokens=piece.tokens)]

    def end(self, reason: FinishReason) -> tuple[list[Delta], FinishReason]:
        return [], reason


class OptionalReader:
    """What comes behind a text that may be there; with ``then`` where it is, ``other`` else.

    ``loose``: white space before it counts for nothing.
    """

    def __init__(self, text: str, then: Reader, other: Reader, *, loose: bool = False) -> None:
        self._text = text
        self._loose = loose
        self._then = then
        self._other = other
        self._held = Held()
        self._reader: Reader | None = None

    def feed(self, piece: Piece) -> list[Delta]:
        if self._reader is not None:
            return self._reader.feed(piece)
        self._held.add(piece)
        text = self._held.text
        blank = len(text) - len(text.lstrip()) if self._loose else 0
        if text.startswith(self._text, blank):
            self._reader = self._then
            tokens = sum(each.tokens for each in self._held.take(blank + len(self._text)))
            rest = self._held.take(len(text))
            return [ItemEnd(tokens=tokens), *_fed(self._then, rest)]
        if self._text.startswith(text[blank:]):
            return []
        self._reader = self._other
        return _fed(self._other, self._held.take(len(text)))

    def end(self, reason: FinishReason) -> tuple[list[Delta], FinishReason]:
        if self._reader is not None:
            return self._reader.end(reason)
        deltas = _fed(self._other, self._held.take(len(self._held.text)))
        more, reason = self._other.end(reason)
        return deltas + more, reason


class Skipper:
    """Passes over white space at the beginning."""

    def __init__(self, then: Reader) -> None:
        self._then = then
        self._begun = False

    def feed(self, piece: Piece) -> list[Delta]:
        if self._begun:
            return self._then.feed(piece)
        at = len(piece.text) - len(piece.text.lstrip())
        self._begun = at < len(piece.text)
        skipped, rest = piece.cut(at)
        deltas: list[Delta] = [ItemEnd(tokens=skipped.tokens)] if skipped is not None else []
        return deltas + (self._then.feed(rest) if rest is not None else [])

    def end(self, reason: FinishReason) -> tuple[list[Delta], FinishReason]:
        return self._then.end(reason)


def thinking(thought: tuple[str, str], then: Reader, other: Reader, *, inside: bool) -> Reader:
    """Reads a thought, then whatever comes behind it.

    ``inside``: the prompt has begun the thought. ``other`` reads an answer without one.
    """
    opens, closes = thought
    rest = UntilReader(closes, ThoughtReader(), Skipper(then), kept=False)
    return Skipper(rest) if inside else OptionalReader(opens, Skipper(rest), other, loose=True)


def _fed(reader: Reader, pieces: Sequence[Piece]) -> list[Delta]:
    return [delta for piece in pieces for delta in reader.feed(piece)]
