"""Idempotency keys: which creates are the same one (docs/protocol.md#when-a-connection-drops).

Only digests are kept. A body's digest is the same over all transports: it is of the create as it
was understood, without what concerns the way that it came.
"""

import hashlib
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
        "unknown",
    }
)
_MEMBERS: Final = tuple(name for name in Create.__struct_fields__ if name not in _WAY)


def digests(owner: str, create: Create) -> tuple[bytes, bytes]:
    """What stands for a create's key, and for the create itself."""
    return key_digest(owner, create.idempotency_key or ""), body_digest(create)


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
    if isinstance(given.get("input"), list):
        given["input"] = [_typed(item) for item in given["input"]]
    return hashlib.sha256(_encoder.encode(given)).digest()


def _typed(item: Any) -> Any:
    """An item of no type is a message: typed stubs cannot leave the type out."""
    return {"type": "message", **item} if isinstance(item, dict) else item


def _value(member: Any) -> Any:
    if member is UNSET or member is ABSENT:
        return None
    if isinstance(member, Raw):
        return _decoder.decode(member)
    return _number(str(member)) if isinstance(member, float) else member


def _number(text: str) -> int | Raw:
    """A number by its value, exactly: its digits without zeros around them, and their place."""
    mantissa, _, exponent = text.lower().partition("e")
    whole, _, fraction = mantissa.removeprefix("-").partition(".")
    digits = (whole + fraction).rstrip("0")
    if not digits:
        return 0
    shift = exponent.lstrip("+-").lstrip("0")
    if len(shift) > _EXPONENT:
        # Too small to tell from zero: the number as it is written.
        return Raw(text.encode())
    exact = int(shift or 0) * (-1 if exponent.startswith("-") else 1)
    power = exact + len(whole) - len(digits)
    digits = digits.lstrip("0")
    sign = "-" if mantissa[0] == "-" else ""
    if power >= 0 and len(digits) + power <= _INTEGER:
        return int(f"{sign}{digits}{'0' * power}")
    return Raw(f"{sign}{digits}e{power}".encode())


# Digits of an exponent that is read: int() refuses more than 4300.
_EXPONENT: Final = 4000

# Digits of the largest number within a double: an integer as the decoder reads it.
_INTEGER: Final = 309

_decoder: Final = msgspec.json.Decoder(float_hook=_number)
_encoder: Final = msgspec.json.Encoder(order="deterministic")
