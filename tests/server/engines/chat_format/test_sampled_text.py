"""Reading answers as they are sampled."""

import json
import random
from collections.abc import Callable, Sequence

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.support.chat_syntaxes import HERMES, LLAMA3, MISTRAL, MISTRAL_ARGS
from tieline_server.core.create.tools import Tool
from tieline_server.core.deltas import (
    CallDelta,
    CallStart,
    Delta,
    FinishReason,
    ItemEnd,
    ReasoningDelta,
    TextDelta,
)
from tieline_server.engines.base import EngineError
from tieline_server.engines.chat_format.guidance import followed
from tieline_server.engines.chat_format.json_schema import Bounds
from tieline_server.engines.chat_format.sampled_text import (
    Calls,
    CallsReader,
    EitherReader,
    Frame,
    JsonReader,
    Piece,
    PlainReader,
    Reader,
    UntilReader,
    thinking,
)
from tieline_server.engines.chat_format.syntax import PLAIN, Syntax
from tieline_server.engines.chat_format.syntax.harmony import HARMONY
from tieline_server.engines.chat_format.tool_text import wire_name

LOOK = Tool(type="function", name="look")
READ = Tool(type="function", name="read", namespace="files")
SHELL = Tool(type="custom", name="shell")


def calls(*tools: Tool, syntax: Syntax = PLAIN) -> Calls:
    frames = []
    for tool in tools:
        name = wire_name(tool.name or "", tool.namespace)
        head, tail = syntax.frame(name, custom=tool.type == "custom")
        frames.append(Frame(tool=tool, head=head, tail=tail))
    return Calls(
        frames=frames,
        opens=syntax.opens,
        may_open=syntax.may_open,
        between=syntax.between,
        closes=syntax.closes,
        begins=syntax.begins,
    )


def call(name: str, value: str, *, custom: bool = False, syntax: Syntax = PLAIN) -> str:
    """A call as a model of this family writes it."""
    head, tail = syntax.frame(name, custom=custom)
    return head + value + tail


def read(
    reader: Reader, pieces: Sequence[str], reason: FinishReason = "stop"
) -> tuple[list[Delta], FinishReason]:
    """What a reader makes of an answer that comes in these pieces, a token each."""
    deltas = [delta for piece in pieces for delta in reader.feed(Piece(piece, 1))]
    rest, reason = reader.end(reason)
    return deltas + rest, reason


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
    counted = (CallStart, CallDelta, TextDelta, ReasoningDelta, ItemEnd)
    return sum(delta.tokens for delta in deltas if isinstance(delta, counted))


@pytest.mark.parametrize("seed", range(20))
def test_a_call_streams_its_arguments_wherever_it_is_cut(seed: int) -> None:
    value = '{"at":"a \\"}\\\\ {[ \\u00e9 🦊","n":[1,{"x":-2.5e3}],"b":true}'
    deltas, reason = read(CallsReader(calls(READ, LOOK)), pieces := cut(call("look", value), seed))
    assert deltas[0] == CallStart(kind="function_call", name="look", tokens=start_tokens(deltas))
    assert arguments_in(deltas) == value
    assert len(deltas) > 5
    assert reason == "stop"
    assert tokens_in(deltas) == len(pieces)
    assert isinstance(deltas[-1], ItemEnd)


def test_a_call_starts_when_its_name_is_known_and_keeps_its_namespace() -> None:
    reader = CallsReader(calls(READ, LOOK))
    assert reader.feed(Piece('{"name":"files.rea', 3)) == []
    [start, rest] = reader.feed(Piece('d","arguments":{', 2))
    assert start == CallStart(kind="function_call", name="read", namespace="files", tokens=5)
    assert rest == CallDelta("{", tokens=0)


@pytest.mark.parametrize("seed", range(20))
def test_a_custom_tools_input_is_text_with_its_escapes_resolved(seed: int) -> None:
    text = 'echo "a\\b"\n\té 🦊 / \u0001'
    value = json.dumps(text).replace("/", "\\/")
    deltas, _ = read(CallsReader(calls(SHELL)), cut(call("shell", value, custom=True), seed))
    assert deltas[0] == CallStart(
        kind="custom_tool_call", name="shell", tokens=start_tokens(deltas)
    )
    assert arguments_in(deltas) == text


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
            read(CallsReader(calls(LOOK)), pieces)
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
        (lambda: CallsReader(calls(LOOK)), call("look", '{"at":"x"}')),
        (lambda: EitherReader(calls(LOOK), PlainReader()), call("look", '{"at":"x"}')),
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
    for pieces in ([call("look", "{}")], list(call("look", "{}"))):
        deltas, _ = read(EitherReader(calls(LOOK), JsonReader()), pieces)
        assert isinstance(deltas[0], CallStart)
        assert arguments_in(deltas) == "{}"
    deltas, _ = read(EitherReader(calls(LOOK), JsonReader()), ['{"na', 'me":"lo', 'ok"}'])
    assert deltas == [TextDelta('{"na'), TextDelta('me":"lo'), TextDelta('ok"}')]
    deltas, reason = read(EitherReader(calls(LOOK), PlainReader()), ["Hel", "lo"], "length")
    assert (deltas, reason) == ([TextDelta("Hel"), TextDelta("lo")], "length")


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("syntax", [PLAIN, HERMES, LLAMA3, MISTRAL, MISTRAL_ARGS], ids=str)
def test_several_calls_are_an_item_each_in_every_family(syntax: Syntax, seed: int) -> None:
    asked = [("look", '{"at":"}]"}', False), ("shell", '"a\\nb"', True), ("look", "{}", False)]
    written = (syntax.between or "").join(
        call(name, value, custom=custom, syntax=syntax) for name, value, custom in asked
    )
    text = syntax.opens + written + syntax.closes
    pieces = cut(text, seed)
    deltas, reason = read(CallsReader(calls(LOOK, SHELL, syntax=syntax)), pieces)
    assert [each.name for each in deltas if isinstance(each, CallStart)] == [
        "look",
        "shell",
        "look",
    ]
    assert len([each for each in deltas if isinstance(each, ItemEnd)]) == 3
    assert arguments_in(deltas) == '{"at":"}]"}a\nb{}'
    assert reason == "stop"
    with pytest.raises(EngineError):
        read(CallsReader(calls(LOOK, SHELL, syntax=syntax)), [*pieces, "?"])


def test_where_one_call_is_allowed_nothing_follows_it() -> None:
    one = call("look", "{}")
    single = replace(calls(LOOK), between=None)
    assert read(CallsReader(single), [one])[1] == "stop"
    with pytest.raises(EngineError):
        read(CallsReader(single), [one, "\n", one])


def test_of_calls_that_were_cut_the_whole_ones_have_ended() -> None:
    one = call("look", "{}")
    deltas, reason = read(CallsReader(calls(LOOK)), [one, "\n", one[:-4]], "length")
    assert reason == "length"
    assert [type(each) for each in deltas[:3]] == [CallStart, CallDelta, ItemEnd]
    assert read(CallsReader(calls(LOOK)), [one, "\n"], "length")[1] == "length"


def test_what_a_model_may_write_before_its_calls_is_passed_over() -> None:
    text = "<|python_tag|>" + call("look", "{}", syntax=LLAMA3)
    for pieces in ([text], list(text)):
        deltas, _ = read(EitherReader(calls(LOOK, syntax=LLAMA3), PlainReader()), pieces)
        assert isinstance(deltas[0], CallStart)
        assert arguments_in(deltas) == "{}"


@given(st.text("ab<tool_call>\n "), st.booleans(), st.randoms())
def test_text_before_calls_comes_at_once_but_for_what_may_begin_one(
    text: str, calls_follow: bool, rng: random.Random
) -> None:
    assume("<tool_call>" not in text)
    answer = text + (call("look", "{}", syntax=HERMES) if calls_follow else "")
    reader = UntilReader(
        "<tool_call>", PlainReader(), CallsReader(calls(LOOK, syntax=HERMES)), kept=True
    )
    deltas, reason = read(reader, pieces := cut(answer, rng.randint(0, 99)))
    said = "".join(each.text for each in deltas if isinstance(each, TextDelta))
    assert said == text
    assert arguments_in(deltas) == ("{}" if calls_follow else "")
    assert reason == "stop"
    assert tokens_in(deltas) == len(pieces)


@given(
    st.sampled_from([("<think>", "</think>"), HARMONY.thought]),
    st.text("ab</think>|\n "),
    st.text("ab<\n "),
    st.booleans(),
    st.integers(0, 99),
)
def test_a_thought_is_reasoning_and_what_follows_is_the_answer(
    thought: tuple[str, str], thinks: str, says: str, inside: bool, seed: int
) -> None:
    assume(thought[1] not in thinks + thought[1][:-1])
    text = ("" if inside else thought[0]) + thinks + thought[1] + "\n\n" + says
    reader = thinking(thought, PlainReader(), PlainReader(), inside=inside)
    deltas, _ = read(reader, pieces := cut(text, seed))
    thoughts = "".join(each.text for each in deltas if isinstance(each, ReasoningDelta))
    said = "".join(each.text for each in deltas if isinstance(each, TextDelta))
    assert thoughts == thinks.lstrip()
    assert said == says.lstrip()
    assert tokens_in(deltas) == len(pieces)


@pytest.mark.parametrize("text", ["Hello", "<thin", "< think>", "", "<"])
def test_an_answer_without_a_thought_is_the_answer(text: str) -> None:
    for pieces in ([text], list(text)):
        reader = thinking(("<think>", "</think>"), PlainReader(), PlainReader(), inside=False)
        deltas, _ = read(reader, pieces)
        assert "".join(each.text for each in deltas if isinstance(each, TextDelta)) == text


def test_a_thought_that_was_cut_is_no_answer() -> None:
    reader = thinking(("<think>", "</think>"), PlainReader(), PlainReader(), inside=False)
    deltas, reason = read(reader, ["<think>", "hm", "</thi"], "length")
    assert [each for each in deltas if not isinstance(each, ItemEnd)] == [
        ReasoningDelta("hm"),
        ReasoningDelta("</thi"),
    ]
    assert reason == "length"


class TestWhatFallsShort:
    """SC-14, SC-16: valid JSON that lost something all the same."""

    FOLLOWED = followed(b'{"type":"object"}', bounds=Bounds(string=4, items=3))

    @pytest.mark.parametrize(
        ("value", "short"),
        [
            ('{"its":0,"arguments":1,"its":2}', True),
            ('{"a":"abcd"}', True),
            ('{"a":"abc"}', False),
        ],
    )
    def test_a_call_says_incomplete(self, value: str, short: bool) -> None:
        head, tail = PLAIN.frame("look")
        frame = Frame(tool=LOOK, head=head, tail=tail, followed=self.FOLLOWED)
        for seed in range(5):
            reader = CallsReader(Calls(frames=[frame]))
            deltas, reason = read(reader, cut(head + value + tail, seed))
            [end] = [delta for delta in deltas if isinstance(delta, ItemEnd)]
            assert (end.incomplete, reason) == (short, "stop")
            assert arguments_in(deltas) == value

    @pytest.mark.parametrize(("value", "short"), [('{"a":1,"a":2}', True), ('{"a":1}', False)])
    def test_so_does_a_message(self, value: str, short: bool) -> None:
        deltas, reason = read(JsonReader(self.FOLLOWED), cut(value, 1))
        assert reason == "stop"
        ends = [delta for delta in deltas if isinstance(delta, ItemEnd)]
        assert ends == ([ItemEnd(incomplete=True)] if short else [])

    def test_one_that_is_cut_by_the_limit_ends_as_before(self) -> None:
        deltas, reason = read(JsonReader(self.FOLLOWED), ['{"a":"abcd'], "length")
        assert reason == "length"
        assert not any(isinstance(delta, ItemEnd) for delta in deltas)
