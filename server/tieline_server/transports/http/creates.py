"""``POST /v1/responses``: one connection for one request, answered whole or as it comes."""

import asyncio
import re
from typing import Final

from aiohttp import web
from aiohttp.http_writer import StreamWriter
from msgspec import structs

from tieline import responses
from tieline.errors import ERRORS, ApiError
from tieline.requests import Create, Resume, SessionStart
from tieline_server.core.create.profile import unsupported
from tieline_server.core.values import Principal
from tieline_server.runtime import ConnectionDriver, Services
from tieline_server.transports._aiohttp import JoinedResponse
from tieline_server.transports.arrivals import Arrival
from tieline_server.transports.http.config import HttpConfig
from tieline_server.transports.http.request import Call, json_response, read_body
from tieline_server.transports.http.sse import EventStream
from tieline_server.transports.json_events import (
    HEADER,
    WARNINGS,
    EventJson,
    asked_for,
    told,
    warnings_header,
)
from tieline_server.transports.live_calls import (
    Answer,
    LiveCalls,
    LiveConnection,
    Warnings,
    acknowledged,
    final_answer,
    first_event,
    profile_for,
    warnings_of,
)
from tieline_server.transports.stream import Stuck, traced

TIMING: Final = frozenset({"timing"})
"""What the server asks of a connection for itself."""

STREAMED: Final = TIMING | {"warnings"}
"""What a reader of events may ask for."""

IDEMPOTENCY: Final = "Idempotency-Key"
"""The header that says of two creates that they are one."""

KEY: Final = re.compile(r"[!-~]{1,256}")

EVENT_STREAM: Final = {
    "Content-Type": "text/event-stream; charset=utf-8",
    "Cache-Control": "no-cache",
    # A proxy that buffers would hold back the first token.
    "X-Accel-Buffering": "no",
}


async def read_create(
    call: Call, services: Services, config: HttpConfig, *, owner: str
) -> tuple[Create, int]:
    """The create in a request's body, and the body's size; raises :class:`ApiError`.

    While it comes, its bytes are those of ``owner``.
    """

    def arrival(now: float) -> Arrival:
        return Arrival(services.incoming, owner, patience=config.read_timeout, started=now)

    body = await read_body(call.request, arrival, limit=services.limits.message_bytes)
    return call.create_reader.read(body), len(body)


class CreateCalls:
    """The handler of the route."""

    def __init__(self, services: Services, config: HttpConfig, calls: LiveCalls) -> None:
        self._services = services
        self._config = config
        self._calls = calls

    async def create(self, call: Call) -> web.StreamResponse:
        """One turn. A caller that leaves ends it; what refuses it is the status."""
        authenticate = self._services.keys.caller(call.authorization, call.caller)
        principal: Principal = authenticate()
        with self._calls.place(principal.owner):
            create, size = await read_create(
                call, self._services, self._config, owner=principal.owner
            )
            create = _keyed(_fit(create), call)
            connection = ConnectionDriver(
                self._services,
                transport="sse" if create.stream else "http",
                authenticate=authenticate,
                merge=self._config.merge,
                profile=profile_for(self._services, create),
                recall=call.create_reader.recall,
            )
            async with self._calls.opened(connection) as live:
                extensions = self._extensions(call, create)
                if extensions:
                    connection.receive(SessionStart(extensions=list(extensions)))
                connection.work.decode += size
                request = traced(create, call.trace_context)
                connection.receive(request)
                connection.half_close()
                if create.stream:
                    return await self._stream(call, live, principal, create, extensions)
                if create.background:
                    return _answered(await acknowledged(self._services, live, principal))
                return await _whole(call, live)

    async def resume(self, call: Call, after: int | None) -> web.StreamResponse:
        """The events of a response that is made or was made elsewhere; leaving ends nothing."""
        authenticate = self._services.keys.caller(call.authorization, call.caller)
        principal: Principal = authenticate()
        with self._calls.place(principal.owner):
            connection = ConnectionDriver(
                self._services, transport="sse", authenticate=authenticate
            )
            async with self._calls.opened(connection) as live:
                connection.read(Resume(response_id=call.name, after=after))
                connection.half_close()
                return await self._stream(call, live, principal, Create(), frozenset())

    def _extensions(self, call: Call, create: Create) -> frozenset[str]:
        if create.background:
            # Its times are known at its end alone.
            return frozenset()
        if not create.stream:
            return TIMING
        return STREAMED & asked_for(call.request.headers.getall(HEADER, []))

    async def _stream(
        self,
        call: Call,
        live: LiveConnection,
        principal: Principal,
        create: Create,
        extensions: frozenset[str],
    ) -> web.StreamResponse:
        first = await first_event(self._services, live, principal, create)
        response = JoinedResponse(headers=EVENT_STREAM)
        call.stamp(response, {"created": round(call.spent * 1000, 3)})
        _warn(response, warnings_of(first))
        writer = await response.prepare(call.request)
        assert isinstance(writer, StreamWriter), "a response that has just been made"
        profile = self._services.profile
        stream = EventStream(
            writer,
            live,
            EventJson(profile, extensions),
            first=first,
            joined=profile.joined_writes,
            heartbeat=self._config.heartbeat,
            write_timeout=self._config.write_timeout,
        )
        try:
            await stream.run()
        except Stuck:
            # Nothing more can be said to a reader that takes nothing.
            if call.request.transport is not None:
                call.request.transport.abort()
            raise asyncio.CancelledError from None
        await response.write_eof()
        return response


async def _whole(call: Call, live: LiveConnection) -> web.Response:
    try:
        answer = await final_answer(live)
    except ApiError as error:
        raise _known(error) from None
    response = _answered(answer)
    phases = {name: spent / 1000 for name, spent in answer.phases.items()}
    call.stamp(response, phases)
    return response


def _answered(answer: Answer) -> web.Response:
    response = json_response(responses.encode(told(answer.response)))
    _warn(response, answer.warnings)
    return response


def _warn(response: web.StreamResponse, warnings: Warnings) -> None:
    if warnings:
        response.headers[WARNINGS] = warnings_header(warnings)


def _known(error: ApiError) -> ApiError:
    """The error with a code of ours: an engine's own one says nothing to a JSON client."""
    if error.code in ERRORS:
        return error
    return ApiError.of("server_error", error.message, status=error.status)


def _fit(create: Create) -> Create:
    """A create that one request can carry; raises :class:`ApiError` where it needs a connection."""
    if create.append:
        raise unsupported("append")
    if create.generate is False:
        raise unsupported("generate")
    if create.stream_id is not None:
        raise unsupported("stream_id")
    return create


def _keyed(create: Create, call: Call) -> Create:
    """The create with the key that its header names; raises :class:`ApiError` 400."""
    given = call.request.headers.getall(IDEMPOTENCY, [])
    if not given:
        return create
    key, member = given[0], create.idempotency_key
    if len(given) > 1 or not KEY.fullmatch(key) or member not in (None, key):
        raise ApiError.of(
            "invalid_value",
            f"Invalid '{IDEMPOTENCY}': expected one key of 1 to 256 visible characters, the same "
            "as in the body where that has one.",
            param="idempotency_key",
        )
    return structs.replace(create, idempotency_key=key)
