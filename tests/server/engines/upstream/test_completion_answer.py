"""Chunks of a completion become deltas, and the ids of what was sampled are kept."""

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from tests.support.engine_contract import WEATHER, prompt
from tieline_server.core.deltas import CallDelta, CallStart, Delta, Finish, TextDelta
from tieline_server.engines.base import EngineError
from tieline_server.engines.chat_format.constrain import Constraint, Speech, constraint_of
from tieline_server.engines.chat_format.sampled_ids import Sampled
from tieline_server.engines.upstream.chunks import DONE
from tieline_server.engines.upstream.completion_answer import CompletionAnswer
from tieline_server.engines.upstream.faults import MALFORMED, Failure

PLAIN_SPEECH = Speech(special={"<|im_end|>": 2}, end="<|im_end|>")
TEXT = Constraint(speech=PLAIN_SPEECH)


class Read:
    """An answer that is read: its deltas, the ids that it was sampled as, and what was split."""

    def __init__(
        self, constraint: Constraint = TEXT, *, loose: bool = False, logprobs: int | None = None
    ) -> None:
        self.sampled = Sampled()
        self.split: list[tuple[str, int, int]] = []
        self.answer = CompletionAnswer(
            constraint, self.sampled, split=self._split, loose=loose, wanted=logprobs
        )

    def __call__(self, *chunks: dict[str, Any]) -> list[Delta]:
        return self.answer.read(msgspec.json.encode(each) for each in chunks)

    def finish(self, *chunks: dict[str, Any]) -> Finish:
        """How the answer ends."""
        self(*chunks)
        last = self.answer.end({})[-1]
        assert isinstance(last, Finish)
        return last

    @property
    def ids(self) -> list[int]:
        return list(self.sampled.ids)

    def _split(self, text: str, count: int, last: int) -> Sequence[int] | None:
        self.split.append((text, count, last))
        return None if text == "?" else [*range(count - 1), last]


def chunk(
    text: str = "", reason: str | None = None, *, usage: Any = None, **more: Any
) -> dict[str, Any]:
    choice = {"index": 0, "text": text, "finish_reason": reason, **more}
    return {"choices": [choice], "usage": usage}


def seen(text: str, sampled: int, *newest: int) -> dict[str, Any]:
    """A chunk as llama.cpp tells of it."""
    told = {"__verbose": {"tokens": list(newest)}, "timings": {"predicted_n": sampled}}
    return {**chunk(text), **told}


def calling() -> Constraint:
    settings = prompt(tools=[WEATHER], tool_choice="required").settings
    return constraint_of(settings.tools.offered, settings, PLAIN_SPEECH)


def test_text_comes_with_as_many_tokens_as_it_has_ids() -> None:
    assert Read()(chunk("fine", token_ids=[5, 6])) == [TextDelta("fine", 2)]


def test_where_no_ids_are_told_its_tokens_are_estimated() -> None:
    assert Read()(chunk("x" * 40)) == [TextDelta("x" * 40, 10)]


def test_the_ids_of_an_answer_are_those_that_the_upstream_sampled() -> None:
    read = Read()
    read(chunk("fi", token_ids=[5]), chunk("ne", token_ids=[6]), chunk("!", token_ids=[]))
    read(chunk(token_ids=[2]))
    assert read.ids == [5, 6, 2]


def test_from_a_chunk_on_whose_ids_are_not_told_none_are_kept() -> None:
    read = Read()
    read(chunk("a", token_ids=[5]), chunk("b"), chunk("c", token_ids=[7]))
    assert read.ids == [5]


def test_ids_are_counted_by_what_llama_cpp_says_that_it_has_sampled() -> None:
    read = Read()
    read(seen("fi", 1, 5), seen("ne", 3, 6, 7))
    assert (read.ids, read.split) == ([5, 6, 7], [])


def test_text_of_more_tokens_than_are_told_is_split() -> None:
    read = Read()
    read(seen("ü", 2, 9))
    assert (read.ids, read.split) == ([0, 9], [("ü", 2, 9)])
    read(seen("?", 4, 8))
    assert read.ids == [0, 9]


@pytest.mark.parametrize("sampled", [0, -5])
def test_a_chunk_that_was_sampled_as_nothing_has_no_ids(sampled: int) -> None:
    read = Read()
    assert read(seen("", sampled, 5), chunk("fine", token_ids=[6])) == [TextDelta("fine", 1)]
    assert read.ids == [6]


def test_log_probabilities_are_told_only_where_they_are_wanted() -> None:
    told = {"content": [{"token": "a", "bytes": [97], "logprob": -0.5}]}
    assert Read()(chunk("a", logprobs=told)) == [TextDelta("a", 1)]
    (delta,) = Read(logprobs=0)(chunk("a", logprobs=told))
    assert isinstance(delta, TextDelta)
    assert len(delta.logprobs) == 1


def entries_of(read: Read, logprobs: Any) -> list[Any]:
    """The entries of a text of two tokens."""
    (delta,) = read(chunk("fine", token_ids=[5, 6], logprobs=logprobs))
    assert isinstance(delta, TextDelta)
    return [msgspec.json.decode(each) for each in delta.logprobs]


def test_of_the_alternatives_as_many_are_told_as_are_wanted() -> None:
    likely = [{"token": name, "bytes": [], "logprob": -1.0} for name in "abc"]
    entry = {"token": "a", "bytes": [97], "logprob": -0.5, "top_logprobs": likely}
    (told,) = entries_of(Read(logprobs=2), {"content": [entry]})
    assert told == {**entry, "top_logprobs": likely[:2]}


def test_log_probabilities_of_completions_are_told_in_the_form_of_this_api() -> None:
    logprobs = {
        "tokens": ["fi", "ne"],
        "token_logprobs": [-0.5, -0.1],
        "top_logprobs": [{"no": -2.0, "fi": -0.5}, None],
    }
    first = {"token": "fi", "bytes": [*b"fi"], "logprob": -0.5}
    assert entries_of(Read(logprobs=1), logprobs) == [
        {**first, "top_logprobs": [first]},
        {"token": "ne", "bytes": [*b"ne"], "logprob": -0.1, "top_logprobs": []},
    ]


@pytest.mark.parametrize(
    "wrong",
    [
        {"token_ids": [1 << 40]},
        {"token_ids": [-1]},
        {"logprobs": {"tokens": [3]}},
    ],
    ids=["an id beyond any", "an id below any", "no token"],
)
def test_what_is_no_id_and_no_log_probability_is_no_answer(wrong: Any) -> None:
    with pytest.raises(Failure) as caught:
        Read(logprobs=1)(chunk("fine", **wrong))
    assert (caught.value.error.code, caught.value.error.message) == ("server_error", MALFORMED)


def test_a_call_is_read_from_the_text() -> None:
    read = Read(calling())
    deltas = read(
        chunk('{"name":"get_weather","arguments":'), chunk('{"city":"O","unit":"celsius"}')
    )
    assert isinstance(deltas[0], CallStart)
    assert "".join(each.text for each in deltas if isinstance(each, CallDelta)) == (
        '{"city":"O","unit":"celsius"}'
    )


SPACED = '\n{ "name": "get_weather", "arguments": {"city": "O", "unit": "celsius"} }'


def test_white_space_is_taken_only_where_the_upstream_is_not_held_to_the_form() -> None:
    deltas = Read(calling(), loose=True)(chunk(SPACED))
    assert isinstance(deltas[0], CallStart)
    with pytest.raises(EngineError):
        Read(calling())(chunk(SPACED))


BROKEN = '{"name":"get_weather","arguments":x'


def test_what_is_off_the_form_is_the_upstreams_fault_only_where_it_was_not_held_to_it() -> None:
    with pytest.raises(Failure) as loose:
        Read(calling(), loose=True)(chunk(BROKEN))
    with pytest.raises(EngineError) as held:
        Read(calling())(chunk(BROKEN))
    assert loose.value.error.code == "server_error"
    assert held.value.code == "invalid_function_parameters"


def test_a_call_that_is_not_whole_at_the_end_is_told_in_the_same_way() -> None:
    half = chunk('{"name":"get_weather","arguments":{"city"', "stop")
    with pytest.raises(Failure):
        Read(calling(), loose=True).finish(half)
    with pytest.raises(EngineError):
        Read(calling()).finish(half)


@pytest.mark.parametrize(
    ("reason", "expected"),
    [("stop", "stop"), ("length", "length"), ("content_filter", "content_filter"), ("eos", "stop")],
)
def test_finish_reasons_are_ours(reason: str, expected: str) -> None:
    assert Read().finish(chunk("fine"), chunk("", reason)).reason == expected


@pytest.mark.parametrize(
    ("usage", "expected"),
    [
        ({"prompt_tokens": 9, "completion_tokens": 3}, (9, None, 3)),
        (
            {
                "prompt_tokens": 9,
                "completion_tokens": 3,
                "prompt_tokens_details": {"cached_tokens": 8},
            },
            (9, 8, 3),
        ),
        (None, (None, None, None)),
    ],
    ids=["counts", "with what was cached", "none"],
)
def test_usage_is_what_the_upstream_says(usage: Any, expected: Any) -> None:
    end = Read().finish(chunk("fine"), chunk("", "stop", usage=usage))
    assert (end.input_tokens, end.cached_tokens, end.output_tokens) == expected


def test_what_was_held_back_is_told_at_the_end_and_belongs_to_the_ids() -> None:
    settings = prompt(tools=[WEATHER]).settings
    read = Read(constraint_of(settings.tools.offered, settings, PLAIN_SPEECH), loose=True)
    assert read(chunk('{"na', token_ids=[5])) == []
    held, finish = read.answer.end({})
    assert isinstance(held, TextDelta)
    assert (held.text, type(finish)) == ('{"na', Finish)
    said = [(("message",), '{"na')]
    assert read.sampled.ids_of(said) is not None


def test_only_the_first_choice_is_read_and_nothing_behind_the_end() -> None:
    read = Read()
    other = {"choices": [{"index": 1, "text": "b"}]}
    assert read(other, chunk("a")) == [TextDelta("a", 1)]
    assert read.answer.read([DONE, b"junk"]) == []
    assert read.answer.done
