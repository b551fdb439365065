"""How points and lengths of time are said: a number in JSON, a message of protobuf's own.

A number that the message cannot say exactly stays in ``extra_json``, as of any other kind.
"""

from typing import Any, Final

from tieline.codecs.proto.fields import Scalar

_NANOS: Final = 1_000_000_000
_MILLI: Final = 1_000_000
"""Nanoseconds of a second, and of a millisecond."""


def _set(message: Any, slot: str, seconds: int, nanos: int) -> None:
    """Sets a ``Timestamp`` or a ``Duration``, zero too."""
    inner = getattr(message, slot)
    inner.SetInParent()
    inner.seconds, inner.nanos = seconds, nanos


class Instant(Scalar):
    """A point in time: Unix seconds in JSON, a ``Timestamp`` as a message."""

    _last = 253_402_300_799
    """The end of the year 9999, where a ``Timestamp`` ends."""

    def __init__(self) -> None:
        super().__init__(int | float, 0)

    def write(self, message: Any, slot: str, value: Any) -> bool:
        # NaN is not between them either.
        if not 0 <= value <= self._last:
            return False
        seconds = int(value)
        nanos = round((value - seconds) * _NANOS)
        if seconds + nanos / _NANOS != value:
            return False
        _set(message, slot, seconds, nanos)
        return True

    def load(self, field: Any, param: str) -> Any:
        return field.seconds + field.nanos / _NANOS if field.nanos else field.seconds


class Seconds(Instant):
    """A length of time in seconds, a ``Duration`` as a message."""

    _last = 315_576_000_000
    """Seconds of 10,000 years, where a ``Duration`` ends."""

    def load(self, field: Any, param: str) -> Any:
        return float(super().load(field, param))


class Milliseconds(Instant):
    """A length of time in milliseconds, a ``Duration`` as a message, which is rounded up."""

    _last = Seconds._last * 1000

    def write(self, message: Any, slot: str, value: Any) -> bool:
        if type(value) is not int or not 0 <= value <= self._last:
            return False
        seconds, rest = divmod(value, 1000)
        _set(message, slot, seconds, rest * _MILLI)
        return True

    def load(self, field: Any, param: str) -> Any:
        return field.seconds * 1000 - (-field.nanos // _MILLI)
