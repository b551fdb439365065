"""The events of a response that can be read again: all of them, with their numbers.

A log belongs to one response and holds each event from the moment that it is numbered, whoever
else reads it. Logs are bounded, each and together: one that grows past its bound is whole no
more, and its response cannot be resumed; where all together are too many, those of responses
that have ended go first, the oldest at the head.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

from msgspec import Raw

from tieline.events import Event, LifecycleEvent

EVENT: Final = 256
"""Bytes, about, that an event takes beside its text."""


class EventLogs:
    """The logs of a process. ``each`` and ``most`` bound one and all of them, in bytes."""

    __slots__ = ("_each", "_ended", "_most", "size")

    def __init__(self, *, each: int = 64 * 1024 * 1024, most: int = 512 * 1024 * 1024) -> None:
        self._each = each
        self._most = most
        self._ended: dict[EventLog, None] = {}
        self.size = 0
        """Bytes, about, of all events of all logs."""

    def open(self) -> "EventLog":
        """A new log."""
        return EventLog(self)

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

    __slots__ = ("_logs", "ended", "events", "listeners", "size", "whole")

    def __init__(self, logs: EventLogs) -> None:
        self._logs = logs
        self.events: list[Event] = []
        self.size = 0
        self.whole = True
        """Whether every event is still here."""
        self.ended = False
        """Whether the last event is the terminal one."""
        self.listeners: list[Callable[[], None]] = []
        """Called whenever there is more to read, or never will be."""

    def add(self, event: Event) -> None:
        """The response said this; what it says after its end is not part of it."""
        self.extend((event,))

    def extend(self, events: Sequence[Event]) -> None:
        """The response said these things, in order."""
        if not self.whole or self.ended:
            return
        self.events += events
        self.ended = type(events[-1]).TERMINAL if events else False
        size = sum(map(_weight, events))
        self.size += size
        self._logs.grew(self, size)
        if self.ended and self.whole:
            self._logs.ended(self)
        self._tell()

    def after(self, number: int | None) -> list[Event]:
        """The events with numbers behind ``number``; behind the end, the terminal one."""
        if number is None:
            return self.events[:]
        return self.events[number + 1 :] or (self.events[-1:] if self.ended else [])

    def drop(self) -> None:
        """Nobody will read it again."""
        if self.whole:
            self.whole = False
            self.events = []
            self._logs.dropped(self, self.size)
            self.size = 0
            self._tell()

    def _tell(self) -> None:
        for listener in self.listeners:
            listener()


def _weight(event: Event) -> int:
    delta: str | None = getattr(event, "delta", None)
    if delta is not None:
        return EVENT + len(delta)
    if isinstance(event, LifecycleEvent):
        return 4 * EVENT + sum(map(len, event.response.output))
    return EVENT + _bytes_of(getattr(event, name) for name in event.__struct_fields__)


def _bytes_of(members: Iterable[Any]) -> int:
    return sum(len(member) for member in members if isinstance(member, str | Raw))
