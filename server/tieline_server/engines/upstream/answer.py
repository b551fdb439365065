"""Chunks of a chat completion, to deltas.

The names that vLLM, SGLang, llama.cpp, Ollama and DeepSeek give to reasoning are all read
(``reasoning_content``, ``reasoning``). A chunk counts as one token, more where its text is long,
until the upstream states what was used.
"""

from collections.abc import Iterable, Mapping
from typing import Any, Final

import msgspec
from msgspec import Raw, Struct

from tieline_server.core.deltas import (
    Delta,
    Finish,
    FinishReason,
    ReasoningDelta,
    RefusalDelta,
    TextDelta,
)
from tieline_server.core.settings import Tool
from tieline_server.engines.upstream.calls import CallPiece, Calls
from tieline_server.engines.upstream.faults import malformed, refused, said_of, status_in

DONE: Final = b"[DONE]"

ONE_TOKEN: Final = 16
"""Characters of a chunk up to which it counts as one token; of more, each four are one."""

ABORTED: Final = frozenset({"abort", "error", "insufficient_system_resource"})
"""Finish reasons by which servers say that they failed."""

_REASONS: Final[dict[str, FinishReason]] = {
    "length": "length",
    "max_tokens": "length",
    "content_filter": "content_filter",
}
"""Finish reason upstream -> ours. Any other is ``stop``: the calls say for themselves."""


class _Logprobs(Struct, frozen=True):
    content: list[Raw] | None = None


class _Delta(Struct, frozen=True):
    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    refusal: str | None = None
    tool_calls: list[CallPiece] | None = None


class _Choice(Struct, frozen=True):
    index: int = 0
    delta: _Delta | None = None
    finish_reason: str | None = None
    logprobs: _Logprobs | None = None


class _InputDetails(Struct, frozen=True):
    cached_tokens: int | None = None


class _OutputDetails(Struct, frozen=True):
    reasoning_tokens: int | None = None


class _Usage(Struct, frozen=True):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: _InputDetails | None = None
    completion_tokens_details: _OutputDetails | None = None
    prompt_cache_hit_tokens: int | None = None
    """DeepSeek's name for what was cached."""


class _Chunk(Struct, frozen=True):
    choices: list[_Choice] | None = None
    usage: _Usage | None = None
    error: Any = None
    object: str | None = None


_chunk: Final = msgspec.json.Decoder(_Chunk)
_anything: Final = msgspec.json.Decoder()


class ChatAnswer:
    """Reads one answer. ``tools`` are those that were sent."""

    __slots__ = ("_calls", "_reason", "_usage", "done")

    def __init__(self, tools: Mapping[str, Tool]) -> None:
        self._calls = Calls(tools)
        self._reason: str | None = None
        self._usage: _Usage | None = None
        self.done = False
        """Whether the upstream said that nothing more comes."""

    @property
    def finished(self) -> bool:
        """Whether the model has ended, even if its usage is still to come."""
        return self._reason is not None

    def read(self, events: Iterable[bytes]) -> list[Delta]:
        """The deltas of some events. Raises :class:`Failure`."""
        deltas: list[Delta] = []
        for data in events:
            if data == DONE:
                self.done = True
                break
            try:
                chunk = _chunk.decode(data)
            except (msgspec.MsgspecError, RecursionError):
                raise malformed() from None
            if chunk.error is not None or chunk.object == "error":
                said = said_of(chunk.error or _anything.decode(data))
                raise refused(status_in(said), said)
            if chunk.usage is not None:
                self._usage = chunk.usage
            for choice in chunk.choices or ():
                if choice.index == 0:
                    self._take(choice, deltas)
        return deltas

    def end(self, phases: dict[str, int]) -> list[Delta]:
        """The last step. Raises :class:`Failure` where a call is not whole."""
        reason = _REASONS.get(self._reason or "", "stop")
        usage = self._usage or _Usage()
        cached = usage.prompt_cache_hit_tokens
        if usage.prompt_tokens_details is not None:
            cached = usage.prompt_tokens_details.cached_tokens
        thought = usage.completion_tokens_details
        finish = Finish(
            reason=reason,
            input_tokens=usage.prompt_tokens,
            cached_tokens=cached,
            output_tokens=usage.completion_tokens,
            reasoning_tokens=thought.reasoning_tokens if thought is not None else None,
            phases=phases,
        )
        return [*self._calls.end(cut=reason != "stop"), finish]

    def _take(self, choice: _Choice, deltas: list[Delta]) -> None:
        delta = choice.delta
        if delta is not None:
            if delta.content or delta.reasoning_content or delta.reasoning or delta.refusal:
                deltas += self._calls.interrupt()
            if thought := delta.reasoning_content or delta.reasoning:
                deltas.append(ReasoningDelta(thought, tokens_of(thought)))
            if text := delta.content:
                logprobs = choice.logprobs
                said = () if logprobs is None else tuple(logprobs.content or ())
                deltas.append(TextDelta(text, tokens_of(text), said))
            if delta.refusal:
                deltas.append(RefusalDelta(delta.refusal, tokens_of(delta.refusal)))
            if delta.tool_calls:
                deltas += self._calls.feed(delta.tool_calls)
        if choice.finish_reason is not None:
            if choice.finish_reason in ABORTED:
                raise refused(500, said_of(None))
            self._reason = choice.finish_reason


def tokens_of(text: str) -> int:
    """How many tokens a piece of an answer counts as."""
    return 1 if len(text) <= ONE_TOKEN else len(text) // 4
