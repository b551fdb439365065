"""Chunks of a completion, to deltas: text and its ids, calls read from the text.

What holds the text to a form, and so who reads it, is the constraint of the prompt. Where the
upstream was not held to that, or writes JSON with white space, a call is still a call.
"""

from collections.abc import Sequence
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta, Raw, Struct

from tieline_server.core.deltas import Delta, Finish, FinishReason
from tieline_server.engines.base import EngineError
from tieline_server.engines.chat_format.constrain import Constraint
from tieline_server.engines.chat_format.sampled_ids import Sampled
from tieline_server.engines.chat_format.sampled_text import Piece, Reader
from tieline_server.engines.chat_format.tokens import Split
from tieline_server.engines.upstream import logprobs
from tieline_server.engines.upstream.answer import tokens_of
from tieline_server.engines.upstream.chunks import ChunkedAnswer
from tieline_server.engines.upstream.faults import broken_call
from tieline_server.engines.upstream.loose_text import LooseReader, is_bare
from tieline_server.engines.upstream.stated import CompletionUsage

Id = Annotated[int, Meta(ge=0, lt=1 << 31)]


class _Logprobs(Struct, frozen=True):
    content: list[Raw] | None = None
    """As llama.cpp has them."""
    tokens: list[str] | None = None
    """As completions have them, with the next two."""
    token_logprobs: list[float | None] | None = None
    top_logprobs: list[dict[str, float | None] | None] | None = None


class _Verbose(Struct, frozen=True):
    tokens: list[Id] = []


class _Choice(Struct, frozen=True):
    index: int = 0
    text: str | None = None
    token_ids: list[Id] | None = None
    finish_reason: str | None = None
    logprobs: _Logprobs | None = None


class _Timings(Struct, frozen=True):
    predicted_n: int | None = None


class _Chunk(Struct, frozen=True, rename={"verbose": "__verbose"}):
    choices: list[_Choice] | None = None
    usage: CompletionUsage | None = None
    error: Any = None
    object: str | None = None
    verbose: _Verbose | None = None
    """Where llama.cpp has the newest ids."""
    timings: _Timings | None = None


_chunk: Final = msgspec.json.Decoder(_Chunk)


class CompletionAnswer(ChunkedAnswer):
    """Reads one answer; ``sampled`` hears which ids it was.

    ``wanted``: how many others the log probabilities of a token have, None for none at all.
    """

    def __init__(
        self,
        constraint: Constraint,
        sampled: Sampled,
        *,
        split: Split,
        loose: bool,
        wanted: int | None,
    ) -> None:
        super().__init__(_chunk.decode)
        self._loose = loose
        self._reader: Reader = constraint.reader()
        if loose and is_bare(constraint):
            self._reader = LooseReader(constraint)
        self._sampled = sampled
        self._split = split
        self._wanted = wanted
        self._count = 0
        self._known = 0

    @property
    def stated(self) -> int:
        """Output tokens of which the upstream has said so far that there are."""
        return max(self._known, self._count, super().stated)

    def end(self, phases: dict[str, int]) -> list[Delta]:
        """The last step. Raises as :meth:`read` does where the answer is not whole."""
        reason: FinishReason = "stop" if self._reason != "length" else "length"
        if self._reason == "content_filter":
            reason = "content_filter"
        try:
            deltas, reason = self._reader.end(reason)
        except EngineError:
            if not self._loose:
                raise
            raise broken_call() from None
        self._sampled.add((), deltas)
        usage = self._usage
        finish = Finish(
            reason=reason,
            input_tokens=usage.prompt_tokens,
            cached_tokens=usage.cached,
            written_tokens=usage.written,
            output_tokens=usage.completion_tokens,
            phases=phases,
        )
        return [*deltas, finish]

    def _take(self, choice: _Choice, chunk: _Chunk, deltas: list[Delta]) -> None:
        text = choice.text or ""
        ids = self._ids(text, choice, chunk)
        self._known += len(ids or ())
        made: list[Delta] = []
        if text:
            count = len(ids) if ids else tokens_of(text)
            piece = Piece(text, count, self._logprobs(choice.logprobs))
            try:
                made = self._reader.feed(piece)
            except EngineError:
                if not self._loose:
                    raise
                raise broken_call() from None
        if text or ids:
            self.moved = True
            self._sampled.add(ids, made)
        deltas += made

    def _ids(self, text: str, choice: _Choice, chunk: _Chunk) -> Sequence[int] | None:
        """The ids of a chunk, or None where the upstream does not say."""
        if choice.token_ids is not None:
            return choice.token_ids
        newest = chunk.verbose.tokens if chunk.verbose is not None else []
        sampled = chunk.timings.predicted_n if chunk.timings is not None else None
        if not newest or sampled is None:
            return None
        count, self._count = sampled - self._count, sampled
        if count < 1:
            return None
        # Of a code point that took several, llama.cpp tells the last one.
        return newest if count == len(newest) else self._split(text, count, newest[-1])

    def _logprobs(self, said: _Logprobs | None) -> tuple[Raw, ...]:
        if said is None or self._wanted is None:
            return ()
        if said.content is not None:
            return logprobs.given(said.content, most=self._wanted)
        values = said.token_logprobs or []
        tops = said.top_logprobs or [None] * len(values)
        pairs = zip(said.tokens or (), values, tops, strict=False)
        entries = (logprobs.paired(*each, most=self._wanted) for each in pairs)
        return tuple(each for each in entries if each is not None)
