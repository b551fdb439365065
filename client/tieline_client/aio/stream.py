"""One turn as an asynchronous iterator of typed events."""

import asyncio
from collections import deque
from collections.abc import Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Final, Self

from msgspec import Raw, Struct

from tieline import items
from tieline.errors import BY_STATUS, ERRORS, ApiError
from tieline.events import (
    BY_TYPE,
    MERGEABLE,
    ErrorEvent,
    Event,
    LifecycleEvent,
    Opaque,
    RequestWarning,
    ResponseCreated,
    ResponseFailed,
    Timing,
    merged,
)
from tieline.fold import Fold
from tieline.items import CustomToolCall, FunctionCall
from tieline.responses import Response, Usage
from tieline_client._asks import Ask, Verdict
from tieline_client.aio.requests import Call, Input, ToolChoice
from tieline_client.errors import (
    FailedResponse,
    IncompleteStream,
    NotSent,
    OutcomeUnknown,
    failed,
)

if TYPE_CHECKING:
    from tieline_client.aio.connection import Connection

MERGE_FROM: Final = 16
"""Unread events from which on a delta joins the one before it."""
MERGED_CHARS: Final = 64 * 1024
"""A delta that has grown to this is joined no further."""
FULL: Final = 256
"""Unread events at which the whole connection stops reading (they share one flow of bytes)."""

_SHAPING: Final = frozenset(
    name
    for name, kind in BY_TYPE.items()
    if "output_index" in kind.__struct_fields__ and not name.endswith(".added")
)
"""Events that the output is built of. What is added is said again by what follows it."""


class Result(Struct, frozen=True, kw_only=True):
    """How far a turn has come: its end, or the hold at client tool calls."""

    response: Response
    text: str
    """The text of its messages."""
    calls: tuple[Call, ...]
    """Calls that wait for their outputs."""
    timing: dict[str, int] | None
    """Microseconds by phase, where the server tells."""

    @property
    def output_text(self) -> str:
        """The text of its messages, by the name that it has in OpenAI's client."""
        return self.text

    @property
    def usage(self) -> Usage | None:
        """Tokens really used, where they are known already."""
        return self.response.usage


class ResponseStream:
    """The events of one turn, in order.

    ``async for`` ends at the terminal event, and in append shape at ``response.done``: answer
    the ``calls`` with :meth:`append` and iterate again. It raises
    :class:`tieline.errors.ApiError` when the server refuses the turn, its kind
    :class:`FailedResponse`, with the response and its usage, when it fails, and
    :class:`ConnectionLost` when the connection ends before it does: :class:`NotSent`,
    :class:`OutcomeUnknown` or :class:`IncompleteStream`, by how far it had come.
    A stream that is neither read nor dropped holds up its connection once its buffer is full.
    """

    def __init__(
        self,
        connection: "Connection",
        ask: Ask,
        *,
        merge: bool,
        sent_at: float,
        known: "ResponseStream | None" = None,
    ) -> None:
        self._connection = connection
        self._ask = ask
        self._merge = merge
        self._buffer: deque[Event | Exception] = deque()
        self._wake = asyncio.Event()
        # A resumed stream goes on with what the one before it has read.
        self._fold: Fold = Fold() if known is None else known._fold
        self._known: int | None = None if known is None else known.cursor
        """The number up to which the reader has every event already."""
        self._torn: bool = False if known is None else known._torn
        """Whether something that the output is built of could not be read."""
        self._failure: Exception | None = None
        self._refused = False
        """Whether the server itself has answered with that failure."""
        self._answered: set[str] = set() if known is None else known._answered
        self._sent: set[str] = set()
        """Calls that the append on its way answers."""
        self._abandoned = False
        self._sent_at = sent_at
        self._rested_at: float | None = None
        self.timing: dict[str, int] | None = None
        """Microseconds by phase, once the server has told: service, engine and held time."""
        self.warnings: tuple[RequestWarning, ...] = () if known is None else known.warnings
        """What of the create the server ignores, once it has begun the response."""

    # Reading.

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Event:
        while not self._buffer:
            if self._ask.rests or self._abandoned:
                raise StopAsyncIteration
            self._wake.clear()
            await self._wake.wait()
        return self._pop()

    async def batch(self) -> list[Event]:
        """All events that are there, at least one; none at the end. For those who read in bulk."""
        try:
            events = [await self.__anext__()]
        except StopAsyncIteration:
            return []
        return [*events, *self._at_hand()]

    async def response(self) -> Response:
        """Reads to the end and returns the response: ended, or held (status in_progress).

        A response that was cut (status incomplete or cancelled) is returned like a completed
        one; a failed one raises :class:`FailedResponse`, which has it.
        """
        while await self.batch():
            pass
        if self._failure is not None:
            raise self._failure
        return self._fold.response

    async def result(self) -> Result:
        """As :meth:`response`, with the text and the open calls picked out."""
        response = await self.response()
        return Result(response=response, text=self.text, calls=self.calls, timing=self.timing)

    @property
    def text(self) -> str:
        """The text of the messages so far."""
        return self._fold.text

    @property
    def calls(self) -> tuple[Call, ...]:
        """Function and custom tool calls that are whole and wait for their outputs."""
        calls = (_call(raw) for raw in self._fold.response.output)
        return tuple(call for call in calls if call and call.call_id not in self._answered)

    @property
    def response_id(self) -> str | None:
        """The id of the response, once there is one."""
        return self._ask.response_id

    @property
    def cursor(self) -> int | None:
        """The sequence_number up to which events have come: :meth:`Connection.resume` goes on
        there."""
        return self._fold.last_sequence_number

    @property
    def lane(self) -> str | None:
        """The lane's name; None for the default lane."""
        return self._ask.lane

    @property
    def held(self) -> bool:
        """Whether the turn waits for tool outputs (append shape)."""
        return self._ask.rests and not self._ask.ended

    @property
    def ended(self) -> bool:
        """Whether nothing more will come from the server."""
        return self._ask.ended

    @property
    def wall(self) -> float | None:
        """Seconds from the last create or append to the end or hold, as this side saw them."""
        return None if self._rested_at is None else self._rested_at - self._sent_at

    # Acting.

    async def append(self, outputs: Input, *, tool_choice: ToolChoice | None = None) -> None:
        """Answers the open calls of a held turn; iterate again for what follows.

        ``outputs`` are tool outputs (:func:`tool_output`), and may be followed by user
        messages. ``tool_choice`` replaces the response's own from here on.

        Raises :class:`TurnState` when the turn is not held. A server that does not accept them
        says so in the iteration, as an ApiError; the turn is then held as before.
        """
        await self._connection._append(self._ask, outputs, tool_choice)

    async def steer(self, input: Input) -> None:
        """Gives the running response new user messages.

        The answer comes in the iteration: ``SteerAccepted``, and then the response ends
        (incomplete, reason steered) and its successor follows in the same stream; or
        ``SteerFailed``, which harms nothing; or ``SteerPending``. One that meets the end of the
        response has no effect and no answer here. Raises :class:`TurnState` when nothing runs.
        """
        await self._connection._steer(self._ask, input)

    async def cancel(self) -> None:
        """Ends the turn: the iteration ends with its partial output and the usage so far."""
        await self._connection._cancel(self._ask)

    async def aclose(self) -> None:
        """Cancels the turn unless it has ended, and reads no more of it."""
        self._abandoned = True
        self._buffer.clear()
        self._wake.set()
        self._connection._abandon(self._ask)
        if self._connection.alive:
            await self.cancel()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.aclose()

    def _at_hand(self) -> list[Event]:
        events = []
        while self._buffer and not isinstance(self._buffer[0], Exception):
            events.append(self._pop())
        return events

    # Called by the connection.

    def _resumed(self, at: float, answered: Sequence[str]) -> None:
        """An append that answers these calls is on its way."""
        self._sent_at, self._rested_at = at, None
        self._sent = set(answered) - self._answered
        self._answered |= self._sent

    def _held_again(self, at: float) -> None:
        """The append was refused, or could not be sent."""
        self._rested_at = at
        self._answered -= self._sent

    def _take(self, verdict: Verdict, event: Event, at: float) -> None:
        """Takes an event that the connection's rules gave to this turn."""
        if verdict is Verdict.DELIVER:
            self._deliver(event)
        else:
            assert isinstance(event, ErrorEvent)
            error = to_error(event)
            if verdict is Verdict.REFUSE:
                self._failure, self._refused = error, True
            else:
                self._held_again(at)
            self._buffer.append(error)
        if self._ask.rests:
            self._rested_at = at
        self._wake.set()

    def _deliver(self, event: Event) -> None:
        if isinstance(event, Timing):
            self.timing = event.phases
            return
        if self._has(event):
            return
        if isinstance(event, ResponseCreated):
            self.warnings = event.warnings or self.warnings
            if self._fold.ended:
                # The successor of a steered response.
                self._fold = Fold()
        self._fold.push(event)
        if isinstance(event, Opaque):
            self._torn = self._torn or event.name in _SHAPING
        elif self._torn and isinstance(event, LifecycleEvent):
            # Output that a snapshot repeats is whole; without that, none may pass for it.
            self._torn = not event.response.output
            if self._torn and event.TERMINAL and not isinstance(event, ResponseFailed):
                self._lose("the server sent a part of the output that cannot be read", None)
                return
        if not self._joins(event):
            self._buffer.append(event)
        if isinstance(event, ResponseFailed):
            self._failure = _failure(self._fold.response, self._fold.error)
            self._buffer.append(self._failure)
        if len(self._buffer) >= FULL:
            self._connection._hold_back(self._ask)

    def _has(self, event: Event) -> bool:
        """Whether a resume has brought again what the reader knows: it shows where it stands.

        The end is never known. Where the process that ran the response has died, it is numbered
        after what was written down, which can be less than what was heard.
        """
        if isinstance(event, LifecycleEvent) and event.TERMINAL:
            return False
        number = event.sequence_number
        return self._known is not None and isinstance(number, int) and number <= self._known

    def _joins(self, event: Event) -> bool:
        """Whether a delta has joined the one before it: a slow reader costs bounded events."""
        if not self._merge or len(self._buffer) < MERGE_FROM or type(event) not in MERGEABLE:
            return False
        last = self._buffer[-1]
        if isinstance(last, Exception) or len(getattr(last, "delta", "")) >= MERGED_CHARS:
            return False
        joined = merged(last, event)
        if joined is not None:
            self._buffer[-1] = joined
        return joined is not None

    def _lose(
        self,
        reason: str,
        cause: BaseException | None,
        *,
        sent: bool = True,
        refused: bool = False,
    ) -> None:
        """The connection is over, and so is this turn; ``refused``: by an answer to its request."""
        response_id = self._ask.response_id
        self._refused = refused
        stated = refused or response_id is None
        if stated and isinstance(cause, ApiError | NotSent):
            failure: Exception = cause
        elif not sent:
            failure = NotSent(reason)
        elif response_id is None:
            failure = OutcomeUnknown(reason)
        else:
            failure = IncompleteStream(
                reason,
                text=self._fold.text,
                response_id=response_id,
                sequence_number=self._fold.last_sequence_number,
                response=self._fold.response,
            )
        if failure is not cause:
            failure.__cause__ = cause
        self._failure = failure
        self._buffer.append(failure)
        self._wake.set()

    def _pop(self) -> Event:
        entry = self._buffer.popleft()
        if len(self._buffer) == FULL // 2:
            self._connection._read_on(self._ask)
        if isinstance(entry, Exception):
            raise entry
        return entry


def _call(raw: Raw) -> Call | None:
    """The call that an output item is; None for any other item, and for one that is broken."""
    try:
        view = items.decode(raw).view
    except ApiError:
        return None
    match view:
        case FunctionCall():
            arguments = view.arguments
        case CustomToolCall():
            arguments = view.input
        case _:
            return None
    return Call(
        call_id=view.call_id,
        name=view.name,
        arguments=arguments,
        namespace=view.namespace,
        type=str(view.__struct_config__.tag),
    )


def to_error(event: ErrorEvent) -> ApiError:
    """An in-band error as the exception of its status."""
    detail = event.error
    status = event.status if isinstance(event.status, int) else None
    return ApiError.of(
        detail.code or _code_of(status, detail.type),
        detail.message,
        param=detail.param,
        status=status,
        error_type=detail.type,
        retry_after=detail.retry_after if isinstance(detail.retry_after, float) else None,
    )


def _code_of(status: int | None, kind: str) -> str:
    """What stands for an error without a code (wire.md 4.1.5): by its status, else by its type."""
    if status is not None:
        return BY_STATUS.get(status, "server_error" if status >= 500 else "invalid_request")
    return next((code for code, row in ERRORS.items() if row.type == kind), "invalid_request")


def _failure(response: Response, event: ErrorEvent | None) -> FailedResponse:
    """Why a response failed after it had started, and what there is of it."""
    if event is not None:
        return failed(to_error(event), response)
    code = response.error.code if response.error else "server_error"
    message = response.error.message if response.error else "The response failed."
    error = ApiError.of(code, message, status=None if code in ERRORS else 500)
    return failed(error, response)
