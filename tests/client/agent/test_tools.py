"""Plain typed functions as tools."""

import asyncio
import threading
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from enum import Enum
from typing import Annotated, Any, Literal, Optional, TypedDict

import msgspec
import pytest
from jsonschema import Draft202012Validator

from tieline_client.agent.tools import ArgumentsError, Tool, ToolDefinitionError, definitions


class Color(Enum):
    RED = "red"
    BLUE = "blue"


class Place(TypedDict):
    city: str
    zip: int


@dataclass
class Size:
    width: int
    height: int = 1


@dataclass
class Tree:
    children: list["Tree"]


def everything(
    text: str,
    count: int,
    ratio: float,
    flag: bool,
    names: list[str],
    table: dict[str, int],
    mode: Literal["fast", "slow"],
    color: Color,
    place: Place,
    size: Size,
    maybe: int | None = None,
    old: Optional[str] = "x",  # noqa: UP045
    *,
    limit: Annotated[int, msgspec.Meta(ge=1)] = 5,
) -> str:
    """Takes one of each.

    A second paragraph
    over two lines.

    Args:
        text: Some text
            over two lines.
        count (int): How many.
        mode: One of two.

    Returns:
        text: Not an argument.
    """
    return repr(
        (text, count, ratio, flag, names, table, mode, color, place, size, maybe, old, limit)
    )


GOOD: dict[str, Any] = {
    "text": "t",
    "count": 2,
    "ratio": 1,
    "flag": True,
    "names": ["a"],
    "table": {"k": 1},
    "mode": "fast",
    "color": "blue",
    "place": {"city": "Bern", "zip": 3000},
    "size": {"width": 2},
}


def call(tool: Tool, arguments: object) -> str:
    return asyncio.run(tool.call(arguments if isinstance(arguments, str) else encode(arguments)))


def encode(value: object) -> str:
    return msgspec.json.encode(value).decode()


def test_the_docstring_describes_the_tool_and_its_arguments() -> None:
    tool = Tool.of(everything)
    assert tool.name == "everything"
    assert tool.description == "Takes one of each.\n\nA second paragraph over two lines."
    described = {
        name: schema["description"]
        for name, schema in tool.parameters["properties"].items()
        if "description" in schema
    }
    assert described == {
        "text": "Some text over two lines.",
        "count": "How many.",
        "mode": "One of two.",
    }


def test_the_schema_is_json_schema_without_references() -> None:
    parameters = Tool.of(everything).parameters
    Draft202012Validator.check_schema(parameters)
    assert "$ref" not in encode(parameters)
    properties = parameters["properties"]
    assert properties["count"] == {"type": "integer", "description": "How many."}
    assert properties["mode"]["enum"] == ["fast", "slow"]
    assert properties["color"]["enum"] == ["blue", "red"]
    assert properties["place"]["required"] == ["city", "zip"]
    assert properties["size"]["required"] == ["width"]
    assert parameters["required"] == list(GOOD)
    assert parameters["additionalProperties"] is False
    assert properties["limit"] == {"type": "integer", "minimum": 1, "default": 5}


def test_arguments_that_the_schema_admits_reach_the_function_with_their_types() -> None:
    tool = Tool.of(everything)
    Draft202012Validator(tool.parameters).validate(GOOD)
    expected = everything(
        "t",
        2,
        1.0,
        True,
        ["a"],
        {"k": 1},
        "fast",
        Color.BLUE,
        Place(city="Bern", zip=3000),
        Size(2),
    )
    assert call(tool, GOOD) == expected


@pytest.mark.parametrize(
    ("change", "where"),
    [
        ({"count": "2"}, "count"),
        ({"mode": "other"}, "mode"),
        ({"color": "green"}, "color"),
        ({"place": {"city": "Bern"}}, "place"),
        ({"limit": 0}, "limit"),
        ({"surprise": 1}, "surprise"),
    ],
)
def test_arguments_that_the_schema_refuses_are_refused_by_name(
    change: dict[str, Any], where: str
) -> None:
    tool = Tool.of(everything)
    arguments = {**GOOD, **change}
    assert not Draft202012Validator(tool.parameters).is_valid(arguments)
    with pytest.raises(ArgumentsError, match=where):
        call(tool, arguments)


@pytest.mark.parametrize("arguments", ["{", "[]", "null", '"x"', "[" * 100_000])
def test_arguments_that_are_no_object_are_refused(arguments: str) -> None:
    with pytest.raises(ArgumentsError, match="everything"):
        call(Tool.of(everything), arguments)


def test_a_tool_without_parameters_takes_empty_arguments() -> None:
    def ping() -> str:
        return "pong"

    tool = Tool.of(ping)
    assert tool.parameters == {
        "type": "object",
        "properties": {},
        "required": [],
        "additionalProperties": False,
    }
    assert call(tool, "") == "pong"
    assert call(tool, "{}") == "pong"


def test_pythons_own_default_applies_where_nothing_is_given() -> None:
    marker = object()

    def which(value: Any = marker) -> bool:
        return value is marker

    tool = Tool.of(which)
    assert call(tool, {}) == "true"
    assert call(tool, {"value": 1}) == "false"
    assert "default" not in tool.parameters["properties"]["value"]


def test_what_is_no_string_is_returned_as_json() -> None:
    def sizes() -> list[Size]:
        return [Size(1, 2)]

    def nothing() -> None:
        return

    assert call(Tool.of(sizes), {}) == '[{"width":1,"height":2}]'
    assert call(Tool.of(nothing), {}) == "null"


def test_a_plain_function_runs_in_a_thread_and_an_asynchronous_one_in_the_loop() -> None:
    def plain() -> bool:
        return threading.current_thread() is threading.main_thread()

    async def asynchronous() -> bool:
        return threading.current_thread() is threading.main_thread()

    def returning() -> Awaitable[bool]:
        return asynchronous()

    assert call(Tool.of(plain), {}) == "false"
    assert call(Tool.of(asynchronous), {}) == "true"
    assert call(Tool.of(returning), {}) == "true"


def no_annotation(value) -> str:  # type: ignore[no-untyped-def]
    return str(value)


def variadic(*values: int) -> str:
    return str(values)


def positional(value: int, /) -> str:
    return str(value)


def recursive(tree: Tree) -> str:
    return str(tree)


def opaque(value: Callable[[], None]) -> str:
    return str(value)


@pytest.mark.parametrize(
    ("function", "why"),
    [
        (no_annotation, "no annotation"),
        (variadic, "by name"),
        (positional, "by name"),
        (recursive, "contains itself"),
        (opaque, "opaque"),
        (lambda: "", "no name"),
    ],
)
def test_what_cannot_be_a_tool_is_said_when_it_is_made(
    function: Callable[..., str], why: str
) -> None:
    with pytest.raises(ToolDefinitionError, match=why):
        Tool.of(function)


def test_a_method_is_a_tool_without_its_self() -> None:
    class Box:
        def __init__(self) -> None:
            self.value = 3

        def read(self) -> int:
            """Reads the box."""
            return self.value

    tool = Tool.of(Box().read)
    assert tool.parameters["properties"] == {}
    assert call(tool, {}) == "3"


def test_definitions_are_the_same_bytes_every_time() -> None:
    """A connection compares the bytes of ``tools`` and does no work where they are equal."""
    first = definitions([Tool.of(everything)])
    second = definitions([Tool.of(everything)])
    assert bytes(first) == bytes(second)
    (entry,) = msgspec.json.decode(first)
    assert (entry["type"], entry["name"], entry["strict"]) == ("function", "everything", False)


def test_a_tool_is_marked_as_one_with_side_effects() -> None:
    def send(text: str) -> None:
        """Sends."""

    plain, marked = Tool.of(send), Tool.of(send, side_effect=True)
    assert (plain.side_effect, marked.side_effect) == (False, True)
    assert Tool.of(marked) is marked
    assert Tool.of(marked, side_effect=False).side_effect is False
    assert plain.definition == marked.definition
