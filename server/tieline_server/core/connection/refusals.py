"""What a connection says of a request that it cannot take: the errors that are no turn's own."""

from typing import Final

from msgspec import UNSET

from tieline import events, ids
from tieline.errors import ApiError
from tieline.requests import EVENT_ID, Cancel, Opaque, Request

AGED: Final = "This connection has reached its age limit. Create a new connection to continue."


def error_event(
    error: ApiError, event_id: str | None, stream_id: str | None, *, begins: bool
) -> events.ErrorEvent:
    """An error outside any response: number 0, and no echo of a bad name (wire.md 3.3).

    ``begins`` is true of a refused request that would have begun a turn, whose events come no more.
    """
    known = stream_id is not None and ids.is_stream_id(stream_id)
    if event_id is not None and len(event_id) > EVENT_ID:
        event_id = None
    kind = events.RequestRefused if begins else events.ErrorEvent
    return kind(
        sequence_number=0,
        stream_id=stream_id if known and stream_id is not None else UNSET,
        status=error.status,
        error=events.ErrorDetail.of(error, event_id),
    )


def unknown(request: Opaque) -> ApiError:
    """The error for a client event of a type that this server does not know."""
    return ApiError.of("invalid_event", f"Unknown event type '{request.name[:64]}'.")


def not_first() -> ApiError:
    """The error for a session start that came after something else."""
    return ApiError.of(
        "invalid_event",
        "A session start has to be the first message of its connection. Nothing has changed; "
        "connect again to state other settings.",
    )


def late(request: Request) -> ApiError:
    """The error for what came after the client's goodbye."""
    return ApiError.of("invalid_event", f"'{request.type}' came after the session's end.")


def draining() -> ApiError:
    """The error for what came after the server's goodbye."""
    return ApiError.of(
        "server_draining", "This server is about to stop; connect again.", retry_after=1.0
    )


def too_old() -> ApiError:
    """The error that ends a connection whose time is up (wire.md 1.1.6)."""
    return ApiError.of("websocket_connection_limit_reached", AGED)


def other_body() -> ApiError:
    """The error for a key that another request has used.

    See docs/protocol.md#when-a-connection-drops.
    """
    return ApiError.of(
        "idempotency_conflict",
        "This idempotency key was used with another request.",
        param="idempotency_key",
    )


def no_target(cancel: Cancel) -> ApiError:
    """The error for a cancel of what the connection never had."""
    named = cancel.response_id or cancel.event_id
    return ApiError.of(
        "response_not_found",
        f"Response with id '{named[:128]}' not found." if named else "Nothing runs on this lane.",
        param="response_id",
    )
