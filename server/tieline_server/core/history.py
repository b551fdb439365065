"""What a line remembers between turns: chains of immutable segments.

A response remembers the tip of a chain. The next turn puts new segments after that tip; nothing
before it is copied, parsed or checked again, so a turn costs what is new in it. Forks share
their parents. Whatever is computed for a segment (token ids, encoded fragments, facts that rules
ask for) hangs on it, once.

Two questions must not cost a walk of the chain: "is this item id in it?" and "which calls wait
for an output?". Ids live in a :class:`Branch`, one dictionary for all segments of an unforked
run, and a fork starts a new branch on top of the old one. Open calls are a small frozen mapping
on each segment.
"""

from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, Final, TypeVar

from tieline.items import Item

T = TypeVar("T")

NO_CALLS: Final[Mapping[str, Item]] = MappingProxyType({})


Key = str | tuple[str]
"""An item id, or the call id of a tool output as a tuple of one: clients choose both."""


class Branch:
    """The ids of an unforked run of segments; ``base`` is where it left its parent branch."""

    __slots__ = ("base", "head", "ids", "parent")

    def __init__(self, parent: "Branch | None", base: int) -> None:
        self.parent = parent
        self.base = base
        self.head = base
        """Depth of the newest segment of this branch."""
        self.ids: dict[Key, tuple[int, Item]] = {}
        """Item id, or call id of a tool output, -> (depth of its segment, the item)."""

    def find(self, key: Key, depth: int) -> Item | None:
        """The item known as ``key`` at or above ``depth``, looking through the parents."""
        branch: Branch | None = self
        while branch is not None:
            entry = branch.ids.get(key)
            if entry is not None and entry[0] <= depth:
                return entry[1]
            depth = min(depth, branch.base)
            branch = branch.parent
        return None


class Segment:
    """One immutable link of history.

    ``parent`` is None for the first link. ``items`` are in order. ``depth`` counts from 1.
    ``turn`` is the number of the turn in its chain that wrote it, from 1. ``size`` is the bytes
    of JSON of this link's items.
    """

    __slots__ = ("branch", "depth", "items", "memo", "open_calls", "parent", "size", "turn")

    def __init__(self, parent: "Segment | None", items: tuple[Item, ...], *, turn: int) -> None:
        self.parent = parent
        self.items = items
        self.turn = turn
        self.depth: int = parent.depth + 1 if parent else 1
        self.memo: dict[object, Any] = {}
        """What has been computed for this link: one entry for each renderer, guard, rule set."""
        self.branch: Branch = self._own_branch()
        self.open_calls: Mapping[str, Item] = parent.open_calls if parent else NO_CALLS
        """call_id -> the call, for calls that wait for their output after this link."""
        self.size = 0
        self._learn()

    def _own_branch(self) -> Branch:
        parent = self.parent
        if parent is None:
            branch = Branch(None, 0)
        elif parent.branch.head == parent.depth:
            branch = parent.branch
        else:
            branch = Branch(parent.branch, parent.depth)
        branch.head = self.depth
        return branch

    def _learn(self) -> None:
        """What later input is checked against: ids, calls that wait, and their outputs."""
        ids, depth = self.branch.ids, self.depth
        calls: dict[str, Item] | None = None
        for item in self.items:
            self.size += len(item.raw)
            if (item_id := item.id) is not None:
                ids[item_id] = (depth, item)
            opened, answered = item.opens, item.answers
            if opened is None and answered is None:
                continue
            if calls is None:
                self.open_calls = calls = dict(self.open_calls)
            if opened is not None:
                calls[opened] = item
            elif answered is not None:
                ids[_answer(answered)] = (depth, item)
                calls.pop(answered, None)

    def find(self, item_id: str) -> Item | None:
        """The item with this id in the chain that ends here, or None."""
        return self.branch.find(item_id, self.depth)

    def answered(self, call_id: str) -> bool:
        """Whether the chain that ends here already has an output for ``call_id``."""
        return self.branch.find(_answer(call_id), self.depth) is not None

    def path(self) -> Iterator["Segment"]:
        """The chain from its first link to this one. Costs the whole chain: never per turn."""
        links = []
        link: Segment | None = self
        while link is not None:
            links.append(link)
            link = link.parent
        return reversed(links)

    def items_of_chain(self) -> Iterator[Item]:
        """Every item of the chain in order. Costs the whole chain."""
        return (item for link in self.path() for item in link.items)

    def derive(self, key: object, initial: T, step: Callable[[T, "Segment"], T]) -> T:
        """A value of the whole chain, made from the parent's value and this link alone.

        ``step(value_before, link)`` must be pure. Each link keeps its value under ``key``, so a
        turn pays only for its new links. ``initial`` is the value before the first link.

        >>> tip.derive("bytes", 0, lambda total, link: total + link.size)  # doctest: +SKIP
        """
        pending: list[Segment] = []
        link: Segment | None = self
        while link is not None and key not in link.memo:
            pending.append(link)
            link = link.parent
        value: T = link.memo[key] if link is not None else initial
        for each in reversed(pending):
            value = each.memo[key] = step(value, each)
        return value


def _answer(call_id: str) -> Key:
    """The branch key of a tool output, which no item id equals."""
    return (call_id,)


class Tip:
    """A response that can be continued: its id, its chain, its owner, its settings.

    ``settings`` is what the turn ran with; only ``response.append`` and a steer's successor
    inherit it, ``previous_response_id`` never does (wire.md 5).
    """

    __slots__ = ("owner", "response_id", "segment", "settings")

    def __init__(self, response_id: str, segment: Segment, *, owner: str, settings: object) -> None:
        self.response_id = response_id
        self.segment = segment
        self.owner = owner
        self.settings = settings
