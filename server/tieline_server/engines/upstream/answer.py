"""Chunks of a chat completion, to deltas.

The names that vLLM, SGLang, llama.cpp, Ollama and DeepSeek give to reasoning are all read
(``reasoning_content``, ``reasoning``). A chunk counts as one token, more where its text is long,
until the upstream states what was used.
"""

from collections.abc import Mapping
from typing import Any, Final

import msgspec
from msgspec import Raw, Struct

from tieline_server.core.create.tools import Tool
from tieline_server.core.deltas import (
    Delta,
    Finish,
    FinishReason,
    ReasoningDelta,
    RefusalDelta,
    TextDelta,
)
from tieline_server.engines.upstream.calls import CallPiece, Calls
from tieline_server.engines.upstream.chunks import ChunkedAnswer
from tieline_server.engines.upstream.logprobs import given
from tieline_server.engines.upstream.stated import CompletionUsage

ONE_TOKEN: Final = 16
"""Characters of a chunk up to which it counts as one token; of more, each four are one."""

_REASONS: Final[dict[str, FinishReason]] = {
    "length": "length",
    "max_tokens": "length",
    "content_filter": "content_filter",
}
"""Finish reason upstream -> ours. Any other is ``stop``: the calls say for themselves."""


class _Logprobs(Struct, frozen=True, gc=False):
    content: list[Raw] | None = None


class _Delta(Struct, frozen=True, gc=False):
    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    refusal: str | None = None
    tool_calls: list[CallPiece] | None = None


class _Choice(Struct, frozen=True, gc=False):
    delta: _Delta | None
    index: int = 0
    finish_reason: str | None = None
    logprobs: _Logprobs | None = None


class _Chunk(Struct, frozen=True, gc=False):
    choices: list[_Choice] | None = None
    usage: CompletionUsage | None = None
    error: Any = None
    object: str | None = None


_chunk: Final = msgspec.json.Decoder(_Chunk)


class ChatAnswer(ChunkedAnswer):
    """Reads one answer. ``tools`` were sent; ``logprobs``: whether the client wants some."""

    __slots__ = ("_calls", "_logprobs")

    def __init__(self, tools: Mapping[str, Tool], *, logprobs: bool = False) -> None:
        super().__init__(_chunk.decode)
        self._calls = Calls(tools)
        self._logprobs = logprobs

    def end(self, phases: dict[str, int]) -> list[Delta]:
        """The last step. Raises :class:`Failure` where a call is not whole."""
        reason = _REASONS.get(self._reason or "", "stop")
        usage = self._usage
        thought = usage.completion_tokens_details
        finish = Finish(
            reason=reason,
            input_tokens=usage.prompt_tokens,
            cached_tokens=usage.cached,
            written_tokens=usage.written,
            output_tokens=usage.completion_tokens,
            reasoning_tokens=thought.reasoning_tokens if thought is not None else None,
            phases=phases,
        )
        deltas: list[Delta] = []
        self._calls.end(deltas, cut=reason != "stop")
        deltas.append(finish)
        return deltas

    def _take(self, choice: _Choice, chunk: _Chunk, deltas: list[Delta]) -> None:
        delta = choice.delta
        if delta is None:
            return
        text, refusal = delta.content, delta.refusal
        thought = delta.reasoning_content or delta.reasoning
        if text or thought or refusal:
            self._calls.interrupt(deltas)
            if thought:
                deltas.append(ReasoningDelta(thought, tokens_of(thought)))
            if text:
                logprobs = choice.logprobs if self._logprobs else None
                said = () if logprobs is None else given(logprobs.content or ())
                deltas.append(TextDelta(text, tokens_of(text), said))
            if refusal:
                deltas.append(RefusalDelta(refusal, tokens_of(refusal)))
        if delta.tool_calls:
            self.moved = True
            self._calls.feed(delta.tool_calls, deltas)


def tokens_of(text: str) -> int:
    """How many tokens a piece of an answer counts as."""
    return 1 if len(text) <= ONE_TOKEN else len(text) // 4
