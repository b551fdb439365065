"""Items and their parts in their usual shapes, written and read without the tables.

An item that a server sends is nearly always an assistant's message of text, or a function call,
with no member beside the known ones. An item that a client sends is nearly always a message or a
function's output. Whatever differs is left to the tables, which cost two to ten times as much.
"""

from collections.abc import Mapping
from typing import Any, Final, Literal

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from tieline.v1.items_pb2 import ContentPart, FunctionCall, Item, Message, TextPart

_TextType = Literal["output_text", "reasoning_text", "summary_text"]


class _Text(Struct, frozen=True, forbid_unknown_fields=True):
    type: _TextType
    text: str
    annotations: Raw | UnsetType = UNSET
    logprobs: Raw | UnsetType = UNSET


class _Message(Struct, frozen=True, forbid_unknown_fields=True, tag="message"):
    role: str
    content: list[_Text]
    id: str | UnsetType = UNSET
    status: str | UnsetType = UNSET


class _Call(Struct, frozen=True, forbid_unknown_fields=True, tag="function_call"):
    call_id: str
    name: str
    arguments: str
    id: str | UnsetType = UNSET
    status: str | UnsetType = UNSET


_text: Final = msgspec.json.Decoder(_Text)
_item: Final = msgspec.json.Decoder(_Message | _Call)
_UNFIT: Final = (msgspec.MsgspecError, ValueError, RecursionError)


def fill_part(part: ContentPart, raw: bytes) -> bool:
    """JSON -> a part of text; False, and the part empty, where it takes the tables to say it."""
    try:
        view = _text.decode(raw)
    except _UNFIT:
        return False
    _write_text(part.text, view)
    return True


def _write_text(said: TextPart, view: _Text) -> None:
    said.type = view.type
    said.text = view.text
    if view.annotations is not UNSET:
        said.annotations_json = bytes(view.annotations).decode()
    if view.logprobs is not UNSET:
        said.logprobs_json = bytes(view.logprobs).decode()


def fill_item(item: Item, raw: bytes) -> bool:
    """JSON -> an item; False, and the item empty, where it takes the tables to say it."""
    try:
        view = _item.decode(raw)
    except _UNFIT:
        return False
    said: Message | FunctionCall
    if isinstance(view, _Message):
        said = item.message
        said.role = view.role
        content = said.parts
        content.SetInParent()
        for part in view.content:
            _write_text(content.parts.add().text, part)
    else:
        said = item.function_call
        said.call_id = view.call_id
        said.name = view.name
        said.arguments = view.arguments
    if view.id is not UNSET:
        said.id = view.id
    if view.status is not UNSET:
        said.status = view.status
    return True


def members_of(item: Item) -> dict[str, Any] | None:
    """The JSON members of an item that came as a message, or None where it takes the tables."""
    arm = item.WhichOneof("item")
    said: dict[str, Any]
    if arm == "message":
        said, content = {"type": arm, "role": ""}, "content"
    elif arm == "function_call_output":
        said, content = {"type": arm, "call_id": ""}, "output"
    else:
        return None
    for descriptor, value in getattr(item, arm).ListFields():
        name = descriptor.name
        if name == "parts":
            kind = text_type(said)
            # A slice is made in one call, an iterator ends by an exception.
            said[content] = parts = [part_members_of(part, kind) for part in value.parts[:]]
            if None in parts:
                return None
        elif name in _MEMBERS:
            said[name] = value
        elif name == "text":
            said[content] = value
        else:
            return None
    return said


_MEMBERS: Final = frozenset({"role", "call_id", "id", "status", "phase", "name"})


def part_members_of(part: ContentPart, kind: str = "") -> dict[str, Any] | None:
    """The JSON members of a part of text that came as a message, or None as in ``members_of``.

    ``kind`` is the type of one that does not say its own.
    """
    if part.WhichOneof("part") != "text":
        return None
    said = {"type": kind, "text": ""}
    for descriptor, value in part.text.ListFields():
        name = descriptor.name
        if name not in said:
            return None
        said[name] = value
    return said


def text_type(item: Mapping[str, Any]) -> str:
    """The type of a part of text in an item's content or output: its role says it.

    >>> text_type({"type": "message", "role": "assistant"})
    'output_text'
    """
    return "output_text" if item.get("role") == "assistant" else "input_text"


def type_parts(arm: str, item: dict[str, Any]) -> dict[str, Any]:
    """The members of an item, its parts of text with the type that one says by where it stands.

    JSON has no such part: one without a type travels in ``opaque``.
    """
    kind = "reasoning_text" if arm == "reasoning" else text_type(item)
    for name, default in (("content", kind), ("output", kind), ("summary", "summary_text")):
        parts = item.get(name)
        for part in parts if type(parts) is list else ():
            if type(part) is dict and part.get("type") == "":
                part["type"] = default
    return item
