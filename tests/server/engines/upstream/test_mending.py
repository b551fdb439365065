"""Chunks of a wrong form come to the usual one, as far as they say something."""

from typing import Any

import msgspec
import pytest

from tieline_server.engines.upstream.mending import Mender, written


def mend(chunk: Any) -> Any:
    return msgspec.json.decode(Mender().chunk(msgspec.json.encode(chunk)))


def mend_delta(**delta: Any) -> Any:
    return mend({"choices": [{"delta": delta}]})["choices"][0]["delta"]


@pytest.mark.parametrize(
    ("content", "text", "thought"),
    [
        ([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}], "ab", None),
        ([{"type": "thinking", "thinking": [{"text": "a"}]}, {"text": "b"}], "b", "a"),
        ([{"type": "thinking", "thinking": "a"}], "", "a"),
        ([5, {"text": 5}, {"type": "image"}], "", None),
    ],
)
def test_parts_become_text_and_thoughts(content: Any, text: str, thought: str | None) -> None:
    delta = mend_delta(content=content)
    assert (delta["content"], delta.get("reasoning_content")) == (text, thought)


def test_calls_get_text_for_arguments_and_for_ids() -> None:
    call = {"index": 0, "id": 5, "function": {"name": "f", "arguments": {"a": 1}}}
    assert mend_delta(tool_calls=[call, 5])["tool_calls"] == [
        {"index": 0, "id": "5", "function": {"name": "f", "arguments": '{"a":1}'}},
        5,
    ]


@pytest.mark.parametrize(
    ("choice", "left"),
    [
        ({"index": None, "delta": {}}, {"delta": {}}),
        ({"index": 1, "delta": {}, "logprobs": []}, {"index": 1, "delta": {}}),
        ({"index": 1}, {"index": 1, "delta": None}),
        ({"delta": {"reasoning": {"a": 1}}}, {"delta": {}}),
        ({"delta": 5}, {"delta": 5}),
    ],
)
def test_what_else_is_wrong_with_a_choice_is_left_out_where_it_says_nothing(
    choice: Any, left: Any
) -> None:
    assert mend({"choices": [choice]})["choices"] == [left]


def test_who_does_not_stream_says_it_all_in_a_message() -> None:
    said = {"role": "assistant", "content": [{"text": "a"}]}
    mended = mend({"choices": [{"message": said}]})["choices"][0]["delta"]
    assert mended == {"role": "assistant", "content": "a"}


def test_usage_is_what_of_it_is_numbers() -> None:
    assert mend({"usage": {"prompt_tokens": "7", "completion_tokens": "x"}}) == {
        "usage": {"prompt_tokens": 7}
    }
    assert mend({"usage": []}) == {"usage": None}


@pytest.mark.parametrize("data", [b"{", b"[]", b"null", b"5", b'"a"'])
def test_what_is_no_chunk_at_all_is_not_mended(data: bytes) -> None:
    with pytest.raises(msgspec.MsgspecError):
        Mender().chunk(data)


def test_only_objects_are_written_as_text() -> None:
    assert written({"a": [1]}) == '{"a":[1]}'
    assert [written(each) for each in ("{}", None, [1])] == ["{}", None, [1]]
