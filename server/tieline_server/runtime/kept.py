"""Turns that can be found by their response's id while they run and for a while after.

Those of stored responses are written down as they run, so that they can be found by another
process, and outlast this one.
"""

import asyncio
import logging
import weakref
from collections import deque
from typing import Final

from msgspec import Struct

from tieline.codecs import json
from tieline.events import LifecycleEvent
from tieline.responses import Response
from tieline_server.core.budget import Budget
from tieline_server.core.effects import Saved, TurnRecord
from tieline_server.core.event_log import EventLog
from tieline_server.core.history import Segment, Tip
from tieline_server.core.memory import Memory
from tieline_server.core.reading import relaned
from tieline_server.core.snapshot import so_far
from tieline_server.core.turn import Turn
from tieline_server.journals.base import Begun, Entry, Journal

logger: Final = logging.getLogger("tieline.runtime")

FLUSH: Final = 0.1
"""Seconds until events of a turn that runs are written down."""

CONTINUABLE: Final = frozenset({"completed", "incomplete", "cancelled"})
"""How a response ends that can be continued."""


class Recorder:
    """Writes down the events of one turn. Made as its log begins."""

    __slots__ = ("_flushed", "_journal", "_loop", "_started_at", "_timer", "_transport", "_turn",
                 "begun")  # fmt: skip

    def __init__(self, turn: Turn, journal: Journal, *, transport: str, started_at: float) -> None:
        self._turn = turn
        self._journal = journal
        self._transport = transport
        self._started_at = started_at
        self._flushed = 0
        self._timer: asyncio.TimerHandle | None = None
        self._loop = asyncio.get_running_loop()
        self.begun = self._loop.create_task(self._begin())
        """Done when it is durable that the response runs: whether it is."""
        log = turn.log
        assert log is not None, "made as the log begins"
        log.listen(self._more)

    async def _begin(self) -> bool:
        try:
            await self._journal.begin(self._standing())
        except Exception:
            logger.exception("journal.begin failed", extra={"response_id": self._turn.id})
            return False
        return True

    def _standing(self) -> Begun:
        turn = self._turn
        return Begun(
            response=so_far(turn),
            owner=turn.principal.owner,
            model=turn.settings.model if turn.settings else "",
            transport=self._transport,
            started_at=self._started_at,
        )

    def _more(self) -> None:
        if self._timer is None:
            self._timer = self._loop.call_later(FLUSH, self.flush)

    def flush(self) -> None:
        """Hands over what has come since; the terminal event is made of the response itself."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        turn, log = self._turn, self._turn.log
        if log is None or not log.whole:
            return
        said = log.after(self._flushed - 1)
        if said and said[-1].TERMINAL:
            said.pop()
        # The lane is its reader's, and every reader has another one.
        fresh = [json.encode(event) for event in relaned(said, None)]
        if not fresh:
            return
        entry = Entry(
            response_id=turn.id,
            owner=turn.principal.owner,
            first=self._flushed,
            events=tuple(fresh),
            begun=self._standing(),
        )
        self._flushed += len(fresh)
        self._journal.log(entry)

    async def settle(self) -> None:
        """Everything but the end is handed over, in order: the response may be stored now."""
        await self.begun
        self.flush()

    def forsake(self) -> None:
        """It will never be stored: what was written down of it goes."""
        owner, response_id = self._turn.principal.owner, self._turn.id
        self.begun.add_done_callback(lambda _: self._journal.end(owner, response_id))

    def stop(self) -> None:
        """The turn has ended."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        log = self._turn.log
        if log is not None:
            log.unlisten(self._more)


class KeptTurn(Struct, eq=False):
    """A turn whose events are kept: while it runs ``turn``, then what is left of it."""

    turn: Turn | None
    log: EventLog
    recorder: Recorder | None
    response_id: str
    owner: str
    key: str | None
    goes_at: float = 0.0
    """When what is left of it goes, on the loop's clock. Known once it has ended."""
    chain: Tip | weakref.ref[Memory] | None = None
    """Its chain since it has ended: what its last line remembers, until that is gone."""
    ending: asyncio.Event | None = None
    """Set as it ends, for those who wait."""

    def look(self) -> Response | None:
        """The response as it stands; None before its first event."""
        if self.turn is not None:
            return so_far(self.turn) if self.turn.announced else None
        last = self.log.last
        return last.response if isinstance(last, LifecycleEvent) else None

    def find(self) -> Saved | None:
        """The same with its chain; None where that is not known here."""
        response, turn = self.look(), self.turn
        if turn is None:
            tip = self.tip
            parent = None if tip is None else _before(tip.segment)
        else:
            tip, parent = _tip(turn), turn.parent
        if response is None or tip is None:
            return None
        return Saved(response=response, tip=tip, owner=self.owner, input_from=parent)

    @property
    def stored(self) -> bool:
        """Whether its response is in the store, or will be."""
        return self.recorder is not None

    async def lasts(self) -> bool:
        """Returns once it is durable that it runs: whether it is."""
        # Whoever waits may be cancelled; what is being written is written.
        return self.recorder is None or await asyncio.shield(self.recorder.begun)

    async def over(self) -> None:
        """Returns once it has ended."""
        if self.turn is not None:
            self.ending = self.ending or asyncio.Event()
            await self.ending.wait()

    @property
    def tip(self) -> Tip | None:
        """Its chain, while its lane could be continued from it, or since the line has gone."""
        if isinstance(self.chain, Tip):
            return self.chain
        memory = None if self.chain is None else self.chain()
        return None if memory is None else memory.find(self.response_id)

    def end(self, memory: Memory) -> None:
        """It has ended; its line remembers its chain, if anything does."""
        self.turn = None
        self.chain = weakref.ref(memory)
        if self.ending is not None:
            self.ending.set()


class KeptTurns:
    """The kept turns of a process, by response."""

    def __init__(self) -> None:
        self._by_id: dict[str, KeptTurn] = {}
        self._ended: deque[KeptTurn] = deque()
        """Those that have ended, the first to go at the head: all stay equally long."""
        self._timer: asyncio.TimerHandle | None = None
        self._budget: Budget | None = None
        """Counts the chains of those whose line is gone, each on a lane of its response's name."""

    def __len__(self) -> int:
        return len(self._by_id)

    def begin(self, turn: Turn, recorder: Recorder | None) -> None:
        """A turn keeps its events from now on."""
        log, owner, key = turn.outbox.log, turn.principal.owner, turn.request.idempotency_key
        assert log is not None, "its log has begun"
        self._by_id[turn.id] = KeptTurn(turn, log, recorder, turn.id, owner, key)

    def find(self, owner: str, response_id: str) -> KeptTurn | None:
        """An owner's turn, or None."""
        kept = self._by_id.get(response_id)
        return kept if kept is not None and kept.owner == owner else None

    def ended(self, record: TurnRecord, line: Memory, *, window: float, stored: bool) -> None:
        """A turn has ended: what is left of it stays for ``window`` seconds, if it was one.

        ``line`` is what its line remembers.
        """
        kept = self._by_id.get(record.response_id)
        if kept is None or kept.turn is None:
            return
        kept.end(line)
        if kept.recorder is not None:
            kept.recorder.stop()
            if not stored:
                kept.recorder.forsake()
        if record.outcome in ("refused", "disconnected"):
            self._drop(kept)
            return
        loop = asyncio.get_running_loop()
        kept.goes_at = loop.time() + window
        self._ended.append(kept)
        if self._timer is None:
            self._timer = loop.call_at(kept.goes_at, self._sweep)

    def inherit(self, line: Memory, budget: Budget) -> None:
        """A line goes: what it remembers of kept turns is counted here from now on."""
        for lane, tip in line.lanes():
            kept = self._by_id.get(tip.response_id)
            if kept is not None and kept.turn is None:
                self.forget_lane(tip.response_id)
                self._budget = budget
                kept.chain = line.pass_on(lane, self, tip.response_id)

    def moved(self, kept: KeptTurn, memory: Memory) -> None:
        """Since it has ended it was resumed on another line, which may remember its chain."""
        if memory.find(kept.response_id) is not None:
            self.forget_lane(kept.response_id)
            kept.chain = weakref.ref(memory)

    def forget_lane(self, lane: str | None) -> None:
        """A chain whose line is gone goes too: that of the response which the lane is named for."""
        kept = self._by_id.get(lane or "")
        if kept is not None and isinstance(kept.chain, Tip) and self._budget is not None:
            tip, kept.chain = kept.chain, None
            self._budget.leave((self, lane))
            self._budget.release(tip.owner, tip.segment)

    def _sweep(self) -> None:
        loop = asyncio.get_running_loop()
        self._timer = None
        while self._ended and self._ended[0].goes_at <= loop.time():
            self._drop(self._ended.popleft())
        if self._ended:
            self._timer = loop.call_at(self._ended[0].goes_at, self._sweep)

    def forget(self, owner: str, response_id: str) -> None:
        """A response was deleted."""
        kept = self.find(owner, response_id)
        if kept is not None and kept.turn is None:
            self._drop(kept)

    def clear(self) -> None:
        """The process ends."""
        for kept in list(self._by_id.values()):
            self._drop(kept)
        self._ended.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _drop(self, kept: KeptTurn) -> None:
        kept.log.drop()
        self.forget_lane(kept.response_id)
        self._by_id.pop(kept.response_id, None)


def _tip(turn: Turn) -> Tip | None:
    if turn.tip is None:
        return None
    return Tip(turn.id, turn.tip, owner=turn.principal.owner, settings=turn.settings)


def _before(link: Segment | None) -> Segment | None:
    """The link before the response's own ones."""
    number = link.turn if link is not None else 0
    while link is not None and link.turn == number:
        link = link.parent
    return link
