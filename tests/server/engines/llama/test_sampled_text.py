"""Reading answers as they are sampled."""

import json
import random
from collections.abc import Callable, Sequence

import pytest

from tieline_server.core.deltas import CallDelta, CallStart, Delta, FinishReason, TextDelta
from tieline_server.core.settings import Tool
from tieline_server.engines.base import EngineError
from tieline_server.engines.llama.constrain import call_head, call_text
from tieline_server.engines.llama.sampled_text import (
    CallReader,
    EitherReader,
    Heads,
    JsonReader,
    JsonScan,
    Piece,
    PlainReader,
    Reader,
    StringText,
)

LOOK = Tool(type="function", name="look")
READ = Tool(type="function", name="read", namespace="files")
SHELL = Tool(type="custom", name="shell")


def heads(*tools: Tool) -> Heads:
    return [(call_head(tool), tool) for tool in tools]


def read(
    reader: Reader, pieces: Sequence[str], reason: FinishReason = "stop"
) -> tuple[list[Delta], FinishReason]:
    """What a reader makes of an answer that comes in these pieces, a token each."""
    deltas = [delta for piece in pieces for delta in reader.feed(Piece(piece, 1))]
    return deltas, reader.end(reason)


def cut(text: str, seed: int) -> list[str]:
    """``text`` in pieces of one to four characters."""
    rng = random.Random(seed)
    pieces = []
    while text:
        size = rng.randint(1, 4)
        pieces.append(text[:size])
        text = text[size:]
    return pieces


def arguments_in(deltas: Sequence[Delta]) -> str:
    return "".join(delta.text for delta in deltas if isinstance(delta, CallDelta))


def start_tokens(deltas: Sequence[Delta]) -> int:
    [start] = [delta for delta in deltas if isinstance(delta, CallStart)]
    return start.tokens


def tokens_in(deltas: Sequence[Delta]) -> int:
    counted = (CallStart, CallDelta, TextDelta)
    return sum(delta.tokens for delta in deltas if isinstance(delta, counted))


@pytest.mark.parametrize("seed", range(20))
def test_a_call_streams_its_arguments_wherever_it_is_cut(seed: int) -> None:
    value = '{"at":"a \\"}\\\\ {[ \\u00e9 🦊","n":[1,{"x":-2.5e3}],"b":true}'
    deltas, reason = read(
        CallReader(heads(READ, LOOK)), pieces := cut(call_text("look", value), seed)
    )
    assert deltas[0] == CallStart(kind="function_call", name="look", tokens=start_tokens(deltas))
    assert arguments_in(deltas) == value
    assert len(deltas) > 5
    assert reason == "stop"
    assert tokens_in(deltas) <= len(pieces)


def test_a_call_starts_when_its_name_is_known_and_keeps_its_namespace() -> None:
    reader = CallReader(heads(READ, LOOK))
    assert reader.feed(Piece('{"name":"files.rea', 3)) == []
    [start, rest] = reader.feed(Piece('d","arguments":{', 2))
    assert start == CallStart(kind="function_call", name="read", namespace="files", tokens=5)
    assert rest == CallDelta("{", tokens=0)


@pytest.mark.parametrize("seed", range(20))
def test_a_custom_tools_input_is_text_with_its_escapes_resolved(seed: int) -> None:
    text = 'echo "a\\b"\n\té 🦊 / \u0001'
    value = json.dumps(text).replace("/", "\\/")
    deltas, _ = read(CallReader(heads(SHELL)), cut(call_text("shell", value, custom=True), seed))
    assert deltas[0] == CallStart(
        kind="custom_tool_call", name="shell", tokens=start_tokens(deltas)
    )
    assert arguments_in(deltas) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [('"\\ud800"', "\ufffd"), ('"\\ud800x"', "\ufffdx"), ('"\\udc00"', "\ufffd"), ('""', "")],
)
def test_half_a_surrogate_pair_becomes_the_replacement_character(value: str, text: str) -> None:
    for pieces in ([value], list(value)):
        reader = StringText()
        assert "".join(reader.feed(piece) for piece in pieces) == text


@pytest.mark.parametrize(
    "answer",
    [
        "Sure, I can help.",
        '{"name":"unknown","arguments":{}}',
        '{"name": "look","arguments":{}}',
        '{"name":"look","arguments":oops}',
        '{"name":"look","arguments":{}} and more',
        '{"name":"look","arguments":{}',
        '{"name":"look","arguments":{"a" 1}}',
        '{"name":"lo',
    ],
)
def test_what_is_no_call_is_an_error(answer: str) -> None:
    for pieces in ([answer], list(answer)):
        with pytest.raises(EngineError) as caught:
            read(CallReader(heads(LOOK)), pieces)
        assert caught.value.code == "invalid_function_parameters"


@pytest.mark.parametrize("answer", ["Sure.", '{"a":', '{"a" 1}', "{} {}", '"a" b', "the end"])
def test_what_is_no_json_is_an_error(answer: str) -> None:
    for pieces in ([answer], list(answer)):
        with pytest.raises(EngineError):
            read(JsonReader(), pieces)


def test_json_comes_as_it_is_written() -> None:
    assert read(JsonReader(), ['{"a', '":1}']) == ([TextDelta('{"a'), TextDelta('":1}')], "stop")
    assert read(JsonReader(), ["1", "2"])[1] == "stop"


@pytest.mark.parametrize(
    ("make", "whole"),
    [
        (lambda: CallReader(heads(LOOK)), call_text("look", '{"at":"x"}')),
        (lambda: EitherReader(heads(LOOK), PlainReader()), call_text("look", '{"at":"x"}')),
        (JsonReader, '{"at":"x"}'),
    ],
)
def test_what_is_whole_at_its_last_allowed_token_has_stopped(
    make: Callable[[], Reader], whole: str
) -> None:
    assert read(make(), [whole], "length")[1] == "stop"
    assert read(make(), [whole[:-1]], "length")[1] == "length"
    assert read(make(), [whole[:3]], "length")[1] == "length"


def test_a_call_or_another_answer_is_told_apart_by_how_it_begins() -> None:
    for pieces in ([call_text("look", "{}")], list(call_text("look", "{}"))):
        deltas, _ = read(EitherReader(heads(LOOK), JsonReader()), pieces)
        assert isinstance(deltas[0], CallStart)
        assert arguments_in(deltas) == "{}"
    deltas, _ = read(EitherReader(heads(LOOK), JsonReader()), ['{"na', 'me":"lo', 'ok"}'])
    assert deltas == [TextDelta('{"na'), TextDelta('me":"lo'), TextDelta('ok"}')]
    deltas, reason = read(EitherReader(heads(LOOK), PlainReader()), ["Hel", "lo"], "length")
    assert (deltas, reason) == ([TextDelta("Hel"), TextDelta("lo")], "length")


@pytest.mark.parametrize(
    ("text", "rest"),
    [("{}x", "x"), ('"a\\""]', "]"), ("[[]]", ""), ("12", None), ("nul", None), ('{"}"', None)],
)
def test_the_end_of_a_value_is_where_its_last_bracket_closes(text: str, rest: str | None) -> None:
    assert JsonScan().feed(text) == rest
