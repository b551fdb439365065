"""Tool calls and structured outputs: the grammars."""

import json
from typing import Any

import pytest

from tieline_server.core.deltas import CallStart, Delta, TextDelta
from tieline_server.core.settings import Format, Tool, ToolChoice
from tieline_server.engines.llama.constrain import (
    FREE,
    Constraint,
    call_head,
    call_text,
    constraint_of,
)
from tieline_server.engines.llama.sampled_text import Piece

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


def constraint(*tools: Tool, choice: ToolChoice = REQUIRED, form: Format = TEXT) -> Constraint:
    return constraint_of(tools, choice, form, end="<|im_end|>")


def schema_of(given: Constraint, rule: str) -> Any:
    """The JSON schema of a rule of the grammar."""
    assert given.grammar is not None
    [line] = [line for line in given.grammar.splitlines() if line.startswith(f"{rule}: %json ")]
    return json.loads(line.removeprefix(f"{rule}: %json "))


def start_of(given: Constraint) -> str:
    assert given.grammar is not None
    first, start, *_ = given.grammar.splitlines()
    assert first == "%llguidance {}"
    return start.removeprefix("start: ")


def read(given: Constraint, *pieces: str) -> list[Delta]:
    """What its reader makes of an answer that comes in these pieces, a token each."""
    reader = given.reader()
    deltas = [delta for piece in pieces for delta in reader.feed(Piece(piece, 1))]
    assert reader.end("stop") == "stop"
    return deltas


def test_a_required_tool_leaves_only_calls_of_what_the_choice_admits() -> None:
    given = constraint(LOOK, READ, SHELL, HOSTED)
    assert start_of(given) == "call <|im_end|>"
    branches = schema_of(given, "call")["anyOf"]
    assert [each["properties"]["name"]["const"] for each in branches] == [
        "look",
        "files.read",
        "shell",
    ]
    assert branches[0]["properties"]["arguments"]["required"] == ["at"]
    assert branches[1]["properties"]["arguments"]["additionalProperties"] is False
    assert branches[2]["properties"]["input"]["type"] == "string"
    named = ToolChoice(mode="required", allowed=(("function", "look"),))
    assert [head for head, _ in constraint(LOOK, READ, choice=named).heads] == [call_head(LOOK)]


def test_auto_leaves_the_choice_to_the_first_letter() -> None:
    given = constraint(LOOK, choice=ToolChoice())
    assert start_of(given) == "call <|im_end|> | text <|im_end|>"
    assert read(given, "Hel", "lo") == [TextDelta("Hel"), TextDelta("lo")]
    assert isinstance(read(given, call_text("look", "{}"))[0], CallStart)


def test_none_leaves_text_that_is_no_call() -> None:
    given = constraint(LOOK, choice=ToolChoice(mode="none"))
    assert start_of(given) == "text <|im_end|>"
    assert given.heads == ()


@pytest.mark.parametrize(
    ("tools", "choice"),
    [
        ((), ToolChoice()),
        ((HOSTED,), ToolChoice()),
        ((HOSTED,), ToolChoice(mode="required", allowed=(("web_search", None),))),
    ],
)
def test_without_a_tool_of_ours_nothing_is_constrained(
    tools: tuple[Tool, ...], choice: ToolChoice
) -> None:
    assert constraint(*tools, choice=choice) == FREE
    assert read(FREE, "{", "a") == [TextDelta("{"), TextDelta("a")]


def test_a_text_format_constrains_the_answer_and_a_required_tool_goes_before_it() -> None:
    form = Format(type="json_schema", schema=b'{"type":"object","required":["x"]}')
    given = constraint(form=form, choice=ToolChoice())
    assert start_of(given) == "json <|im_end|>"
    assert schema_of(given, "json")["required"] == ["x"]
    assert schema_of(given, "json")["x-guidance"] == {"whitespace_flexible": False}
    assert start_of(constraint(LOOK, form=form)) == "call <|im_end|>"
    both = constraint(LOOK, form=form, choice=ToolChoice())
    assert start_of(both) == "call <|im_end|> | json <|im_end|>"
    assert read(both, '{"na', 'pe":1}') == [TextDelta('{"na'), TextDelta('pe":1}')]
    free_form = constraint(form=Format(type="json_object"), choice=ToolChoice())
    assert schema_of(free_form, "json")["type"] == "object"


@pytest.mark.parametrize("namespace", [None, "files"])
def test_a_call_in_the_history_looks_as_the_model_wrote_it(namespace: str | None) -> None:
    tool = Tool(type="function", name="look", namespace=namespace)
    value = '{"a": 1}'
    assert call_text("look", value, namespace=namespace) == call_head(tool) + value + "}"
