"""What a guard is, and what it is asked.

A guard reads pieces: the text of one item, of the instructions, of a sentence of an answer. It
says which one is flagged, or that it could not be asked.
"""

import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final, Literal, Protocol, runtime_checkable

from msgspec import Struct

from tieline.errors import TielineError
from tieline_server.engines.base import EngineError

Stage = Literal["input", "output"]

REFUSED: Final = "The input was refused by a content filter."
UNCHECKED: Final = "The content filter could not be asked; please try again."

AGAIN: Final = 1.0
"""Seconds after which a guard that could not be asked may be asked again."""


class GuardError(TielineError):
    """A guard cannot be had; the message is one line, for who starts the server."""


class Unchecked(Exception):
    """A guard could not be asked."""


class Piece(Struct, frozen=True):
    """What is read at once: a text, and the URLs of images that stand with it."""

    text: str
    images: tuple[str, ...] = ()


class Guard(Protocol):
    """A classifier of one kind with its settings."""

    name: str
    applies: frozenset[Stage]
    """What it reads."""
    message: str | None
    """What a client hears of a refusal, where that is not the usual sentence."""
    lenient: bool
    """Whether what it could not be asked about passes."""

    async def first_flagged(self, pieces: Sequence[Piece]) -> int | None:
        """Which of the pieces is the first that is flagged, or None.

        Raises :class:`Unchecked`.
        """
        ...

    async def close(self) -> None:
        """Frees what it has. Called once."""
        ...


class Watch(Protocol):
    """Reads one part of an answer as it grows."""

    cleared: int
    """Characters of the part, from its beginning, that may leave."""
    flagged: int | None
    """Where what is flagged begins; nothing from there on may leave."""

    def read(self, text: str, *, last: bool) -> None:
        """The next characters of the part; ``last`` ends it."""
        ...


@runtime_checkable
class Watching(Protocol):
    """A guard that decides by itself whether text may leave: it reads each token at once."""

    def watch(self, *, escaped: bool) -> Watch:
        """Reads a part that begins; ``escaped`` is JSON text, in which characters have escapes."""
        ...


class Counts:
    """What the guards of this process did, by guard and stage."""

    def __init__(self) -> None:
        self.checks: Counter[tuple[str, str]] = Counter()
        """Items, heads, parts and sentences that were read."""
        self.hits: Counter[tuple[str, str]] = Counter()
        self.failures: Counter[tuple[str, str]] = Counter()
        """Times that a guard could not be asked."""
        self.seconds: dict[tuple[str, str], float] = defaultdict(float)
        """What they spent, or were waited for."""


class Spent:
    """How long a turn has waited for its guards."""

    __slots__ = ("nanoseconds",)

    def __init__(self) -> None:
        self.nanoseconds = 0

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """The turn waits for a guard."""
        began = time.perf_counter_ns()
        try:
            yield
        finally:
            self.nanoseconds += time.perf_counter_ns() - began

    @property
    def phases(self) -> dict[str, int]:
        """The phase of the timing, in microseconds."""
        return {"guard": self.nanoseconds // 1000}


def refused(guard: Guard, param: str) -> EngineError:
    """The answer to input that is flagged: OpenAI's code, which clients do not try again."""
    return EngineError("invalid_prompt", guard.message or REFUSED, param=param)


def unchecked() -> EngineError:
    """The answer where a guard could not be asked and must be."""
    return EngineError("engine_unavailable", UNCHECKED, retry_after=AGAIN)
