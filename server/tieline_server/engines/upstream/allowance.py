"""``max_output_tokens`` against an upstream that goes on past it.

How many tokens an answer has the upstream alone knows, and its chunks are no tokens: some hold
many, some part of one. So an answer is ended only for what is certain. That is what the upstream
states while it goes on (usage in chunks, ids, log probabilities), and what its text cannot be
less than: a token does not go on behind a space, nor is it longer than ``LONGEST``. So it is in
the vocabularies of the models that are served; one that joins words would be held too short.
An upstream that keeps to the limit is never beyond it by that, and ends by itself as ever.
"""

import re
from collections.abc import Iterable
from typing import Final

from msgspec import structs

from tieline_server.core.deltas import (
    MOST,
    CallDelta,
    CallStart,
    Delta,
    Finish,
    ItemEnd,
    ReasoningDelta,
    RefusalDelta,
    TextDelta,
)
from tieline_server.engines.upstream.modes import Answer

LONGEST: Final = 128
"""Characters of the longest token that vocabularies have: a run of spaces, or of dashes."""

Piece = TextDelta | RefusalDelta | ReasoningDelta | CallDelta

_WORD: Final = re.compile(r"\S+")


def _is_word(text: str) -> bool:
    return text.isalnum() or any(map(str.isalnum, text))


class Least:
    """The tokens that text has at the least: its words, or what the longest tokens can hold.

    A word without a letter or a digit is none: servers that write arguments anew put spaces
    between brackets and commas that were one token.
    """

    __slots__ = ("_counted", "_letters", "_within", "_words")

    def __init__(self) -> None:
        self._words = 0
        self._letters = 0
        self._within = False
        """Whether the last piece ended in a word, which the next one may go on with."""
        self._counted = False
        """Whether that word is counted."""

    @property
    def tokens(self) -> int:
        """So many, of all that was added."""
        return max(self._words, -(-self._letters // LONGEST))

    def add(self, text: str) -> list[int]:
        """A further piece; where in it the words begin that were not counted yet.

        >>> least = Least()
        >>> [least.add(text) for text in ("one tw", "o ", "three")]
        [[0, 4], [], [0]]
        >>> least.tokens
        3
        """
        begins = self._begins(text)
        self._words += len(begins)
        self._letters += len(text)
        words = text.split()
        if words:
            goes_on = len(words) == 1 and self._goes_on(text) and self._counted
            self._counted = goes_on or _is_word(words[-1])
        if text:
            self._within = not text[-1].isspace()
        return begins

    def call(self) -> None:
        """A call begins: its name is one at least."""
        self._words += 1
        self.end()

    def end(self) -> None:
        """What follows is no part of the last word."""
        self._within = False

    def _goes_on(self, text: str) -> bool:
        return self._within and not text[:1].isspace()

    def _begins(self, text: str) -> list[int]:
        begins = [word.start() for word in _WORD.finditer(text) if _is_word(word[0])]
        known = self._goes_on(text) and self._counted
        return begins[1:] if known and begins[:1] == [0] else begins


class LimitedAnswer:
    """An answer of ``most`` tokens; it is over with the first one that is certainly too many."""

    __slots__ = ("_answer", "_least", "_most", "_over", "_said", "moved")

    def __init__(self, answer: Answer, most: int) -> None:
        self._answer = answer
        self._most = most
        self._least = Least()
        self._said = 0
        """Tokens up to here that are certain."""
        self._over = False
        self.moved = False
        """As the answer's own."""

    @property
    def done(self) -> bool:
        """Whether nothing more comes, or nothing more is wanted."""
        return self._over or self._answer.done

    @property
    def finished(self) -> bool:
        """Whether the model has ended by itself."""
        return not self._over and self._answer.finished

    @property
    def stated(self) -> int:
        """As the answer's own, where that is a number of tokens."""
        stated = self._answer.stated
        return stated if stated <= MOST else 0

    def read(self, events: Iterable[bytes]) -> list[Delta]:
        """The deltas of some events, up to the limit. Raises :class:`Failure`."""
        deltas: list[Delta] = []
        for event in events:
            said = self._answer.read((event,))
            if self._answer.moved:
                self._answer.moved, self.moved = False, True
            for delta in said:
                self._take(delta, deltas)
                if self._over:
                    return deltas
            if self._answer.done:
                break
        return deltas

    def end(self, phases: dict[str, int]) -> list[Delta]:
        """The last step. Raises :class:`Failure` where something is not whole."""
        if self._over:
            used = self.stated if self.stated > self._most else None
            return [Finish(reason="length", output_tokens=used, phases=phases)]
        *deltas, finish = self._answer.end(phases)
        assert isinstance(finish, Finish)
        if finish.reason == "stop" and self._most < (finish.output_tokens or 0) <= MOST:
            # It came to an end, but not within the limit.
            finish = structs.replace(finish, reason="length")
        return [*deltas, finish]

    def _take(self, delta: Delta, deltas: list[Delta]) -> None:
        """Adds what of ``delta`` is within the limit."""
        if isinstance(delta, CallStart):
            self._least.call()
        elif isinstance(delta, ItemEnd):
            self._least.end()
        elif isinstance(delta, Piece):
            self._add(delta, deltas)
            return
        self._said = max(self._said, self._least.tokens)
        self._over = self._said > self._most
        if not self._over:
            deltas.append(delta)

    def _add(self, delta: Piece, deltas: list[Delta]) -> None:
        before = self._said
        exact = len(delta.logprobs) if isinstance(delta, TextDelta) else 0
        begins = self._least.add(delta.text)
        self._said = max(self._least.tokens, before + exact, self.stated)
        self._over = self._said > self._most
        if not self._over:
            deltas.append(delta)
        elif part := within(delta.text, begins, self._most - before):
            deltas.append(structs.replace(delta, text=part))


def within(text: str, begins: list[int], tokens: int) -> str:
    """The beginning of a piece, whose words begin there, that may be so many tokens."""
    end = begins[tokens] if len(begins) > tokens else len(text)
    return text[: min(end, tokens * LONGEST)]
