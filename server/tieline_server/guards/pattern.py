"""The pattern guard: RE2 over what is said. Linear time, whatever the pattern and the text.

The patterns of a guard are one automaton. Its longest match says how much of an answer is held
back: a match that is not whole yet begins in what is held, so nothing of it has left. Where a
pattern asks what stands beside a match (``\\b``, ``$``), one character on either side is kept.
"""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, Self

import re2

from tieline_server.config.toml_tables import GuardSettings
from tieline_server.guards.base import GuardError, Piece, Stage, Watch
from tieline_server.guards.escapes import Unescaper
from tieline_server.guards.width import UnknownWidth, Width, width_of

LARGE: Final = 256 * 1024
"""Characters that are not read on the loop."""

MEMORY: Final = 16 * 1024 * 1024
"""Bytes that the automaton of one guard may take; past that RE2 goes on without what it keeps."""

LONGEST: Final = 4096
"""Characters that a guard may hold back."""


class Finder:
    """Patterns as one automaton. ``span`` characters decide about a match, context included."""

    __slots__ = ("_search", "asserts", "characters", "span")

    def __init__(self, name: str, patterns: Sequence[str]) -> None:
        widths = [_checked(f"guards.{name}: '{each[:80]}'", each) for each in patterns]
        self._search: Any = _compiled(
            f"guards.{name}", "|".join(f"(?:{p})" for p in patterns)
        ).search
        self.asserts = any(width.asserts for width in widths)
        longest = [width.longest for width in widths]
        self.span: int | None = None
        if None not in longest:
            self.span = max(each or 0 for each in longest) + self.asserts
        self.characters = 0
        """Characters that were handed to RE2."""

    def find(self, text: str, start: int, end: int) -> int | None:
        """Where the first match between ``start`` and ``end`` begins."""
        self.characters += end - start
        data = text.encode()
        if not self.asserts:
            found = self._search(data)
        elif len(data) == len(text):
            found = self._search(data, start, end)
        else:
            after = len(data) - len(text[end:].encode())
            found = self._search(data, len(text[:start].encode()), after)
        return None if found is None else len(data[: found.start()].decode())

    def holds(self, text: str) -> bool:
        """Whether a whole text has a match."""
        self.characters += len(text)
        return self._search(text.encode()) is not None


class PatternGuard:
    """Flags what one of the ``patterns`` matches; raises :class:`GuardError`."""

    def __init__(
        self,
        name: str,
        patterns: Sequence[str],
        *,
        applies: Sequence[Stage] = ("input", "output"),
        message: str | None = None,
    ) -> None:
        self.name = name
        self.applies: frozenset[Stage] = frozenset(applies)
        self.message = message
        self.lenient = False
        self.finder = Finder(name, patterns)
        if "output" in self.applies:
            _check_span(name, patterns, self.finder.span)

    @classmethod
    def of(cls, name: str, settings: GuardSettings, *, key: str | None = None) -> Self:
        """The guard of a table; raises :class:`GuardError`."""
        patterns = [*settings.patterns, *_lines(name, settings.file)]
        if not patterns:
            raise GuardError(f"guards.{name}: there is no pattern")
        return cls(name, patterns, applies=settings.applies, message=settings.message)

    @property
    def max_span(self) -> int:
        """Characters that decide about a match."""
        return self.finder.span or 0

    async def first_flagged(self, pieces: Sequence[Piece]) -> int | None:
        """Which piece is the first with a match (:class:`~tieline_server.guards.base.Guard`)."""
        if sum(len(piece.text) for piece in pieces) > LARGE:
            return await asyncio.to_thread(self._first, pieces)
        return self._first(pieces)

    def _first(self, pieces: Sequence[Piece]) -> int | None:
        holds = self.finder.holds
        return next((at for at, piece in enumerate(pieces) if holds(piece.text)), None)

    def watch(self, *, escaped: bool) -> Watch:
        """Reads a part of an answer that begins (:class:`~tieline_server.guards.base.Watching`)."""
        return EscapedWatch(self.finder) if escaped else PatternWatch(self.finder)

    async def close(self) -> None:
        """Nothing to free."""


class PatternWatch:
    """Reads a part through a window: what is held, and what has just come."""

    __slots__ = ("_at", "_finder", "_hold", "_window", "cleared", "flagged")

    def __init__(self, finder: Finder) -> None:
        self._finder = finder
        self._hold = max(0, (finder.span or 1) - 1)
        self._window = ""
        self._at = 0
        """Where in the part the window begins."""
        self.cleared = 0
        self.flagged: int | None = None

    def copy(self) -> "PatternWatch":
        """Another one that has read the same."""
        other = PatternWatch(self._finder)
        other._window, other._at, other.cleared = self._window, self._at, self.cleared
        return other

    def read(self, text: str, *, last: bool) -> None:
        """The next characters (:class:`~tieline_server.guards.base.Watch`)."""
        finder = self._finder
        window = self._window + text
        start, size = self.cleared - self._at, len(window)
        end = size - 1 if finder.asserts and not last else size
        if end > start and (found := finder.find(window, start, end)) is not None:
            self.flagged = self._at + found
            return
        kept = start if size - self._hold < start else size - self._hold
        if last:
            kept = size
        self.cleared = self._at + kept
        drop = kept - 1 if finder.asserts and kept else kept
        self._window = window[drop:]
        self._at += drop


class EscapedWatch:
    """Reads JSON text as it stands and, from its first escape on, also as what it means."""

    __slots__ = (
        "_base",
        "_meant",
        "_read",
        "_stands",
        "_starts",
        "_unescaper",
        "cleared",
        "flagged",
    )

    def __init__(self, finder: Finder) -> None:
        self._stands = PatternWatch(finder)
        self._meant: PatternWatch | None = None
        self._unescaper = Unescaper()
        self._read = 0
        self._base = 0
        """Before this character of what is meant, both are the same or gone."""
        self._starts: list[int] = []
        self.cleared = 0
        self.flagged: int | None = None

    def read(self, text: str, *, last: bool) -> None:
        """The next characters (:class:`~tieline_server.guards.base.Watch`)."""
        stands = self._stands
        if self._meant is None and "\\" in text:
            self._meant = stands.copy()
            self._unescaper = Unescaper(self._read)
            self._base = self._read
        self._read += len(text)
        stands.read(text, last=last)
        self.cleared, self.flagged = stands.cleared, stands.flagged
        meant = self._meant
        if meant is None:
            return
        plain, starts = self._unescaper.feed(text, last=last)
        self._starts += starts
        meant.read(plain, last=last)
        self.cleared = min(self.cleared, self._place(meant.cleared))
        if meant.flagged is not None:
            place = self._place(meant.flagged)
            self.flagged = place if self.flagged is None else min(place, self.flagged)
        self._forget(meant.cleared)

    def _place(self, at: int) -> int:
        """Where in the text a character of what is meant begins."""
        index = at - self._base
        if index < 0:
            return at
        return self._starts[index] if index < len(self._starts) else self._unescaper.at

    def _forget(self, at: int) -> None:
        gone = at - self._base
        if gone > 0:
            del self._starts[:gone]
            self._base = at


def _options() -> Any:
    options = re2.Options()
    options.never_capture = True
    options.log_errors = False
    options.max_mem = MEMORY
    return options


def _compiled(where: str, pattern: str) -> Any:
    try:
        # Of bytes, which it takes as they are; strings it encodes and counts its way back.
        return re2.compile(pattern.encode(), options=_options())
    except UnicodeEncodeError:
        raise GuardError(f"{where}: it is no text") from None
    except re2.error as error:
        said = error.args[0] if error.args else ""
        reason = said.decode(errors="replace") if isinstance(said, bytes) else str(said)
        raise GuardError(f"{where}: RE2 refuses it: {reason[:200]}") from None


def _checked(where: str, pattern: str) -> Width:
    _compiled(where, pattern)
    try:
        width = width_of(pattern)
    except UnknownWidth as error:
        raise GuardError(f"{where}: cannot tell how long its matches are: {error}") from None
    if width.shortest == 0:
        raise GuardError(f"{where}: it matches the empty text, which is everywhere")
    return width


def _check_span(name: str, patterns: Sequence[str], span: int | None) -> None:
    for each in patterns:
        if width_of(each).longest is None:
            raise GuardError(
                f"guards.{name}: '{each[:80]}' has no longest match, so no answer could be let go: "
                "give each * and + a bound, such as {0,20}, or apply the guard to input alone"
            )
    if span is not None and span > LONGEST:
        raise GuardError(
            f"guards.{name}: a match may have {span} characters; at most {LONGEST} are held back"
        )


def _lines(name: str, path: Path | None) -> list[str]:
    """The patterns of a file, one a line; empty lines and those that begin with ``#`` are none."""
    if path is None:
        return []
    try:
        # Some editors begin a file with a mark, which no pattern is meant to have.
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeError) as error:
        raise GuardError(f"guards.{name}: cannot read {path}: {type(error).__name__}") from None
    return [line for line in text.splitlines() if line and not line.startswith("#")]
