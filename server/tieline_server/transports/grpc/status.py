"""What ends an RPC that cannot go on: errors as gRPC status with details, and what never leaks.

Errors of one request stay in-band while a stream can live (docs/protocol.md#errors). Only what
ends an RPC passes here.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any, Final, NoReturn
from urllib.parse import unquote

import grpc
from msgspec import Struct

from tieline.codecs.proto import error_status
from tieline.errors import ApiError
from tieline.ids import IdSource
from tieline_server.core.values import Caller
from tieline_server.garbage_collection import forget_frames
from tieline_server.runtime import Services, server_error
from tieline_server.transports.live_calls import REQUEST_ID, caller_of, trace_context_of

Context = grpc.aio.ServicerContext[bytes, bytes]
Behaviour = Callable[[Any, Context, "Call"], Awaitable[bytes | None]]
Handler = Callable[[Any, Context], Awaitable[bytes | None]]

TRANSPORT: Final = "grpc"
"""What this transport is called in logs and metrics."""

MESSAGE_BYTES: Final = 512
"""What an error's text may take in a status.

Metadata past 8 KiB is refused by some peers, past 16 KiB by all, and then the caller sees a
RESOURCE_EXHAUSTED of the library in place of the error. The text goes twice, percent-encoded.
"""

_CODES: Final = {code.value[0]: code for code in grpc.StatusCode}
_log: Final = logging.getLogger(__name__)


class Call(Struct, frozen=True, kw_only=True):
    """One RPC: its id, and what its metadata says."""

    caller: Caller
    authorization: str | None = None
    trace_context: dict[str, str] | None = None

    @property
    def request_id(self) -> str:
        """Its id, in the metadata and in the log."""
        return self.caller.request_id


def open_call(context: Context, ids: IdSource) -> Call:
    """Reads the metadata of an RPC that begins, and puts its id into the trailing metadata."""
    metadata = {
        key: value for key, value in context.invocation_metadata() or () if isinstance(value, str)
    }
    caller = caller_of(metadata, new_id=ids.new, address=address_of(context.peer()))
    context.set_trailing_metadata(((REQUEST_ID, caller.request_id),))
    return Call(
        caller=caller,
        authorization=metadata.get("authorization"),
        trace_context=trace_context_of(metadata),
    )


def guarded(behaviour: Behaviour, services: Services) -> Handler:
    """A handler for the library: however ``behaviour`` ends, the caller sees a typed status.

    ``behaviour`` raises :class:`ApiError` for what the caller should know. Anything else that it
    raises is our fault: it is logged, and the caller sees a fixed text and the request's id.
    """

    async def handle(request: Any, context: Context) -> bytes | None:
        try:
            call = open_call(context, services.ids)
            return await _behave(behaviour, request, context, call, services)
        except grpc.aio.AbortError as error:
            # The library keeps the error with the call.
            forget_frames(error)
            del request, context
            raise

    return handle


async def _behave(
    behaviour: Behaviour, request: Any, context: Context, call: Call, services: Services
) -> bytes | None:
    try:
        return await behaviour(request, context, call)
    except grpc.aio.AbortError:
        raise  # An ordinary Exception: any other answer would replace the status sent.
    except grpc.aio.InternalError as error:
        # A batch that failed because the peer is gone; the library has no better name.
        raise asyncio.CancelledError from error
    except ApiError as error:
        await services.refused(error, call.caller.address, TRANSPORT)
        await abort(context, error, call.request_id)
    except Exception:
        _log.exception("rpc failed, request %s", call.request_id)
        await abort(context, server_error(), call.request_id)


def address_of(peer: str) -> str:
    """The address in the library's name for a peer, without its port.

    >>> address_of("ipv4:127.0.0.1:50051"), address_of("ipv6:%5B::1%5D:50051")
    ('127.0.0.1', '::1')
    """
    kind, _, rest = unquote(peer).partition(":")
    return rest.rpartition(":")[0].strip("[]") if kind in ("ipv4", "ipv6") else kind


async def abort(context: Context, error: ApiError, request_id: str) -> NoReturn:
    """Ends the RPC with the error as its status; ErrorInfo and its like travel as details."""
    status = error_status(_clipped(error), request_id)
    await context.abort(
        _CODES.get(status.code, grpc.StatusCode.UNKNOWN),
        status.message,
        trailing_metadata=(
            (REQUEST_ID, request_id),
            ("grpc-status-details-bin", status.SerializeToString()),
        ),
    )


def _clipped(error: ApiError) -> ApiError:
    return ApiError.of(
        error.code[:64],
        _clip(error.message),
        param=_clip(error.param) if error.param else None,
        status=error.status,
        error_type=error.type,
        retry_after=error.retry_after,
    )


def _clip(text: str) -> str:
    data = text.encode("utf-8", "replace")
    if len(data) <= MESSAGE_BYTES:
        return data.decode()
    return data[:MESSAGE_BYTES].decode("utf-8", "ignore") + "..."
