"""Tools as the model reads them."""

import json
from typing import Any

import pytest

from tieline_server.core.create.tools import Tool
from tieline_server.engines.chat_format.tool_text import describe, read_schema, wire_name


def function(parameters: Any, **members: Any) -> Tool:
    return Tool(type="function", name="look", parameters=json.dumps(parameters).encode(), **members)


def test_a_function_is_a_signature_with_what_its_parameters_mean() -> None:
    tool = function(
        {
            "type": "object",
            "properties": {
                "path": {"type": "string", "description": "Relative to the root."},
                "lines": {"type": "integer"},
            },
            "required": ["path"],
        },
        description="Reads a file.",
    )
    assert describe([tool]) == (
        "- look(path: string, lines?: integer): Reads a file.\n  path: Relative to the root."
    )


@pytest.mark.parametrize(
    ("schema", "kind"),
    [
        ({"enum": ["a", 1]}, '"a"|1'),
        ({"const": "x"}, '"x"'),
        ({"type": "array", "items": {"type": "string"}}, "string[]"),
        ({"type": ["string", "null"]}, "string|null"),
        ({"anyOf": [{"type": "string"}, {"type": "integer"}]}, "string|integer"),
        ({"enum": list(range(20))}, "0|1|2|3|4|5|6|7|..."),
        ({}, "any"),
        (True, "any"),
        ({"type": 7}, "any"),
    ],
)
def test_a_parameter_says_its_type_in_short(schema: Any, kind: str) -> None:
    tool = function({"properties": {"x": schema}})
    assert describe([tool]) == f"- look(x?: {kind})"


def test_hosted_tools_are_passed_over_and_custom_ones_take_text() -> None:
    tools = [Tool(type="web_search"), Tool(type="custom", name="shell", namespace="os")]
    assert describe(tools) == "- os.shell(input: text)"


def test_a_name_in_a_namespace_is_told_apart() -> None:
    assert wire_name("read", None) == "read"
    assert wire_name("read", "files") == "files.read"


@pytest.mark.parametrize("schema", [None, b"[]", b"{", b'{"a":' * 5000])
def test_a_schema_that_cannot_be_read_is_empty(schema: bytes | None) -> None:
    assert read_schema(schema) == {}
