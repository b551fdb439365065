"""The HTTP transport: each create is a POST whose events come back as server-sent events.

A resume is a GET of the response, as a stream from a number on.

Nothing is sent before the first create, and nothing is remembered between two: a continuation
names its parent, which the server must have stored. Creates of one lane are sent one after the
other, lanes run side by side. Losing one POST ends one turn.

A turn hands over what one read of its socket gave and reads on when that was taken: a reader
that does not read stops the server, and no queue grows.
"""

import asyncio
from collections import deque
from collections.abc import Coroutine, Sequence
from contextlib import suppress
from typing import Any, Final, TypeVar
from urllib.parse import quote

import aiohttp
import msgspec
from aiohttp.abc import AbstractStreamWriter
from msgspec import UNSET, Struct
from msgspec.structs import replace

from tieline.errors import RESUMED_ELSEWHERE, ApiError, TielineError
from tieline.events import (
    ErrorEvent,
    Event,
    Heartbeat,
    LifecycleEvent,
    Opaque,
    ResponseCreated,
    ResponseDone,
    ResponseIncomplete,
    Timing,
)
from tieline.requests import ABSENT, Cancel, Create, Request, Resume
from tieline.responses import Response
from tieline_client._connection import Loss, check_id
from tieline_client.errors import ConnectionLost, NotSent, ProtocolViolation, Unsupported
from tieline_client.transports import web
from tieline_client.transports._aiohttp import Traffic
from tieline_client.transports.base import DEFAULT_LIMIT, Endpoint, proxy_of
from tieline_client.transports.event_stream import EventStream

T = TypeVar("T")

_DONE: Final = b"[DONE]"
_OVER: Final = "not_cancellable"
"""The code of a cancel that came too late: the end of the response is on its way."""
_LINGER: Final = 1.0
"""Seconds that a stream may take to close after its last event, so that its socket is kept."""
_MARGIN: Final = 64 * 1024
"""Connections read this much ahead of us at most; a larger window would only hold more unread."""

_ELSEWHERE: Final = frozenset(
    {"stream", "stream_id", "event_id", "trace_context", "idempotency_key", "append"}
)
"""Members of a create that HTTP has no place for in the body, or says in a header."""


async def open_connection(endpoint: Endpoint) -> "SseTransport":
    """A connection over ``http://`` or ``https://``; it connects with the first create."""
    traffic, proxy = Traffic(), proxy_of(endpoint)
    session = web.session(endpoint, traffic, proxy=proxy)
    return SseTransport(endpoint, session, traffic, web.request_options(endpoint, proxy))


_STREAMED: Final = {
    "accept": "text/event-stream",
    # What is compressed comes late.
    "accept-encoding": "identity",
}


class _Capabilities(Struct, frozen=True):
    """What is read of the server's own description."""

    extensions: dict[str, list[str]] = {}


class _Turn:
    """One create and the POST that carries it, or one resume and its GET."""

    __slots__ = (
        "body",
        "canceller",
        "ended",
        "number",
        "over",
        "request",
        "response",
        "taken",
        "task",
    )

    def __init__(self, request: Create | Resume, body: bytes = b"") -> None:
        self.request = request
        self.body = body
        self.task: asyncio.Task[None] | None = None
        self.canceller: asyncio.Task[None] | None = None
        self.response: Response | None = None
        """As the last lifecycle event had it; None before the first."""
        if isinstance(request, Resume):
            self.response = Response(id=request.response_id or "")
        self.number = -1
        """The last sequence number."""
        self.ended = False
        self.over = asyncio.Event()
        """Set when it has ended."""
        self.taken = asyncio.Event()
        """Set when what was handed over last has been received."""

    @property
    def event_id(self) -> str:
        """The name of the create on this side."""
        return self.request.event_id or ""

    def stamp(self, event: Event) -> Event:
        """The event as a connection has it: of this lane, and saying which create it answers."""
        lane = UNSET if self.request.stream_id is None else self.request.stream_id
        if event.stream_id != lane:
            event = replace(event, stream_id=lane)
        if isinstance(event, ResponseCreated):
            event = replace(event, event_id=self.event_id)
        elif isinstance(event, ErrorEvent):
            event = replace(event, error=replace(event.error, event_id=self.event_id))
        return event

    def note(self, event: Event) -> None:
        """Remembers what a cancel needs, and whether this is the end.

        Raises :class:`ProtocolViolation` for an event that cannot come there. It ends this turn
        alone, as the others have connections of their own.
        """
        self._check(event)
        if isinstance(event.sequence_number, int):
            self.number = event.sequence_number
        if isinstance(event, LifecycleEvent):
            self.response = event.response
            self.ended = event.TERMINAL
        elif isinstance(event, ErrorEvent):
            # After the start of a response, response.failed follows (wire.md 3.2.11).
            self.ended = self.response is None or event.error.code == RESUMED_ELSEWHERE

    def _check(self, event: Event) -> None:
        begun, asked = self.response is not None, isinstance(self.request, Create)
        match event:
            case ResponseCreated():
                wrong = begun and asked
            case ResponseDone():
                # Over HTTP one that is held elsewhere can be read, and none can be held.
                wrong = asked
            case ErrorEvent() | Heartbeat() | Opaque() | Timing():
                wrong = False
            case _:
                wrong = not begun
        if wrong:
            raise ProtocolViolation(f"the server sent {event.type} where it cannot come")
        if isinstance(event, LifecycleEvent):
            check_id(event, self.response.id if self.response is not None else None)

    def cancelled(self) -> Event:
        """The end that a server would have told, had it known how; its usage is not known."""
        assert self.response is not None
        response = replace(self.response, status="cancelled", output=[])
        return self.stamp(ResponseIncomplete(sequence_number=self.number + 1, response=response))


class _Batch(Struct, frozen=True):
    """What ``receive`` returns next, and whom to tell."""

    events: Sequence[Event | Loss]
    turn: _Turn | None = None


class SseTransport:
    """A connection of POSTs over kept connections."""

    name: Final = "sse"
    extended: Final = True
    """A key is a header here, which any server may ignore."""

    def __init__(
        self,
        endpoint: Endpoint,
        session: aiohttp.ClientSession,
        traffic: Traffic,
        requests: dict[str, Any],
    ) -> None:
        self._endpoint = endpoint
        self._address = endpoint.address
        self._url = web.responses_url(endpoint)
        # A redirect is not followed: the key is for the host that the caller named.
        self._how = {"allow_redirects": False, **requests}
        """What every request says of its connection."""
        self._options = endpoint.options
        self._session = session
        self._traffic = traffic
        self._limit = DEFAULT_LIMIT
        self._batches: asyncio.Queue[_Batch] = asyncio.Queue()
        self._lanes: dict[str | None, deque[_Turn]] = {}
        """The turns of each lane that have not ended; the first one is on its way."""
        self._tasks: set[asyncio.Task[Any]] = set()
        self._extensions: frozenset[str] | None = None

    async def extensions(self) -> frozenset[str]:
        """What ``GET /v1/capabilities`` lists for HTTP; nothing where there is no such path."""
        if self._extensions is None:
            try:
                async with asyncio.timeout(self._options.connect_timeout):
                    self._extensions = await self._capabilities()
            except (aiohttp.ClientError, OSError) as error:
                loss = web.loss(error, self._endpoint, heard=self._traffic.heard)
                raise NotSent(str(loss)) from loss.__cause__
            except (msgspec.MsgspecError, ValueError, RecursionError):
                self._extensions = frozenset()
        return self._extensions

    async def send(self, request: Request) -> bool:
        """Sends a create or a resume when its lane is free, or a cancel.

        Raises RequestTooLarge, and :class:`Unsupported` for what needs a connection of its own.
        """
        if isinstance(request, Cancel):
            self._cancel(request)
            return True
        if isinstance(request, Resume):
            self._queue(_Turn(request))
            return True
        if not isinstance(request, Create) or request.append:
            name = "append" if isinstance(request, Create) else request.type
            raise Unsupported(f"HTTP cannot carry {name}: use gRPC or WebSocket")
        body = _body(request)
        if len(body) > self._limit:
            raise ApiError.of(
                "request_too_large",
                f"The request has {len(body)} bytes; the server takes {self._limit}.",
            )
        self._queue(_Turn(request, body))
        return True

    async def receive(self) -> Sequence[Event | Loss]:
        """The next events of any turn; none after ``finish``."""
        batch = await self._batches.get()
        if batch.turn is not None:
            batch.turn.taken.set()
        return batch.events

    def limit(self, send_bytes: int) -> None:
        """The server takes bodies of at most this size."""
        self._limit = send_bytes

    async def finish(self) -> None:
        """Nothing more will be sent: the connection ends."""
        self._batches.put_nowait(_Batch(()))

    async def close(self) -> None:
        """Drops what is under way, which the server cancels, and all connections."""
        tasks = set(self._tasks)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        self._traffic.abort()
        await self._session.close()

    async def _capabilities(self) -> frozenset[str]:
        url = self._url.removesuffix("responses") + "capabilities"
        async with self._session.get(url, **self._how) as response:
            raw = await response.read() if response.status == 200 else b"{}"
        said = msgspec.json.decode(raw, type=_Capabilities)
        return frozenset(said.extensions.get("http", ()))

    # Turns.

    def _queue(self, turn: _Turn) -> None:
        waiting = self._lanes.setdefault(turn.request.stream_id, deque())
        waiting.append(turn)
        if len(waiting) == 1:
            self._start(turn)

    def _spawn(self, turn: _Turn, what: str) -> asyncio.Task[None]:
        work = self._run(turn) if what == "turn" else self._cancel_running(turn)
        return self._own(work, what)

    def _own(self, work: Coroutine[Any, Any, T], what: str) -> "asyncio.Task[T]":
        task = asyncio.create_task(work, name=f"tieline-sse-{what}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def _start(self, turn: _Turn) -> None:
        turn.task = self._spawn(turn, "turn")

    def _end(self, turn: _Turn) -> None:
        """The turn has ended, however: the next one of its lane goes. Idempotent."""
        if turn.over.is_set():
            return
        turn.ended = True
        turn.over.set()
        lane = turn.request.stream_id
        waiting = self._lanes[lane]
        first = waiting[0] is turn
        waiting.remove(turn)
        if not waiting:
            del self._lanes[lane]
        elif first:
            self._start(waiting[0])

    def _lose(self, turn: _Turn, error: TielineError, *, sent: bool = True) -> None:
        self._batches.put_nowait(_Batch((Loss(turn.event_id, error, sent=sent),)))
        self._end(turn)

    async def _run(self, turn: _Turn) -> None:
        """The POST of a turn, to its end; whatever happens, its reader is told."""
        try:
            response = await self._read(turn)
        except TielineError as error:
            self._lose(turn, error)
        except (aiohttp.ClientError, OSError) as error:
            loss = web.loss(error, self._endpoint, heard=self._traffic.heard)
            self._lose(turn, loss, sent=not web.never_sent(error))
        except Exception:
            self._lose(turn, ConnectionLost("the client failed"))
            raise
        else:
            self._end(turn)
            await _linger(response)

    async def _read(self, turn: _Turn) -> aiohttp.ClientResponse:
        """Reads up to the terminal event, which ends it well with or without ``[DONE]``."""
        response = await self._ask(turn.request, turn.body)
        try:
            if response.status != 200:
                raise await web.refusal(response, self._address)
            if response.content_type != "text/event-stream":
                raise ProtocolViolation(f"the server sent {response.content_type}, no events")
            stream = EventStream(self._options.max_receive_bytes)
            while not turn.ended:
                chunk = await response.content.readany()
                if not chunk:
                    raise ConnectionLost("the server ended the stream")
                await self._hand_over(turn, stream.feed(chunk))
        except BaseException:
            response.close()
            raise
        return response

    async def _ask(self, request: Create | Resume, body: bytes) -> aiohttp.ClientResponse:
        """Posts a create, or gets the rest of a response."""
        if isinstance(request, Create):
            return await self._session.post(
                self._url,
                data=_Body(body),
                headers=_headers(request),
                read_bufsize=_MARGIN,
                **self._how,
            )
        after = {} if request.after is None else {"starting_after": str(request.after)}
        return await self._session.get(
            f"{self._url}/{quote(request.response_id or '', safe='')}",
            params={"stream": "true", **after},
            headers=_STREAMED,
            read_bufsize=_MARGIN,
            **self._how,
        )

    async def _hand_over(self, turn: _Turn, data: Sequence[bytes]) -> None:
        """Gives the events to the reader and waits until it has taken them.

        Raises :class:`ProtocolViolation` for one that is none, behind those before it.
        """
        events: list[Event] = []
        violation: ProtocolViolation | None = None
        for raw in data:
            if raw == _DONE or turn.ended:
                break
            try:
                event = turn.stamp(web.decode(raw))
                turn.note(event)
            except ProtocolViolation as error:
                violation = error
                break
            events.append(event)
        if events:
            turn.taken.clear()
            self._batches.put_nowait(_Batch(events, turn))
            if turn.ended:
                # The lane is free; the reader gets these before anything of the next turn.
                self._end(turn)
                return
            await turn.taken.wait()
        if violation is not None:
            raise violation

    # Cancels.

    def _cancel(self, cancel: Cancel) -> None:
        turn = self._target(cancel)
        if turn is None and cancel.response_id is not None:
            # Of another connection, or of none any more.
            self._own(self._post_cancel(cancel.response_id), "cancel")
        if turn is None or turn.canceller is not None:
            return
        if turn.response is not None:
            turn.canceller = self._spawn(turn, "cancel")
            return
        # Nothing has been answered: without its connection the server gives it up as well.
        if turn.task is not None:
            turn.task.cancel()
        self._lose(turn, ApiError.of("cancelled", "The request was cancelled."))

    def _target(self, cancel: Cancel) -> _Turn | None:
        for turn in self._lanes.get(cancel.stream_id, ()):
            if cancel.response_id is not None:
                if turn.response is not None and turn.response.id == cancel.response_id:
                    return turn
            elif cancel.event_id in (None, turn.event_id):
                return turn
        return None

    async def _cancel_running(self, turn: _Turn) -> None:
        """Cancels by id, so that the stream tells the end with its usage; else closes it.

        Servers that know no such cancel give a turn up when its stream is closed (wire.md 7.8).
        """
        assert turn.response is not None
        with suppress(TimeoutError):
            async with asyncio.timeout(self._options.close_timeout):
                if await self._post_cancel(turn.response.id):
                    await turn.over.wait()
        if not turn.over.is_set():
            if turn.task is not None:
                turn.task.cancel()
            self._batches.put_nowait(_Batch((turn.cancelled(),)))
            self._end(turn)

    async def _post_cancel(self, response_id: str) -> bool:
        """Whether the server has cancelled it, or says that it had ended before."""
        url = f"{self._url}/{quote(response_id, safe='')}/cancel"
        with suppress(aiohttp.ClientError, OSError):
            async with (
                asyncio.timeout(self._options.close_timeout),
                self._session.post(url, **self._how) as response,
            ):
                if response.status == 200:
                    return True
                refused = await web.refusal(response, self._address)
                return isinstance(refused, ApiError) and refused.code == _OVER
        return False


async def _linger(response: aiohttp.ClientResponse) -> None:
    """Reads what follows the terminal event, so that the connection can carry the next turn."""
    try:
        async with asyncio.timeout(_LINGER):
            while await response.content.readany():
                pass
    except (aiohttp.ClientError, OSError):
        # Nothing is lost but the connection.
        pass
    finally:
        response.close()


class _Body(aiohttp.Payload):
    """A body in one piece: aiohttp's own warns above 1 MiB, and its others copy by threads."""

    def __init__(self, raw: bytes) -> None:
        super().__init__(raw, content_type="application/json")
        self._size = len(raw)

    def decode(self, encoding: str = "utf-8", errors: str = "strict") -> str:
        """The text of the body."""
        raw: bytes = self._value
        return raw.decode(encoding, errors)

    async def write(self, writer: AbstractStreamWriter) -> None:
        """Writes the body, waiting where the server does not take it."""
        await writer.write(self._value)


def _body(create: Create) -> bytes:
    """The create as ``POST /v1/responses`` has it."""
    members = {
        name: value
        for name in create.__struct_fields__
        if name not in _ELSEWHERE
        and (value := getattr(create, name)) is not None
        and value is not UNSET
        and value != ABSENT
    }
    return msgspec.json.encode({**members, "stream": True})


def _headers(create: Create) -> dict[str, str]:
    key = {"idempotency-key": create.idempotency_key} if create.idempotency_key else {}
    return {
        **_STREAMED,
        **(create.trace_context or {}),
        **key,
    }
