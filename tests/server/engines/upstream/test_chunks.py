"""Chunks of any streamed completion: what ends an answer, and what is none."""

from typing import Any

import msgspec
import pytest
from msgspec import Struct

from tieline_server.core.deltas import Delta, TextDelta
from tieline_server.engines.upstream.chunks import ABORTED, DONE, ChunkedAnswer
from tieline_server.engines.upstream.faults import Failure
from tieline_server.engines.upstream.stated import CompletionUsage


class _Choice(Struct):
    index: int = 0
    text: str = ""
    finish_reason: str | None = None


class _Chunk(Struct):
    choices: list[_Choice] | None = None
    usage: CompletionUsage | None = None
    error: Any = None
    object: str | None = None


class Words(ChunkedAnswer):
    """An answer whose choices say words."""

    def __init__(self) -> None:
        super().__init__(msgspec.json.Decoder(_Chunk).decode)

    def _take(self, choice: _Choice, chunk: _Chunk, deltas: list[Delta]) -> None:
        deltas.append(TextDelta(choice.text))


def said(answer: ChunkedAnswer, *events: bytes) -> list[str]:
    """The words of some events."""
    return [delta.text for delta in answer.read(events) if isinstance(delta, TextDelta)]


def test_only_the_first_choice_counts_and_nothing_behind_the_end() -> None:
    answer = Words()
    both = b'{"choices":[{"index":1,"text":"no"},{"text":"a"}]}'
    assert said(answer, both, b"{}", DONE, b'{"choices":[{"text":"b"}]}') == ["a"]
    assert (answer.done, answer.finished) == (True, False)


def test_a_finish_reason_ends_the_model_and_usage_may_follow() -> None:
    answer = Words()
    assert said(answer, b'{"choices":[{"text":"a","finish_reason":"stop"}]}') == ["a"]
    assert (answer.done, answer.finished) == (False, True)
    assert said(answer, b'{"choices":[],"usage":{"prompt_tokens":7}}') == []
    assert answer._usage == CompletionUsage(prompt_tokens=7)


@pytest.mark.parametrize("data", [b"", b'{"error":{}}', b'{"error":""}', b'{"error":false}'])
def test_what_says_nothing_is_passed_over(data: bytes) -> None:
    assert said(Words(), data, b'{"choices":[{"text":"a"}]}') == ["a"]


@pytest.mark.parametrize("usage", [b"7", b'"7"', b"[]", b'{"completion_tokens":"x"}'])
def test_usage_that_cannot_be_read_states_nothing(usage: bytes) -> None:
    answer = Words()
    answer.read([b'{"usage":%b}' % usage])
    assert answer.stated == 0


def test_usage_in_the_midst_of_an_answer_states_how_far_it_is() -> None:
    answer = Words()
    answer.read([b'{"usage":{"completion_tokens":5}}'])
    assert answer.stated == 5


@pytest.mark.parametrize("reason", sorted(ABORTED))
def test_a_server_that_gave_up_is_a_failure_and_no_end(reason: str) -> None:
    answer = Words()
    with pytest.raises(Failure):
        answer.read([b'{"choices":[{"finish_reason":"%b"}]}' % reason.encode()])
    assert not answer.finished


@pytest.mark.parametrize(
    "data",
    [b"{", b"[]", b'{"choices":5}', b"[" * 100_000, b'{"error":{"message":"no"}}',
     b'{"object":"error","message":"no"}'],
)  # fmt: skip
def test_what_is_no_chunk_is_a_failure(data: bytes) -> None:
    with pytest.raises(Failure):
        Words().read([data])
