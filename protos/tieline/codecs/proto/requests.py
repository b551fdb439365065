"""Client events as ``tieline.v1.ConverseRequest``, and back with what a connection remembers."""

from typing import Any, Final

import msgspec
from msgspec import UNSET, Raw, Struct, structs

from tieline.codecs import json
from tieline.codecs.proto.bridge import Bridge
from tieline.codecs.proto.field_reader import FieldReader
from tieline.codecs.proto.fields import NULL, Spec, extras, getter
from tieline.codecs.proto.frames import field, tag
from tieline.codecs.proto.schema import CREATE, REQUEST, REQUESTS
from tieline.codecs.repeat_cache import MAX_NAME, RepeatCache
from tieline.complaints import refusal
from tieline.requests import REPEATED, Create, Request, raw_members, unknown_of
from tieline.v1.requests_pb2 import ResponseCreate
from tieline.v1.service_pb2 import ConverseRequest

BRIDGE: Final = Bridge(ConverseRequest, "message", envelope=REQUEST, arms=REQUESTS)
_BY_CLASS: Final = {arm.kind: arm for arm in REQUESTS.values()}


def request_to_proto(raw: bytes) -> ConverseRequest:
    """A client event as a message, nothing lost, nothing judged but the JSON itself."""
    message: ConverseRequest = BRIDGE.to_proto(raw)
    return message


def request_to_json(message: ConverseRequest) -> bytes:
    """A client event as JSON text: of ``request_to_proto``, JSON equal to the original's."""
    return BRIDGE.to_json(message)


def encode_request(request: Request) -> ConverseRequest:
    """A client event as a message; one without an arm travels as its JSON."""
    message = ConverseRequest()
    REQUEST.write(message, request)
    arm = _BY_CLASS.get(type(request))
    if arm is None:
        message.opaque.type = request.type
        message.opaque.json = json.encode(request).decode()
        return message
    inner = getattr(message, arm.name)
    inner.SetInParent()
    arm.spec.write(inner, request)
    return message


def decode_request(message: ConverseRequest) -> Request:
    """Reads one client event.

    Raises :class:`ApiError` (400): ``invalid_event`` when no arm is set or known,
    ``invalid_json`` for a broken ``*_json`` field, ``invalid_type`` and its kin for a member.
    """
    return RequestDecoder().decode(message)


def to_create(create: Create) -> ResponseCreate:
    """A create as a message, without the members of its envelope."""
    message = ResponseCreate()
    CREATE.write(message, create)
    return message


def from_create(message: ResponseCreate) -> Create:
    """Reads a create; raises as :func:`decode_request` does."""
    return RequestDecoder().create(message)


class RequestEncoder:
    """Encodes the client events of one connection and builds settings that come again only once.

    >>> from tieline.requests import Cancel
    >>> cancel = Cancel(response_id="resp_1")
    >>> RequestEncoder().encode(cancel) == encode_request(cancel).SerializeToString()
    True
    """

    __slots__ = ("_repeats", "work")

    def __init__(self) -> None:
        self._repeats = RepeatCache[bytes]()
        self.work = 0
        """Bytes really built, without what was remembered."""

    def encode(self, request: Request) -> bytes:
        """The client event as a serialized ConverseRequest."""
        settings = self._settings(request) if isinstance(request, Create) else None
        message = ResponseCreate()
        if settings is not None:
            _NEW.write(message, request)
        if settings is None or message.HasField("unknown"):
            encoded = encode_request(request).SerializeToString()
            self.work += len(encoded)
            return encoded
        new = message.SerializeToString()
        envelope = ConverseRequest()
        REQUEST.write(envelope, request)
        self.work += len(new)
        return envelope.SerializeToString() + field(_CREATE, settings + new)

    def _settings(self, request: Create) -> bytes | None:
        """The settings as fields; None where a member needs ``unknown``, which is but one."""
        said = _settings_of(request)
        built = self._repeats.recall(request.stream_id, "settings", said)
        if built is None:
            message = ResponseCreate()
            _SETTINGS.write(message, request)
            if message.HasField("unknown"):
                return None
            built = message.SerializeToString()
            self.work += len(built)
            self._repeats.keep(request.stream_id, "settings", said, built)
        return built


_settings_of: Final = getter(tuple(sorted(REPEATED)))
_SETTINGS: Final = CREATE.only(REPEATED)
_NEW: Final = CREATE.without(*REPEATED)
_CREATE: Final = tag(ConverseRequest.RESPONSE_CREATE_FIELD_NUMBER)


class RequestDecoder:
    """Reads the client events of one connection and remembers their free-form members.

    Tools and instructions come again in full with every create. A field that equals the last one
    of its name is not turned into JSON again: the same object is handed out.
    """

    __slots__ = ("_fields", "_json", "_work")

    def __init__(self) -> None:
        self._json = json.RequestDecoder()
        self._fields = FieldReader()
        self._work = 0

    @property
    def work(self) -> int:
        """Bytes really read or built, without what was remembered."""
        return self._work + self._fields.work + self._json.work

    def decode(self, message: ConverseRequest) -> Request:
        """Reads one client event; raises as :func:`decode_request` does."""
        fields = message.ListFields()
        # They come by number, which puts the arm, where there is one, before the envelope.
        name = fields[0][0].name if fields else ""
        envelope = (REQUEST.read(message) or {}) if len(fields) > 1 else {}
        arm = REQUESTS.get(name)
        if arm is not None:
            # Enough to tell lanes apart, whatever a name that will be refused may weigh.
            lane = envelope.get("stream_id", "")[:MAX_NAME]
            values = self._read(arm.spec, fields[0][1], kind=arm.kind, lane=lane)
            decoded: Request = _converted(values | envelope, arm.kind)
            return decoded
        if name == "opaque":
            request = self._json.decode(message.opaque.json.encode())
            return _enveloped(request, envelope)
        raise json.invalid_event("The message is unset, or of a kind that is not known here.")

    def create(self, message: ResponseCreate) -> Create:
        """Reads the create of a unary call; raises as :func:`decode_request` does."""
        created: Create = _converted(self._read(CREATE, message, kind=Create, lane=""), Create)
        return created

    def _read(self, spec: Spec, message: Any, *, kind: type[Struct], lane: str) -> dict[str, Any]:
        values = self._fields.read(spec, message, lane)
        if message.HasField("unknown"):
            self._work += len(message.unknown.extra_json)
            _add_extras(values, extras(message), kind)
        return values


_UNKNOWN: Final = ""
"""The name by which a create has what it does not know."""


def _add_extras(values: dict[str, Any], given: dict[str, Raw], kind: type[Struct]) -> None:
    """Members that the typed fields could not say: what they are is judged as in JSON."""
    raws = raw_members(kind)
    if kind is Create and (odd := unknown_of(given)) is not UNSET:
        values[_UNKNOWN] = odd
    for name in kind.__struct_encode_fields__:
        raw = given.get(name) if name != _UNKNOWN else None
        if raw is not None:
            values.pop(name, None)
        if raw is not None and raw != NULL:
            values[name] = raw if name in raws else msgspec.json.decode(raw)


def _converted(values: dict[str, Any], kind: type[Struct]) -> Any:
    """The struct, its bounds checked; raises :class:`ApiError` (400) with the member as param."""
    try:
        return msgspec.convert(values, kind)
    except msgspec.ValidationError as error:
        raise refusal(error) from None


def _enveloped(request: Request, envelope: dict[str, Any]) -> Request:
    """A client event that came as JSON, with what the message says beside it."""
    known = {name: value for name, value in envelope.items() if hasattr(request, name)}
    if not known:
        return request
    # Bounds are those of the classes: a replaced member is not held against them.
    _converted(known, Request)
    return structs.replace(request, **known)
