"""The checker of schemas agrees with the reference implementation on what it checks."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from tieline_server.engines.scripted.conform import PATTERNS, Budget, Conform, Spent, resolve, same

scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 3),
    st.sampled_from([0.5, 1.0, -2.5]),
    st.text("ab", max_size=3),
)
values = st.recursive(
    scalars,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.sampled_from("abc"), inner, max_size=3)
    ),
    max_leaves=6,
)
KINDS = ["array", "boolean", "integer", "null", "number", "object", "string"]
small = st.integers(0, 3)
leaves = st.fixed_dictionaries(
    {},
    optional={
        "type": st.one_of(
            st.sampled_from(KINDS), st.lists(st.sampled_from(KINDS), min_size=1, unique=True)
        ),
        "const": scalars,
        "enum": st.lists(scalars, min_size=1, max_size=3),
        "minimum": small,
        "maximum": small,
        "exclusiveMinimum": small,
        "exclusiveMaximum": small,
        "multipleOf": st.sampled_from([1, 2, 0.5]),
        "minLength": small,
        "maxLength": small,
        "minItems": small,
        "maxItems": small,
        "uniqueItems": st.booleans(),
        "minProperties": small,
        "maxProperties": small,
        "required": st.lists(st.sampled_from("abc"), unique=True),
    },
)


def nested(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    several = st.lists(inner, min_size=1, max_size=3)
    more = st.fixed_dictionaries(
        {},
        optional={
            "allOf": several,
            "anyOf": several,
            "oneOf": several,
            "not": inner,
            "if": inner,
            "then": inner,
            "else": inner,
            "items": inner,
            "prefixItems": several,
            "contains": inner,
            "minContains": small,
            "maxContains": small,
            "properties": st.dictionaries(st.sampled_from("abc"), inner, max_size=2),
            "additionalProperties": inner,
            "patternProperties": st.dictionaries(st.sampled_from(["a", "^b$"]), inner, max_size=2),
            "propertyNames": inner,
            "dependentRequired": st.dictionaries(
                st.sampled_from("abc"), st.lists(st.sampled_from("abc"), unique=True), max_size=2
            ),
            "dependentSchemas": st.dictionaries(st.sampled_from("abc"), inner, max_size=2),
            "$ref": st.sampled_from(["#/$defs/one", "#/$defs/two"]),
        },
    )
    return st.builds(lambda one, two: {**one, **two}, leaves, more)


schemas = st.recursive(st.one_of(st.booleans(), leaves), nested, max_leaves=4)


@given(schemas, leaves, leaves, values)
def test_it_says_what_jsonschema_says(schema: Any, one: Any, two: Any, value: Any) -> None:
    root = {"allOf": [schema], "$defs": {"one": one, "two": two}}
    mine = Conform(root, Budget(100_000)).to(root, value)
    assert mine == Draft202012Validator(root).is_valid(value)


def test_true_is_not_one_but_one_is_one_point_zero() -> None:
    assert not same(True, 1)
    assert not same([False], [0])
    assert same({"a": [1]}, {"a": [1.0]})


@pytest.mark.parametrize(
    ("reference", "target"),
    [
        ("#", {"a/b": [{"~": 1}]}),
        ("#/a~1b/0", {"~": 1}),
        ("#/a~1b/0/~0", 1),
        ("#/a%2Fb/0", True),
        ("#/a%7E1b/0/%7E0", 1),
        ("#/missing", True),
        ("#/a~1b/7", True),
        ("https://example.com/schema", True),
    ],
)
def test_a_reference_leads_to_its_target_or_allows_anything(reference: str, target: Any) -> None:
    assert resolve({"a/b": [{"~": 1}]}, reference) == target


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        ({"$ref": "#"}, 1),
        ({"allOf": [{"$ref": "#"}, {"$ref": "#"}]}, 1),
        ({"uniqueItems": True}, list(range(10_000))),
    ],
)
def test_the_work_is_bounded(schema: Any, value: Any) -> None:
    with pytest.raises(Spent):
        Conform(schema, Budget(500)).to(schema, value)


def test_no_pattern_can_make_it_run_for_long() -> None:
    schema = {"pattern": "^(a+)+$", "patternProperties": {"^(a+)+$": {"type": "null"}}}
    check = Conform(schema, Budget(10))
    assert check.to(schema, "a" * 100 + "!")
    assert check.to(schema, {"a" * 100 + "!": 1})
    assert not check.to(schema, {"a" * 100: 1})


def test_a_pattern_that_re2_does_not_know_may_cover_any_name() -> None:
    schema = {"patternProperties": {"(?=a)": False}, "additionalProperties": False}
    assert Conform(schema, Budget(10)).to(schema, {"a": 1})


def test_names_are_matched_for_so_many_patterns_and_for_so_long() -> None:
    many = {"patternProperties": {f"^{at}$": False for at in range(PATTERNS + 1)}}
    check = Conform(many, Budget(10_000))
    assert not check.to(many, {str(PATTERNS - 1): 1})
    assert check.to(many, {str(PATTERNS): 1})
    with pytest.raises(Spent):
        Conform(many, Budget(PATTERNS)).to(many, {"a" * 1_000: 1})


@pytest.mark.parametrize(
    ("schema", "value", "holds"),
    [
        ({"items": [{"type": "null"}], "additionalItems": False}, [None], True),
        ({"items": [{"type": "null"}], "additionalItems": False}, [None, 1], False),
        ({"items": [{"type": "null"}]}, [1], False),
        ({"dependencies": {"a": ["b"]}}, {"a": 1}, False),
        ({"dependencies": {"a": ["b"]}}, {"b": 1}, True),
        ({"dependencies": {"a": {"required": ["b"]}}}, {"a": 1}, False),
        ({"dependencies": {"a": False}}, 1, True),
    ],
)
def test_keywords_of_older_drafts_hold_too(schema: Any, value: Any, holds: bool) -> None:
    assert Conform(schema, Budget(100)).to(schema, value) is holds
