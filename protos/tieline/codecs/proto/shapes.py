"""Items, parts and responses in their usual shapes, written and read without the tables.

An item that a server sends is nearly always an assistant's message of text, or a function call,
with no member beside the known ones; a response has mostly gone well. These are written field by
field, in the order of the schema. An item that a client sends is nearly always a message or a
function's output. Whatever differs is left to the tables, which cost two to ten times as much.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final, Literal, get_args

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from tieline.codecs.proto.frames import DOUBLE, NUMBER, VARINT, double, field, tag
from tieline.responses import Response, Usage
from tieline.v1 import responses_pb2
from tieline.v1.items_pb2 import ContentList, ContentPart, FunctionCall, Item, Message, TextPart
from tieline.v1.responses_pb2 import InputTokensDetails, OutputTokensDetails

_TextType = Literal["output_text", "reasoning_text", "summary_text"]


class _Text(Struct, frozen=True, forbid_unknown_fields=True):
    type: _TextType
    text: str
    annotations: Raw | UnsetType = UNSET
    logprobs: Raw | UnsetType = UNSET


class _Message(Struct, frozen=True, forbid_unknown_fields=True, tag="message"):
    role: str
    content: list[Raw]
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


def part_of(raw: bytes | Raw) -> bytes | None:
    """A content part as the bytes of its message, or None where it takes the tables to say it."""
    try:
        view = _text.decode(raw)
    except _UNFIT:
        return None
    said = [_TYPES[view.type]]
    if view.text:
        text = view.text.encode()
        said += (_TEXT, VARINT[len(text)], text)
    if view.annotations is not UNSET:
        text = bytes(view.annotations)
        said += (_ANNOTATIONS, VARINT[len(text)], text)
    if view.logprobs is not UNSET:
        text = bytes(view.logprobs)
        said += (_LOGPROBS, VARINT[len(text)], text)
    return field(_TEXT_PART, b"".join(said))


def item_of(raw: bytes | Raw, part_of: Callable[[Raw], bytes | None] = part_of) -> bytes | None:
    """An item as the bytes of its message, or None where it takes the tables to say it.

    ``part_of`` writes its parts.
    """
    try:
        view = _item.decode(raw)
    except _UNFIT:
        return None
    return _call(view) if isinstance(view, _Call) else _message(view, part_of)


def _message(view: _Message, part_of: Callable[[Raw], bytes | None]) -> bytes | None:
    parts = b""
    for raw in view.content:
        part = part_of(raw)
        if part is None:
            return None
        parts = b"".join((parts, _PART, VARINT[len(part)], part))
    said = [_ROLES.get(view.role) or _said(_ROLE, view.role), _PARTS, VARINT[len(parts)], parts]
    if view.id is not UNSET:
        text = view.id.encode()
        said += (_ID, VARINT[len(text)], text)
    if view.status is not UNSET:
        text = view.status.encode()
        said += (_STATUS, VARINT[len(text)], text)
    return field(_MESSAGE, b"".join(said))


def _call(view: _Call) -> bytes:
    call_id, name, arguments = view.call_id.encode(), view.name.encode(), view.arguments.encode()
    said = [_CALL_ID, VARINT[len(call_id)], call_id] if call_id else []
    if name:
        said += (_NAME, VARINT[len(name)], name)
    if arguments:
        said += (_ARGUMENTS, VARINT[len(arguments)], arguments)
    if view.id is not UNSET:
        text = view.id.encode()
        said += (_OWN_ID, VARINT[len(text)], text)
    if view.status is not UNSET:
        text = view.status.encode()
        said += (_OWN_STATUS, VARINT[len(text)], text)
    return field(_FUNCTION_CALL, b"".join(said))


def _said(text_tag: bytes, said: str) -> bytes:
    return field(text_tag, said.encode()) if said else b""


_MESSAGE: Final = tag(Item.MESSAGE_FIELD_NUMBER)
_ROLE: Final = tag(Message.ROLE_FIELD_NUMBER)
_ROLES: Final = {"assistant": field(_ROLE, b"assistant")}
_PARTS: Final = tag(Message.PARTS_FIELD_NUMBER)
_ID: Final = tag(Message.ID_FIELD_NUMBER)
_STATUS: Final = tag(Message.STATUS_FIELD_NUMBER)
_PART: Final = tag(ContentList.PARTS_FIELD_NUMBER)

_FUNCTION_CALL: Final = tag(Item.FUNCTION_CALL_FIELD_NUMBER)
_CALL_ID: Final = tag(FunctionCall.CALL_ID_FIELD_NUMBER)
_NAME: Final = tag(FunctionCall.NAME_FIELD_NUMBER)
_ARGUMENTS: Final = tag(FunctionCall.ARGUMENTS_FIELD_NUMBER)
_OWN_ID: Final = tag(FunctionCall.ID_FIELD_NUMBER)
_OWN_STATUS: Final = tag(FunctionCall.STATUS_FIELD_NUMBER)

_TEXT_PART: Final = tag(ContentPart.TEXT_FIELD_NUMBER)
_TYPES: Final = {
    name: field(tag(TextPart.TYPE_FIELD_NUMBER), name.encode()) for name in get_args(_TextType)
}
_TEXT: Final = tag(TextPart.TEXT_FIELD_NUMBER)
_ANNOTATIONS: Final = tag(TextPart.ANNOTATIONS_JSON_FIELD_NUMBER)
_LOGPROBS: Final = tag(TextPart.LOGPROBS_JSON_FIELD_NUMBER)


def members_of(item: Item) -> dict[str, Any] | None:
    """The JSON members of an item that came as a message, or None as in ``item_of``."""
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
    """The JSON members of a part of text that came as a message, or None as in ``part_of``.

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
            if type(part) is dict and part["type"] == "":
                part["type"] = default
    return item


def own_of(response: Response) -> bytes | None:
    """The fields of a response that are no echo of its create, without its output.

    None where it takes the tables to say them.
    """
    status = _RESPONSE_STATUSES.get(response.status)
    odd = response.error is not None or response.incomplete_details is not None
    if status is None or odd or not response.id or not response.created_at:
        return None
    text = response.id.encode()
    said = [_RESPONSE_ID, VARINT[len(text)], text, _CREATED_AT, double(response.created_at)]
    if response.completed_at is not None:
        said += (_COMPLETED_AT, double(response.completed_at))
    said.append(status)
    if response.previous_response_id is not None:
        text = response.previous_response_id.encode()
        said += (_PREVIOUS, VARINT[len(text)], text)
    if response.usage is not None:
        try:
            usage = _usage(response.usage)
        except ValueError:
            # A count that its field cannot hold.
            return None
        said += (_USAGE, VARINT[len(usage)], usage)
    return b"".join(said)


def _usage(usage: Usage) -> bytes:
    inputs, outputs = usage.input_tokens_details, usage.output_tokens_details
    cached, written = inputs.cached_tokens, inputs.cache_write_tokens
    thought, total = outputs.reasoning_tokens, usage.total_tokens
    taken = _CACHED + VARINT[cached] if cached else b""
    if written:
        taken += _WRITTEN + VARINT[written]
    thinking = _THOUGHT + VARINT[thought] if thought else b""
    said = (
        _INPUT + VARINT[usage.input_tokens] if usage.input_tokens else b"",
        _INPUTS,
        VARINT[len(taken)],
        taken,
        _OUTPUT + VARINT[usage.output_tokens] if usage.output_tokens else b"",
        _OUTPUTS,
        VARINT[len(thinking)],
        thinking,
        _TOTAL + VARINT[total] if total else b"",
    )
    return b"".join(said)


_RESPONSE_ID: Final = tag(responses_pb2.Response.ID_FIELD_NUMBER)
_CREATED_AT: Final = tag(responses_pb2.Response.CREATED_AT_FIELD_NUMBER, DOUBLE)
_COMPLETED_AT: Final = tag(responses_pb2.Response.COMPLETED_AT_FIELD_NUMBER, DOUBLE)
_RESPONSE_STATUSES: Final[dict[str | None, bytes]] = {
    name: field(tag(responses_pb2.Response.STATUS_FIELD_NUMBER), name.encode())
    for name in ("queued", "in_progress", "completed", "incomplete", "cancelled", "failed")
}
_PREVIOUS: Final = tag(responses_pb2.Response.PREVIOUS_RESPONSE_ID_FIELD_NUMBER)
_USAGE: Final = tag(responses_pb2.Response.USAGE_FIELD_NUMBER)
_INPUT: Final = tag(responses_pb2.Usage.INPUT_TOKENS_FIELD_NUMBER, NUMBER)
_INPUTS: Final = tag(responses_pb2.Usage.INPUT_TOKENS_DETAILS_FIELD_NUMBER)
_CACHED: Final = tag(InputTokensDetails.CACHED_TOKENS_FIELD_NUMBER, NUMBER)
_WRITTEN: Final = tag(InputTokensDetails.CACHE_WRITE_TOKENS_FIELD_NUMBER, NUMBER)
_OUTPUT: Final = tag(responses_pb2.Usage.OUTPUT_TOKENS_FIELD_NUMBER, NUMBER)
_OUTPUTS: Final = tag(responses_pb2.Usage.OUTPUT_TOKENS_DETAILS_FIELD_NUMBER)
_THOUGHT: Final = tag(OutputTokensDetails.REASONING_TOKENS_FIELD_NUMBER, NUMBER)
_TOTAL: Final = tag(responses_pb2.Usage.TOTAL_TOKENS_FIELD_NUMBER, NUMBER)
