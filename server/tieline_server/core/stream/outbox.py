"""Events on their way out: numbered as they enter, lanes taking turns, slow readers merged.

An event gets its sequence number when it enters (wire.md 3.3.3), so that every reader and every
replay sees the same numbers. Only when a lane already has ``merge_from`` unsent events does a
delta join the last unsent one of the same part; it then takes no number of its own. A reader
that keeps up gets every event alone.
"""

from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

from msgspec import UNSET, UnsetType

from tieline.events import MERGEABLE, Event, merged
from tieline_server.core.stream.replay_log import ReplayLog

MERGE_CHARACTERS: Final = 128
"""A delta of this size joins no further: ``limits.outbox`` counts events, and bounds memory."""

Texts = Sequence[str]
Deltas = list[Event]
Make = Callable[[int, Texts], Deltas]
"""Makes the deltas of some texts, of which the first has this ``sequence_number``."""


class Outgoing:
    """What a connection has yet to send: its own events first, then the lanes in turn."""

    __slots__ = ("_closed", "_connection", "_lanes", "_last", "_ready", "merge_from", "wake")

    def __init__(self, *, merge_from: int | None, wake: Callable[[], None]) -> None:
        self.merge_from = merge_from
        """Unsent events from which on deltas merge; None: never."""
        self.wake = wake
        """Called when there is something to send, and there was nothing before."""
        self._connection: deque[Event] = deque()
        self._last: Event | None = None
        self._lanes: dict[str | None, deque[Event]] = {}
        self._ready: deque[str | None] = deque()
        self._closed = False

    def put_connection(self, event: Event) -> None:
        """Queues an event that belongs to no response; it goes out before all others."""
        if self._closed:
            return
        idle = self.empty
        self._connection.append(event)
        if idle:
            self.wake()

    def put_last(self, event: Event) -> None:
        """Queues the event that says why the connection ends; it goes out after all others."""
        if self._closed:
            return
        idle = self.empty
        self._last = event
        if idle:
            self.wake()

    def put(self, lane: str | None, event: Event, *, alone: bool = False) -> bool:
        """Queues an event of a lane; False when it joined the one before it.

        ``alone`` says that it must not.
        """
        if self._closed:
            return True
        unsent = self._lanes.get(lane)
        if unsent is None:
            unsent = self._lanes[lane] = deque()
        if unsent:
            if not alone and self.merge_from is not None and self._joins(unsent, event):
                return False
            # The first of them has woken the sender.
            unsent.append(event)
            return True
        idle = self.empty
        self._ready.append(lane)
        unsent.append(event)
        if idle:
            self.wake()
        return True

    def extend(self, lane: str | None, events: Sequence[Event]) -> None:
        """Queues events of a lane that join nothing: ``room`` says how many may."""
        if self._closed or not events:
            return
        unsent = self._lanes.get(lane)
        if unsent:
            unsent.extend(events)
            return
        idle = self.empty
        if unsent is None:
            unsent = self._lanes[lane] = deque()
        self._ready.append(lane)
        unsent.extend(events)
        if idle:
            self.wake()

    def room(self, lane: str | None) -> int | None:
        """How many more events of a lane go out alone before deltas merge; None: all."""
        if self.merge_from is None or self._closed:
            return None
        return max(0, self.merge_from - len(self._lanes.get(lane, ())))

    def _joins(self, unsent: deque[Event], event: Event) -> bool:
        if self.merge_from is None or len(unsent) < self.merge_from:
            return False
        last = unsent[-1]
        if type(event) not in MERGEABLE or len(getattr(last, "delta", "")) >= MERGE_CHARACTERS:
            return False
        joined = merged(last, event)
        if joined is None:
            return False
        unsent[-1] = joined
        return True

    def next(self) -> Event | None:
        """Takes the next event to send, or None."""
        if self._connection:
            return self._connection.popleft()
        if not self._ready:
            last, self._last = self._last, None
            return last
        ready = self._ready
        unsent = self._lanes[ready[0]]
        event = unsent.popleft()
        if not unsent:
            ready.popleft()
        elif len(ready) > 1:
            ready.rotate(-1)
        return event

    def take(self, most: int) -> list[Event]:
        """Takes the next events to send, as ``next`` would one by one: at most so many."""
        ready = self._ready
        if len(ready) == 1 and not self._connection:
            unsent = self._lanes[ready[0]]
            if len(unsent) <= most:
                taken = list(unsent)
                unsent.clear()
                ready.clear()
                return taken
        taken = []
        while len(taken) < most and (event := self.next()) is not None:
            taken.append(event)
        return taken

    def unsent(self, lane: str | None) -> int:
        """How many events of a lane wait to be sent."""
        return len(self._lanes.get(lane, ()))

    def crowd(self, lane: str | None) -> int:
        """How many events would wait, were every lane with some as far behind as this one."""
        return len(self._lanes.get(lane, ())) * len(self._ready)

    @property
    def waiting(self) -> int:
        """How many events of all lanes wait to be sent."""
        return sum(map(len, self._lanes.values()))

    @property
    def empty(self) -> bool:
        """Whether everything is sent."""
        return not self._connection and not self._ready and self._last is None

    def close(self, last: Event | None = None) -> None:
        """The peer is gone: what was not sent never will be, except ``last``."""
        self._closed = True
        self._connection.clear()
        self._lanes.clear()
        self._ready.clear()
        self._last = None
        if last is not None:
            self._connection.append(last)
            self.wake()


class Outbox:
    """The events of one response: numbers them and hands them to the connection."""

    __slots__ = ("_lane", "_outgoing", "count", "log", "stream_id")

    def __init__(self, outgoing: Outgoing, lane: str | None) -> None:
        self.count = 0
        """Events so far: the next sequence number."""
        self.log: ReplayLog | None = None
        """Where every event is kept, for a response that can be resumed."""
        self.move_to(outgoing, lane)

    def move_to(self, outgoing: Outgoing, lane: str | None) -> None:
        """What comes from here on goes out by another connection, or on another lane."""
        self._outgoing = outgoing
        self._lane = lane
        self.stream_id: str | UnsetType = UNSET if lane is None else lane
        """What its events name."""

    def push(self, event: Event) -> None:
        """Queues an event, made with ``count`` for its number and with ``stream_id``."""
        log = self.log
        if log is not None:
            log.add(event)
        # What is kept goes out as it is: every reader sees the same events.
        if self._outgoing.put(self._lane, event, alone=log is not None):
            self.count += 1

    def end(self, event: Event, *, quiet: bool = False) -> None:
        """Queues the terminal event; a ``quiet`` one is only kept, for those who read it again."""
        if self.log is not None:
            self.log.end(event)
        if not quiet:
            self._outgoing.put(self._lane, event, alone=True)
            self.count += 1

    # A maker is a closure that makes the deltas of one part or call, whose lane may change between
    # two calls of it. Each shape has one: to pass the place as a dictionary costs three times as
    # much. A closure's annotations are looked up each time that it is made, and so have names.

    def content_maker(
        self, kind: Callable[..., Event], *, item_id: str, output_index: int, content_index: int
    ) -> Make:
        """Makes the deltas of one content part, of a message or of reasoning."""

        def make(first: int, texts: Texts) -> Deltas:
            lane = self.stream_id
            return [
                kind(
                    sequence_number=number,
                    stream_id=lane,
                    item_id=item_id,
                    output_index=output_index,
                    content_index=content_index,
                    delta=text,
                )
                for number, text in enumerate(texts, first)
            ]

        return make

    def summary_maker(
        self, kind: Callable[..., Event], *, item_id: str, output_index: int, summary_index: int
    ) -> Make:
        """Makes the deltas of one part of a summary of reasoning."""

        def make(first: int, texts: Texts) -> Deltas:
            lane = self.stream_id
            return [
                kind(
                    sequence_number=number,
                    stream_id=lane,
                    item_id=item_id,
                    output_index=output_index,
                    summary_index=summary_index,
                    delta=text,
                )
                for number, text in enumerate(texts, first)
            ]

        return make

    def call_maker(self, kind: Callable[..., Event], *, item_id: str, output_index: int) -> Make:
        """Makes the deltas of one call."""

        def make(first: int, texts: Texts) -> Deltas:
            lane = self.stream_id
            return [
                kind(
                    sequence_number=number,
                    stream_id=lane,
                    item_id=item_id,
                    output_index=output_index,
                    delta=text,
                )
                for number, text in enumerate(texts, first)
            ]

        return make

    def extend(self, make: Make, texts: Sequence[str]) -> None:
        """Numbers and queues deltas of one part that became known together.

        Where the reader is slow, the later ones join as if they had come one by one.
        """
        if self.log is not None:
            # Each has its number in the log, so that none may join another on its way out.
            made = make(self.count, texts)
            self.count += len(made)
            self._outgoing.extend(self._lane, made)
            self.log.extend(made[0], texts)
            return
        if len(texts) == 1:
            # A paced engine says one token at a time: the shortest way.
            (only,) = make(self.count, texts)
            if self._outgoing.put(self._lane, only):
                self.count += 1
            return
        # As many as a reader that keeps up gets alone go out in one step.
        room = self._outgoing.room(self._lane)
        alone = texts if room is None else texts[:room]
        first = self.count
        made = make(first, alone)
        self._outgoing.extend(self._lane, made)
        self.count = first + len(made)
        for text in texts[len(made) :]:
            (late,) = make(self.count, (text,))
            if self._outgoing.put(self._lane, late):
                self.count += 1

    @property
    def unsent(self) -> int:
        """How many events of the lane wait to be sent."""
        return self._outgoing.unsent(self._lane)

    @property
    def crowd(self) -> int:
        """``Outgoing.crowd`` of its lane.

        What all lanes together may leave unsent is thus shared by those that do, and a lane
        whose events are taken is held up by no other.
        """
        return self._outgoing.crowd(self._lane)
