"""Reads a call that a model wrote in a form of its own: JSON with white space, after a line break.

The readers of ``chat_format`` know to the byte what comes first, since the grammar that they
belong to has no white space. Where an upstream cannot be held to that grammar, what is no part of
a string is taken out before they see it; text that turns out to be no call stays as it came.
"""

from collections.abc import Sequence

from tieline_server.core.deltas import Delta, FinishReason, TextDelta
from tieline_server.engines.chat_format.constrain import Constraint
from tieline_server.engines.chat_format.sampled_text import Piece


class Squeeze:
    """JSON without the white space between its parts, piece by piece."""

    __slots__ = ("_escaped", "_string")

    def __init__(self) -> None:
        self._string = False
        self._escaped = False

    def feed(self, text: str) -> str:
        """What is left of the next piece.

        >>> Squeeze().feed('{ "a b" : [1, 2] }')
        '{"a b":[1,2]}'
        """
        kept = []
        for letter in text:
            if not self._string and letter in " \t\r\n":
                continue
            kept.append(letter)
            if self._string and (self._escaped or letter != '"'):
                self._escaped = letter == "\\" and not self._escaped
            elif letter == '"':
                self._string = not self._string
        return "".join(kept)


def is_bare(constraint: Constraint) -> bool:
    """Whether a call of this model is JSON and nothing else."""
    calls = constraint.calls
    return calls is not None and all(head.startswith("{") for head in calls.heads)


class LooseReader:
    """A call with white space, or whatever else the constraint admits."""

    def __init__(self, constraint: Constraint) -> None:
        self._reader = constraint.reader()
        self._answer = constraint.answer
        self._heads: Sequence[str] = constraint.calls.heads if constraint.calls else ()
        self._squeeze = Squeeze()
        self._held: list[Piece] = []
        self._text = ""
        self._call: bool | None = None if self._heads else False
        """Whether it is one; None while that is open."""

    def feed(self, piece: Piece) -> list[Delta]:
        """The deltas that ``piece`` completes. Raises :class:`EngineError` off the schema."""
        if self._call is False:
            return self._reader.feed(piece)
        squeezed = self._squeeze.feed(piece.text)
        if self._call:
            return self._reader.feed(Piece(squeezed, piece.tokens, piece.logprobs))
        self._held.append(piece)
        self._text += squeezed
        if any(self._text.startswith(head) for head in self._heads):
            self._call = True
            return self._reader.feed(Piece(self._text, sum(each.tokens for each in self._held)))
        if any(head.startswith(self._text) for head in self._heads):
            return []
        self._call = False
        return [delta for each in self._held for delta in self._reader.feed(each)]

    def end(self, reason: FinishReason) -> tuple[list[Delta], FinishReason]:
        """What was held back, and why the answer ended (``sampled_text.Reader``)."""
        held: list[Delta] = []
        if self._call is None and self._answer == "text":
            held = [TextDelta(each.text, each.tokens, each.logprobs) for each in self._held]
        rest, reason = self._reader.end(reason)
        return [*held, *rest], reason
