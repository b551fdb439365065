"""Tools as chat completions know them: functions, each with a name of its own.

Those that the client runs are given; hosted ones are passed over.

A tool of a namespace carries that in its name. A custom tool becomes a function with the one
text ``input``, and a call of it becomes a custom call again.
"""

from collections.abc import Iterable
from typing import Any, Final

import msgspec
from msgspec import Raw

from tieline_server.core.create.tools import Tool

SEPARATOR: Final = "__"
"""Between a namespace and a name: what chat completions allow in names has no dot."""

NO_PARAMETERS: Final = Raw(b'{"type":"object","properties":{}}')
FREE_INPUT: Final = Raw(
    b'{"type":"object","properties":{"input":{"type":"string"}},'
    b'"required":["input"],"additionalProperties":false}'
)


def wire_name(name: str, namespace: str | None) -> str:
    """The name of a tool upstream.

    >>> wire_name("read", "files")
    'files__read'
    """
    return name if namespace is None else f"{namespace}{SEPARATOR}{name}"


def by_name(tools: Iterable[Tool]) -> dict[str, Tool]:
    """The tools that can be called, by their names upstream; of two the later one counts."""
    return {wire_name(tool.name, tool.namespace): tool for tool in tools if tool.name is not None}


def found(tools: Iterable[Tool]) -> str:
    """What a search has found, as a model reads it that is offered these tools from then on."""
    named = by_name(tools)
    entries = [
        {"name": name, "description": tool.description or ""} for name, tool in named.items()
    ]
    return msgspec.json.encode(entries).decode() if entries else ""


def declared(name: str, tool: Tool) -> dict[str, Any]:
    """A tool as an entry of ``tools``."""
    function: dict[str, Any] = {"name": name}
    if tool.description:
        function["description"] = tool.description
    if tool.type == "custom":
        function["parameters"] = FREE_INPUT
    else:
        function["parameters"] = Raw(tool.parameters) if tool.parameters else NO_PARAMETERS
        if tool.strict:
            function["strict"] = True
    return {"type": "function", "function": function}
