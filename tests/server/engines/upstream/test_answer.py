"""Chunks of every known shape become deltas."""

from typing import Any

import msgspec
import pytest

from tieline_server.core.deltas import Finish, ReasoningDelta, RefusalDelta, TextDelta
from tieline_server.engines.upstream.answer import ChatAnswer
from tieline_server.engines.upstream.chunks import DONE
from tieline_server.engines.upstream.faults import Failure


def chunk(reason: str | None = None, usage: Any = None, **delta: Any) -> bytes:
    choice = {"index": 0, "delta": delta, "finish_reason": reason}
    return msgspec.json.encode({"choices": [choice], "usage": usage})


def finish(*events: bytes) -> Finish:
    answer = ChatAnswer({})
    answer.read(events)
    last = answer.end({})[-1]
    assert isinstance(last, Finish)
    return last


@pytest.mark.parametrize(
    ("delta", "expected"),
    [
        ({"content": "a"}, [TextDelta("a")]),
        ({"content": "", "role": "assistant"}, []),
        ({"reasoning_content": "a", "content": None}, [ReasoningDelta("a")]),
        ({"reasoning": "a"}, [ReasoningDelta("a")]),
        ({"reasoning": "a", "reasoning_content": "a"}, [ReasoningDelta("a")]),
        ({"reasoning": "a", "content": "b"}, [ReasoningDelta("a"), TextDelta("b")]),
        ({"refusal": "no"}, [RefusalDelta("no")]),
        ({"content": "x" * 40}, [TextDelta("x" * 40, 10)]),
        ({"something_new": {"a": 1}}, []),
        ({"content": [{"type": "text", "text": "a"}, {"type": "text"}]}, [TextDelta("a")]),
        (
            {
                "content": [
                    {"type": "thinking", "thinking": [{"type": "text", "text": "a"}]},
                    {"type": "text", "text": "b"},
                ]
            },
            [ReasoningDelta("a"), TextDelta("b")],
        ),
        ({"content": [{"type": "thinking", "thinking": "a"}]}, [ReasoningDelta("a")]),
    ],
)
def test_deltas_of_every_shape_are_read(delta: dict[str, Any], expected: Any) -> None:
    assert ChatAnswer({}).read([chunk(**delta)]) == expected


def test_logprobs_come_with_their_text_where_somebody_asked() -> None:
    entry = {"token": "a", "logprob": -0.5, "bytes": [97], "top_logprobs": []}
    choice = {"index": 0, "delta": {"content": "a"}, "logprobs": {"content": [entry]}}
    for wanted, expected in ((True, [entry]), (False, [])):
        answer = ChatAnswer({}, logprobs=wanted)
        (delta,) = answer.read([msgspec.json.encode({"choices": [choice]})])
        assert isinstance(delta, TextDelta)
        assert [msgspec.json.decode(each) for each in delta.logprobs] == expected


def test_who_does_not_stream_says_it_all_in_a_message() -> None:
    choice = {"index": 0, "message": {"role": "assistant", "content": "a"}}
    assert ChatAnswer({}).read([msgspec.json.encode({"choices": [choice]})]) == [TextDelta("a")]


def test_only_the_first_choice_is_read_and_nothing_behind_the_end() -> None:
    answer = ChatAnswer({})
    other = msgspec.json.encode({"choices": [{"index": 1, "delta": {"content": "b"}}]})
    assert answer.read([other, chunk(content="a"), DONE, b"junk"]) == [TextDelta("a")]
    assert answer.done


@pytest.mark.parametrize(
    ("reason", "expected"),
    [
        ("stop", "stop"),
        ("tool_calls", "stop"),
        ("function_call", "stop"),
        ("length", "length"),
        ("content_filter", "content_filter"),
        ("eos", "stop"),
    ],
)
def test_finish_reasons_are_ours(reason: str, expected: str) -> None:
    assert finish(chunk(reason)).reason == expected


@pytest.mark.parametrize("reason", ["abort", "error", "insufficient_system_resource"])
def test_a_server_that_says_that_it_failed_failed(reason: str) -> None:
    with pytest.raises(Failure) as caught:
        finish(chunk(reason))
    assert caught.value.error.code == "server_error"


@pytest.mark.parametrize(
    ("usage", "expected"),
    [
        ({"prompt_tokens": 9, "completion_tokens": 3}, (9, None, 3, None)),
        (
            {
                "prompt_tokens": 9,
                "completion_tokens": 3,
                "prompt_tokens_details": {"cached_tokens": 8},
                "completion_tokens_details": {"reasoning_tokens": 2},
            },
            (9, 8, 3, 2),
        ),
        ({"prompt_tokens": 9, "prompt_tokens_details": None}, (9, None, None, None)),
        (
            {"prompt_tokens": 9, "completion_tokens": 3, "prompt_cache_hit_tokens": 7},
            (9, 7, 3, None),
        ),
        (None, (None, None, None, None)),
    ],
)
def test_usage_of_every_shape_is_read(usage: Any, expected: Any) -> None:
    end = finish(chunk("stop", usage))
    found = (end.input_tokens, end.cached_tokens, end.output_tokens, end.reasoning_tokens)
    assert found == expected
