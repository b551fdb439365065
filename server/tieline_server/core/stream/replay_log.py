"""The events of responses that can be read again, by the response's id, with their numbers.

A log belongs to one response and holds each event from the moment that it is numbered, whatever
else reads it; deltas are held as texts, since they are most of what a response says. Logs are
bounded, each and together: one that grows past its bound is whole no more, and its response cannot
be resumed; where all together are too many, those of responses that have ended go first, the oldest
at the head.

A log stays for a while after its turn has ended. A chain whose connection goes while its log is
there is counted here from then on.
"""

import weakref
from bisect import bisect_right
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from operator import attrgetter
from typing import Any, Final, Protocol

from msgspec import Struct
from msgspec.structs import replace

from tieline.events import Event, LifecycleEvent
from tieline.responses import Response
from tieline_server.core.history.chain import ChainHead, ChainNode, Saved
from tieline_server.core.history.holdings import Budget, LatestResponses
from tieline_server.core.values import Outcome


class DeltaRun(Struct, gc=False):
    """Deltas of one part or call that follow each other; it grows with what comes next.

    >>> from tieline.events import RefusalDelta
    >>> first = RefusalDelta(
    ...     sequence_number=4, item_id="msg_1", output_index=0, content_index=0, delta="I"
    ... )
    >>> [each.delta for each in DeltaRun(first, ["I", " will", " not"]).behind(5, None)]
    [' will', ' not']
    """

    first: Any
    """From which the others differ in their number and their text."""
    texts: list[str]

    @property
    def sequence_number(self) -> int:
        """Of the first one."""
        number: int = self.first.sequence_number
        return number

    def behind(self, number: int, most: int | None) -> list[Event]:
        """Those that are numbered ``number`` and higher: so many at most, the first ones."""
        skipped = max(0, number - self.sequence_number)
        # Made anew for each reader: kept are the texts alone.
        texts = self.texts[skipped : None if most is None else skipped + most]
        return [
            replace(self.first, sequence_number=each, delta=text)
            for each, text in enumerate(texts, self.sequence_number + skipped)
        ]


EVENT: Final = 320
"""Bytes, about, that an event takes beside its text."""

DELTA: Final = 64
"""Bytes, about, that a delta takes beside its text."""

TEXT: Final = 4
"""How often text is kept: in deltas, and in the events of parts and items that are whole."""

LITTLE: Final = 4096
"""Bytes of deltas and text that a log may have more than it is counted with."""

_number_of: Final = attrgetter("sequence_number")


class EventLogs:
    """The logs of a process. ``each`` and ``most`` bound one and all of them, in bytes."""

    __slots__ = ("_ended", "each", "ended", "most", "size")

    def __init__(self, *, each: int = 64 * 1024 * 1024, most: int = 512 * 1024 * 1024) -> None:
        self.each = each
        self.most = most
        # Those whose response has ended, the first one first; some may be dropped by now.
        self._ended: deque[EventLog] = deque()
        self.ended: Callable[[EventLog], None] = self._ended.append
        """Nothing more comes to this log: it goes when room is needed."""
        self.size = 0
        """Bytes, about, of all events of all logs."""

    def make_room(self, log: "EventLog") -> None:
        """The log has grown, and it or all of them are past their bound."""
        if log.size > self.each:
            log.drop()
        # Where none has ended that could go, the one that grows gives way.
        while self.size > self.most:
            (self._ended[0] if self._ended else log).drop()

    def dropped(self, log: "EventLog", size: int) -> None:
        """A log holds nothing any more."""
        self.size -= size
        # Most go in the order in which they came.
        while self._ended and not self._ended[0].whole:
            self._ended.popleft()


class EventLog:
    """The events of one response, the first one first; their numbers have no gaps.

    They will echo ``size`` bytes of the request.
    """

    __slots__ = ("_entries", "_logs", "_uncounted", "_weighed", "add", "ended", "listeners",
                 "size", "whole")  # fmt: skip

    def __init__(self, logs: EventLogs, size: int = 0) -> None:
        self._logs = logs
        self._entries: list[Event | DeltaRun] = []
        # A method that is chosen: to keep an event is all that most turns need.
        self.add: Callable[[Event], object] = self._entries.append
        """The response said this; what it says after its end is not part of it."""
        # Entries that were counted.
        self._weighed = 0
        # Bytes of deltas and text that came since.
        self._uncounted = size
        self.size = 0
        """Bytes, about, of all events but the last few."""
        self.whole = True
        """Whether every event is still here."""
        self.ended = False
        """Whether the last event is the terminal one."""
        # Few have one, and what is kept of every turn is kept small.
        self.listeners: tuple[Callable[[], None], ...] = ()
        """They are called whenever there is more to read, or never will be."""
        if size > LITTLE:
            self._weigh()

    def extend(self, first: Event, texts: Sequence[str]) -> None:
        """The response said these deltas of one part or call, of which this is the first.

        A list of texts is the log's own from here on.
        """
        if self.ended or not self.whole:
            return
        entries = self._entries
        run = entries[-1] if entries else None
        if type(run) is DeltaRun:
            run.texts += texts
        else:
            entries.append(DeltaRun(first, texts if isinstance(texts, list) else list(texts)))
        self._uncounted += DELTA * len(texts)
        if self._uncounted > LITTLE:
            self._weigh()
        if self.listeners:
            self.tell()

    def count(self, size: int) -> None:
        """An item is whole, of so many bytes: its text counts from now on."""
        self._uncounted += TEXT * size
        if self._uncounted > LITTLE and self.whole:
            self._weigh()

    def end(self, event: Event) -> None:
        """The response has ended, with this event."""
        if self.ended or not self.whole:
            return
        self._entries.append(event)
        self.add = _ignore
        self.ended = True
        self._weigh()
        if self.whole:
            self._logs.ended(self)
            if self.listeners:
                self.tell()

    def listen(self, listener: Callable[[], None]) -> None:
        """``listener`` is called whenever there is more to read, or never will be."""
        self.listeners += (listener,)
        self._choose()

    def unlisten(self, listener: Callable[[], None]) -> None:
        """``listener`` is called no more, if it was."""
        self.listeners = tuple(each for each in self.listeners if each != listener)
        self._choose()

    @property
    def last(self) -> Event | None:
        """The terminal event, once the response has ended."""
        last = self._entries[-1] if self.ended and self.whole else None
        return None if isinstance(last, DeltaRun) else last

    def after(self, number: int | None, most: int | None = None) -> list[Event]:
        """The events with numbers behind ``number``; behind the end, the terminal one.

        At most so many of them, the first ones.
        """
        first = 0 if number is None else number + 1
        entries, found = self._entries, list[Event]()
        # Numbers have no gaps, so that the place of the first one is found without a walk.
        for entry in entries[max(0, bisect_right(entries, first, key=_number_of) - 1) :]:
            room = None if most is None else most - len(found)
            if room == 0:
                break
            if isinstance(entry, DeltaRun):
                found += entry.behind(first, room)
            elif _number_of(entry) >= first:
                found.append(entry)
        # A reader that names the last number, or one beyond, still has to hear of the end.
        return found or ([self.last] if self.last else [])

    def drop(self) -> None:
        """Its response cannot be read again."""
        if self.whole:
            self.whole = False
            self.add = _ignore
            self._entries = []
            self._logs.dropped(self, self.size)
            self.size = 0
            self.tell()

    def _choose(self) -> None:
        if self.whole and not self.ended:
            self.add = self._add_and_tell if self.listeners else self._entries.append

    def _add_and_tell(self, event: Event) -> None:
        self._entries.append(event)
        self.tell()

    def _weigh(self) -> None:
        """Counts what has come since the last time."""
        count = len(self._entries)
        size = EVENT * (count - self._weighed) + self._uncounted
        self._weighed, self._uncounted = count, 0
        self.size += size
        logs = self._logs
        logs.size += size
        if self.size > logs.each or logs.size > logs.most:
            logs.make_room(self)

    def tell(self) -> None:
        """There is more to know, or never will be: who listens is called."""
        for listener in self.listeners:
            listener()


def _ignore(_event: Event) -> None:
    """An event of a response that cannot be read again."""


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
    """The replay log of one turn. ``turn`` is set while the turn runs, and None afterwards."""

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
        """Its chain since it has ended: what its last connection remembers, until that is gone."""
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
            head = self.head
            parent = None if head is None else _before(head.node)
        else:
            head, parent = turn.head(), turn.parent
        if response is None or head is None:
            return None
        return Saved(response=response, head=head, owner=self.owner, input_from=parent)

    @property
    def stored(self) -> bool:
        """Whether its response is in the store, or will be."""
        return self.recorder is not None

    @property
    def head(self) -> ChainHead | None:
        """Its chain, while a lane could be continued from it, or since its connection went."""
        if isinstance(self.chain, ChainHead):
            return self.chain
        memory = None if self.chain is None else self.chain()
        return None if memory is None else memory.find(self.response_id)


class ReplayLogs(EventLogs):
    """The logs of a process, by response. ``each`` and ``most`` bound their events."""

    __slots__ = ("_budget", "_by_id", "_over")

    def __init__(self, *, each: int = 64 * 1024 * 1024, most: int = 512 * 1024 * 1024) -> None:
        super().__init__(each=each, most=most)
        self._by_id: dict[str, ReplayLog] = {}
        # Those that have ended, the first to go at the head: all stay equally long.
        self._over: deque[ReplayLog] = deque()
        # Counts the chains of those whose connection is gone, on lanes named for responses.
        self._budget: Budget | None = None

    def __len__(self) -> int:
        return len(self._by_id)

    def begin(self, turn: Replayed, *, owner: str, key: str | None, size: int) -> ReplayLog:
        """A turn keeps its events from now on, which echo ``size`` bytes of its request."""
        log = ReplayLog(self, turn, owner=owner, key=key, size=size)
        self._by_id[turn.id] = log
        return log

    def find(self, owner: str, response_id: str) -> ReplayLog | None:
        """An owner's turn, or None."""
        log = self._by_id.get(response_id)
        return log if log is not None and log.owner == owner else None

    def over(
        self, log: ReplayLog, outcome: Outcome, *, memory: LatestResponses, goes_at: float
    ) -> None:
        """A turn has ended: what is left of it stays until ``goes_at``, if there is a response.

        ``memory`` is what its connection remembers.
        """
        log.turn, log.goes_at, log.chain = None, goes_at, weakref.ref(memory)
        if log.listeners:
            log.tell()
        if outcome in ("refused", "disconnected"):
            self._let_go(log)
        else:
            self._over.append(log)

    def next_deadline(self) -> float | None:
        """When ``expire`` is to be called, or None."""
        return self._over[0].goes_at if self._over else None

    def expire(self, now: float) -> None:
        """What is left of turns goes, where it is time."""
        while (at := self.next_deadline()) is not None and at <= now:
            self._let_go(self._over.popleft())

    def moved(self, log: ReplayLog, memory: LatestResponses) -> None:
        """Since it has ended it was resumed on another connection, which may remember its chain."""
        if memory.find(log.response_id) is not None:
            self._release(log)
            log.chain = weakref.ref(memory)

    def inherit(self, latest: LatestResponses, budget: Budget) -> None:
        """A connection goes: what it remembers of logged turns is counted here from now on."""
        self._budget = budget
        for lane, head in latest.lanes():
            log = self._by_id.get(head.response_id)
            # The chain of a response that cannot be resumed any more is not asked for.
            if log is not None and log.turn is None and log.whole:
                self._release(log)
                log.chain = latest.pass_on(lane, self, head.response_id)

    def forget_lane(self, lane: str | None) -> None:
        """A chain whose connection is gone goes too: the lane is named for its response."""
        log = self._by_id.get(lane or "")
        if log is not None:
            self._release(log)

    def dropped(self, log: EventLog, size: int) -> None:
        """A turn can be resumed no more."""
        super().dropped(log, size)
        if isinstance(log, ReplayLog):
            self._release(log)

    def forget(self, owner: str, response_id: str) -> None:
        """A response was deleted."""
        log = self.find(owner, response_id)
        if log is not None and log.turn is None:
            self._let_go(log)

    def clear(self) -> None:
        """The process ends."""
        for log in list(self._by_id.values()):
            self._let_go(log)
        self._over.clear()

    def _let_go(self, log: ReplayLog) -> None:
        log.drop()
        self._by_id.pop(log.response_id, None)

    def _release(self, log: ReplayLog) -> None:
        if isinstance(log.chain, ChainHead) and self._budget is not None:
            head, log.chain = log.chain, None
            self._budget.leave((self, log.response_id))
            self._budget.release(head.owner, head.node)


def _before(node: ChainNode | None) -> ChainNode | None:
    """The node before the response's own ones."""
    number = node.turn if node is not None else 0
    while node is not None and node.turn == number:
        node = node.parent
    return node
