"""Items and parts in the shapes that models make, built without the tables.

An item that a server sends is nearly always an assistant's message of text, or a function call,
with no member beside the known ones. Those two are read by a strict struct and built in one
call, a tenth of what the tables cost; whatever differs is left to them.
"""

from typing import Final, Literal

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from tieline.v1.items_pb2 import ContentList, ContentPart, FunctionCall, Item, Message, TextPart


class _Text(Struct, frozen=True, forbid_unknown_fields=True):
    type: Literal["output_text", "reasoning_text", "summary_text"]
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


def part_of(raw: bytes) -> ContentPart | None:
    """A content part as a message, or None where it takes the tables to say it."""
    try:
        return _part(_text.decode(raw))
    except _UNFIT:
        return None


def item_of(raw: bytes) -> Item | None:
    """An item as a message, or None where it takes the tables to say it."""
    try:
        view = _item.decode(raw)
    except _UNFIT:
        return None
    if isinstance(view, _Call):
        call = FunctionCall(call_id=view.call_id, name=view.name, arguments=view.arguments)
        _identify(call, view)
        return Item(function_call=call)
    message = Message(role=view.role, parts=ContentList(parts=map(_part, view.content)))
    _identify(message, view)
    return Item(message=message)


def _identify(message: Message | FunctionCall, view: _Message | _Call) -> None:
    if view.id is not UNSET:
        message.id = view.id
    if view.status is not UNSET:
        message.status = view.status


def _part(view: _Text) -> ContentPart:
    part = TextPart(type=view.type, text=view.text)
    if view.annotations is not UNSET:
        part.annotations_json = bytes(view.annotations).decode()
    if view.logprobs is not UNSET:
        part.logprobs_json = bytes(view.logprobs).decode()
    return ContentPart(text=part)
