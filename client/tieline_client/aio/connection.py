"""A connection and its lanes: one reader task, no queue without a bound."""

import asyncio
import secrets
import weakref
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Unpack

from msgspec import UNSET
from msgspec.structs import replace

from tieline import items
from tieline.errors import ApiError, TielineError
from tieline.events import ErrorEvent, Event, SessionGoingAway, SessionStarted
from tieline.ids import is_stream_id
from tieline.requests import ABSENT, Append, Cancel, Create, Request, Resume, Steer
from tieline_client import _connection, transports
from tieline_client._asks import Ask, Verdict
from tieline_client._connection import Loss
from tieline_client.aio.requests import Input, Settings, ToolChoice, to_create, to_json
from tieline_client.aio.stream import ResponseStream, to_error
from tieline_client.errors import ConnectionClosed, NotSent, TurnState
from tieline_client.transports import Endpoint, Options, Tls, Transport


@asynccontextmanager
async def connect(
    url: str,
    *,
    api_key: str | None = None,
    tls: Tls | None = None,
    options: Options | None = None,
) -> AsyncIterator["Connection"]:
    """Opens a connection for the body of an ``async with``.

    ``url`` is ``grpc://HOST:PORT``, ``ws://HOST:PORT`` or ``http://HOST:PORT``; with TLS
    ``grpcs://``, ``wss://`` or ``https://``. The last four may have a base path. A server that
    has no WebSocket (426) is spoken to over HTTP instead. Raises UnsupportedUrl, ConnectTimeout,
    ConnectionLost or :class:`tieline.errors.ApiError`.

    Over HTTP each create is a request of its own, sent when it is made: ``append`` and ``steer``
    raise :class:`tieline_client.errors.Unsupported`, a response with ``store=False`` cannot be
    continued by ``previous_response_id``, and one that is lost leaves the others alone.

    >>> async def ask(url: str) -> str:
    ...     async with connect(url) as connection:
    ...         stream = await connection.create(input="hello")
    ...         return (await stream.result()).text
    """
    connection = await Connection.open(url, api_key=api_key, tls=tls, options=options)
    try:
        yield connection
    finally:
        await connection.close()


class Connection:
    """One connection: its responses are remembered until it is closed.

    Creates on one lane are answered one after the other; lanes run side by side. Everything
    here must be called in the event loop that opened the connection.
    """

    def __init__(self, endpoint: Endpoint, transport: Transport) -> None:
        self._options = endpoint.options
        self._transport = transport
        self._core = _connection.Connection(f"{secrets.token_hex(4)}_")
        self._loop = asyncio.get_running_loop()
        self._streams: dict[Ask, weakref.ref[ResponseStream]] = {}
        self._full: set[Ask] = set()
        self._room = asyncio.Event()
        self._room.set()
        self._told = asyncio.Event()
        """Set when the server has told what it offers, and when it never will."""
        self._closed = False
        self._ended = False
        self._unsent = False
        """Whether a request could not be sent, so that the connection is lost."""
        self._lost: BaseException | None = None
        """Why the connection ended; while it lives, an error that the server addressed to it."""
        self.session: SessionStarted | None = None
        """What the server speaks and allows, once it has told."""
        self.going_away: SessionGoingAway | None = None
        """Set when the server is about to close the connection: send new work elsewhere."""
        self._reader = asyncio.create_task(self._read(), name="tieline-connection-reader")

    @classmethod
    async def open(
        cls,
        url: str,
        *,
        api_key: str | None = None,
        tls: Tls | None = None,
        options: Options | None = None,
    ) -> "Connection":
        """Opens a connection that its caller must close; :func:`connect` does it by itself."""
        endpoint = transports.endpoint(url, api_key=api_key, tls=tls, options=options or Options())
        return cls(endpoint, await transports.open_connection(endpoint))

    # Asking.

    async def create(
        self,
        input: Input | None = None,
        *,
        model: str | None = None,
        previous_response_id: str | None = None,
        **settings: Unpack[Settings],
    ) -> ResponseStream:
        """Asks for one response on the default lane; returns once the request is on its way.

        Raises :class:`ConnectionClosed` or :class:`ConnectionLost` when the connection is over, and
        RequestTooLarge for a request beyond what the server takes. What the server says comes
        in the iteration.
        """
        return await self._create(None, input, model, previous_response_id, settings)

    async def append(self, input: Input) -> ResponseStream:
        """Continues the default lane's latest response, with that response's own settings.

        Raises :class:`TurnState` when the lane holds a turn: ``stream.append`` answers that one.
        """
        return await self._continue(None, input)

    async def resume(self, response_id: str, *, after: int | None = None) -> ResponseStream:
        """Attaches again to a response that was made ``resumable``, or with a key.

        What comes are its events after number ``after`` (:attr:`ResponseStream.cursor`; without
        it, all), with the very numbers of the first time. The response and its chain move to
        the default lane of this connection, which must be free; over HTTP nothing moves. An earlier
        reader gets a :class:`tieline.errors.Conflict` of code ``resumed_elsewhere``.
        """
        return await self._resume(response_id, after=after, lane=None)

    async def cancel(self, response_id: str) -> None:
        """Ends a response by its id, wherever it runs; its stream, where one is, tells the end."""
        self._check_open()
        # Named, so that a refusal is not taken for that of another request.
        event_id = self._core.name("cancel")
        await self._transport.send(Cancel(event_id=event_id, response_id=response_id))

    async def extensions(self) -> frozenset[str]:
        """What the server offers beyond OpenAI's API; nothing, where it does not say in time.

        Raises :class:`NotSent` when it cannot be asked.
        """
        known = await self._transport.extensions()
        if known is not None:
            return known
        try:
            async with asyncio.timeout(self._options.connect_timeout):
                await self._told.wait()
        except TimeoutError:
            return frozenset()
        if self.session is None:
            raise NotSent("the connection is lost") from self._lost
        return frozenset(self.session.extensions)

    def lane(self, name: str) -> "Lane":
        """A named lane: 1 to 256 of letters, digits, ``_``, ``.``, ``-``; else ValueError."""
        if not is_stream_id(name):
            raise ValueError(f"{name!r} cannot name a lane")
        return Lane(self, name)

    @property
    def transport(self) -> str:
        """What carries the connection: grpc, websocket or sse."""
        return self._transport.name

    @property
    def extended(self) -> bool:
        """Whether members of ours may go with a create: a server without them could refuse."""
        return self._transport.extended

    @property
    def alive(self) -> bool:
        """Whether requests can be sent."""
        return not (self._closed or self._ended or self._unsent)

    async def close(self) -> None:
        """Ends the connection and every task of it, within ``close_timeout``.

        With nothing under way it says goodbye; what is under way is cancelled. Idempotent.
        """
        idle = not self._core.pending and self.alive
        self._closed = True
        self._room.set()
        try:
            if idle:
                async with asyncio.timeout(self._options.close_timeout):
                    await self._transport.finish()
                    await asyncio.wait((self._reader,))
        except TimeoutError:
            pass
        finally:
            # One that has ended is closing its transport, and must be let.
            if not self._ended:
                self._reader.cancel()
            await asyncio.wait((self._reader,))
            # A reader that was cancelled before its first step has ended nothing.
            if not self._ended:
                self._end("the connection was closed")
                await self._transport.close()

    async def _create(
        self,
        lane: str | None,
        input: Input | None,
        model: str | None,
        previous_response_id: str | None,
        settings: Settings,
    ) -> ResponseStream:
        request = to_create(
            lane=lane,
            input=input,
            model=model,
            previous_response_id=previous_response_id,
            settings=settings,
        )
        return await self._ask(request)

    async def _continue(self, lane: str | None, input: Input) -> ResponseStream:
        if self._core.held(lane) is not None:
            raise TurnState("append: the lane holds a turn; answer it with its stream's append")
        return await self._ask(Append(stream_id=lane, input=to_json(input)))

    async def _resume(
        self,
        response_id: str,
        *,
        after: int | None,
        lane: str | None,
        known: ResponseStream | None = None,
    ) -> ResponseStream:
        request = Resume(stream_id=lane, response_id=response_id, after=after)
        return await self._ask(request, known=known)

    async def _ask(
        self, request: Create | Append | Resume, *, known: ResponseStream | None = None
    ) -> ResponseStream:
        """Sends what opens a turn; ``known`` is the stream that a resumed one goes on from."""
        self._check_open()
        if isinstance(request, Resume):
            ask = self._attach(request.response_id or "", request.stream_id)
        else:
            ask = self._core.create(request.stream_id, event_id=request.event_id)
        merge = self._options.merge != "never"
        at = self._loop.time()
        stream = ResponseStream(self, ask, merge=merge, sent_at=at, known=known)
        self._streams[ask] = weakref.ref(stream, self._on_dropped(ask))
        try:
            await self._send(replace(request, event_id=ask.event_id))
        except BaseException:
            self._streams.pop(ask, None)
            self._core.withdraw(ask)
            raise
        return stream

    def _attach(self, response_id: str, lane: str | None) -> Ask:
        before = self._core.having(response_id, lane)
        stream = self._stream(before) if before is not None else None
        ask = self._core.resume(response_id, lane)
        if before is not None:
            self._abandon(before)
        if stream is not None:
            stream._lose("the response was resumed on the same lane", None)
        return ask

    async def _append(
        self,
        ask: Ask,
        outputs: Input,
        tool_choice: ToolChoice | None,
        *,
        repeats: bool = False,
    ) -> None:
        self._check_open()
        raw = to_json(outputs)
        answered = [item.answers for item in items.decode_input(raw) if item.answers]
        event_id = self._core.append(ask, repeats=repeats)
        stream = self._stream(ask)
        if stream is not None:
            stream._resumed(self._loop.time(), answered)
        request = Append(
            event_id=event_id,
            stream_id=ask.lane,
            response_id=ask.response_id,
            input=raw,
            tool_choice=ABSENT if tool_choice is None else to_json(tool_choice),
        )
        try:
            await self._send(request)
        except BaseException:
            self._core.withdraw(ask)
            if stream is not None:
                stream._held_again(self._loop.time())
            raise

    async def _steer(self, ask: Ask, input: Input) -> None:
        self._check_open()
        raw = to_json(input)
        response_id = self._core.steer(ask)
        request = Steer(stream_id=ask.lane, previous_response_id=response_id, input=raw)
        try:
            await self._transport.send(request)
        except BaseException:
            ask.steers.withdrawn()
            raise

    async def _cancel(self, ask: Ask) -> None:
        self._check_open()
        if not self._core.cancel(ask):
            return
        waits = ask.response_id is None
        await self._transport.send(
            Cancel(
                event_id=ask.event_id if waits else self._core.name("cancel"),
                stream_id=ask.lane,
                response_id=ask.response_id,
            )
        )

    async def _send(self, request: Request) -> None:
        """Sends what a caller waits for; raises :class:`NotSent` where it never leaves."""
        if not await self._transport.send(request):
            self._unsent = True
            raise NotSent("the connection is lost") from self._lost

    def _check_open(self) -> None:
        if self._closed:
            raise ConnectionClosed("the connection is closed")
        if self._ended:
            raise NotSent("the connection is lost") from self._lost

    # Reading.

    async def _read(self) -> None:
        """The only reader; ends the connection and all that is pending, whatever ends it."""
        reason = "the server ended the connection"
        try:
            while True:
                # Back-pressure: what is not read here fills the connection's window.
                await self._room.wait()
                events = await self._transport.receive()
                if not events:
                    break
                now = self._loop.time()
                for event in events:
                    if isinstance(event, Loss):
                        self._lose(event)
                    else:
                        self._dispatch(event, now)
        except TielineError as error:
            self._lost, reason = _fuller(self._lost, error), str(error)
        except asyncio.CancelledError as error:
            self._lost, reason = error, "the connection was closed"
            raise
        except Exception as error:
            self._lost, reason = error, "the client failed"
            raise
        finally:
            self._end(reason)
            await self._transport.close()

    def _dispatch(self, event: Event, now: float) -> None:
        delivery = self._core.receive(event)
        ask = delivery.ask
        if ask is None:
            self._notice(event)
            return
        stream = self._stream(ask)
        if stream is not None and delivery.verdict is not Verdict.DROP:
            stream._take(delivery.verdict, event, now)
        if ask.ended:
            self._streams.pop(ask, None)
            self._read_on(ask)

    def _notice(self, event: Event) -> None:
        if isinstance(event, SessionStarted):
            self.session = event
            self._told.set()
            if (limit := event.limits.get("max_message_bytes")) is not None:
                self._transport.limit(limit)
        elif isinstance(event, SessionGoingAway):
            self.going_away = event
        elif isinstance(event, ErrorEvent) and event.error.event_id is UNSET:
            # One that answers a request of ours, but late, says nothing about the connection.
            self._lost = to_error(event)

    def _lose(self, loss: Loss) -> None:
        refused = isinstance(loss.error, ApiError) and self._core.waits(loss.event_id)
        ask = self._core.lose(loss.event_id)
        if ask is None:
            return
        if (stream := self._stream(ask)) is not None:
            stream._lose(str(loss.error), loss.error, sent=loss.sent, refused=refused)
        self._abandon(ask)

    def _end(self, reason: str) -> None:
        self._ended = True
        self._told.set()
        self._core.lost()
        # Also the turn whose last event could not be handed over, and which has no ask any more.
        for ask in self._streams:
            if (stream := self._stream(ask)) is not None:
                stream._lose(reason, self._lost)
        self._streams.clear()

    def _stream(self, ask: Ask) -> ResponseStream | None:
        ref = self._streams.get(ask)
        return ref() if ref is not None else None

    def _hold_back(self, ask: Ask) -> None:
        self._full.add(ask)
        self._room.clear()

    def _read_on(self, ask: Ask) -> None:
        self._full.discard(ask)
        if not self._full:
            self._room.set()

    def _abandon(self, ask: Ask) -> None:
        """No reader is left for this turn: its events are dropped as they come."""
        self._streams.pop(ask, None)
        self._read_on(ask)

    def _on_dropped(self, ask: Ask) -> Callable[[object], None]:
        """What to do when a stream is garbage: it must not hold up the connection."""
        connection, loop = weakref.ref(self), self._loop

        def dropped(_: object) -> None:
            # The collector may run in any thread, and after the loop has ended.
            if (found := connection()) is not None and not loop.is_closed():
                loop.call_soon_threadsafe(found._abandon, ask)

        return dropped


def _fuller(stated: BaseException | None, end: TielineError) -> BaseException:
    """Why a connection ended: the event that said so, where the end only repeats its code."""
    same = isinstance(stated, ApiError) and isinstance(end, ApiError) and stated.code == end.code
    return stated if stated is not None and same else end


class Lane:
    """A named lane of a connection: its creates are answered one by one, beside other lanes."""

    def __init__(self, connection: Connection, name: str) -> None:
        self._connection = connection
        self.name = name

    async def create(
        self,
        input: Input | None = None,
        *,
        model: str | None = None,
        previous_response_id: str | None = None,
        **settings: Unpack[Settings],
    ) -> ResponseStream:
        """As :meth:`Connection.create`, on this lane."""
        return await self._connection._create(
            self.name, input, model, previous_response_id, settings
        )

    async def append(self, input: Input) -> ResponseStream:
        """As :meth:`Connection.append`, on this lane."""
        return await self._connection._continue(self.name, input)

    async def resume(self, response_id: str, *, after: int | None = None) -> ResponseStream:
        """As :meth:`Connection.resume`, to this lane."""
        return await self._connection._resume(response_id, after=after, lane=self.name)
