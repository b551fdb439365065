"""The two ends of a stream of events: one writer, and for ``Converse`` one reader beside it.

Rules of grpc.aio that shape this file. Two writes at once lose a message, so the coroutine of
the RPC is the only writer. A read that is cancelled takes a message, or the whole call, with it,
so the reader is a task of its own, never under a timeout: it ends by itself when the call does.
A read tells the end of the stream alike for a client that has said all and for a lost peer, whose
call the library cancels right after it: a further read returns behind that.
"""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final

import grpc
import msgspec
from google.protobuf.message import DecodeError

from tieline import events
from tieline.codecs.proto import EventEncoder, RequestDecoder
from tieline.codecs.proto.frames import repeated
from tieline.codecs.proto.schema import REQUESTS
from tieline.errors import ApiError
from tieline.requests import BEGINNING, MEMBERS, Request, SessionStart, Trait
from tieline.responses import Response
from tieline.v1 import service_pb2
from tieline_server.runtime import ConnectionDriver
from tieline_server.transports.grpc.config import GrpcConfig
from tieline_server.transports.grpc.status import Context
from tieline_server.transports.stream import (
    LEAST_BYTES,
    About,
    Batches,
    MessageReader,
    Stuck,
    WriterTimer,
    about_json,
    too_large,
    traced,
)

WRITE_BYTES: Final = 256 * 1024
"""Where a message of gathered events closes: lanes take turns, and most stubs receive 4 MiB."""

EVENT_BYTES: Final = 3 * 1024 * 1024
"""What one event may take unless SessionStart says what the client can receive."""


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
        self.timer = WriterTimer(heartbeat=config.heartbeat, write_timeout=config.write_timeout)
        self._event_bytes = EVENT_BYTES
        given = () if first is None else (first,)
        self._batches = Batches(connection, self._encode, most=WRITE_BYTES, first=given)

    def receives(self, max_receive_bytes: int) -> None:
        """The client said how large a message it can take."""
        self._event_bytes = max(max_receive_bytes, LEAST_BYTES)
        self._batches.most = min(WRITE_BYTES, self._event_bytes)

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
            self.timer.stop()
            self._batches.close()
        return self._connection.error

    async def _pump(self) -> None:
        beat = b""
        while True:
            try:
                # Encoded events, concatenated, are one message (proto3 encoding).
                if message := beat or self._batches.next():
                    beat = b""
                    self.timer.begin()
                    await self._context.write(message)
                    self.timer.end()
                if self._batches.empty:
                    if self._connection.closed:
                        return
                    await self._connection.wait()
            except asyncio.CancelledError:
                if not self.timer.fired():
                    raise
                if self.timer.writing:
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
        error = too_large(event, self._event_bytes, hint=" (max_receive_bytes)")
        return self._encoder.encode(error)

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


class RequestReader(MessageReader[service_pb2.ConverseRequest]):
    """The only reader of a ``Converse`` stream."""

    _decoder: RequestDecoder

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
        super().__init__(connection, timer=writer.timer, decoder=RequestDecoder())
        self._context = context
        self._on_first: Callable[[], object] | None = first
        self._writer = writer
        self._max_bytes = max_bytes
        self._trace_context = trace_context

    async def run(self) -> None:
        """Reads until the client has said all or the call has ended. Raises nothing."""
        with suppress(grpc.aio.BaseError):  # The call has ended: status sent, or a lost peer.
            await self._read_all()
            await self._context.read()
            if not self._timer.cancelled():
                self._connection.half_close()
                return
        self._connection.drop()

    async def _read(self) -> bool:
        data = await self._context.read()
        if not isinstance(data, bytes):
            return False
        if self._on_first is not None:
            self._on_first()
            self._on_first = None
        if len(data) > self._max_bytes:
            self._connection.reject(
                ApiError.of(
                    "request_too_large", f"The message is larger than {self._max_bytes} bytes."
                )
            )
            return True
        try:
            message = service_pb2.ConverseRequest.FromString(data)
        except DecodeError:
            self._connection.reject(
                ApiError.of("invalid_proto", "The message is not a tieline.v1.ConverseRequest.")
            )
        else:
            self._take(message)
        return True

    def _request(self, message: service_pb2.ConverseRequest) -> Request:
        request = self._decoder.decode(message)
        if (
            isinstance(request, SessionStart)
            and not self._connection.heard
            and request.max_receive_bytes
        ):
            self._writer.receives(request.max_receive_bytes)
        return traced(request, self._trace_context)

    def _about(self, message: service_pb2.ConverseRequest) -> About:
        if message.HasField("opaque"):
            said = about_json(message.opaque.json.encode(), name=message.opaque.type)
            # As where it is taken: what stands beside it counts more than what it says.
            event_id = message.event_id or said.event_id
            return About(event_id, message.stream_id or said.stream_id, said.begins)
        begins = message.WhichOneof("message") in _BEGINNING
        return About(message.event_id, message.stream_id, begins)


_BEGINNING: Final = frozenset(name for name, arm in REQUESTS.items() if arm.kind in BEGINNING)
"""Arms of a request that ask for a turn."""
