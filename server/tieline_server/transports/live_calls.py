"""The calls of a server: who makes one, how many there may be, and what one is answered with.

A call that is no conversation is one request on a connection of its own. A refusal before
``response.created`` is the call's own status, never an event of a stream. A response in the
background is stored before its client hears of it, and the client need not stay.
"""

import asyncio
import re
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from typing import Final

from msgspec import UNSET, Struct, structs

from tieline import events
from tieline.errors import ERRORS, ApiError
from tieline.requests import Create
from tieline.responses import Response
from tieline_server.capacity import Capacity, LocalCapacity
from tieline_server.core.create.limits import Share
from tieline_server.core.create.profile import Profile
from tieline_server.core.values import Caller, Principal
from tieline_server.runtime import ConnectionDriver, Services, lasts, server_error
from tieline_server.transports.response_lookup import find

REQUEST_ID: Final = "x-request-id"
"""The header, and the key of metadata, that names a call."""

CLIENT_REQUEST_ID: Final = "x-client-request-id"
"""The header in which clients of OpenAI name a request themselves."""

TRACE_HEADERS: Final = ("traceparent", "tracestate", "baggage")
"""The W3C headers of a trace context, which are keys of gRPC's metadata as well."""

_ID: Final = re.compile(r"[A-Za-z0-9._:/+@-]{1,256}")
"""What an id that a client chose may be, so that it is one word in any log."""


def caller_of(
    headers: Mapping[str, str], *, new_id: Callable[[str], str], address: str | None
) -> Caller:
    """A call by its headers: a request id that came with it, from a proxy perhaps, is kept."""
    return Caller(
        request_id=_id_in(headers, REQUEST_ID) or new_id("req_"),
        client_request_id=_id_in(headers, CLIENT_REQUEST_ID),
        address=address or "",
    )


def trace_context_of(headers: Mapping[str, str]) -> dict[str, str] | None:
    """The trace context that some headers carry, or None where they have none."""
    if "traceparent" not in headers:
        return None
    return {name: headers[name] for name in TRACE_HEADERS if name in headers}


def _id_in(headers: Mapping[str, str], name: str) -> str | None:
    found = headers.get(name)
    return found if found is not None and _ID.fullmatch(found) else None


RETRY_AFTER: Final = 1.0
"""Seconds after which another server, or this one, may well have room."""


FAREWELL: Final = 1.0
"""Seconds that a connection's last events have to leave once its time to drain is over."""


class LiveConnection:
    """The connection of one call while it is open."""

    __slots__ = ("connection", "error")

    def __init__(self, connection: ConnectionDriver) -> None:
        self.connection = connection
        self.error: ApiError | None = None
        """Why the server ended it, or None."""

    def end(self, error: ApiError) -> None:
        """Ends the connection now, whatever runs on it; the call ends with ``error``."""
        self.error = error
        self.connection.drop()


class LiveCalls:
    """Counts calls against ``most``, or those of several processes by ``capacity``.

    ``share`` bounds those of one owner in this process. It knows the connections of its own.
    """

    def __init__(
        self, most: int, capacity: Capacity | None = None, *, share: Share | None = None
    ) -> None:
        self._capacity = capacity or LocalCapacity(most)
        self._share = share or Share()
        self._count = 0
        self._connections: set[LiveConnection] = set()
        self._draining = False
        self._empty = asyncio.Event()
        self._empty.set()

    def __len__(self) -> int:
        return self._count

    @contextmanager
    def place(self, owner: str, *, begins: bool = True) -> Iterator[None]:
        """A place for one call of ``owner``, held to its very end; raises :class:`ApiError`.

        429 where the owner or all together have as many as they may, 503 while draining where
        the call ``begins`` something.

        A caller that does not even take its error keeps its place: what it holds is bounded.
        """
        if self._draining and begins:
            raise draining()
        if not self._share.take(owner):
            raise _too_many(f"This key's owner already has {self._share.each} calls open.")
        if not self._capacity.take():
            self._share.give_back(owner)
            raise _too_many(f"This server already has {self._capacity.most} calls open.")
        self._count += 1
        try:
            yield
        finally:
            self._count -= 1
            self._capacity.give_back()
            self._share.give_back(owner)

    @asynccontextmanager
    async def opened(self, connection: ConnectionDriver) -> AsyncIterator[LiveConnection]:
        """Keeps a connection's place among the living, and ends the connection in any case."""
        live = LiveConnection(connection)
        self._connections.add(live)
        self._empty.clear()
        try:
            yield live
        finally:
            try:
                if not connection.closed:
                    connection.drop()
                await connection.close()
            finally:
                self._connections.discard(live)
                if not self._connections:
                    self._empty.set()

    async def empty(self) -> None:
        """Returns when no connection is open."""
        await self._empty.wait()

    async def drain(self, seconds: float) -> None:
        """Refuses new calls, tells every connection, and waits until they have ended.

        After ``seconds`` a connection ends its turns by itself, with what they have. One that still
        has not said all of it after ``FAREWELL`` ends with ``server_draining``.
        """
        self._draining = True
        for live in list(self._connections):
            live.connection.drain(seconds)
        try:
            async with asyncio.timeout(seconds + FAREWELL):
                await self.empty()
        except TimeoutError:
            for live in list(self._connections):
                live.end(draining())


def _too_many(message: str) -> ApiError:
    return ApiError.of("too_many_connections", message, retry_after=RETRY_AFTER)


def draining() -> ApiError:
    """What a caller sees of a server that is about to stop."""
    return ApiError.of("server_draining", "The server is shutting down.", retry_after=RETRY_AFTER)


def error_of(event: events.ErrorEvent) -> ApiError:
    """The in-band error as the exception that ends a call of one request."""
    detail = event.error
    return ApiError.of(
        detail.code or "server_error",
        detail.message,
        param=detail.param,
        status=event.status or None,
        error_type=detail.type,
        retry_after=detail.retry_after or None,
    )


async def next_event(live: LiveConnection) -> events.Event:
    """The next event of a connection; raises the error that closed it."""
    connection = live.connection
    while (event := connection.next_event()) is None:
        if connection.closed:
            raise live.error or connection.error or server_error()
        await connection.wait()
    return event


Warnings = tuple[events.RequestWarning, ...]


class Answer(Struct, frozen=True):
    """A response, its phases where the connection was asked for timing, and what was ignored."""

    response: Response
    phases: dict[str, int] = {}
    warnings: Warnings = ()


async def final_answer(live: LiveConnection) -> Answer:
    """The response as its terminal event has it; raises the error that came instead."""
    phases: dict[str, int] = {}
    warnings: Warnings = ()
    while True:
        event = await next_event(live)
        if isinstance(event, events.ErrorEvent):
            raise error_of(event)
        if isinstance(event, events.Timing):
            phases = event.phases
        warnings = warnings or warnings_of(event)
        if isinstance(event, events.LifecycleEvent) and event.TERMINAL:
            return Answer(_whole(event.response), phases, warnings)


def warnings_of(event: events.Event) -> Warnings:
    """What is ignored of the create that this event answers."""
    if isinstance(event, events.ResponseCreated) and event.warnings is not UNSET:
        return event.warnings
    return ()


def _whole(response: Response) -> Response:
    failure = response.error
    if response.status == "failed" and failure is not None:
        row = ERRORS.get(failure.code)
        raise ApiError.of(
            failure.code,
            failure.message,
            status=500 if row is None else None,
            retry_after=RETRY_AFTER if row is not None and row.status == 503 else None,
        )
    return response


def profile_for(services: Services, create: Create) -> Profile:
    """The server's profile, for a call that may be in the background: a connection may not be."""
    profile = services.profile
    return structs.replace(profile, background=True) if create.background else profile


async def first_event(
    services: Services, live: LiveConnection, principal: Principal, create: Create
) -> events.Event:
    """The first event of the response; one in the background is stored before.

    Raises what refuses it.
    """
    first = await _first(live)
    if create.background and isinstance(first, events.LifecycleEvent):
        await _lasting(services, principal.owner, first.response)
    return first


async def acknowledged(services: Services, live: LiveConnection, principal: Principal) -> Answer:
    """The response in the background as it stands: queued, or later where a key replays it."""
    first = await _first(live)
    assert isinstance(first, events.LifecycleEvent), "a response begins with its own"
    response, owner = first.response, principal.owner
    fresh = live.connection.runs(response.id or "")
    await _lasting(services, owner, response)
    now = response if fresh else await find(services, owner, response.id or "")
    return Answer(now, warnings=warnings_of(first))


async def _first(live: LiveConnection) -> events.Event:
    first = await next_event(live)
    while isinstance(first, events.SessionStarted):
        first = await next_event(live)
    if isinstance(first, events.ErrorEvent):
        raise error_of(first)
    return first


async def _lasting(services: Services, owner: str, response: Response) -> None:
    response_id = response.id or ""
    kept = services.running.logs.find(owner, response_id)
    if kept is not None and not await lasts(kept):
        services.running.cancel(owner, response_id)
        raise server_error()
