"""Large fields that peers repeat in full, turned into JSON once.

A field that equals the last one of its name on its lane is not read again: the same object is
handed out. Equal is judged by protobuf's own comparison, which costs a tenth of reading.
"""

from copy import deepcopy
from typing import Any, Final

from msgspec import Raw

from tieline.codecs.proto.fields import Spec
from tieline.codecs.proto.schema import CREATE
from tieline.codecs.repeat_cache import MAX_BYTES, RepeatCache
from tieline.requests import REPEATED

NAMES: Final = frozenset(field for field, slot in CREATE.slots.items() if slot.name in REPEATED)
"""Fields of a create and of its echo: bounded in number, so that a connection's memory is too."""


class FieldReader:
    """Reads the messages of one connection and remembers their repeated settings."""

    __slots__ = ("_repeats", "work")

    def __init__(self) -> None:
        self._repeats = RepeatCache[Raw]()
        self.work = 0
        """Bytes really read, without what was remembered."""

    def read(self, spec: Spec, message: Any, lane: str) -> dict[str, Any]:
        """Message -> the members of its struct; ``unknown`` is not looked at."""
        values = spec.blanks(message)
        readers = spec.readers
        for descriptor, field in message.ListFields():
            reader = readers.get(descriptor)
            if reader is None:
                continue
            name, read = reader
            if read is None:
                values[name] = field
                self.work += len(field) if type(field) is str else 8
                continue
            field_name = descriptor.name
            repeats = field_name in NAMES
            value = self._repeats.recall(lane, field_name, field) if repeats else None
            if value is None:
                value = read(field, name)
                self.work += size(value)
                if repeats and size(value) <= MAX_BYTES:
                    # A copy does not keep the whole message in memory.
                    self._repeats.keep(lane, field_name, deepcopy(field), value)
            values[name] = value
        return values


def size(value: Any) -> int:
    """Roughly the bytes of a value, for counting work."""
    if type(value) is Raw:
        return memoryview(value).nbytes
    return len(value) if type(value) in _SIZED else 8


_SIZED: Final = frozenset({str, list, dict})
