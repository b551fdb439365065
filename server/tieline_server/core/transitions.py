"""The state machines of a connection and of its lanes, as literal tables.

Everything about their transitions lives in this file, and the file knows nothing else but the
classes of client events: an action is a name, and who carries it out is elsewhere (``lane.py``,
``connection.py``). Every pair of state and input has its own row; there is no default row and no
wildcard. A row is ``(state, input): (action, next state)``. ``ignore`` means that the input is
late or cannot matter there; nothing is sent. The life of a response is a table of its own
(``turns.py``).

Theory of operation.

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

LaneState = Literal[
    # Nothing runs.
    "idle",
    # Its first response runs or waits for a place.
    "busy",
    # Its first response is held for tool outputs.
    "held",
]
"""What a lane does."""


LaneInput = Literal[
    # A create arrived.
    "create",
    # An append arrived.
    "append",
    # The lane is free and something is queued.
    "next",
    # Its response became held.
    "hold",
    # Its held response goes on.
    "resume",
    # Its response ended, or went elsewhere.
    "end",
    # A response that runs already comes from elsewhere.
    "seat",
]
"""What can happen to a lane."""


LineState = Literal[
    # Takes requests.
    "open",
    # The client said goodbye: what runs ends, then the connection closes.
    "ending",
    # The server said goodbye: no new creates; what runs ends, then the connection closes.
    "draining",
    # Its time is up: no new creates; what runs ends, then it says so and closes.
    "aged",
    # Over.
    "closed",
]
"""Whether a connection takes requests."""


LineInput = Literal[
    # The client says what it can take.
    "session_start",
    # response.create.
    "create",
    # response.append.
    "append",
    # response.cancel.
    "cancel",
    # response.steer.
    "steer",
    # response.resume.
    "resume",
    # A message that needs no answer: heartbeat, response.processed.
    "notice",
    # A client event of no known type.
    "unknown",
    # The client ends the session.
    "session_end",
    # The client will send no more.
    "half_close",
    # The server is about to stop.
    "drain",
    # It has lived as long as a connection may.
    "age",
    # The peer is gone.
    "drop",
    # No response runs, waits or is held.
    "idle",
]
"""What can happen to a connection."""


INPUTS: Final[dict[type[Request], LineInput]] = {
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


LaneAction = Literal["answer", "begin", "enqueue", "follow_latest", "ignore", "seat", "supersede"]
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
LANES: Final[dict[tuple[LaneState, LaneInput], tuple[LaneAction, LaneState]]] = {
    ("idle", "create"): ("enqueue", "idle"),
    ("idle", "append"): ("follow_latest", "idle"),
    ("idle", "next"): ("begin", "busy"),
    ("idle", "hold"): ("ignore", "idle"),
    ("idle", "resume"): ("ignore", "idle"),
    ("idle", "end"): ("ignore", "idle"),
    ("idle", "seat"): ("seat", "busy"),
    ("busy", "create"): ("enqueue", "busy"),
    ("busy", "append"): ("follow_latest", "busy"),
    ("busy", "next"): ("ignore", "busy"),
    ("busy", "hold"): ("ignore", "held"),
    ("busy", "resume"): ("ignore", "busy"),
    ("busy", "end"): ("ignore", "idle"),
    ("busy", "seat"): ("seat", "busy"),
    ("held", "create"): ("supersede", "held"),
    ("held", "append"): ("answer", "held"),
    ("held", "next"): ("ignore", "held"),
    ("held", "hold"): ("ignore", "held"),
    ("held", "resume"): ("ignore", "busy"),
    ("held", "end"): ("ignore", "idle"),
    ("held", "seat"): ("ignore", "held"),
}
"""The queue of one lane."""

LINES: Final[dict[tuple[LineState, LineInput], tuple[LineAction, LineState]]] = {
    ("open", "session_start"): ("start_session", "open"),
    ("open", "create"): ("create", "open"),
    ("open", "append"): ("append", "open"),
    ("open", "cancel"): ("cancel", "open"),
    ("open", "steer"): ("steer", "open"),
    ("open", "resume"): ("resume", "open"),
    ("open", "notice"): ("ignore", "open"),
    ("open", "unknown"): ("refuse_unknown", "open"),
    ("open", "session_end"): ("stop_input", "ending"),
    ("open", "half_close"): ("stop_input", "ending"),
    ("open", "drain"): ("go_away", "draining"),
    ("open", "age"): ("grow_old", "aged"),
    ("open", "drop"): ("drop_all", "closed"),
    ("open", "idle"): ("ignore", "open"),
    ("ending", "session_start"): ("refuse_late", "ending"),
    ("ending", "create"): ("refuse_late", "ending"),
    ("ending", "append"): ("refuse_late", "ending"),
    ("ending", "cancel"): ("cancel", "ending"),
    ("ending", "steer"): ("refuse_late", "ending"),
    ("ending", "resume"): ("refuse_late", "ending"),
    ("ending", "notice"): ("ignore", "ending"),
    ("ending", "unknown"): ("refuse_unknown", "ending"),
    ("ending", "session_end"): ("ignore", "ending"),
    ("ending", "half_close"): ("ignore", "ending"),
    ("ending", "drain"): ("go_away", "ending"),
    ("ending", "age"): ("ignore", "ending"),
    ("ending", "drop"): ("drop_all", "closed"),
    ("ending", "idle"): ("close", "closed"),
    ("draining", "session_start"): ("start_session", "draining"),
    ("draining", "create"): ("refuse_draining", "draining"),
    ("draining", "append"): ("append_last", "draining"),
    ("draining", "cancel"): ("cancel", "draining"),
    ("draining", "steer"): ("steer", "draining"),
    ("draining", "resume"): ("refuse_draining", "draining"),
    ("draining", "notice"): ("ignore", "draining"),
    ("draining", "unknown"): ("refuse_unknown", "draining"),
    ("draining", "session_end"): ("stop_input", "ending"),
    ("draining", "half_close"): ("stop_input", "ending"),
    ("draining", "drain"): ("ignore", "draining"),
    ("draining", "age"): ("ignore", "draining"),
    ("draining", "drop"): ("drop_all", "closed"),
    ("draining", "idle"): ("close", "closed"),
    ("aged", "session_start"): ("start_session", "aged"),
    ("aged", "create"): ("refuse_old", "aged"),
    ("aged", "append"): ("append_last", "aged"),
    ("aged", "cancel"): ("cancel", "aged"),
    ("aged", "steer"): ("steer", "aged"),
    ("aged", "resume"): ("refuse_old", "aged"),
    ("aged", "notice"): ("ignore", "aged"),
    ("aged", "unknown"): ("refuse_unknown", "aged"),
    ("aged", "session_end"): ("stop_input", "ending"),
    ("aged", "half_close"): ("stop_input", "ending"),
    ("aged", "drain"): ("go_away", "aged"),
    ("aged", "age"): ("ignore", "aged"),
    ("aged", "drop"): ("drop_all", "closed"),
    ("aged", "idle"): ("retire", "closed"),
    ("closed", "session_start"): ("ignore", "closed"),
    ("closed", "create"): ("ignore", "closed"),
    ("closed", "append"): ("ignore", "closed"),
    ("closed", "cancel"): ("ignore", "closed"),
    ("closed", "steer"): ("ignore", "closed"),
    ("closed", "resume"): ("ignore", "closed"),
    ("closed", "notice"): ("ignore", "closed"),
    ("closed", "unknown"): ("ignore", "closed"),
    ("closed", "session_end"): ("ignore", "closed"),
    ("closed", "half_close"): ("ignore", "closed"),
    ("closed", "drain"): ("ignore", "closed"),
    ("closed", "age"): ("ignore", "closed"),
    ("closed", "drop"): ("ignore", "closed"),
    ("closed", "idle"): ("ignore", "closed"),
}
"""The life of a connection."""
# fmt: on
