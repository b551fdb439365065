"""What one create leads to, and every state that it can be in (the theory is ``_connection``'s)."""

from enum import Enum
from typing import Final

from tieline.events import Event, SteerAccepted, SteerFailed, SteerPending


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
    ATTACHING = "attaching"
    """A resume is sent; nothing has been heard of its response."""
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
    REPEATED = "repeated"
    """The append was sent for the second time, and the first one had been taken."""
    MOVED = "moved"
    """The response was resumed elsewhere: another reader has it."""
    LOST = "lost"
    """The connection is over."""


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
    """Raise the loss of the connection."""
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
    (AskState.WAITING, Signal.REPEATED): (Verdict.DROP, AskState.WAITING),
    (AskState.WAITING, Signal.MOVED): (Verdict.REFUSE, AskState.ENDED),
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
    (AskState.RUNNING, Signal.REPEATED): (Verdict.DROP, AskState.RUNNING),
    (AskState.RUNNING, Signal.MOVED): (Verdict.REFUSE, AskState.ENDED),
    (AskState.RUNNING, Signal.LOST): (Verdict.FAIL, AskState.ENDED),
    (AskState.HELD, Signal.APPEND): (Verdict.SEND, AskState.RESUMING),
    (AskState.HELD, Signal.STEER): (Verdict.SEND, AskState.HELD),
    (AskState.HELD, Signal.CANCEL): (Verdict.SEND, AskState.HELD),
    (AskState.HELD, Signal.CREATED): (Verdict.VIOLATION, AskState.HELD),
    (AskState.HELD, Signal.EVENT): (Verdict.DELIVER, AskState.RUNNING),
    (AskState.HELD, Signal.NOTICE): (Verdict.DELIVER, AskState.HELD),
    (AskState.HELD, Signal.DONE): (Verdict.VIOLATION, AskState.HELD),
    (AskState.HELD, Signal.TERMINAL): (Verdict.DELIVER, AskState.ENDED),
    (AskState.HELD, Signal.YIELD): (Verdict.DELIVER, AskState.SUCCEEDING),
    (AskState.HELD, Signal.SETTLED): (Verdict.DELIVER, AskState.HELD),
    (AskState.HELD, Signal.ERROR): (Verdict.DELIVER, AskState.HELD),
    (AskState.HELD, Signal.REPEATED): (Verdict.DROP, AskState.HELD),
    (AskState.HELD, Signal.MOVED): (Verdict.REFUSE, AskState.ENDED),
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
    (AskState.RESUMING, Signal.REPEATED): (Verdict.DROP, AskState.RUNNING),
    (AskState.RESUMING, Signal.MOVED): (Verdict.REFUSE, AskState.ENDED),
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
    (AskState.SUCCEEDING, Signal.REPEATED): (Verdict.DROP, AskState.SUCCEEDING),
    (AskState.SUCCEEDING, Signal.MOVED): (Verdict.REFUSE, AskState.ENDED),
    (AskState.SUCCEEDING, Signal.LOST): (Verdict.FAIL, AskState.ENDED),
    (AskState.ATTACHING, Signal.APPEND): (Verdict.MISUSE, AskState.ATTACHING),
    (AskState.ATTACHING, Signal.STEER): (Verdict.MISUSE, AskState.ATTACHING),
    (AskState.ATTACHING, Signal.CANCEL): (Verdict.SEND, AskState.ATTACHING),
    (AskState.ATTACHING, Signal.CREATED): (Verdict.DELIVER, AskState.RUNNING),
    (AskState.ATTACHING, Signal.EVENT): (Verdict.DELIVER, AskState.RUNNING),
    (AskState.ATTACHING, Signal.NOTICE): (Verdict.DELIVER, AskState.ATTACHING),
    (AskState.ATTACHING, Signal.DONE): (Verdict.DELIVER, AskState.HELD),
    (AskState.ATTACHING, Signal.TERMINAL): (Verdict.DELIVER, AskState.ENDED),
    (AskState.ATTACHING, Signal.YIELD): (Verdict.DELIVER, AskState.SUCCEEDING),
    (AskState.ATTACHING, Signal.SETTLED): (Verdict.DELIVER, AskState.ATTACHING),
    (AskState.ATTACHING, Signal.ERROR): (Verdict.REFUSE, AskState.ENDED),
    (AskState.ATTACHING, Signal.REPEATED): (Verdict.DROP, AskState.ATTACHING),
    (AskState.ATTACHING, Signal.MOVED): (Verdict.REFUSE, AskState.ENDED),
    (AskState.ATTACHING, Signal.LOST): (Verdict.FAIL, AskState.ENDED),
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
    (AskState.ENDED, Signal.REPEATED): (Verdict.DROP, AskState.ENDED),
    (AskState.ENDED, Signal.MOVED): (Verdict.DROP, AskState.ENDED),
    (AskState.ENDED, Signal.LOST): (Verdict.DROP, AskState.ENDED),
}
"""(state, signal) -> (verdict, next state), every pair."""
# fmt: on


class Steers:
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
        of_taken = concludes(event)
        if of_taken not in self._taken:
            return
        index = self._taken.index(of_taken)
        if isinstance(event, SteerAccepted):
            self._taken[index] = True
            return
        del self._taken[index]
        self._joining -= index < self._joining


def concludes(event: Event) -> bool:
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
        "repeats",
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
        self.repeats = False
        """Whether that append may be the second of its kind: the answer to the first was lost."""
        self.steers = Steers()
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
