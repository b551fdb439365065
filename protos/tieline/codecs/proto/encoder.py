"""The events of one line as the bytes that its stream writes.

What a turn of text or of calls sends is written field by field; whatever is rare goes by
:func:`encode_event`, whose bytes these are up to the order of fields.
"""

from collections.abc import Callable, Iterable
from operator import attrgetter
from typing import Any, Final, NamedTuple

from msgspec import UNSET, Raw, UnsetType

from tieline import events
from tieline.codecs.memory import MAX_LANES, Memory
from tieline.codecs.proto.events import encode_event
from tieline.codecs.proto.frames import NUMBER, VARINT, field, tag
from tieline.codecs.proto.schema import EVENTS, ITEM, RESPONSE, Arm
from tieline.codecs.proto.shapes import item_of, own_of, part_of
from tieline.events import Event, LifecycleEvent
from tieline.responses import Response
from tieline.v1.events_pb2 import (
    OutputItemDone,
    OutputTextDelta,
    ResponseCompleted,
    ResponseCreated,
    ServerEvent,
)
from tieline.v1.items_pb2 import Item
from tieline.v1.line_pb2 import ConnectResponse
from tieline.v1.responses_pb2 import Response as ResponseMessage


class _Layout(NamedTuple):
    """An event that says where it belongs and one thing more: a delta, a text or a part."""

    arm: bytes
    said: bytes
    """Tags of the arm, and of the thing said in it."""
    said_of: Callable[[Any], Any]
    place_of: Callable[[Any], tuple[Any, ...]]
    """Class, lane, item and up to two indices; then logprobs, where the class has them."""


# Written out: fetched by name, each of these costs ten times as much.
_PLACES: Final[dict[tuple[str, ...], Callable[[Any], tuple[Any, ...]]]] = {
    (): lambda e: (type(e), e.stream_id, e.item_id, e.output_index),
    ("content_index",): lambda e: (
        type(e), e.stream_id, e.item_id, e.output_index, e.content_index,
    ),
    ("content_index", "logprobs"): lambda e: (
        type(e), e.stream_id, e.item_id, e.output_index, e.content_index, e.logprobs,
    ),
    ("summary_index",): lambda e: (
        type(e), e.stream_id, e.item_id, e.output_index, e.summary_index,
    ),
}  # fmt: skip
"""Members of an event beside its item and what it says -> what tells where it belongs."""
# These three are the same in all events that say where they belong; a test holds us to it.
_ITEM_ID: Final = tag(OutputTextDelta.ITEM_ID_FIELD_NUMBER)
_INDICES: Final = (
    tag(OutputTextDelta.OUTPUT_INDEX_FIELD_NUMBER, NUMBER),
    tag(OutputTextDelta.CONTENT_INDEX_FIELD_NUMBER, NUMBER),
)


def _layout(arm: Arm) -> _Layout | None:
    names = [n for n in arm.kind.__struct_fields__ if n not in Event.__struct_fields__]
    if names[:2] != ["item_id", "output_index"]:
        return None
    index = [name for name in names[2:] if name.endswith("_index")]
    said = [name for name in names[2:] if name not in index]
    place_of = _PLACES.get((*index, *said[1:]))
    if not said or place_of is None:
        # Another form, like a part with a status, is left to the tables.
        return None
    number = arm.spec.descriptor.fields_by_name[said[0]].number
    return _Layout(tag(arm.number), tag(number), attrgetter(said[0]), place_of)


_ARMS: Final[dict[type[Event], Arm]] = {arm.kind: arm for arm in EVENTS.values()}
_LAYOUTS: Final = {kind: form for kind, arm in _ARMS.items() if (form := _layout(arm)) is not None}
_DELTAS: Final = {kind: _LAYOUTS[kind].place_of for kind in events.MERGEABLE}


def _fields_of(place: tuple[Any, ...]) -> bytes:
    """The fields that say where an event belongs."""
    said = b""
    if place[2]:
        item_id = place[2].encode()
        said = _ITEM_ID + VARINT[len(item_id)] + item_id
    for index_tag, index in zip(_INDICES, place[3:5], strict=False):
        if index:
            said += index_tag + VARINT[index]
    return said


class _Part:
    """The part that deltas are for, and what their events begin with."""

    __slots__ = ("_head", "_layout", "_stream", "fronts", "place")

    def __init__(self, place: tuple[Any, ...], head: bytes) -> None:
        self._layout = _LAYOUTS[place[0]]
        self._stream = _stream(place[1])
        self._head = head
        self.place = place
        self.fronts: dict[int, bytes] = {}
        """Size of the text and of the number, as one key -> all bytes before the text."""

    def front(self, size: int, number: int) -> bytes:
        """All bytes before a text of ``size`` bytes that ``number`` bytes follow."""
        head = self._head + self._layout.said + VARINT[size] if size else self._head
        arm = self._stream + self._layout.arm + VARINT[len(head) + size] + head
        front = _EVENTS + VARINT[len(arm) + size + number] + arm
        if len(self.fronts) < _MAX_SIZES:
            self.fronts[size << 4 | number] = front
        return front


def _stream(lane: Any) -> bytes:
    return b"" if lane is UNSET else field(_STREAM_ID, lane.encode())


_EVENTS: Final = tag(ConnectResponse.EVENTS_FIELD_NUMBER)
_STREAM_ID: Final = tag(ServerEvent.STREAM_ID_FIELD_NUMBER)
_SEQUENCE: Final = tag(ServerEvent.SEQUENCE_NUMBER_FIELD_NUMBER, NUMBER)


_NUMBERS: Final[dict[int | UnsetType, bytes]] = {
    number: _SEQUENCE + VARINT[number] for number in range(4096)
}
"""Sequence number -> its field."""


def _number_of(event: Event) -> bytes:
    sequence = event.sequence_number
    return b"" if sequence is UNSET else _SEQUENCE + VARINT[sequence]


_MAX_PARTS: Final = MAX_LANES * len(_DELTAS)
_SHORT: Final = 256
_MAX_SHORT: Final = 64
"""Bytes and number of the content parts that are remembered as JSON and as a message."""
_MAX_SIZES: Final = 256
"""Sizes of deltas remembered for a part: tokens have far fewer."""


class EventEncoder:
    """Encodes the events of one line and remembers what comes again.

    The part that deltas belong to, the settings that each lifecycle event echoes (tools,
    instructions, ...) and the output items of running turns are each built once.
    ``encode`` gives what :func:`encode_event` gives, up to the order of fields.
    """

    __slots__ = ("_contents", "_items", "_memory", "_parts", "_place", "_snapshot", "work")

    def __init__(self) -> None:
        self._parts: dict[tuple[Any, ...], _Part] = {}
        self._place: tuple[tuple[Any, ...], bytes] = ((), b"")
        self._memory = Memory[bytes]()
        self._contents: dict[bytes, bytes] = {}
        self._items: dict[bytes, bytes] = {}
        self._snapshot: tuple[Response, bytes] | None = None
        """The last response of an event that ends nothing, and its fields but the output."""
        self.work = 0
        """Bytes really built, without what was remembered."""

    def encode(self, event: Event, *, output_omitted: bool = False) -> bytes:
        """The event as a serialized ConnectResponse of its own; such bytes concatenate."""
        if output_omitted and isinstance(event, LifecycleEvent):
            return self._lifecycle(event, output_omitted=True)
        return self.encode_all((event,))[0]

    def encode_all(self, given: Iterable[Event]) -> list[bytes]:
        """Each event as ``encode`` gives it. Deltas of one part in a row cost the least."""
        encoded: list[bytes] = []
        place, built = None, 0
        event: Any
        for event in given:
            kind = type(event)
            place_of = _DELTAS.get(kind)
            if place_of is None:
                encoded.append(_WRITERS.get(kind, EventEncoder._whole)(self, event))
                continue
            if (now := place_of(event)) != place:
                place, part = now, self._part(now)
            if part is None:
                encoded.append(self._whole(event))
                continue
            text = event.delta.encode()
            number = _NUMBERS.get(event.sequence_number) or _number_of(event)
            size = len(text)
            front = part.fronts.get(size << 4 | len(number)) or part.front(size, len(number))
            encoded.append(front + text + number)
            built += size
        self.work += built
        return encoded

    def _part(self, place: tuple[Any, ...]) -> _Part | None:
        """The part of deltas at ``place``; None for those with logprobs."""
        parts = self._parts
        part = parts.get(place[:2])
        if part is None or part.place != place:
            if any(place[5:]):
                return None
            if len(parts) >= _MAX_PARTS:
                parts.clear()
            parts[place[:2]] = part = _Part(place, self._head(place))
        return part

    def _head(self, place: tuple[Any, ...]) -> bytes:
        """The fields of a place; the events of one part mostly follow each other."""
        if place[1:5] != self._place[0]:
            said = _fields_of(place)
            self._place = (place[1:5], said)
            self.work += len(said)
        return self._place[1]

    def _said(self, event: Event) -> bytes:
        """An event with a layout that is no delta."""
        layout = _LAYOUTS[type(event)]
        place = layout.place_of(event)
        said = layout.said_of(event)
        body = self._content(said) if type(said) is Raw else said.encode()
        if body is None or any(place[5:]):
            return self._whole(event)
        arm = self._head(place)
        if body:
            arm += layout.said + VARINT[len(body)] + body
        self.work += len(body)
        return _framed(event, arm)

    def _content(self, raw: Raw) -> bytes | None:
        """A content part: short ones come again, as they begin and in their item."""
        text = bytes(raw)
        built = self._contents.get(text)
        if built is None:
            built = part_of(text)
            if built is not None and len(text) <= _SHORT:
                if len(self._contents) >= _MAX_SHORT:
                    self._contents.clear()
                self._contents[text] = built
        return built

    def _item_event(self, event: Any) -> bytes:
        item = self._item(bytes(event.item))
        arm = _ITEM + VARINT[len(item)] + item
        if event.output_index:
            arm = _INDEX + VARINT[event.output_index] + arm
        return _framed(event, arm)

    def _item(self, text: bytes) -> bytes:
        built = self._items.get(text)
        if built is None:
            built = item_of(text, self._content)
            if built is None:
                message = Item()
                ITEM.fill(message, text)
                built = message.SerializeToString()
            self.work += len(built)
            if len(self._items) >= _MAX_ITEMS:
                self._items.clear()
            self._items[text] = built
        return built

    def _lifecycle(self, event: LifecycleEvent, *, output_omitted: bool = False) -> bytes:
        pieces = [self._response(event)]
        for raw in event.response.output:
            text = bytes(raw)
            if not output_omitted:
                item = self._item(text)
                pieces += (_OUTPUT, VARINT[len(item)], item)
            if event.TERMINAL:
                self._items.pop(text, None)
        response = b"".join(pieces)
        arm = _RESPONSE + VARINT[len(response)] + response
        if output_omitted:
            arm = _OMITTED + arm
        elif type(event) is events.ResponseCreated and event.event_id is not UNSET:
            arm = field(_EVENT_ID, event.event_id.encode()) + arm
        return _framed(event, arm)

    def _response(self, event: LifecycleEvent) -> bytes:
        """The fields of the event's response, without its output."""
        response = event.response
        if self._snapshot is not None and self._snapshot[0] is response:
            # response.created and response.in_progress share theirs.
            return self._snapshot[1]
        own = own_of(response)
        if own is None:
            message = ResponseMessage()
            _OWN.write(message, response)
            own = message.SerializeToString()
        self.work += len(own)
        said = own + self._settings(event)
        self._snapshot = None if event.TERMINAL else (response, said)
        return said

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

    def _whole(self, event: Event) -> bytes:
        encoded = encode_event(event)
        self.work += len(encoded)
        return encoded


def _framed(event: Event, arm: bytes) -> bytes:
    """The whole of an event with these fields in its arm."""
    front = _NUMBERS.get(event.sequence_number) or _number_of(event)
    if event.stream_id is not UNSET:
        front += _stream(event.stream_id)
    front += _ARM_TAGS[type(event)] + VARINT[len(arm)]
    return b"".join((_EVENTS, VARINT[len(front) + len(arm)], front, arm))


_WRITERS: Final[dict[type[Event], Callable[[EventEncoder, Any], bytes]]] = {
    events.OutputItemAdded: EventEncoder._item_event,
    events.OutputItemDone: EventEncoder._item_event,
    **{kind: EventEncoder._lifecycle for kind in _ARMS if issubclass(kind, LifecycleEvent)},
    **dict.fromkeys(_LAYOUTS, EventEncoder._said),
}
"""Event -> what writes it; any other is built whole."""

_ARM_TAGS: Final = {kind: tag(arm.number) for kind, arm in _ARMS.items()}
_INDEX: Final = tag(OutputItemDone.OUTPUT_INDEX_FIELD_NUMBER, NUMBER)
_ITEM: Final = tag(OutputItemDone.ITEM_FIELD_NUMBER)
# The same in all lifecycle events.
_RESPONSE: Final = tag(ResponseCompleted.RESPONSE_FIELD_NUMBER)
_OMITTED: Final = tag(ResponseCompleted.OUTPUT_OMITTED_FIELD_NUMBER, NUMBER) + VARINT[True]
_EVENT_ID: Final = tag(ResponseCreated.EVENT_ID_FIELD_NUMBER)
_OUTPUT: Final = tag(ResponseMessage.OUTPUT_FIELD_NUMBER)
_MAX_ITEMS: Final = 1024

_OWN_NAMES: Final = (
    "id",
    "created_at",
    "completed_at",
    "status",
    "error",
    "incomplete_details",
    "previous_response_id",
    "usage",
)
_OWN: Final = RESPONSE.only(_OWN_NAMES)
_SETTINGS: Final = RESPONSE.without("output", *_OWN_NAMES)
"""What a response echoes of its create: the same in each of its events, and often in the next."""


def _settings_of(response: Response) -> tuple[Any, ...]:
    """The members of those. Fetched by name each would cost ten times this."""
    return (
        response.model,
        response.instructions,
        response.tools,
        response.tool_choice,
        response.parallel_tool_calls,
        response.truncation,
        response.text,
        response.temperature,
        response.top_p,
        response.presence_penalty,
        response.frequency_penalty,
        response.top_logprobs,
        response.reasoning,
        response.max_output_tokens,
        response.max_tool_calls,
        response.store,
        response.background,
        response.service_tier,
        response.metadata,
        response.safety_identifier,
        response.prompt_cache_key,
    )
