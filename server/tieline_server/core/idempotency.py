"""Idempotency keys: which creates are the same one (design: idempotency_key).

Only digests are kept. A body's digest is the same over all transports: it is of the create as it
was understood, without what concerns the way that it came.
"""

import hashlib
from decimal import Decimal
from typing import Any, Final

import msgspec
from msgspec import UNSET, Raw

from tieline.requests import ABSENT, Create

_WAY: Final = frozenset(
    {
        "client_metadata",
        "event_id",
        "idempotency_key",
        "stream",
        "stream_id",
        "trace_context",
    }
)
_MEMBERS: Final = tuple(name for name in Create.__struct_fields__ if name not in _WAY)


def key_digest(owner: str, key: str) -> bytes:
    """What stands for an owner's key.

    >>> key_digest("a", "k") == key_digest("b", "k")
    False
    """
    return hashlib.sha256(msgspec.json.encode([owner, key])).digest()


def body_digest(create: Create) -> bytes:
    """What stands for the create itself: equal JSON, equal digest.

    Members in any order, numbers by their value, the last of members of one name.

    >>> one = Create(input=Raw(b'[{"role": "user", "content": 1.0}]'))
    >>> same = Create(input=Raw(b'[{"content": 1, "role": "user"}]'), stream=True)
    >>> body_digest(one) == body_digest(same)
    True
    """
    said = {name: _value(getattr(create, name)) for name in _MEMBERS}
    given = {name: value for name, value in said.items() if value is not None}
    return hashlib.sha256(_encoder.encode(given)).digest()


def _value(member: Any) -> Any:
    if member is UNSET or member is ABSENT:
        return None
    if isinstance(member, Raw):
        return _decoder.decode(member)
    return _number(str(member)) if isinstance(member, float) else member


def _number(text: str) -> Any:
    """A number by its value; one with a fraction as what no JSON text can say."""
    value = Decimal(text)
    if value == value.to_integral_value():
        return int(value)
    return {"\x00": str(value.normalize())}


_decoder: Final = msgspec.json.Decoder(float_hook=_number)
_encoder: Final = msgspec.json.Encoder(order="deterministic")
