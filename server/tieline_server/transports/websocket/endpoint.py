"""The WebSocket endpoint: ``GET`` with Upgrade on the path of ``POST /v1/responses``.

An aiohttp handler that an application mounts. How it ends:

==== ==============================================================================
code when
==== ==============================================================================
1000 the session ended, or the age limit was reached (its error event comes first)
1001 the server stops; running turns have ended
1002 the peer broke the protocol of frames
1007 a text frame that is no UTF-8
1008 the key is not valid any more; events were not taken in time (``slow_consumer``), or a
     message did not come in time (``idle_timeout``)
1009 a message of more than ``max_message_bytes`` (its error event comes first)
1011 a fault of ours
==== ==============================================================================

Where the peer closes first, its own code is echoed; it cancels what runs (wire.md 1.3.5).
"""

import asyncio
import logging
import math
import socket as sockets
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from aiohttp import WSCloseCode, web
from msgspec import structs

from tieline import events
from tieline.errors import ApiError
from tieline_server.core.create.limits import Share
from tieline_server.core.values import Principal
from tieline_server.garbage_collection import forget_frames
from tieline_server.runtime import ConnectionDriver, Services, server_error
from tieline_server.transports.client_frames import Gated
from tieline_server.transports.json_events import HEADER, EventJson, error_json
from tieline_server.transports.live_calls import LiveCalls, LiveConnection, caller_of
from tieline_server.transports.stream import Stuck
from tieline_server.transports.websocket.config import WebSocketConfig
from tieline_server.transports.websocket.handshake import (
    SUBPROTOCOLS,
    Handshake,
    read_handshake,
    refusal,
    without_secrets,
)
from tieline_server.transports.websocket.incoming import IncomingMessages
from tieline_server.transports.websocket.server_frames import close_frame, text_header
from tieline_server.transports.websocket.stream import (
    HIGH_WATER,
    NO_CODE,
    ConnectionSocket,
    EventWriter,
    RequestReader,
)

TRANSPORT: Final = "websocket"
"""What this endpoint is called in logs and metrics."""

LOOK: Final = 0.02
"""Seconds between two looks at a connection whose last bytes are read and dropped."""

_log: Final = logging.getLogger(__name__)


class WebSocketEndpoint:
    """Serves WebSockets to an aiohttp application; ``handle`` is the handler of the route.

    ``guard`` is called with each request first and raises :class:`ApiError` to refuse it.
    ``calls`` is where another server counts its own, for a limit on both together; ``share`` bounds
    the connections of one owner.
    """

    def __init__(
        self,
        services: Services,
        config: WebSocketConfig,
        *,
        guard: Callable[[web.Request], None] | None = None,
        calls: LiveCalls | None = None,
        share: Share | None = None,
    ) -> None:
        limits = structs.replace(services.limits, message_bytes=config.max_message_bytes)
        self._services = structs.replace(services, limits=limits)
        self._config = config
        self._guard = guard
        self.live = calls or LiveCalls(config.max_connections, share=share)
        self._open: set[WebSocketConnection] = set()
        self._draining = False

    async def handle(self, request: web.Request) -> web.StreamResponse:
        """Upgrades and serves one connection to its end, or answers with an HTTP error."""
        caller = caller_of(request.headers, new_id=self._services.ids.new, address=request.remote)
        request_id = caller.request_id
        try:
            if self._guard is not None:
                self._guard(request)
            handshake = read_handshake(request)
            authenticate = self._services.keys.caller(handshake.authorization, caller)
            owner = authenticate().owner
            with self.live.place(owner):
                incoming = self._incoming(owner, request)
                try:
                    return await self._serve(request, handshake, request_id, authenticate, incoming)
                finally:
                    incoming.close()
        except ApiError as error:
            await self._services.refused(error, request.remote or "", TRANSPORT)
            return refusal(error, request_id)

    def _incoming(self, owner: str, request: web.Request) -> IncomingMessages:
        """What the messages of a new connection are counted by; has the connection use it."""
        config = self._config
        incoming = IncomingMessages(
            self._services.incoming,
            owner,
            most=config.max_message_bytes,
            patience=config.read_timeout,
            deflate=config.deflate,
        )
        if isinstance(request.protocol, Gated):
            request.protocol.gate = incoming
        return incoming

    async def drain(self, seconds: float) -> None:
        """No new connections; running turns get ``seconds`` to end, then each closes (1001)."""
        self._draining = True
        await self.live.drain(seconds)

    async def stop(self) -> None:
        """Cuts every connection and returns when all are over. Idempotent."""
        for connection in list(self._open):
            connection.abort()
        await self.live.empty()

    async def _serve(
        self,
        request: web.Request,
        handshake: Handshake,
        request_id: str,
        authenticate: Callable[[], Principal],
        incoming: IncomingMessages,
    ) -> web.StreamResponse:
        config = self._config
        socket = ConnectionSocket(
            autoclose=False,
            compress=config.deflate,
            # aiohttp refuses a frame of this size, and lets an inflated message have it.
            max_msg_size=config.max_message_bytes + 1,
            protocols=SUBPROTOCOLS,
            writer_limit=0,
        )
        socket.headers.update(handshake.response_headers(request_id))
        if handshake.extensions and self._services.profile.extensions:
            # By this a client knows that a session start would be understood.
            socket.headers[HEADER] = ",".join(sorted(handshake.extensions))
        connection = WebSocketConnection(
            request, socket, self._services, config, handshake, incoming
        )
        self._open.add(connection)
        try:
            await connection.start()
            driver = connection.open_driver(authenticate)
            async with self.live.opened(driver) as live:
                await connection.run(live, stopping=lambda: self._draining)
        except ConnectionError:
            pass  # The peer left during the handshake.
        finally:
            self._open.discard(connection)
        return socket


class WebSocketConnection:
    """One upgraded connection from its handshake to its close."""

    __slots__ = ("_config", "_encoder", "_flow", "_handshake", "_incoming", "_profile", "_request",
                 "_services", "_socket", "_transport")  # fmt: skip

    def __init__(
        self,
        request: web.Request,
        socket: ConnectionSocket,
        services: Services,
        config: WebSocketConfig,
        handshake: Handshake,
        incoming: IncomingMessages,
    ) -> None:
        self._request = request
        self._socket = socket
        self._services = services
        self._config = config
        self._handshake = handshake
        self._incoming = incoming
        self._profile = handshake.profile(services.profile)
        self._encoder = EventJson(self._profile, handshake.extensions)

    async def start(self) -> None:
        """Answers the upgrade; raises :class:`ConnectionError` where the peer is gone."""
        self._flow = await self._socket.prepare(without_secrets(self._request, self._handshake))
        transport = self._request.transport
        if transport is None:
            raise ConnectionResetError("the peer is gone")
        self._transport = transport
        bound_buffers(transport)

    def open_driver(self, authenticate: Callable[[], Principal]) -> ConnectionDriver:
        """The driver of this connection."""
        driver = ConnectionDriver(
            self._services,
            transport=TRANSPORT,
            authenticate=authenticate,
            merge=self._config.merge,
            profile=self._profile,
        )
        driver.connection.extensions = self._encoder.extensions
        return driver

    async def run(self, live: LiveConnection, *, stopping: Callable[[], bool]) -> None:
        """Reads and writes until the connection is over, then says goodbye."""
        driver = live.connection
        writer = EventWriter(
            self._socket,
            transport=self._transport,
            flow=self._flow,
            connection=driver,
            encoder=self._encoder,
            config=self._config,
        )
        reader = RequestReader(
            self._socket,
            connection=driver,
            writer=writer,
            encoder=self._encoder,
            profile=self._profile,
            trace_context=self._handshake.trace_context,
            incoming=self._incoming,
        )
        self._incoming.reject = reader.reject
        self._incoming.give_up = live.end
        self._incoming.transport = self._transport
        reading = asyncio.create_task(reader.run())
        ageing = asyncio.get_running_loop().call_later(self._config.max_age, driver.age)
        try:
            error = await self._write(writer, driver)
            reader.ignores = True
            driver.drop()
            await self._part(reader, reading, live.error or error, stopping())
        finally:
            ageing.cancel()
            reading.cancel()
            with suppress(asyncio.CancelledError):
                await reading

    def abort(self) -> None:
        """Cuts the connection now."""
        if self._request.transport is not None:
            self._request.transport.abort()

    async def _write(self, writer: EventWriter, driver: ConnectionDriver) -> ApiError | None:
        """Writes to the connection's end; returns what ended it, None for a good end or a lost
        peer."""
        try:
            await writer.run()
        except Stuck:
            return ApiError.of("slow_consumer", "Events were not taken in time.")
        except ConnectionError as error:
            forget_frames(error)
            return None
        except Exception:
            _log.exception("a WebSocket was not written to its end")
            return server_error()
        return driver.error

    async def _part(
        self,
        reader: RequestReader,
        reading: asyncio.Task[None],
        error: ApiError | None,
        stopping: bool,
    ) -> None:
        """The closing handshake, for at most ``close_timeout`` (RFC 6455 7.1)."""
        if self._gone():
            return
        if reader.close_code is not None:
            self._transport.write(close_frame(_echo(reader.close_code)))
            return
        if reader.refused is not None:
            self._transport.write(self._refusal(reader.refused))
            await self._linger()
        else:
            self._transport.write(_last_words(error, stopping))
            await asyncio.wait({reading}, timeout=self._config.close_timeout)
        if not self._gone() and self._transport.get_write_buffer_size():
            # It has not taken its last bytes; what waits for it would be kept for as long.
            self.abort()

    def _refusal(self, code: int) -> bytes:
        """The close frame for what no reader may accept; a message's size is said before it."""
        if code != WSCloseCode.MESSAGE_TOO_BIG:
            return close_frame(code)
        most = self._config.max_message_bytes
        error = ApiError.of("request_too_large", f"The message is larger than {most} bytes.")
        return _event(error) + close_frame(code, f"{error.code}: at most {most} bytes")

    async def _linger(self) -> None:
        """Lets the peer send on, unread: a close at once would reset the connection.

        The reset would overtake the close frame in most clients, which then do not learn why.
        """
        for _ in range(math.ceil(self._config.close_timeout / LOOK)):
            if self._gone():
                return
            await asyncio.sleep(LOOK)

    def _gone(self) -> bool:
        return self._request.transport is None or self._transport.is_closing()


def bound_buffers(transport: asyncio.Transport) -> None:
    """Makes "the write buffer is above its mark" mean that the peer is behind.

    Without the low-water mark for unsent bytes the kernel takes 4 MB first.
    """
    transport.set_write_buffer_limits(high=HIGH_WATER)
    sock = transport.get_extra_info("socket")
    option = getattr(sockets, "TCP_NOTSENT_LOWAT", None)
    if sock is not None and option is not None:
        with suppress(OSError):
            sock.setsockopt(sockets.IPPROTO_TCP, option, HIGH_WATER)


def _last_words(error: ApiError | None, stopping: bool) -> bytes:
    """The close frame, after an error event where no event has told of the end so far."""
    if error is None:
        code = WSCloseCode.GOING_AWAY if stopping else WSCloseCode.OK
        return close_frame(code, "server_draining" if stopping else "")
    if error.code == "server_draining":
        return close_frame(WSCloseCode.GOING_AWAY, error.code)
    ours = error.status >= 500
    code = WSCloseCode.INTERNAL_ERROR if ours else WSCloseCode.POLICY_VIOLATION
    if error.status == 401:
        # The connection's last event said so.
        return close_frame(code, error.code)
    return _event(error) + close_frame(code, error.code)


def _event(error: ApiError) -> bytes:
    """A frame that tells of an error of no response."""
    detail = events.ErrorDetail.of(error)
    text = error_json(events.ErrorEvent(sequence_number=0, status=error.status, error=detail))
    return text_header(len(text)) + text


def _echo(code: int) -> int:
    """The peer's own code; 1000 for a close frame without one, as 1005 is never sent."""
    return WSCloseCode.OK if code == NO_CODE else code
