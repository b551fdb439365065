"""Tool calls and structured outputs: the grammar that the runtime follows.

llama.cpp's own ``tool_choice: required`` lets a small model answer with prose. Here a call is
sampled under a schema of ours, ``{"name": one of the tools, "arguments": its schema}``, written
without white space, so that what is to come first is known to the byte. Where the model may
choose, its first letter does: a text never begins with a brace. What was written
is read by ``engines.sampled_text``.
"""

import json
from collections.abc import Iterable
from typing import Any, Final, Literal

import msgspec
from msgspec import Struct

from tieline_server.core.settings import Format, Tool, ToolChoice
from tieline_server.engines.llama.bounded_schema import SCALARS, bounded
from tieline_server.engines.llama.sampled_text import (
    CallReader,
    EitherReader,
    Heads,
    JsonReader,
    PlainReader,
    Reader,
)
from tieline_server.engines.llama.tool_text import CALLABLE, read_schema, wire_name

TEXT: Final = r"/[^{\s](.|\n)*/"
"""An answer that cannot be mistaken for a call."""

COMPACT: Final = {"whitespace_flexible": False}
"""LLGuidance's option for JSON without white space (``x-guidance``)."""

_encode: Final = msgspec.json.Encoder().encode


class Constraint(Struct, frozen=True, kw_only=True):
    """What an answer must look like: a call of one of some tools, JSON, text, or one of two."""

    grammar: str | None = None
    """In LLGuidance's form of Lark, or None for an answer without constraint."""
    heads: Heads = ()
    """Of the tools that may be called."""
    answer: Literal["text", "json"] | None = "text"
    """What may be written instead of a call."""

    def reader(self) -> Reader:
        """A reader for one answer."""
        if self.answer is None:
            return CallReader(self.heads)
        answer: Reader = PlainReader() if self.answer == "text" else JsonReader()
        return EitherReader(self.heads, answer) if self.heads else answer


FREE: Final = Constraint()


def constraint_of(
    tools: Iterable[Tool], choice: ToolChoice, form: Format, *, end: str
) -> Constraint:
    """The constraint that a create's settings put on its answer; ``end`` ends a message.

    A required tool goes before a text format. A choice that requires a tool which is not ours to
    call (a hosted one) constrains nothing.
    """
    offered = {call_head(tool): tool for tool in tools if tool.type in CALLABLE}
    admitted = {head: tool for head, tool in offered.items() if choice.admits(tool)}
    rules: dict[str, str] = {}
    if admitted:
        branches = [_call_schema(tool) for tool in admitted.values()]
        rules["call"] = _json_rule({"anyOf": branches})
    if not (admitted and choice.mode == "required"):
        if form.type != "text":
            schema = read_schema(form.schema) if form.schema else {"type": "object"}
            rules["json"] = _json_rule(bounded(schema))
        elif offered:
            rules["text"] = TEXT
    if not rules:
        return FREE
    start = " | ".join(f"{name} {end}" for name in rules)
    lines = [
        "%llguidance {}",
        f"start: {start}",
        *(f"{key}: {rule}" for key, rule in rules.items()),
    ]
    answer: Literal["text", "json"] | None = "json" if "json" in rules else "text"
    return Constraint(
        grammar="\n".join(lines) + "\n",
        heads=tuple(admitted.items()),
        answer=None if rules.keys() == {"call"} else answer,
    )


def _json_rule(schema: dict[str, Any]) -> str:
    return "%json " + json.dumps({**schema, "x-guidance": COMPACT})


def call_head(tool: Tool) -> str:
    """What a call of ``tool`` begins with: all before its arguments or input."""
    name = wire_name(tool.name or "", tool.namespace)
    return call_text(name, "", custom=tool.type == "custom")[:-1]


def call_text(name: str, value: str, *, namespace: str | None = None, custom: bool = False) -> str:
    """A call as the model writes it; ``value`` is JSON text.

    >>> call_text("look", '{"at":1}')
    '{"name":"look","arguments":{"at":1}}'
    """
    quoted = _encode(wire_name(name, namespace)).decode()
    return f'{{"name":{quoted},"{"input" if custom else "arguments"}":{value}}}'


def _call_schema(tool: Tool) -> dict[str, Any]:
    custom = tool.type == "custom"
    # The schema of a function without parameters admits only an empty object.
    schema = read_schema(tool.parameters) or {"type": "object", "additionalProperties": False}
    value = SCALARS["string"] if custom else bounded({"type": "object", **schema})
    member = "input" if custom else "arguments"
    name = wire_name(tool.name or "", tool.namespace)
    return {
        "type": "object",
        "properties": {"name": {"const": name}, member: value},
        "required": ["name", member],
        "additionalProperties": False,
    }
