"""The events of one connection as the bytes that its stream writes.

Runs of deltas, which are nearly all that is sent, are written field by field: a delta is its
front (tags, sizes and where it belongs), its text and its number, and the front is the same for
all texts of one size in a part. All else is made as ordinary messages; those that come again in
the next event (settings, output items, parts) are remembered as bytes, and framed anew. The plain
rule is :func:`encode_event`: its bytes are these up to the order of fields.
"""

from collections.abc import Callable, Sequence
from operator import attrgetter
from types import SimpleNamespace
from typing import Any, Final

from msgspec import UNSET, Raw, Struct, UnsetType

from tieline import events
from tieline.codecs.proto.events import ENDINGS, encode_event
from tieline.codecs.proto.fields import Choice, getter
from tieline.codecs.proto.frames import NUMBER, VARINT, field, tag
from tieline.codecs.proto.schema import EVENTS, ITEM, PART, RESPONSE, Arm
from tieline.codecs.proto.shapes import fill_item, fill_part
from tieline.codecs.repeat_cache import MAX_LANES, RepeatCache
from tieline.events import Event, LifecycleEvent
from tieline.responses import Response, Usage
from tieline.v1.events_pb2 import (
    OutputItemDone,
    OutputTextDelta,
    ResponseCompleted,
    ServerEvent,
)
from tieline.v1.events_pb2 import ResponseCreated as CreatedMessage
from tieline.v1.items_pb2 import ContentPart, Item
from tieline.v1.responses_pb2 import Response as ResponseMessage
from tieline.v1.service_pb2 import ConverseResponse


class _Layout(Struct, frozen=True, gc=False):
    """An event that says where it belongs and one thing more: a delta, a text or a part."""

    arm: bytes
    """Tag of the arm."""
    said: bytes
    """Tag of the thing said."""
    said_of: Callable[[Any], Any]
    position_of: Callable[[Any], tuple[Any, ...]]
    """Lane, item and up to two indices."""
    index: str | None
    """Name of the index beside that of the item."""
    has_logprobs: bool


# Written out: fetched by name, each of these costs ten times as much.
_POSITIONS: Final[dict[str | None, Callable[[Any], tuple[Any, ...]]]] = {
    None: lambda e: (e.stream_id, e.item_id, e.output_index),
    "content_index": lambda e: (e.stream_id, e.item_id, e.output_index, e.content_index),
    "summary_index": lambda e: (e.stream_id, e.item_id, e.output_index, e.summary_index),
}
"""Index of an event beside that of its item -> what tells where it belongs."""
# These three are the same in all events that say where they belong; a test holds us to it.
_ITEM_ID: Final = tag(OutputTextDelta.ITEM_ID_FIELD_NUMBER)
_OUTPUT_INDEX: Final = tag(OutputTextDelta.OUTPUT_INDEX_FIELD_NUMBER, NUMBER)
_PART_INDEX: Final = tag(OutputTextDelta.CONTENT_INDEX_FIELD_NUMBER, NUMBER)


def _layout(arm: Arm) -> _Layout | None:
    names = [n for n in arm.kind.__struct_fields__ if n not in Event.__struct_fields__]
    if names[:2] != ["item_id", "output_index"]:
        return None
    index = next((name for name in names[2:] if name.endswith("_index")), None)
    said = [name for name in names[2:] if name != index]
    position_of = _POSITIONS.get(index)
    if position_of is None or said[1:] not in ([], ["logprobs"]):
        # Another form, like a part with a status, is left to the tables.
        return None
    return _Layout(
        arm=tag(arm.number),
        said=tag(arm.spec.descriptor.fields_by_name[said[0]].number),
        said_of=attrgetter(said[0]),
        position_of=position_of,
        index=index,
        has_logprobs=len(said) > 1,
    )


_ARMS: Final[dict[type[Event], Arm]] = {arm.kind: arm for arm in EVENTS.values()}
_LAYOUTS: Final = {kind: form for kind, arm in _ARMS.items() if (form := _layout(arm)) is not None}
_DELTAS: Final = {kind: _LAYOUTS[kind] for kind in events.MERGEABLE}


def _fields_of(position: tuple[Any, ...]) -> bytes:
    """The fields that say where an event belongs."""
    said: list[bytes] = []
    if position[1]:
        item_id = position[1].encode()
        said += (_ITEM_ID, VARINT[len(item_id)], item_id)
    if position[2]:
        said += (_OUTPUT_INDEX, VARINT[position[2]])
    if len(position) > 3 and position[3]:
        said += (_PART_INDEX, VARINT[position[3]])
    return b"".join(said)


_EVENTS: Final = tag(ConverseResponse.EVENTS_FIELD_NUMBER)
_STREAM_ID: Final = tag(ServerEvent.STREAM_ID_FIELD_NUMBER)
_SEQUENCE: Final = tag(ServerEvent.SEQUENCE_NUMBER_FIELD_NUMBER, NUMBER)

_NUMBERS: Final[dict[int | UnsetType, bytes]] = {
    number: _SEQUENCE + VARINT[number] for number in range(4096)
}
"""Sequence number -> its field."""


def _number_of(event: Event) -> bytes:
    sequence = event.sequence_number
    return b"" if sequence is UNSET else _SEQUENCE + VARINT[sequence]


def _lane(name: str | UnsetType) -> bytes:
    return b"" if name is UNSET else field(_STREAM_ID, name.encode())


def _front(event: Event, arm: bytes, size: int) -> tuple[bytes, ...]:
    """All that comes before the fields of an event's arm, which take ``size`` bytes."""
    number = _NUMBERS.get(event.sequence_number) or _number_of(event)
    lane, length = event.stream_id, VARINT[size]
    size += len(number) + len(arm) + len(length)
    if lane is UNSET:
        return _EVENTS, VARINT[size], number, arm, length
    named = _lane(lane)
    return _EVENTS, VARINT[size + len(named)], number, named, arm, length


class _Fronts(dict[int, bytes]):
    """Size of a delta's text -> all bytes before its position.

    They tell nothing of the position but how many bytes it takes, and ids are of one size: the
    deltas of the next turn begin with the same.
    """

    __slots__ = ("_after", "_before", "_head", "_said")

    def __init__(self, layout: _Layout, lane: str | UnsetType, *, head: int, after: int) -> None:
        self._before = _lane(lane) + layout.arm
        self._said = len(layout.said)
        self._head = head
        self._after = after

    def __missing__(self, size: int) -> bytes:
        arm = self._head + (self._said + len(VARINT[size]) + size if size else 0)
        before = self._before + VARINT[arm]
        front = _EVENTS + VARINT[len(before) + arm + self._after] + before
        if len(self) < _MAX_SIZES:
            self[size] = front
        return front


class _Part:
    """Deltas of one class that are for one part or call, and what their events begin with."""

    __slots__ = ("_fronts", "_head", "_lead", "content_index", "fronts", "has_logprobs",
                 "item_id", "kind", "lane", "layout", "output_index", "position",
                 "width")  # fmt: skip

    def __init__(self, layout: _Layout, event: Any, head: bytes) -> None:
        self.layout = layout
        self.position = layout.position_of(event)
        self.lane, self.item_id, self.output_index = self.position[:3]
        self.content_index = event.content_index if layout.index == "content_index" else None
        self.kind = None if layout.index == "summary_index" else type(event)
        """None where only ``position`` tells whether an event is one of these."""
        self.has_logprobs = layout.has_logprobs
        self._head = head
        self._lead = head + layout.said
        self.width = -1
        self.fronts: dict[int, bytes] = {}
        """Size of a text -> all bytes before it, where the number takes ``width`` bytes."""

    def begin(self, width: int, fronts: _Fronts) -> None:
        """Events whose number takes so many bytes come next."""
        self.width, self._fronts, self.fronts = width, fronts, {}

    def front(self, size: int) -> bytes:
        """All bytes before a text of so many bytes."""
        front = self._fronts[size] + (self._lead + VARINT[size] if size else self._head)
        if len(self.fronts) < _MAX_SIZES:
            self.fronts[size] = front
        return front


_SHORT: Final = 256
_MAX_SHORT: Final = 64
"""Bytes and number of the content parts that are remembered as JSON and as a message."""
_MAX_PARTS: Final = MAX_LANES * len(_DELTAS)
_MAX_SIZES: Final = 256
"""Sizes of deltas remembered for a part: tokens have far fewer."""

_NOTHING: Final = SimpleNamespace(kind=None)
"""Where the delta before the first one belonged."""

_Pieces = list[bytes]


class EventEncoder:
    """Encodes the events of one connection and remembers what comes again.

    The part that deltas belong to, the settings that each lifecycle event echoes (tools,
    instructions, ...) and the output items of running turns are each built once.
    ``encode`` gives what :func:`encode_event` gives, up to the order of fields.
    """

    __slots__ = ("_contents", "_fronts", "_items", "_part", "_parts", "_position", "_repeats",
                 "_snapshot", "work")  # fmt: skip

    def __init__(self) -> None:
        self._part: Any = _NOTHING
        """What the last delta was for."""
        self._parts: dict[Any, _Part] = {}
        """What the last one of each class on each lane was for."""
        self._fronts: dict[tuple[Any, ...], _Fronts] = {}
        self._position: tuple[tuple[Any, ...], bytes] = ((), b"")
        self._repeats = RepeatCache[bytes]()
        self._contents: dict[bytes, bytes] = {}
        self._items: dict[bytes, bytes] = {}
        self._snapshot: tuple[Response, bytes] | None = None
        """The last response of an event that ends nothing, and its fields but the output."""
        self.work = 0
        """Bytes really built, without what was remembered."""

    def encode(self, event: Event, *, output_omitted: bool = False) -> bytes:
        """The event as a serialized ConverseResponse of its own; such bytes concatenate."""
        if not output_omitted or not isinstance(event, LifecycleEvent):
            return self.encode_all((event,))
        pieces: _Pieces = []
        self._lifecycle(event, pieces, output_omitted=True)
        return b"".join(pieces)

    def encode_all(self, given: Sequence[Event]) -> bytes:
        """The events as one serialized ConverseResponse. Deltas of one part in a row cost least."""
        pieces: _Pieces = []
        part, built = self._part, 0
        event: Any
        for event in given:
            kind = type(event)
            # Equal would do. Those of one part are made with the same name of it.
            if (
                kind is not part.kind
                or event.item_id is not part.item_id
                or event.stream_id is not part.lane
                or event.output_index != part.output_index
                or (part.content_index is not None and event.content_index != part.content_index)
                or (part.has_logprobs and event.logprobs)
            ):
                layout = _DELTAS.get(kind)
                if layout is None or (layout.has_logprobs and event.logprobs):
                    _WRITERS.get(kind, EventEncoder._whole)(self, event, pieces)
                    continue
                part = self._part_of(layout, event)
            text = event.delta.encode()
            number = _NUMBERS.get(event.sequence_number) or _number_of(event)
            size, width = len(text), len(number)
            if width != part.width:
                part.begin(width, self._fronts_of(part, width))
            pieces += (part.fronts.get(size) or part.front(size), text, number)
            built += size
        self._part = part
        self.work += built
        return b"".join(pieces)

    def _part_of(self, layout: _Layout, event: Any) -> _Part:
        """The part that a delta is for."""
        position = layout.position_of(event)
        part = self._parts.get((layout.arm, position[0]))
        if part is None or part.position != position:
            if len(self._parts) >= _MAX_PARTS:
                self._parts.clear()
            part = _Part(layout, event, self._head(position))
            self._parts[layout.arm, position[0]] = part
        return part

    def _fronts_of(self, part: _Part, width: int) -> _Fronts:
        """What such deltas begin with, wherever they belong."""
        head = len(self._head(part.position))
        key = (part.layout.arm, part.lane, head, width)
        fronts = self._fronts.get(key)
        if fronts is None:
            if len(self._fronts) >= MAX_LANES:
                self._fronts.clear()
            fronts = _Fronts(part.layout, part.lane, head=head, after=width)
            self._fronts[key] = fronts
        return fronts

    def _head(self, position: tuple[Any, ...]) -> bytes:
        """The fields of a position; the events of one part mostly follow each other."""
        if position != self._position[0]:
            self._position = (position, _fields_of(position))
            self.work += len(self._position[1])
        return self._position[1]

    def _positioned(self, event: Any, pieces: _Pieces) -> None:
        """An event that says where it belongs and one thing more, and is no delta."""
        layout = _LAYOUTS[type(event)]
        said = layout.said_of(event)
        body = self._content(bytes(said)) if type(said) is Raw else said.encode()
        if not body or (layout.has_logprobs and event.logprobs):
            self._whole(event, pieces)
            return
        head, size = self._head(layout.position_of(event)), len(body)
        length = VARINT[size]
        pieces += _front(event, layout.arm, len(head) + len(layout.said) + len(length) + size)
        pieces += (head, layout.said, length, body)
        self.work += size

    def _content(self, text: bytes) -> bytes:
        """A content part: short ones come again, as they begin and in their item."""
        built = self._contents.get(text)
        if built is None:
            message = ContentPart()
            if not fill_part(message, text):
                PART.fill_any(message, text)
            built = message.SerializeToString()
            if len(text) <= _SHORT:
                if len(self._contents) >= _MAX_SHORT:
                    self._contents.clear()
                self._contents[text] = built
        return built

    def _item_event(self, event: Any, pieces: _Pieces) -> None:
        item = self._item(bytes(event.item))
        head = _ITEM + VARINT[len(item)]
        if event.output_index:
            head = _INDEX + VARINT[event.output_index] + head
        pieces += _front(event, _ARM_TAGS[type(event)], len(head) + len(item))
        pieces += (head, item)

    def _item(self, text: bytes) -> bytes:
        built = self._items.get(text)
        if built is None:
            message = Item()
            if not fill_item(message, text):
                ITEM.fill_any(message, text)
            built = message.SerializeToString()
            self.work += len(built)
            if len(self._items) >= _MAX_ITEMS:
                self._items.clear()
            self._items[text] = built
        return built

    def _lifecycle(
        self, event: LifecycleEvent, pieces: _Pieces, *, output_omitted: bool = False
    ) -> None:
        said = self._response(event)
        if event.response.output:
            said = b"".join((said, *self._output(event, output_omitted)))
        arm = (_OMITTED_ARMS if output_omitted else _BARE_ARMS)[type(event)]
        if type(event) is events.ResponseCreated and (beside := _beside(event)):
            arm = field(_ARM_TAGS[type(event)], beside)
        number = _NUMBERS.get(event.sequence_number) or _number_of(event)
        lane = b"" if event.stream_id is UNSET else _lane(event.stream_id)
        length = VARINT[len(said)]
        size = len(number) + len(lane) + len(arm) + len(_RESPONSE) + len(length) + len(said)
        pieces += (_EVENTS, VARINT[size], number, lane, arm, _RESPONSE, length, said)

    def _output(self, event: LifecycleEvent, omitted: bool) -> _Pieces:
        """The output of the event's response; after one that is terminal it comes no more."""
        pieces: _Pieces = []
        for raw in event.response.output:
            text = bytes(raw)
            if not omitted:
                item = self._item(text)
                pieces += (_OUTPUT, VARINT[len(item)], item)
            if event.TERMINAL:
                self._items.pop(text, None)
        return pieces

    def _response(self, event: LifecycleEvent) -> bytes:
        """The fields of the event's response, without its output."""
        response = event.response
        if self._snapshot is not None and self._snapshot[0] is response:
            # response.created and response.in_progress share theirs.
            return self._snapshot[1]
        own = _own(response).SerializeToString()
        self.work += len(own)
        said = own + self._settings(event)
        self._snapshot = None if event.TERMINAL else (response, said)
        return said

    def _settings(self, event: LifecycleEvent) -> bytes:
        settings = _settings_of(event.response)
        built = self._repeats.recall(event.stream_id, "settings", settings)
        if built is None:
            message = ResponseMessage()
            _SETTINGS.write(message, event.response)
            built = message.SerializeToString()
            self.work += len(built)
            self._repeats.keep(event.stream_id, "settings", settings, built)
        return built

    def _whole(self, event: Event, pieces: _Pieces) -> None:
        encoded = encode_event(event)
        self.work += len(encoded)
        pieces.append(encoded)


_WRITERS: Final[dict[type[Event], Callable[[EventEncoder, Any, _Pieces], None]]] = {
    events.OutputItemAdded: EventEncoder._item_event,
    events.OutputItemDone: EventEncoder._item_event,
    **{kind: EventEncoder._lifecycle for kind in _ARMS if issubclass(kind, LifecycleEvent)},
    **dict.fromkeys(_LAYOUTS.keys() - _DELTAS.keys(), EventEncoder._positioned),
}
"""Event of which something comes again -> what writes it; any other is built whole."""


def _beside(event: events.ResponseCreated) -> bytes:
    """What says how its create was taken."""
    if event.event_id is UNSET and event.warnings is UNSET:
        return b""
    message = CreatedMessage()
    _ARMS[events.ResponseCreated].spec.write(message, event)
    return message.SerializeToString()


_ARM_TAGS: Final = {kind: tag(arm.number) for kind, arm in _ARMS.items()}
_INDEX: Final = tag(OutputItemDone.OUTPUT_INDEX_FIELD_NUMBER, NUMBER)
_ITEM: Final = tag(OutputItemDone.ITEM_FIELD_NUMBER)
_RESPONSE: Final = tag(ServerEvent.RESPONSE_FIELD_NUMBER)
_ENDING: Final = tag(ServerEvent.ENDING_FIELD_NUMBER, NUMBER)
# The same in all events that end a response.
_OMITTED: Final = tag(ResponseCompleted.OUTPUT_OMITTED_FIELD_NUMBER, NUMBER) + VARINT[True]


def _arms(inner: bytes) -> dict[type[Event], bytes]:
    """Lifecycle event -> its arm with these fields, and its ending."""
    return {
        kind: field(_ARM_TAGS[kind], inner)
        + (_ENDING + VARINT[ENDINGS[kind]] if kind in ENDINGS else b"")
        for kind in _ARMS
    }


_BARE_ARMS: Final = _arms(b"")
_OMITTED_ARMS: Final = _arms(_OMITTED)
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


def _own(response: Response) -> ResponseMessage:
    """The members of a response that are no echo of its create, but its output."""
    message = ResponseMessage()
    number = None if response.status is None else _STATUSES.get(response.status)
    made, ended = response.created_at, response.completed_at
    if (
        number is None
        or not isinstance(made, int)
        or isinstance(ended, float)
        or response.error is not None
        or response.incomplete_details is not None
        or not _count(message, response.usage)
    ):
        message.Clear()
        _OWN.write(message, response)
        return message
    message.id = response.id
    message.created_at.seconds = made
    message.status = number
    if ended is not None:
        message.completed_at.seconds = ended
    if response.previous_response_id is not None:
        message.previous_response_id = response.previous_response_id
    return message


_STATUS: Final = RESPONSE.slots["status"].kind
assert isinstance(_STATUS, Choice)
# To the stubs an enum's number is no int.
_STATUSES: Final[dict[str, Any]] = _STATUS.numbers


def _count(message: ResponseMessage, usage: Usage | None) -> bool:
    """Writes a usage; False where a count does not fit its field."""
    if usage is None:
        return True
    said = message.usage
    inputs, outputs = said.input_tokens_details, said.output_tokens_details
    details = usage.input_tokens_details
    try:
        said.input_tokens = usage.input_tokens
        inputs.cached_tokens = details.cached_tokens
        inputs.cache_write_tokens = details.cache_write_tokens
        said.output_tokens = usage.output_tokens
        outputs.reasoning_tokens = usage.output_tokens_details.reasoning_tokens
        said.total_tokens = usage.total_tokens
    except ValueError:
        return False
    return True


_SETTINGS: Final = RESPONSE.without("output", *_OWN_NAMES)
"""What a response echoes of its create: the same in each of its events, and often in the next."""
_settings_of: Final = getter(tuple(sorted({slot.name for slot in _SETTINGS.slots.values()})))
