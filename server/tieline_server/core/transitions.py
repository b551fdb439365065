"""The state machines of a line and of its lanes, as literal tables.

Everything about their transitions lives in this file, and the file knows nothing else: an action
is a name, and who carries it out is elsewhere (``lane.py``, ``line.py``). Every pair of state and
input has its own row; there is no default row and no wildcard. A row is
``(state, input): (action, next state)``. ``ignore`` means that the input is late or cannot
matter there; nothing is sent. The life of a response is a table of its own (``turns.py``).

Theory of operation.

*A lane* is a first-in first-out queue of turns. It is HELD while its first turn is: a create
then ends that turn (superseded), an append answers it. A turn from elsewhere may be seated on it
where it is free, or in the place of one that only reads it.

*A line* is OPEN until either side says goodbye; it closes when nothing runs any more.

The diagrams in docs/state-machines.md are made from these tables.
"""

from enum import StrEnum
from typing import Final, Literal


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
    """Its response ended, or went elsewhere."""
    SEAT = "seat"
    """A response that runs already comes from elsewhere."""


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
    (LaneState.IDLE, LaneInput.CREATE): ("enqueue", LaneState.IDLE),
    (LaneState.IDLE, LaneInput.APPEND): ("follow_latest", LaneState.IDLE),
    (LaneState.IDLE, LaneInput.NEXT): ("begin", LaneState.BUSY),
    (LaneState.IDLE, LaneInput.HOLD): ("ignore", LaneState.IDLE),
    (LaneState.IDLE, LaneInput.RESUME): ("ignore", LaneState.IDLE),
    (LaneState.IDLE, LaneInput.END): ("ignore", LaneState.IDLE),
    (LaneState.IDLE, LaneInput.SEAT): ("seat", LaneState.BUSY),
    (LaneState.BUSY, LaneInput.CREATE): ("enqueue", LaneState.BUSY),
    (LaneState.BUSY, LaneInput.APPEND): ("follow_latest", LaneState.BUSY),
    (LaneState.BUSY, LaneInput.NEXT): ("ignore", LaneState.BUSY),
    (LaneState.BUSY, LaneInput.HOLD): ("ignore", LaneState.HELD),
    (LaneState.BUSY, LaneInput.RESUME): ("ignore", LaneState.BUSY),
    (LaneState.BUSY, LaneInput.END): ("ignore", LaneState.IDLE),
    (LaneState.BUSY, LaneInput.SEAT): ("seat", LaneState.BUSY),
    (LaneState.HELD, LaneInput.CREATE): ("supersede", LaneState.HELD),
    (LaneState.HELD, LaneInput.APPEND): ("answer", LaneState.HELD),
    (LaneState.HELD, LaneInput.NEXT): ("ignore", LaneState.HELD),
    (LaneState.HELD, LaneInput.HOLD): ("ignore", LaneState.HELD),
    (LaneState.HELD, LaneInput.RESUME): ("ignore", LaneState.BUSY),
    (LaneState.HELD, LaneInput.END): ("ignore", LaneState.IDLE),
    (LaneState.HELD, LaneInput.SEAT): ("ignore", LaneState.HELD),
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
