"""What a turn holds outside itself: memory of owner and connection, drafts in the store."""

from collections.abc import Sequence
from typing import Final, Protocol

from tieline.items import Item
from tieline_server.core.effects import Discard, Effect, Keep
from tieline_server.core.history import ChainHead, ChainNode
from tieline_server.core.holdings import LatestResponses
from tieline_server.core.limits import Share

WAITING: Final = 4096
"""Bytes, about, that a turn takes beside its request."""


class Host(Protocol):
    """What it needs of the connection."""

    effects: list[Effect]
    memory: LatestResponses
    queued: Share


class TurnHoldings:
    """The chain of one turn as its connection counts it and as the store is handed it.

    ``kept`` says whether items of it were handed to the store.
    """

    __slots__ = ("_host", "_link", "_owner", "_response_id", "_waits", "_written", "kept")

    def __init__(self, host: Host, response_id: str, owner: str) -> None:
        self._host = host
        self._response_id = response_id
        self._owner = owner
        self._link: ChainNode | None = None
        self._waits = 0
        self._written = 0
        self.kept = False

    def wait(self, size: int) -> None:
        """Its request of ``size`` bytes waits for the end of another response."""
        self.count(size + WAITING)

    def count(self, size: int) -> None:
        """So many more bytes wait to join its chain."""
        self._host.queued.add(self._owner, size)
        self._waits += size

    def _waited(self) -> None:
        if self._waits:
            self._host.queued.give_back(self._owner, self._waits)
            self._waits = 0

    def move(self, link: ChainNode) -> ChainNode:
        """The chain ends here now: this is what counts among what the connection holds."""
        self._waited()
        if link.parent is self._link is not None:
            self._host.memory.grow(self._owner, link)
        else:
            self._host.memory.hold(self._owner, link)
            self._release()
        self._link = link
        return link

    def rest(self, lane: str | None, tip: ChainHead) -> None:
        """The turn is over and this is its lane's latest: what it held, the lane holds now."""
        held = self._link is tip.segment
        self._host.memory.advance(lane, tip, held=held)
        if held:
            self._link = None

    def leave(self) -> None:
        """The turn is over: what it holds is let go."""
        self._waited()
        self._release()
        self._link = None

    def let_go(self) -> None:
        """The turn leaves its connection, which counts its chain no more."""
        self._release()

    def move_to(self, host: Host) -> None:
        """The turn has another connection, which counts its chain from here on."""
        self._host = host
        if self._link is not None:
            host.memory.hold(self._owner, self._link)

    def _release(self) -> None:
        if self._link is not None:
            self._host.memory.release(self._owner, self._link)

    def keep(self, items: Sequence[Item], *, after: ChainNode | None) -> None:
        """What joins the chain may be written at once, so that little is left for the end."""
        if items:
            self.kept = True
            keep = Keep(self._response_id, self._owner, after, tuple(items))
            self._host.effects.append(keep)

    def keep_output(self, kept: Sequence[Item], *, after: ChainNode | None) -> None:
        """The same for output that grows: what of it was not handed over yet."""
        if len(kept) > self._written:
            self.keep(kept[self._written :], after=after)
            self._written = len(kept)

    def linked(self) -> None:
        """The output so far is a link of the chain; what comes next counts from zero."""
        self._written = 0

    def discard(self) -> None:
        """The response will never be stored: what was written of it goes."""
        if self.kept:
            self.kept = False
            self._host.effects.append(Discard(self._response_id, self._owner))
