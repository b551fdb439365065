"""What a connection remembers: the latest response of each lane, within bounds (wire.md 5.1)."""

from typing import Final

from tieline.errors import ApiError
from tieline_server.core.budget import NO_BOUND, Budget, Holder
from tieline_server.core.history import ChainHead, ChainNode
from tieline_server.core.holdings import Holdings

NO_ROOM: Final = (
    "The history of this request does not fit beside what is remembered for you already. "
    "End other conversations, or compact this one."
)


class LatestResponses:
    """The tips that a connection remembers: the latest of each lane.

    What a queued fork has pinned is held by the fork itself, so it outlives its place here.
    ``most`` bounds the bytes of the connection's chains, ``budget`` those of all connections
    together.
    """

    __slots__ = ("__weakref__", "_budget", "_by_id", "_held", "_latest", "_most")

    def __init__(self, budget: Budget | None = None, *, most: int = NO_BOUND) -> None:
        self._budget = budget or Budget()
        self._most = most
        self._held = Holdings()
        self._latest: dict[str | None, ChainHead] = {}
        """The least recently advanced lane first."""
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

    def advance(self, lane: str | None, tip: ChainHead, *, held: bool = False) -> None:
        """``tip`` is now the lane's latest; the one before it is forgotten.

        ``held`` says that its chain is held already, and that this hold passes to the lane.
        A response is the latest of one lane: it leaves another one of the connection.
        """
        if not held:
            self.hold(tip.owner, tip.segment)
        self.forget_lane(lane)
        if tip.response_id in self._by_id:
            self._forget_tip(self._by_id[tip.response_id])
        self._latest[lane] = tip
        self._by_id[tip.response_id] = tip
        self._budget.rest((self, lane), tip.owner, tip.segment)

    def pass_on(self, lane: str | None, heir: Holder, place: str) -> ChainHead:
        """The lane's latest response is the heir's from now on, who has it at this place.

        The budget counts it there, as one whose lane it is.
        """
        tip = self._latest.pop(lane)
        del self._by_id[tip.response_id]
        self._held.release(tip.segment)
        self._budget.move((self, lane), (heir, place))
        return tip

    def evict(self, lane: str | None, response_id: str) -> None:
        """A continuation of ``response_id`` failed on ``lane``: drop it if it is that lane's.

        A failed fork on another lane leaves the parent alone (wire.md 4.4.2).
        """
        tip = self._latest.get(lane)
        if tip is not None and tip.response_id == response_id:
            self.forget_lane(lane)

    def forget_lane(self, lane: str | None) -> None:
        """The lane has no latest response any more."""
        tip = self._latest.pop(lane, None)
        if tip is not None:
            del self._by_id[tip.response_id]
            self._budget.leave((self, lane))
            self.release(tip.owner, tip.segment)

    def forget(self, owner: str, response_id: str) -> None:
        """An owner's response was deleted: it can no longer be continued from this connection."""
        tip = self._by_id.get(response_id)
        if tip is not None and tip.owner == owner:
            self._forget_tip(tip)

    def _forget_tip(self, tip: ChainHead) -> None:
        for lane, each in list(self._latest.items()):
            if each is tip:
                self.forget_lane(lane)

    def clear(self) -> None:
        """The connection is gone."""
        for lane in list(self._latest):
            self.forget_lane(lane)

    def hold(self, owner: str, tip: ChainNode) -> None:
        """A turn of the connection works on this chain."""
        self._held.hold(tip)
        self._budget.hold(owner, tip)

    def grow(self, owner: str, tip: ChainNode) -> None:
        """A turn of the connection that worked on the chain before this node works on this one."""
        self._held.grow(tip)
        self._budget.grow(owner, tip)

    def release(self, owner: str, tip: ChainNode) -> None:
        """A turn of the connection has done with this chain."""
        self._held.release(tip)
        self._budget.release(owner, tip)

    def admit(self, owner: str, more: int = 0) -> None:
        """Sees to it that ``more`` bytes fit; raises :class:`ApiError` 429 where they cannot."""
        while self._held.size + more > self._most:
            if not self._evict_own():
                raise ApiError.of("memory_limit_exceeded", NO_ROOM)
        if not self._budget.make_room(owner, more):
            raise ApiError.of("memory_limit_exceeded", NO_ROOM)

    def _evict_own(self) -> bool:
        for lane, tip in self._latest.items():
            if self._held.alone(tip.segment):
                self._budget.evicted += 1
                self.forget_lane(lane)
                return True
        return False
