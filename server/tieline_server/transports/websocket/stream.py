"""The two ends of one WebSocket: one writer, and beside it one reader.

The handler's coroutine writes; what gathers while a write is in flight leaves in the next one.
Frames go to the transport directly, joined, and ``drain`` waits while the peer is behind; while it
is not, a callback of the loop writes in the coroutine's stead, which is then not woken. With
permessage-deflate every frame goes through aiohttp, which holds the compressor. The reader is a
task that never waits for the connection, so that pings are answered while something samples.
"""

import asyncio
import logging
from collections.abc import Sequence
from typing import Final

from aiohttp import WSCloseCode, WSMsgType, web
from aiohttp.abc import AbstractStreamWriter
from aiohttp.http import WebSocketError
from msgspec import structs

from tieline import events
from tieline.codecs import json
from tieline.errors import ApiError
from tieline.requests import (
    ABSENT,
    Append,
    Cancel,
    ClientHeartbeat,
    Create,
    Request,
    Resume,
    SessionEnd,
    SessionStart,
)
from tieline_server.core.create.profile import Profile
from tieline_server.garbage_collection import forget_frames
from tieline_server.runtime import ConnectionDriver
from tieline_server.transports.json_events import EventJson, error_json
from tieline_server.transports.live_calls import TRACE_HEADERS, trace_context_of
from tieline_server.transports.stream import (
    LEAST_BYTES,
    About,
    Batches,
    MessageReader,
    TransportWriter,
    WriterTimer,
    about_json,
    too_large,
    traced,
)
from tieline_server.transports.websocket.config import WebSocketConfig
from tieline_server.transports.websocket.incoming import IncomingMessages
from tieline_server.transports.websocket.server_frames import PING, TEXT_HEADERS, USUAL, text_header

WRITE_BYTES: Final = 16 * 1024
"""Where a write of gathered frames closes; a larger frame goes alone."""

HIGH_WATER: Final = 16 * 1024
"""Unwritten bytes of the transport from which on the writer waits for the peer."""

EVENT_BYTES: Final = 16 * 1024 * 1024
"""No frame of this size or more: clients end their connection on one (wire.md 1.1.5)."""

NO_CODE: Final = 1005
"""What stands for a close frame without a code (RFC 6455 7.4.1)."""

CODES_END: Final = 5000
"""The first number past the codes of applications (RFC 6455 7.4.2)."""

_OURS: Final = frozenset({Cancel, ClientHeartbeat, Resume, SessionEnd, SessionStart})
"""Client events that a profile without extensions does not know."""

_IN_METADATA: Final = "ws_request_header_"
"""What stands before a header's name in Codex's client_metadata (wire.md 2.1.1)."""
_TRACEPARENT: Final = f"{_IN_METADATA}traceparent".encode()

_log: Final = logging.getLogger(__name__)


class ConnectionSocket(web.WebSocketResponse):
    """aiohttp's handshake and frame parser; the goodbye is the endpoint's affair.

    aiohttp would close the transport at once where it refuses a frame. What the peer has sent
    by then is unread, the kernel answers it with a reset, and the close code is lost on the way.
    """

    async def close(self, *, code: int = 1000, message: bytes = b"", drain: bool = True) -> bool:
        """Does nothing: see the class."""
        return False


class EventWriter:
    """The only writer of events. Made and run by the coroutine of the handler."""

    __slots__ = (
        "_batches",
        "_connection",
        "_deflated",
        "_encoder",
        "_event_bytes",
        "_out",
        "_socket",
        "_work",
        "timer",
    )  # fmt: skip

    def __init__(
        self,
        socket: ConnectionSocket,
        *,
        transport: asyncio.Transport,
        flow: AbstractStreamWriter,
        connection: ConnectionDriver,
        encoder: EventJson,
        config: WebSocketConfig,
    ) -> None:
        self._socket = socket
        self._connection = connection
        self._work = connection.work
        self._encoder = encoder
        self._deflated = bool(socket.compress)
        self.timer = WriterTimer(
            heartbeat=config.heartbeat,
            write_timeout=config.write_timeout,
            unsent=transport.get_write_buffer_size,
        )
        self._out = TransportWriter(transport, self.timer, behind=HIGH_WATER, drain=flow.drain)
        self._event_bytes = EVENT_BYTES
        # aiohttp's compressor takes one message at a time.
        most = 0 if self._deflated else WRITE_BYTES
        self._batches = Batches(connection, self._encode, most=most)

    def receives(self, max_receive_bytes: int) -> None:
        """The client said how large a message it can take."""
        self._event_bytes = min(EVENT_BYTES, max(max_receive_bytes, LEAST_BYTES))

    async def run(self) -> None:
        """Writes until the connection has closed and all is sent.

        Raises ``Stuck`` after ``write_timeout`` in one write, and :class:`ConnectionError`
        where the peer is gone.
        """
        try:
            await self._pump()
        finally:
            self.timer.stop()
            self._batches.close()

    async def _pump(self) -> None:
        while True:
            if data := self._batches.next():
                await self._write(data)
            elif self._connection.closed:
                return
            elif await self._silent():
                await self._beat()

    async def _silent(self) -> bool:
        """Waits for what it has to do itself; True when it took so long that a sign is due."""
        try:
            await self._connection.wait(None if self._deflated else self._send_now)
        except asyncio.CancelledError:
            if self.timer.fired():
                return True
            raise
        if self.timer.writing:
            await self._out.drain()
        return False

    def _send_now(self) -> bool:
        """Sends what a write takes; False when the peer is behind, or there is more to do."""
        data = self._batches.next()
        if data is not None:
            self._work.encode += len(data)
            if not self._out.put(data):
                return False
        return self._batches.empty and not self._connection.closed

    async def _beat(self) -> None:
        phase = self._connection.phase()
        beat = None if phase == "idle" else self._encoder.encode(events.Heartbeat(phase=phase))
        if beat is not None:
            await self._write(beat if self._deflated else text_header(len(beat)) + beat)
        else:
            await self._send(PING)

    def _encode(self, taken: Sequence[events.Event]) -> list[bytes]:
        frames: list[bytes] = []
        encoders, most, deflated = self._encoder.encoders, self._event_bytes, self._deflated
        for event in taken:
            text = encoders[type(event)](event)
            if text is None:
                continue
            size = len(text)
            if size >= most:
                text = self._shrink(event)
                size = len(text)
            if not deflated:
                text = (TEXT_HEADERS[size] if size < USUAL else text_header(size)) + text
            frames.append(text)
        return frames

    async def _write(self, data: bytes) -> None:
        if not self._deflated:
            await self._send(data)
            return
        self._work.encode += len(data)
        self.timer.begin()
        try:
            await self._socket.send_frame(data, WSMsgType.TEXT)
        except asyncio.CancelledError:
            raise self.timer.interruption() from None
        self.timer.end()

    async def _send(self, frames: bytes) -> None:
        self._work.encode += len(frames)
        if not self._out.put(frames):
            await self._out.drain()

    def _shrink(self, event: events.Event) -> bytes:
        """An event that is too large for a frame, without its output or as an error.

        Its items have come one by one, so a response can do without them; past their limit,
        clients end the connection, and the connection's state with it.
        """
        if isinstance(event, events.LifecycleEvent) and event.response.output:
            bare = structs.replace(event, response=structs.replace(event.response, output=[]))
            text = self._encoder.encode(bare)
            if text is not None and len(text) < self._event_bytes:
                return text
        return error_json(too_large(event, self._event_bytes))


class RequestReader(MessageReader[bytes]):
    """The only reader of one WebSocket, which takes text frames."""

    _decoder: json.RequestDecoder

    __slots__ = (
        "_encoder",
        "_incoming",
        "_profile",
        "_socket",
        "_trace_context",
        "_writer",
        "close_code",
        "ignores",
        "refused",
    )  # fmt: skip

    def __init__(
        self,
        socket: ConnectionSocket,
        *,
        connection: ConnectionDriver,
        writer: EventWriter,
        encoder: EventJson,
        profile: Profile,
        trace_context: dict[str, str] | None,
        incoming: IncomingMessages,
    ) -> None:
        super().__init__(connection, timer=writer.timer, decoder=json.RequestDecoder())
        self._socket = socket
        self._incoming = incoming
        self._writer = writer
        self._encoder = encoder
        self._profile = profile
        self._trace_context = trace_context
        self.ignores = False
        """Whether the server has said goodbye: what still comes is read and dropped."""
        self.close_code: int | None = None
        """The code of the peer's close frame, 1005 for one without; None before it."""
        self.refused: int | None = None
        """The close code for a frame that no reader may accept; None without one."""

    async def run(self) -> None:
        """Reads until the peer has closed or is gone, then drops the connection. Raises nothing."""
        try:
            await self._read_all()
        except ConnectionError as error:
            # A pong that could not be sent: the peer is gone.
            forget_frames(error)
        except Exception:
            _log.exception("a WebSocket was not read to its end")
        self._connection.drop()

    async def _read(self) -> bool:
        message = await self._socket.receive()
        if message.type is WSMsgType.TEXT:
            self._incoming.taken()
            data = message.data.encode()
            if len(data) > self._incoming.most:
                self.refused = WSCloseCode.MESSAGE_TOO_BIG
                return False
            if not self.ignores:
                self._take(data)
            return True
        if message.type is WSMsgType.BINARY:
            self._incoming.taken()
            self.reject(_not_text())
            return True
        if message.type is WSMsgType.CLOSE:
            if _is_close_code(message.data):
                self.close_code = message.data or NO_CODE
            else:
                self.refused = WSCloseCode.PROTOCOL_ERROR
        elif message.type is WSMsgType.ERROR and isinstance(message.data, WebSocketError):
            self.refused = int(message.data.code)
            # aiohttp's parser keeps the error.
            forget_frames(message.data)
        return False

    def reject(self, error: ApiError) -> None:
        """Answers a message of which nothing can be read; the connection lives on."""
        if not self.ignores:
            self._connection.reject(error)

    def _request(self, message: bytes) -> Request:
        request = self._decoder.decode(message)
        if type(request) in _OURS:
            request = self._ours(request)
        return traced(request, _trace_in(request) or self._trace_context)

    def _ours(self, request: Request) -> Request:
        """A client event of ours, where the profile has such; raises :class:`ApiError` (400)."""
        if not self._profile.extensions:
            raise json.invalid_event(f"Unknown event type '{request.type}'.")
        if not isinstance(request, SessionStart) or self._connection.heard:
            return request
        asked = {"session", *(request.extensions or ())}
        self._encoder.allow(frozenset(asked))
        if request.max_receive_bytes:
            self._writer.receives(request.max_receive_bytes)
        # The connection's own copy decides which of them are made at all.
        return structs.replace(request, extensions=sorted(self._encoder.extensions))

    def _about(self, message: bytes) -> About:
        return about_json(message)


def _trace_in(request: Request) -> dict[str, str] | None:
    """The trace context in Codex's client_metadata (wire.md 2.1.1)."""
    if not isinstance(request, (Create, Append)):
        return None
    given = request.client_metadata
    # ``find``, as ``in`` first takes the bytes for a number and raises a TypeError inside.
    if given is ABSENT or bytes(given).find(_TRACEPARENT) < 0:
        return None
    members = json.members(given) or {}
    texts = {name: json.text_of(members.get(_IN_METADATA + name)) for name in TRACE_HEADERS}
    return trace_context_of({name: text for name, text in texts.items() if text})


def _is_close_code(code: int) -> bool:
    """Whether a peer may say it; 0 stands for none. aiohttp refuses the others below 3000."""
    return code != WSCloseCode.ABNORMAL_CLOSURE and code < CODES_END


def _not_text() -> ApiError:
    return ApiError.of(
        "invalid_event", "A client event is one JSON object in a text frame, not a binary frame."
    )
