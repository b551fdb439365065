"""The RPCs that make responses, or read them as they are made.

Each drives one connection. ``Converse`` is a connection for as long as the client likes; the others
are a connection for one request, whose refusal is the call's status.
"""

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Final, Protocol, TypeVar

from google.protobuf.message import DecodeError, Message
from msgspec import structs

from tieline.codecs.proto import RequestDecoder, to_response, to_warning
from tieline.errors import ApiError
from tieline.events import Event
from tieline.requests import Create, Resume
from tieline.responses import Response
from tieline.v1 import service_pb2
from tieline_server.core.create.profile import Profile
from tieline_server.core.values import Principal
from tieline_server.runtime import ConnectionDriver, Services
from tieline_server.transports.grpc.admission import late
from tieline_server.transports.grpc.config import GrpcConfig
from tieline_server.transports.grpc.status import (
    TRANSPORT,
    Call,
    Context,
    abort,
)
from tieline_server.transports.grpc.stream import EventWriter, RequestReader, without_settings
from tieline_server.transports.live_calls import (
    REQUEST_ID,
    LiveCalls,
    LiveConnection,
    acknowledged,
    final_answer,
    first_event,
    profile_for,
)
from tieline_server.transports.stream import LEAST_BYTES, traced

M = TypeVar("M", bound=Message)
C = TypeVar("C", bound="CreateRequest")

CreateRequest = (
    service_pb2.StreamRequest
    | service_pb2.CreateRequest
    | service_pb2.CountInputTokensRequest
    | service_pb2.CompactRequest
)
"""A request message that wraps a create."""

ResponseAnswer = service_pb2.CreateResponse | service_pb2.GetResponse | service_pb2.CancelResponse
"""An answer that is a response."""

ANSWER_BYTES: Final = 4 * 1024 * 1024
"""What most stubs receive: an answer past it is lost, and its call is RESOURCE_EXHAUSTED."""


def parsed(kind: type[M], data: bytes) -> M:
    """The request of a call; raises :class:`ApiError` 400 ``invalid_proto``."""
    try:
        return kind.FromString(data)
    except DecodeError:
        name = kind.DESCRIPTOR.full_name
        raise ApiError.of("invalid_proto", f"The message is not a {name}.") from None


class CreateCalls:
    """Behaviours for the library; wrap each in ``guarded``."""

    def __init__(self, services: Services, config: GrpcConfig, calls: LiveCalls) -> None:
        self._services = services
        self._config = config
        self._calls = calls
        self.readers: set[asyncio.Task[None]] = set()
        """One for each Converse stream; it ends when the library ends its read."""

    async def connect(self, _: object, context: Context, call: Call) -> None:
        """One connection for the life of the stream."""
        _, authenticate = self._caller(call)
        connection = self._connection(authenticate)
        async with self._calls.opened(connection) as live:
            # At once: the client's own timer for the connection runs on it.
            await context.send_initial_metadata(((REQUEST_ID, call.request_id),))
            writer = EventWriter(context, connection, self._config)
            patience = self._config.first_message_timeout
            waiting = asyncio.get_running_loop().call_later(patience, live.end, late(patience))
            self._read(context, connection, writer, call, first=waiting.cancel)
            try:
                error = await writer.run()
            finally:
                waiting.cancel()
        if (error := live.error or error) is not None:
            await abort(context, error, call.request_id)

    async def stream(self, data: bytes, context: Context, call: Call) -> None:
        """One turn as events; what refuses it is the status."""
        principal, authenticate = self._caller(call)
        create, request = self._create(service_pb2.StreamRequest, data)
        connection = self._connection(authenticate, profile_for(self._services, create))
        async with self._calls.opened(connection) as live:
            self._ask(connection, create, len(data), call)
            first = await first_event(self._services, live, principal, create)
            await self._say(live, first, context, call, most=request.max_receive_bytes)

    async def create(self, data: bytes, context: Context, call: Call) -> bytes:
        """One turn, answered whole; a failed one is the status. A caller that leaves ends it.

        A response in the background is answered as soon as it is durable that it runs; its client
        need not stay.
        """
        principal, authenticate = self._caller(call)
        create, request = self._create(service_pb2.CreateRequest, data)
        connection = self._connection(authenticate, profile_for(self._services, create))
        async with self._calls.opened(connection) as live:
            self._ask(connection, create, len(data), call)
            if create.background:
                answer = await acknowledged(self._services, live, principal)
            else:
                answer = await final_answer(live)
        warnings = [to_warning(warning) for warning in answer.warnings]
        made = partial(service_pb2.CreateResponse, warnings=warnings)
        return whole(made, answer.response, receives(request))

    async def resume(self, data: bytes, context: Context, call: Call) -> None:
        """The events of a response that is made or was made elsewhere; leaving ends nothing."""
        principal, authenticate = self._caller(call)
        request = parsed(service_pb2.ResumeRequest, data)
        connection = self._connection(authenticate)
        after = request.after if request.HasField("after") else None
        if after is not None and after < 0:
            message = "Invalid 'after': expected an integer from 0."
            raise ApiError.of("integer_below_min_value", message, param="after")
        async with self._calls.opened(connection) as live:
            connection.read(Resume(response_id=request.response_id, after=after))
            connection.half_close()
            first = await first_event(self._services, live, principal, Create())
            await self._say(live, first, context, call, most=request.max_receive_bytes)

    async def _say(
        self, live: LiveConnection, first: Event, context: Context, call: Call, *, most: int
    ) -> None:
        """Sends what the connection says to its end; what refuses it is the status.

        ``most`` is what the client receives in one message, where it said so.
        """
        await context.send_initial_metadata(((REQUEST_ID, call.request_id),))
        writer = EventWriter(context, live.connection, self._config, first=first)
        if most:
            writer.receives(most)
        error = await writer.run()
        await live.connection.close()
        if (error := live.error or error) is not None:
            await abort(context, error, call.request_id)

    def _caller(self, call: Call) -> tuple[Principal, Callable[[], Principal]]:
        authenticate = self._services.keys.caller(call.authorization, call.caller)
        return authenticate(), authenticate

    def _connection(
        self, authenticate: Callable[[], Principal], profile: Profile | None = None
    ) -> ConnectionDriver:
        return ConnectionDriver(
            self._services,
            transport=TRANSPORT,
            authenticate=authenticate,
            merge=self._config.merge,
            profile=profile,
        )

    def _read(
        self,
        context: Context,
        connection: ConnectionDriver,
        writer: EventWriter,
        call: Call,
        *,
        first: Callable[[], object],
    ) -> None:
        reader = RequestReader(
            context,
            connection,
            writer,
            max_bytes=self._services.limits.message_bytes,
            trace_context=call.trace_context,
            first=first,
        )
        task = asyncio.create_task(reader.run())
        self.readers.add(task)
        task.add_done_callback(self.readers.discard)

    def _create(self, kind: type[C], data: bytes) -> tuple[Create, C]:
        create, request = read_create(kind, data, self._services.limits.message_bytes)
        if create.append:
            raise ApiError.of(
                "unsupported_parameter",
                "Unsupported parameter: 'append'. A held turn needs the Converse stream.",
                param="append",
            )
        return create, request

    def _ask(self, connection: ConnectionDriver, create: Create, size: int, call: Call) -> None:
        connection.work.decode += size
        connection.receive(traced(create, call.trace_context))
        connection.half_close()


def read_create(kind: type[C], data: bytes, max_bytes: int) -> tuple[Create, C]:
    """The create of a request of one turn, and the request.

    Raises :class:`ApiError` 400 or 413.
    """
    if len(data) > max_bytes:
        raise ApiError.of("request_too_large", f"The message is larger than {max_bytes} bytes.")
    message = parsed(kind, data)
    return RequestDecoder().create(message.response_create), message


class Limited(Protocol):
    """A request that may say how large an answer its client receives."""

    max_receive_bytes: int


def receives(request: Limited) -> int:
    """The largest answer that the client of a call receives."""
    return (
        max(request.max_receive_bytes, LEAST_BYTES) if request.max_receive_bytes else ANSWER_BYTES
    )


def fitting(size: int, most: int) -> None:
    """Refuses an answer of ``size`` bytes that its client would not receive; raises 413."""
    if size > most:
        raise ApiError.of(
            "answer_too_large",
            f"The answer has {size} bytes, the client receives {most}: ask again with a "
            f"'max_receive_bytes' of {size} or more, and a stub that takes as much.",
            param="max_receive_bytes",
        )


def whole(kind: Callable[..., ResponseAnswer], response: Response, most: int) -> bytes:
    """A response as the answer of a call, with no more in it than its client receives.

    The settings that it echoes go first, since the client has them; its output only where it
    must. That the turn was made and how it ended is always heard.
    """
    data = kind(response=to_response(response)).SerializeToString()
    if len(data) <= most:
        return data
    bare = without_settings(response)
    data = kind(response=to_response(bare), settings_omitted=True).SerializeToString()
    if len(data) <= most:
        return data
    empty = structs.replace(bare, output=())
    answer = kind(response=to_response(empty), settings_omitted=True, output_omitted=True)
    return answer.SerializeToString()
