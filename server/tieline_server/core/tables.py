"""Three lives as literal tables: of one response, of a lane, of a connection.

All that a state can become stands in this file, and the file knows nothing else but the client
events. An action is a name; what it does stands in ``turn.machine``, ``connection.lanes`` and
``connection.connection``.
A row is ``(state, input): (action, next state)``. There is no default row and no wildcard: a pair
that has no row stands in the list of what its state ignores, and a test proves that each pair is
either a row or in that list.

Theory of operation.

*A turn* is QUEUED behind others on its lane. At the head of the lane it is resolved: settings and
items are checked, an idempotency key is CLAIMED, the parent is found on the connection or LOADED
from the store. A turn that cannot run is refused with one error event, and no response exists.
Where the key is another response's, or where it resumes one, the turn has no response of its own:
it is FOLLOWING that one's events, or that one moves to its place. Where that one of its key came to
nothing before it said anything, the turn claims the key again. Otherwise it samples as soon as
there is an active place. ``response.created`` waits for the engine's acceptance, so that an
engine's refusal is an error and not a failed response, but no longer than a set time. Sampling ends
by itself, at client tool calls (HELD in append shape), by a cut, or by a failure. Every end passes
SAVING, because with ``store:true`` the terminal event follows the commit (read your writes).

*A lane* is a first-in first-out queue of turns. It is HELD while its first turn is: a create
then ends that turn (superseded), an append answers it. A turn from elsewhere may be seated on it
where it is free, or in the place of one that only reads it.

*A connection* is OPEN until either side says goodbye; it closes when nothing runs any more.

The diagrams in docs/state-machines.md are made from these tables.
"""

from typing import Final, Literal

from tieline.requests import (
    Append,
    Cancel,
    ClientHeartbeat,
    Create,
    Opaque,
    Processed,
    Request,
    Resume,
    SessionEnd,
    SessionStart,
    Steer,
)

TurnState = Literal[
    "queued",  # Behind another response on its lane; nothing is sent.
    "doomed",  # Cut while queued; says so when its turn on the lane comes.
    # Has the lane; its input, parent and settings are being settled. Never outlasts a call.
    "resolving",
    "claiming",  # Its idempotency key is being claimed.
    "loading",  # The store is asked for what it continues from.
    "waiting",  # Ready, but all active places are taken; created and queued are sent.
    "starting",  # The engine is asked and has not accepted yet.
    "sampling",  # The engine samples.
    "steered",  # The engine samples, and a steer waits for the end of the open item.
    "held",  # Append shape: sampling stopped at client tool calls.
    # No response of its own: it reads another one's events, which runs or ran elsewhere.
    "following",
    "saving",  # Output is whole; the terminal event waits for the store.
    "ended",  # The terminal event is out, or the request was refused.
]
"""Where a response is in its life."""

TurnInput = Literal[
    "head",  # It is first on its lane.
    "claim",  # It has an idempotency key.
    "claimed",  # The key is its own.
    "follow",  # Another response answers it: that of its key, or the one that it resumes.
    "relay",  # That response said something.
    "read",  # It has been read to its end, or has come to the lane itself.
    "load",  # What it continues from is not on the connection.
    "loaded",  # The store answered.
    "refuse",  # It cannot be run, and no event of it has been sent.
    "wait",  # It is ready and there is no active place.
    "start",  # It is ready and has an active place.
    "announce",  # The engine takes long to accept: say created without it.
    "fold",  # Its history was folded away before the engine was asked to sample.
    "accept",  # The engine accepted the prompt.
    "output",  # The engine said something.
    "boundary",  # An output item was closed and sampling goes on.
    "finish",  # Sampling ended by itself.
    "hold",  # Sampling ended at client tool calls in append shape.
    "fail",  # It broke after response.created.
    "append",  # All open calls were answered.
    "steer",  # The client steers it.
    "cut",  # It must end early: cancel, deadline, held too long, superseded, a limit.
    "drop",  # The connection is gone.
    "saved",  # The store has it, or need not.
    "unsaved",  # The store failed.
]
"""What can happen to a response."""

# fmt: off
TurnAction = Literal[
    "abandon", "accept_steer", "announce", "ask_engine", "ask_store", "claim", "confess", "cut",
    "cut_source", "decline", "doom", "end", "end_unsaved", "extend", "fail", "finish", "fold",
    "follow", "hold", "lose", "part", "refuse", "relay", "resolve", "resolve_claimed",
    "resolve_loaded", "run", "take", "wait", "yield_to_steer",
]

TURNS: Final[dict[tuple[TurnState, TurnInput], tuple[TurnAction, TurnState]]] = {
    ("queued", "head"): ("resolve", "resolving"),
    ("queued", "refuse"): ("refuse", "ended"),
    ("queued", "steer"): ("decline", "queued"),
    ("queued", "cut"): ("doom", "doomed"),
    ("queued", "drop"): ("abandon", "ended"),

    ("doomed", "head"): ("confess", "saving"),
    ("doomed", "steer"): ("decline", "doomed"),
    ("doomed", "drop"): ("abandon", "ended"),

    ("resolving", "claim"): ("claim", "claiming"),
    ("resolving", "follow"): ("follow", "following"),
    ("resolving", "load"): ("ask_store", "loading"),
    ("resolving", "refuse"): ("refuse", "ended"),
    ("resolving", "wait"): ("wait", "waiting"),
    ("resolving", "start"): ("ask_engine", "starting"),
    ("resolving", "fail"): ("fail", "saving"),
    ("resolving", "steer"): ("decline", "resolving"),
    ("resolving", "cut"): ("cut", "saving"),
    ("resolving", "drop"): ("abandon", "ended"),

    ("claiming", "claimed"): ("resolve_claimed", "resolving"),
    ("claiming", "follow"): ("follow", "following"),
    ("claiming", "refuse"): ("refuse", "ended"),
    ("claiming", "steer"): ("decline", "claiming"),
    ("claiming", "cut"): ("cut", "saving"),
    ("claiming", "drop"): ("abandon", "ended"),

    ("loading", "loaded"): ("resolve_loaded", "resolving"),
    ("loading", "refuse"): ("refuse", "ended"),
    ("loading", "steer"): ("decline", "loading"),
    ("loading", "cut"): ("cut", "saving"),
    ("loading", "drop"): ("abandon", "ended"),

    ("waiting", "start"): ("ask_engine", "starting"),
    ("waiting", "fail"): ("fail", "saving"),
    ("waiting", "steer"): ("decline", "waiting"),
    ("waiting", "cut"): ("cut", "saving"),
    ("waiting", "drop"): ("abandon", "ended"),

    ("starting", "refuse"): ("refuse", "ended"),
    ("starting", "announce"): ("announce", "starting"),
    ("starting", "fold"): ("fold", "starting"),
    ("starting", "accept"): ("run", "sampling"),
    ("starting", "fail"): ("fail", "saving"),
    ("starting", "steer"): ("decline", "starting"),
    ("starting", "cut"): ("cut", "saving"),
    ("starting", "drop"): ("abandon", "ended"),

    ("sampling", "output"): ("take", "sampling"),
    ("sampling", "finish"): ("finish", "saving"),
    ("sampling", "hold"): ("hold", "held"),
    ("sampling", "fail"): ("fail", "saving"),
    ("sampling", "steer"): ("accept_steer", "steered"),
    ("sampling", "cut"): ("cut", "saving"),
    ("sampling", "drop"): ("abandon", "ended"),

    ("steered", "output"): ("take", "steered"),
    ("steered", "boundary"): ("yield_to_steer", "saving"),
    ("steered", "finish"): ("finish", "saving"),
    ("steered", "hold"): ("hold", "held"),
    ("steered", "fail"): ("fail", "saving"),
    ("steered", "steer"): ("accept_steer", "steered"),
    ("steered", "cut"): ("cut", "saving"),
    ("steered", "drop"): ("abandon", "ended"),

    ("held", "append"): ("extend", "resolving"),
    ("held", "steer"): ("accept_steer", "held"),
    ("held", "cut"): ("cut", "saving"),
    ("held", "drop"): ("abandon", "ended"),

    ("following", "claim"): ("claim", "claiming"),
    ("following", "relay"): ("relay", "following"),
    ("following", "read"): ("part", "ended"),
    ("following", "fail"): ("lose", "ended"),
    ("following", "steer"): ("decline", "following"),
    ("following", "cut"): ("cut_source", "following"),
    ("following", "drop"): ("part", "ended"),

    ("saving", "steer"): ("decline", "saving"),
    ("saving", "saved"): ("end", "ended"),
    ("saving", "unsaved"): ("end_unsaved", "ended"),

    ("ended", "steer"): ("decline", "ended"),
}
"""The life of a response: the pairs that do something."""

TURNS_IGNORE: Final[dict[TurnState, tuple[TurnInput, ...]]] = {
    "queued": (
        "claim", "claimed", "follow", "relay", "read", "load", "loaded", "wait", "start",
        "announce", "fold", "accept", "output", "boundary", "finish", "hold", "fail", "append",
        "saved", "unsaved",
    ),
    "doomed": (
        "claim", "claimed", "follow", "relay", "read", "load", "loaded", "refuse", "wait", "start",
        "announce", "fold", "accept", "output", "boundary", "finish", "hold", "fail", "append",
        "cut", "saved", "unsaved",
    ),
    "resolving": (
        "head", "claimed", "relay", "read", "loaded", "announce", "fold", "accept", "output",
        "boundary", "finish", "hold", "append", "saved", "unsaved",
    ),
    "claiming": (
        "head", "claim", "relay", "read", "load", "loaded", "wait", "start", "announce", "fold",
        "accept", "output", "boundary", "finish", "hold", "fail", "append", "saved", "unsaved",
    ),
    "loading": (
        "head", "claim", "claimed", "follow", "relay", "read", "load", "wait", "start", "announce",
        "fold", "accept", "output", "boundary", "finish", "hold", "fail", "append", "saved",
        "unsaved",
    ),
    "waiting": (
        "head", "claim", "claimed", "follow", "relay", "read", "load", "loaded", "refuse", "wait",
        "announce", "fold", "accept", "output", "boundary", "finish", "hold", "append", "saved",
        "unsaved",
    ),
    "starting": (
        "head", "claim", "claimed", "follow", "relay", "read", "load", "loaded", "wait", "start",
        "output", "boundary", "finish", "hold", "append", "saved", "unsaved",
    ),
    "sampling": (
        "head", "claim", "claimed", "follow", "relay", "read", "load", "loaded", "refuse", "wait",
        "start", "announce", "fold", "accept", "boundary", "append", "saved", "unsaved",
    ),
    "steered": (
        "head", "claim", "claimed", "follow", "relay", "read", "load", "loaded", "refuse", "wait",
        "start", "announce", "fold", "accept", "append", "saved", "unsaved",
    ),
    "held": (
        "head", "claim", "claimed", "follow", "relay", "read", "load", "loaded", "refuse", "wait",
        "start", "announce", "fold", "accept", "output", "boundary", "finish", "hold", "fail",
        "saved", "unsaved",
    ),
    "following": (
        "head", "claimed", "follow", "load", "loaded", "refuse", "wait", "start", "announce",
        "fold", "accept", "output", "boundary", "finish", "hold", "append", "saved", "unsaved",
    ),
    "saving": (
        "head", "claim", "claimed", "follow", "relay", "read", "load", "loaded", "refuse", "wait",
        "start", "announce", "fold", "accept", "output", "boundary", "finish", "hold", "fail",
        "append", "cut", "drop",
    ),
    "ended": (
        "head", "claim", "claimed", "follow", "relay", "read", "load", "loaded", "refuse", "wait",
        "start", "announce", "fold", "accept", "output", "boundary", "finish", "hold", "fail",
        "append", "cut", "drop", "saved", "unsaved",
    ),
}
"""What comes too late for a turn, or cannot matter there: nothing is sent."""
# fmt: on

LaneState = Literal[
    "idle",  # Nothing runs.
    "busy",  # Its first response runs or waits for a place.
    "held",  # Its first response is held for tool outputs.
]
"""What a lane does."""

LaneInput = Literal[
    "create",  # A create arrived.
    "append",  # An append arrived.
    "next",  # The lane is free and something is queued.
    "hold",  # Its response became held.
    "resume",  # Its held response goes on.
    "end",  # Its response ended, or went elsewhere.
    "seat",  # A response that runs already comes from elsewhere.
]
"""What can happen to a lane."""

# fmt: off
LaneAction = Literal[
    "answer", "begin", "enqueue", "follow_latest", "follow_turn", "free", "seat", "supersede",
]

LANES: Final[dict[tuple[LaneState, LaneInput], tuple[LaneAction, LaneState]]] = {
    ("idle", "create"): ("enqueue", "idle"),
    ("idle", "append"): ("follow_latest", "idle"),
    ("idle", "next"): ("begin", "busy"),
    ("idle", "seat"): ("seat", "busy"),

    ("busy", "create"): ("enqueue", "busy"),
    ("busy", "append"): ("follow_latest", "busy"),
    ("busy", "hold"): ("follow_turn", "held"),
    ("busy", "end"): ("free", "idle"),
    ("busy", "seat"): ("seat", "busy"),

    ("held", "create"): ("supersede", "held"),
    ("held", "append"): ("answer", "held"),
    ("held", "resume"): ("follow_turn", "busy"),
    ("held", "end"): ("free", "idle"),
}
"""The queue of one lane: the pairs that do something."""

LANES_IGNORE: Final[dict[LaneState, tuple[LaneInput, ...]]] = {
    "idle": ("hold", "resume", "end"),
    "busy": ("next", "resume"),
    "held": ("next", "hold", "seat"),
}
"""What cannot matter to a lane."""
# fmt: on

ConnectionState = Literal[
    "open",  # Takes requests.
    "ending",  # The client said goodbye: what runs ends, then the connection closes.
    # The server said goodbye: no new creates; what runs ends, then the connection closes.
    "draining",
    "aged",  # Its time is up: no new creates; what runs ends, then it says so and closes.
    "closed",  # Over.
]
"""Whether a connection takes requests."""

ConnectionInput = Literal[
    "session_start",  # The client says what it can take.
    "create",  # response.create.
    "append",  # response.append.
    "cancel",  # response.cancel.
    "steer",  # response.steer.
    "resume",  # response.resume.
    "notice",  # A message that needs no answer: heartbeat, response.processed.
    "unknown",  # A client event of no known type.
    "session_end",  # The client ends the session.
    "half_close",  # The client will send no more.
    "drain",  # The server is about to stop.
    "age",  # It has lived as long as a connection may.
    "drop",  # The peer is gone.
    "idle",  # No response runs, waits or is held.
]
"""What can happen to a connection."""

INPUTS: Final[dict[type[Request], ConnectionInput]] = {
    Create: "create",
    Append: "append",
    Cancel: "cancel",
    Steer: "steer",
    Resume: "resume",
    Processed: "notice",
    ClientHeartbeat: "notice",
    SessionStart: "session_start",
    SessionEnd: "session_end",
    Opaque: "unknown",
}
"""Client event -> what it is to a connection."""

# fmt: off
ConnectionAction = Literal[
    "append", "append_last", "cancel", "close", "create", "drop_all", "go_away", "grow_old",
    "refuse_draining", "refuse_late", "refuse_old", "refuse_unknown", "resume", "retire",
    "start_session", "steer", "stop_input",
]

_ConnectionPair = tuple[ConnectionState, ConnectionInput]

CONNECTIONS: Final[dict[_ConnectionPair, tuple[ConnectionAction, ConnectionState]]] = {
    ("open", "session_start"): ("start_session", "open"),
    ("open", "create"): ("create", "open"),
    ("open", "append"): ("append", "open"),
    ("open", "cancel"): ("cancel", "open"),
    ("open", "steer"): ("steer", "open"),
    ("open", "resume"): ("resume", "open"),
    ("open", "unknown"): ("refuse_unknown", "open"),
    ("open", "session_end"): ("stop_input", "ending"),
    ("open", "half_close"): ("stop_input", "ending"),
    ("open", "drain"): ("go_away", "draining"),
    ("open", "age"): ("grow_old", "aged"),
    ("open", "drop"): ("drop_all", "closed"),

    ("ending", "session_start"): ("refuse_late", "ending"),
    ("ending", "create"): ("refuse_late", "ending"),
    ("ending", "append"): ("refuse_late", "ending"),
    ("ending", "cancel"): ("cancel", "ending"),
    ("ending", "steer"): ("refuse_late", "ending"),
    ("ending", "resume"): ("refuse_late", "ending"),
    ("ending", "unknown"): ("refuse_unknown", "ending"),
    ("ending", "drain"): ("go_away", "ending"),
    ("ending", "drop"): ("drop_all", "closed"),
    ("ending", "idle"): ("close", "closed"),

    ("draining", "session_start"): ("start_session", "draining"),
    ("draining", "create"): ("refuse_draining", "draining"),
    ("draining", "append"): ("append_last", "draining"),
    ("draining", "cancel"): ("cancel", "draining"),
    ("draining", "steer"): ("steer", "draining"),
    ("draining", "resume"): ("refuse_draining", "draining"),
    ("draining", "unknown"): ("refuse_unknown", "draining"),
    ("draining", "session_end"): ("stop_input", "ending"),
    ("draining", "half_close"): ("stop_input", "ending"),
    ("draining", "drop"): ("drop_all", "closed"),
    ("draining", "idle"): ("close", "closed"),

    ("aged", "session_start"): ("start_session", "aged"),
    ("aged", "create"): ("refuse_old", "aged"),
    ("aged", "append"): ("append_last", "aged"),
    ("aged", "cancel"): ("cancel", "aged"),
    ("aged", "steer"): ("steer", "aged"),
    ("aged", "resume"): ("refuse_old", "aged"),
    ("aged", "unknown"): ("refuse_unknown", "aged"),
    ("aged", "session_end"): ("stop_input", "ending"),
    ("aged", "half_close"): ("stop_input", "ending"),
    ("aged", "drain"): ("go_away", "aged"),
    ("aged", "drop"): ("drop_all", "closed"),
    ("aged", "idle"): ("retire", "closed"),
}
"""The life of a connection: the pairs that do something."""

CONNECTIONS_IGNORE: Final[dict[ConnectionState, tuple[ConnectionInput, ...]]] = {
    "open": ("notice", "idle"),
    "ending": ("notice", "session_end", "half_close", "age"),
    "draining": ("notice", "drain", "age"),
    "aged": ("notice", "age"),
    "closed": (
        "session_start", "create", "append", "cancel", "steer", "resume", "notice", "unknown",
        "session_end", "half_close", "drain", "age", "drop", "idle",
    ),
}
"""What comes too late for a connection, or needs no answer."""
# fmt: on
