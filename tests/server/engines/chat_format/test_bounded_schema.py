"""Schemas rebuilt so that a small model can follow them to the end."""

import time
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from jsonschema.exceptions import ValidationError

from tieline_server.engines.base import EngineError
from tieline_server.engines.chat_format.bounded_schema import (
    ALL_ITEMS,
    ANY,
    MAX_DEPTH,
    MAX_ITEMS,
    MAX_NUMBER,
    MAX_STRING,
    MAX_VALUES,
    MOST_ITEMS,
    STEP,
    bounded,
)

KNOWN = {
    "type", "properties", "required", "additionalProperties", "patternProperties",
    "maxProperties", "items",
    "prefixItems", "minItems", "maxItems", "minLength", "maxLength", "pattern", "format",
    "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf", "anyOf", "enum",
    "const",
}  # fmt: skip
"""Words that the runtime was seen to follow."""


def subschemas(schema: Any) -> list[dict[str, Any]]:
    """``schema`` and all schemas in it."""
    if not isinstance(schema, dict):
        return []
    below = [
        *schema.get("properties", {}).values(),
        *schema.get("anyOf", ()),
        *schema.get("prefixItems", ()),
        schema.get("items"),
        *schema.get("patternProperties", {}).values(),
    ]
    return [schema, *(each for part in below for each in subschemas(part))]


def is_bounded(schema: dict[str, Any]) -> bool:
    if schema.keys() & {"anyOf", "enum", "const", "format"}:
        return True
    kind = schema["type"]
    if kind == "string":
        return "maxLength" in schema
    if kind in ("integer", "number"):
        low, high = {"minimum", "exclusiveMinimum"}, {"maximum", "exclusiveMaximum"}
        return bool(low & schema.keys()) and bool(high & schema.keys())
    if kind == "array":
        return "maxItems" in schema
    if kind == "object":
        bounded_names = "patternProperties" not in schema or "maxProperties" in schema
        return schema["additionalProperties"] is False and bounded_names
    return True


@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        ({"type": "string"}, {"type": "string", "maxLength": MAX_STRING}),
        ({"type": "string", "maxLength": 4000}, {"type": "string", "maxLength": 4000}),
        ({"minLength": 300}, {"type": "string", "minLength": 300, "maxLength": 300}),
        (
            {"type": "integer"},
            {"type": "integer", "minimum": -MAX_NUMBER, "maximum": MAX_NUMBER},
        ),
        (
            {"type": "number", "exclusiveMinimum": 5e9},
            {"type": "number", "exclusiveMinimum": 5e9, "maximum": 6e9, "multipleOf": STEP},
        ),
        (
            {"type": "number", "minimum": 0, "maximum": 1e-5},
            {"type": "number", "minimum": 0, "maximum": 1e-5},
        ),
        (
            {"type": "number", "minimum": 0, "maximum": 1, "multipleOf": 0.5},
            {"type": "number", "minimum": 0, "maximum": 1, "multipleOf": 0.5},
        ),
        ({"type": "string", "format": "date"}, {"type": "string", "format": "date"}),
        ({"type": "string", "format": "uri"}, {"type": "string", "maxLength": MAX_STRING}),
        (
            {"type": "string", "pattern": "^[a-z]+$", "maxLength": 9},
            {"type": "string", "maxLength": 9, "pattern": "^[a-z]+$"},
        ),
        ({"enum": ["a", 2]}, {"enum": ["a", 2]}),
        ({"type": "string", "const": "x", "minLength": 9}, {"const": "x"}),
        ({}, ANY),
        (True, ANY),
        ({"type": "unheard"}, ANY),
        ({"not": {"type": "string"}}, ANY),
    ],
)
def test_each_type_gets_the_bound_that_it_lacks(schema: Any, expected: Any) -> None:
    assert bounded(schema) == expected


@pytest.mark.parametrize("pattern", [r"(?=a)b", r"\bword", r"(a)\1", "(", r"a++"])
def test_a_pattern_beyond_the_runtimes_reach_is_dropped(pattern: str) -> None:
    assert "pattern" not in bounded({"type": "string", "pattern": pattern})


def test_an_object_keeps_its_members_and_gets_no_others() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "null"}}, "required": ["a", "b", "a"]}
    assert bounded(schema) == {
        "type": "object",
        "properties": {"a": {"type": "null"}, "b": ANY},
        "required": ["a", "b"],
        "additionalProperties": False,
    }


def test_an_object_whose_members_nobody_names_gets_a_few_scalars() -> None:
    result = bounded({"type": "object"})
    assert list(result["patternProperties"].values()) == [ANY]
    assert (result["additionalProperties"], result["maxProperties"]) == (False, 8)
    [typed] = bounded({"additionalProperties": {"const": 1}})["patternProperties"].values()
    assert typed == {"const": 1}
    assert bounded({"type": "object", "properties": {}})["additionalProperties"] is False


def test_tuples_of_both_drafts_keep_their_places() -> None:
    new = {"type": "array", "prefixItems": [{"const": 1}], "items": False}
    old = {"type": "array", "items": [{"const": 1}], "additionalItems": False}
    for schema in (new, old):
        result = bounded(schema)
        assert (result["prefixItems"], result["maxItems"]) == ([{"const": 1}], 1)


def test_references_all_of_and_one_of_are_resolved() -> None:
    schema = {
        "$defs": {"a/b": {"type": "object", "properties": {"x": {"type": "boolean"}}}},
        "allOf": [{"$ref": "#/$defs/a~1b"}, {"required": ["x"]}],
        "properties": {"y": {"oneOf": [{"const": 1}, {"const": 2}]}},
    }
    result = bounded(schema)
    assert result["properties"] == {
        "y": {"anyOf": [{"const": 1}, {"const": 2}]},
        "x": {"type": "boolean"},
    }
    assert result["required"] == ["x"]


@pytest.mark.parametrize(
    "schema",
    [
        {"$ref": "#"},
        {"$ref": "https://example.com/schema"},
        {"$ref": "#/nowhere"},
        {"$ref": 7},
        {"type": "array", "items": {"$ref": "#"}},
        {"properties": {name: {"$ref": "#"} for name in "abcdefgh"}},
        {"allOf": [{"$ref": "#"}, {"$ref": "#"}]},
    ],
)
def test_a_schema_that_has_no_end_comes_to_one(schema: Any) -> None:
    assert len(subschemas(bounded(schema))) < 20_000


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=8,
)
words = st.sampled_from(
    [*sorted(KNOWN), "oneOf", "allOf", "$ref", "not", "if", "contains", "uniqueItems", "title"]
)
types = st.sampled_from(
    ["string", "integer", "number", "boolean", "null", "array", "object", "odd"]
)
schemas = st.recursive(
    st.booleans() | st.fixed_dictionaries({"type": types}) | st.dictionaries(words, json_values),
    lambda inner: (
        st.dictionaries(st.sampled_from(["items", "not", "additionalProperties"]), inner)
        | st.fixed_dictionaries({"anyOf": st.lists(inner, max_size=3)})
        | st.fixed_dictionaries({"properties": st.dictionaries(st.text(max_size=3), inner)})
    ),
    max_leaves=8,
)


@given(schemas)
def test_whatever_comes_in_what_goes_out_is_known_and_bounded(schema: Any) -> None:
    try:
        result = bounded(schema)
    except EngineError:
        # Only where nothing satisfies it, which other tests look at.
        return
    Draft202012Validator.check_schema(result)
    for each in subschemas(result):
        assert each.keys() <= KNOWN
        assert is_bounded(each)


@given(st.data())
def test_what_satisfies_the_result_satisfies_the_clients_schema(data: st.DataObject) -> None:
    simple = st.sampled_from(
        [
            {"type": "string", "minLength": 1},
            {"type": "integer", "maximum": 3},
            {"type": ["boolean", "null"]},
            {"enum": [1, "a"]},
        ]
    )
    members = data.draw(st.dictionaries(st.sampled_from("abc"), simple, min_size=1))
    schema = {
        "type": "object",
        "properties": {**members, "many": {"type": "array", "items": data.draw(simple)}},
        "required": sorted(members),
    }
    leaves: st.SearchStrategy[Any] = st.sampled_from(
        ["", "a", "x" * 300, 1, 5, -(10**10), True, None, {}]
    )
    value = data.draw(
        st.fixed_dictionaries(
            dict.fromkeys(members, leaves),
            optional={"many": st.lists(leaves, max_size=3), "other": leaves},
        )
    )
    try:
        Draft202012Validator(bounded(schema)).validate(value)
    except ValidationError:
        return
    Draft202012Validator(schema).validate(value)


def test_a_list_without_a_limit_gets_one() -> None:
    assert bounded({"type": "array"})["maxItems"] == MAX_ITEMS
    assert bounded({"type": "array", "minItems": 20})["maxItems"] == 20


STRINGS = {"type": "array", "maxItems": 2**40, "items": {"type": "string"}}


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "array", "minItems": 2**40},
        {"type": "array", "items": STRINGS, "minItems": 2**40, "maxItems": 2**40},
        {"type": "array", "prefixItems": [STRINGS] * 100_000},
        {"properties": {f"p{n}": STRINGS for n in range(900)}},
        {"properties": {f"p{n}": {} for n in range(100_000)}},
        {"required": [f"p{n}" for n in range(100_000)]},
        {"enum": [*range(100_000)]},
        {"const": [*range(100_000)]},
        {"anyOf": [{"enum": ["x" * 10_000, n]} for n in range(100)]},
        {"type": ["string", "null"] * 100_000},
        {"type": "string", "pattern": "(a|b)?" * 10_000},
        {
            "properties": {f"p{n}": {} for n in range(5_000)},
            "anyOf": [{"required": [f"p{n}"]} for n in range(20_000)],
        },
        {"allOf": [{"required": [f"p{n}"], "properties": {f"q{n}": {}}} for n in range(20_000)]},
    ],
)
def test_what_a_schema_costs_has_an_end(schema: Any) -> None:
    start = time.process_time()
    result = bounded(schema)
    assert time.process_time() - start < 5
    assert len(msgspec.json.encode(result)) < 1_000_000
    arrays = [each for each in subschemas(result) if each.get("type") == "array"]
    assert sum(each["maxItems"] for each in arrays) <= ALL_ITEMS + MAX_ITEMS * len(arrays)
    assert all(each["minItems"] <= each["maxItems"] <= MOST_ITEMS for each in arrays)


def test_values_are_kept_for_as_long_as_there_is_room() -> None:
    assert bounded({"enum": [*range(10_000)]}) == {"enum": [*range(10_000)]}
    assert bounded({"const": "x" * MAX_VALUES}) == ANY
    assert bounded({"enum": ["a", "x" * MAX_VALUES, "b"]}) == {"enum": ["a"]}


@pytest.mark.parametrize(
    "schema",
    [
        {"minimum": 5, "maximum": 3},
        {"type": "string", "minLength": 2, "maxLength": 1},
        {"type": "array", "minItems": 2, "maxItems": 1},
        {"properties": {"a": {"minimum": 1, "maximum": 0}}},
        {"anyOf": [{"minimum": 1, "maximum": 0}, {"minLength": 1, "maxLength": 0}]},
    ],
)
def test_a_schema_that_nothing_satisfies_is_refused(schema: dict[str, Any]) -> None:
    with pytest.raises(EngineError, match="nothing satisfies a 'm") as caught:
        bounded(schema, param="here")
    assert (caught.value.code, caught.value.param) == ("invalid_function_parameters", "here")


def test_a_branch_that_nothing_satisfies_is_no_choice() -> None:
    schema = {"anyOf": [{"minimum": 1, "maximum": 0}, {"const": 1}]}
    assert bounded(schema) == {"anyOf": [{"const": 1}]}


@pytest.mark.parametrize(
    "schema",
    [
        {"not": {"type": "string"}},
        {"type": "array", "items": {"type": "string"}, "uniqueItems": True},
        {"properties": {"a": {"$ref": "https://example.com/a"}}},
        {"type": "string", "pattern": "(?=a)b"},
        {"type": "string", "pattern": 1},
    ],
)
def test_what_would_be_passed_over_is_refused_where_the_schema_is_strict(
    schema: dict[str, Any],
) -> None:
    assert bounded(schema)
    with pytest.raises(EngineError, match="cannot be held to"):
        bounded(schema, strict=True)


def test_a_strict_schema_may_not_be_nested_without_end() -> None:
    schema: dict[str, Any] = {"const": 1}
    for _ in range(MAX_DEPTH + 1):
        schema = {"type": "array", "items": schema}
    assert bounded(schema)
    with pytest.raises(EngineError, match="so deeply"):
        bounded(schema, strict=True)
    tree: dict[str, Any] = {"type": "object", "properties": {"next": {"$ref": "#"}}}
    assert bounded(tree, strict=True)
