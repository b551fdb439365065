"""The walk of a client's schema: what is copied, closed, bounded, left out and refused."""

import json
import re
from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tieline_server.engines.chat_format.json_schema import (
    MOST_DEPTH,
    MOST_ITEMS,
    MOST_NAMES_BY_PATTERN,
    MOST_STEPS,
    MOST_TOLD,
    MOST_VALUES,
    Bounds,
    Walk,
    read,
)
from tieline_server.engines.chat_format.schema_parts import (
    EXACT,
    KNOWN,
    NAME,
    Limited,
    SchemaError,
)

BOUNDS = Bounds(string=256, items=8)


def walk(schema: Any, *, strict: bool = False, bounds: Bounds | None = None) -> Walk:
    """A walk whose runtime takes all but patterns with a look-ahead and formats named odd."""

    def fails(words: dict[str, Any]) -> bool:
        return "(?=" in json.dumps(words) or words.get("format") == "odd"

    def means(pattern: str, names: Iterable[str]) -> bool:
        try:
            return any(re.search(pattern, name) for name in names)
        except re.error:
            return True

    raw = json.dumps(schema).encode()
    return Walk(read(raw), strict=strict, fails=fails, means=means, bounds=bounds)


def copied(schema: Any, *, strict: bool = False, bounds: Bounds | None = None) -> dict[str, Any]:
    return walk(schema, strict=strict, bounds=bounds).copy()


def refusal(schema: Any, *, strict: bool = False) -> SchemaError:
    with pytest.raises(SchemaError) as caught:
        copied(schema, strict=strict)
    return caught.value


def left_out(schema: Any) -> list[tuple[str, str]]:
    """What a schema loses where it is not strict; where it is, it is refused for the first."""
    walked = walk(schema)
    walked.copy()
    assert walked.told == len(walked.left_out)
    assert refusal(schema, strict=True).at == walked.left_out[0][1]
    return walked.left_out


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "string", "minLength": 1, "maxLength": 2, "pattern": "^a", "format": "date"},
        {"type": "integer"},
        {"type": "number", "minimum": -1, "exclusiveMaximum": 0.25, "multipleOf": 0.05},
        {"type": ["string", "null"]},
        {"type": "array", "prefixItems": [{"const": 1}], "items": False, "minItems": 1},
        {"enum": ["a", 2, None, 0.5, [1], {"b": 3}]},
        {"anyOf": [{"type": "string"}, {"type": "null"}]},
        {"allOf": [{"enum": ["a", "b"]}, {"enum": ["b", "c"]}]},
        {"type": "object", "properties": {"a": False}, "additionalProperties": False},
    ],
)
def test_what_the_runtime_knows_reaches_it_word_by_word(schema: dict[str, Any]) -> None:
    assert copied(schema) == copied(schema, strict=True) == schema


def test_annotations_and_options_of_the_runtime_do_not() -> None:
    """A client's ``x-guidance`` would switch strictness off, or JSON itself."""
    schema = {
        "type": "null",
        "title": "t",
        "$comment": "c",
        "default": None,
        "x-guidance": {"lenient": True, "item_separator": ";"},
        "x-order": 3,
        "propertyNames": {"type": "string"},
    }
    assert copied(schema, strict=True) == {"type": "null"}


def test_whole_numbers_are_ints_and_old_drafts_are_written_anew() -> None:
    assert copied({"type": "string", "maxLength": 3.0}) == {"type": "string", "maxLength": 3}
    assert copied({"enum": [1.0, 1e3, 0.5]}) == {"enum": [1, 1000, 0.5]}
    old = {"type": "number", "minimum": 3, "exclusiveMinimum": True, "exclusiveMaximum": False}
    assert copied(old)["exclusiveMinimum"] == 3
    assert "exclusiveMaximum" not in copied(old)
    tuple_of_draft_7 = {"items": [{"const": 1}], "additionalItems": False}
    assert copied(tuple_of_draft_7) == {
        "type": "array",
        "prefixItems": [{"const": 1}],
        "items": False,
    }


class TestNumbers:
    def test_sc_01_an_integer_without_bounds_gets_none(self) -> None:
        assert copied({"type": "integer"}, bounds=BOUNDS) == {"type": "integer"}
        assert copied({"type": "number"}, bounds=BOUNDS) == {"type": "number"}

    @pytest.mark.parametrize(
        "value",
        [
            1234567890123456789,
            -(EXACT + 1),
            [EXACT + 1],
            {"a": {"b": EXACT + 1}},
            1e300,
        ],
    )
    def test_sc_02_a_value_that_is_no_exact_float_is_refused_or_told(self, value: Any) -> None:
        assert left_out({"const": value}) == [("const", "/const")]
        assert left_out({"enum": [value]}) == [("enum", "/enum")]
        assert copied({"enum": [1, value]}) == {"enum": [1]}

    def test_sc_02_decimals_are_compared_as_they_are_written(self) -> None:
        for text, exact in ((b"0.1", True), (b"0.10000000000000000555", False), (b"1e-7", True)):
            root = read(b'{"const":%b}' % text)
            made = Walk(root, strict=False, fails=lambda _: False, means=lambda *_: False)
            assert ("const" in made.copy()) is exact

    @pytest.mark.parametrize("word", ["minimum", "maximum", "exclusiveMinimum", "multipleOf"])
    def test_bounds_beyond_exact_floats_are_refused_or_told(self, word: str) -> None:
        for value in (2**60, -(2**60), 1e30, "3", None, [1]):
            assert left_out({"type": "integer", word: value}) == [(word, f"/{word}")]

    @pytest.mark.parametrize("value", [0, -3, 999_983, MOST_STEPS + 1, 1e-20])
    def test_what_multiple_of_costs_is_bounded(self, value: float) -> None:
        assert left_out({"type": "number", "multipleOf": value}) == [("multipleOf", "/multipleOf")]

    def test_several_multiples_are_counted_together(self) -> None:
        """Two that hold at once come to their common multiple."""
        schema = {"allOf": [{"multipleOf": 97}, {"multipleOf": 89}, {"multipleOf": 83}]}
        assert left_out(schema) == [("multipleOf", "/allOf/2/multipleOf")]
        cents = {"properties": {name: {"multipleOf": 0.01} for name in "abc"}}
        assert copied(cents, strict=True)


class TestReferences:
    def test_sc_04_a_reference_and_what_stands_beside_it_both_hold(self) -> None:
        schema = {
            "$ref": "#/$defs/N",
            "maxLength": 20,
            "$defs": {"N": {"type": "string", "maxLength": 2}},
        }
        made = copied(schema, strict=True)
        assert made["maxLength"] == 20
        assert made["$defs"] == {"d0": {"type": "string", "maxLength": 2}}

    @pytest.mark.parametrize(
        ("reference", "found"),
        [
            ("#/properties/filter/anyOf/0", {"type": "string"}),
            ("#/$defs/a~1b", {"const": 1}),
            ("#/$defs/c~0d", {"const": 2}),
            ("#/$defs/e%25f", {"const": 3}),
            ("#/$defs/g%22h", {"const": 4}),
            ("#here", {"const": 5}),
            ("#old", {"const": 6}),
            ("https://example.com/s#/$defs/a~1b", {"const": 1}),
        ],
    )
    def test_sc_05_every_form_of_pointer_is_resolved(
        self, reference: str, found: dict[str, Any]
    ) -> None:
        schema = {
            "$id": "https://example.com/s",
            "type": "object",
            "properties": {
                "filter": {"anyOf": [{"type": "string"}, {"type": "null"}]},
                "x": {"$ref": reference},
            },
            "$defs": {
                "a/b": {"const": 1},
                "c~d": {"const": 2},
                "e%f": {"const": 3},
                'g"h': {"const": 4},
                "i": {"$anchor": "here", "const": 5},
                "j": {"$id": "#old", "const": 6},
            },
        }
        made = copied(schema)
        assert made["properties"]["x"] == {"$ref": "#/$defs/d0"}
        assert made["$defs"] == {"d0": found}

    @pytest.mark.parametrize(
        "reference",
        ["#/$defs/Missing", "#nowhere", "#/$defs/list/2", "#/$defs/list/01", "#/$defs/text/0"],
    )
    @pytest.mark.parametrize("strict", [True, False])
    def test_sc_06_one_that_dangles_is_refused_where_it_stands(
        self, reference: str, strict: bool
    ) -> None:
        schema = {
            "properties": {"a/b": {"$ref": reference}},
            "$defs": {"list": [True, True], "text": "t"},
        }
        assert refusal(schema, strict=strict).at == "/properties/a~1b/$ref"

    @pytest.mark.parametrize("reference", ["https://example.com/other", "item.json#/a", 7])
    def test_one_to_another_document_is_refused_or_told(self, reference: Any) -> None:
        assert left_out({"properties": {"a": {"$ref": reference}}}) == [
            ("$ref", "/properties/a/$ref")
        ]

    @pytest.mark.parametrize(
        "schema",
        [
            {"$ref": "#"},
            {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}},
            {
                "$ref": "#/$defs/a",
                "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}},
            },
            {"allOf": [{"$ref": "#"}, {"type": "string"}]},
            {"anyOf": [{"$ref": "#"}, {"type": "string"}]},
            {"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]},
            {"type": "array", "items": {"$ref": "#"}, "minItems": 1},
            {"type": "array", "prefixItems": [{"$ref": "#"}], "minItems": 1},
        ],
    )
    def test_a_loop_that_admits_nothing_is_refused(self, schema: dict[str, Any]) -> None:
        for strict in (True, False):
            assert "loop of '$ref'" in refusal(schema, strict=strict).why

    def test_a_schema_of_a_tree_is_none(self) -> None:
        tree = {
            "type": "object",
            "properties": {"value": {"type": "string"}, "next": {"$ref": "#"}},
            "required": ["value"],
        }
        assert copied(tree, strict=True)["properties"]["next"] == {"$ref": "#/$defs/d0"}

    def test_a_member_that_could_never_end_is_never_begun(self) -> None:
        endless = {"type": "object", "properties": {"k": {"$ref": "#/$defs/z"}}, "required": ["k"]}
        schema = {"properties": {"a": {"$ref": "#/$defs/z"}}, "$defs": {"z": endless}}
        assert copied(schema)["properties"]["a"] == {"enum": []}


class TestObjects:
    def test_one_that_names_members_is_closed(self) -> None:
        schema = {"properties": {"a": {"type": "null"}}, "required": ["a", "b", "a"]}
        assert copied(schema, strict=True) == {
            "type": "object",
            "properties": {"a": {"type": "null"}, "b": True},
            "required": ["a", "b"],
            "additionalProperties": False,
        }
        assert copied({"type": "object", "properties": {}})["additionalProperties"] is False

    def test_one_that_shuts_out_what_it_requires_stays_so(self) -> None:
        """A name that is required alone would else be let in."""
        schema = {
            "properties": {"a": True},
            "required": ["c"],
            "additionalProperties": False,
            "anyOf": [{"required": ["b"]}],
        }
        assert copied(schema)["properties"] == {"a": True}

    @pytest.mark.parametrize("others", [True, {"type": "string"}])
    def test_unless_the_schema_opens_it(self, others: Any) -> None:
        schema = {"properties": {"a": True}, "additionalProperties": others}
        assert copied(schema)["additionalProperties"] == others
        patterns = {"properties": {"a": True}, "patternProperties": {"^b": True}}
        assert "additionalProperties" not in copied(patterns)
        few = {"properties": {"a": True}, "minProperties": 2}
        assert "additionalProperties" not in copied(few)

    def test_what_is_composed_is_closed_as_a_whole(self) -> None:
        """Each part alone would shut out what the others name."""
        base = {"type": "object", "properties": {"b": {"type": "string"}}}
        schema = {
            "allOf": [{"$ref": "#/$defs/B"}, {"properties": {"c": {"type": "null"}}}],
            "$defs": {"B": base},
        }
        made = copied(schema, strict=True)
        assert made["properties"] == {"b": True, "c": True}
        assert made["additionalProperties"] is False
        assert all("additionalProperties" not in part for part in made["allOf"])
        assert made["$defs"] == {"d0": base}
        either = {
            "properties": {"a": True},
            "anyOf": [{"required": ["a"]}, {"required": ["b"]}],
        }
        assert copied(either)["properties"] == {"a": True, "b": True}
        branches = {"anyOf": [{"properties": {"a": True}}, {"properties": {"b": True}}]}
        assert all(part["additionalProperties"] is False for part in copied(branches)["anyOf"])

    @pytest.mark.parametrize(
        "schema",
        [
            {"type": "object"},
            {"properties": {"a": True}, "additionalProperties": True},
            {"type": ["object", "null"]},
            {"type": "object", "patternProperties": {"^a": True}, "additionalProperties": False},
            {"allOf": [{"type": "object", "additionalProperties": {"type": "string"}}]},
        ],
    )
    def test_sc_14_names_that_could_come_twice_are_refused_where_strict(
        self, schema: dict[str, Any]
    ) -> None:
        walked = walk(schema)
        walked.copy()
        assert walked.open
        assert "twice" in refusal(schema, strict=True).why

    def test_sc_14_names_of_closed_ones_cannot(self) -> None:
        for schema in (
            {"properties": {"a": {"type": "string"}}},
            {"type": "object", "maxProperties": 1},
            {"type": "object", "additionalProperties": False},
        ):
            walked = walk(schema, strict=True)
            walked.copy()
            assert not walked.open

    def test_members_that_are_counted_are_distinct(self) -> None:
        schema = {"type": "object", "minProperties": 2}
        assert left_out(schema) == [("minProperties", "/minProperties")]

    def test_a_pattern_beside_a_member_that_it_means_is_refused_or_told(self) -> None:
        for schema in (
            {"properties": {"ab": True}, "patternProperties": {"^a": {"maxLength": 2}}},
            {"required": ["ab"], "patternProperties": {"b$": {"maxLength": 2}}},
            {"properties": {"ab": True}, "patternProperties": {"\\p{L}": {"maxLength": 2}}},
        ):
            [(word, at)] = left_out(schema)
            assert word == "patternProperties"
            assert at.startswith("/patternProperties/")

    def test_sc_10_a_member_that_is_false_stays_so(self) -> None:
        assert copied({"properties": {"a": False}})["properties"] == {"a": False}


class TestOneOf:
    """SC-07: what is narrower than the client's excludes more, so it is the client's that count."""

    def test_branches_that_exclude_each_other_are_a_choice(self) -> None:
        branches = [
            {"type": "object", "properties": {"k": {"const": each}}, "required": ["k"]}
            for each in ("a", "b")
        ]
        made = copied({"oneOf": branches}, strict=True)
        assert [each["properties"] for each in made["anyOf"]] == [
            each["properties"] for each in branches
        ]
        assert all(each["additionalProperties"] is False for each in made["anyOf"])
        both = {"anyOf": [{"type": "null"}], "oneOf": [{"type": "null"}, {"type": "string"}]}
        assert copied(both, strict=True) == {
            "anyOf": [{"type": "null"}],
            "allOf": [{"anyOf": [{"type": "null"}, {"type": "string"}]}],
        }

    @pytest.mark.parametrize(
        "branches",
        [
            [{"type": "integer"}, {"type": "number"}],
            # A number satisfies both; in what is copied the second one means a string.
            [{"type": "number"}, {"minLength": 2}],
            [{"type": "array"}, {"minLength": 2}],
            # So does an object with both members.
            [
                {"type": "object", "properties": {name: {"type": "string"}}, "required": [name]}
                for name in "ab"
            ],
        ],
    )
    def test_branches_that_overlap_are_refused_or_told(self, branches: Any) -> None:
        assert left_out({"oneOf": branches}) == [("oneOf", "/oneOf")]


class TestWhatIsNotFollowed:
    @pytest.mark.parametrize(
        "word",
        [
            "not", "if", "then", "contains", "uniqueItems", "propertyNames", "dependentRequired",
            "dependentSchemas", "dependencies", "unevaluatedProperties", "$dynamicRef",
            "maxLenght", "Type",
        ],
    )  # fmt: skip
    def test_a_word_that_the_runtime_lacks_is_refused_or_told(self, word: str) -> None:
        schema = {"properties": {"a": {"type": "string", word: ["a"]}}}
        assert left_out(schema) == [(word, f"/properties/a/{word}")]
        assert copied(schema)["properties"] == {"a": {"type": "string"}}

    @pytest.mark.parametrize("kind", ["STRING", "", [], ["string", "any"], 7, None])
    def test_sc_11_a_type_that_there_is_none_of_is_refused_or_told(self, kind: Any) -> None:
        if kind is None:
            schema: dict[str, Any] = {"type": {"a": 1}}
        else:
            schema = {"type": kind}
        assert left_out(schema) == [("type", "/type")]

    def test_sc_11_an_empty_enum_is_refused(self) -> None:
        for strict in (True, False):
            assert refusal({"properties": {"a": {"enum": []}}}, strict=strict).at == (
                "/properties/a/enum"
            )

    @pytest.mark.parametrize(
        ("word", "value"),
        [
            ("pattern", "(?=a)b"),
            ("pattern", 1),
            ("pattern", "a" * 1_001),
            ("format", "odd"),
            ("minLength", -1),
            ("maxItems", "3"),
            ("maxItems", MOST_ITEMS + 1),
            ("minItems", 10**9),
            ("maxLength", 2**31),
            ("maxProperties", 10**9),
            ("required", "a"),
            ("required", [1]),
            ("properties", ["a"]),
            ("anyOf", []),
            ("oneOf", {}),
            ("allOf", "a"),
            ("enum", "a"),
            ("prefixItems", {}),
        ],
    )
    def test_a_value_that_is_wrong_or_costs_too_much_is_refused_or_told(
        self, word: str, value: Any
    ) -> None:
        assert left_out({"type": "null", word: value}) == [(word, f"/{word}")]

    def test_items_of_all_lists_are_counted_together(self) -> None:
        lists = {name: {"type": "array", "maxItems": MOST_ITEMS // 2} for name in "abc"}
        assert left_out({"properties": lists}) == [("maxItems", "/properties/c/maxItems")]

    def test_values_are_kept_for_as_long_as_there_is_room(self) -> None:
        assert copied({"enum": [*range(10_000)]}) == {"enum": [*range(10_000)]}
        assert left_out({"const": "x" * MOST_VALUES}) == [("const", "/const")]
        assert copied({"enum": ["a", "x" * MOST_VALUES, "b"]}) == {"enum": ["a"]}

    def test_what_is_nested_or_large_without_end_is_refused_or_left_open(self) -> None:
        deep: dict[str, Any] = {"const": 1}
        for _ in range(MOST_DEPTH + 1):
            deep = {"type": "array", "items": deep}
        assert [word for word, _ in left_out(deep)] == ["schema"]
        value: list[Any] = []
        for _ in range(MOST_DEPTH):
            value = [value]
        assert left_out({"const": value}) == [("const", "/const")]
        assert left_out({"enum": [value[0], value]}) == [("enum", "/enum")]
        assert left_out({"items": {"const": value[0]}}) == [("const", "/items/const")]
        many = walk({"properties": {f"p{n}": {"not": {}} for n in range(MOST_TOLD * 2)}})
        many.copy()
        assert (many.told, len(many.left_out)) == (MOST_TOLD * 2, MOST_TOLD)

    @pytest.mark.parametrize(
        "schema",
        [
            {"properties": {f"p{n}": {} for n in range(100_000)}},
            {"anyOf": [True] * 100_000},
            {"type": "array", "prefixItems": [True] * 100_000},
            {"required": [f"p{n}" for n in range(100_000)]},
            {
                "$ref": "#/$defs/a0",
                "$defs": {
                    f"a{n}": {"properties": {"x": {"$ref": f"#/$defs/a{n + 1}"}, "y": True}}
                    for n in range(20)
                }
                | {"a20": {"anyOf": [True] * 100_000}},
            },
        ],
    )
    def test_what_is_too_large_is_refused(self, schema: dict[str, Any]) -> None:
        """Also where it is not strict: what is left of it would cost as much."""
        for strict in (True, False):
            assert "at most 2000" in refusal(schema, strict=strict).why

    def test_patterns_of_names_are_counted(self) -> None:
        patterns = {f"^p{n}_": True for n in range(MOST_NAMES_BY_PATTERN + 3)}
        walked = walk({"patternProperties": patterns})
        assert len(walked.copy()["patternProperties"]) == MOST_NAMES_BY_PATTERN
        assert walked.told == 3

    @pytest.mark.parametrize("schema", ["text", 3, None, ["a"]])
    def test_what_is_no_schema_is_refused_or_left_open(self, schema: Any) -> None:
        assert left_out({"properties": {"a": schema}}) == [("schema", "/properties/a")]

    def test_what_is_no_json_is_refused(self) -> None:
        for raw in (b"{", b"\xff", b"[" * 100_000):
            with pytest.raises(SchemaError):
                read(raw)


class TestBounds:
    def test_strings_and_lists_that_the_schema_leaves_open_get_them(self) -> None:
        for schema, word, most in (
            ({"type": "string"}, "maxLength", 256),
            ({"minLength": 300}, "maxLength", 300),
            ({"type": "string", "pattern": "^a+$"}, "maxLength", 256),
            ({"type": "array"}, "maxItems", 8),
            ({"type": "array", "minItems": 20}, "maxItems", 20),
        ):
            made = copied(schema, bounds=BOUNDS)
            assert isinstance(made, Limited)
            assert (made[word], made.ours) == (most, {word})

    @pytest.mark.parametrize(
        "schema",
        [
            {"type": "string", "maxLength": 4000},
            {"type": "array", "maxItems": 300},
            {"type": "string", "format": "date"},
            {"enum": ["x" * 300]},
            {"type": "boolean"},
        ],
    )
    def test_what_has_an_end_gets_none(self, schema: dict[str, Any]) -> None:
        made = copied(schema, bounds=BOUNDS)
        assert made == schema
        assert not isinstance(made, Limited)

    def test_an_object_whose_names_are_open_gets_a_few_scalars(self) -> None:
        made = copied({"type": "object"}, bounds=BOUNDS)
        assert list(made["patternProperties"]) == [NAME]
        assert (made["additionalProperties"], made["maxProperties"]) == (False, 8)
        typed = copied({"type": "object", "additionalProperties": {"const": 1}}, bounds=BOUNDS)
        assert typed["patternProperties"] == {NAME: {"const": 1}}

    def test_without_them_nothing_is_bounded(self) -> None:
        schema = {"properties": {"a": {"type": "string"}, "b": {"type": "array"}, "c": {}}}
        assert copied(schema)["properties"] == {**schema["properties"]}


leaves = st.none() | st.booleans() | st.integers(-5, 5) | st.floats(-9, 9) | st.text(max_size=3)
json_values = st.recursive(
    leaves,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=8,
)
words = st.sampled_from([*sorted(KNOWN), "$anchor", "$id", "not", "if"])
schemas = st.recursive(
    st.booleans() | st.dictionaries(words, json_values) | json_values,
    lambda inner: (
        st.dictionaries(words, inner)
        | st.fixed_dictionaries({"anyOf": st.lists(inner, max_size=3)})
        | st.fixed_dictionaries({"properties": st.dictionaries(st.text(max_size=3), inner)})
    ),
    max_leaves=8,
)


@given(schemas, st.booleans())
def test_whatever_comes_is_copied_or_refused_with_a_place(schema: Any, strict: bool) -> None:
    refused: SchemaError | None = None
    made: dict[str, Any] = {}
    try:
        made = copied(schema, strict=strict, bounds=BOUNDS)
    except SchemaError as error:
        refused = error
    assert refused is None or (refused.why and refused.at[:1] in ("", "/"))
    assert json.loads(json.dumps(made)) == made
