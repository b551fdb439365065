"""JSON objects with an envelope -> messages and back, for events and client events alike.

A wire message has members of its own (``stream_id``, ...) beside a oneof of typed arms and one
``opaque`` arm. In JSON all of that is one object, whose ``type`` chooses the arm.
"""

from collections.abc import Mapping
from typing import Any, Final

from tieline.codecs.json import check, invalid_event, members, text_of
from tieline.codecs.proto.fields import Spec, dumps
from tieline.codecs.proto.schema import Arm


class Bridge:
    """The lossless bridge of one kind of wire message."""

    def __init__(self, holder: Any, oneof: str, *, envelope: Spec, arms: Mapping[str, Arm]) -> None:
        self._holder: Final = holder
        self._oneof: Final = oneof
        self._envelope: Final = envelope
        self._arms: Final = arms
        self._by_type: Final = {arm.type: arm for arm in arms.values()}

    def to_proto(self, raw: bytes) -> Any:
        """JSON -> message; raises :class:`ApiError` (400 ``invalid_json``) when it is no JSON."""
        check(raw)
        message = self._holder()
        given = members(raw)
        name = "" if given is None else text_of(given.get("type"))
        arm = self._by_type.get(name)
        if given is None or arm is None:
            message.opaque.type = name
            message.opaque.json = raw.decode()
            return message
        inner = getattr(message, arm.name)
        inner.SetInParent()
        arm.spec.fill(inner, self._envelope.take(message, given))
        return message

    def to_json(self, message: Any) -> bytes:
        """Message -> JSON; raises 400 ``invalid_event`` (no arm) or what the members raise."""
        name = message.WhichOneof(self._oneof)
        if name is None:
            raise invalid_event("The message is unset, or of a kind that is not known here.")
        inner = getattr(message, name)
        if name == "opaque":
            raw: bytes = inner.json.encode()
            check(raw, param="opaque.json")
            return raw
        said = self._arms[name].spec.members(inner)
        return dumps(said | self._envelope.members(message))
