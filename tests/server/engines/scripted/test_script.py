"""The script file: what is read, what is refused and in which words, and placeholders."""

import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tieline_server.engines.base import Model
from tieline_server.engines.scripted import script
from tieline_server.engines.scripted.script import (
    CustomToolCall,
    Error,
    FunctionCall,
    Message,
    Pace,
    Reasoning,
    Refusal,
    ScriptError,
    Stall,
    StatedUsage,
    fill,
    fill_all,
    load,
    parse,
)

EVERYTHING = {
    "models": ["plain", {"name": "stubborn", "steering": False}],
    "pace": {"ttft_ms": 10, "tokens_per_second": 50.5},
    "rules": [
        {
            "id": "all",
            "when": {
                "last": "tool_output",
                "tool": ["function", None, "crm"],
                "user_contains": "x",
                "model": "plain",
                "turn": 2,
            },
            "emit": [
                {"type": "reasoning", "text": "hm", "summary": "h"},
                {"type": "message", "text": "hi"},
                {"type": "function_call", "name": "f", "arguments": {"a": [1]}, "namespace": "n"},
                {"type": "function_call", "name": "f", "arguments": "{"},
                {"type": "custom_tool_call", "name": "c", "input": "i", "namespace": "n"},
                {"type": "refusal", "text": "no"},
                {"type": "stall", "seconds": 0.5},
                {"type": "error", "status": 500, "code": "c", "message": "m", "after_tokens": 0},
            ],
            "pace": {"tokens_per_second": None},
            "usage": {
                "input_tokens": 1,
                "cached_tokens": 2,
                "output_tokens": 3,
                "reasoning_tokens": 4,
            },
        },
        {"emit": {"type": "message", "text": "one"}},
    ],
}


def read(value: Any) -> script.Script:
    return parse(json.dumps(value).encode())


def test_every_key_of_the_format_is_read() -> None:
    made = read(EVERYTHING)
    assert made.models == (Model(id="plain"), Model(id="stubborn", steering=False))
    assert made.pace == Pace(ttft_ms=10, tokens_per_second=50.5)
    rule, single = made.rules
    assert (rule.id, single.id) == ("all", None)
    assert rule.when.tool == ["function", None, "crm"]
    assert (rule.when.last, rule.when.turn) == ("tool_output", 2)
    assert rule.emit == [
        Reasoning(text="hm", summary="h"),
        Message(text="hi"),
        FunctionCall(name="f", arguments={"a": [1]}, namespace="n"),
        FunctionCall(name="f", arguments="{"),
        CustomToolCall(name="c", input="i", namespace="n"),
        Refusal(text="no"),
        Stall(seconds=0.5),
        Error(status=500, code="c", message="m", after_tokens=0),
    ]
    assert rule.usage == StatedUsage(
        input_tokens=1, cached_tokens=2, output_tokens=3, reasoning_tokens=4
    )
    assert single.emit == [Message(text="one")]


def test_an_empty_script_has_one_model_and_no_limit() -> None:
    assert read({}) == script.Script(models=(Model(id="scripted"),), pace=Pace(), rules=())


@pytest.mark.parametrize(
    ("change", "pace"),
    [
        ({}, Pace(ttft_ms=10, tokens_per_second=5)),
        ({"ttft_ms": 0}, Pace(ttft_ms=0, tokens_per_second=5)),
        ({"tokens_per_second": None}, Pace(ttft_ms=10, tokens_per_second=None)),
    ],
)
def test_a_rules_pace_changes_what_it_names(change: dict[str, Any], pace: Pace) -> None:
    made = read(
        {
            "pace": {"ttft_ms": 10, "tokens_per_second": 5},
            "rules": [{"emit": [], "pace": change}],
        }
    )
    assert made.rules[0].pace.over(made.pace) == pace


def emitting(emission: Any, **members: Any) -> str:
    return json.dumps({"rules": [{"id": "r", "emit": emission, **members}]})


KINDS = "custom_tool_call, error, function_call, message, reasoning, refusal, stall"


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "line 1: not valid JSON: Input data was truncated"),
        ('{"rules": [\n\n x]}', "line 3: not valid JSON: invalid character (byte 14)"),
        ("[]", "expected an object, got a list"),
        ('{"rules": ' + "[" * 100_000, "nested too deeply"),
        ('{"modls": []}', "unknown key 'modls'"),
        ('{"models": []}', "models: at least one model, and each needs a name"),
        ('{"models": [""]}', "models: at least one model, and each needs a name"),
        ('{"models": ["a", {"name": "a"}]}', "models: 'a' is there twice"),
        ('{"models": [3]}', "models[0]: expected a string or an object, got a whole number"),
        ('{"models": [{"nme": "x"}]}', "models[0]: unknown key 'nme'"),
        ('{"pace": {"ttft_ms": -1}}', "pace.ttft_ms: expected a number >= 0.0"),
        ('{"pace": {"tokens_per_second": 0}}', "pace.tokens_per_second: expected a number > 0.0"),
        ('{"rules": [3]}', "rules[0]: expected an object, got a whole number"),
        ('{"rules": [{"id": 3}]}', "rules[0]: id: expected a string or null, got a whole number"),
        ('{"rules": [{"id": "r"}]}', "rule 'r' (rules[0]): missing key 'emit'"),
        (emitting(3), "rule 'r' (rules[0]): emit: expected a list, got a whole number"),
        (emitting({"text": "x"}), "rule 'r' (rules[0]): emit: missing key 'type'"),
        (
            emitting({"type": "mesage"}),
            f"rule 'r' (rules[0]): emit.type: invalid value 'mesage', known are: {KINDS}",
        ),
        (emitting({"type": "message"}), "rule 'r' (rules[0]): emit: missing key 'text'"),
        (
            emitting([{"type": "stall", "seconds": 1}, {"type": "message", "text": 3}]),
            "rule 'r' (rules[0]): emit[1].text: expected a string, got a whole number",
        ),
        (
            emitting({"type": "function_call", "name": "f", "arguments": 3}),
            "rule 'r' (rules[0]): emit.arguments: expected a string or an object, "
            "got a whole number",
        ),
        (
            emitting({"type": "error", "status": 200, "code": "c", "message": "m"}),
            "rule 'r' (rules[0]): emit.status: expected a whole number >= 400",
        ),
        (
            emitting([{"type": "error", "status": 500, "code": "c", "message": "m"}] * 2),
            "rule 'r' (rules[0]): emit: only one error can end an answer",
        ),
        (
            emitting([], when={"last": "mesage"}),
            "rule 'r' (rules[0]): when.last: invalid enum value 'mesage', "
            "known are: message, tool_output",
        ),
        (
            emitting([], when={"tool": ["function"]}),
            "rule 'r' (rules[0]): when.tool: expected a list of length >= 2",
        ),
        (
            emitting([], when={"tool": [None, "x"]}),
            "rule 'r' (rules[0]): when.tool[0]: a tool has a type, a string",
        ),
        (
            emitting([], when={"turn": 0}),
            "rule 'r' (rules[0]): when.turn: expected a whole number >= 1",
        ),
        (emitting([], pace={"x": 1}), "rule 'r' (rules[0]): pace: unknown key 'x'"),
        (
            json.dumps({"rules": [{"id": "r", "emit": []}] * 2}),
            "rules: two rules have the id 'r'",
        ),
    ],
)
def test_a_mistake_is_one_line_that_names_the_rule_and_the_key(text: str, complaint: str) -> None:
    with pytest.raises(ScriptError) as caught:
        parse(text.encode(), source="s.json")
    assert str(caught.value) == f"s.json: {complaint}"


def test_a_file_is_read_and_named_in_what_is_wrong_with_it(tmp_path: Path) -> None:
    path = tmp_path / "rules.json"
    path.write_text('{"rules": [{"emit": []}]}')
    assert len(load(path).rules) == 1
    path.write_text("{")
    with pytest.raises(ScriptError, match=rf"^{re.escape(str(path))}: line 1: not valid JSON"):
        load(path)
    with pytest.raises(ScriptError, match=r"^cannot read .*missing\.json: No such file"):
        load(tmp_path / "missing.json")


# Placeholders.

VALUES = SimpleNamespace(output='a "b"', user="{output}", context="[]")


def test_placeholders_are_filled_once_and_other_braces_stay() -> None:
    assert fill("{user} {output} {context} {other} {}", VALUES) == '{output} a "b" [] {other} {}'


def test_placeholders_are_filled_in_every_string_of_a_value() -> None:
    value = {"{user}": ["{output}", {"x": "{context}"}, 1, None, True]}
    assert fill_all(value, VALUES) == {"{output}": ['a "b"', {"x": "[]"}, 1, None, True]}


@given(st.text(), st.text(), st.text())
def test_filling_never_reads_what_it_has_filled_in(user: str, output: str, context: str) -> None:
    values = SimpleNamespace(output=output, user=user, context=context)
    assert fill("<{user}|{output}|{context}>", values) == f"<{user}|{output}|{context}>"
