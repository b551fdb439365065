"""The client half of a line, without I/O: which event belongs to which request.

Whoever drives it tells it what is sent (``create``, ``append``, ``steer``, ``cancel``) and what
came (``receive``), and does what the answers say. It never waits, and knows no clock.

Theory of operation. An *ask* is one create and everything it leads to. On each lane asks are
answered in the order they were sent (wire.md 5), so a lane has at most one ask between its first
event and its end: its *current* one. Every create carries an ``event_id`` that the server echoes
in ``response.created`` and in errors; a server that does not echo is paired by order.

An ask is WAITING until ``response.created``, then RUNNING until its terminal event. In append
shape ``response.done`` makes it HELD; the append that answers it makes it RESUMING, until an
event shows that the server took it (RUNNING) or an error says that it did not (HELD again). A
steer that was taken ends the running response and starts a successor by itself; between the two
the ask is SUCCEEDING. A steer that was not taken when its response ended has no effect. Every ask
ends, at the latest when the line does.

``ASKS`` holds every pair of state and signal; there is no default row. A row is
``(state, signal): (verdict, next state)``.
"""

from collections import deque
from enum import Enum
from typing import Final

from msgspec import UNSET, Struct

from tieline.errors import TielineError
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
from tieline_client.errors import ProtocolViolation, TurnState


class AskState(Enum):
    """Where an ask is."""

    WAITING = "waiting"
    """Sent; nothing has been heard."""
    RUNNING = "running"
    """Its response is being made."""
    HELD = "held"
    """Append shape: its response waits for tool outputs."""
    RESUMING = "resuming"
    """The outputs are sent; nothing has been heard since."""
    SUCCEEDING = "succeeding"
    """Its response has ended for a steer; the successor has not begun."""
    ENDED = "ended"
    """Nothing more will come."""


class Signal(Enum):
    """What can happen to an ask."""

    APPEND = "append"
    """We answer its open calls."""
    STEER = "steer"
    """We steer it."""
    CANCEL = "cancel"
    """We cancel it."""
    CREATED = "created"
    """response.created."""
    EVENT = "event"
    """The response goes on."""
    NOTICE = "notice"
    """An event beside the response: of a steer, of timing, of a type that is not known here."""
    DONE = "done"
    """response.done: held."""
    TERMINAL = "terminal"
    """A terminal event, and no successor comes."""
    YIELD = "yield"
    """A terminal event; a taken steer makes a successor, or the server says why not."""
    SETTLED = "settled"
    """The last taken steer had no effect, or waits for the next input: no successor comes."""
    ERROR = "error"
    """An error event that answers this ask or its append."""
    LOST = "lost"
    """The line is over."""


class Verdict(Enum):
    """What the driver does about it."""

    SEND = "send"
    """Ours: send it."""
    SKIP = "skip"
    """Ours: it can have no effect any more; send nothing."""
    MISUSE = "misuse"
    """Ours: the ask cannot do that now; raised as :class:`TurnState`."""
    DELIVER = "deliver"
    """Hand the event over."""
    REFUSE = "refuse"
    """Raise the error: the ask was refused and is over."""
    REPORT = "report"
    """Raise the error: the append was refused, the turn is still held."""
    DROP = "drop"
    """Too late to matter."""
    FAIL = "fail"
    """Raise the loss of the line."""
    VIOLATION = "violation"
    """The server may not say that here; raised as :class:`ProtocolViolation`."""


# fmt: off
ASKS: Final[dict[tuple[AskState, Signal], tuple[Verdict, AskState]]] = {
    (AskState.WAITING, Signal.APPEND): (Verdict.MISUSE, AskState.WAITING),
    (AskState.WAITING, Signal.STEER): (Verdict.MISUSE, AskState.WAITING),
    (AskState.WAITING, Signal.CANCEL): (Verdict.SEND, AskState.WAITING),
    (AskState.WAITING, Signal.CREATED): (Verdict.DELIVER, AskState.RUNNING),
    (AskState.WAITING, Signal.EVENT): (Verdict.VIOLATION, AskState.WAITING),
    (AskState.WAITING, Signal.NOTICE): (Verdict.VIOLATION, AskState.WAITING),
    (AskState.WAITING, Signal.DONE): (Verdict.VIOLATION, AskState.WAITING),
    (AskState.WAITING, Signal.TERMINAL): (Verdict.VIOLATION, AskState.WAITING),
    (AskState.WAITING, Signal.YIELD): (Verdict.VIOLATION, AskState.WAITING),
    (AskState.WAITING, Signal.SETTLED): (Verdict.VIOLATION, AskState.WAITING),
    (AskState.WAITING, Signal.ERROR): (Verdict.REFUSE, AskState.ENDED),
    (AskState.WAITING, Signal.LOST): (Verdict.FAIL, AskState.ENDED),
    (AskState.RUNNING, Signal.APPEND): (Verdict.MISUSE, AskState.RUNNING),
    (AskState.RUNNING, Signal.STEER): (Verdict.SEND, AskState.RUNNING),
    (AskState.RUNNING, Signal.CANCEL): (Verdict.SEND, AskState.RUNNING),
    (AskState.RUNNING, Signal.CREATED): (Verdict.VIOLATION, AskState.RUNNING),
    (AskState.RUNNING, Signal.EVENT): (Verdict.DELIVER, AskState.RUNNING),
    (AskState.RUNNING, Signal.NOTICE): (Verdict.DELIVER, AskState.RUNNING),
    (AskState.RUNNING, Signal.DONE): (Verdict.DELIVER, AskState.HELD),
    (AskState.RUNNING, Signal.TERMINAL): (Verdict.DELIVER, AskState.ENDED),
    (AskState.RUNNING, Signal.YIELD): (Verdict.DELIVER, AskState.SUCCEEDING),
    (AskState.RUNNING, Signal.SETTLED): (Verdict.DELIVER, AskState.RUNNING),
    (AskState.RUNNING, Signal.ERROR): (Verdict.DELIVER, AskState.RUNNING),
    (AskState.RUNNING, Signal.LOST): (Verdict.FAIL, AskState.ENDED),
    (AskState.HELD, Signal.APPEND): (Verdict.SEND, AskState.RESUMING),
    (AskState.HELD, Signal.STEER): (Verdict.SEND, AskState.HELD),
    (AskState.HELD, Signal.CANCEL): (Verdict.SEND, AskState.HELD),
    (AskState.HELD, Signal.CREATED): (Verdict.VIOLATION, AskState.HELD),
    (AskState.HELD, Signal.EVENT): (Verdict.DELIVER, AskState.HELD),
    (AskState.HELD, Signal.NOTICE): (Verdict.DELIVER, AskState.HELD),
    (AskState.HELD, Signal.DONE): (Verdict.VIOLATION, AskState.HELD),
    (AskState.HELD, Signal.TERMINAL): (Verdict.DELIVER, AskState.ENDED),
    (AskState.HELD, Signal.YIELD): (Verdict.DELIVER, AskState.SUCCEEDING),
    (AskState.HELD, Signal.SETTLED): (Verdict.DELIVER, AskState.HELD),
    (AskState.HELD, Signal.ERROR): (Verdict.DELIVER, AskState.HELD),
    (AskState.HELD, Signal.LOST): (Verdict.FAIL, AskState.ENDED),
    (AskState.RESUMING, Signal.APPEND): (Verdict.MISUSE, AskState.RESUMING),
    (AskState.RESUMING, Signal.STEER): (Verdict.SEND, AskState.RESUMING),
    (AskState.RESUMING, Signal.CANCEL): (Verdict.SEND, AskState.RESUMING),
    (AskState.RESUMING, Signal.CREATED): (Verdict.VIOLATION, AskState.RESUMING),
    (AskState.RESUMING, Signal.EVENT): (Verdict.DELIVER, AskState.RUNNING),
    (AskState.RESUMING, Signal.NOTICE): (Verdict.DELIVER, AskState.RESUMING),
    (AskState.RESUMING, Signal.DONE): (Verdict.DELIVER, AskState.HELD),
    (AskState.RESUMING, Signal.TERMINAL): (Verdict.DELIVER, AskState.ENDED),
    (AskState.RESUMING, Signal.YIELD): (Verdict.DELIVER, AskState.SUCCEEDING),
    (AskState.RESUMING, Signal.SETTLED): (Verdict.DELIVER, AskState.RESUMING),
    (AskState.RESUMING, Signal.ERROR): (Verdict.REPORT, AskState.HELD),
    (AskState.RESUMING, Signal.LOST): (Verdict.FAIL, AskState.ENDED),
    (AskState.SUCCEEDING, Signal.APPEND): (Verdict.MISUSE, AskState.SUCCEEDING),
    (AskState.SUCCEEDING, Signal.STEER): (Verdict.MISUSE, AskState.SUCCEEDING),
    (AskState.SUCCEEDING, Signal.CANCEL): (Verdict.SEND, AskState.SUCCEEDING),
    (AskState.SUCCEEDING, Signal.CREATED): (Verdict.DELIVER, AskState.RUNNING),
    (AskState.SUCCEEDING, Signal.EVENT): (Verdict.VIOLATION, AskState.SUCCEEDING),
    (AskState.SUCCEEDING, Signal.NOTICE): (Verdict.DELIVER, AskState.SUCCEEDING),
    (AskState.SUCCEEDING, Signal.DONE): (Verdict.VIOLATION, AskState.SUCCEEDING),
    (AskState.SUCCEEDING, Signal.TERMINAL): (Verdict.VIOLATION, AskState.SUCCEEDING),
    (AskState.SUCCEEDING, Signal.YIELD): (Verdict.VIOLATION, AskState.SUCCEEDING),
    (AskState.SUCCEEDING, Signal.SETTLED): (Verdict.DELIVER, AskState.ENDED),
    (AskState.SUCCEEDING, Signal.ERROR): (Verdict.REFUSE, AskState.ENDED),
    (AskState.SUCCEEDING, Signal.LOST): (Verdict.FAIL, AskState.ENDED),
    (AskState.ENDED, Signal.APPEND): (Verdict.MISUSE, AskState.ENDED),
    (AskState.ENDED, Signal.STEER): (Verdict.MISUSE, AskState.ENDED),
    (AskState.ENDED, Signal.CANCEL): (Verdict.SKIP, AskState.ENDED),
    (AskState.ENDED, Signal.CREATED): (Verdict.VIOLATION, AskState.ENDED),
    (AskState.ENDED, Signal.EVENT): (Verdict.DROP, AskState.ENDED),
    (AskState.ENDED, Signal.NOTICE): (Verdict.DROP, AskState.ENDED),
    (AskState.ENDED, Signal.DONE): (Verdict.DROP, AskState.ENDED),
    (AskState.ENDED, Signal.TERMINAL): (Verdict.DROP, AskState.ENDED),
    (AskState.ENDED, Signal.YIELD): (Verdict.DROP, AskState.ENDED),
    (AskState.ENDED, Signal.SETTLED): (Verdict.DROP, AskState.ENDED),
    (AskState.ENDED, Signal.ERROR): (Verdict.DROP, AskState.ENDED),
    (AskState.ENDED, Signal.LOST): (Verdict.DROP, AskState.ENDED),
}
"""(state, signal) -> (verdict, next state), every pair."""
# fmt: on


class _Steers:
    """Steers of one response that have had no effect yet, oldest first; True for a taken one.

    The server answers steers in order, and takes none of a response that has ended. A taken one
    acts in a successor, or joins the append that was sent after it, or is handed back as pending.
    """

    __slots__ = ("_joining", "_taken")

    def __init__(self) -> None:
        self._taken: list[bool] = []
        self._joining = 0

    @property
    def open(self) -> int:
        """How many will say or do something after the running response has ended."""
        return sum(self._taken[self._joining :])

    def sent(self) -> None:
        """One is on its way."""
        self._taken.append(False)

    def append_sent(self) -> None:
        """An append is on its way: those before it go into the context with it."""
        self._joining = len(self._taken)

    def withdrawn(self) -> None:
        """The last one was not sent after all."""
        del self._taken[-1:]

    def append_refused(self) -> None:
        """They did not."""
        self._joining = 0

    def append_taken(self) -> None:
        """They did."""
        del self._taken[: self._joining]
        self._joining = 0

    def ended(self) -> None:
        """The response has ended: one that was not taken by now never will be."""
        self._taken = [taken for taken in self._taken if taken]

    def succeeded(self) -> None:
        """The successor has begun with all that were taken."""
        self._taken.clear()

    def answered(self, event: Event) -> None:
        """The server said something about the oldest that it can mean."""
        of_taken = _concludes(event)
        if of_taken not in self._taken:
            return
        index = self._taken.index(of_taken)
        if isinstance(event, SteerAccepted):
            self._taken[index] = True
            return
        del self._taken[index]
        self._joining -= index < self._joining


def _concludes(event: Event) -> bool:
    """Whether an event says what became of a steer that had been taken."""
    if isinstance(event, SteerFailed):
        return event.error.code == "successor_creation_failed"
    return isinstance(event, SteerPending)


class Ask:
    """One create and everything it leads to."""

    __slots__ = (
        "append_id",
        "cancelled",
        "event_id",
        "lane",
        "response_id",
        "state",
        "steered_id",
        "steers",
    )

    def __init__(self, event_id: str, lane: str | None) -> None:
        self.event_id = event_id
        self.lane = lane
        self.state = AskState.WAITING
        self.response_id: str | None = None
        """The response that is being made, or was made last; None while waiting."""
        self.steered_id: str | None = None
        """The response that it succeeded: refusals of steers may still name that one."""
        self.append_id: str | None = None
        """The event_id of an append that the server has not taken yet."""
        self.steers = _Steers()
        self.cancelled = False
        """Whether we have cancelled it: even a held one then has its end to come."""

    @property
    def ended(self) -> bool:
        """Whether nothing more will come."""
        return self.state is AskState.ENDED

    @property
    def rests(self) -> bool:
        """Whether nothing comes until we speak: held, or ended."""
        held = self.state is AskState.HELD and not self.cancelled
        return held or self.state is AskState.ENDED

    def __repr__(self) -> str:
        return f"<Ask {self.event_id} {self.state.value} lane={self.lane} {self.response_id}>"


class Delivery(Struct, frozen=True, gc=False):
    """What to do with an event. ``ask`` is None when it belongs to the line."""

    verdict: Verdict
    ask: Ask | None
    event: Event


class Loss(Struct, frozen=True):
    """A transport's word that one create will not be answered to its end; the line lives on.

    Where each create is a connection of its own (HTTP), losing one is not losing the others.
    """

    event_id: str
    error: TielineError


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


_NO_LANE: Final = _Lane()


class Line:
    """Pairs what comes with what was asked.

    >>> line = Line()
    >>> line.create()
    <Ask create_1 waiting lane=None None>
    """

    __slots__ = ("_asks", "_count", "_lanes")

    def __init__(self) -> None:
        self._lanes: dict[str | None, _Lane] = {}
        self._asks: dict[str, Ask] = {}
        """event_id of a create or an append that can still be answered -> its ask."""
        self._count = 0

    # What we say: send what these return for, in the order of the calls.

    def create(self, lane: str | None = None) -> Ask:
        """A create is about to be sent on this lane, with the ask's ``event_id``."""
        ask = Ask(self._new_id("create"), lane)
        self._asks[ask.event_id] = ask
        self._lanes.setdefault(lane, _Lane()).waiting.append(ask)
        return ask

    def append(self, ask: Ask) -> str:
        """The ask's open calls are about to be answered; returns the append's ``event_id``.

        Raises :class:`TurnState` when the ask is not held.
        """
        self._say(ask, Signal.APPEND)
        ask.append_id = self._new_id("append")
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

    def held(self, lane: str | None = None) -> Ask | None:
        """The held ask of a lane, or None."""
        current = self._lanes.get(lane, _NO_LANE).current
        return current if current and current.state is AskState.HELD else None

    # What comes.

    def receive(self, event: Event) -> Delivery:
        """Says whose event it is and what to do with it.

        Raises :class:`ProtocolViolation` for an event that cannot come there: give the line up
        and call :meth:`lost`.
        """
        ask = self._owner(event)
        if ask is None:
            return Delivery(Verdict.DELIVER, None, event)
        verdict, after = ASKS[ask.state, self._signal(ask, event)]
        if verdict is Verdict.VIOLATION:
            raise ProtocolViolation(f"{event.type} came for a turn that is {ask.state.value}")
        if isinstance(event, ResponseCreated):
            self._begin(ask, event)
        elif isinstance(event, _STEER_EVENTS) and _aim(event) == ask.response_id:
            ask.steers.answered(event)
        if ask.append_id is not None and after is not AskState.RESUMING:
            self._conclude_append(ask, taken=verdict is not Verdict.REPORT)
        if after is AskState.SUCCEEDING:
            ask.steers.ended()
        self._move(ask, after)
        return Delivery(verdict, ask, event)

    def lose(self, event_id: str) -> Ask | None:
        """The create of this ``event_id`` is lost: the ask that ends; None when none is open."""
        ask = self._asks.get(event_id)
        if ask is not None:
            self._move(ask, ASKS[ask.state, Signal.LOST][1])
        return ask

    def lost(self) -> list[Ask]:
        """The line is over: the asks that end with it, in the order they were sent per lane."""
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
        """Whose event it is; None for the line's own and for what nobody waits for."""
        if isinstance(event, _LINE_EVENTS):
            return None
        lane = self._lanes.get(event.stream_id or None, _NO_LANE)
        if isinstance(event, ResponseCreated):
            if event.event_id:
                return self._asks.get(event.event_id)
            return lane.succeeding or lane.current or lane.next
        if isinstance(event, ErrorEvent):
            if event.error.event_id is not UNSET:
                return self._asks.get(event.error.event_id)
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
        if _concludes(event):
            return Signal.SETTLED if ask.steers.open == 1 else Signal.NOTICE
        if isinstance(event, ErrorEvent):
            stale = ask.append_id is not None and event.error.event_id != ask.append_id
            return Signal.NOTICE if stale else Signal.ERROR
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

    def _begin(self, ask: Ask, event: ResponseCreated) -> None:
        """A response of this ask begins: it has the lane now."""
        lane = self._lanes[ask.lane]
        if lane.current is not None and lane.current is not ask:
            raise ProtocolViolation("two responses at once on one lane")
        if lane.current is None:
            lane.waiting.remove(ask)
            lane.current = ask
        ask.steers.succeeded()
        ask.steered_id, ask.response_id = ask.response_id, event.response.id

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

    def _new_id(self, what: str) -> str:
        self._count += 1
        return f"{what}_{self._count}"


def _aim(event: SteerAccepted | SteerFailed | SteerPending) -> str:
    """The response that a steer was sent to."""
    return event.steer.previous_response_id


_LINE_EVENTS: Final = (Heartbeat, SessionStarted, SessionGoingAway)
_STEER_EVENTS: Final = (SteerAccepted, SteerFailed, SteerPending)
_NOTICES: Final = (*_STEER_EVENTS, Timing, Opaque)
_SIGNALS: Final[dict[type[Event], Signal]] = {
    ResponseCreated: Signal.CREATED,
    ResponseDone: Signal.DONE,
}
