"""The events of a response that can be read again: all of them, with their numbers.

A log belongs to one response and holds each event from the moment that it is numbered, whoever
else reads it. Logs are bounded, each and together: one that grows past its bound is whole no
more, and its response cannot be resumed; where all together are too many, those of responses
that have ended go first, the oldest at the head.
"""

from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Final

from tieline.events import Event
from tieline_server.core.delta_run import DeltaRun

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
        self._ended: deque[EventLog] = deque()
        """Those whose response has ended, the first one first; some may be dropped by now."""
        self.ended: Callable[[EventLog], None] = self._ended.append
        """Nothing more comes to this log: it goes when room is needed."""
        self.size = 0
        """Bytes, about, of all events of all logs."""

    def make_room(self, log: "EventLog") -> None:
        """The log has grown, and it or all of them are past their bound."""
        if log.size > self.each:
            log.drop()
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
        self._weighed = 0
        """Entries that were counted."""
        self._uncounted = size
        """Bytes of deltas and text that came since."""
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
        for entry in entries[max(0, bisect_right(entries, first, key=_number_of) - 1) :]:
            room = None if most is None else most - len(found)
            if room == 0:
                break
            if isinstance(entry, DeltaRun):
                found += entry.behind(first, room)
            elif _number_of(entry) >= first:
                found.append(entry)
        return found or ([self.last] if self.last else [])

    def drop(self) -> None:
        """Nobody will read it again."""
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
    """What nobody keeps any more."""
