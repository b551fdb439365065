"""Tool calls and structured outputs: the grammars."""

import json
from typing import Any

import pytest
from msgspec.structs import replace

from tests.support.chat_syntaxes import HERMES, LLAMA3, MISTRAL
from tests.support.engine_contract import prompt
from tieline_server.core.create.settings import Format
from tieline_server.core.create.tools import Tool, ToolChoice
from tieline_server.core.deltas import (
    CallDelta,
    CallStart,
    Delta,
    ItemEnd,
    ReasoningDelta,
    TextDelta,
)
from tieline_server.engines.base import EngineError
from tieline_server.engines.chat_format.constrain import (
    MAX_CALLS,
    Constraint,
    Rules,
    Speech,
    constraint_of,
)
from tieline_server.engines.chat_format.sampled_text import Piece
from tieline_server.engines.chat_format.syntax import PLAIN, Syntax
from tieline_server.engines.chat_format.syntax.base import THOUGHT
from tieline_server.engines.chat_format.syntax.harmony import HARMONY

LOOK = Tool(
    type="function",
    name="look",
    parameters=b'{"type":"object","properties":{"at":{"type":"string"}},"required":["at"]}',
)
READ = Tool(type="function", name="read", namespace="files")
SHELL = Tool(type="custom", name="shell")
HOSTED = Tool(type="web_search")
TEXT = Format()
REQUIRED = ToolChoice(mode="required")
AUTO = ToolChoice()

SPECIAL = {"<|im_end|>": 2, "<|python_tag|>": 5, "[TOOL_CALLS]": 6}
HARMONY_SPECIAL = {
    f"<|{name}|>": at
    for at, name in enumerate(
        ("start", "end", "return", "call", "channel", "constrain", "message", "im_end")
    )
}


def constraint(
    *tools: Tool,
    choice: ToolChoice = REQUIRED,
    form: Format = TEXT,
    parallel: bool = True,
    syntax: Syntax = PLAIN,
    special: dict[str, int] = SPECIAL,
    inside: bool = False,
) -> Constraint:
    settings = replace(
        prompt().settings, tool_choice=choice, format=form, parallel_tool_calls=parallel
    )
    speech = Speech(syntax=syntax, special=special, end="<|im_end|>", inside=inside)
    return constraint_of(tools, settings, speech)


def rules_of(given: Constraint) -> dict[str, str]:
    assert given.grammar is not None
    first, *lines = given.grammar.splitlines()
    assert first == "%llguidance {}"
    found = (line.partition(": ") for line in lines)
    return {name: rule for name, _, rule in found}


def schema_of(given: Constraint, rule: str) -> Any:
    """The JSON schema of a rule of the grammar."""
    return json.loads(rules_of(given)[rule].removeprefix("%json "))


def start_of(given: Constraint) -> str:
    return rules_of(given)["start"]


def read(given: Constraint, *pieces: str) -> list[Delta]:
    """What its reader makes of an answer that comes in these pieces, a token each."""
    reader = given.reader()
    deltas = [delta for piece in pieces for delta in reader.feed(Piece(piece, 1))]
    rest, reason = reader.end("stop")
    assert reason == "stop"
    return deltas + rest


def call(name: str, value: str, syntax: Syntax = PLAIN) -> str:
    head, tail = syntax.frame(name)
    return head + value + tail


def test_a_required_tool_leaves_only_calls_of_what_the_choice_admits() -> None:
    given = constraint(LOOK, READ, SHELL, HOSTED)
    rules = rules_of(given)
    assert rules["start"] == "calls <[2]>"
    assert rules["call"] == "call_0 | call_1 | call_2"
    assert rules["call_0"] == r'"{\"name\":\"look\",\"arguments\":" value_0 "}"'
    assert rules["call_1"] == r'"{\"name\":\"files.read\",\"arguments\":" value_1 "}"'
    assert rules["call_2"] == r'"{\"name\":\"shell\",\"input\":" value_2 "}"'
    assert schema_of(given, "value_0")["required"] == ["at"]
    assert schema_of(given, "value_1")["additionalProperties"] is False
    assert schema_of(given, "value_2")["type"] == "string"
    named = ToolChoice(mode="required", allowed=(("function", "look"),))
    calls = constraint(LOOK, READ, choice=named).calls
    assert calls is not None
    assert [frame.tool for frame in calls.frames] == [LOOK]


def test_several_calls_are_bounded_and_one_where_asked_or_named() -> None:
    many = constraint(LOOK, READ)
    assert rules_of(many)["calls"] == rf'call ("\n" call){{0,{MAX_CALLS - 1}}}'
    both = call("look", "{}") + "\n" + call("files.read", "{}")
    assert len([each for each in read(many, both) if isinstance(each, CallStart)]) == 2
    named = ToolChoice(mode="required", allowed=(("function", "look"),))
    for one in (constraint(LOOK, READ, parallel=False), constraint(LOOK, READ, choice=named)):
        assert rules_of(one)["calls"] == "call"


def test_auto_leaves_the_choice_to_the_first_letter() -> None:
    given = constraint(LOOK, choice=AUTO)
    assert start_of(given) == "calls <[2]> | answer <[2]>"
    assert rules_of(given)["TEXT"] == r"/[^{\s](.|\n)*/"
    assert read(given, "Hel", "lo") == [TextDelta("Hel"), TextDelta("lo")]
    assert isinstance(read(given, call("look", "{}"))[0], CallStart)


def test_none_leaves_text_that_is_no_call() -> None:
    given = constraint(LOOK, choice=ToolChoice(mode="none"))
    assert start_of(given) == "answer <[2]>"
    assert given.calls is None


@pytest.mark.parametrize(
    ("tools", "choice"),
    [
        ((), AUTO),
        ((HOSTED,), AUTO),
        ((HOSTED,), ToolChoice(mode="required", allowed=(("web_search", None),))),
    ],
)
def test_without_a_tool_of_ours_nothing_is_constrained(
    tools: tuple[Tool, ...], choice: ToolChoice
) -> None:
    given = constraint(*tools, choice=choice)
    assert given.grammar is None
    assert read(given, "{", "a") == [TextDelta("{"), TextDelta("a")]


def test_a_text_format_constrains_the_answer_and_a_required_tool_goes_before_it() -> None:
    form = Format(type="json_schema", schema=b'{"type":"object","required":["x"]}')
    given = constraint(form=form, choice=AUTO)
    assert start_of(given) == "answer <[2]>"
    assert rules_of(given)["answer"] == "json"
    assert schema_of(given, "json")["required"] == ["x"]
    options = {"whitespace_flexible": False, "lenient": True}
    assert schema_of(given, "json")["x-guidance"] == options
    assert start_of(constraint(LOOK, form=form)) == "calls <[2]>"
    both = constraint(LOOK, form=form, choice=AUTO)
    assert start_of(both) == "calls <[2]> | answer <[2]>"
    assert read(both, '{"na', 'pe":1}') == [TextDelta('{"na'), TextDelta('pe":1}')]
    free_form = constraint(form=Format(type="json_object"), choice=AUTO)
    assert schema_of(free_form, "json")["type"] == "object"


def test_text_may_stand_before_calls_that_a_tag_begins() -> None:
    given = constraint(LOOK, choice=AUTO, syntax=HERMES)
    assert start_of(given) == "calls <[2]> | answer <[2]> | said_calls <[2]>"
    rules = rules_of(given)
    assert rules["TEXT"] == r"/(.|\n)+/ & ~/(.|\n)*(<tool_call>)(.|\n)*/"
    # What is greedy would take the tag's beginning for text, and then want another tag.
    assert rules["said[lazy]"] == r"/(.|\n)*<tool_call>/"
    assert rules["said_calls"] == r'said first ("\n" call){0,3}'
    assert rules["first"].startswith(r'"\n{\"name\": \"look\", \"arguments\": " value_0 ')
    text, start, *_ = read(given, "Well. ", call("look", "{}", HERMES))
    assert text == TextDelta("Well. ")
    assert isinstance(start, CallStart)


def test_special_tokens_are_named_by_their_ids() -> None:
    rules = rules_of(constraint(LOOK, syntax=MISTRAL))
    assert rules["calls"] == r'<[6]> "[" call (", " call){0,3} "]"'
    text = rules_of(constraint(LOOK, choice=AUTO, syntax=MISTRAL))["TEXT"]
    assert text == r"/(.|\n)+/ & ~/(.|\n)*(\[TOOL_CALLS\])(.|\n)*/"
    assert rules_of(constraint(LOOK, syntax=LLAMA3))["calls"] == r'(<[5]>)? call ("; " call){0,3}'
    plain = {"<|im_end|>": 2}
    assert rules_of(constraint(LOOK, syntax=LLAMA3, special=plain))["calls"].startswith("call")


def test_a_thought_may_come_first_and_must_end_where_the_prompt_has_begun_it() -> None:
    thinks = replace(HERMES, thought=THOUGHT)
    given = constraint(LOOK, syntax=thinks)
    assert start_of(given) == "thought? (calls <[2]>)"
    assert rules_of(given)["thought"] == '"<think>" close SPACE'
    assert rules_of(given)["close[lazy]"] == r"/(.|\n)*<\/think>/"
    thought, *rest = read(given, "<think>", "hm</think>\n", call("look", "{}", HERMES))[1:]
    assert thought == ReasoningDelta("hm")
    assert any(isinstance(each, CallStart) for each in rest)
    inside = constraint(LOOK, syntax=thinks, inside=True)
    assert start_of(inside) == "thought (calls <[2]>)"
    assert read(inside, "hm", "</think>", call("look", "{}", HERMES))[0] == ReasoningDelta("hm")
    free = constraint(choice=AUTO, syntax=thinks)
    assert free.grammar is None
    assert [*read(free, "<think>hm</think>", "ok")][-1] == TextDelta("ok")


def test_harmony_says_everything_in_a_channel_and_ends_each_in_its_way() -> None:
    given = constraint(LOOK, choice=AUTO, syntax=HARMONY, special=HARMONY_SPECIAL)
    rules = rules_of(given)
    assert rules["start"] == "thought? (calls <[3]> | answer <[2]>)"
    assert rules["answer"] == r'<[4]> "final" <[6]> TEXT'
    assert rules["call_0"].startswith(r'<[4]> "commentary to=functions.look " <[5]> "json" <[6]>')
    assert rules["calls"] == "call"
    analysis = "<|channel|>analysis<|message|>hm<|end|><|start|>assistant"
    said = read(given, analysis, "<|channel|>final<|mess", "age|>ok")
    assert [each for each in said if not isinstance(each, ItemEnd)] == [
        ReasoningDelta("hm", tokens=0),
        TextDelta("ok", tokens=0),
    ]
    called = read(given, call("look", '{"at":1}', HARMONY))
    assert [type(each) for each in called] == [CallStart, CallDelta, ItemEnd]
    alone = constraint(choice=AUTO, syntax=HARMONY, special=HARMONY_SPECIAL)
    assert start_of(alone) == "thought? (answer <[2]>)"


@pytest.mark.parametrize("param", ["tools[3]", "tools[1].tools[0]", "input[2].tools[0]"])
def test_sc_15_a_refusal_names_the_tool_and_points_at_the_word(param: str) -> None:
    schema = {"properties": {"a/b": {"type": "array", "uniqueItems": True}}}
    odd = Tool(
        type="function",
        name="odd",
        parameters=json.dumps(schema).encode(),
        strict=True,
        param=param,
    )
    with pytest.raises(EngineError) as caught:
        constraint(LOOK, odd)
    error = caught.value
    assert (error.status, error.code) == (400, "invalid_function_parameters")
    assert error.param == f"{param}.parameters"
    assert "function 'odd', at '/properties/a~1b/uniqueItems'" in error.message
    form = Format(type="json_schema", schema=odd.parameters, strict=True)
    with pytest.raises(EngineError, match="at '/properties/a~1b/uniqueItems'") as caught:
        constraint(form=form, choice=AUTO)
    error = caught.value
    assert (error.status, error.code) == (400, "invalid_json_schema")
    assert error.param == "text.format.schema"


def test_sc_12_words_that_are_passed_over_are_told_to_the_operator(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Not what the client named: that could be a secret."""
    schema = {"properties": {"secret": {"pattern": "(?=a)b", "not": {}, "format": "frob"}}}
    odd = Tool(type="function", name="odd", parameters=json.dumps(schema).encode())
    with caplog.at_level("INFO", logger="tieline.schemas"):
        assert constraint(odd).grammar
    [record] = caplog.records
    said = record.getMessage()
    assert said.startswith("3 words of a schema are passed over (tools.parameters)")
    assert said.endswith("format, not, pattern")


def test_what_the_schemas_of_all_tools_cost_is_bounded() -> None:
    schema = b'{"type":"object","properties":{"a":{"type":"array","maxItems":10000}}}'
    tools = [
        Tool(type="function", name=f"f{at}", parameters=schema, param=f"tools[{at}]")
        for at in range(20)
    ]
    assert constraint(*tools[:15]).grammar
    with pytest.raises(EngineError, match="fewer at once") as caught:
        constraint(*tools)
    assert caught.value.param == "tools[15].parameters"


def test_what_does_not_sample_by_llguidance_gets_the_schema_as_it_is() -> None:
    """Only where it stands is another place, which its references follow."""
    schema = {
        "type": "object",
        "properties": {"a": {"$ref": "#/$defs/A"}, "b": {"$ref": "#"}},
        "$defs": {"A": {"type": "STRING", "not": {}}},
    }
    raw = json.dumps(schema).encode()
    rules = Rules(guided=False)
    settings = replace(
        prompt().settings, tool_choice=REQUIRED, format=TEXT, parallel_tool_calls=False
    )
    speech = Speech(special=SPECIAL, end="<|im_end|>")
    tool = Tool(type="function", name="odd", parameters=raw, strict=True)
    made = constraint_of([LOOK, tool], settings, speech, rules)
    assert made.schema is not None
    branch = json.loads(made.schema)["anyOf"][1]["properties"]["arguments"]
    place = "#/anyOf/1/properties/arguments"
    assert branch["properties"] == {"a": {"$ref": f"{place}/$defs/A"}, "b": {"$ref": place}}
    assert branch["$defs"] == schema["$defs"]
    form = Format(type="json_schema", schema=raw, strict=True)
    free = replace(settings, tool_choice=AUTO, format=form)
    made = constraint_of([], free, speech, rules)
    assert made.schema is not None
    assert json.loads(made.schema) == schema


def test_a_strict_schema_that_no_grammar_expresses_is_refused_by_its_place() -> None:
    odd = Tool(type="function", name="odd", parameters=b'{"not":{}}', strict=True)
    with pytest.raises(EngineError, match="cannot be held to 'not'") as caught:
        constraint(odd)
    assert (caught.value.code, caught.value.status) == ("invalid_function_parameters", 400)
    assert caught.value.param == "tools.parameters"
    assert constraint(replace(odd, strict=None)).grammar
    form = Format(type="json_schema", schema=b'{"minimum":5,"maximum":3}')
    with pytest.raises(EngineError, match="nothing satisfies") as caught:
        constraint(form=form)
    assert (caught.value.code, caught.value.param) == ("invalid_json_schema", "text.format.schema")
