"""Events as ``tieline.v1.ServerEvent``, alone and as the bytes that a stream writes."""

from operator import attrgetter
from typing import Any, Final, cast

import msgspec
from msgspec import UNSET, Raw, UnsetType

from tieline import events
from tieline.codecs import json
from tieline.codecs.memory import MAX_LANES, Memory
from tieline.codecs.proto.bridge import Bridge
from tieline.codecs.proto.errors import error_status
from tieline.codecs.proto.fields import getter
from tieline.codecs.proto.frames import field, tag, varint
from tieline.codecs.proto.memory import FieldMemory
from tieline.codecs.proto.schema import EVENT, EVENTS, ITEM, RESPONSE, Arm
from tieline.codecs.proto.shapes import item_of, part_of
from tieline.errors import ApiError
from tieline.events import ErrorEvent, Event, LifecycleEvent
from tieline.responses import Response
from tieline.v1.events_pb2 import ServerEvent
from tieline.v1.items_pb2 import Item
from tieline.v1.line_pb2 import ConnectResponse
from tieline.v1.responses_pb2 import InputTokensDetails, OutputTokensDetails
from tieline.v1.responses_pb2 import Response as ResponseMessage
from tieline.v1.responses_pb2 import Usage as UsageMessage

BRIDGE: Final = Bridge(ServerEvent, "event", envelope=EVENT, arms=EVENTS)
_BY_CLASS: Final[dict[type, Arm]] = {arm.kind: arm for arm in EVENTS.values()}


def json_to_proto(raw: bytes) -> ServerEvent:
    """An event from outside as a message, nothing lost.

    An unknown or missing ``type`` goes to the opaque arm, unknown members to ``extra_json``.
    Raises :class:`ApiError` (400 ``invalid_json``) when the text is no JSON.
    """
    message: ServerEvent = BRIDGE.to_proto(raw)
    if message.HasField("error"):
        _add_status(message)
    return message


def proto_to_json(message: ServerEvent) -> bytes:
    """An event as JSON text: of ``json_to_proto``, JSON equal to the original's.

    Raises :class:`ApiError` (400 ``invalid_event``, ``invalid_json``) for what is no event.
    """
    return BRIDGE.to_json(message)


def to_server_event(event: Event, *, output_omitted: bool = False) -> ServerEvent:
    """An event as a message; ``output_omitted`` leaves the output of its response out."""
    message = ServerEvent()
    _write(message, event, output_omitted=output_omitted)
    return message


def encode_event(event: Event, *, output_omitted: bool = False) -> bytes:
    """An event as a serialized ConnectResponse of its own; such bytes concatenate.

    >>> event = events.Heartbeat(phase="idle")
    >>> len(ConnectResponse.FromString(encode_event(event) * 3).events)
    3
    """
    response = ConnectResponse()
    _write(response.events.add(), event, output_omitted=output_omitted)
    return response.SerializeToString()


def _write(message: ServerEvent, event: Event, *, output_omitted: bool) -> None:
    _number(message, event)
    if isinstance(event, events.Opaque):
        message.opaque.type = event.name
        message.opaque.json = bytes(event.raw).decode()
        return
    arm = _BY_CLASS[type(event)]
    inner = getattr(message, arm.name)
    inner.SetInParent()
    if output_omitted and isinstance(event, LifecycleEvent):
        _BARE[type(event)].write(inner, event)
        inner.response.SetInParent()
        _NO_OUTPUT.write(inner.response, event.response)
        inner.output_omitted = True
    else:
        arm.spec.write(inner, event)
    if isinstance(event, ErrorEvent):
        _add_status(message)


def _number(message: ServerEvent, event: Event) -> None:
    if event.sequence_number is not UNSET:
        message.sequence_number = event.sequence_number
    if event.stream_id is not UNSET:
        message.stream_id = event.stream_id


_MEMBERS: Final = ("response", "item")
_BARE: Final = {
    arm.kind: arm.spec.without(*_MEMBERS)
    for arm in EVENTS.values()
    if not arm.spec.slots.keys().isdisjoint(_MEMBERS)
}
"""Events with one member that is large: the table of the others."""
_NO_OUTPUT: Final = RESPONSE.without("output")


def _add_status(message: ServerEvent) -> None:
    if message.error.HasField("error"):
        detail = message.error.error
        error = ApiError.of(
            detail.code or "server_error",
            detail.message,
            param=detail.param if detail.HasField("param") else None,
            status=message.error.status or None,
            error_type=detail.type or None,
            retry_after=detail.retry_after if detail.HasField("retry_after") else None,
        )
        message.error.grpc_status.CopyFrom(error_status(error))


def decode_event(message: ServerEvent) -> Event:
    """Reads one event.

    The opaque arm is read as JSON; a typed arm that lacks what its class needs becomes
    :class:`tieline.events.Opaque`. Raises :class:`ApiError` (400 ``invalid_event``,
    ``invalid_json``) when no arm is set or a ``*_json`` field holds no JSON.
    """
    arm = EVENTS.get(message.WhichOneof("event") or "")
    if arm is None:
        return json.decode_event(proto_to_json(message))
    try:
        values = arm.spec.read(getattr(message, arm.name))
        if values is not None:
            return _event(arm, message, values)
    except TypeError:
        # It lacks what its class needs: judged as JSON, like one with members beside its fields.
        pass
    return json.decode_event(proto_to_json(message))


def _event(arm: Arm, message: ServerEvent, values: dict[str, Any]) -> Event:
    values.pop("output_omitted", None)
    if message.HasField("sequence_number"):
        values["sequence_number"] = message.sequence_number
    if message.HasField("stream_id"):
        values["stream_id"] = message.stream_id
    return cast(Event, arm.kind(**values))


class EventDecoder:
    """Reads the events of one line and reads the settings that responses echo only once."""

    __slots__ = ("_fields",)

    def __init__(self) -> None:
        self._fields = FieldMemory()

    @property
    def work(self) -> int:
        """Bytes of responses really read, without what was remembered."""
        return self._fields.work

    def decode(self, message: ServerEvent) -> Event:
        """Reads one event; raises as :func:`decode_event` does."""
        arm = EVENTS.get(message.WhichOneof("event") or "")
        if arm is None or not issubclass(arm.kind, LifecycleEvent):
            return decode_event(message)
        inner = getattr(message, arm.name)
        snapshot = inner.response
        odd = inner.extra_json or snapshot.extra_json or snapshot.absent
        if odd or not inner.HasField("response"):
            return decode_event(message)
        response = Response(**self._fields.read(RESPONSE, snapshot, message.stream_id))
        values = _BARE[arm.kind].read(inner) or {}
        return _event(arm, message, values | {"response": response})


def to_response(response: Response) -> ResponseMessage:
    """A response as a message."""
    message = ResponseMessage()
    RESPONSE.write(message, response)
    return message


def from_response(message: ResponseMessage) -> Response:
    """A response from a message; raises 400 ``invalid_json`` for broken ``*_json`` fields."""
    response: Response = RESPONSE.build(message)
    return response


class _Part:
    """The part that deltas are for, and what their events have in common."""

    __slots__ = ("_arm", "_head", "_stream", "fronts", "key")

    def __init__(self, event: Event, key: tuple[Any, ...]) -> None:
        arm = _BY_CLASS[type(event)]
        message = arm.make()
        arm.spec.write(message, msgspec.structs.replace(event, delta=""))
        self._head: bytes = message.SerializeToString()
        self._head += tag(arm.spec.descriptor.fields_by_name["delta"].number)
        self._arm = tag(arm.number)
        lane = event.stream_id
        self._stream = b"" if lane is UNSET else field(_STREAM_ID, lane.encode())
        self.key = key
        self.fronts: dict[int, bytes] = {}
        """Size of the text and of the number, as one key -> all bytes before the text."""

    def front(self, size: int, number: int) -> bytes:
        """All bytes before a text of ``size`` bytes that ``number`` bytes follow."""
        head = self._head + varint(size)
        arm = self._stream + self._arm + varint(len(head) + size) + head
        return _EVENTS + varint(len(arm) + size + number) + arm


_FIELDS: Final = ServerEvent.DESCRIPTOR.fields_by_name
_STREAM_ID: Final = _FIELDS["stream_id"].number
_SEQUENCE: Final = varint(_FIELDS["sequence_number"].number << 3)
_KNOWN: Final = 4096
_NUMBERS: Final = tuple(_SEQUENCE + varint(number) for number in range(_KNOWN))
_EVENTS: Final = tag(ConnectResponse.DESCRIPTOR.fields_by_name["events"].number)
_PART_NAMES: Final = ("item_id", "output_index", "content_index", "summary_index")
_KEYS: Final = {
    kind: attrgetter(*(name for name in _PART_NAMES if name in kind.__struct_fields__))
    for kind in events.MERGEABLE
}
"""Delta class -> what tells its part."""

_VARYING_NAMES: Final = (
    "id",
    "created_at",
    "completed_at",
    "status",
    "error",
    "incomplete_details",
    "previous_response_id",
    "usage",
)
_VARYING: Final = RESPONSE.only(_VARYING_NAMES)
_SETTINGS: Final = RESPONSE.without("output", *_VARYING_NAMES)
"""What a response echoes of its create: the same in each of its events, and often in the next."""
_settings_of: Final = getter(
    tuple(n for n in Response.__struct_fields__ if n not in (*_VARYING_NAMES, "object", "output"))
)
_OUTPUT: Final = tag(ResponseMessage.DESCRIPTOR.fields_by_name["output"].number)
_MAX_ITEMS: Final = 1024


class EventEncoder:
    """Encodes the events of one line and remembers what comes again.

    The part that deltas belong to, the settings that each lifecycle event echoes (tools,
    instructions, ...) and the output items of running turns are each built once.
    ``encode`` gives what :func:`encode_event` gives, up to the order of fields.
    """

    __slots__ = ("_items", "_memory", "_parts", "_snapshot", "work")

    def __init__(self) -> None:
        self._parts: dict[type[Event], dict[str | UnsetType, _Part]] = {k: {} for k in _KEYS}
        self._memory = Memory[bytes]()
        self._items: dict[bytes, bytes] = {}
        self._snapshot: tuple[Response, list[bytes]] | None = None
        """The last response of an event that ends nothing, and its fields but the output."""
        self.work = 0
        """Bytes really built, without what was remembered."""

    def encode(self, event: Event, *, output_omitted: bool = False) -> bytes:
        """The event as a serialized ConnectResponse of its own; such bytes concatenate."""
        kind = type(event)
        key = _KEYS.get(kind)
        if key is not None:
            return self._delta(event, key(event))
        if isinstance(event, LifecycleEvent):
            return self._lifecycle(event, output_omitted)
        if isinstance(event, events.OutputItemAdded | events.OutputItemDone):
            return self._spliced(event, [self._item(event.item)])
        if kind in _PLACES and (pieces := self._placed(event)) is not None:
            return self._framed(event, pieces)
        encoded = encode_event(event)
        self.work += len(encoded)
        return encoded

    def _delta(self, event: Any, key: tuple[Any, ...]) -> bytes:
        if event.sequence_number is UNSET or getattr(event, "logprobs", None):
            encoded = encode_event(event)
            self.work += len(encoded)
            return encoded
        parts = self._parts[type(event)]
        part = parts.get(event.stream_id)
        if part is None or part.key != key:
            if len(parts) >= MAX_LANES:
                parts.clear()
            parts[event.stream_id] = part = _Part(event, key)
            self.work += len(event.item_id)
        text: bytes = event.delta.encode()
        sequence = event.sequence_number
        number = _NUMBERS[sequence] if sequence < _KNOWN else _SEQUENCE + varint(sequence)
        size = len(text)
        self.work += size
        sizes = size << 3 | len(number)
        front = part.fronts.get(sizes)
        if front is None:
            front = part.front(size, len(number))
            if len(part.fronts) < _KNOWN:
                part.fronts[sizes] = front
        return front + text + number

    def _lifecycle(self, event: LifecycleEvent, output_omitted: bool) -> bytes:
        response = event.response
        body = [*self._head(event)]
        for raw in () if output_omitted else response.output:
            item = self._item(raw)
            body += (_OUTPUT, varint(len(item)), item)
        if event.TERMINAL:
            for raw in response.output:
                self._items.pop(bytes(raw), None)
        return self._spliced(event, body, output_omitted=output_omitted)

    def _head(self, event: LifecycleEvent) -> list[bytes]:
        """The fields of the event's response, without its output."""
        response = event.response
        if self._snapshot is not None and self._snapshot[0] is response:
            # response.created and response.in_progress share theirs.
            return self._snapshot[1]
        varying = _varying(response)
        self.work += len(varying)
        head = [varying, self._settings(event)]
        self._snapshot = None if event.TERMINAL else (response, head)
        return head

    def _settings(self, event: LifecycleEvent) -> bytes:
        settings = _settings_of(event.response)
        built = self._memory.recall(event.stream_id, "settings", settings)
        if built is None:
            message = ResponseMessage()
            _SETTINGS.write(message, event.response)
            built = message.SerializeToString()
            self.work += len(built)
            self._memory.keep(event.stream_id, "settings", settings, built)
        return built

    def _item(self, raw: Raw) -> bytes:
        text = bytes(raw)
        built = self._items.get(text)
        if built is None:
            message = item_of(text)
            if message is None:
                message = Item()
                ITEM.fill(message, text)
            built = message.SerializeToString()
            self.work += len(built)
            if len(self._items) >= _MAX_ITEMS:
                self._items.clear()
            self._items[text] = built
        return built

    def _spliced(self, event: Event, body: list[bytes], *, output_omitted: bool = False) -> bytes:
        """The event with ``body``, joined, as the bytes of one message member."""
        kind = type(event)
        others = b""
        if isinstance(event, events.OutputItemAdded | events.OutputItemDone):
            others = _INDEX + varint(event.output_index)
        elif output_omitted or getattr(event, "event_id", UNSET) is not UNSET:
            inner = _BY_CLASS[kind].make()
            _BARE[kind].write(inner, event)
            if output_omitted:
                inner.output_omitted = True
            others = inner.SerializeToString()
        size = sum(map(len, body))
        return self._framed(event, [others, _MEMBER_TAGS[kind], varint(size), *body])

    def _placed(self, event: Any) -> list[bytes] | None:
        """The members of an event of a part: where it is, then its text or its part."""
        kind = type(event)
        if kind is events.OutputTextDone:
            if event.logprobs:
                return None
            said = event.text.encode()
        else:
            part = part_of(event.part)
            if part is None:
                return None
            said = part.SerializeToString()
        item_id = event.item_id.encode()
        self.work += len(item_id) + len(said)
        item, output, content, last = _PLACES[kind]
        return [
            item + varint(len(item_id)) + item_id,
            output + varint(event.output_index) + content + varint(event.content_index),
            last + varint(len(said)) + said,
        ]

    def _framed(self, event: Event, pieces: list[bytes]) -> bytes:
        """The whole of an event whose arm holds ``pieces``."""
        sequence = event.sequence_number
        number = b""
        if sequence is not UNSET:
            number = _NUMBERS[sequence] if sequence < _KNOWN else _SEQUENCE + varint(sequence)
        if event.stream_id is not UNSET:
            number += field(_STREAM_ID, event.stream_id.encode())
        size = sum(map(len, pieces))
        front = number + _ARM_TAGS[type(event)] + varint(size)
        self.work += len(front)
        return b"".join((_EVENTS, varint(len(front) + size), front, *pieces))


def _varying(response: Response) -> bytes:
    """What is a response's own, serialized: in one call where nothing has gone wrong."""
    message = None
    if response.error is None and response.incomplete_details is None:
        try:
            message = _going_well(response)
        except (TypeError, ValueError):
            # A count that its field cannot hold, or a member that only others leave out.
            message = None
    if message is None:
        message = ResponseMessage()
        _VARYING.write(message, response)
    return message.SerializeToString()


def _going_well(response: Response) -> ResponseMessage:
    own = (response.id, response.created_at, response.status)
    if None in own:
        raise TypeError("a null is said by the tables")
    message = ResponseMessage(
        id=response.id,
        created_at=response.created_at,
        status=response.status,
        completed_at=response.completed_at,
        previous_response_id=response.previous_response_id,
    )
    usage = response.usage
    if usage is not None:
        message.usage.MergeFrom(
            UsageMessage(
                input_tokens=usage.input_tokens,
                input_tokens_details=InputTokensDetails(
                    cached_tokens=usage.input_tokens_details.cached_tokens,
                    cache_write_tokens=usage.input_tokens_details.cache_write_tokens,
                ),
                output_tokens=usage.output_tokens,
                output_tokens_details=OutputTokensDetails(
                    reasoning_tokens=usage.output_tokens_details.reasoning_tokens
                ),
                total_tokens=usage.total_tokens,
            )
        )
    return message


_MEMBER_TAGS: Final = {
    kind: tag(spec.descriptor.fields_by_name[name].number)
    for kind, spec in _BARE.items()
    for name in _MEMBERS
    if name in spec.descriptor.fields_by_name
}

_ARM_TAGS: Final = {kind: tag(arm.number) for kind, arm in _BY_CLASS.items()}
_INDEX: Final = varint(
    _BY_CLASS[events.OutputItemDone].spec.descriptor.fields_by_name["output_index"].number << 3
)


def _place(kind: type[Event], last: str) -> tuple[bytes, bytes, bytes, bytes]:
    """The tags of an event of a content part: item_id, the two indices, and ``last``."""
    fields = _BY_CLASS[kind].spec.descriptor.fields_by_name
    output, content = (varint(fields[f"{name}_index"].number << 3) for name in _INDICES)
    return tag(fields["item_id"].number), output, content, tag(fields[last].number)


_INDICES: Final = ("output", "content")
_PLACES: Final[dict[type, tuple[bytes, bytes, bytes, bytes]]] = {
    events.ContentPartAdded: _place(events.ContentPartAdded, "part"),
    events.ContentPartDone: _place(events.ContentPartDone, "part"),
    events.OutputTextDone: _place(events.OutputTextDone, "text"),
}
