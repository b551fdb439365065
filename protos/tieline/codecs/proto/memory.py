"""Large fields that peers repeat in full, turned into JSON once.

A field that equals the last one of its name on its lane is not read again: the same object is
handed out. Equal is judged by protobuf's own comparison, which costs a tenth of reading.
"""

from typing import Any, Final

from msgspec import Raw

from tieline.codecs.memory import MAX_BYTES, Memory
from tieline.codecs.proto.fields import Slot, Spec

NAMES: Final = frozenset(
    {
        "instructions",
        "tools",
        "tool_choice",
        "tool_choice_json",
        "text_json",
        "reasoning_json",
        "conversation_json",
        "prompt_json",
        "context_management_json",
    }
)
"""Fields of a create and of its echo: bounded in number, so that a line's memory is too."""


class FieldMemory:
    """Reads the messages of one line and remembers their repeated settings."""

    __slots__ = ("_memory", "work")

    def __init__(self) -> None:
        self._memory = Memory[Raw]()
        self.work = 0
        """Bytes really read, without what was remembered."""

    def read(self, spec: Spec, message: Any, lane: str) -> dict[str, Any]:
        """Message -> the members of its struct; ``extra_json`` is not looked at."""
        values = spec.blanks(message)
        for descriptor, field in message.ListFields():
            slot = spec.slots.get(descriptor.name)
            if slot is None:
                continue
            if descriptor.name in NAMES:
                values[slot.name] = self._remembered(lane, message, descriptor.name, field, slot)
            else:
                values[slot.name] = value = slot.kind.read(field, slot.name)
                self.work += size(value)
        return values

    def _remembered(self, lane: str, message: Any, name: str, field: Any, slot: Slot) -> Raw:
        last = self._memory.recall(lane, name, field)
        if last is not None:
            return last
        value: Raw = slot.kind.read(field, slot.name)
        self.work += size(value)
        if size(value) > MAX_BYTES:
            return value
        said = field if isinstance(field, str) else _copy(message, name, field)
        self._memory.keep(lane, name, said, value)
        return value


def _copy(message: Any, name: str, field: Any) -> Any:
    """A copy of a repeated field that does not keep the whole message in memory."""
    copy = getattr(type(message)(), name)
    copy.extend(field)
    return copy


def size(value: Any) -> int:
    """Roughly the bytes of a value, for counting work."""
    if isinstance(value, Raw):
        return memoryview(value).nbytes
    return len(value) if isinstance(value, str | list | dict) else 8
