"""JSON Schema itself: places, numbers, and schemas without an end."""

from decimal import Decimal
from typing import Any

import pytest

from tieline_server.engines.chat_format.schema_parts import (
    EXACT,
    Excluding,
    SchemaError,
    anchors,
    as_number,
    end_loops,
    escaped,
    is_exact,
    parts,
    plain,
    target,
)

DOCUMENT = {"a": [{"b/c": 1}, {"d~e": 2}], "": 3}


@pytest.mark.parametrize(
    ("pointer", "found"),
    [
        ("", DOCUMENT),
        ("/a/0", {"b/c": 1}),
        ("/a/0/b~1c", 1),
        ("/a/1/d~0e", 2),
        ("/", 3),
    ],
)
def test_pointers_are_those_of_rfc_6901(pointer: str, found: Any) -> None:
    assert target(DOCUMENT, pointer) == (pointer, found)


@pytest.mark.parametrize("pointer", ["/b", "/a/2", "/a/-", "/a/00", "/a/x", "//a", "/a/0/b~1c/d"])
def test_one_that_points_at_nothing_is_told(pointer: str) -> None:
    with pytest.raises(LookupError):
        target(DOCUMENT, pointer)


def test_a_step_survives_its_pointer() -> None:
    for step in ("a/b", "a~b", "~1", "~0", "/"):
        assert target({step: 1}, f"/{escaped(step)}") == (f"/{escaped(step)}", 1)


def test_anchors_are_found_where_schemas_are() -> None:
    schema = {
        "$anchor": "top",
        "properties": {"$anchor": {"$anchor": "below"}},
        "enum": [{"$anchor": "value"}],
        "items": [{"$id": "#old"}, {"$id": "https://example.com/x"}],
    }
    assert dict(anchors(schema)) == {
        "top": "",
        "below": "/properties/$anchor",
        "old": "/items/0",
    }


def test_numbers_are_what_they_were() -> None:
    assert [as_number(Decimal(text)) for text in ("3.0", "1e3", "0.5")] == [3, 1000, 0.5]
    assert as_number(True) is None
    assert as_number("3") is None
    assert plain({"a": [Decimal("2.0"), Decimal("0.1")]}) == {"a": [2, 0.1]}
    assert is_exact([EXACT, -EXACT, Decimal("0.1"), "x", None, True, {"a": 1}])
    for value in (EXACT + 1, Decimal("0.1000000000000000001"), [{"a": Decimal("1e16")}]):
        assert not is_exact(value)


def test_a_loop_without_an_end_is_told_or_shut() -> None:
    loop: dict[str, Any] = {"$ref": "#/$defs/d0"}
    with pytest.raises(SchemaError) as caught:
        end_loops(loop, {"d0": {"anyOf": [dict(loop), {"type": "null"}]}}, {"d0": "/$defs/N"})
    assert caught.value.at == "/$defs/N"
    endless: dict[str, Any] = {"type": "object", "properties": {"a": dict(loop)}, "required": ["a"]}
    with pytest.raises(SchemaError):
        end_loops(dict(loop), {"d0": endless}, {"d0": ""})
    made: dict[str, Any] = {"anyOf": [dict(loop), {"type": "null"}]}
    end_loops(made, {"d0": endless}, {"d0": ""})
    assert made == {"anyOf": [{"enum": []}, {"type": "null"}]}


def test_the_parts_about_one_value_are_told_from_the_others() -> None:
    schema = {"allOf": [{"const": 1}], "properties": {"a": {"const": 2}}, "items": {"const": 3}}
    assert [part.get("const") for part in parts(schema, in_place=True)] == [None, 1]
    assert [part.get("const") for part in parts(schema)] == [None, 1, 3, 2]


KIND = {"type": "object", "properties": {"k": {"const": "a"}}, "required": ["k"]}
OTHER = {"type": "object", "properties": {"k": {"enum": ["b", "c"]}}}
NAMED = {"#a": KIND, "#b": OTHER, "#loop": {"$ref": "#loop"}}


@pytest.mark.parametrize(
    ("schemas", "apart"),
    [
        ([{"type": "string"}, {"type": ["integer", "null"]}], True),
        ([{"type": "integer"}, {"type": "number"}], False),
        ([{"const": 1}, {"const": Decimal("1.0")}], False),
        ([{"const": 1}, {"const": True}], True),
        ([{"enum": ["a", "b"]}, {"enum": ["b", "c"]}], False),
        ([{"const": "a"}, {"type": "string"}], False),
        ([{"const": "a", "type": "string"}, {"type": "null"}], True),
        ([KIND, OTHER], True),
        ([OTHER, OTHER], False),
        ([{"$ref": "#a"}, {"$ref": "#b"}], True),
        ([{"$ref": "#a"}, {"$ref": "#loop"}], False),
        ([{"allOf": [KIND, {"title": "t"}]}, OTHER], True),
        ([{"anyOf": [{"type": "null"}, KIND]}, OTHER], True),
        ([{"anyOf": [{"type": "null"}, OTHER]}, OTHER], False),
        ([False, {}], True),
        ([True, {"type": "null"}], False),
        ([{"minLength": 2}, {"type": "number"}], False),
        ([{"type": "null"}, {"type": "string"}, {"type": "null"}], False),
        ([{"const": each} for each in range(200)], True),
        ([{"const": each} for each in range(2_000)], False),
    ],
)
def test_schemas_exclude_each_other_where_that_is_plain(schemas: list[Any], apart: bool) -> None:
    """The last ones are too many to be compared."""
    assert Excluding(NAMED.__getitem__).all(schemas) is apart
