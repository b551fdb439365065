"""The life of one response, as a literal table.

An action is a name, and who carries it out is elsewhere (``turn.py``). Every pair of state and
input has its own row; there is no default row and no wildcard. A row is
``(state, input): (action, next state)``. ``ignore`` means that the input is late or cannot
matter there; nothing is sent.

Theory of operation.

A turn is QUEUED behind others on its lane. At the head of the lane it is resolved: settings and
items are checked, an idempotency key is CLAIMED, the parent is found on the line or LOADED from
the store. A turn that cannot run is refused with one error event, and no response exists. Where
the key is another response's, or where it resumes one, the turn has no response of its own: it
is FOLLOWING that one's events, or that one moves to its place. Where that one of its key came to
nothing before it said anything, the turn claims the key again. Otherwise it samples as soon as
there is an active place. ``response.created`` waits for the engine's acceptance, so that an
engine's refusal is an error and not a failed response, but no longer than a set time. Sampling
ends by itself, at client tool calls (HELD in append shape), by a cut, or by a failure. Every end
passes SAVING, because with ``store:true`` the terminal event follows the commit (read your
writes).

The diagram in docs/state-machines.md is made from this table.
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
    CLAIMING = "claiming"
    """Its idempotency key is being claimed."""
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
    FOLLOWING = "following"
    """No response of its own: it reads another one's events, which runs or ran elsewhere."""
    SAVING = "saving"
    """Output is whole; the terminal event waits for the store."""
    ENDED = "ended"
    """The terminal event is out, or the request was refused."""


class TurnInput(StrEnum):
    """What can happen to a response."""

    HEAD = "head"
    """It is first on its lane."""
    CLAIM = "claim"
    """It has an idempotency key."""
    CLAIMED = "claimed"
    """The key is its own."""
    FOLLOW = "follow"
    """Another response answers it: that of its key, or the one that it resumes."""
    RELAY = "relay"
    """That response said something."""
    READ = "read"
    """It has been read to its end, or has come to the lane itself."""
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


TurnAction = Literal[
    "abandon",
    "accept_steer",
    "announce",
    "ask_engine",
    "ask_store",
    "claim",
    "confess",
    "cut",
    "cut_source",
    "decline",
    "doom",
    "end",
    "end_unsaved",
    "extend",
    "fail",
    "finish",
    "fold",
    "follow",
    "hold",
    "ignore",
    "lose",
    "part",
    "refuse",
    "relay",
    "resolve",
    "run",
    "take",
    "wait",
    "yield_to_steer",
]

# fmt: off
TURNS: Final[dict[tuple[TurnState, TurnInput], tuple[TurnAction, TurnState]]] = {
    (TurnState.QUEUED, TurnInput.HEAD): ("resolve", TurnState.RESOLVING),
    (TurnState.QUEUED, TurnInput.CLAIM): ("ignore", TurnState.QUEUED),
    (TurnState.QUEUED, TurnInput.CLAIMED): ("ignore", TurnState.QUEUED),
    (TurnState.QUEUED, TurnInput.FOLLOW): ("ignore", TurnState.QUEUED),
    (TurnState.QUEUED, TurnInput.RELAY): ("ignore", TurnState.QUEUED),
    (TurnState.QUEUED, TurnInput.READ): ("ignore", TurnState.QUEUED),
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
    (TurnState.DOOMED, TurnInput.CLAIM): ("ignore", TurnState.DOOMED),
    (TurnState.DOOMED, TurnInput.CLAIMED): ("ignore", TurnState.DOOMED),
    (TurnState.DOOMED, TurnInput.FOLLOW): ("ignore", TurnState.DOOMED),
    (TurnState.DOOMED, TurnInput.RELAY): ("ignore", TurnState.DOOMED),
    (TurnState.DOOMED, TurnInput.READ): ("ignore", TurnState.DOOMED),
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
    (TurnState.RESOLVING, TurnInput.CLAIM): ("claim", TurnState.CLAIMING),
    (TurnState.RESOLVING, TurnInput.CLAIMED): ("ignore", TurnState.RESOLVING),
    (TurnState.RESOLVING, TurnInput.FOLLOW): ("follow", TurnState.FOLLOWING),
    (TurnState.RESOLVING, TurnInput.RELAY): ("ignore", TurnState.RESOLVING),
    (TurnState.RESOLVING, TurnInput.READ): ("ignore", TurnState.RESOLVING),
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
    (TurnState.CLAIMING, TurnInput.HEAD): ("ignore", TurnState.CLAIMING),
    (TurnState.CLAIMING, TurnInput.CLAIM): ("ignore", TurnState.CLAIMING),
    (TurnState.CLAIMING, TurnInput.CLAIMED): ("resolve", TurnState.RESOLVING),
    (TurnState.CLAIMING, TurnInput.FOLLOW): ("follow", TurnState.FOLLOWING),
    (TurnState.CLAIMING, TurnInput.RELAY): ("ignore", TurnState.CLAIMING),
    (TurnState.CLAIMING, TurnInput.READ): ("ignore", TurnState.CLAIMING),
    (TurnState.CLAIMING, TurnInput.LOAD): ("ignore", TurnState.CLAIMING),
    (TurnState.CLAIMING, TurnInput.LOADED): ("ignore", TurnState.CLAIMING),
    (TurnState.CLAIMING, TurnInput.REFUSE): ("refuse", TurnState.ENDED),
    (TurnState.CLAIMING, TurnInput.WAIT): ("ignore", TurnState.CLAIMING),
    (TurnState.CLAIMING, TurnInput.START): ("ignore", TurnState.CLAIMING),
    (TurnState.CLAIMING, TurnInput.ANNOUNCE): ("ignore", TurnState.CLAIMING),
    (TurnState.CLAIMING, TurnInput.FOLD): ("ignore", TurnState.CLAIMING),
    (TurnState.CLAIMING, TurnInput.ACCEPT): ("ignore", TurnState.CLAIMING),
    (TurnState.CLAIMING, TurnInput.OUTPUT): ("ignore", TurnState.CLAIMING),
    (TurnState.CLAIMING, TurnInput.BOUNDARY): ("ignore", TurnState.CLAIMING),
    (TurnState.CLAIMING, TurnInput.FINISH): ("ignore", TurnState.CLAIMING),
    (TurnState.CLAIMING, TurnInput.HOLD): ("ignore", TurnState.CLAIMING),
    (TurnState.CLAIMING, TurnInput.FAIL): ("ignore", TurnState.CLAIMING),
    (TurnState.CLAIMING, TurnInput.APPEND): ("ignore", TurnState.CLAIMING),
    (TurnState.CLAIMING, TurnInput.STEER): ("decline", TurnState.CLAIMING),
    (TurnState.CLAIMING, TurnInput.CUT): ("cut", TurnState.SAVING),
    (TurnState.CLAIMING, TurnInput.DROP): ("abandon", TurnState.ENDED),
    (TurnState.CLAIMING, TurnInput.SAVED): ("ignore", TurnState.CLAIMING),
    (TurnState.CLAIMING, TurnInput.UNSAVED): ("ignore", TurnState.CLAIMING),
    (TurnState.LOADING, TurnInput.HEAD): ("ignore", TurnState.LOADING),
    (TurnState.LOADING, TurnInput.CLAIM): ("ignore", TurnState.LOADING),
    (TurnState.LOADING, TurnInput.CLAIMED): ("ignore", TurnState.LOADING),
    (TurnState.LOADING, TurnInput.FOLLOW): ("ignore", TurnState.LOADING),
    (TurnState.LOADING, TurnInput.RELAY): ("ignore", TurnState.LOADING),
    (TurnState.LOADING, TurnInput.READ): ("ignore", TurnState.LOADING),
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
    (TurnState.WAITING, TurnInput.CLAIM): ("ignore", TurnState.WAITING),
    (TurnState.WAITING, TurnInput.CLAIMED): ("ignore", TurnState.WAITING),
    (TurnState.WAITING, TurnInput.FOLLOW): ("ignore", TurnState.WAITING),
    (TurnState.WAITING, TurnInput.RELAY): ("ignore", TurnState.WAITING),
    (TurnState.WAITING, TurnInput.READ): ("ignore", TurnState.WAITING),
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
    (TurnState.STARTING, TurnInput.CLAIM): ("ignore", TurnState.STARTING),
    (TurnState.STARTING, TurnInput.CLAIMED): ("ignore", TurnState.STARTING),
    (TurnState.STARTING, TurnInput.FOLLOW): ("ignore", TurnState.STARTING),
    (TurnState.STARTING, TurnInput.RELAY): ("ignore", TurnState.STARTING),
    (TurnState.STARTING, TurnInput.READ): ("ignore", TurnState.STARTING),
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
    (TurnState.SAMPLING, TurnInput.CLAIM): ("ignore", TurnState.SAMPLING),
    (TurnState.SAMPLING, TurnInput.CLAIMED): ("ignore", TurnState.SAMPLING),
    (TurnState.SAMPLING, TurnInput.FOLLOW): ("ignore", TurnState.SAMPLING),
    (TurnState.SAMPLING, TurnInput.RELAY): ("ignore", TurnState.SAMPLING),
    (TurnState.SAMPLING, TurnInput.READ): ("ignore", TurnState.SAMPLING),
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
    (TurnState.STEERED, TurnInput.CLAIM): ("ignore", TurnState.STEERED),
    (TurnState.STEERED, TurnInput.CLAIMED): ("ignore", TurnState.STEERED),
    (TurnState.STEERED, TurnInput.FOLLOW): ("ignore", TurnState.STEERED),
    (TurnState.STEERED, TurnInput.RELAY): ("ignore", TurnState.STEERED),
    (TurnState.STEERED, TurnInput.READ): ("ignore", TurnState.STEERED),
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
    (TurnState.HELD, TurnInput.CLAIM): ("ignore", TurnState.HELD),
    (TurnState.HELD, TurnInput.CLAIMED): ("ignore", TurnState.HELD),
    (TurnState.HELD, TurnInput.FOLLOW): ("ignore", TurnState.HELD),
    (TurnState.HELD, TurnInput.RELAY): ("ignore", TurnState.HELD),
    (TurnState.HELD, TurnInput.READ): ("ignore", TurnState.HELD),
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
    (TurnState.FOLLOWING, TurnInput.HEAD): ("ignore", TurnState.FOLLOWING),
    (TurnState.FOLLOWING, TurnInput.CLAIM): ("claim", TurnState.CLAIMING),
    (TurnState.FOLLOWING, TurnInput.CLAIMED): ("ignore", TurnState.FOLLOWING),
    (TurnState.FOLLOWING, TurnInput.FOLLOW): ("ignore", TurnState.FOLLOWING),
    (TurnState.FOLLOWING, TurnInput.RELAY): ("relay", TurnState.FOLLOWING),
    (TurnState.FOLLOWING, TurnInput.READ): ("part", TurnState.ENDED),
    (TurnState.FOLLOWING, TurnInput.LOAD): ("ignore", TurnState.FOLLOWING),
    (TurnState.FOLLOWING, TurnInput.LOADED): ("ignore", TurnState.FOLLOWING),
    (TurnState.FOLLOWING, TurnInput.REFUSE): ("ignore", TurnState.FOLLOWING),
    (TurnState.FOLLOWING, TurnInput.WAIT): ("ignore", TurnState.FOLLOWING),
    (TurnState.FOLLOWING, TurnInput.START): ("ignore", TurnState.FOLLOWING),
    (TurnState.FOLLOWING, TurnInput.ANNOUNCE): ("ignore", TurnState.FOLLOWING),
    (TurnState.FOLLOWING, TurnInput.FOLD): ("ignore", TurnState.FOLLOWING),
    (TurnState.FOLLOWING, TurnInput.ACCEPT): ("ignore", TurnState.FOLLOWING),
    (TurnState.FOLLOWING, TurnInput.OUTPUT): ("ignore", TurnState.FOLLOWING),
    (TurnState.FOLLOWING, TurnInput.BOUNDARY): ("ignore", TurnState.FOLLOWING),
    (TurnState.FOLLOWING, TurnInput.FINISH): ("ignore", TurnState.FOLLOWING),
    (TurnState.FOLLOWING, TurnInput.HOLD): ("ignore", TurnState.FOLLOWING),
    (TurnState.FOLLOWING, TurnInput.FAIL): ("lose", TurnState.ENDED),
    (TurnState.FOLLOWING, TurnInput.APPEND): ("ignore", TurnState.FOLLOWING),
    (TurnState.FOLLOWING, TurnInput.STEER): ("decline", TurnState.FOLLOWING),
    (TurnState.FOLLOWING, TurnInput.CUT): ("cut_source", TurnState.FOLLOWING),
    (TurnState.FOLLOWING, TurnInput.DROP): ("part", TurnState.ENDED),
    (TurnState.FOLLOWING, TurnInput.SAVED): ("ignore", TurnState.FOLLOWING),
    (TurnState.FOLLOWING, TurnInput.UNSAVED): ("ignore", TurnState.FOLLOWING),
    (TurnState.SAVING, TurnInput.HEAD): ("ignore", TurnState.SAVING),
    (TurnState.SAVING, TurnInput.CLAIM): ("ignore", TurnState.SAVING),
    (TurnState.SAVING, TurnInput.CLAIMED): ("ignore", TurnState.SAVING),
    (TurnState.SAVING, TurnInput.FOLLOW): ("ignore", TurnState.SAVING),
    (TurnState.SAVING, TurnInput.RELAY): ("ignore", TurnState.SAVING),
    (TurnState.SAVING, TurnInput.READ): ("ignore", TurnState.SAVING),
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
    (TurnState.ENDED, TurnInput.CLAIM): ("ignore", TurnState.ENDED),
    (TurnState.ENDED, TurnInput.CLAIMED): ("ignore", TurnState.ENDED),
    (TurnState.ENDED, TurnInput.FOLLOW): ("ignore", TurnState.ENDED),
    (TurnState.ENDED, TurnInput.RELAY): ("ignore", TurnState.ENDED),
    (TurnState.ENDED, TurnInput.READ): ("ignore", TurnState.ENDED),
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
# fmt: on
