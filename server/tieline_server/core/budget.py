"""How many bytes of history the connections of a process may keep, by owner and in all.

Bytes are those of the JSON of items; what is computed from them is some factor more, and is
bounded with them. Over a bound, chains that nobody uses go first, the least recently used one
first: a lane's latest response, while it only waits to be continued. A stored one is loaded
again when it is named; any other is then ``previous_response_not_found``, and the client sends
its input whole. Where that does not help, what asks for more is refused.
"""

from collections import OrderedDict
from collections.abc import Iterable
from typing import Final, Protocol

from tieline_server.core.history import ChainNode
from tieline_server.core.holdings import Holdings

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
        self._idle: dict[str, OrderedDict[Place, ChainNode]] = {}
        """Owner -> the chains that only wait to be continued, the least recently used first."""
        self._order: OrderedDict[Place, str] = OrderedDict()
        """All of them, and whose they are."""
        self._resting: dict[ChainNode, int] = {}
        """How many of them end in this link."""
        self.size = 0
        """Bytes held in all."""
        self.evicted = 0
        """Chains that had to go so far."""

    def held_by(self, owner: str) -> int:
        """Bytes held of one owner."""
        holdings = self._owners.get(owner)
        return 0 if holdings is None else holdings.size

    def hold(self, owner: str, tip: ChainNode) -> None:
        """One more holds this chain of the owner's."""
        holdings = self._owners.get(owner)
        if holdings is None:
            holdings = self._owners[owner] = Holdings()
        before = holdings.size
        holdings.hold(tip)
        self.size += holdings.size - before

    def grow(self, owner: str, tip: ChainNode) -> None:
        """One who held the chain before this new link holds this one instead."""
        self._owners[owner].grow(tip)
        self.size += tip.size

    def release(self, owner: str, tip: ChainNode) -> None:
        """One who held this chain does so no longer."""
        holdings = self._owners[owner]
        before = holdings.size
        holdings.release(tip)
        self.size += holdings.size - before
        if holdings.empty:
            del self._owners[owner]

    def rest(self, place: Place, owner: str, tip: ChainNode) -> None:
        """This chain is the latest of its lane now, and the most recently used of all."""
        idle = self._idle.get(owner)
        if idle is None:
            idle = self._idle[owner] = OrderedDict()
        idle[place] = tip
        self._resting[tip] = self._resting.get(tip, 0) + 1
        self._order[place] = owner

    def leave(self, place: Place) -> None:
        """The lane has no latest chain any more."""
        owner = self._order.pop(place)
        idle = self._idle[owner]
        tip = idle.pop(place)
        others = self._resting.pop(tip) - 1
        if others:
            self._resting[tip] = others
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
        for place, tip in idle:
            if self._owners[self._order[place]].holders(tip) == self._resting[tip]:
                self.evicted += 1
                holder, lane = place
                holder.forget_lane(lane)
                return True
        return False
