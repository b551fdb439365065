"""``POST /v1/responses``: one line for one request, answered whole or as it comes."""

import asyncio
from functools import partial
from typing import Final

from aiohttp import web

from tieline import events, responses
from tieline.codecs.json import RequestDecoder
from tieline.errors import ERRORS, ApiError
from tieline.requests import Create, SessionStart
from tieline_server.core.profile import unsupported
from tieline_server.runtime import LineRuntime, Services
from tieline_server.transports.answers import error_of, final_answer, next_event, traced
from tieline_server.transports.calls import LiveCalls, LiveLine
from tieline_server.transports.http.body import read_body
from tieline_server.transports.http.call import Call
from tieline_server.transports.http.config import HttpConfig
from tieline_server.transports.http.errors import json_response
from tieline_server.transports.http.sse import EventResponse, EventStream
from tieline_server.transports.json_events import HEADER, EventJson, asked_for, told
from tieline_server.transports.pulse import Stuck

TIMING: Final = frozenset({"timing"})
"""What this door asks of a line for itself."""

EVENT_STREAM: Final = {
    "Content-Type": "text/event-stream; charset=utf-8",
    "Cache-Control": "no-cache",
    # A proxy that buffers would hold back the first token.
    "X-Accel-Buffering": "no",
}


async def read_create(call: Call, services: Services, config: HttpConfig) -> tuple[Create, int]:
    """The create in a request's body, and the body's size; raises :class:`ApiError`."""
    body = await read_body(
        call.request, limit=services.limits.message_bytes, patience=config.read_timeout
    )
    return RequestDecoder().create(body), len(body)


class CreateCalls:
    """The handler of the route."""

    def __init__(self, services: Services, config: HttpConfig, calls: LiveCalls) -> None:
        self._services = services
        self._config = config
        self._calls = calls

    async def create(self, call: Call) -> web.StreamResponse:
        """One turn. A caller that leaves ends it; what refuses it is the status."""
        authenticate = partial(self._services.keys.authenticate, call.authorization)
        authenticate()
        with self._calls.place():
            create, size = await read_create(call, self._services, self._config)
            create = _fit(create)
            line = LineRuntime(
                self._services,
                transport="sse" if create.stream else "http",
                authenticate=authenticate,
                merge=self._config.merge,
            )
            async with self._calls.opened(line) as live:
                extensions = self._extensions(call, create)
                if extensions:
                    line.receive(SessionStart(extensions=list(extensions)), size=0)
                line.work.decode += size
                request = traced(create, call.trace_context)
                line.receive(request, size=size)
                line.half_close()
                if create.stream:
                    return await self._stream(call, live, extensions)
                return await _whole(call, live)

    def _extensions(self, call: Call, create: Create) -> frozenset[str]:
        if not create.stream:
            return TIMING
        return TIMING & asked_for(call.request.headers.getall(HEADER, []))

    async def _stream(
        self, call: Call, live: LiveLine, extensions: frozenset[str]
    ) -> web.StreamResponse:
        first = await next_event(live)
        while isinstance(first, events.SessionStarted):
            first = await next_event(live)
        if isinstance(first, events.ErrorEvent):
            raise error_of(first)
        response = EventResponse(headers=EVENT_STREAM)
        call.stamp(response, {"created": round(call.spent * 1000, 3)})
        writer = await response.prepare(call.request)
        assert writer is not None, "a response that has just been made"
        profile = self._services.profile
        stream = EventStream(
            writer, live, EventJson(profile, extensions), joined=profile.joined_writes
        )
        try:
            await stream.run(
                first, heartbeat=self._config.heartbeat, write_timeout=self._config.write_timeout
            )
        except Stuck:
            # Nothing more can be said to a reader that takes nothing.
            if call.request.transport is not None:
                call.request.transport.abort()
            raise asyncio.CancelledError from None
        await response.write_eof()
        return response


async def _whole(call: Call, live: LiveLine) -> web.Response:
    try:
        answer = await final_answer(live)
    except ApiError as error:
        raise _known(error) from None
    response = json_response(responses.encode(told(answer.response)))
    phases = {name: spent / 1000 for name, spent in answer.phases.items()}
    call.stamp(response, phases)
    return response


def _known(error: ApiError) -> ApiError:
    """The error with a code of ours: an engine's own one says nothing to a JSON client."""
    if error.code in ERRORS:
        return error
    return ApiError.of("server_error", error.message, status=error.status)


def _fit(create: Create) -> Create:
    """A create as one request can carry it; raises :class:`ApiError` for what needs a line."""
    if create.append:
        raise unsupported("append")
    if create.generate is False:
        raise unsupported("generate")
    if create.stream_id is not None:
        raise unsupported("stream_id")
    return create
