"""What of a part has come and may not leave yet."""

from collections import deque
from collections.abc import Iterable
from typing import Final

from msgspec import Struct

from tieline_server.core.create.tools import Tool
from tieline_server.core.deltas import (
    Annotation,
    CallDelta,
    CallStart,
    Delta,
    ItemEnd,
    Phase,
    ReasoningDelta,
    RefusalDelta,
    SummaryDelta,
    TextDelta,
    WholeItem,
)

Text = TextDelta | RefusalDelta | ReasoningDelta | SummaryDelta | CallDelta

TEXTS: Final = frozenset({TextDelta, RefusalDelta, ReasoningDelta, SummaryDelta, CallDelta})
"""Deltas that make a part grow."""

COUNTED: Final = TEXTS | {CallStart, ItemEnd}
"""Deltas that stand for tokens."""


JSON: Final = frozenset({Annotation, WholeItem})
"""Deltas that are JSON, and read without its escapes."""


class Asked(Struct, frozen=True):
    """What a client has said of the answer beforehand."""

    tools: tuple[Tool, ...] = ()
    json: bool = False
    """Whether its text is to be JSON, and so is read without its escapes."""

    def read_of(self, mark: Delta) -> str:
        """What is to be read of what stands between texts."""
        if type(mark) is CallStart:
            return self.name_of(mark)
        if type(mark) is WholeItem:
            return mark.item.raw.decode()
        if type(mark) is Phase:
            return mark.name
        return bytes(mark.raw).decode() if type(mark) is Annotation else ""

    def name_of(self, call: CallStart) -> str:
        """What a call is named; nothing where that is one of the client's own tools."""
        if any((tool.namespace, tool.name) == (call.namespace, call.name) for tool in self.tools):
            return ""
        return call.name if call.namespace is None else f"{call.namespace}\n{call.name}"


class Held:
    """Deltas in order, each let go whole: boundaries and logprobs stay as the engine made them.

    Their tokens are counted elsewhere.
    """

    __slots__ = ("_deltas", "_end")

    def __init__(self) -> None:
        self._deltas: deque[tuple[Text, int]] = deque()
        self._end = 0

    def add(self, delta: Text) -> None:
        """The next one of the part."""
        self._end += len(delta.text)
        self._deltas.append((delta, self._end))

    def release(self, upto: int, into: list[Delta]) -> None:
        """Lets go what ends at or before this character of the part."""
        deltas = self._deltas
        while deltas and deltas[0][1] <= upto:
            into.append(bare(deltas.popleft()[0]))

    def cut(self, at: int, into: list[Delta]) -> None:
        """Lets go what stands before this character; the rest never leaves."""
        self.release(at, into)
        if not self._deltas:
            return
        delta, end = self._deltas[0]
        before = at - (end - len(delta.text))
        if before > 0:
            # Without logprobs: they would say the whole token.
            into.append(type(delta)(delta.text[:before], 0))
        self._deltas.clear()


def counts_of(step: Iterable[Delta]) -> list[Delta]:
    """The tokens of a step without its text: they are used, whether their text leaves or not."""
    tokens = reasoning = 0
    for delta in step:
        kind = type(delta)
        if kind is ReasoningDelta:
            reasoning += delta.tokens  # type: ignore[union-attr]  # the kind says it
        elif kind in COUNTED:
            tokens += delta.tokens  # type: ignore[union-attr]
    counted: list[Delta] = [TextDelta("", tokens)] if tokens else []
    if reasoning:
        counted.append(ReasoningDelta("", reasoning))
    return counted


def bare(delta: Text) -> Text:
    """A delta whose tokens are counted elsewhere."""
    if not delta.tokens:
        return delta
    if type(delta) is TextDelta:
        return TextDelta(delta.text, 0, delta.logprobs)
    return type(delta)(delta.text, 0)


def bare_mark(delta: Delta) -> Delta:
    """The same for what stands between texts."""
    if type(delta) is CallStart and delta.tokens:
        return CallStart(kind=delta.kind, name=delta.name, namespace=delta.namespace)
    return ItemEnd(incomplete=delta.incomplete) if type(delta) is ItemEnd else delta
