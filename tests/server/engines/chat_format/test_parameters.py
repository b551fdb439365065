"""Arguments that are written one by one."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support import chat_templates
from tests.support.chat_family import ChatFamily
from tests.support.chat_syntaxes import syntax_of
from tests.support.engine_contract import prompt
from tieline_server.engines.base import EngineError
from tieline_server.engines.chat_format.constrain import Constraint, constraint_of
from tieline_server.engines.chat_format.parameters import (
    ParameterScan,
    kinds_of,
    row_of,
    shown,
)
from tieline_server.engines.chat_format.syntax.base import KINDS, Parameters


def parameters_of(template: str) -> Parameters:
    found = syntax_of(template).parameters
    assert found is not None
    return found


CODER = parameters_of(chat_templates.PARAMETERS)
TAIL = "</function>\n</tool_call>"
FAMILY = ChatFamily(chat_templates.PARAMETERS)


def scan(schema: dict[str, Any], text: str, form: Parameters = CODER) -> Any:
    """What is read of parameters that come letter by letter."""
    reader = ParameterScan(row_of(schema, form), TAIL)
    parts: list[str] = []
    rest = None
    for letter in text + TAIL:
        more, rest = reader.feed(letter if rest is None else rest + letter)
        parts.append(more)
        if rest is not None:
            break
    return json.loads("".join(parts))


def written(arguments: dict[str, Any], form: Parameters = CODER) -> str:
    text = json.dumps(arguments, separators=(",", ":"), ensure_ascii=False)
    return "".join(part for each in shown(text, form) for part in each)


def constraint(parameters: dict[str, Any], *, strict: bool | None = None) -> Constraint:
    tool = {"type": "function", "name": "f", "parameters": parameters}
    given = [tool if strict is None else {**tool, "strict": strict}]
    settings = prompt(tools=given, tool_choice="required").settings
    return constraint_of(settings.tools.offered, settings, FAMILY.template.speech)


def rules(parameters: dict[str, Any]) -> dict[str, str]:
    found = constraint(parameters).grammar
    assert found is not None
    return dict(line.split(": ", 1) for line in found.splitlines()[1:])


def member(schema: Any, **more: Any) -> dict[str, Any]:
    return {"type": "object", "properties": {"a": schema}, "required": ["a"], **more}


@pytest.mark.parametrize(
    ("schema", "text", "value"),
    [
        ({"type": "string"}, "42", "42"),
        ({"type": "integer"}, "42", 42),
        ({"type": "number"}, "-1.5e3", -1500.0),
        ({"type": ["string", "integer"]}, "42", 42),
        ({"type": ["string", "null"]}, "42", "42"),
        ({"type": ["string", "null"]}, "null", None),
        ({"type": ["string", "null"]}, "None", None),
        ({"anyOf": [{"type": "string"}, {"type": "null"}]}, "null and void", "null and void"),
        ({}, "42", 42),
        ({}, '{"b": [1]}', {"b": [1]}),
        ({}, "{not JSON", "{not JSON"),
        ({}, "NaN", "NaN"),
        ({"type": "boolean"}, "True", True),
        ({"type": "boolean"}, "false", False),
        ({"enum": ["1", "2"]}, "1", "1"),
        ({"enum": [1, 2]}, "1", 1),
        ({"$ref": "#/$defs/n"}, "1", 1),
        ({"type": "array"}, '["</function>\\n</tool_call>"]', ["</function>\n</tool_call>"]),
    ],
)
def test_tp_01_a_value_has_the_type_that_its_schema_gives_it(
    schema: dict[str, Any], text: str, value: Any
) -> None:
    """TP-01."""
    whole = member(schema, **{"$defs": {"n": {"type": "integer"}}})
    assert scan(whole, f"<parameter=a>\n{text}\n</parameter>\n") == {"a": value}


@given(
    value=st.dictionaries(
        st.sampled_from(["a", "b", "c"]),
        st.one_of(
            st.text(st.characters(codec="utf-8", categories=["L", "N", "P", "S", "Z"])),
            st.sampled_from(["</parameter", "\n", "<parameter=b>\n", "</function>", '"\\']),
        ),
    )
)
def test_tp_01_what_is_shown_is_read_back(value: dict[str, str]) -> None:
    """TP-01: whatever a string has, but the very end of its own parameter."""
    schema = {"type": "object", "properties": {key: {"type": "string"} for key in "abc"}}
    assert scan(schema, written(value)) == value


def test_tp_01_no_parameters_are_an_empty_object() -> None:
    """TP-01."""
    assert scan({"type": "object", "properties": {}}, "") == {}
    assert scan(member({"type": "string"}), "") == {}


def test_tp_01_names_that_no_schema_has_are_read_where_it_has_none() -> None:
    """TP-01."""
    text = "<parameter=x>\n1\n</parameter>\n<parameter=y>\nb\n</parameter>\n"
    assert scan({"type": "object"}, text) == {"x": 1, "y": "b"}
    typed = {"type": "object", "additionalProperties": {"type": "string"}}
    assert scan(typed, text) == {"x": "1", "y": "b"}
    with pytest.raises(EngineError):
        scan(member({"type": "string"}), text)
    with pytest.raises(EngineError):
        scan({"type": "object"}, text + text)


def test_tp_01_arguments_that_are_no_object_are_shown_as_they_are() -> None:
    """TP-01."""
    assert written({"a": "x", "b": {"c": 1}, "d": False}) == (
        "<parameter=a>\nx\n</parameter>\n"
        '<parameter=b>\n{"c":1}\n</parameter>\n'
        "<parameter=d>\nFalse\n</parameter>\n"
    )
    assert "".join(part for each in shown("[1", CODER) for part in each) == "[1"


def test_tp_01_what_is_required_must_come_and_the_rest_may_in_the_order_of_the_schema() -> None:
    """TP-01."""
    schema = {
        "type": "object",
        "properties": {"a": {"type": "string"}, "b": {"type": "integer"}, "c": False},
        "required": ["b"],
    }
    found = rules(schema)
    assert found["value_0"] == "value_0_0? value_0_1"
    assert found["value_0_0"].startswith(r'"<parameter=a>\n" ')
    assert found["value_0_1_0"].startswith("%json ")
    assert json.loads(found["value_0_1_0"].removeprefix("%json "))["type"] == "integer"


def test_tp_01_choices_are_written_as_they_are() -> None:
    """TP-01."""
    found = rules(member({"enum": ["a b", "c"]}))
    end = r"\n</parameter>\n"
    assert found["value_0_0"] == rf'"<parameter=a>\n" ("a b{end}" | "c{end}")'
    found = rules(member({"anyOf": [{"enum": ["a"]}, {"type": "null"}]}))
    assert found["value_0_0"].endswith(rf'("a{end}" | "None{end}")')
    assert rules(member({"type": "boolean"}))["value_0_0"].endswith(
        rf'("True{end}" | "False{end}")'
    )


def test_tp_01_a_string_keeps_to_its_length() -> None:
    """TP-01."""
    found = rules(member({"type": "string", "minLength": 2, "maxLength": 5}))
    assert found["value_0_0_0_text[lazy]"] == r"/(.|\n){2,5}\n<\/parameter>\n/"


def object_of(**properties: Any) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": [*properties],
        "additionalProperties": False,
    }


@pytest.mark.parametrize(
    ("schema", "why"),
    [
        (object_of(a={"type": "string", "pattern": "^x"}), "'pattern' of parameter 'a'"),
        (object_of(a={"type": "string", "format": "date"}), "'format' of parameter 'a'"),
        (object_of(a={"type": ["string", "integer"]}), "text or something else of parameter 'a'"),
        (
            object_of(a={"anyOf": [{"type": "string"}, object_of()]}),
            "'anyOf' of parameter 'a'",
        ),
        ({**object_of(a={"type": "string"}), "minProperties": 1}, "'minProperties'"),
    ],
)
def test_tp_01_what_text_cannot_be_held_to_is_refused_where_it_is_strict(
    schema: dict[str, Any], why: str
) -> None:
    """TP-01."""
    with pytest.raises(EngineError, match="writes parameters one by one") as caught:
        constraint(schema, strict=True)
    error = caught.value
    assert why in error.message
    assert (error.code, error.status) == ("invalid_function_parameters", 400)
    assert error.param is not None
    assert constraint(schema).grammar


def test_tp_01_parameters_without_names_cannot_be_strict() -> None:
    """TP-01."""
    with pytest.raises(EngineError) as caught:
        constraint({"type": "object"}, strict=True)
    assert (caught.value.code, caught.value.status) == ("invalid_function_parameters", 400)
    with pytest.raises(EngineError, match="parameters that have no names"):
        row_of({"type": "object"}, CODER, refuse=lambda why: EngineError("server_error", why))
    assert constraint({"type": "object"}).grammar


@pytest.mark.parametrize(
    "schema",
    [
        object_of(a={"type": "string"}, b={"type": "integer"}),
        object_of(a={"anyOf": [{"type": "string"}, {"type": "null"}]}),
        object_of(a={"type": ["string", "null"]}, b={"enum": ["x", "y"]}),
        object_of(a={"type": "array", "items": {"type": "string"}}),
        object_of(),
    ],
)
def test_tp_01_what_text_can_be_held_to_may_be_strict(schema: dict[str, Any]) -> None:
    """TP-01."""
    assert constraint(schema, strict=True).grammar


def test_references_in_circles_cost_no_more_than_there_are_of_them() -> None:
    circle = {f"d{at}": {"anyOf": [{"$ref": f"#/$defs/d{n}"} for n in range(9)]} for at in range(9)}
    root = {"$defs": circle, **member({"$ref": "#/$defs/d0"})}
    assert kinds_of({"$ref": "#/$defs/d0"}, root) == frozenset(KINDS)
    assert row_of(root, CODER).members
    assert row_of({"$ref": "#"}, CODER).members is None


def test_a_kind_is_what_all_words_leave() -> None:
    assert kinds_of({"type": ["string", "integer"], "enum": [1]}, {}) == {"number"}
    assert kinds_of({"allOf": [{"type": "string"}, {"minLength": 1}]}, {}) == {"string"}
    assert kinds_of(True, {}) == frozenset(KINDS)


def test_what_is_required_comes_though_no_schema_names_it() -> None:
    """In its place behind the others, with what the schema says of all others."""
    found = rules(member({"type": "string"}, required=["a", "b"]))
    assert found["value_0"] == "value_0_0 value_0_1"
    assert found["value_0_1"].startswith('"<parameter=b>')
    alone = {"type": "object", "required": ["n"], "additionalProperties": {"type": "integer"}}
    assert rules(alone)["value_0"] == "value_0_0"
    assert '"integer"' in rules(alone)["value_0_0_0"]
    assert scan(alone, "<parameter=n>\n4\n</parameter>\n") == {"n": 4}
    with pytest.raises(EngineError, match="parameter 'b'"):
        constraint(member({"type": "string"}, required=["a", "b"]), strict=True)


@pytest.mark.parametrize("strict", [None, True])
def test_an_enum_that_is_all_of_an_all_of_is_kept_to(strict: bool | None) -> None:
    """As some generators of schemas write a reference beside a default."""
    colours = {"C": {"type": "string", "enum": ["red", "green"]}}
    said = {"allOf": [{"$ref": "#/$defs/C"}], "default": "red"}
    schema = member(said, additionalProperties=False, **{"$defs": colours})
    found = constraint(schema, strict=strict).grammar
    assert found is not None
    assert '"red\\n</parameter>\\n" | "green\\n</parameter>\\n"' in found
