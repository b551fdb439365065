"""One turn of a session: a stream of events that survives the connection on which it began."""

import secrets
import weakref
from collections.abc import Awaitable, Callable
from contextlib import suppress
from enum import Enum
from types import TracebackType
from typing import Final, NoReturn, Self

from msgspec import Raw
from msgspec.structs import replace

from tieline.errors import ApiError, RequestTooLarge, TielineError
from tieline.events import Event, RequestWarning, ResponseCreated, ResponseDone
from tieline.requests import Create
from tieline.responses import Response
from tieline_client._history import History, Plan
from tieline_client._replay import Fault, Means, Move, Policy, choose, fault
from tieline_client.aio.connection_pool import ConnectionPool, Leased
from tieline_client.aio.requests import Call, Input, ToolChoice, to_items
from tieline_client.aio.stream import ResponseStream, Result
from tieline_client.errors import (
    ConnectionClosed,
    IncompleteStream,
    NotSent,
    OutcomeUnknown,
    TurnState,
)

KEYS: Final = "idempotency_key"
"""The extension by which a server tells a create that comes again from a new one."""

Step = Callable[[], Awaitable[None]]

_BUSY: Final = "lane_busy"
_ELSEWHERE: Final = frozenset({"response_not_found", "response_not_active"})
"""How a server refuses an append to a response that its lane only reads, or does not have."""


class _Kind(Enum):
    """What the latest request is."""

    CREATE = "create"
    ATTACH = "attach"
    """The same create once more, under its key."""
    RESUME = "resume"


class SessionStream:
    """The events of one turn, in order, each once, whatever happens to the connection.

    It reads like a :class:`tieline_client.aio.ResponseStream`. What cannot be mended without the
    risk of doing something twice is raised: :class:`OutcomeUnknown` when the request was sent and
    nothing was heard, :class:`IncompleteStream` with the partial output when the response had
    begun and cannot be resumed.
    """

    def __init__(
        self,
        pool: ConnectionPool,
        history: History,
        request: Create,
        new: list[Raw],
        *,
        policy: Policy,
        chance: Callable[[], float],
    ) -> None:
        self._pool = pool
        self._history = history
        self._request = request
        self._given_key = request.idempotency_key
        self._new = new
        """Items that the conversation has when the response rests."""
        self._policy = policy
        self._chance = chance
        self._kind = _Kind.CREATE
        self._plan: Plan | None = None
        """What the create sends; None: to be made for the connection that it goes on."""
        self._leased: Leased | None = None
        self._dropped: weakref.finalize[..., SessionStream] | None = None
        self._stream: ResponseStream | None = None
        self._side = False
        """Whether the turn goes over HTTP, because it is too large for the transport."""
        self._attempts = 0
        """Since the last event."""
        self._debt: TielineError | None = None
        """What must be raised if what mends it does not come about."""
        self._kept = True
        """Whether the server may tell a create that comes again from a new one."""
        self._attached = False
        """Whether the response may belong to another connection than ours."""
        self._pending: tuple[Input, ToolChoice | None] | None = None
        """Outputs of which it is unknown whether the server has taken them."""
        self._unsent = False
        """Whether they never left."""
        self._at_hold = False
        """Whether the latest event is that of a hold."""
        self._held = False
        self._held_at: int | None = None
        """The number of the event that said so."""
        self._begun: str | None = None
        self._read = 0
        """Output items of the response that the conversation has already."""
        self._succeeded = False
        """Whether a steer has made another response of it."""
        self._rested = False
        self._cancels = False
        """Whether it was cancelled while there was no connection to say it on."""
        self._abandoned = False
        self._failure: TielineError | None = None

    # Reading.

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Event:
        while True:
            try:
                event = await self._reading.__anext__()
            except StopAsyncIteration:
                if not await self._goes_on():
                    raise
            except TielineError as error:
                if self._lost_at_hold(error):
                    self._rest(held=True)
                    raise StopAsyncIteration from None
                await self._until(await self._mend(error, reading=True))
            else:
                self._saw(event)
                return event

    async def batch(self) -> list[Event]:
        """All events that are there, at least one; none at the end."""
        try:
            events = [await self.__anext__()]
        except StopAsyncIteration:
            return []
        for event in self._reading._at_hand():
            self._saw(event)
            events.append(event)
        return events

    async def response(self) -> Response:
        """As :meth:`ResponseStream.response`."""
        while await self.batch():
            pass
        if self._failure is not None:
            raise self._failure
        return self._reading._fold.response

    async def result(self) -> Result:
        """As :meth:`ResponseStream.result`."""
        response = await self.response()
        return Result(response=response, text=self.text, calls=self.calls, timing=self.timing)

    @property
    def text(self) -> str:
        """The text of the messages so far."""
        return self._reading.text

    @property
    def calls(self) -> tuple[Call, ...]:
        """Function and custom tool calls that are whole and wait for their outputs."""
        return self._reading.calls

    @property
    def response_id(self) -> str | None:
        """The id of the response, once there is one."""
        return self._reading.response_id

    @property
    def cursor(self) -> int | None:
        """The sequence_number up to which events have come."""
        return self._reading.cursor

    @property
    def lane(self) -> str | None:
        """The lane's name; None for the default lane."""
        return self._request.stream_id

    @property
    def held(self) -> bool:
        """Whether the turn waits for tool outputs (append shape)."""
        return self._rested and self._held and not self._abandoned

    @property
    def ended(self) -> bool:
        """Whether nothing more will come."""
        return self._failure is not None or (self._rested and not self._held)

    @property
    def over(self) -> bool:
        """Whether the conversation can go on with another create."""
        return self._rested or self._abandoned or self._failure is not None

    @property
    def timing(self) -> dict[str, int] | None:
        """Microseconds by phase, once the server has told."""
        return self._reading.timing

    @property
    def warnings(self) -> tuple[RequestWarning, ...]:
        """What of the create the server ignores, once it has begun the response."""
        return self._reading.warnings

    @property
    def wall(self) -> float | None:
        """Seconds from the last create or append to the end or hold, as this side saw them."""
        return self._reading.wall

    # Acting.

    async def append(self, outputs: Input, *, tool_choice: ToolChoice | None = None) -> None:
        """Answers the open calls of a held turn; iterate again for what follows.

        Where the turn was lost with its connection before they could be sent, and cannot be
        resumed, they go with all that was said before into a new response of the same stream.
        """
        if not self.held:
            raise TurnState("append: the turn is not held")
        self._new, self._rested = to_items(outputs), False
        self._pending, self._unsent = (outputs, tool_choice), False
        try:
            await self._reading.append(outputs, tool_choice=tool_choice)
        except NotSent as error:
            self._debt, self._unsent = error, True
            await self._until(self._resume if self._resumable else self._begin_anew)
        except BaseException:
            self._still_held()
            raise

    async def steer(self, input: Input) -> None:
        """As :meth:`ResponseStream.steer`."""
        await self._reading.steer(input)

    async def cancel(self) -> None:
        """Ends the turn: the iteration ends with its partial output and the usage so far."""
        try:
            await self._reading.cancel()
        except NotSent:
            self._cancels = True
            await self._cancel_lost()

    async def aclose(self) -> None:
        """Cancels the turn unless it has ended, and reads no more of it."""
        closes = not self._abandoned and not self.ended
        self._abandoned = True
        if closes:
            self._forget()
            await self._reading.aclose()
            if not self._reading._connection.alive:
                with suppress(TielineError):
                    await self._cancel_lost()
        self._leave()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.aclose()

    async def _cancel_lost(self) -> None:
        """Cancels by id, from another connection, what the server keeps for a resume."""
        if self.response_id is None or not self._resumable:
            return
        leased = await self._pool.take(side=self._side)
        try:
            await leased.connection.cancel(self.response_id)
        finally:
            self._pool.release(leased)

    # Asking.

    @property
    def _reading(self) -> ResponseStream:
        assert self._stream is not None
        return self._stream

    async def _open(self) -> None:
        await self._until(self._create)

    async def _until(self, step: Step) -> None:
        """Takes a step, and what follows from its failure, until there is a stream to read."""
        while True:
            try:
                return await step()
            except TielineError as error:
                step = await self._mend(error, reading=False)

    async def _take(self) -> Leased:
        """A connection to ask on; the one before is given back."""
        self._leave()
        self._leased = leased = await self._pool.take(side=self._side)
        # A stream that is dropped unread must not keep an old connection open.
        self._dropped = weakref.finalize(self, _give_back, self._pool, leased)
        self._dropped.atexit = False
        return leased

    def _leave(self) -> None:
        if self._leased is not None and self._dropped is not None:
            self._dropped.detach()
            self._pool.release(self._leased)
            self._leased = self._dropped = None

    async def _create(self) -> None:
        """Asks for the response, with as much history as the connection needs."""
        self._kind = _Kind.CREATE
        leased = await self._take()
        plan = self._plan or self._history.plan(self._new, remembered=self._remembers(leased))
        self._plan = plan
        known = self._pool.too_large
        if not self._side and known is not None and len(bytes(plan.input)) >= known:
            raise ApiError.of("request_too_large", "The request is too large for one message.")
        key = self._request.idempotency_key
        if key is None and self._policy.idempotent and leased.connection.extended:
            key = secrets.token_hex(16)
        self._request = replace(
            self._request,
            event_id=f"session_{secrets.token_hex(8)}",
            input=plan.input,
            previous_response_id=plan.previous_response_id,
            idempotency_key=key,
        )
        self._attached = False
        self._stream = await leased.connection._ask(self._request)

    async def _begin_anew(self) -> None:
        """Answers calls in a new response, after a held one that is gone."""
        self._request = replace(self._request, idempotency_key=self._given_key)
        self._plan = self._history.whole(self._new)
        self._begun, self._read, self._held, self._held_at = None, 0, False, None
        self._pending = None
        await self._create()

    async def _attach(self) -> None:
        """Asks for the very same once more: under its key it is made once."""
        self._kind = _Kind.ATTACH
        leased = await self._take()
        if not await self._pool.offers(leased, KEYS):
            self._kept = False
            assert self._debt is not None
            raise self._debt
        self._attached = True
        self._stream = await leased.connection._ask(self._request)

    async def _resume(self) -> None:
        """Asks for the rest of the response."""
        self._kind, known = _Kind.RESUME, self._reading
        leased = await self._take()
        after = known.cursor
        if self._pending is not None and after == self._held_at:
            # The event of the hold comes again and shows that the turn is where it was.
            after = after - 1 if after else None
        self._attached = False
        self._stream = await leased.connection._resume(
            known.response_id or "", after=after, lane=self.lane, known=known
        )
        if self._cancels:
            await self._stream.cancel()

    async def _append_again(self) -> None:
        assert self._pending is not None
        outputs, choice = self._pending
        stream, repeats = self._reading, not self._unsent
        self._unsent = False
        await stream._connection._append(stream._ask, outputs, choice, repeats=repeats)

    def _remembers(self, leased: Leased) -> bool:
        """Whether this connection's server should know the latest response."""
        if self._request.store is not False:
            return True
        latest = self._history.latest
        on_connection = leased.connection.transport != "sse" and latest is not None
        return on_connection and leased.latest.get(self.lane) == latest

    # Mending.

    async def _mend(self, error: TielineError, *, reading: bool) -> Step:
        """What to do about an error; raises it, or what it means, when there is nothing.

        ``reading``: it came in the place of an event; else a step has failed.
        """
        what = self._fault(error, reading=reading)
        if reading and isinstance(error, ApiError) and self._pending and self._reading.held:
            return self._after_refused_append(error)
        move = choose(what, self._means())
        wait = self._wait(what, error)
        if self._pool.closed or isinstance(error, ConnectionClosed) or wait is None:
            move = Move.RAISE
        if move in (Move.RAISE, Move.UNKNOWN):
            if self._kind is _Kind.RESUME and self._unsent and not self._pool.closed:
                return self._begin_anew
            self._fail(error, what, move)
        if what in (Fault.CUT, Fault.LOST):
            self._debt = _owed(error, what)
        # To be forgotten is an answer.
        self._attempts += what is not Fault.FORGOTTEN
        if wait:
            await self._pool.pause(wait)
            if self._pool.closed:
                self._fail(error, what, Move.RAISE)
        return self._step(move, what)

    def _fault(self, error: TielineError, *, reading: bool) -> Fault:
        if isinstance(error.__cause__, RequestTooLarge) and self._pending is not None:
            return Fault.FINAL
        stream = self._stream if reading else None
        refused = stream is None or stream._refused
        resumes = self._kind is _Kind.RESUME
        # A resume can be refused; once the end itself is heard, it is the answer.
        open_still = resumes and stream is not None and not stream._fold.ended
        begun = stream is not None and stream.response_id is not None and not open_still
        if resumes and isinstance(error, ApiError) and error.code == _BUSY:
            return Fault.BUSY
        return fault(error, begun=begun, refused=refused)

    def _means(self) -> Means:
        plan, connection = self._plan, self._pool.connection
        over_http = self._side or (connection is not None and connection.transport == "sse")
        return Means(
            attempts=self._attempts < self._policy.backoff.max_retries,
            keyed=self._kept and self._request.idempotency_key is not None,
            unsafe=self._policy.replay_unsafe,
            resumable=self._resumable,
            whole=plan is not None and not plan.whole,
            other_transport=not over_http and self._pool.beside is not None and self._can_move,
        )

    @property
    def _can_move(self) -> bool:
        """Whether HTTP can carry the request: it holds nothing open."""
        return not self._request.append

    @property
    def _resumable(self) -> bool:
        kept = self._request.resumable or self._request.idempotency_key is not None
        return bool(kept) and self._stream is not None and self._stream.cursor is not None

    def _wait(self, what: Fault, error: TielineError) -> float | None:
        """Seconds until the next attempt; None when the server wants more than our patience.

        A connection that has just broken is replaced at once.
        """
        backoff = self._policy.backoff
        if what is Fault.BUSY:
            asked = error.retry_after if isinstance(error, ApiError) else None
            if asked is not None and asked > backoff.patience:
                return None
            return backoff.wait(self._attempts + 1, asked=asked, chance=self._chance())
        if not self._attempts or what in (Fault.FORGOTTEN, Fault.TOO_LARGE):
            return 0.0
        return backoff.wait(self._attempts, asked=None, chance=self._chance())

    def _step(self, move: Move, what: Fault) -> Step:
        if what is Fault.LEAVING and self._leased is not None:
            self._pool.retire(self._leased)
        if move is Move.ATTACH:
            return self._attach
        if move is Move.RESUME or self._kind is _Kind.RESUME:
            return self._resume
        if move is Move.AGAIN or (what is Fault.UNSENT and self._kind is _Kind.ATTACH):
            return self._attach if self._kind is _Kind.ATTACH else self._create
        # Another body: another key, unless it is the caller's.
        self._request = replace(self._request, idempotency_key=self._given_key)
        if move is Move.OTHER_TRANSPORT:
            assert self._plan is not None
            size = len(bytes(self._plan.input))
            self._pool.too_large = min(size, self._pool.too_large or size)
            self._side = True
        if move is Move.WHOLE:
            self._history.forget()
        self._plan = None
        return self._create

    def _after_refused_append(self, error: ApiError) -> Step:
        """The turn is held as before, unless it is held on another connection."""
        if self._attached and error.code in _ELSEWHERE and self._leased is not None:
            self._debt, self._unsent = error, True
            # Our lane is busy with reading it, and cannot get it as well.
            self._pool.retire(self._leased)
            return self._resume
        self._still_held()
        raise error

    def _still_held(self) -> None:
        self._pending, self._rested, self._new = None, True, []

    def _fail(self, error: TielineError, what: Fault, move: Move) -> NoReturn:
        """Ends the turn: raises what is owed, else what it means, else the error itself."""
        debt = self._debt
        answered = self._kind is _Kind.ATTACH and what in (Fault.FINAL, Fault.BUSY)
        if move is Move.UNKNOWN:
            self._failure = _owed(error, what)
        elif debt is not None and not answered and not isinstance(error, type(debt)):
            self._failure = debt
        else:
            self._failure = error
        if self._request.store is False or what is not Fault.FINAL:
            self._forget()
        self._leave()
        if self._failure is error:
            raise error
        raise self._failure from error

    def _forget(self) -> None:
        """The server's side of the conversation is not known any more."""
        if self._leased is not None:
            self._leased.latest.pop(self.lane, None)
        self._history.forget()

    # Resting.

    def _saw(self, event: Event) -> None:
        self._attempts, self._debt = 0, None
        self._at_hold = isinstance(event, ResponseDone)
        number, held_at = event.sequence_number, self._held_at
        if isinstance(number, int) and (held_at is None or number > held_at):
            self._pending = None
        if isinstance(event, ResponseCreated):
            self._succeeded = self._begun not in (None, event.response.id)
            self._begun = event.response.id

    async def _goes_on(self) -> bool:
        """Whether there is more to read after all; else the turn rests, and is remembered."""
        stream = self._reading
        if self._rested or self._abandoned or self._failure is not None:
            return False
        if self._pending is not None and stream.held:
            await self._until(self._append_again)
            return True
        self._rest(held=stream.held)
        return False

    def _lost_at_hold(self, error: TielineError) -> bool:
        """Whether the connection was lost when all had been read: it matters with an append."""
        return self._at_hold and self._pending is None and isinstance(error, IncompleteStream)

    def _rest(self, *, held: bool) -> None:
        stream = self._reading
        response = stream._fold.response
        if self._succeeded:
            self._history.restart(response.id)
        else:
            cut = not held and response.status != "completed"
            self._history.rest(response.id, self._new, response.output[self._read :], cut=cut)
        self._new, self._read = [], len(response.output)
        self._held, self._held_at = held, stream.cursor
        self._rested, self._pending = True, None
        if self._leased is not None and self._attached:
            self._leased.latest.pop(self.lane, None)
        elif self._leased is not None:
            self._leased.latest[self.lane or None] = response.id
        if not self._held:
            self._leave()


def _give_back(pool: ConnectionPool, leased: Leased) -> None:
    # The collector may run in any thread, and after the loop has ended.
    if not pool.loop.is_closed():
        pool.loop.call_soon_threadsafe(pool.release, leased)


def _owed(error: TielineError, what: Fault) -> TielineError:
    """What an error means to the caller when nothing mends it."""
    if what is not Fault.LOST or isinstance(error, OutcomeUnknown):
        return error
    owed = OutcomeUnknown(str(error))
    owed.__cause__ = error
    return owed
