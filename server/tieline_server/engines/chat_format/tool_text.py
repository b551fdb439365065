"""Tools as the model reads them: one line each, like the head of a function.

A JSON schema costs a small model hundreds of tokens; a signature says the same in twenty.
"""

from collections.abc import Iterable, Iterator
from typing import Any, Final

import msgspec

from tieline_server.core.create.tools import Tool

CALLABLE: Final = ("function", "custom", "tool_search")
"""Types of tools that the model can call; hosted ones are passed over."""

CHOICES: Final = 8
"""Values of an enum that a signature shows."""


def wire_name(name: str, namespace: str | None) -> str:
    """The one name by which the model knows a tool."""
    return name if namespace is None else f"{namespace}.{name}"


def describe(tools: Iterable[Tool]) -> str:
    """All of ``tools`` that can be called, a paragraph each.

    >>> describe([Tool(type="custom", name="shell", description="Runs a command.")])
    '- shell(input: text): Runs a command.'
    """
    return "\n".join(line for tool in tools if tool.type in CALLABLE for line in _lines(tool))


def as_function(tool: Tool) -> dict[str, Any]:
    """A tool as chat templates take it; a custom one is a function of one text."""
    parameters = read_schema(tool.parameters)
    if tool.type == "custom":
        parameters = {
            "type": "object",
            "properties": {"input": {"type": "string"}},
            "required": ["input"],
        }
    return {
        "type": "function",
        "function": {
            "name": wire_name(tool.name or "", tool.namespace),
            "description": tool.description or "",
            "parameters": parameters or {"type": "object", "properties": {}},
        },
    }


def _lines(tool: Tool) -> Iterator[str]:
    name = wire_name(tool.name or "", tool.namespace)
    about = f": {tool.description.strip()}" if tool.description else ""
    if tool.type == "custom":
        yield f"- {name}(input: text){about}"
        return
    parameters = read_schema(tool.parameters)
    properties = _members(parameters, "properties")
    required = parameters.get("required")
    needed = required if isinstance(required, list) else []
    heads = (
        f"{key}{'' if key in needed else '?'}: {_kind(value)}" for key, value in properties.items()
    )
    yield f"- {name}({', '.join(heads)}){about}"
    for key, value in properties.items():
        text = value.get("description") if isinstance(value, dict) else None
        if isinstance(text, str) and text.strip():
            yield f"  {key}: {text.strip()}"


def read_schema(schema: bytes | None) -> dict[str, Any]:
    """A schema as a dictionary; empty where there is none, or none that can be read."""
    if schema is None:
        return {}
    try:
        return msgspec.json.decode(schema, type=dict[str, Any])
    except (msgspec.MsgspecError, RecursionError):
        return {}


def _members(schema: dict[str, Any], name: str) -> dict[str, Any]:
    value = schema.get(name)
    return value if isinstance(value, dict) else {}


def _kind(schema: Any) -> str:
    """The type of a parameter, short: ``string``, ``integer[]``, ``"a"|"b"``."""
    if not isinstance(schema, dict):
        return "any"
    if "const" in schema:
        return msgspec.json.encode(schema["const"]).decode()
    choices = schema.get("enum")
    if isinstance(choices, list) and choices:
        shown = [msgspec.json.encode(each).decode() for each in choices[:CHOICES]]
        return "|".join(shown if len(choices) <= CHOICES else [*shown, "..."])
    for name in ("anyOf", "oneOf"):
        branches = schema.get(name)
        if isinstance(branches, list) and branches:
            return "|".join(dict.fromkeys(_kind(each) for each in branches))
    kind = schema.get("type")
    if kind == "array":
        return f"{_kind(schema.get('items'))}[]"
    if isinstance(kind, list):
        return "|".join(str(each) for each in kind)
    return kind if isinstance(kind, str) else "any"
