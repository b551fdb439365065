"""Every event that a server streams, one frozen class each, and their union.

An event that we make encodes at full speed and has no extras. An event from outside is decoded
by ``type``; a type that has no class here becomes :class:`Opaque` with its bytes, so that a new
or a vendor's event is handed on rather than lost.

Numbers: ``sequence_number`` starts at 0 with each response and has no gaps (wire.md 3.3.1); it is
absent on the events that belong to the connection rather than to a response (heartbeat, session).
``stream_id`` is there only for a named lane.
"""

from typing import ClassVar, Final

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from tieline.errors import ApiError
from tieline.responses import Response


# Nothing that an event holds can lead back to it: no collector need look (gc=False).
class Event(Struct, frozen=True, kw_only=True, tag_field="type", gc=False):
    """What all events have. Not made by itself."""

    sequence_number: int | UnsetType = UNSET
    stream_id: str | UnsetType = UNSET

    TERMINAL: ClassVar[bool] = False
    """Whether a response sends nothing after this event."""

    @property
    def type(self) -> str:
        """The event's ``type`` on the JSON wire."""
        return str(self.__struct_config__.tag)


class LifecycleEvent(Event, frozen=True, kw_only=True):
    """An event that carries the whole response as it stands."""

    response: Response


class RequestWarning(Struct, frozen=True, kw_only=True):
    """Something that a create asked for and that nothing acts on."""

    code: str = ""
    message: str = ""
    param: str = ""
    """The full path of the member at fault."""


class ResponseCreated(LifecycleEvent, frozen=True, kw_only=True, tag="response.created"):
    """The request was accepted and the response has an id. ``event_id`` echoes the create's."""

    event_id: str | UnsetType = UNSET
    warnings: tuple[RequestWarning, ...] | UnsetType = UNSET
    """What of the create is ignored."""


class ResponseQueued(LifecycleEvent, frozen=True, kw_only=True, tag="response.queued"):
    """It waits until fewer responses run at once."""


class ResponseInProgress(LifecycleEvent, frozen=True, kw_only=True, tag="response.in_progress"):
    """It runs."""


class ResponseDone(LifecycleEvent, frozen=True, kw_only=True, tag="response.done"):
    """Append shape: sampling stopped at client tool calls; the turn is held (wire.md 2.2.1)."""


class ResponseCompleted(LifecycleEvent, frozen=True, kw_only=True, tag="response.completed"):
    """It ended well."""

    TERMINAL: ClassVar[bool] = True


class ResponseFailed(LifecycleEvent, frozen=True, kw_only=True, tag="response.failed"):
    """It failed after it had started; ``response.error`` says why."""

    TERMINAL: ClassVar[bool] = True


class ResponseIncomplete(LifecycleEvent, frozen=True, kw_only=True, tag="response.incomplete"):
    """It ended early, by a limit, a steer or a cancel."""

    TERMINAL: ClassVar[bool] = True


class OutputItemAdded(Event, frozen=True, kw_only=True, tag="response.output_item.added"):
    """A new output item begins."""

    output_index: int
    item: Raw


class OutputItemDone(Event, frozen=True, kw_only=True, tag="response.output_item.done"):
    """An output item is whole."""

    output_index: int
    item: Raw


class ContentPartAdded(Event, frozen=True, kw_only=True, tag="response.content_part.added"):
    """A new part of a message or of raw reasoning begins."""

    item_id: str
    output_index: int
    content_index: int
    part: Raw


class ContentPartDone(Event, frozen=True, kw_only=True, tag="response.content_part.done"):
    """A part is whole."""

    item_id: str
    output_index: int
    content_index: int
    part: Raw


class OutputTextDelta(Event, frozen=True, kw_only=True, tag="response.output_text.delta"):
    """The next piece of text."""

    item_id: str
    output_index: int
    content_index: int
    delta: str
    logprobs: tuple[Raw, ...] = ()


class OutputTextDone(Event, frozen=True, kw_only=True, tag="response.output_text.done"):
    """The text of a part, whole."""

    item_id: str
    output_index: int
    content_index: int
    text: str
    logprobs: tuple[Raw, ...] = ()


class OutputTextAnnotationAdded(
    Event, frozen=True, kw_only=True, tag="response.output_text.annotation.added"
):
    """A note on a stretch of text."""

    item_id: str
    output_index: int
    content_index: int
    annotation_index: int
    annotation: Raw | UnsetType = UNSET


class RefusalDelta(Event, frozen=True, kw_only=True, tag="response.refusal.delta"):
    """The next piece of a refusal."""

    item_id: str
    output_index: int
    content_index: int
    delta: str


class RefusalDone(Event, frozen=True, kw_only=True, tag="response.refusal.done"):
    """A refusal, whole."""

    item_id: str
    output_index: int
    content_index: int
    refusal: str


class FunctionCallArgumentsDelta(
    Event, frozen=True, kw_only=True, tag="response.function_call_arguments.delta"
):
    """The next piece of a function call's arguments: JSON text, cut anywhere."""

    item_id: str
    output_index: int
    delta: str


class FunctionCallArgumentsDone(
    Event, frozen=True, kw_only=True, tag="response.function_call_arguments.done"
):
    """A function call's arguments, whole."""

    item_id: str
    output_index: int
    arguments: str


class CustomToolCallInputDelta(
    Event, frozen=True, kw_only=True, tag="response.custom_tool_call_input.delta"
):
    """The next piece of a custom tool's input."""

    item_id: str
    output_index: int
    delta: str


class CustomToolCallInputDone(
    Event, frozen=True, kw_only=True, tag="response.custom_tool_call_input.done"
):
    """A custom tool's input, whole."""

    item_id: str
    output_index: int
    input: str


class ReasoningSummaryPartAdded(
    Event, frozen=True, kw_only=True, tag="response.reasoning_summary_part.added"
):
    """A new part of a reasoning summary begins."""

    item_id: str
    output_index: int
    summary_index: int
    part: Raw


class ReasoningSummaryPartDone(
    Event, frozen=True, kw_only=True, tag="response.reasoning_summary_part.done"
):
    """A part of a reasoning summary is whole."""

    item_id: str
    output_index: int
    summary_index: int
    part: Raw
    status: str | UnsetType = UNSET


class ReasoningSummaryTextDelta(
    Event, frozen=True, kw_only=True, tag="response.reasoning_summary_text.delta"
):
    """The next piece of a reasoning summary."""

    item_id: str
    output_index: int
    summary_index: int
    delta: str


class ReasoningSummaryTextDone(
    Event, frozen=True, kw_only=True, tag="response.reasoning_summary_text.done"
):
    """A part's summary text, whole."""

    item_id: str
    output_index: int
    summary_index: int
    text: str


class ReasoningTextDelta(Event, frozen=True, kw_only=True, tag="response.reasoning_text.delta"):
    """The next piece of raw reasoning."""

    item_id: str
    output_index: int
    content_index: int
    delta: str


class ReasoningTextDone(Event, frozen=True, kw_only=True, tag="response.reasoning_text.done"):
    """A part of raw reasoning, whole."""

    item_id: str
    output_index: int
    content_index: int
    text: str


class ErrorDetail(Struct, frozen=True, kw_only=True):
    """OpenAI's error object: ``code`` is always a string on our side (wire.md 4.1.1)."""

    type: str = "invalid_request_error"
    code: str | None = None
    message: str = ""
    param: str | None = None
    event_id: str | UnsetType = UNSET
    """The ``event_id`` of the client message that this answers."""
    retry_after: float | UnsetType = UNSET
    """Seconds after which a retry can help."""

    @classmethod
    def of(cls, error: ApiError, event_id: str | None = None) -> "ErrorDetail":
        """The in-band face of an error; ``event_id`` echoes the client message at fault."""
        return cls(
            type=error.type,
            code=error.code,
            message=error.message,
            param=error.param,
            event_id=UNSET if event_id is None else event_id,
            retry_after=UNSET if error.retry_after is None else error.retry_after,
        )


class ErrorEvent(Event, frozen=True, kw_only=True, tag="error"):
    """A request failed; the connection lives on. Ends the request unless a response had started."""

    status: int | UnsetType = UNSET
    error: ErrorDetail


class RequestRefused(ErrorEvent, frozen=True, kw_only=True, tag="error"):
    """An error after which no event of its create or resume comes (any more).

    In JSON it is an error like any other; on gRPC its ``ending`` says it.
    """


class SteerRef(Struct, frozen=True, kw_only=True):
    """Which steer, aimed at which response."""

    previous_response_id: str
    id: str | UnsetType = UNSET
    input: Raw | UnsetType = UNSET


class SteerAccepted(Event, frozen=True, kw_only=True, tag="response.steer.accepted"):
    """A steer was taken; it acts at the end of the running item."""

    steer: SteerRef


class SteerPending(Event, frozen=True, kw_only=True, tag="response.steer.pending"):
    """A taken steer waits until the client has answered open tool calls."""

    reason: str
    required_input: list[Raw]
    steer: SteerRef


class SteerFailed(Event, frozen=True, kw_only=True, tag="response.steer.failed"):
    """A steer was refused; the stream is unharmed."""

    error: ErrorDetail
    steer: SteerRef


class Heartbeat(Event, frozen=True, kw_only=True, tag="tieline.heartbeat"):
    """Proof of life: phase is queued, prefill, thinking, held or idle."""

    phase: str


class Timing(Event, frozen=True, kw_only=True, tag="tieline.timing"):
    """Where a turn's time went: microseconds by phase (wire.md 3.4.4)."""

    response_id: str
    phases: dict[str, int]


class SessionStarted(Event, frozen=True, kw_only=True, tag="tieline.session.started"):
    """The connection is open: what the server speaks and what it allows."""

    session_id: str
    revision: str
    extensions: list[str]
    limits: dict[str, int]


class SessionGoingAway(Event, frozen=True, kw_only=True, tag="tieline.session.going_away"):
    """The server is about to close: finish within ``seconds``, send new work elsewhere."""

    reason: str
    seconds: float


class Opaque(Event, frozen=True, kw_only=True, tag="tieline.opaque"):
    """An event of a type that has no class here: its real type and its bytes."""

    name: str
    raw: Raw

    @property
    def type(self) -> str:
        """The event's own ``type``."""
        return self.name


CLASSES: Final[tuple[type[Event], ...]] = (
    ResponseCreated,
    ResponseQueued,
    ResponseInProgress,
    ResponseDone,
    ResponseCompleted,
    ResponseFailed,
    ResponseIncomplete,
    OutputItemAdded,
    OutputItemDone,
    ContentPartAdded,
    ContentPartDone,
    OutputTextDelta,
    OutputTextDone,
    OutputTextAnnotationAdded,
    RefusalDelta,
    RefusalDone,
    FunctionCallArgumentsDelta,
    FunctionCallArgumentsDone,
    CustomToolCallInputDelta,
    CustomToolCallInputDone,
    ReasoningSummaryPartAdded,
    ReasoningSummaryPartDone,
    ReasoningSummaryTextDelta,
    ReasoningSummaryTextDone,
    ReasoningTextDelta,
    ReasoningTextDone,
    ErrorEvent,
    SteerAccepted,
    SteerPending,
    SteerFailed,
    Heartbeat,
    Timing,
    SessionStarted,
    SessionGoingAway,
)

BY_TYPE: Final[dict[str, type[Event]]] = {str(kind.__struct_config__.tag): kind for kind in CLASSES}
"""Event type -> its class. A type that is not here is :class:`Opaque`."""

EXTENSIONS: Final = frozenset(
    {
        "tieline.heartbeat",
        "tieline.timing",
        "tieline.session.started",
        "tieline.session.going_away",
    }
)
"""Types that are ours alone: a client that did not ask for them never sees them on JSON."""

MERGEABLE: Final[frozenset[type[Event]]] = frozenset(
    {
        OutputTextDelta,
        RefusalDelta,
        FunctionCallArgumentsDelta,
        CustomToolCallInputDelta,
        ReasoningSummaryTextDelta,
        ReasoningTextDelta,
    }
)
"""Deltas that may join an unsent one of the same part when a reader is slow."""


def merged(first: Event, second: Event) -> Event | None:
    """``second`` joined to the unsent ``first`` of the same part, or None when they differ.

    The result keeps the number of ``first``: every reader and every replay sees it merged.
    """
    if type(first) is not type(second) or type(first) not in MERGEABLE:
        return None
    for name in ("item_id", "output_index", "content_index", "summary_index"):
        if getattr(first, name, None) != getattr(second, name, None):
            return None
    joined: dict[str, object] = {"delta": first.delta + second.delta}  # type: ignore[attr-defined]
    if isinstance(first, OutputTextDelta) and isinstance(second, OutputTextDelta):
        joined["logprobs"] = first.logprobs + second.logprobs
    return msgspec.structs.replace(first, **joined)
