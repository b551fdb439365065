"""What a client has seen, by shape: names of members and kinds of values, and no values.

Of the values only the words are kept that an API has instead of numbers (``WORDS``), and what
stands before the random part of an id. Objects that come in many places, a response and the items,
have a heading of their own.
"""

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import Any, Final

from google.protobuf.message import Message

WORDS: Final = frozenset(
    {"object", "reason", "role", "status", "tool_choice", "truncation", "type"}
)
"""Members whose strings are words of the API. Of errors, the table has them."""

MAIN: Final = frozenset({"http", "sse", "websocket"})
"""Wires of OpenAI's API, on which a client has asked for nothing more."""

_ID: Final = re.compile(r"([a-z]+_)[0-9a-f]{16,}")
_ITEMS: Final = frozenset({"item", "output", "required_input", "data"})


class Shapes:
    """Headings, below each its members, below each what was seen there and on which wires."""

    def __init__(self) -> None:
        self._seen: dict[str, dict[str, dict[str, set[str]]]] = defaultdict(
            lambda: defaultdict(lambda: defaultdict(set))
        )

    def add(self, heading: str, value: Any, wire: str) -> None:
        """Looks at one JSON value that came over this wire."""
        self._look(heading, "", value, wire)

    def _look(self, heading: str, path: str, value: Any, wire: str) -> None:
        own = _heading(path, value)
        if own is not None and own != heading:
            self._note(heading, path, f"({own})", wire)
            heading, path = own, ""
        match value:
            case dict():
                self._note(heading, path, "object", wire)
                for name, inner in value.items():
                    self._look(heading, f"{path}.{name}" if path else name, inner, wire)
            case list():
                self._note(heading, path, "array", wire)
                for inner in value:
                    self._look(heading, f"{path}[]", inner, wire)
            case _:
                self._note(heading, path, _kind(path, value), wire)

    def _note(self, heading: str, path: str, kind: str, wire: str) -> None:
        self._seen[heading][path][kind].add(wire)

    def lines(self) -> Iterator[str]:
        """Sorted; a member has its wires where a client of OpenAI's API does not see it."""
        for heading, members in sorted(self._seen.items()):
            wires = {wire for kinds in members.values() for seen in kinds.values() for wire in seen}
            yield f"{heading} ({'; '.join(sorted(wires))})"
            for path, kinds in sorted(members.items()):
                # That it is an object is said by its members.
                if path:
                    said = (_said(kind, seen, wires) for kind, seen in sorted(kinds.items()))
                    yield f"    {path}: {' | '.join(said)}"


def _said(kind: str, seen: set[str], wires: set[str]) -> str:
    return kind if seen & MAIN or seen == wires else f"{kind} ({'; '.join(sorted(seen))})"


def _heading(path: str, value: Any) -> str | None:
    """The heading of an object that comes in many places."""
    if not isinstance(value, dict):
        return None
    if value.get("object") == "response" and "output" in value:
        return "a response"
    member = path.removesuffix("[]").rpartition(".")[2]
    if member in _ITEMS and isinstance(value.get("type"), str):
        return f"item {value['type']}"
    return None


def _kind(path: str, value: Any) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "boolean"
        case int() | float():
            return "number"
    assert isinstance(value, str)
    before, _, member = path.removesuffix("[]").rpartition(".")
    if member in WORDS and before != "error":
        return f'"{value}"'
    found = _ID.fullmatch(value)
    return "string" if found is None else f'"{found[1]}..."'


class Fields:
    """Protobuf messages that came, and the fields that were set in them."""

    def __init__(self) -> None:
        self._seen: dict[str, set[str]] = defaultdict(set)

    def add(self, message: Message) -> None:
        """Looks at one message and at all inside it."""
        seen = self._seen[message.DESCRIPTOR.full_name]
        for field, value in message.ListFields():
            seen.add(field.name)
            if field.message_type is None:
                continue
            for inner in _values(value):
                if isinstance(inner, Message):
                    self.add(inner)

    def lines(self) -> Iterator[str]:
        """Sorted."""
        for name, fields in sorted(self._seen.items()):
            yield f"{name}: {', '.join(sorted(fields))}"


def _values(value: Any) -> Iterable[Any]:
    if isinstance(value, Message):
        return (value,)
    found: Iterable[Any] = value.values() if hasattr(value, "values") else value
    return found
