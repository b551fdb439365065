"""Which chains a process holds in memory: for whom, on which lanes, and within which bounds.

Bytes are those of the JSON of items; what is computed from them is some factor more, and is
bounded with them. Over a bound, chains that no turn uses go first, the least recently used one
first: a lane's latest response, while it only waits to be continued. A stored one is loaded
again when it is named; any other is then ``previous_response_not_found``, and the client sends
its input whole. Where that does not help, what asks for more is refused.
"""

from collections import OrderedDict
from collections.abc import Iterable
from typing import Final, Protocol

from tieline.errors import ApiError
from tieline_server.core.history.chain import ChainHead, ChainNode


class Holdings:
    """Chains that are held, each by its last node. A node that chains share counts once.

    To hold or release a chain costs what no other held chain has of it.
    """

    __slots__ = ("_holders", "_sizes", "size")

    def __init__(self) -> None:
        # Node -> how many hold it as their last one, plus how many held nodes follow it.
        self._holders: dict[ChainNode, int] = {}
        # What those count that are still to be opened: then they grow, and others never do.
        self._sizes: dict[ChainNode, int] = {}
        self.size = 0
        """Bytes of JSON of all held nodes' items, each as it was when it came."""

    def hold(self, node: ChainNode) -> None:
        """One more holds the chain that ends here."""
        holders = self._holders
        each: ChainNode | None = node
        while each is not None:
            count = holders.get(each, 0)
            holders[each] = count + 1
            # All before a held node is held by it.
            if count:
                return
            self._add(each)
            each = each.parent

    def grow(self, node: ChainNode) -> None:
        """One who held the chain before this new node holds the chain that ends here instead."""
        # What it no longer holds by itself is held by the node that follows.
        self._holders[node] = 1
        self._add(node)

    def release(self, node: ChainNode) -> None:
        """One who held the chain that ends here does so no longer."""
        holders = self._holders
        each: ChainNode | None = node
        while each is not None:
            count = holders[each] - 1
            # Another chain goes on from here: what is before stays held.
            if count:
                holders[each] = count
                return
            del holders[each]
            self.size -= self._sizes.pop(each, each.size)
            each = each.parent

    @property
    def empty(self) -> bool:
        """Whether no chain is held."""
        return not self._holders

    def holders(self, node: ChainNode) -> int:
        """How many hold this node as their last one, plus how many held nodes follow it."""
        return self._holders[node]

    def alone(self, node: ChainNode) -> bool:
        """Whether one holds this node, and nothing that is held follows it."""
        return self._holders[node] == 1

    def _add(self, node: ChainNode) -> None:
        size = node.size
        self.size += size
        # What is opened later is larger then; what was counted is what is given back.
        if node.closed:
            self._sizes[node] = size


NO_BOUND: Final = 1 << 62


class Holder(Protocol):
    """Who keeps the latest response of each lane of one connection."""

    def forget_lane(self, lane: str | None) -> None:
        """The lane has no latest response any more."""
        ...


Place = tuple[Holder, str | None]


class Budget:
    """The histories of all connections of a process."""

    def __init__(self, *, owner: int = NO_BOUND, total: int = NO_BOUND) -> None:
        self._owner_bytes = owner
        self._total_bytes = total
        self._owners: dict[str, Holdings] = {}
        # Owner -> the chains that only wait to be continued, the least recently used first.
        self._idle: dict[str, OrderedDict[Place, ChainNode]] = {}
        # All of them, and whose they are.
        self._order: OrderedDict[Place, str] = OrderedDict()
        # How many of them end in this node.
        self._resting: dict[ChainNode, int] = {}
        self.size = 0
        """Bytes held in all."""
        self.evicted = 0
        """Chains that had to go so far."""

    def held_by(self, owner: str) -> int:
        """Bytes held of one owner."""
        holdings = self._owners.get(owner)
        return 0 if holdings is None else holdings.size

    def hold(self, owner: str, node: ChainNode) -> None:
        """One more holds this chain of the owner's."""
        holdings = self._owners.get(owner)
        if holdings is None:
            holdings = self._owners[owner] = Holdings()
        before = holdings.size
        holdings.hold(node)
        self.size += holdings.size - before

    def grow(self, owner: str, node: ChainNode) -> None:
        """One who held the chain before this new node holds this one instead."""
        self._owners[owner].grow(node)
        self.size += node.size

    def release(self, owner: str, node: ChainNode) -> None:
        """One who held this chain does so no longer."""
        holdings = self._owners[owner]
        before = holdings.size
        holdings.release(node)
        self.size += holdings.size - before
        if holdings.empty:
            del self._owners[owner]

    def rest(self, place: Place, owner: str, node: ChainNode) -> None:
        """This chain is the latest of its lane now, and the most recently used of all."""
        idle = self._idle.get(owner)
        if idle is None:
            idle = self._idle[owner] = OrderedDict()
        idle[place] = node
        self._resting[node] = self._resting.get(node, 0) + 1
        self._order[place] = owner

    def leave(self, place: Place) -> None:
        """The lane has no latest chain any more."""
        owner = self._order.pop(place)
        idle = self._idle[owner]
        head = idle.pop(place)
        others = self._resting.pop(head) - 1
        if others:
            self._resting[head] = others
        if not idle:
            del self._idle[owner]

    def move(self, place: Place, other: Place) -> None:
        """What was the latest chain of one lane is that of another one now."""
        owner = self._order.pop(place)
        self._order[other] = owner
        idle = self._idle[owner]
        idle[other] = idle.pop(place)

    def make_room(self, owner: str, more: int) -> bool:
        """Whether ``more`` bytes of this owner fit, once what can go has gone."""
        # An owner's own bound lets go of that owner's chains alone, the bound of all of any.
        while self.held_by(owner) + more > self._owner_bytes:
            if not self._evict(self._idle.get(owner, {}).items()):
                return False
        while self.size + more > self._total_bytes:
            everyone = ((place, self._idle[each][place]) for place, each in self._order.items())
            if not self._evict(everyone):
                return False
        return True

    def _evict(self, idle: Iterable[tuple[Place, ChainNode]]) -> bool:
        """Lets the first of these chains go that nothing uses, if there is one.

        What a turn continues, or a fork shares, would free nothing. One that several keep goes
        when the last of them lets it go.
        """
        for place, head in idle:
            # Where more hold it than lanes that rest, a turn works on it or a fork shares it.
            if self._owners[self._order[place]].holders(head) == self._resting[head]:
                self.evicted += 1
                holder, lane = place
                holder.forget_lane(lane)
                return True
        return False


NO_ROOM: Final = (
    "The history of this request does not fit beside what is remembered for you already. "
    "End other conversations, or compact this one."
)


class LatestResponses:
    """The heads that a connection remembers: the latest of each lane.

    What a queued fork has pinned is held by the fork itself, so it outlives its place here.
    ``most`` bounds the bytes of the connection's chains, ``budget`` those of all connections
    together.
    """

    # The log of a turn that has ended refers to it weakly.
    __slots__ = ("__weakref__", "_budget", "_by_id", "_held", "_latest", "_most")

    def __init__(self, budget: Budget | None = None, *, most: int = NO_BOUND) -> None:
        self._budget = budget or Budget()
        self._most = most
        self._held = Holdings()
        # The least recently advanced lane first.
        self._latest: dict[str | None, ChainHead] = {}
        self._by_id: dict[str, ChainHead] = {}

    @property
    def size(self) -> int:
        """Bytes of all chains that the connection holds."""
        return self._held.size

    def latest(self, lane: str | None) -> ChainHead | None:
        """The latest response of a lane, or None."""
        return self._latest.get(lane)

    def find(self, response_id: str) -> ChainHead | None:
        """The remembered response with this id, whichever lane it is on."""
        return self._by_id.get(response_id)

    def lanes(self) -> list[tuple[str | None, ChainHead]]:
        """All lanes and their latest responses."""
        return list(self._latest.items())

    def advance(self, lane: str | None, head: ChainHead, *, held: bool = False) -> None:
        """``head`` is now the lane's latest; the one before it is forgotten.

        ``held`` says that its chain is held already, and that this hold passes to the lane.
        A response is the latest of one lane: it leaves another one of the connection.
        """
        # Before the old one is let go: nodes that the two share are not counted anew.
        if not held:
            self.hold(head.owner, head.node)
        self.forget_lane(lane)
        if head.response_id in self._by_id:
            self._forget_head(self._by_id[head.response_id])
        self._latest[lane] = head
        self._by_id[head.response_id] = head
        self._budget.rest((self, lane), head.owner, head.node)

    def pass_on(self, lane: str | None, heir: Holder, place: str) -> ChainHead:
        """The lane's latest response is the heir's from now on, who has it at this place.

        The budget counts it there, as one whose lane it is.
        """
        head = self._latest.pop(lane)
        del self._by_id[head.response_id]
        self._held.release(head.node)
        self._budget.move((self, lane), (heir, place))
        return head

    def evict(self, lane: str | None, response_id: str) -> None:
        """A continuation of ``response_id`` failed on ``lane``: drop it if it is that lane's.

        A failed fork on another lane leaves the parent alone (wire.md 4.4.2).
        """
        head = self._latest.get(lane)
        if head is not None and head.response_id == response_id:
            self.forget_lane(lane)

    def forget_lane(self, lane: str | None) -> None:
        """The lane has no latest response any more."""
        head = self._latest.pop(lane, None)
        if head is not None:
            del self._by_id[head.response_id]
            self._budget.leave((self, lane))
            self.release(head.owner, head.node)

    def forget(self, owner: str, response_id: str) -> None:
        """An owner's response was deleted: it can no longer be continued from this connection."""
        head = self._by_id.get(response_id)
        if head is not None and head.owner == owner:
            self._forget_head(head)

    def _forget_head(self, head: ChainHead) -> None:
        for lane, each in list(self._latest.items()):
            if each is head:
                self.forget_lane(lane)

    def clear(self) -> None:
        """The connection is gone."""
        for lane in list(self._latest):
            self.forget_lane(lane)

    def hold(self, owner: str, node: ChainNode) -> None:
        """A turn of the connection works on this chain."""
        self._held.hold(node)
        self._budget.hold(owner, node)

    def grow(self, owner: str, node: ChainNode) -> None:
        """A turn of the connection that worked on the chain before this node works on this one."""
        self._held.grow(node)
        self._budget.grow(owner, node)

    def release(self, owner: str, node: ChainNode) -> None:
        """A turn of the connection has done with this chain."""
        self._held.release(node)
        self._budget.release(owner, node)

    def admit(self, owner: str, more: int = 0) -> None:
        """Sees to it that ``more`` bytes fit; raises :class:`ApiError` 429 where they cannot."""
        while self._held.size + more > self._most:
            if not self._evict_own():
                raise ApiError.of("memory_limit_exceeded", NO_ROOM)
        if not self._budget.make_room(owner, more):
            raise ApiError.of("memory_limit_exceeded", NO_ROOM)

    def _evict_own(self) -> bool:
        # The least recently used lane first, and none that a turn or a fork still needs.
        for lane, head in self._latest.items():
            if self._held.alone(head.node):
                self._budget.evicted += 1
                self.forget_lane(lane)
                return True
        return False
