"""A value for a schema conforms to it."""

import json
import time
from typing import Any

import msgspec
import pytest
from hypothesis import example as sample
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft7Validator, Draft202012Validator

from tieline_server.engines.scripted.example import FORMATS, NoExample, example

NONE = {"no": "value"}


def built(schema: Any, hint: str = "Paris") -> Any:
    """The value, as it comes out of its JSON; NONE where none is found."""
    try:
        value = example(json.dumps(schema).encode(), hint=hint)
    except NoExample:
        return NONE
    return json.loads(msgspec.json.encode(value))


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        ({}, "Paris"),
        ({"type": "string", "maxLength": 2}, "Pa"),
        ({"type": "string", "maxLength": 0}, ""),
        ({"type": "string", "minLength": 7}, "ParisParis"),
        ({"type": "string", "pattern": "^[a-z]{2}$"}, "aa"),
        ({"type": "string", "pattern": "^[a-z]+$", "minLength": 3}, "aaa"),
        ({"type": ["null", "string"]}, "Paris"),
        ({"type": "string", "default": "x"}, "x"),
        ({"type": "integer", "default": "x"}, 0),
        ({"type": "string", "examples": [1, "y"]}, "y"),
        ({"const": {"a": 1}}, {"a": 1}),
        ({"enum": ["c", "f"]}, "c"),
        ({"enum": [1, "f"], "type": "string"}, "f"),
        ({"type": "integer", "minimum": 1.5}, 2),
        ({"type": "integer", "minimum": -10, "maximum": -5}, -5),
        ({"type": "integer", "multipleOf": 7, "minimum": 50}, 56),
        ({"type": "integer", "minimum": 1e300}, 1e300),
        ({"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1}, 0.5),
        ({"type": "boolean"}, True),
        ({"type": "null"}, None),
        ({"type": "array", "items": {"type": "integer"}}, [0]),
        ({"type": "array"}, []),
        ({"type": "array", "prefixItems": [{"const": 1}], "items": False, "minItems": 1}, [1]),
        ({"type": "array", "items": {"enum": [1, 2]}, "minItems": 2, "uniqueItems": True}, [1, 2]),
        ({"type": "array", "contains": {"const": 3}}, [3]),
        ({"type": "object", "properties": {"a": {}}}, {}),
        (
            {"type": "object", "minProperties": 2, "properties": {"a": {"const": 1}}},
            {"a": 1, "key1": "Paris"},
        ),
        (
            {"type": "object", "required": ["x"], "additionalProperties": {"type": "integer"}},
            {"x": 0},
        ),
        (
            {"required": ["n_a"], "patternProperties": {"^n_": {"type": "integer"}}},
            {"n_a": 0},
        ),
        (
            {
                "required": ["n_a", "x"],
                "properties": {"n_a": {"minimum": 3}},
                "patternProperties": {"^n_": {"type": "integer"}, "a$": {"multipleOf": 2}},
                "additionalProperties": {"type": "null"},
            },
            {"n_a": 4, "x": None},
        ),
        (
            {
                "type": "object",
                "minProperties": 2,
                "patternProperties": {"^n[0-9]{1,3}$": {"type": "boolean"}},
                "additionalProperties": False,
            },
            {"n0": True, "n000": True},
        ),
        (
            {"type": "object", "minProperties": 1, "propertyNames": {"maxLength": 2}},
            {"Pa": "Paris"},
        ),
        (
            {"required": ["a"], "dependentRequired": {"a": ["b"], "b": ["c"], "x": ["y"]}},
            {"a": "Paris", "b": "Paris", "c": "Paris"},
        ),
        (
            {
                "required": ["a"],
                "properties": {"b": {"type": "integer"}},
                "dependentSchemas": {
                    "a": {"required": ["b"], "properties": {"b": {"minimum": 7}}},
                    "b": {"required": ["c"], "properties": {"c": {"const": 1}}},
                },
            },
            {"b": 7, "c": 1, "a": "Paris"},
        ),
        (
            {
                "type": "object",
                "minProperties": 1,
                "properties": {"a": {"const": 1}},
                "dependentRequired": {"a": ["b"]},
            },
            {"a": 1, "b": "Paris"},
        ),
        (
            {
                "$defs": {"a b%": {"const": 1}, "c/d": {"const": 2}},
                "type": "array",
                "prefixItems": [{"$ref": "#/$defs/a%20b%25"}, {"$ref": "#/%24defs/c~1d"}],
                "minItems": 2,
            },
            [1, 2],
        ),
        ({"type": "array", "contains": {"const": 3}, "minContains": 2}, [3, 3]),
        ({"type": "array", "contains": {"const": 3}, "minContains": 0}, []),
        ({"not": {"type": "string"}}, 0),
        (
            {
                "oneOf": [{"type": "integer"}, {"minimum": -5, "type": "integer"}],
                "not": {"const": 0},
            },
            NONE,
        ),
        ({"oneOf": [{"maximum": 3}, {"minimum": 2}], "type": "integer"}, 0),
        ({"anyOf": [False, {"const": 2}]}, 2),
        ({"if": {"const": 1}, "then": False, "else": {"const": 2}}, 2),
        (False, NONE),
    ],
)
def test_in_09_the_value_is_the_simplest_sensible_one(schema: Any, value: Any) -> None:
    assert built(schema) == value
    if value is not NONE:
        Draft202012Validator(schema).validate(value)


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        ({"required": ["a"], "dependencies": {"a": ["b"]}}, {"a": "Paris", "b": "Paris"}),
        (
            {"required": ["a"], "dependencies": {"a": {"required": ["b"]}}},
            {"a": "Paris", "b": "Paris"},
        ),
        ({"type": "array", "items": [{"const": 1}, {"const": 2}], "minItems": 3}, [1, 2, "Paris"]),
    ],
)
def test_in_09_schemas_of_older_drafts_are_met(schema: Any, value: Any) -> None:
    assert built(schema) == value
    Draft7Validator(schema).validate(value)


def test_required_properties_come_in_the_order_of_the_schema() -> None:
    properties = {"b": {"type": "string"}, "a": {"type": "integer"}, "c": {"type": "null"}}
    value = built({"type": "object", "properties": properties, "required": ["a", "b"]})
    assert list(value.items()) == [("b", "Paris"), ("a", 0)]


@pytest.mark.parametrize("name", sorted(FORMATS))
def test_a_format_has_a_value_of_that_format(name: str) -> None:
    schema = {"type": "string", "format": name}
    validator = Draft202012Validator(schema, format_checker=Draft202012Validator.FORMAT_CHECKER)
    validator.validate(built(schema))


TREE = {
    "$defs": {
        "tree": {
            "type": "object",
            "properties": {
                "kids": {"type": "array", "items": {"$ref": "#/$defs/tree"}},
                "next": {"anyOf": [{"$ref": "#/$defs/tree"}, {"type": "null"}]},
            },
            "required": ["kids", "next"],
        }
    },
    "$ref": "#/$defs/tree",
}


def test_a_recursive_schema_ends_where_it_first_can() -> None:
    assert built(TREE) == {"kids": [], "next": None}


def test_all_of_is_merged_through_references() -> None:
    schema = {
        "$defs": {"city": {"type": "string", "minLength": 8}},
        "allOf": [
            {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]},
            {"properties": {"a": {"minimum": 5}, "b": {"$ref": "#/$defs/city"}}, "required": ["b"]},
            {"properties": {"b": {"$ref": "#/$defs/city", "maxLength": 9}}},
        ],
    }
    assert built(schema) == {"a": 5, "b": "ParisPari"}


def test_two_choices_are_decided_together() -> None:
    schema = {
        "type": "object",
        "required": ["a", "b"],
        "allOf": [
            {"anyOf": [{"properties": {"a": False}}, {"properties": {"a": {"const": 1}}}]},
            {"anyOf": [{"properties": {"b": {"type": "null"}}}]},
        ],
    }
    assert built(schema) == {"a": 1, "b": None}


@pytest.mark.parametrize(
    "schema",
    [
        {"$ref": "#"},
        {"allOf": [{"$ref": "#"}, {"$ref": "#"}]},
        {"type": "array", "minItems": 10**9},
        {"type": "array", "minItems": 9000, "uniqueItems": True, "items": {}},
        {"type": "string", "minLength": 10**9},
        {"type": "object", "minProperties": 10**9},
        {"minLength": "x"},
        {"type": 5},
        {"type": "unheard of"},
        {"properties": 5},
        {"enum": 5},
        {"enum": []},
        {"required": ["a"], "dependentSchemas": {"a": False}},
        {"required": ["a"], "patternProperties": {"a": False}},
        {
            "type": "object",
            "minProperties": 50,
            "patternProperties": {"^(a+)+$": {}},
            "additionalProperties": False,
        },
        {
            "required": [f"k{n}" for n in range(2_000)],
            "patternProperties": {f"(k{n}|a+)+$": {} for n in range(2_000)},
        },
        {"$ref": 5},
        {"required": 5},
        {"multipleOf": 0, "type": "integer"},
        {"maxLength": -1, "type": "string"},
        {"minimum": 1e308, "maximum": 1.7e308, "type": "number", "multipleOf": 1e-300},
        {"anyOf": [{"anyOf": [{"anyOf": [{"type": "x"}] * 20}] * 20}] * 20},
        {"allOf": [{"required": [f"k{n}"], "properties": {f"k{n}": {}}} for n in range(20_000)]},
        {"allOf": [{"enum": [*range(5_000), f"a{n}"]} for n in range(100)]},
        {
            "items": {
                "items": {"items": {"items": {}, "minItems": 99}, "minItems": 99},
                "minItems": 99,
            }
        },
        [],
        "text",
    ],
)
def test_that_a_schema_cannot_be_met_is_found_soon(schema: Any) -> None:
    start = time.process_time()
    value = built(schema)
    assert time.process_time() - start < 5
    assert value == NONE or value == "Paris"


@pytest.mark.parametrize("data", [b"", b"{", b'{"a":' * 5000, b"\xff", b'{"minimum": 1e999}'])
def test_what_is_no_json_has_no_value(data: bytes) -> None:
    with pytest.raises(NoExample):
        example(data)


@pytest.mark.parametrize("schema", [{}, {"description": "d"}, {"required": ["a"]}, {"not": {}}])
def test_a_value_of_a_kind_is_one_or_there_is_none(schema: Any) -> None:
    data = json.dumps(schema).encode()
    if "not" in schema:
        with pytest.raises(NoExample):
            example(data, kind="object")
    else:
        assert isinstance(example(data, kind="object"), dict)


# Schemas that can be met, as tools have them.

names = st.sampled_from(["city", "days", "unit", "path", "note"])
strings = st.builds(
    lambda least, more: {"type": "string", "minLength": least, "maxLength": least + more},
    st.integers(0, 30),
    st.integers(0, 30),
)
formats = st.sampled_from(sorted(FORMATS)).map(lambda name: {"type": "string", "format": name})
numbers = st.builds(
    lambda kind, low, span: {"type": kind, "minimum": low, "maximum": low + span},
    st.sampled_from(["integer", "number"]),
    st.integers(-100, 100),
    st.integers(0, 50),
)
grids = st.builds(
    lambda step, low: {"type": "integer", "multipleOf": step, "exclusiveMinimum": low},
    st.integers(1, 9),
    st.integers(-30, 30),
)
plain = st.sampled_from(
    [
        {},
        True,
        {"type": "boolean"},
        {"type": "null"},
        {"type": ["string", "null"]},
        {"type": "string", "pattern": r"^[A-Z]{2}\d+$"},
        {"$ref": "#/$defs/unit"},
        {"$ref": "#/$defs/point"},
        {"const": [1, {"a": None}]},
    ]
)
DEFS = {
    "unit": {"enum": ["celsius", "fahrenheit"]},
    "point": {
        "type": "object",
        "properties": {
            "x": {"type": "number"},
            "next": {"anyOf": [{"$ref": "#/$defs/point"}, {"type": "null"}]},
        },
        "required": ["x", "next"],
        "additionalProperties": False,
    },
}


def composed(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    objects = st.builds(
        lambda properties, needed, closed: {
            "type": "object",
            "properties": properties,
            "required": [name for name in properties if name in needed],
            "additionalProperties": not closed,
        },
        st.dictionaries(names, inner, max_size=4),
        st.sets(names),
        st.booleans(),
    )
    lists = st.builds(
        lambda items, least: {
            "type": "array",
            "items": items,
            "minItems": least,
            "maxItems": least + 2,
        },
        inner,
        st.integers(0, 3),
    )
    any_of = st.lists(inner, min_size=1, max_size=3).map(lambda each: {"anyOf": each})
    all_of = st.builds(lambda one, two: {"allOf": [one, two]}, inner, st.just({"title": "t"}))
    return st.one_of(objects, lists, any_of, all_of)


tool_schemas = st.recursive(
    st.one_of(strings, formats, numbers, grids, plain), composed, max_leaves=12
)


@given(tool_schemas, st.text(max_size=300))
def test_any_schema_of_a_tool_gets_a_value_that_conforms(schema: Any, hint: str) -> None:
    root = {"$defs": DEFS, "allOf": [schema]}
    value = built(root, hint)
    Draft202012Validator(root).validate(value)
    assert value == built(root, hint)


distinct = st.one_of(
    strings.filter(lambda each: each["minLength"] > 3),
    numbers.filter(lambda each: each["maximum"] - each["minimum"] >= 4),
    grids,
    st.just({"type": "object", "properties": {"id": {"type": "integer"}}, "required": ["id"]}),
    st.just({"type": "array", "items": {"type": "integer"}, "minItems": 1}),
    st.just({"enum": ["a", "b", "c", "d", "e"]}),
    st.just({"anyOf": [{"const": 1}, {"type": "string"}]}),
)


@given(distinct, st.integers(0, 5))
def test_items_that_must_differ_do(items: Any, least: int) -> None:
    schema = {"type": "array", "items": items, "minItems": least, "uniqueItems": True}
    Draft202012Validator(schema).validate(built(schema))


json_values = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-2, 2), st.text("ab", max_size=2)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=2), inner, max_size=3)
    ),
    max_leaves=5,
)
KEYWORDS = [
    "type",
    "properties",
    "required",
    "items",
    "minItems",
    "enum",
    "const",
    "$ref",
    "allOf",
    "anyOf",
    "oneOf",
    "not",
    "minLength",
    "maxLength",
    "pattern",
    "multipleOf",
    "minimum",
    "examples",
    "prefixItems",
    "if",
    "minProperties",
    "format",
    "patternProperties",
    "propertyNames",
    "dependentRequired",
    "dependentSchemas",
    "dependencies",
    "contains",
    "minContains",
]


@given(st.dictionaries(st.sampled_from(KEYWORDS), json_values, max_size=5))
@sample({"required": [None]})
def test_keywords_of_any_type_raise_nothing(schema: Any) -> None:
    built(schema)
