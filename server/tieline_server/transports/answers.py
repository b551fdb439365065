"""One request on a connection of its own: what calls that are no conversation share.

A refusal before ``response.created`` is the call's own status, never an event of a stream.
"""

import re
from collections.abc import Callable, Mapping
from typing import Final

from msgspec import UNSET, Struct, structs

from tieline import events
from tieline.errors import ERRORS, ApiError
from tieline.requests import Append, Create, Request
from tieline.responses import Response
from tieline_server.core.values import Caller, Principal
from tieline_server.transports.calls import RETRY_AFTER, LiveConnection


def internal_error() -> ApiError:
    """What a caller sees of a fault of ours."""
    return ApiError.of("server_error", "The server had an error while processing the request.")


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
            raise live.error or connection.error or internal_error()
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


REQUEST_ID: Final = "x-request-id"
CLIENT_REQUEST_ID: Final = "x-client-request-id"
"""The header in which clients of OpenAI name a request themselves."""

_ID: Final = re.compile(r"[A-Za-z0-9._:/+@-]{1,256}")
"""What an id of somebody else may be, so that it is one word in any log."""


def caller_of(
    headers: Mapping[str, str], *, new_id: Callable[[str], str], address: str | None
) -> Caller:
    """A call by its headers: a request id that came with it, from a proxy perhaps, is kept."""
    return Caller(
        request_id=_id_in(headers, REQUEST_ID) or new_id("req_"),
        client_request_id=_id_in(headers, CLIENT_REQUEST_ID),
        address=address or "",
    )


def _id_in(headers: Mapping[str, str], name: str) -> str | None:
    found = headers.get(name)
    return found if found is not None and _ID.fullmatch(found) else None


def known(authenticate: Callable[[], Principal], caller: Caller) -> Callable[[], Principal]:
    """What tells who asks, with the call by which that is asked."""

    def principal() -> Principal:
        found = authenticate()
        return Principal(owner=found.owner, models=found.models, caller=caller)

    return principal


def traced(request: Request, trace_context: dict[str, str] | None) -> Request:
    """The request with its connection's trace context, where it brings none of its own."""
    if trace_context is None or not isinstance(request, (Create, Append)):
        return request
    if request.trace_context:
        return request
    return structs.replace(request, trace_context=trace_context)
