"""Every error a caller can meet, in one table with its face on each transport.

A row gives the HTTP status (also the ``status`` of an in-band error event), OpenAI's error
``type``, the gRPC status code by number, and whether trying again can help. No other module
knows a status number. Codes and shapes follow OpenAI's API; rows without a counterpart there
are ours and are listed in docs/protocol.md.
"""

from typing import Final, NamedTuple, Self

DOMAIN: Final = "tieline"
"""The ``domain`` of every ``google.rpc.ErrorInfo`` that we send (AIP-193)."""


class Grpc:
    """gRPC status codes by number, so that this module needs no gRPC."""

    CANCELLED: Final = 1
    INVALID_ARGUMENT: Final = 3
    DEADLINE_EXCEEDED: Final = 4
    NOT_FOUND: Final = 5
    PERMISSION_DENIED: Final = 7
    RESOURCE_EXHAUSTED: Final = 8
    FAILED_PRECONDITION: Final = 9
    ABORTED: Final = 10
    INTERNAL: Final = 13
    UNAVAILABLE: Final = 14
    UNAUTHENTICATED: Final = 16


class Row(NamedTuple):
    """How one error code looks: HTTP status, OpenAI type, gRPC code, worth a retry."""

    status: int
    type: str
    grpc: int
    retryable: bool = False


_INVALID: Final = "invalid_request_error"
_BAD: Final = Row(400, _INVALID, Grpc.INVALID_ARGUMENT)
_LIMIT: Final = Row(429, "rate_limit_error", Grpc.RESOURCE_EXHAUSTED, retryable=True)
_DOWN: Final = Row(503, "service_unavailable_error", Grpc.UNAVAILABLE, retryable=True)

RESUMED_ELSEWHERE: Final = "resumed_elsewhere"
"""The code that a reader gets whose response another connection has resumed: both ends know it."""

ERRORS: Final[dict[str, Row]] = {
    # The request itself is wrong: the same request will fail again.
    "invalid_request": _BAD,
    "invalid_json": _BAD,
    "invalid_proto": _BAD,
    "invalid_event": _BAD,
    "invalid_type": _BAD,
    "invalid_value": _BAD,
    "invalid_input": _BAD,
    "invalid_prompt": _BAD,
    "invalid_encrypted_content": _BAD,
    "missing_required_parameter": _BAD,
    "unsupported_parameter": _BAD,
    "unsupported_value": _BAD,
    "integer_below_min_value": _BAD,
    "integer_above_max_value": _BAD,
    "decimal_below_min_value": _BAD,
    "decimal_above_max_value": _BAD,
    "string_above_max_length": _BAD,
    "empty_string": _BAD,
    "array_above_max_length": _BAD,
    "empty_array": _BAD,
    "invalid_stream_id": _BAD,
    "unknown_parameter": _BAD,
    "unsupported_tool": _BAD,
    "invalid_function_parameters": _BAD,
    "invalid_json_schema": _BAD,
    "tool_call_not_found": _BAD,
    "tool_output_missing": _BAD,
    "duplicate_item": _BAD,
    "item_not_found": _BAD,
    "context_length_exceeded": _BAD,
    "content_filter": _BAD,
    "steering_not_supported": _BAD,
    "nothing_to_append": _BAD,
    "not_resumable": _BAD,
    "not_cancellable": _BAD,
    "previous_response_not_found": Row(400, _INVALID, Grpc.NOT_FOUND),
    "websocket_connection_limit_reached": Row(400, _INVALID, Grpc.FAILED_PRECONDITION),
    "websocket_stream_limit_reached": Row(400, _INVALID, Grpc.RESOURCE_EXHAUSTED),
    # Who asks, and for what.
    "invalid_api_key": Row(401, "authentication_error", Grpc.UNAUTHENTICATED),
    "permission_denied": Row(403, "permission_error", Grpc.PERMISSION_DENIED),
    "model_not_allowed": Row(403, "permission_error", Grpc.PERMISSION_DENIED),
    "model_not_found": Row(404, _INVALID, Grpc.NOT_FOUND),
    "response_not_found": Row(404, _INVALID, Grpc.NOT_FOUND),
    # What HTTP alone can get wrong.
    "unknown_url": Row(404, _INVALID, Grpc.NOT_FOUND),
    "method_not_allowed": Row(405, _INVALID, Grpc.INVALID_ARGUMENT),
    "unsupported_media_type": Row(415, _INVALID, Grpc.INVALID_ARGUMENT),
    "upgrade_required": Row(426, _INVALID, Grpc.FAILED_PRECONDITION),
    # The state of the connection or of a turn is in the way.
    "lane_busy": Row(409, "conflict_error", Grpc.ABORTED),
    RESUMED_ELSEWHERE: Row(409, "conflict_error", Grpc.ABORTED),
    "idempotency_conflict": Row(409, "conflict_error", Grpc.ABORTED),
    "response_already_completed": Row(409, "conflict_error", Grpc.FAILED_PRECONDITION),
    "response_not_active": Row(409, "conflict_error", Grpc.FAILED_PRECONDITION),
    "request_too_large": Row(413, _INVALID, Grpc.RESOURCE_EXHAUSTED),
    "event_too_large": Row(413, _INVALID, Grpc.RESOURCE_EXHAUSTED),
    "answer_too_large": Row(413, _INVALID, Grpc.RESOURCE_EXHAUSTED),
    # Too much at once.
    "rate_limit_exceeded": _LIMIT,
    "queue_full": _LIMIT,
    "memory_limit_exceeded": _LIMIT,
    "too_many_connections": _LIMIT,
    "too_many_pending_steers": _LIMIT,
    "insufficient_quota": Row(429, "insufficient_quota", Grpc.RESOURCE_EXHAUSTED),
    "slow_consumer": Row(429, "rate_limit_error", Grpc.RESOURCE_EXHAUSTED),
    # Ends that neither side is to blame for.
    "cancelled": Row(499, "cancelled_error", Grpc.CANCELLED),
    "idle_timeout": Row(408, "timeout_error", Grpc.ABORTED, retryable=True),
    "deadline_exceeded": Row(504, "timeout_error", Grpc.DEADLINE_EXCEEDED),
    # Our side.
    "server_error": Row(500, "server_error", Grpc.INTERNAL, retryable=True),
    "successor_creation_failed": Row(500, "server_error", Grpc.INTERNAL),
    "server_draining": _DOWN,
    "server_is_overloaded": _DOWN,
    "slow_down": _DOWN,
    "engine_unavailable": _DOWN,
    "storage_unavailable": _DOWN,
}
"""Error code -> its face on every transport."""

BY_STATUS: Final[dict[int, str]] = {
    400: "invalid_request",
    401: "invalid_api_key",
    403: "permission_denied",
    404: "response_not_found",
    405: "method_not_allowed",
    408: "idle_timeout",
    409: "lane_busy",
    413: "request_too_large",
    415: "unsupported_media_type",
    426: "upgrade_required",
    429: "rate_limit_exceeded",
    499: "cancelled",
    500: "server_error",
    503: "server_is_overloaded",
    504: "deadline_exceeded",
}
"""The row that stands for a status whose code is not ours (an upstream's, a newer server's)."""

BY_GRPC: Final[dict[int, str]] = {
    Grpc.CANCELLED: "cancelled",
    Grpc.INVALID_ARGUMENT: "invalid_request",
    Grpc.DEADLINE_EXCEEDED: "deadline_exceeded",
    Grpc.NOT_FOUND: "response_not_found",
    Grpc.PERMISSION_DENIED: "permission_denied",
    Grpc.RESOURCE_EXHAUSTED: "rate_limit_exceeded",
    Grpc.FAILED_PRECONDITION: "response_not_active",
    Grpc.ABORTED: "lane_busy",
    Grpc.INTERNAL: "server_error",
    Grpc.UNAVAILABLE: "server_is_overloaded",
    Grpc.UNAUTHENTICATED: "invalid_api_key",
}
"""The row that stands for a bare gRPC status without ``ErrorInfo``."""


class TielineError(Exception):
    """Root of everything Tieline raises on purpose."""


class ApiError(TielineError):
    """An error that a server states: the same class whatever the transport.

    ``ApiError.of(code, message)`` builds the subclass of the code's status.

    >>> ApiError.of("model_not_found", "No model 'x'.").status
    404
    """

    def __init__(
        self,
        code: str,
        message: str,
        *,
        param: str | None = None,
        status: int | None = None,
        error_type: str | None = None,
        retry_after: float | None = None,
        request_id: str | None = None,
    ) -> None:
        super().__init__(message)
        row = ERRORS.get(code) or ERRORS[BY_STATUS.get(status or 400, "invalid_request")]
        self.code = code
        self.message = message
        self.param = param
        self.status: int = status or row.status
        self.type: str = error_type or row.type
        self.grpc: int = row.grpc
        self.retryable: bool = row.retryable
        self.retry_after = retry_after
        """Seconds to wait before a retry, or None where the server named none."""
        self.request_id = request_id

    @classmethod
    def of(
        cls,
        code: str,
        message: str,
        *,
        param: str | None = None,
        status: int | None = None,
        error_type: str | None = None,
        retry_after: float | None = None,
        request_id: str | None = None,
    ) -> "ApiError":
        """The error as the class of its status; a code outside the table keeps ``status``."""
        row = ERRORS.get(code)
        known = status or (row.status if row else 400)
        kind = _CLASSES.get(known, ServerError if known >= 500 else BadRequest)
        return kind(
            code,
            message,
            param=param,
            status=known,
            error_type=error_type,
            retry_after=retry_after,
            request_id=request_id,
        )

    def bare(self) -> Self:
        """This error without the frames that it was raised in, for what keeps it."""
        self.__traceback__ = self.__context__ = self.__cause__ = None
        return self


class BadRequest(ApiError):
    """400: the request is wrong and will fail again."""


class AuthenticationError(ApiError):
    """401: no key, or a key that is not known (any more)."""


class PermissionDenied(ApiError):
    """403: the key is known and may not do this."""


class NotFound(ApiError):
    """404: no such model or response, or not the caller's."""


class RequestTimeout(ApiError):
    """408: the peer was silent for too long."""


class Conflict(ApiError):
    """409: the state of the connection, lane or turn forbids it."""


class RequestTooLarge(ApiError):
    """413: past a stated size limit."""


class RateLimited(ApiError):
    """429: too much at once, or a quota is used up."""


class Cancelled(ApiError):
    """499: the caller gave up."""


class ServerError(ApiError):
    """500: our fault; the message is fixed text."""


class Unavailable(ApiError):
    """503: overloaded, draining, or the engine cannot be reached."""


class DeadlineExceeded(ApiError):
    """504: the call's own deadline passed."""


_CLASSES: Final[dict[int, type[ApiError]]] = {
    400: BadRequest,
    401: AuthenticationError,
    403: PermissionDenied,
    404: NotFound,
    408: RequestTimeout,
    409: Conflict,
    413: RequestTooLarge,
    429: RateLimited,
    499: Cancelled,
    500: ServerError,
    503: Unavailable,
    504: DeadlineExceeded,
}


def how_to_install(extras: str) -> str:
    """What installs extras of this distribution: no index has it, so its bare name is of no use.

    >>> how_to_install("cli")
    "pip install '.[cli]' in a checkout, or pip install 'tieline-X.whl[cli]' with a wheel's file"
    """
    wheel = f"pip install 'tieline-X.whl[{extras}]' with a wheel's file"
    return f"pip install '.[{extras}]' in a checkout, or {wheel}"
