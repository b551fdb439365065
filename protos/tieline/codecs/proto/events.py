"""Events as ``tieline.v1.ServerEvent``, alone and as the bytes that a stream writes."""

from typing import Any, Final, cast

from msgspec import UNSET

from tieline import events
from tieline.codecs import json
from tieline.codecs.proto.bridge import Bridge
from tieline.codecs.proto.field_reader import FieldReader
from tieline.codecs.proto.schema import EVENT, EVENTS, RESPONSE, Arm
from tieline.errors import RESUMED_ELSEWHERE
from tieline.events import ErrorEvent, Event, LifecycleEvent, RequestWarning
from tieline.responses import Response
from tieline.v1.events_pb2 import (
    ENDING_COMPLETED,
    ENDING_FAILED,
    ENDING_HELD,
    ENDING_INCOMPLETE,
    ENDING_READER_MOVED,
    ENDING_REFUSED,
    ENDING_UNSPECIFIED,
    Ending,
    ServerEvent,
)
from tieline.v1.events_pb2 import RequestWarning as WarningMessage
from tieline.v1.responses_pb2 import Response as ResponseMessage
from tieline.v1.service_pb2 import ConverseResponse

BRIDGE: Final = Bridge(ServerEvent, "event", envelope=EVENT, arms=EVENTS)
_BY_CLASS: Final[dict[type, Arm]] = {
    **{arm.kind: arm for arm in EVENTS.values()},
    events.RequestRefused: EVENTS["error"],
}


ENDINGS: Final[dict[type[Event], Ending.ValueType]] = {
    events.ResponseDone: ENDING_HELD,
    events.ResponseCompleted: ENDING_COMPLETED,
    events.ResponseIncomplete: ENDING_INCOMPLETE,
    events.ResponseFailed: ENDING_FAILED,
    events.RequestRefused: ENDING_REFUSED,
}
"""Event after which its turn says nothing more for now -> its ``ending``."""


def json_to_proto(raw: bytes) -> ServerEvent:
    """An event from outside as a message, nothing lost.

    An unknown or missing ``type`` goes to the opaque arm, unknown members to ``unknown``. JSON
    does not tell the error that refuses a create from others: neither has an ``ending``.
    Raises :class:`ApiError` (400 ``invalid_json``) when the text is no JSON.
    """
    message: ServerEvent = BRIDGE.to_proto(raw)
    arm = EVENTS.get(message.WhichOneof("event") or "")
    if arm is not None:
        message.ending = _ending(arm.kind, message.error.error.code)
    return message


def _ending(kind: type[Event], code: str | None) -> Ending.ValueType:
    if code == RESUMED_ELSEWHERE:
        return ENDING_READER_MOVED
    return ENDINGS.get(kind, ENDING_UNSPECIFIED)


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
    """An event as a serialized ConverseResponse of its own; such bytes concatenate.

    >>> event = events.Heartbeat(phase="idle")
    >>> len(ConverseResponse.FromString(encode_event(event) * 3).events)
    3
    """
    response = ConverseResponse()
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
    arm.spec.write(inner, event)
    if isinstance(event, LifecycleEvent):
        message.response.SetInParent()
        (_NO_OUTPUT if output_omitted else RESPONSE).write(message.response, event.response)
        if output_omitted:
            inner.output_omitted = True
    code = event.error.code if isinstance(event, ErrorEvent) else None
    message.ending = _ending(type(event), code)


def _number(message: ServerEvent, event: Event) -> None:
    if event.sequence_number is not UNSET:
        message.sequence_number = event.sequence_number
    if event.stream_id is not UNSET:
        message.stream_id = event.stream_id


_NO_OUTPUT: Final = RESPONSE.without("output")


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
            if issubclass(arm.kind, LifecycleEvent) and message.HasField("response"):
                values["response"] = RESPONSE.build(message.response)
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
    kind = arm.kind
    if kind is ErrorEvent and message.ending == ENDING_REFUSED:
        kind = events.RequestRefused
    return cast(Event, kind(**values))


class EventDecoder:
    """Reads the events of one connection and reads the settings that responses echo only once."""

    __slots__ = ("_fields",)

    def __init__(self) -> None:
        self._fields = FieldReader()

    @property
    def work(self) -> int:
        """Bytes of responses really read, without what was remembered."""
        return self._fields.work

    def decode(self, message: ServerEvent) -> Event:
        """Reads one event; raises as :func:`decode_event` does."""
        arm = EVENTS.get(message.WhichOneof("event") or "")
        if arm is None or not issubclass(arm.kind, LifecycleEvent):
            return decode_event(message)
        inner, snapshot = getattr(message, arm.name), message.response
        odd = inner.HasField("unknown") or snapshot.HasField("unknown")
        if odd or not message.HasField("response"):
            return decode_event(message)
        response = Response(**self._fields.read(RESPONSE, snapshot, message.stream_id))
        values = arm.spec.read(inner) or {}
        return _event(arm, message, values | {"response": response})


def to_response(response: Response) -> ResponseMessage:
    """A response as a message."""
    message = ResponseMessage()
    RESPONSE.write(message, response)
    return message


def to_warning(warning: RequestWarning) -> WarningMessage:
    """A warning as a message."""
    return WarningMessage(code=warning.code, message=warning.message, param=warning.param)


def from_response(message: ResponseMessage) -> Response:
    """A response from a message; raises 400 ``invalid_json`` for broken ``*_json`` fields."""
    response: Response = RESPONSE.build(message)
    return response
