"""The WebSocket transport: one JSON object a text frame (OpenAI's WebSocket mode).

aiohttp answers pings and stops reading the socket while no caller is in ``receive``. Whether the
server lives is ours to judge: aiohttp's own heartbeat also counts the time in which we do not
read, and would end a good connection of a slow application.
"""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from types import SimpleNamespace
from typing import Any, Final

import aiohttp
from msgspec.structs import replace

from tieline.codecs import json
from tieline.errors import ERRORS, ApiError, TielineError
from tieline.events import Event
from tieline.requests import Request, SessionStart
from tieline_client.errors import ConnectionLost, ConnectTimeout, ProtocolViolation
from tieline_client.transports import web
from tieline_client.transports._aiohttp import Traffic
from tieline_client.transports.base import Endpoint, proxy_of

SEND_LIMIT: Final = 16 * 1024 * 1024 - 1
"""Bytes of a message that every known server takes; at 16 MiB OpenAI closes with 1009."""

_CLOSES: Final[dict[int, str]] = {
    1001: "server_draining",
    1008: "permission_denied",
    1009: "request_too_large",
    1011: "server_error",
    1012: "server_draining",
    1013: "server_is_overloaded",
    3000: "invalid_api_key",
    3003: "permission_denied",
    3008: "idle_timeout",
}
"""Close code (RFC 6455 7.4 and its registry) -> the error that it states."""

_OURS: Final[dict[int, str]] = {
    aiohttp.WSCloseCode.MESSAGE_TOO_BIG: "request_too_large",
}
"""Close code that aiohttp chose for a frame of the server -> our error; others are violations."""


_HTTP: Final = {"ws": "http", "wss": "https"}


async def open_connection(endpoint: Endpoint) -> "WebSocketTransport":
    """Opens a connection by ``ws://`` or ``wss://``; raises what a server says instead of 101."""
    address, options = endpoint.address, endpoint.options
    traffic = Traffic()
    extended = asyncio.Event()
    proxy = proxy_of(endpoint)
    session = web.session(endpoint, traffic, proxy=proxy, traces=[_watch(extended, address)])
    # The handshake is a request of HTTP (RFC 6455 4.1), and a proxy is to see it as one.
    asked = replace(endpoint, scheme=_HTTP[endpoint.scheme])
    try:
        async with asyncio.timeout(options.connect_timeout):
            socket = await session.ws_connect(
                web.responses_url(asked),
                compress=0,
                max_msg_size=options.max_receive_bytes,
                timeout=aiohttp.ClientWSTimeout(ws_close=options.close_timeout),
                **web.request_options(endpoint, proxy),
            )
    except TimeoutError:
        await session.close()
        waited = f"{options.connect_timeout:g} s"
        raise ConnectTimeout(f"no answer from {address} within {waited}") from None
    except aiohttp.WSServerHandshakeError as error:
        await session.close()
        raise ConnectionLost(f"{address} does not speak WebSocket: {error.message}") from error
    except (aiohttp.ClientError, OSError) as error:
        await session.close()
        loss = web.loss(error, endpoint, heard=traffic.heard)
        raise loss from loss.__cause__
    except BaseException:
        await session.close()
        raise
    transport = WebSocketTransport(endpoint, session, socket, traffic, extended=extended.is_set())
    # Other servers would refuse a session start.
    if extended.is_set():
        await transport.send(
            SessionStart(
                max_receive_bytes=options.max_receive_bytes,
                merge="never" if options.merge == "never" else None,
            )
        )
    return transport


def _watch(extended: asyncio.Event, address: str) -> aiohttp.TraceConfig:
    """Raises what a server says instead of 101: ``ws_connect`` itself drops the body.

    Sets ``extended`` when the 101 says that the server knows our extensions.
    """

    async def answered(_: object, __: SimpleNamespace, params: Any) -> None:
        if params.response.status != 101:
            raise await web.refusal(params.response, address)
        if web.EXTENSIONS in params.response.headers:
            extended.set()

    trace = aiohttp.TraceConfig()
    trace.on_request_end.append(answered)
    # A redirect is not followed: the key is for the host that the caller named.
    trace.on_request_redirect.append(answered)
    return trace


class WebSocketTransport:
    """One open WebSocket."""

    name: Final = "websocket"

    def __init__(
        self,
        endpoint: Endpoint,
        session: aiohttp.ClientSession,
        socket: aiohttp.ClientWebSocketResponse,
        traffic: Traffic,
        *,
        extended: bool = False,
    ) -> None:
        self._endpoint = endpoint
        self._address = endpoint.address
        self._options = endpoint.options
        self._session = session
        self._socket = socket
        self._traffic = traffic
        self.extended = extended
        """Whether the server has said that it knows our extensions."""
        self._loop = asyncio.get_running_loop()
        self._limit = SEND_LIMIT
        self._finished = False
        self._waits_since: float | None = None
        """Since when a caller waits in ``receive``; None while none does."""
        self._dead: ConnectionLost | None = None
        self._keeper = asyncio.create_task(self._keep_alive(), name="tieline-websocket-keeper")

    async def extensions(self) -> frozenset[str] | None:
        """A server with extensions of ours tells them in its answer to our SessionStart."""
        return None if self.extended else frozenset()

    async def send(self, request: Request) -> bool:
        """Writes a request; raises RequestTooLarge for one beyond the limit.

        The frame is whole in the socket's buffer before anything waits: a sender that gives up
        does no harm.
        """
        message = json.encode(request)
        if len(message) > self._limit:
            raise ApiError.of(
                "request_too_large",
                f"The request has {len(message)} bytes; the server takes {self._limit}.",
            )
        if self._socket.closed or not self._traffic.connected:
            return False
        # A connection that is lost says so in receive.
        with suppress(aiohttp.ClientError, ConnectionError):
            await self._socket.send_frame(message, aiohttp.WSMsgType.TEXT)
        return True

    async def receive(self) -> Sequence[Event]:
        """The event of the next frame; none when either side has closed with 1000."""
        self._waits_since = self._loop.time()
        try:
            message = await self._socket.receive()
        finally:
            self._waits_since = None
        if message.type is aiohttp.WSMsgType.TEXT:
            return (web.decode(message.data.encode()),)
        if self._finished:
            return ()
        if message.type is aiohttp.WSMsgType.CLOSE:
            return self._closed(message.data, message.extra or "")
        raise self._broken(message)

    def limit(self, send_bytes: int) -> None:
        """The server takes messages of at most this size."""
        self._limit = send_bytes

    async def finish(self) -> None:
        """Sends the close frame and waits for the server's."""
        self._finished = True
        await self._socket.close()

    async def close(self) -> None:
        """Drops the connection and ends the keeper."""
        self._keeper.cancel()
        await asyncio.wait((self._keeper,))
        self._traffic.abort()
        # Nothing is sent or waited for any more; aiohttp lets its connection go.
        await self._socket.close()
        await self._session.close()

    def _closed(self, code: int, reason: str) -> Sequence[Event]:
        """What a close frame means; raises unless it is a good end."""
        if code == aiohttp.WSCloseCode.OK:
            return ()
        named = reason.partition(":")[0].strip()
        stated = named if named in ERRORS else _CLOSES.get(code)
        said = f": {reason}" if reason else ""
        text = f"{self._address} closed the connection with {code}{said}"
        if stated is None:
            raise ConnectionLost(text)
        raise ApiError.of(stated, text)

    def _broken(self, message: aiohttp.WSMessage) -> TielineError:
        """Why there is neither an event nor a close frame."""
        if self._dead is not None:
            return self._dead
        if message.type is aiohttp.WSMsgType.BINARY:
            return ProtocolViolation("the server sent a binary frame")
        cause = message.data
        if isinstance(cause, aiohttp.WebSocketError):
            code = _OURS.get(cause.code)
            text = f"A frame of the server cannot be read: {cause}"
            return ApiError.of(code, text) if code else ProtocolViolation(text)
        if isinstance(cause, Exception):
            return web.loss(cause, self._endpoint)
        return ConnectionLost(f"lost the connection to {self._address}: the connection was closed")

    async def _keep_alive(self) -> None:
        """Pings a silent server, and ends the connection of one that stays silent."""
        every, patience = self._options.keepalive, self._options.keepalive_timeout
        while True:
            silence = self._loop.time() - self._traffic.at
            if silence < every:
                await asyncio.sleep(every - silence)
                continue
            asked = self._loop.time()
            # The frame is written before anything waits for room.
            with suppress(aiohttp.ClientError, ConnectionError, TimeoutError):
                async with asyncio.timeout(patience):
                    await self._socket.ping()
            await asyncio.sleep(asked + patience - self._loop.time())
            # What we do not read cannot show that the server lives.
            waits = self._waits_since
            if waits is not None and max(waits, self._traffic.at) <= asked:
                self._give_up(self._loop.time() - self._traffic.at)
                return

    def _give_up(self, silence: float) -> None:
        self._dead = ConnectionLost(
            f"lost the connection to {self._address}: the server is silent for {silence:.1f} s"
        )
        self._traffic.abort()
