"""The client half of a connection, without I/O: which event belongs to which request.

The driver tells it what is sent (``create``, ``append``, ``steer``, ``cancel``) and what
came (``receive``), and does what the answers say. It never waits, and knows no clock.

Theory of operation. An *ask* is one create and everything it leads to. On each lane asks are
answered in the order they were sent (wire.md 5.3), so a lane has at most one ask between its first
event and its end: its *current* one. Every create carries an ``event_id`` that the server echoes
in ``response.created`` and in errors; a server that does not echo is paired by order.

An ask is WAITING until ``response.created``, then RUNNING until its terminal event. In append
shape ``response.done`` makes it HELD; the append that answers it makes it RESUMING, until an
event shows that the server took it (RUNNING) or an error says that it did not (HELD again). A
steer that was taken ends the running response and starts a successor by itself; between the two
the ask is SUCCEEDING. A steer that was not taken when its response ended has no effect. Every ask
ends, at the latest when the connection does.

A resume makes an ask whose response is known before anything comes of it: ATTACHING. What comes
is the rest of the old events with their old numbers, and any of them may be the first.
``response.created``, where it comes again, may still echo the event_id of the create that made
it: names are therefore never used twice (``prefix``), and such an ask is found by its response.
An ask whose response was resumed elsewhere is told so (MOVED) and ends.

``ASKS`` holds every pair of state and signal; there is no default row. A row is
``(state, signal): (verdict, next state)``.
"""

from collections import deque
from typing import Final

from msgspec import UNSET, Struct

from tieline.errors import RESUMED_ELSEWHERE, TielineError
from tieline.events import (
    ErrorEvent,
    Event,
    Heartbeat,
    LifecycleEvent,
    Opaque,
    ResponseCreated,
    ResponseDone,
    ResponseFailed,
    SessionGoingAway,
    SessionStarted,
    SteerAccepted,
    SteerFailed,
    SteerPending,
    Timing,
)
from tieline_client._asks import ASKS, Ask, AskState, Signal, Verdict, concludes
from tieline_client.errors import ProtocolViolation, TurnState


class Delivery(Struct, frozen=True, gc=False):
    """What to do with an event. ``ask`` is None when it belongs to the connection."""

    verdict: Verdict
    ask: Ask | None
    event: Event


class Loss(Struct, frozen=True):
    """A transport's word that one create will not be answered to its end; the connection lives on.

    Where each create is a connection of its own (HTTP), losing one is not losing the others.
    """

    event_id: str
    error: TielineError
    sent: bool = True
    """Whether the create may have reached the server."""


def check_id(event: LifecycleEvent, known: str | None) -> None:
    """Raises :class:`ProtocolViolation` for an event of another response than the ``known`` one.

    A snapshot without an id is of the response that runs.
    """
    if known and event.response.id and event.response.id != known:
        raise ProtocolViolation(f"{event.type} came for another response than the one that runs")


class _Lane:
    """The asks of one lane, in the order they were sent."""

    __slots__ = ("current", "waiting")

    def __init__(self) -> None:
        self.waiting: deque[Ask] = deque()
        self.current: Ask | None = None

    @property
    def next(self) -> Ask | None:
        """The ask whose turn it is, before its first event."""
        return self.waiting[0] if self.current is None and self.waiting else None

    @property
    def succeeding(self) -> Ask | None:
        """The ask that waits for its successor."""
        current = self.current
        return current if current and current.state is AskState.SUCCEEDING else None

    def attaching(self, response_id: str) -> Ask | None:
        """The ask that resumes this response, before its first event."""
        for ask in self.waiting:
            if ask.state is AskState.ATTACHING and ask.response_id == response_id:
                return ask
        return None


_NO_LANE: Final = _Lane()


class Connection:
    """Pairs what comes with what was asked.

    >>> connection = Connection()
    >>> connection.create()
    <Ask create_1 waiting lane=None None>
    """

    __slots__ = ("_asks", "_count", "_lanes", "_prefix")

    def __init__(self, prefix: str = "") -> None:
        self._prefix = prefix
        """Of every event_id, so that no other connection has the same."""
        self._lanes: dict[str | None, _Lane] = {}
        self._asks: dict[str, Ask] = {}
        """event_id of a create or an append that can still be answered -> its ask."""
        self._count = 0

    # What we say: send what these return for, in the order of the calls.

    def create(self, lane: str | None = None, *, event_id: str | None = None) -> Ask:
        """A create is about to be sent on this lane, with the ask's ``event_id``.

        One that was sent before, on another connection, keeps its name, to which the server may
        answer.
        """
        return self._wait(Ask(event_id or self.name("create"), lane))

    def resume(self, response_id: str, lane: str | None = None) -> Ask:
        """A resume of this response is about to be sent, with the ask's ``event_id``.

        An ask of the same lane that has it already is over (:meth:`having`).
        """
        if (before := self.having(response_id, lane)) is not None:
            self._move(before, AskState.ENDED)
        ask = Ask(self.name("resume"), lane)
        ask.state, ask.response_id = AskState.ATTACHING, response_id
        return self._wait(ask)

    def append(self, ask: Ask, *, repeats: bool = False) -> str:
        """The ask's open calls are about to be answered; returns the append's ``event_id``.

        ``repeats``: the same outputs were sent before, and whether they were taken is unknown.
        Raises :class:`TurnState` when the ask is not held.
        """
        self._say(ask, Signal.APPEND)
        ask.repeats = repeats
        ask.append_id = self.name("append")
        self._asks[ask.append_id] = ask
        ask.steers.append_sent()
        return ask.append_id

    def steer(self, ask: Ask) -> str:
        """The ask's response is about to be steered; returns the response's id.

        Raises :class:`TurnState` when no response of it runs.
        """
        self._say(ask, Signal.STEER)
        ask.steers.sent()
        assert ask.response_id is not None
        return ask.response_id

    def cancel(self, ask: Ask) -> bool:
        """Whether a cancel is worth sending: by response id, or by event_id while it waits."""
        sends = self._say(ask, Signal.CANCEL) is Verdict.SEND
        ask.cancelled = ask.cancelled or sends
        return sends

    def withdraw(self, ask: Ask) -> None:
        """The create or append that was about to be sent could not be: it has not happened."""
        if ask.append_id is not None:
            self._conclude_append(ask, taken=False)
        self._move(ask, ASKS[ask.state, Signal.ERROR][1])

    def having(self, response_id: str, lane: str | None = None) -> Ask | None:
        """The ask of a lane that has this response now, or None."""
        current = self._lanes.get(lane, _NO_LANE).current
        return current if current and current.response_id == response_id else None

    def held(self, lane: str | None = None) -> Ask | None:
        """The held ask of a lane, or None."""
        current = self._lanes.get(lane, _NO_LANE).current
        return current if current and current.state is AskState.HELD else None

    def name(self, what: str) -> str:
        """A new ``event_id``."""
        self._count += 1
        return f"{self._prefix}{what}_{self._count}"

    # What comes.

    def receive(self, event: Event) -> Delivery:
        """Says whose event it is and what to do with it.

        Raises :class:`ProtocolViolation` for an event that cannot come there: give the connection
        up and call :meth:`lost`.
        """
        ask = self._owner(event)
        if ask is None:
            return Delivery(Verdict.DELIVER, None, event)
        if isinstance(event, LifecycleEvent) and not isinstance(event, ResponseCreated):
            check_id(event, ask.response_id)
        verdict, after = ASKS[ask.state, self._signal(ask, event)]
        if verdict is Verdict.VIOLATION:
            raise ProtocolViolation(f"{event.type} came for a turn that is {ask.state.value}")
        if isinstance(event, ResponseCreated):
            self._begin(ask, event.response.id)
        elif ask.state is AskState.ATTACHING and after is not AskState.ATTACHING:
            self._begin(ask, ask.response_id)
        elif isinstance(event, _STEER_EVENTS) and _aim(event) == ask.response_id:
            ask.steers.answered(event)
        if ask.append_id is not None and after is not AskState.RESUMING:
            self._conclude_append(ask, taken=verdict is not Verdict.REPORT)
        if after is AskState.SUCCEEDING:
            ask.steers.ended()
        self._move(ask, after)
        return Delivery(verdict, ask, event)

    def waits(self, event_id: str) -> bool:
        """Whether nothing has been heard of the request of this ``event_id``."""
        ask = self._asks.get(event_id)
        return ask is not None and ask.state in (AskState.WAITING, AskState.ATTACHING)

    def lose(self, event_id: str) -> Ask | None:
        """The create of this ``event_id`` is lost: the ask that ends; None when none is open."""
        ask = self._asks.get(event_id)
        if ask is not None:
            self._move(ask, ASKS[ask.state, Signal.LOST][1])
        return ask

    def lost(self) -> list[Ask]:
        """The connection is over: returns the asks that end with it, per lane in order."""
        pending = self.pending
        for ask in pending:
            self._move(ask, ASKS[ask.state, Signal.LOST][1])
        return pending

    @property
    def pending(self) -> list[Ask]:
        """Asks that have not ended."""
        lanes = self._lanes.values()
        return [ask for lane in lanes for ask in (lane.current, *lane.waiting) if ask is not None]

    # How.

    def _owner(self, event: Event) -> Ask | None:
        """Whose event it is; None for the connection's own and for what no ask waits for."""
        if isinstance(event, _CONNECTION_EVENTS):
            return None
        lane = self._lanes.get(event.stream_id or None, _NO_LANE)
        if lane is _NO_LANE and not isinstance(event, (ErrorEvent, *_NOTICES)):
            raise ProtocolViolation(f"{event.type} came on a lane that was never used")
        if isinstance(event, ResponseCreated):
            attaching = lane.attaching(event.response.id)
            if event.event_id:
                named = self._asks.get(event.event_id)
                here = named is not None and named.lane == (event.stream_id or None)
                # Under an idempotency key, a replay has the name that the first create had.
                return (named if here else None) or attaching or lane.next
            return lane.succeeding or lane.current or attaching or lane.next
        if isinstance(event, ErrorEvent):
            if event.error.event_id is not UNSET:
                return self._asks.get(event.error.event_id)
            if event.error.code == RESUMED_ELSEWHERE:
                return lane.current
            # Without an echo: beside a running response, an error is its own only if numbered.
            numbered = lane.current if event.sequence_number else None
            return numbered or lane.succeeding or lane.next
        if isinstance(event, _STEER_EVENTS):
            # Late, it may come beside the response of another ask.
            ask = lane.current
            return ask if ask and _aim(event) in (ask.response_id, ask.steered_id) else None
        if isinstance(event, _NOTICES):
            return lane.current
        return lane.current or lane.next

    def _signal(self, ask: Ask, event: Event) -> Signal:
        if concludes(event):
            return Signal.SETTLED if ask.steers.open == 1 else Signal.NOTICE
        if isinstance(event, ErrorEvent):
            if event.error.code == RESUMED_ELSEWHERE:
                return Signal.MOVED
            if ask.state is AskState.ATTACHING and event.sequence_number:
                # Of the response itself, which has failed: it comes again like all its events.
                return Signal.EVENT
            stale = ask.append_id is not None and event.error.event_id != ask.append_id
            taken = ask.repeats and event.error.code == _TAKEN
            return Signal.NOTICE if stale else Signal.REPEATED if taken else Signal.ERROR
        if isinstance(event, LifecycleEvent) and event.TERMINAL:
            cut = isinstance(event, ResponseFailed) or event.response.status == "cancelled"
            return Signal.YIELD if ask.steers.open and not cut else Signal.TERMINAL
        if isinstance(event, _NOTICES):
            return Signal.NOTICE
        return _SIGNALS.get(type(event), Signal.EVENT)

    def _say(self, ask: Ask, signal: Signal) -> Verdict:
        verdict, after = ASKS[ask.state, signal]
        if verdict is Verdict.MISUSE:
            raise TurnState(f"{signal.value}: the turn is {ask.state.value}")
        self._move(ask, after)
        return verdict

    def _wait(self, ask: Ask) -> Ask:
        self._asks[ask.event_id] = ask
        self._lanes.setdefault(ask.lane, _Lane()).waiting.append(ask)
        return ask

    def _begin(self, ask: Ask, response_id: str | None) -> None:
        """A response of this ask begins, or goes on: it has the lane now."""
        lane = self._lanes[ask.lane]
        if lane.current is not None and lane.current is not ask:
            raise ProtocolViolation("two responses at once on one lane")
        if lane.current is None:
            lane.waiting.remove(ask)
            lane.current = ask
        ask.steers.succeeded()
        if ask.response_id != response_id:
            ask.steered_id, ask.response_id = ask.response_id, response_id

    def _conclude_append(self, ask: Ask, *, taken: bool) -> None:
        if taken:
            ask.steers.append_taken()
        else:
            ask.steers.append_refused()
        assert ask.append_id is not None
        del self._asks[ask.append_id]
        ask.append_id = None

    def _move(self, ask: Ask, after: AskState) -> None:
        if ask.ended:
            return
        ask.state = after
        if after is not AskState.ENDED:
            return
        lane = self._lanes[ask.lane]
        if lane.current is ask:
            lane.current = None
        else:
            lane.waiting.remove(ask)
        self._asks.pop(ask.event_id, None)
        self._asks.pop(ask.append_id or "", None)


def _aim(event: SteerAccepted | SteerFailed | SteerPending) -> str:
    """The response that a steer was sent to."""
    return event.steer.previous_response_id


_TAKEN: Final = "response_not_active"
"""How a server refuses an append that names a response which runs: it is not held."""
_CONNECTION_EVENTS: Final = (Heartbeat, SessionStarted, SessionGoingAway)
_STEER_EVENTS: Final = (SteerAccepted, SteerFailed, SteerPending)
_NOTICES: Final = (*_STEER_EVENTS, Timing, Opaque)
_SIGNALS: Final[dict[type[Event], Signal]] = {
    ResponseCreated: Signal.CREATED,
    ResponseDone: Signal.DONE,
}
