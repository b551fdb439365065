"""Turns whose events are kept: found by their response's id while they run, and for a while after.

A chain whose line goes while its turn is kept is counted here from then on.
"""

import weakref
from collections import deque
from collections.abc import Awaitable
from typing import Protocol

from tieline.events import LifecycleEvent
from tieline.responses import Response
from tieline_server.core.budget import Budget
from tieline_server.core.event_log import EventLog, EventLogs
from tieline_server.core.history import ChainHead, ChainNode, Saved
from tieline_server.core.latest_responses import LatestResponses
from tieline_server.core.values import Outcome


class Replayed(Protocol):
    """A turn whose events are kept, while it runs."""

    id: str
    announced: bool
    parent: ChainNode | None

    @property
    def connection_id(self) -> str:
        """The connection that it is on now."""
        ...

    def so_far(self) -> Response:
        """The response as it stands."""
        ...

    def head(self) -> ChainHead | None:
        """The response with its chain, once it has one."""
        ...


class Recording(Protocol):
    """What writes the events of a stored response down."""

    @property
    def begun(self) -> Awaitable[bool]:
        """Done when it is durable that the response runs: whether it is."""
        ...

    async def settle(self) -> None:
        """Everything but the end is handed over, in order."""
        ...

    def stop(self, *, stored: bool) -> None:
        """The turn has ended, and its response is stored or never will be."""
        ...


class ReplayLog(EventLog):
    """The log of a turn: while that runs ``turn``, then what is left of it."""

    __slots__ = ("chain", "goes_at", "key", "owner", "recorder", "response_id", "turn")

    def __init__(
        self, logs: EventLogs, turn: Replayed, *, owner: str, key: str | None, size: int
    ) -> None:
        self.turn: Replayed | None = turn
        self.response_id = turn.id
        self.owner = owner
        self.key = key
        """The idempotency key of the create, where it has one."""
        self.recorder: Recording | None = None
        self.goes_at: float | None = None
        """When what is left of it goes, on the driver's clock. Known once it has ended."""
        self.chain: ChainHead | weakref.ref[LatestResponses] | None = None
        """Its chain since it has ended: what its last line remembers, until that is gone."""
        # Last: what it weighs may be too much already, and then it is dropped.
        super().__init__(logs, size)

    def look(self) -> Response | None:
        """The response as it stands; None before its first event."""
        if self.turn is not None:
            return self.turn.so_far() if self.turn.announced else None
        last = self.last
        return last.response if isinstance(last, LifecycleEvent) else None

    def find(self) -> Saved | None:
        """The same with its chain; None where that is not known here."""
        response, turn = self.look(), self.turn
        if turn is None:
            tip = self.tip
            parent = None if tip is None else _before(tip.segment)
        else:
            tip, parent = turn.head(), turn.parent
        if response is None or tip is None:
            return None
        return Saved(response=response, tip=tip, owner=self.owner, input_from=parent)

    @property
    def stored(self) -> bool:
        """Whether its response is in the store, or will be."""
        return self.recorder is not None

    @property
    def tip(self) -> ChainHead | None:
        """Its chain, while its lane could be continued from it, or since the line has gone."""
        if isinstance(self.chain, ChainHead):
            return self.chain
        memory = None if self.chain is None else self.chain()
        return None if memory is None else memory.find(self.response_id)


class ReplayLogs(EventLogs):
    """The kept turns of a process, by response. ``each`` and ``most`` bound their events."""

    __slots__ = ("_budget", "_by_id", "_over")

    def __init__(self, *, each: int = 64 * 1024 * 1024, most: int = 512 * 1024 * 1024) -> None:
        super().__init__(each=each, most=most)
        self._by_id: dict[str, ReplayLog] = {}
        self._over: deque[ReplayLog] = deque()
        """Those that have ended, the first to go at the head: all stay equally long."""
        self._budget: Budget | None = None
        """Counts the chains of those whose line is gone, each on a lane of its response's name."""

    def __len__(self) -> int:
        return len(self._by_id)

    def begin(self, turn: Replayed, *, owner: str, key: str | None, size: int) -> ReplayLog:
        """A turn keeps its events from now on, which echo ``size`` bytes of its request."""
        log = ReplayLog(self, turn, owner=owner, key=key, size=size)
        self._by_id[turn.id] = log
        return log

    def find(self, owner: str, response_id: str) -> ReplayLog | None:
        """An owner's turn, or None."""
        kept = self._by_id.get(response_id)
        return kept if kept is not None and kept.owner == owner else None

    def over(
        self, kept: ReplayLog, outcome: Outcome, *, memory: LatestResponses, goes_at: float
    ) -> None:
        """A turn has ended: what is left of it stays until ``goes_at``, if there is a response.

        ``memory`` is what its line remembers.
        """
        kept.turn, kept.goes_at, kept.chain = None, goes_at, weakref.ref(memory)
        if kept.listeners:
            kept.tell()
        if outcome in ("refused", "disconnected"):
            self._let_go(kept)
        else:
            self._over.append(kept)

    def next_deadline(self) -> float | None:
        """When ``expire`` is to be called, or None."""
        return self._over[0].goes_at if self._over else None

    def expire(self, now: float) -> None:
        """What is left of turns goes, where it is time."""
        while (at := self.next_deadline()) is not None and at <= now:
            self._let_go(self._over.popleft())

    def moved(self, kept: ReplayLog, memory: LatestResponses) -> None:
        """Since it has ended it was resumed on another line, which may remember its chain."""
        if memory.find(kept.response_id) is not None:
            self._release(kept)
            kept.chain = weakref.ref(memory)

    def inherit(self, line: LatestResponses, budget: Budget) -> None:
        """A line goes: what it remembers of kept turns is counted here from now on."""
        self._budget = budget
        for lane, tip in line.lanes():
            kept = self._by_id.get(tip.response_id)
            # For the chain of one that cannot be resumed any more nobody comes.
            if kept is not None and kept.turn is None and kept.whole:
                self._release(kept)
                kept.chain = line.pass_on(lane, self, tip.response_id)

    def forget_lane(self, lane: str | None) -> None:
        """A chain whose line is gone goes too: that of the response which the lane is named for."""
        kept = self._by_id.get(lane or "")
        if kept is not None:
            self._release(kept)

    def dropped(self, log: EventLog, size: int) -> None:
        """A turn can be resumed no more."""
        super().dropped(log, size)
        if isinstance(log, ReplayLog):
            self._release(log)

    def forget(self, owner: str, response_id: str) -> None:
        """A response was deleted."""
        kept = self.find(owner, response_id)
        if kept is not None and kept.turn is None:
            self._let_go(kept)

    def clear(self) -> None:
        """The process ends."""
        for kept in list(self._by_id.values()):
            self._let_go(kept)
        self._over.clear()

    def _let_go(self, kept: ReplayLog) -> None:
        kept.drop()
        self._by_id.pop(kept.response_id, None)

    def _release(self, kept: ReplayLog) -> None:
        if isinstance(kept.chain, ChainHead) and self._budget is not None:
            tip, kept.chain = kept.chain, None
            self._budget.leave((self, kept.response_id))
            self._budget.release(tip.owner, tip.segment)


def _before(link: ChainNode | None) -> ChainNode | None:
    """The link before the response's own ones."""
    number = link.turn if link is not None else 0
    while link is not None and link.turn == number:
        link = link.parent
    return link
