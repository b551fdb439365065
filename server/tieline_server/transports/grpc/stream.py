"""The two ends of a stream of events: one writer, and for ``Connect`` one reader beside it.

Rules of grpc.aio that shape this file. Two writes at once lose a message, so the coroutine of
the RPC is the only writer. A read that is cancelled takes a message, or the whole call, with it,
so the reader is a task of its own, never under a timeout: it ends by itself when the call does.
End of stream is ambiguous until then: a half-close lets running turns end, a lost peer shows as
a cancellation of the writer right after it.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Final

import grpc
import msgspec
from google.protobuf.message import DecodeError

from tieline import events
from tieline.codecs.proto import EventEncoder, RequestDecoder
from tieline.codecs.proto.frames import repeated
from tieline.errors import ApiError
from tieline.ids import is_stream_id
from tieline.requests import MEMBERS, Request, SessionStart, Trait
from tieline.responses import Response
from tieline.v1 import line_pb2
from tieline_server.runtime import ConnectionDriver, server_error
from tieline_server.transports.grpc.config import GrpcConfig
from tieline_server.transports.grpc.status import Context
from tieline_server.transports.stream import Batches, Stuck, WriterTimer, traced

WRITE_BYTES: Final = 256 * 1024
"""Where a message of gathered events closes: lanes take turns, and most stubs receive 4 MiB."""

EVENT_BYTES: Final = 3 * 1024 * 1024
"""What one event may take unless SessionStart says what the client can receive."""

LEAST_BYTES: Final = 16 * 1024
"""A smaller ``max_receive_bytes`` is read as this: errors and greetings must fit."""

BACKLOG: Final = 64
"""Messages taken from a client that takes none: the next one waits for the stuck write."""

_log: Final = logging.getLogger(__name__)


class EventWriter:
    """The only writer of one stream: it sends the events of a connection, gathered into messages.

    What gathers while a write is in flight leaves together in the next one. Made and run by the
    coroutine of the RPC.
    """

    def __init__(
        self,
        context: Context,
        connection: ConnectionDriver,
        config: GrpcConfig,
        *,
        first: events.Event | None = None,
    ) -> None:
        self._context = context
        self._connection = connection
        self._work = connection.work
        self._encoder = EventEncoder()
        self._timer = WriterTimer(heartbeat=config.heartbeat, write_timeout=config.write_timeout)
        self._event_bytes = EVENT_BYTES
        given = () if first is None else (first,)
        self._batches = Batches(connection, self._encode, most=WRITE_BYTES, first=given)
        self._caught_up: asyncio.Event | None = None

    @property
    def writing(self) -> bool:
        """Whether a write is in flight."""
        return self._timer.writing

    def receives(self, max_receive_bytes: int) -> None:
        """The client said how large a message it can take."""
        self._event_bytes = max(max_receive_bytes, LEAST_BYTES)
        self._batches.most = min(WRITE_BYTES, self._event_bytes)

    async def caught_up(self) -> None:
        """Waits until the write in flight is done, or the stream is."""
        if self.writing:
            self._caught_up = self._caught_up or asyncio.Event()
            await self._caught_up.wait()

    async def run(self) -> ApiError | None:
        """Writes until the connection has closed; returns the error that closed it, or None.

        A write that is stuck for ``write_timeout`` is such an error. Cancelled when the peer is
        gone.
        """
        try:
            await self._pump()
        except Stuck:
            return ApiError.of("slow_consumer", "Events were not taken in time.")
        finally:
            self._timer.stop()
            self._batches.close()
            self._written()
        return self._connection.error

    def _written(self) -> None:
        self._timer.end()
        if self._caught_up is not None:
            self._caught_up.set()
            self._caught_up = None

    async def _pump(self) -> None:
        beat = b""
        while True:
            try:
                # Encoded events, concatenated, are one message (proto3 encoding).
                if message := beat or self._batches.next():
                    beat = b""
                    self._timer.begin()
                    await self._context.write(message)
                    self._written()
                if self._batches.empty:
                    if self._connection.closed:
                        return
                    await self._connection.wait()
            except asyncio.CancelledError:
                if not self._timer.fired():
                    raise
                if self._timer.writing:
                    raise Stuck from None
                beat = self._heartbeat()

    def _encode(self, taken: Sequence[events.Event]) -> list[bytes]:
        message, most = self._encoder.encode_all(taken), self._event_bytes
        self._work.encode = self._encoder.work
        if len(message) <= min(most, WRITE_BYTES):
            return [message]
        return [
            frame if len(frame) <= most else self._shrink(event)
            for frame, event in zip(repeated(message), taken, strict=True)
        ]

    def _shrink(self, event: events.Event) -> bytes:
        """An event that the client cannot receive, without what it can do without, or an error.

        A response's items have come one by one, and its settings are the client's own; but that
        it began and how it ended must be heard. Past the client's limit its library would end
        the stream, and the connection's state with it.
        """
        if isinstance(event, events.LifecycleEvent):
            ends = event.TERMINAL or isinstance(event, events.ResponseDone)
            if ends:
                encoded = self._encoder.encode(event, output_omitted=True)
                if len(encoded) <= self._event_bytes:
                    return encoded
            bare = msgspec.structs.replace(event, response=without_settings(event.response))
            return self._encoder.encode(bare, output_omitted=ends)
        error = ApiError.of(
            "event_too_large",
            f"An event of type {event.type} is larger than the {self._event_bytes} bytes that "
            "the client can receive (max_receive_bytes).",
        )
        return self._encoder.encode(
            events.ErrorEvent(
                sequence_number=event.sequence_number,
                stream_id=event.stream_id,
                status=error.status,
                error=events.ErrorDetail.of(error),
            )
        )

    def _heartbeat(self) -> bytes:
        return self._encoder.encode(events.Heartbeat(phase=self._connection.phase()))


def without_settings(response: Response) -> Response:
    """The response without the echo of any setting of any size."""
    return msgspec.structs.replace(response, **_UNSAID)


_UNSAID: Final = {
    each.name: getattr(Response(), each.name)
    for each in MEMBERS
    if each.large and Trait.ECHOED in each.traits and Trait.NAMED not in each.traits
}
"""Settings that may be of any size, as in a response whose create did not name them."""


class RequestReader:
    """The only reader of a ``Connect`` stream: messages in, requests to the connection."""

    def __init__(
        self,
        context: Context,
        connection: ConnectionDriver,
        writer: EventWriter,
        *,
        max_bytes: int,
        trace_context: dict[str, str] | None,
        first: Callable[[], object],
    ) -> None:
        """``first`` is called when the first message has come."""
        self._context = context
        self._on_first = first
        self._connection = connection
        self._writer = writer
        self._max_bytes = max_bytes
        self._trace_context = trace_context
        self._decoder = RequestDecoder()

    async def run(self) -> None:
        """Reads until the client has said all or the call has ended. Raises nothing."""
        backlog = 0
        heard = False
        try:
            while isinstance(data := await self._context.read(), bytes):
                if not heard:
                    self._on_first()
                    heard = True
                self._take(data)
                backlog = backlog + 1 if self._writer.writing else 0
                if backlog >= BACKLOG:
                    await self._writer.caught_up()
                    backlog = 0
        except grpc.aio.BaseError:
            pass  # The call has ended: status sent, aborted, or a lost peer.
        self._connection.half_close()

    def _take(self, data: bytes) -> None:
        if len(data) > self._max_bytes:
            self._connection.reject(
                ApiError.of(
                    "request_too_large", f"The message is larger than {self._max_bytes} bytes."
                )
            )
            return
        try:
            message = line_pb2.ConnectRequest.FromString(data)
        except DecodeError:
            self._connection.reject(
                ApiError.of("invalid_proto", "The message is not a tieline.v1.ConnectRequest.")
            )
            return
        try:
            self._pass(self._decoder.decode(message), len(data))
        except ApiError as error:
            self._reject(message, error)
        except Exception:
            # One message at fault must not leave a connection without its reader.
            _log.exception("a client event was not taken")
            self._reject(message, server_error())
        self._connection.work.decode = self._decoder.work

    def _reject(self, message: line_pb2.ConnectRequest, error: ApiError) -> None:
        lane = message.stream_id
        self._connection.reject(
            error,
            event_id=message.event_id or None,
            stream_id=lane if is_stream_id(lane) else None,
        )

    def _pass(self, request: Request, size: int) -> None:
        if (
            isinstance(request, SessionStart)
            and not self._connection.heard
            and request.max_receive_bytes
        ):
            self._writer.receives(request.max_receive_bytes)
        self._connection.receive(traced(request, self._trace_context), size=size)
