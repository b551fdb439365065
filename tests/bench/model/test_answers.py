"""What the model says over either interface is one answer, and OpenAI's own client reads it."""

import json
from typing import Any

import pytest
from openai.types.chat import ChatCompletionChunk
from openai.types.responses import ResponseStreamEvent
from pydantic import TypeAdapter

from tieline_bench.model.answers import ARGUMENTS, CHAT, RESPONSES, WORD, Answer, call, words

PATHS = (CHAT, RESPONSES)
EVENT: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)


def data(answer: Answer) -> list[str]:
    blocks = answer.whole.decode().removesuffix("\n\n").split("\n\n")
    return [block.partition("data: ")[2] for block in blocks]


@pytest.mark.parametrize("path", PATHS)
def test_a_call_has_its_arguments_in_as_many_deltas(path: str) -> None:
    said = [json.loads(delta.partition(b"data: ")[2]) for delta in call(path).deltas]
    if path == CHAT:
        calls = [chunk["choices"][0]["delta"]["tool_calls"][0] for chunk in said]
        assert [each["function"]["arguments"] for each in calls] == list(ARGUMENTS)
    else:
        assert [event["delta"] for event in said] == list(ARGUMENTS)
    assert json.loads("".join(ARGUMENTS)) == {"path": "src/main.py"}


@pytest.mark.parametrize("path", PATHS)
def test_words_are_a_delta_each(path: str) -> None:
    deltas = words(path, 3).deltas
    assert len(deltas) == 3
    assert all(json.dumps(WORD).encode() in delta for delta in deltas)


@pytest.mark.parametrize("answer", [call(CHAT), words(CHAT, 2)], ids=["call", "words"])
def test_each_chunk_of_a_completion_is_one_that_the_library_knows(answer: Answer) -> None:
    *chunks, done = data(answer)
    assert done == "[DONE]"
    read = [ChatCompletionChunk.model_validate_json(chunk) for chunk in chunks]
    assert read[-1].usage is not None
    assert read[-1].usage.completion_tokens == len(answer.deltas)
    assert read[-2].choices[0].finish_reason in ("stop", "tool_calls")


@pytest.mark.parametrize("answer", [call(RESPONSES), words(RESPONSES, 2)], ids=["call", "words"])
def test_each_event_of_a_response_is_one_that_the_library_knows_and_numbered(
    answer: Answer,
) -> None:
    events = [EVENT.validate_json(event) for event in data(answer)]
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert events[-1].type == "response.completed"
    assert events[-1].response.usage.output_tokens == len(answer.deltas)
