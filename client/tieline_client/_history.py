"""What a conversation has said so far, and how little of it a turn must send, without I/O.

Theory of operation. The items are the truth: they are all that a server needs which knows
nothing. A response id stands for the items up to it, its *base*. A turn sends only what comes
after the base, and the id, as long as the items still begin with exactly that base (an
edit of them makes the id worthless) and the server still knows the id. Settings are no part of
this: they come again in full with every create, so that a change of them keeps the chain.
"""

from collections.abc import Sequence
from typing import Any, Final

import msgspec
from msgspec import Raw, Struct

_MADE: Final = frozenset({"message", "function_call", "custom_tool_call", "reasoning"})
"""Kinds of output items that can go back as input."""
_CALLS: Final = frozenset({"function_call", "custom_tool_call", "reasoning"})
"""Kinds that do not count while they are unfinished (wire.md 4.4.4)."""


class Plan(Struct, frozen=True, kw_only=True):
    """What one create sends of the history."""

    input: Raw
    previous_response_id: str | None
    whole: bool
    """Whether it is all that the conversation has."""


class History:
    """The items of one conversation; ``items`` may be changed between turns.

    ``root``: a response before all items, whose own items are not known here.
    """

    def __init__(self, root: str | None = None) -> None:
        self.root = root
        self.items: list[Raw] = []
        self._base: tuple[Raw, ...] = ()
        self.latest: str | None = root
        """The response that stands for the base; None when there is none (any more)."""

    def plan(self, new: Sequence[Raw], *, remembered: bool) -> Plan:
        """What to send for these new items; ``remembered``: the server should know the base."""
        base = len(self._base)
        chained = remembered and self.latest is not None
        if not chained or tuple(self.items[:base]) != self._base:
            return self.whole(new)
        pending = [*self.items[base:], *new]
        at_root = self.latest == self.root and not base
        return Plan(input=_joined(pending), previous_response_id=self.latest, whole=at_root)

    def whole(self, new: Sequence[Raw]) -> Plan:
        """All of it: for a server that knows nothing of what came after the root."""
        items = [*map(_portable, self.items), *new]
        known = [item for item in items if item is not None]
        return Plan(input=_joined(known), previous_response_id=self.root, whole=True)

    def rest(
        self, response_id: str, new: Sequence[Raw], output: Sequence[Raw], *, cut: bool = True
    ) -> None:
        """A response has taken the new items and has made these.

        Of one that was ``cut``, a call that is incomplete is not in the chain. Of any other it
        is: a value in it has reached a bound of the server's, and it can be answered.
        """
        self.items += [*new, *(raw for raw in output if not cut or _counts(raw))]
        self.latest, self._base = response_id, tuple(self.items)

    def restart(self, response_id: str) -> None:
        """What stands for the conversation is this response; its items are not known here."""
        self.items.clear()
        self.root = self.latest = response_id
        self._base = ()

    def forget(self) -> None:
        """The server does not know the latest response (any more)."""
        self.latest = None


def _joined(items: Sequence[Raw]) -> Raw:
    return Raw(b"[" + b",".join(bytes(item) for item in items) + b"]")


def _members(raw: Raw) -> dict[str, Any]:
    try:
        said = msgspec.json.decode(raw)
    except (msgspec.MsgspecError, RecursionError):
        return {}
    return said if isinstance(said, dict) else {}


def _counts(raw: Raw) -> bool:
    """Whether an output item is in the chain: of a response that was cut, not every one is."""
    item = _members(raw)
    unfinished = item.get("status") in ("in_progress", "incomplete")
    return not (item.get("type") in _CALLS and unfinished)


def _portable(raw: Raw) -> Raw | None:
    """An item as a server takes it that did not make it; None for one that it cannot take.

    Ids are of what a server has stored, and reasoning without its sealed content is only an id.
    """
    item = _members(raw)
    if item.get("type", "message") not in _MADE or "id" not in item:
        return raw
    if item.get("type") == "reasoning" and not item.get("encrypted_content"):
        return None
    del item["id"]
    return Raw(msgspec.json.encode(item))
