"""Events as ``tieline.v1.ServerEvent``, alone and as the bytes that a stream writes."""

from typing import Any, Final, cast

from msgspec import UNSET

from tieline import events
from tieline.codecs import json
from tieline.codecs.proto.bridge import Bridge
from tieline.codecs.proto.errors import error_status
from tieline.codecs.proto.field_reader import FieldReader
from tieline.codecs.proto.schema import EVENT, EVENTS, RESPONSE, Arm
from tieline.errors import ApiError
from tieline.events import ErrorEvent, Event, LifecycleEvent, RequestWarning
from tieline.responses import Response
from tieline.v1.events_pb2 import RequestWarning as WarningMessage
from tieline.v1.events_pb2 import ServerEvent
from tieline.v1.line_pb2 import ConnectResponse
from tieline.v1.responses_pb2 import Response as ResponseMessage

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
        BARE[type(event)].write(inner, event)
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
BARE: Final = {
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
        inner = getattr(message, arm.name)
        snapshot = inner.response
        odd = inner.extra_json or snapshot.extra_json or snapshot.absent
        if odd or not inner.HasField("response"):
            return decode_event(message)
        response = Response(**self._fields.read(RESPONSE, snapshot, message.stream_id))
        values = BARE[arm.kind].read(inner) or {}
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
