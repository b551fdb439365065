"""The events of a response that can be read again: all of them, with their numbers.

A log belongs to one response and holds each event from the moment that it is numbered, whoever
else reads it. Logs are bounded, each and together: one that grows past its bound is whole no
more, and its response cannot be resumed; where all together are too many, those of responses
that have ended go first, the oldest at the head.
"""

from collections.abc import Callable, Sequence
from typing import Final

from tieline.events import Event, OutputItemDone

EVENT: Final = 320
"""Bytes, about, that an event takes beside its text."""

TEXT: Final = 4
"""How often text is kept: in deltas, and in the events of parts and items that are whole."""

FEW: Final = 64
"""Events that a log may have more than it is counted with."""


class EventLogs:
    """The logs of a process. ``each`` and ``most`` bound one and all of them, in bytes."""

    __slots__ = ("_each", "_ended", "_most", "size")

    def __init__(self, *, each: int = 64 * 1024 * 1024, most: int = 512 * 1024 * 1024) -> None:
        self._each = each
        self._most = most
        self._ended: dict[EventLog, None] = {}
        self.size = 0
        """Bytes, about, of all events of all logs."""

    def open(self, size: int = 0) -> "EventLog":
        """A new log, whose events will echo so many bytes of the request."""
        return EventLog(self, size)

    def grew(self, log: "EventLog", size: int) -> None:
        """A log has so many bytes more."""
        self.size += size
        if log.size > self._each:
            log.drop()
        while self.size > self._most:
            (next(iter(self._ended), None) or log).drop()

    def ended(self, log: "EventLog") -> None:
        """Nothing more comes to this log: it goes when room is needed."""
        self._ended[log] = None

    def dropped(self, log: "EventLog", size: int) -> None:
        """A log holds nothing any more."""
        self.size -= size
        self._ended.pop(log, None)


class EventLog:
    """The events of one response, the first one first: an event's place is its number."""

    __slots__ = ("_listeners", "_logs", "_open", "_weighed", "ended", "events", "size", "whole")

    def __init__(self, logs: EventLogs, size: int) -> None:
        self._logs = logs
        self._open = True
        self._weighed = 0
        self.events: list[Event] = []
        self.size = size
        """Bytes, about, of all events but the last few."""
        self.whole = True
        """Whether every event is still here."""
        self.ended = False
        """Whether the last event is the terminal one."""
        # Few have a listener, and what is kept of every turn is kept small.
        self._listeners: tuple[Callable[[], None], ...] = ()
        logs.grew(self, size)

    def add(self, event: Event) -> None:
        """The response said this; what it says after its end is not part of it."""
        if not self._open:
            return
        self.events.append(event)
        kind = type(event)
        if kind is OutputItemDone:
            self._weigh(TEXT * len(event.item))  # type: ignore[attr-defined]
        elif kind.TERMINAL:
            self._end()
        if self._listeners:
            self._tell()

    def extend(self, events: Sequence[Event]) -> None:
        """The response said these things, in order; its end is not among them."""
        if self._open:
            self.events += events
            if len(self.events) - self._weighed > FEW:
                self._weigh()
            if self._listeners:
                self._tell()

    def listen(self, listener: Callable[[], None]) -> None:
        """``listener`` is called whenever there is more to read, or never will be."""
        self._listeners += (listener,)

    def unlisten(self, listener: Callable[[], None]) -> None:
        """``listener`` is called no more, if it was."""
        self._listeners = tuple(each for each in self._listeners if each != listener)

    def after(self, number: int | None, most: int | None = None) -> list[Event]:
        """The events with numbers behind ``number``; behind the end, the terminal one.

        At most so many of them, the first ones.
        """
        first = 0 if number is None else number + 1
        found = self.events[first : None if most is None else first + most]
        return found or (self.events[-1:] if self.ended else [])

    def drop(self) -> None:
        """Nobody will read it again."""
        if self.whole:
            self.whole = self._open = False
            self.events = []
            self._logs.dropped(self, self.size)
            self.size = 0
            self._tell()

    def _end(self) -> None:
        self._open = False
        self.ended = True
        self._weigh()
        if self.whole:
            self._logs.ended(self)

    def _weigh(self, text: int = 0) -> None:
        """Counts the events since the last time. Their text is counted when its item is whole."""
        count = len(self.events)
        size = EVENT * (count - self._weighed) + text
        self._weighed = count
        self.size += size
        self._logs.grew(self, size)

    def _tell(self) -> None:
        for listener in self._listeners:
            listener()
