"""The tables of the proto codec, read off the schema.

A field's name, type and presence say nearly all of how it mirrors a JSON member. What they
cannot say stands here: which JSON types share an arm, which unset fields are null rather than
absent, and which of our structs a message stands for. A new event needs nothing here.
"""

import functools
from collections.abc import Callable, Collection, Mapping
from typing import Any, Final, NamedTuple

import msgspec
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from msgspec import Raw, Struct

from tieline import events, requests, responses
from tieline.codecs.json import members, text_of
from tieline.codecs.proto.fields import (
    FLAG,
    JSON_TEXT,
    JSON_TEXTS,
    REAL,
    TEXT,
    TEXTS,
    UNKNOWN,
    AsRaw,
    Choice,
    Kind,
    Mapped,
    Mode,
    Nested,
    NestedList,
    Slot,
    Spec,
    Whole,
    Word,
    array,
    checked,
    dumps,
)
from tieline.codecs.proto.shapes import (
    fill_item,
    fill_part,
    members_of,
    part_members_of,
    type_parts,
)
from tieline.codecs.proto.times import Instant, Milliseconds, Seconds
from tieline.errors import ApiError
from tieline.requests import raw_members
from tieline.v1 import events_pb2, items_pb2, requests_pb2, responses_pb2, service_pb2

_PARTS: Final = {
    "input_text": "text",
    "output_text": "text",
    "reasoning_text": "text",
    "summary_text": "text",
    "text": "text",
    "refusal": "refusal",
}
"""Type of a content part -> its arm; where none is listed, an arm is named as its type."""


def _oneof(field: FieldDescriptor) -> str | None:
    """The oneof of a field; an optional field has one of its own, made by the compiler: None."""
    oneof = field.containing_oneof
    return None if oneof is None or oneof.name.startswith("_") else oneof.name


_NULLABLE: Final[dict[str, frozenset[str]]] = {
    "Response": frozenset(
        field.name
        for field in responses_pb2.Response.DESCRIPTOR.fields
        if field.containing_oneof is not None and _oneof(field) is None
    ),
    "IncompleteDetails": frozenset({"reason"}),
    "Error": frozenset({"code", "param"}),
}
"""Message -> its members that JSON writes as null where they are unset (wire.md 6.1)."""

_NULLABLE_ECHOES: Final = {"ReasoningSettings": frozenset({"effort", "summary"})}
"""The same for messages that a response repeats, in which a create leaves out what it has not."""

_CONSTANTS: Final[dict[str, dict[str, bytes]]] = {"Response": {"object": b'"response"'}}
"""Message -> members that it implies."""

_STRUCTS: Final[dict[str, type[Struct]]] = {
    "Error": events.ErrorDetail,
    **{
        kind.__name__: kind
        for kind in (
            responses.Response,
            responses.ResponseError,
            responses.IncompleteDetails,
            responses.Usage,
            responses.InputTokensDetails,
            responses.OutputTokensDetails,
            events.RequestWarning,
            events.SteerRef,
        )
    },
}
"""Message -> our struct of it."""

_NOT_JSON: Final = frozenset({UNKNOWN, "ending"})
_RENAMED: Final = {"choice": "tool_choice", "timeout": "timeout_ms", "remaining": "seconds"}
"""Fields and oneofs whose member of JSON has another name."""


def _odd(*given: Any) -> None:
    """A message of no usual shape."""


_USUAL: Final[dict[str, tuple[Callable[..., Any], Callable[..., Any]]]] = {
    "Item": (members_of, fill_item),
    "ContentPart": (part_members_of, fill_part),
}
"""Message -> what reads and what writes its usual shapes without the tables, where it can."""


class Variant(Kind):
    """An item, a content part or a tool: a oneof whose arm is the ``type`` of the JSON."""

    def __init__(self, descriptor: Descriptor, default: str | None = None) -> None:
        self._default = default
        self._name = descriptor.name
        self.usual, self._fill_usual = _USUAL.get(descriptor.name, (_odd, _odd))
        (self._oneof,) = [oneof.name for oneof in descriptor.oneofs]
        arms = descriptor.fields_by_name
        types = _PARTS if descriptor.name == "ContentPart" else {n: n for n in arms}
        self._arms = {name: types[name] for name in types if types[name] != "opaque"}
        self._specs = {
            arm: spec_of(message_of(field), type_name=arm)
            for arm, field in arms.items()
            if arm != "opaque"
        }

    def fill(self, message: Any, raw: bytes) -> None:
        """JSON -> message; what has no arm, and what is no object, goes whole to ``opaque``."""
        if not self._fill_usual(message, raw):
            self.fill_any(message, raw)

    def fill_any(self, message: Any, raw: bytes) -> None:
        """``fill`` by the tables alone, which know every shape."""
        given = members(raw)
        name = self._type(given)
        arm = self._arms.get(name) if given is not None else None
        if given is None or arm is None:
            message.opaque.type = name
            message.opaque.json = raw.decode()
            if self._name == "Item" and given is not None:
                message.opaque.id = text_of(given.get("id"))
            return
        inner = getattr(message, arm)
        inner.SetInParent()
        self._specs[arm].fill(inner, given)

    def _type(self, given: Mapping[str, Raw] | None) -> str:
        if given is None:
            return ""
        if "type" not in given:
            return self._default or ""
        return text_of(given["type"])

    def load(self, field: Any, param: str) -> Any:
        """Message -> its JSON; raises 400 ``invalid_type`` when no arm is set."""
        arm = field.WhichOneof(self._oneof)
        if arm is None:
            text = f"Invalid type for '{param}': the {self._oneof} is unset or of an unknown kind."
            raise ApiError.of("invalid_type", text, param=param)
        inner = getattr(field, arm)
        if arm != "opaque":
            said = self._specs[arm].members(inner, param)
            return type_parts(arm, said) if self._name == "Item" else said
        return checked(inner.json, f"{param}.opaque.json", param=param, outer=2)

    def store(self, message: Any, slot: str, raw: bytes) -> bool:
        if raw[:1] != b"{":
            return False
        self.fill(getattr(message, slot), raw)
        return True

    def write(self, message: Any, slot: str, value: Any) -> bool:
        return self.store(message, slot, bytes(value))

    def read(self, field: Any, param: str) -> Any:
        return Raw(dumps(self.load(field, param)))


class Variants(Kind):
    """A repeated :class:`Variant`; with ``inner``, inside a message of its own."""

    zero: Any = ()

    def __init__(self, one: Variant, inner: str | None = None) -> None:
        self._one = one
        self._inner = inner

    def store(self, message: Any, slot: str, raw: bytes) -> bool:
        elements = array(raw)
        return elements is not None and self.write(message, slot, elements)

    def write(self, message: Any, slot: str, value: Any) -> bool:
        field = getattr(message, slot)
        if self._inner is not None:
            field.SetInParent()
            field = getattr(field, self._inner)
        for element in value:
            self._one.fill(field.add(), bytes(element))
        return True

    def load(self, field: Any, param: str) -> Any:
        elements = field if self._inner is None else getattr(field, self._inner)
        one = self._one
        return [
            one.usual(element) or one.load(element, f"{param}[{index}]")
            for index, element in enumerate(elements[:])
        ]

    def read(self, field: Any, param: str) -> Any:
        return [Raw(dumps(element)) for element in self.load(field, param)]


_SCALARS: Final[dict[int, Kind]] = {
    FieldDescriptor.TYPE_BOOL: FLAG,
    FieldDescriptor.TYPE_DOUBLE: REAL,
    FieldDescriptor.TYPE_INT32: Whole(31),
    FieldDescriptor.TYPE_UINT64: Whole(64),
}
_INSTANT: Final = "google.protobuf.Timestamp"
_DURATION: Final = "google.protobuf.Duration"


def _kind(field: FieldDescriptor) -> Kind:
    """How a field mirrors JSON, by its type."""
    if field.type == FieldDescriptor.TYPE_STRING:
        if field.name.endswith("_json"):
            return JSON_TEXTS if field.is_repeated else JSON_TEXT
        return TEXTS if field.is_repeated else TEXT
    if field.enum_type is not None:
        return Choice(field.enum_type)
    if field.type != FieldDescriptor.TYPE_MESSAGE:
        return _SCALARS[field.type]
    inner = message_of(field)
    if inner.full_name == _INSTANT:
        return Instant()
    if inner.full_name == _DURATION:
        return Milliseconds() if _name(field).endswith("_ms") else Seconds()
    if inner.GetOptions().map_entry:
        counted = inner.fields_by_name["value"].type == FieldDescriptor.TYPE_UINT64
        return Mapped(int if counted else str)
    echoed = field.containing_type is not None and field.containing_type.name == "Response"
    return _message_kind(inner, repeated=field.is_repeated, echoed=echoed)


def message_of(field: FieldDescriptor) -> Descriptor:
    """The descriptor of a message field's type."""
    message = field.message_type
    assert message is not None
    return message


def _message_kind(inner: Descriptor, *, repeated: bool, echoed: bool) -> Kind:
    if inner.name in _LISTS:
        of = message_of(inner.fields_by_name[_LISTS[inner.name]])
        return Variants(_variant(of), _LISTS[inner.name])
    if inner.name in _VARIANTS:
        return Variants(_variant(inner)) if repeated else _variant(inner)
    spec = spec_of(inner, nullable=_NULLABLE_ECHOES.get(inner.name, ()) if echoed else ())
    return NestedList(spec) if repeated else Nested(spec)


_LISTS: Final = {"ItemList": "items", "ContentList": "parts"}
_VARIANTS: Final = {"Item": "message", "ContentPart": None, "Tool": None, "TextFormat": None}
"""Messages that are a oneof by type -> the type of JSON that has none."""


@functools.cache
def _variant(descriptor: Descriptor) -> Variant:
    return Variant(descriptor, _VARIANTS[descriptor.name])


def _name(field: FieldDescriptor) -> str:
    oneof = _oneof(field)
    name = field.name.removesuffix("_json") if oneof is None else oneof
    return _RENAMED.get(name, name)


_RARE: Final = frozenset({"output_omitted", "warnings"})
"""Fields without presence that JSON has only where they are set."""


def _mode(field: FieldDescriptor) -> Mode:
    message = field.containing_type
    assert message is not None
    if message.file.name == requests_pb2.DESCRIPTOR.name or message.name == "ConverseRequest":
        return Mode.ASKED
    if field.name in _NULLABLE.get(message.name, ()):
        return Mode.NULLABLE
    return Mode.OPTIONAL if field.has_presence or field.name in _RARE else Mode.ALWAYS


def _has_json(field: FieldDescriptor) -> bool:
    """Whether a field of JSON text stands beside it."""
    message = field.containing_type
    return message is not None and f"{field.name}_json" in message.fields_by_name


def _slot(field: FieldDescriptor, raws: frozenset[str], nullable: Collection[str]) -> Slot:
    name, kind = _name(field), _kind(field)
    mode = Mode.NULLABLE if field.name in nullable else _mode(field)
    if name in raws and not isinstance(kind, Variant | type(JSON_TEXT)):
        kind = Word(kind) if mode is Mode.ASKED and _has_json(field) else AsRaw(kind)
    return Slot(name, kind, mode, not field.has_presence)


def spec_of(
    descriptor: Descriptor,
    *,
    type_name: str | None = None,
    struct: type[Struct] | None = None,
    nullable: Collection[str] = (),
) -> Spec:
    """The table of one message; ``type_name`` is the ``type`` that its arm implies.

    ``nullable`` are fields that JSON writes as null where they are unset, in this place alone.
    """
    struct = struct or _STRUCTS.get(descriptor.name)
    constants = dict(_CONSTANTS.get(descriptor.name, {}))
    if type_name is not None and "type" not in descriptor.fields_by_name:
        constants = {"type": msgspec.json.encode(type_name), **constants}
    raws = frozenset[str]() if struct is None else raw_members(struct)
    fields = [field for field in descriptor.fields if field.name not in _NOT_JSON]
    slots = {field.name: _slot(field, raws, nullable) for field in fields}
    return Spec(descriptor, slots, constants=constants, struct=struct)


class Arm(NamedTuple):
    """One arm of a oneof of messages: the field, its class in our vocabulary, its table."""

    name: str
    number: int
    type: str
    kind: Any
    spec: Spec


def _arms(holder: Any, oneof: str, kinds: Mapping[str, Any]) -> dict[str, Arm]:
    fields = holder.DESCRIPTOR.oneofs_by_name[oneof].fields
    return {field.name: _arm(holder, field, kinds) for field in fields if field.name != "opaque"}


def _arm(holder: Any, field: FieldDescriptor, kinds: Mapping[str, Any]) -> Arm:
    message = message_of(field)
    kind = kinds[message.name]
    tag = str(kind.__struct_config__.tag)
    spec = spec_of(message, type_name=tag, struct=kind)
    return Arm(field.name, field.number, tag, kind, spec)


ITEM: Final = _variant(items_pb2.Item.DESCRIPTOR)
PART: Final = _variant(items_pb2.ContentPart.DESCRIPTOR)
RESPONSE: Final = spec_of(responses_pb2.Response.DESCRIPTOR)
CREATE: Final = spec_of(requests_pb2.ResponseCreate.DESCRIPTOR, struct=requests.Create)

EVENTS: Final = _arms(
    events_pb2.ServerEvent, "event", {kind.__name__: kind for kind in events.CLASSES}
)
"""Arm of ServerEvent -> its class and table."""

REQUESTS: Final = _arms(
    service_pb2.ConverseRequest,
    "message",
    {
        "ResponseCreate": requests.Create,
        "ResponseAppend": requests.Append,
        "ResponseCancel": requests.Cancel,
        "ResponseResume": requests.Resume,
        "ResponseSteer": requests.Steer,
        "SessionStart": requests.SessionStart,
        "SessionEnd": requests.SessionEnd,
        "Heartbeat": requests.ClientHeartbeat,
    },
)
"""Arm of ConverseRequest -> its class and table."""


def _envelope(holder: Any, struct: type[Struct]) -> Spec:
    """The table of the members that an event has beside its arm."""
    raws = raw_members(struct)
    fields = [field for field in holder.DESCRIPTOR.fields if field.name in _ENVELOPE]
    slots = {field.name: _slot(field, raws, ()) for field in fields}
    return Spec(holder.DESCRIPTOR, slots, struct=struct)


_ENVELOPE: Final = frozenset(
    {"sequence_number", "stream_id", "response", "event_id", "trace_context"}
)
EVENT: Final = _envelope(events_pb2.ServerEvent, events.Event)
REQUEST: Final = _envelope(service_pb2.ConverseRequest, requests.Create)
