"""Our errors as ``google.rpc.Status``, and back (AIP-193).

Every status carries ``ErrorInfo``; ``RetryInfo`` where a wait is known and ``BadRequest`` where
one member is to blame. The metadata keep what the gRPC code alone would lose.
"""

import re
from typing import Final

from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import DecodeError, Message
from google.rpc.error_details_pb2 import BadRequest, ErrorInfo, RetryInfo
from google.rpc.status_pb2 import Status

from tieline.errors import BY_GRPC, DOMAIN, ERRORS, ApiError, Grpc

MAX_TEXT: Final = 1024
"""Characters of a message in a status: trailers above 8 KiB may be refused on their way."""

MAX_PARAM: Final = 256
"""Characters of the member at fault where ``BadRequest`` is not the place for it."""

_NOT_REASON: Final = re.compile(r"[^A-Z0-9]+")


def error_status(error: ApiError, request_id: str | None = None) -> Status:
    """The error as a status with details.

    >>> error_status(ApiError.of("model_not_found", "No model 'x'.")).code
    5
    """
    status = Status(code=error.grpc, message=error.message[:MAX_TEXT])
    metadata = {"code": error.code[:64], "status": str(error.status), "type": error.type[:64]}
    if request_id or error.request_id:
        metadata["request_id"] = request_id or error.request_id or ""
    # ``BadRequest`` is for arguments that are wrong whatever the server has.
    bad = error.param if error.grpc == Grpc.INVALID_ARGUMENT else None
    if error.param is not None and bad is None:
        metadata["param"] = error.param[:MAX_PARAM]
    reason = _NOT_REASON.sub("_", error.code.upper()).strip("_")[:63]
    status.details.add().Pack(ErrorInfo(reason=reason, domain=DOMAIN, metadata=metadata))
    if error.retry_after is not None:
        delay = Duration()
        delay.FromMilliseconds(round(error.retry_after * 1000))
        status.details.add().Pack(RetryInfo(retry_delay=delay))
    if bad is not None:
        violation = BadRequest.FieldViolation(field=bad[:MAX_TEXT], description=status.message)
        status.details.add().Pack(BadRequest(field_violations=[violation]))
    return status


def error_of_status(status: Status) -> ApiError:
    """The error that a status states; without our details, the row of its gRPC code.

    >>> error_of_status(Status(code=14, message="gone")).code
    'server_is_overloaded'
    """
    info, retry, bad = ErrorInfo(), RetryInfo(), BadRequest()
    for detail in status.details:
        for known in (info, retry, bad):
            if detail.TypeName() == known.DESCRIPTOR.full_name:
                _unpack(detail.value, known)
    row = BY_GRPC.get(status.code, "server_error")
    if info.domain == DOMAIN:
        row = info.metadata.get("code") or info.reason.lower() or row
    http = info.metadata.get("status", "")
    known_status = int(http) if http.isascii() and http.isdigit() else None
    delay = retry.retry_delay.ToMilliseconds() / 1000 if retry.HasField("retry_delay") else None
    violations = bad.field_violations
    return ApiError.of(
        row,
        status.message,
        param=violations[0].field if violations else info.metadata.get("param") or None,
        status=known_status if row not in ERRORS else None,
        error_type=info.metadata.get("type") or None,
        retry_after=delay,
        request_id=info.metadata.get("request_id") or None,
    )


def _unpack(value: bytes, into: Message) -> None:
    try:
        into.ParseFromString(value)
    except DecodeError:
        into.Clear()
