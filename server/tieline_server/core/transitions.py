"""The three state machines of a connection, as literal tables.

Everything about transitions lives in this file, and the file knows nothing else: an action is a
name, and who carries it out is elsewhere (``turn.py``, ``line.py``). Every pair of state and
input has its own row; there is no default row and no wildcard. A row is
``(state, input): (action, next state)``. ``ignore`` means that the input is late or cannot
matter there; nothing is sent.

Theory of operation.

*A turn* is the life of one response. It is QUEUED behind others on its lane. At the head of the
lane it is resolved: settings and items are checked, the parent is found on the line or LOADED
from the store. A turn that cannot run is refused with one error event, and no response exists.
Otherwise it samples as soon as there is an active place. ``response.created`` waits for the
engine's acceptance, so that an engine's refusal is an error and not a failed response, but no
longer than a set time. Sampling ends by itself, at client tool calls (HELD in append shape), by
a cut, or by a failure. Every end passes SAVING, because with ``store:true`` the terminal event
follows the commit (read your writes).

*A lane* is a first-in first-out queue of turns. It is HELD while its first turn is: a create
then ends that turn (superseded), an append answers it.

*A line* is OPEN until either side says goodbye; it closes when nothing runs any more.

The diagrams in docs/protocol.md are made from these tables.
"""

from enum import StrEnum
from typing import Final, Literal


class TurnState(StrEnum):
    """Where a response is in its life."""

    QUEUED = "queued"
    """Behind another response on its lane; nothing is sent."""
    DOOMED = "doomed"
    """Cut while queued; says so when its turn on the lane comes."""
    RESOLVING = "resolving"
    """Has the lane; its input, parent and settings are being settled. Never outlasts a call."""
    LOADING = "loading"
    """The store is asked for what it continues from."""
    WAITING = "waiting"
    """Ready, but all active places are taken; created and queued are sent."""
    STARTING = "starting"
    """The engine is asked and has not accepted yet."""
    SAMPLING = "sampling"
    """The engine samples."""
    STEERED = "steered"
    """The engine samples, and a steer waits for the end of the open item."""
    HELD = "held"
    """Append shape: sampling stopped at client tool calls."""
    SAVING = "saving"
    """Output is whole; the terminal event waits for the store."""
    ENDED = "ended"
    """The terminal event is out, or the request was refused."""


class TurnInput(StrEnum):
    """What can happen to a response."""

    HEAD = "head"
    """It is first on its lane."""
    LOAD = "load"
    """What it continues from is not on the line."""
    LOADED = "loaded"
    """The store answered."""
    REFUSE = "refuse"
    """It cannot be run, and no event of it has been sent."""
    WAIT = "wait"
    """It is ready and there is no active place."""
    START = "start"
    """It is ready and has an active place."""
    ANNOUNCE = "announce"
    """The engine takes long to accept: say created without it."""
    FOLD = "fold"
    """Its history was folded away before the engine was asked to sample."""
    ACCEPT = "accept"
    """The engine accepted the prompt."""
    OUTPUT = "output"
    """The engine said something."""
    BOUNDARY = "boundary"
    """An output item was closed and sampling goes on."""
    FINISH = "finish"
    """Sampling ended by itself."""
    HOLD = "hold"
    """Sampling ended at client tool calls in append shape."""
    FAIL = "fail"
    """It broke after response.created."""
    APPEND = "append"
    """All open calls were answered."""
    STEER = "steer"
    """The client steers it."""
    CUT = "cut"
    """It must end early: cancel, deadline, held too long, superseded, a limit."""
    DROP = "drop"
    """The line is gone."""
    SAVED = "saved"
    """The store has it, or need not."""
    UNSAVED = "unsaved"
    """The store failed."""


class LaneState(StrEnum):
    """What a lane does."""

    IDLE = "idle"
    """Nothing runs."""
    BUSY = "busy"
    """Its first response runs or waits for a place."""
    HELD = "held"
    """Its first response is held for tool outputs."""


class LaneInput(StrEnum):
    """What can happen to a lane."""

    CREATE = "create"
    """A create arrived."""
    APPEND = "append"
    """An append arrived."""
    NEXT = "next"
    """The lane is free and something is queued."""
    HOLD = "hold"
    """Its response became held."""
    RESUME = "resume"
    """Its held response goes on."""
    END = "end"
    """Its response ended."""


class LineState(StrEnum):
    """Whether a line takes requests."""

    OPEN = "open"
    """Takes requests."""
    ENDING = "ending"
    """The client said goodbye: what runs ends, then the line closes."""
    DRAINING = "draining"
    """The server said goodbye: no new creates; what runs ends, then the line closes."""
    AGED = "aged"
    """Its time is up: no new creates; what runs ends, then it says so and closes."""
    CLOSED = "closed"
    """Over."""


class LineInput(StrEnum):
    """What can happen to a line."""

    SESSION_START = "session_start"
    """The client says what it can take."""
    CREATE = "create"
    """response.create."""
    APPEND = "append"
    """response.append."""
    CANCEL = "cancel"
    """response.cancel."""
    STEER = "steer"
    """response.steer."""
    RESUME = "resume"
    """response.resume."""
    NOTICE = "notice"
    """A message that needs no answer: heartbeat, response.processed."""
    UNKNOWN = "unknown"
    """A client event of no known type."""
    SESSION_END = "session_end"
    """The client ends the session."""
    HALF_CLOSE = "half_close"
    """The client will send no more."""
    DRAIN = "drain"
    """The server is about to stop."""
    AGE = "age"
    """It has lived as long as a line may."""
    DROP = "drop"
    """The peer is gone."""
    IDLE = "idle"
    """No response runs, waits or is held."""


TurnAction = Literal[
    "abandon",
    "accept_steer",
    "announce",
    "ask_engine",
    "ask_store",
    "confess",
    "cut",
    "decline",
    "doom",
    "end",
    "end_unsaved",
    "extend",
    "fail",
    "finish",
    "fold",
    "hold",
    "ignore",
    "refuse",
    "resolve",
    "run",
    "take",
    "wait",
    "yield_to_steer",
]
LaneAction = Literal["answer", "begin", "enqueue", "follow_latest", "ignore", "supersede"]
LineAction = Literal[
    "append",
    "append_last",
    "cancel",
    "close",
    "create",
    "drop_all",
    "go_away",
    "grow_old",
    "ignore",
    "refuse_draining",
    "refuse_late",
    "refuse_old",
    "refuse_unknown",
    "resume",
    "retire",
    "start_session",
    "steer",
    "stop_input",
]

# fmt: off
TURNS: Final[dict[tuple[TurnState, TurnInput], tuple[TurnAction, TurnState]]] = {
    (TurnState.QUEUED, TurnInput.HEAD): ("resolve", TurnState.RESOLVING),
    (TurnState.QUEUED, TurnInput.LOAD): ("ignore", TurnState.QUEUED),
    (TurnState.QUEUED, TurnInput.LOADED): ("ignore", TurnState.QUEUED),
    (TurnState.QUEUED, TurnInput.REFUSE): ("refuse", TurnState.ENDED),
    (TurnState.QUEUED, TurnInput.WAIT): ("ignore", TurnState.QUEUED),
    (TurnState.QUEUED, TurnInput.START): ("ignore", TurnState.QUEUED),
    (TurnState.QUEUED, TurnInput.ANNOUNCE): ("ignore", TurnState.QUEUED),
    (TurnState.QUEUED, TurnInput.FOLD): ("ignore", TurnState.QUEUED),
    (TurnState.QUEUED, TurnInput.ACCEPT): ("ignore", TurnState.QUEUED),
    (TurnState.QUEUED, TurnInput.OUTPUT): ("ignore", TurnState.QUEUED),
    (TurnState.QUEUED, TurnInput.BOUNDARY): ("ignore", TurnState.QUEUED),
    (TurnState.QUEUED, TurnInput.FINISH): ("ignore", TurnState.QUEUED),
    (TurnState.QUEUED, TurnInput.HOLD): ("ignore", TurnState.QUEUED),
    (TurnState.QUEUED, TurnInput.FAIL): ("ignore", TurnState.QUEUED),
    (TurnState.QUEUED, TurnInput.APPEND): ("ignore", TurnState.QUEUED),
    (TurnState.QUEUED, TurnInput.STEER): ("decline", TurnState.QUEUED),
    (TurnState.QUEUED, TurnInput.CUT): ("doom", TurnState.DOOMED),
    (TurnState.QUEUED, TurnInput.DROP): ("abandon", TurnState.ENDED),
    (TurnState.QUEUED, TurnInput.SAVED): ("ignore", TurnState.QUEUED),
    (TurnState.QUEUED, TurnInput.UNSAVED): ("ignore", TurnState.QUEUED),
    (TurnState.DOOMED, TurnInput.HEAD): ("confess", TurnState.SAVING),
    (TurnState.DOOMED, TurnInput.LOAD): ("ignore", TurnState.DOOMED),
    (TurnState.DOOMED, TurnInput.LOADED): ("ignore", TurnState.DOOMED),
    (TurnState.DOOMED, TurnInput.REFUSE): ("ignore", TurnState.DOOMED),
    (TurnState.DOOMED, TurnInput.WAIT): ("ignore", TurnState.DOOMED),
    (TurnState.DOOMED, TurnInput.START): ("ignore", TurnState.DOOMED),
    (TurnState.DOOMED, TurnInput.ANNOUNCE): ("ignore", TurnState.DOOMED),
    (TurnState.DOOMED, TurnInput.FOLD): ("ignore", TurnState.DOOMED),
    (TurnState.DOOMED, TurnInput.ACCEPT): ("ignore", TurnState.DOOMED),
    (TurnState.DOOMED, TurnInput.OUTPUT): ("ignore", TurnState.DOOMED),
    (TurnState.DOOMED, TurnInput.BOUNDARY): ("ignore", TurnState.DOOMED),
    (TurnState.DOOMED, TurnInput.FINISH): ("ignore", TurnState.DOOMED),
    (TurnState.DOOMED, TurnInput.HOLD): ("ignore", TurnState.DOOMED),
    (TurnState.DOOMED, TurnInput.FAIL): ("ignore", TurnState.DOOMED),
    (TurnState.DOOMED, TurnInput.APPEND): ("ignore", TurnState.DOOMED),
    (TurnState.DOOMED, TurnInput.STEER): ("decline", TurnState.DOOMED),
    (TurnState.DOOMED, TurnInput.CUT): ("ignore", TurnState.DOOMED),
    (TurnState.DOOMED, TurnInput.DROP): ("abandon", TurnState.ENDED),
    (TurnState.DOOMED, TurnInput.SAVED): ("ignore", TurnState.DOOMED),
    (TurnState.DOOMED, TurnInput.UNSAVED): ("ignore", TurnState.DOOMED),
    (TurnState.RESOLVING, TurnInput.HEAD): ("ignore", TurnState.RESOLVING),
    (TurnState.RESOLVING, TurnInput.LOAD): ("ask_store", TurnState.LOADING),
    (TurnState.RESOLVING, TurnInput.LOADED): ("ignore", TurnState.RESOLVING),
    (TurnState.RESOLVING, TurnInput.REFUSE): ("refuse", TurnState.ENDED),
    (TurnState.RESOLVING, TurnInput.WAIT): ("wait", TurnState.WAITING),
    (TurnState.RESOLVING, TurnInput.START): ("ask_engine", TurnState.STARTING),
    (TurnState.RESOLVING, TurnInput.ANNOUNCE): ("ignore", TurnState.RESOLVING),
    (TurnState.RESOLVING, TurnInput.FOLD): ("ignore", TurnState.RESOLVING),
    (TurnState.RESOLVING, TurnInput.ACCEPT): ("ignore", TurnState.RESOLVING),
    (TurnState.RESOLVING, TurnInput.OUTPUT): ("ignore", TurnState.RESOLVING),
    (TurnState.RESOLVING, TurnInput.BOUNDARY): ("ignore", TurnState.RESOLVING),
    (TurnState.RESOLVING, TurnInput.FINISH): ("ignore", TurnState.RESOLVING),
    (TurnState.RESOLVING, TurnInput.HOLD): ("ignore", TurnState.RESOLVING),
    (TurnState.RESOLVING, TurnInput.FAIL): ("fail", TurnState.SAVING),
    (TurnState.RESOLVING, TurnInput.APPEND): ("ignore", TurnState.RESOLVING),
    (TurnState.RESOLVING, TurnInput.STEER): ("decline", TurnState.RESOLVING),
    (TurnState.RESOLVING, TurnInput.CUT): ("cut", TurnState.SAVING),
    (TurnState.RESOLVING, TurnInput.DROP): ("abandon", TurnState.ENDED),
    (TurnState.RESOLVING, TurnInput.SAVED): ("ignore", TurnState.RESOLVING),
    (TurnState.RESOLVING, TurnInput.UNSAVED): ("ignore", TurnState.RESOLVING),
    (TurnState.LOADING, TurnInput.HEAD): ("ignore", TurnState.LOADING),
    (TurnState.LOADING, TurnInput.LOAD): ("ignore", TurnState.LOADING),
    (TurnState.LOADING, TurnInput.LOADED): ("resolve", TurnState.RESOLVING),
    (TurnState.LOADING, TurnInput.REFUSE): ("refuse", TurnState.ENDED),
    (TurnState.LOADING, TurnInput.WAIT): ("ignore", TurnState.LOADING),
    (TurnState.LOADING, TurnInput.START): ("ignore", TurnState.LOADING),
    (TurnState.LOADING, TurnInput.ANNOUNCE): ("ignore", TurnState.LOADING),
    (TurnState.LOADING, TurnInput.FOLD): ("ignore", TurnState.LOADING),
    (TurnState.LOADING, TurnInput.ACCEPT): ("ignore", TurnState.LOADING),
    (TurnState.LOADING, TurnInput.OUTPUT): ("ignore", TurnState.LOADING),
    (TurnState.LOADING, TurnInput.BOUNDARY): ("ignore", TurnState.LOADING),
    (TurnState.LOADING, TurnInput.FINISH): ("ignore", TurnState.LOADING),
    (TurnState.LOADING, TurnInput.HOLD): ("ignore", TurnState.LOADING),
    (TurnState.LOADING, TurnInput.FAIL): ("ignore", TurnState.LOADING),
    (TurnState.LOADING, TurnInput.APPEND): ("ignore", TurnState.LOADING),
    (TurnState.LOADING, TurnInput.STEER): ("decline", TurnState.LOADING),
    (TurnState.LOADING, TurnInput.CUT): ("cut", TurnState.SAVING),
    (TurnState.LOADING, TurnInput.DROP): ("abandon", TurnState.ENDED),
    (TurnState.LOADING, TurnInput.SAVED): ("ignore", TurnState.LOADING),
    (TurnState.LOADING, TurnInput.UNSAVED): ("ignore", TurnState.LOADING),
    (TurnState.WAITING, TurnInput.HEAD): ("ignore", TurnState.WAITING),
    (TurnState.WAITING, TurnInput.LOAD): ("ignore", TurnState.WAITING),
    (TurnState.WAITING, TurnInput.LOADED): ("ignore", TurnState.WAITING),
    (TurnState.WAITING, TurnInput.REFUSE): ("ignore", TurnState.WAITING),
    (TurnState.WAITING, TurnInput.WAIT): ("ignore", TurnState.WAITING),
    (TurnState.WAITING, TurnInput.START): ("ask_engine", TurnState.STARTING),
    (TurnState.WAITING, TurnInput.ANNOUNCE): ("ignore", TurnState.WAITING),
    (TurnState.WAITING, TurnInput.FOLD): ("ignore", TurnState.WAITING),
    (TurnState.WAITING, TurnInput.ACCEPT): ("ignore", TurnState.WAITING),
    (TurnState.WAITING, TurnInput.OUTPUT): ("ignore", TurnState.WAITING),
    (TurnState.WAITING, TurnInput.BOUNDARY): ("ignore", TurnState.WAITING),
    (TurnState.WAITING, TurnInput.FINISH): ("ignore", TurnState.WAITING),
    (TurnState.WAITING, TurnInput.HOLD): ("ignore", TurnState.WAITING),
    (TurnState.WAITING, TurnInput.FAIL): ("fail", TurnState.SAVING),
    (TurnState.WAITING, TurnInput.APPEND): ("ignore", TurnState.WAITING),
    (TurnState.WAITING, TurnInput.STEER): ("decline", TurnState.WAITING),
    (TurnState.WAITING, TurnInput.CUT): ("cut", TurnState.SAVING),
    (TurnState.WAITING, TurnInput.DROP): ("abandon", TurnState.ENDED),
    (TurnState.WAITING, TurnInput.SAVED): ("ignore", TurnState.WAITING),
    (TurnState.WAITING, TurnInput.UNSAVED): ("ignore", TurnState.WAITING),
    (TurnState.STARTING, TurnInput.HEAD): ("ignore", TurnState.STARTING),
    (TurnState.STARTING, TurnInput.LOAD): ("ignore", TurnState.STARTING),
    (TurnState.STARTING, TurnInput.LOADED): ("ignore", TurnState.STARTING),
    (TurnState.STARTING, TurnInput.REFUSE): ("refuse", TurnState.ENDED),
    (TurnState.STARTING, TurnInput.WAIT): ("ignore", TurnState.STARTING),
    (TurnState.STARTING, TurnInput.START): ("ignore", TurnState.STARTING),
    (TurnState.STARTING, TurnInput.ANNOUNCE): ("announce", TurnState.STARTING),
    (TurnState.STARTING, TurnInput.FOLD): ("fold", TurnState.STARTING),
    (TurnState.STARTING, TurnInput.ACCEPT): ("run", TurnState.SAMPLING),
    (TurnState.STARTING, TurnInput.OUTPUT): ("ignore", TurnState.STARTING),
    (TurnState.STARTING, TurnInput.BOUNDARY): ("ignore", TurnState.STARTING),
    (TurnState.STARTING, TurnInput.FINISH): ("ignore", TurnState.STARTING),
    (TurnState.STARTING, TurnInput.HOLD): ("ignore", TurnState.STARTING),
    (TurnState.STARTING, TurnInput.FAIL): ("fail", TurnState.SAVING),
    (TurnState.STARTING, TurnInput.APPEND): ("ignore", TurnState.STARTING),
    (TurnState.STARTING, TurnInput.STEER): ("decline", TurnState.STARTING),
    (TurnState.STARTING, TurnInput.CUT): ("cut", TurnState.SAVING),
    (TurnState.STARTING, TurnInput.DROP): ("abandon", TurnState.ENDED),
    (TurnState.STARTING, TurnInput.SAVED): ("ignore", TurnState.STARTING),
    (TurnState.STARTING, TurnInput.UNSAVED): ("ignore", TurnState.STARTING),
    (TurnState.SAMPLING, TurnInput.HEAD): ("ignore", TurnState.SAMPLING),
    (TurnState.SAMPLING, TurnInput.LOAD): ("ignore", TurnState.SAMPLING),
    (TurnState.SAMPLING, TurnInput.LOADED): ("ignore", TurnState.SAMPLING),
    (TurnState.SAMPLING, TurnInput.REFUSE): ("ignore", TurnState.SAMPLING),
    (TurnState.SAMPLING, TurnInput.WAIT): ("ignore", TurnState.SAMPLING),
    (TurnState.SAMPLING, TurnInput.START): ("ignore", TurnState.SAMPLING),
    (TurnState.SAMPLING, TurnInput.ANNOUNCE): ("ignore", TurnState.SAMPLING),
    (TurnState.SAMPLING, TurnInput.FOLD): ("ignore", TurnState.SAMPLING),
    (TurnState.SAMPLING, TurnInput.ACCEPT): ("ignore", TurnState.SAMPLING),
    (TurnState.SAMPLING, TurnInput.OUTPUT): ("take", TurnState.SAMPLING),
    (TurnState.SAMPLING, TurnInput.BOUNDARY): ("ignore", TurnState.SAMPLING),
    (TurnState.SAMPLING, TurnInput.FINISH): ("finish", TurnState.SAVING),
    (TurnState.SAMPLING, TurnInput.HOLD): ("hold", TurnState.HELD),
    (TurnState.SAMPLING, TurnInput.FAIL): ("fail", TurnState.SAVING),
    (TurnState.SAMPLING, TurnInput.APPEND): ("ignore", TurnState.SAMPLING),
    (TurnState.SAMPLING, TurnInput.STEER): ("accept_steer", TurnState.STEERED),
    (TurnState.SAMPLING, TurnInput.CUT): ("cut", TurnState.SAVING),
    (TurnState.SAMPLING, TurnInput.DROP): ("abandon", TurnState.ENDED),
    (TurnState.SAMPLING, TurnInput.SAVED): ("ignore", TurnState.SAMPLING),
    (TurnState.SAMPLING, TurnInput.UNSAVED): ("ignore", TurnState.SAMPLING),
    (TurnState.STEERED, TurnInput.HEAD): ("ignore", TurnState.STEERED),
    (TurnState.STEERED, TurnInput.LOAD): ("ignore", TurnState.STEERED),
    (TurnState.STEERED, TurnInput.LOADED): ("ignore", TurnState.STEERED),
    (TurnState.STEERED, TurnInput.REFUSE): ("ignore", TurnState.STEERED),
    (TurnState.STEERED, TurnInput.WAIT): ("ignore", TurnState.STEERED),
    (TurnState.STEERED, TurnInput.START): ("ignore", TurnState.STEERED),
    (TurnState.STEERED, TurnInput.ANNOUNCE): ("ignore", TurnState.STEERED),
    (TurnState.STEERED, TurnInput.FOLD): ("ignore", TurnState.STEERED),
    (TurnState.STEERED, TurnInput.ACCEPT): ("ignore", TurnState.STEERED),
    (TurnState.STEERED, TurnInput.OUTPUT): ("take", TurnState.STEERED),
    (TurnState.STEERED, TurnInput.BOUNDARY): ("yield_to_steer", TurnState.SAVING),
    (TurnState.STEERED, TurnInput.FINISH): ("finish", TurnState.SAVING),
    (TurnState.STEERED, TurnInput.HOLD): ("hold", TurnState.HELD),
    (TurnState.STEERED, TurnInput.FAIL): ("fail", TurnState.SAVING),
    (TurnState.STEERED, TurnInput.APPEND): ("ignore", TurnState.STEERED),
    (TurnState.STEERED, TurnInput.STEER): ("accept_steer", TurnState.STEERED),
    (TurnState.STEERED, TurnInput.CUT): ("cut", TurnState.SAVING),
    (TurnState.STEERED, TurnInput.DROP): ("abandon", TurnState.ENDED),
    (TurnState.STEERED, TurnInput.SAVED): ("ignore", TurnState.STEERED),
    (TurnState.STEERED, TurnInput.UNSAVED): ("ignore", TurnState.STEERED),
    (TurnState.HELD, TurnInput.HEAD): ("ignore", TurnState.HELD),
    (TurnState.HELD, TurnInput.LOAD): ("ignore", TurnState.HELD),
    (TurnState.HELD, TurnInput.LOADED): ("ignore", TurnState.HELD),
    (TurnState.HELD, TurnInput.REFUSE): ("ignore", TurnState.HELD),
    (TurnState.HELD, TurnInput.WAIT): ("ignore", TurnState.HELD),
    (TurnState.HELD, TurnInput.START): ("ignore", TurnState.HELD),
    (TurnState.HELD, TurnInput.ANNOUNCE): ("ignore", TurnState.HELD),
    (TurnState.HELD, TurnInput.FOLD): ("ignore", TurnState.HELD),
    (TurnState.HELD, TurnInput.ACCEPT): ("ignore", TurnState.HELD),
    (TurnState.HELD, TurnInput.OUTPUT): ("ignore", TurnState.HELD),
    (TurnState.HELD, TurnInput.BOUNDARY): ("ignore", TurnState.HELD),
    (TurnState.HELD, TurnInput.FINISH): ("ignore", TurnState.HELD),
    (TurnState.HELD, TurnInput.HOLD): ("ignore", TurnState.HELD),
    (TurnState.HELD, TurnInput.FAIL): ("ignore", TurnState.HELD),
    (TurnState.HELD, TurnInput.APPEND): ("extend", TurnState.RESOLVING),
    (TurnState.HELD, TurnInput.STEER): ("accept_steer", TurnState.HELD),
    (TurnState.HELD, TurnInput.CUT): ("cut", TurnState.SAVING),
    (TurnState.HELD, TurnInput.DROP): ("abandon", TurnState.ENDED),
    (TurnState.HELD, TurnInput.SAVED): ("ignore", TurnState.HELD),
    (TurnState.HELD, TurnInput.UNSAVED): ("ignore", TurnState.HELD),
    (TurnState.SAVING, TurnInput.HEAD): ("ignore", TurnState.SAVING),
    (TurnState.SAVING, TurnInput.LOAD): ("ignore", TurnState.SAVING),
    (TurnState.SAVING, TurnInput.LOADED): ("ignore", TurnState.SAVING),
    (TurnState.SAVING, TurnInput.REFUSE): ("ignore", TurnState.SAVING),
    (TurnState.SAVING, TurnInput.WAIT): ("ignore", TurnState.SAVING),
    (TurnState.SAVING, TurnInput.START): ("ignore", TurnState.SAVING),
    (TurnState.SAVING, TurnInput.ANNOUNCE): ("ignore", TurnState.SAVING),
    (TurnState.SAVING, TurnInput.FOLD): ("ignore", TurnState.SAVING),
    (TurnState.SAVING, TurnInput.ACCEPT): ("ignore", TurnState.SAVING),
    (TurnState.SAVING, TurnInput.OUTPUT): ("ignore", TurnState.SAVING),
    (TurnState.SAVING, TurnInput.BOUNDARY): ("ignore", TurnState.SAVING),
    (TurnState.SAVING, TurnInput.FINISH): ("ignore", TurnState.SAVING),
    (TurnState.SAVING, TurnInput.HOLD): ("ignore", TurnState.SAVING),
    (TurnState.SAVING, TurnInput.FAIL): ("ignore", TurnState.SAVING),
    (TurnState.SAVING, TurnInput.APPEND): ("ignore", TurnState.SAVING),
    (TurnState.SAVING, TurnInput.STEER): ("decline", TurnState.SAVING),
    (TurnState.SAVING, TurnInput.CUT): ("ignore", TurnState.SAVING),
    (TurnState.SAVING, TurnInput.DROP): ("ignore", TurnState.SAVING),
    (TurnState.SAVING, TurnInput.SAVED): ("end", TurnState.ENDED),
    (TurnState.SAVING, TurnInput.UNSAVED): ("end_unsaved", TurnState.ENDED),
    (TurnState.ENDED, TurnInput.HEAD): ("ignore", TurnState.ENDED),
    (TurnState.ENDED, TurnInput.LOAD): ("ignore", TurnState.ENDED),
    (TurnState.ENDED, TurnInput.LOADED): ("ignore", TurnState.ENDED),
    (TurnState.ENDED, TurnInput.REFUSE): ("ignore", TurnState.ENDED),
    (TurnState.ENDED, TurnInput.WAIT): ("ignore", TurnState.ENDED),
    (TurnState.ENDED, TurnInput.START): ("ignore", TurnState.ENDED),
    (TurnState.ENDED, TurnInput.ANNOUNCE): ("ignore", TurnState.ENDED),
    (TurnState.ENDED, TurnInput.FOLD): ("ignore", TurnState.ENDED),
    (TurnState.ENDED, TurnInput.ACCEPT): ("ignore", TurnState.ENDED),
    (TurnState.ENDED, TurnInput.OUTPUT): ("ignore", TurnState.ENDED),
    (TurnState.ENDED, TurnInput.BOUNDARY): ("ignore", TurnState.ENDED),
    (TurnState.ENDED, TurnInput.FINISH): ("ignore", TurnState.ENDED),
    (TurnState.ENDED, TurnInput.HOLD): ("ignore", TurnState.ENDED),
    (TurnState.ENDED, TurnInput.FAIL): ("ignore", TurnState.ENDED),
    (TurnState.ENDED, TurnInput.APPEND): ("ignore", TurnState.ENDED),
    (TurnState.ENDED, TurnInput.STEER): ("decline", TurnState.ENDED),
    (TurnState.ENDED, TurnInput.CUT): ("ignore", TurnState.ENDED),
    (TurnState.ENDED, TurnInput.DROP): ("ignore", TurnState.ENDED),
    (TurnState.ENDED, TurnInput.SAVED): ("ignore", TurnState.ENDED),
    (TurnState.ENDED, TurnInput.UNSAVED): ("ignore", TurnState.ENDED),
}
"""The life of a response."""

LANES: Final[dict[tuple[LaneState, LaneInput], tuple[LaneAction, LaneState]]] = {
    (LaneState.IDLE, LaneInput.CREATE): ("enqueue", LaneState.IDLE),
    (LaneState.IDLE, LaneInput.APPEND): ("follow_latest", LaneState.IDLE),
    (LaneState.IDLE, LaneInput.NEXT): ("begin", LaneState.BUSY),
    (LaneState.IDLE, LaneInput.HOLD): ("ignore", LaneState.IDLE),
    (LaneState.IDLE, LaneInput.RESUME): ("ignore", LaneState.IDLE),
    (LaneState.IDLE, LaneInput.END): ("ignore", LaneState.IDLE),
    (LaneState.BUSY, LaneInput.CREATE): ("enqueue", LaneState.BUSY),
    (LaneState.BUSY, LaneInput.APPEND): ("follow_latest", LaneState.BUSY),
    (LaneState.BUSY, LaneInput.NEXT): ("ignore", LaneState.BUSY),
    (LaneState.BUSY, LaneInput.HOLD): ("ignore", LaneState.HELD),
    (LaneState.BUSY, LaneInput.RESUME): ("ignore", LaneState.BUSY),
    (LaneState.BUSY, LaneInput.END): ("ignore", LaneState.IDLE),
    (LaneState.HELD, LaneInput.CREATE): ("supersede", LaneState.HELD),
    (LaneState.HELD, LaneInput.APPEND): ("answer", LaneState.HELD),
    (LaneState.HELD, LaneInput.NEXT): ("ignore", LaneState.HELD),
    (LaneState.HELD, LaneInput.HOLD): ("ignore", LaneState.HELD),
    (LaneState.HELD, LaneInput.RESUME): ("ignore", LaneState.BUSY),
    (LaneState.HELD, LaneInput.END): ("ignore", LaneState.IDLE),
}
"""The queue of one lane."""

LINES: Final[dict[tuple[LineState, LineInput], tuple[LineAction, LineState]]] = {
    (LineState.OPEN, LineInput.SESSION_START): ("start_session", LineState.OPEN),
    (LineState.OPEN, LineInput.CREATE): ("create", LineState.OPEN),
    (LineState.OPEN, LineInput.APPEND): ("append", LineState.OPEN),
    (LineState.OPEN, LineInput.CANCEL): ("cancel", LineState.OPEN),
    (LineState.OPEN, LineInput.STEER): ("steer", LineState.OPEN),
    (LineState.OPEN, LineInput.RESUME): ("resume", LineState.OPEN),
    (LineState.OPEN, LineInput.NOTICE): ("ignore", LineState.OPEN),
    (LineState.OPEN, LineInput.UNKNOWN): ("refuse_unknown", LineState.OPEN),
    (LineState.OPEN, LineInput.SESSION_END): ("stop_input", LineState.ENDING),
    (LineState.OPEN, LineInput.HALF_CLOSE): ("stop_input", LineState.ENDING),
    (LineState.OPEN, LineInput.DRAIN): ("go_away", LineState.DRAINING),
    (LineState.OPEN, LineInput.AGE): ("grow_old", LineState.AGED),
    (LineState.OPEN, LineInput.DROP): ("drop_all", LineState.CLOSED),
    (LineState.OPEN, LineInput.IDLE): ("ignore", LineState.OPEN),
    (LineState.ENDING, LineInput.SESSION_START): ("refuse_late", LineState.ENDING),
    (LineState.ENDING, LineInput.CREATE): ("refuse_late", LineState.ENDING),
    (LineState.ENDING, LineInput.APPEND): ("refuse_late", LineState.ENDING),
    (LineState.ENDING, LineInput.CANCEL): ("cancel", LineState.ENDING),
    (LineState.ENDING, LineInput.STEER): ("refuse_late", LineState.ENDING),
    (LineState.ENDING, LineInput.RESUME): ("refuse_late", LineState.ENDING),
    (LineState.ENDING, LineInput.NOTICE): ("ignore", LineState.ENDING),
    (LineState.ENDING, LineInput.UNKNOWN): ("refuse_unknown", LineState.ENDING),
    (LineState.ENDING, LineInput.SESSION_END): ("ignore", LineState.ENDING),
    (LineState.ENDING, LineInput.HALF_CLOSE): ("ignore", LineState.ENDING),
    (LineState.ENDING, LineInput.DRAIN): ("go_away", LineState.ENDING),
    (LineState.ENDING, LineInput.AGE): ("ignore", LineState.ENDING),
    (LineState.ENDING, LineInput.DROP): ("drop_all", LineState.CLOSED),
    (LineState.ENDING, LineInput.IDLE): ("close", LineState.CLOSED),
    (LineState.DRAINING, LineInput.SESSION_START): ("start_session", LineState.DRAINING),
    (LineState.DRAINING, LineInput.CREATE): ("refuse_draining", LineState.DRAINING),
    (LineState.DRAINING, LineInput.APPEND): ("append_last", LineState.DRAINING),
    (LineState.DRAINING, LineInput.CANCEL): ("cancel", LineState.DRAINING),
    (LineState.DRAINING, LineInput.STEER): ("steer", LineState.DRAINING),
    (LineState.DRAINING, LineInput.RESUME): ("refuse_draining", LineState.DRAINING),
    (LineState.DRAINING, LineInput.NOTICE): ("ignore", LineState.DRAINING),
    (LineState.DRAINING, LineInput.UNKNOWN): ("refuse_unknown", LineState.DRAINING),
    (LineState.DRAINING, LineInput.SESSION_END): ("stop_input", LineState.ENDING),
    (LineState.DRAINING, LineInput.HALF_CLOSE): ("stop_input", LineState.ENDING),
    (LineState.DRAINING, LineInput.DRAIN): ("ignore", LineState.DRAINING),
    (LineState.DRAINING, LineInput.AGE): ("ignore", LineState.DRAINING),
    (LineState.DRAINING, LineInput.DROP): ("drop_all", LineState.CLOSED),
    (LineState.DRAINING, LineInput.IDLE): ("close", LineState.CLOSED),
    (LineState.AGED, LineInput.SESSION_START): ("start_session", LineState.AGED),
    (LineState.AGED, LineInput.CREATE): ("refuse_old", LineState.AGED),
    (LineState.AGED, LineInput.APPEND): ("append_last", LineState.AGED),
    (LineState.AGED, LineInput.CANCEL): ("cancel", LineState.AGED),
    (LineState.AGED, LineInput.STEER): ("steer", LineState.AGED),
    (LineState.AGED, LineInput.RESUME): ("refuse_old", LineState.AGED),
    (LineState.AGED, LineInput.NOTICE): ("ignore", LineState.AGED),
    (LineState.AGED, LineInput.UNKNOWN): ("refuse_unknown", LineState.AGED),
    (LineState.AGED, LineInput.SESSION_END): ("stop_input", LineState.ENDING),
    (LineState.AGED, LineInput.HALF_CLOSE): ("stop_input", LineState.ENDING),
    (LineState.AGED, LineInput.DRAIN): ("go_away", LineState.AGED),
    (LineState.AGED, LineInput.AGE): ("ignore", LineState.AGED),
    (LineState.AGED, LineInput.DROP): ("drop_all", LineState.CLOSED),
    (LineState.AGED, LineInput.IDLE): ("retire", LineState.CLOSED),
    (LineState.CLOSED, LineInput.SESSION_START): ("ignore", LineState.CLOSED),
    (LineState.CLOSED, LineInput.CREATE): ("ignore", LineState.CLOSED),
    (LineState.CLOSED, LineInput.APPEND): ("ignore", LineState.CLOSED),
    (LineState.CLOSED, LineInput.CANCEL): ("ignore", LineState.CLOSED),
    (LineState.CLOSED, LineInput.STEER): ("ignore", LineState.CLOSED),
    (LineState.CLOSED, LineInput.RESUME): ("ignore", LineState.CLOSED),
    (LineState.CLOSED, LineInput.NOTICE): ("ignore", LineState.CLOSED),
    (LineState.CLOSED, LineInput.UNKNOWN): ("ignore", LineState.CLOSED),
    (LineState.CLOSED, LineInput.SESSION_END): ("ignore", LineState.CLOSED),
    (LineState.CLOSED, LineInput.HALF_CLOSE): ("ignore", LineState.CLOSED),
    (LineState.CLOSED, LineInput.DRAIN): ("ignore", LineState.CLOSED),
    (LineState.CLOSED, LineInput.AGE): ("ignore", LineState.CLOSED),
    (LineState.CLOSED, LineInput.DROP): ("ignore", LineState.CLOSED),
    (LineState.CLOSED, LineInput.IDLE): ("ignore", LineState.CLOSED),
}
"""The life of a line."""
# fmt: on
