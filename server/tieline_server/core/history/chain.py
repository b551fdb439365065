"""What a connection remembers between turns: chains of nodes that do not change.

A response remembers the last node of a chain. The next turn puts new nodes behind it; nothing
before it is copied, parsed or checked again, so a turn costs what is new in it. Forks share
their parents. What is computed for a node (token ids, encoded fragments, facts that rules
ask for) hangs on it, once.

Two questions must not cost a walk of the chain: "is this item id in it?" and "which calls wait
for an output?". Ids live in a :class:`Branch`, one dictionary for all nodes of an unforked
run, and a fork starts a new branch on top of the old one. Open calls are a small frozen mapping
on each node.

An engine reads a chain as it is *shown*: sealed items in the open, and from the last compaction
on that stands for all before it (``sealed``). Ids, owners and stores know the whole chain.
"""

from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, Final, TypeVar

from msgspec import Struct

from tieline.items import SEALABLE, Item
from tieline.responses import Response
from tieline_server.core.create.settings import Settings
from tieline_server.core.history import sealed

T = TypeVar("T")

NO_CALLS: Final[Mapping[str, Item]] = MappingProxyType({})


Key = str | tuple[str]
"""An item id, or the call id of a tool output as a tuple of one: clients choose both."""


class Branch:
    """The ids of an unforked run of nodes; ``base`` is where it left its parent branch."""

    __slots__ = ("base", "head", "ids", "parent")

    def __init__(self, parent: "Branch | None", base: int) -> None:
        self.parent = parent
        self.base = base
        self.head = base
        """Depth of the newest node of this branch."""
        self.ids: dict[Key, tuple[int, Item]] = {}
        """Item id, or call id of a tool output, -> (depth of its node, the item)."""

    def find(self, key: Key, depth: int) -> Item | None:
        """The item known as ``key`` at or above ``depth``, looking through the parents."""
        branch: Branch | None = self
        while branch is not None:
            entry = branch.ids.get(key)
            # What stands deeper is of a chain that went on, and not of this one.
            if entry is not None and entry[0] <= depth:
                return entry[1]
            depth = min(depth, branch.base)
            branch = branch.parent
        return None


class ChainNode:
    """One immutable node of history.

    ``parent`` is None for the first node. ``items`` are in order, as clients and stores have
    them; ``shown`` is how engines read them. ``depth`` counts from 1. ``turn`` is the number of
    the turn in its chain that wrote it, from 1: the one that wrote ``parent``, if none is given.
    ``size`` is the bytes of JSON of this node's items, what is open of them included.
    """

    __slots__ = (
        "branch",
        "closed",
        "depth",
        "items",
        "memo",
        "open_calls",
        "parent",
        "restarts",
        "shown",
        "size",
        "turn",
    )

    def __init__(
        self, parent: "ChainNode | None", items: tuple[Item, ...], *, turn: int | None = None
    ) -> None:
        self.parent = parent
        self.items = items
        if turn is None:
            turn = 1 if parent is None else parent.turn
        self.turn: int = turn
        self.depth: int = 1 if parent is None else parent.depth + 1
        self.memo: dict[object, Any] = {}
        """What has been computed for this node: one entry for each renderer, guard, rule set."""
        self.branch: Branch = _branch_after(parent)
        self.branch.head = self.depth
        self.open_calls: Mapping[str, Item]
        """call_id -> the call, for calls that wait for their output after this node."""
        self.shown: tuple[Item, ...] = items
        self.restarts = False
        """Whether what is shown of this node stands for all nodes before it."""
        self.closed: bool
        """Whether items of this node or of one before it are still to be opened."""
        self._learn()

    def _learn(self) -> None:
        """What later input is checked against: ids, calls that wait, and their outputs."""
        parent = self.parent
        self.closed = parent is not None and parent.closed
        self.open_calls = NO_CALLS if parent is None else parent.open_calls
        ids, depth = self.branch.ids, self.depth
        # One pass over what is new. Most nodes have neither sealed items nor calls, and are done.
        size = 0
        sealable = pairs = False
        for item in self.items:
            size += len(item.raw)
            if (item_id := item.id) is not None:
                ids[item_id] = (depth, item)
            if item.type in SEALABLE:
                sealable = True
            elif item.opens is not None or item.answers is not None:
                pairs = True
        self.size = size
        if sealable:
            self._unveil()
        if sealable or pairs:
            self._pair()

    def _unveil(self) -> None:
        """Sets what is shown, where that is not just what is kept."""
        for item in self.items:
            if item.opened is not None:
                self.size += sum(len(each.raw) for each in item.opened.items)
            elif item.sealed is not None:
                self.closed = True
        shown, self.restarts = sealed.shown(self.items)
        self.shown = tuple(shown)
        if self.restarts:
            self.open_calls = NO_CALLS

    def _pair(self) -> None:
        """Which calls wait, and which have their outputs."""
        calls: dict[str, Item] | None = None
        for item in self.shown:
            opened, answered = item.opens, item.answers
            if opened is None and answered is None:
                continue
            if calls is None:
                # Nodes share the mapping of the one before them, until one changes it.
                self.open_calls = calls = dict(self.open_calls) if self.open_calls else {}
            if opened is not None:
                calls[opened] = item
            elif answered is not None:
                self.branch.ids[_answer(answered)] = (self.depth, item)
                calls.pop(answered, None)

    @property
    def base(self) -> "ChainNode | None":
        """The node whose context this one goes on; None where nothing before it counts."""
        return None if self.restarts else self.parent

    def reveal(self, opened: Callable[[Item], Item]) -> None:
        """Opens what a store gave back sealed, from the first node on, each item once.

        ``opened(item)`` returns the item with what it stands for. A chain that was made on a
        connection is open from the start. Called before anything is derived.
        """
        nodes: list[ChainNode] = []
        node: ChainNode | None = self
        while node is not None and node.closed:
            nodes.append(node)
            node = node.parent
        for each in reversed(nodes):
            each.items = tuple(map(opened, each.items))
            each._learn()

    def aside(self, *items: Item) -> "ChainNode":
        """A node behind this one that is no part of the chain, for items without ids.

        What really follows goes on with this node's branch, as if the question had not been put.
        """
        branch, head = self.branch, self.branch.head
        node = ChainNode(self, items)
        # As if it were not there: the next real node must not find a fork.
        branch.head = head
        return node

    def find(self, item_id: str) -> Item | None:
        """The item with this id in the chain that ends here, or None."""
        return self.branch.find(item_id, self.depth)

    def answered(self, call_id: str) -> bool:
        """Whether the chain that ends here already has an output for ``call_id``."""
        return self.branch.find(_answer(call_id), self.depth) is not None

    def path(self) -> Iterator["ChainNode"]:
        """The chain from its first node to this one. Costs the whole chain: never per turn."""
        nodes = []
        node: ChainNode | None = self
        while node is not None:
            nodes.append(node)
            node = node.parent
        return reversed(nodes)

    def items_of_chain(self) -> Iterator[Item]:
        """Every item of the chain in order. Costs the whole chain."""
        return (item for node in self.path() for item in node.items)

    def context(self) -> tuple[Item, ...]:
        """What an engine is given: the items shown, in order. Costs the whole chain."""
        nodes: list[ChainNode] = []
        node: ChainNode | None = self
        while node is not None:
            nodes.append(node)
            node = node.base
        return tuple(item for node in reversed(nodes) for item in node.shown)

    def derive(self, key: object, initial: T, step: Callable[[T, "ChainNode"], T]) -> T:
        """A value of the whole chain, made from the parent's value and this node alone.

        ``step(value_before, node)`` must be pure. Each node keeps its value under ``key``, so a
        turn pays only for its new nodes. ``initial`` is the value before the first node, and
        before one that stands for all that came before it.

        >>> head.derive("bytes", 0, lambda total, node: total + node.size)  # doctest: +SKIP
        """
        # No recursion: a chain may be longer than the interpreter's stack is deep.
        pending: list[ChainNode] = []
        node: ChainNode | None = self
        while node is not None and key not in node.memo:
            pending.append(node)
            node = node.base
        value: T = node.memo[key] if node is not None else initial
        for each in reversed(pending):
            value = each.memo[key] = step(value, each)
        return value


def _branch_after(parent: ChainNode | None) -> Branch:
    if parent is None:
        return Branch(None, 0)
    if parent.branch.head == parent.depth:
        return parent.branch
    return Branch(parent.branch, parent.depth)


def _answer(call_id: str) -> Key:
    """The branch key of a tool output, which no item id equals."""
    return (call_id,)


class ChainHead(Struct, frozen=True, eq=False, gc=False):
    """A response that can be continued: its id, its chain, its owner, its settings.

    ``settings`` is what the turn ran with; only ``response.append`` and a steer's successor
    inherit it, ``previous_response_id`` never does (wire.md 2.1.2).
    """

    response_id: str
    node: ChainNode
    owner: str
    settings: Settings | None


class Saved(Struct, frozen=True, kw_only=True):
    """A response as a store keeps it."""

    response: Response
    head: ChainHead
    owner: str
    input_from: ChainNode | None
    """The node before the response's own input; None for the first of a chain."""
    terminal: int | None = None
    """The number of its terminal event where its events are kept; None where they are not."""
