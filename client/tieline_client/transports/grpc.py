"""The gRPC transport: one ``Converse`` stream over grpc.aio.

One task writes and the caller of ``receive`` reads; the iterator API and interceptors are not
used, because they cannot be mixed with reading and writing (grpc#36660). Nothing that a caller
may cancel waits on the call itself: cancelling a read or a write would cancel the whole stream.
"""

import asyncio
import os
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Final
from urllib.parse import quote

import grpc
import grpc.aio
from google.protobuf.message import DecodeError
from google.protobuf.unknown_fields import UnknownFieldSet
from google.rpc import status_pb2
from grpc_status import rpc_status
from msgspec.structs import replace

from tieline.codecs import proto
from tieline.errors import BY_GRPC, ApiError
from tieline.events import Event, Opaque
from tieline.requests import ClientHeartbeat, Request, SessionEnd, SessionStart
from tieline.v1 import service_pb2
from tieline.v1.events_pb2 import ServerEvent
from tieline_client.errors import (
    ConnectionLost,
    ConnectTimeout,
    ProtocolViolation,
    UnsupportedUrl,
)
from tieline_client.transports import _grpcio, causes, tls
from tieline_client.transports.base import (
    CHECKED,
    DEFAULT_LIMIT,
    Endpoint,
    Options,
    Tls,
    checked,
    proxy_of,
)

UNTOLD_LIMIT: Final = 4 * 1024 * 1024
"""A larger message waits until the server has said what it takes: most servers take no more."""

EXTENSIONS: Final = ("heartbeat", "limits", "timing")
"""What we ask for and can read (docs/protocol.md#extensions)."""

_SERVICE: Final = service_pb2.DESCRIPTOR.services_by_name["ResponsesService"].full_name
_METHOD: Final = f"/{_SERVICE}/Converse"
_HEARTBEAT: Final = proto.encode_request(ClientHeartbeat()).SerializeToString()
_SESSION_END: Final = proto.encode_request(SessionEnd()).SerializeToString()

_STATED: Final = frozenset(
    {
        grpc.StatusCode.INVALID_ARGUMENT,
        grpc.StatusCode.DEADLINE_EXCEEDED,
        grpc.StatusCode.NOT_FOUND,
        grpc.StatusCode.PERMISSION_DENIED,
        grpc.StatusCode.RESOURCE_EXHAUSTED,
        grpc.StatusCode.FAILED_PRECONDITION,
        grpc.StatusCode.ABORTED,
        grpc.StatusCode.UNAUTHENTICATED,
    }
)
"""Codes that only a server or a proxy sends; the others also mean that a connection broke."""


async def open_plain(endpoint: Endpoint) -> "GrpcTransport":
    """Opens a connection without TLS: loopback, or a network that is trusted."""
    channel = grpc.aio.insecure_channel(endpoint.address, options=_options(endpoint.options))
    return await _open(endpoint, channel)


async def open_tls(endpoint: Endpoint) -> "GrpcTransport":
    """Opens a connection over TLS, with a certificate of our own where ``endpoint.tls`` has one."""
    given = endpoint.tls or Tls()
    options = [*_way(endpoint), *_options(endpoint.options)]
    if given.server_name is not None:
        options.append(("grpc.ssl_target_name_override", given.server_name))
    channel = grpc.aio.secure_channel(endpoint.address, _credentials(given), options=options)
    return await _open(endpoint, channel)


_OWN_ROOTS: Final = "GRPC_DEFAULT_SSL_ROOTS_FILE_PATH"
"""The library's own variable, which it reads by itself."""


def _credentials(given: Tls) -> grpc.ChannelCredentials:
    """The TLS settings; raises OSError for a file that cannot be used.

    The library knows neither ``SSL_CERT_FILE`` nor the system's authorities, ignores a file of
    authorities without any, and ends the process for a certificate without a key.
    """
    if given.ca or given.cert or given.key:
        tls.context(given)
    roots: bytes | None = None
    if given.ca is not None:
        roots = tls.read(given.ca)
    elif not os.environ.get(_OWN_ROOTS):
        roots = tls.authorities()
    if given.cert is None:
        return grpc.ssl_channel_credentials(root_certificates=roots)
    return grpc.ssl_channel_credentials(
        root_certificates=roots,
        private_key=tls.read(given.key or given.cert),
        certificate_chain=tls.read(given.cert),
    )


def _way(endpoint: Endpoint) -> list[tuple[str, Any]]:
    """The proxy as the other transports find it; the library reads small letters alone."""
    proxy = proxy_of(endpoint)
    if proxy is None:
        return [("grpc.enable_http_proxy", 0)]
    if proxy.scheme != "http":
        raise UnsupportedUrl("gRPC reaches a proxy over http:// only")
    named = "" if proxy.user is None else f"{quote(proxy.user)}:{quote(proxy.password)}@"
    return [("grpc.http_proxy", f"http://{named}{proxy.address}")]


def _options(options: Options) -> list[tuple[str, Any]]:
    """Channel options. Sending is not limited here: the server's limit is checked by ``send``."""
    ours: dict[str, str | int] = {
        "grpc.keepalive_time_ms": round(options.keepalive * 1000),
        "grpc.keepalive_timeout_ms": round(options.keepalive_timeout * 1000),
        # Seen with grpcio 1.85: without this a half-open connection lives for its default, 60 s.
        "grpc.http2.ping_timeout_ms": round(options.keepalive_timeout * 1000),
        "grpc.keepalive_permit_without_calls": 1,
        # Prefill and held turns carry no data: without this the library stops pinging.
        "grpc.http2.max_pings_without_data": 0,
        "grpc.max_receive_message_length": options.max_receive_bytes,
        "grpc.primary_user_agent": "tieline-python",
    }
    return list({**ours, **options.channel}.items())


async def _open(endpoint: Endpoint, channel: grpc.aio.Channel) -> "GrpcTransport":
    """Starts the stream and waits for the server's headers, on a timer of our own.

    A gRPC deadline would cover the whole stream (grpc#31483).
    """
    options = endpoint.options
    metadata = [("authorization", f"Bearer {endpoint.api_key}")] if endpoint.api_key else []
    start = SessionStart(
        max_receive_bytes=options.max_receive_bytes,
        merge="never" if options.merge == "never" else None,
        extensions=list(EXTENSIONS),
    )
    connect: grpc.aio.StreamStreamMultiCallable[bytes, bytes] = channel.stream_stream(_METHOD)
    call = connect(metadata=metadata)
    try:
        async with asyncio.timeout(options.connect_timeout):
            await call.wait_for_connection()
            # The first message goes at once, right behind the headers: proxies wait for it.
            with suppress(grpc.aio.BaseError):
                await _grpcio.write(call, proto.encode_request(start).SerializeToString())
            await call.initial_metadata()
            if call.done():
                await call.read()
    except TimeoutError:
        await channel.close()
        waited = f"{options.connect_timeout:g} s"
        raise ConnectTimeout(f"no answer from {endpoint.address} within {waited}") from None
    except grpc.aio.AioRpcError as error:
        await channel.close()
        raise _cause(error, endpoint, opening=True) from error
    except BaseException:
        await channel.close()
        raise
    return GrpcTransport(endpoint, channel, call)


class _Slot:
    """Room for one message on its way to the writer: senders beyond it wait, first come first.

    Once closed it takes messages and drops them, so that no caller waits for a writer that is gone.
    """

    def __init__(self) -> None:
        self._order = asyncio.Lock()
        self._free = asyncio.Event()
        self._free.set()
        self._filled = asyncio.Event()
        self._message: bytes | None = None
        self._closed = False

    async def put(self, message: bytes | None) -> bool:
        """Waits for the room and takes it; False when the writer is gone."""
        async with self._order:
            await self._free.wait()
            if self._closed:
                return False
            self._message = message
            self._free.clear()
            self._filled.set()
            return True

    async def get(self) -> bytes | None:
        """Waits for a message and gives its room free."""
        await self._filled.wait()
        self._filled.clear()
        self._free.set()
        return self._message

    def close(self) -> None:
        """Lets all that wait go."""
        self._closed = True
        self._free.set()


class GrpcTransport:
    """One open ``Converse`` stream."""

    name: Final = "grpc"
    extended: Final = True
    """Only a Tieline server speaks this schema."""

    def __init__(
        self,
        endpoint: Endpoint,
        channel: grpc.aio.Channel,
        call: "grpc.aio.StreamStreamCall[bytes, bytes]",
    ) -> None:
        self._endpoint = endpoint
        self._heartbeat = endpoint.options.heartbeat
        self._connect_timeout = endpoint.options.connect_timeout
        self._channel = channel
        self._call = call
        self._limit = DEFAULT_LIMIT
        self._told = asyncio.Event()
        """Set when the server has said what it takes, and when it never will."""
        # They remember the settings that come again with every turn, and their echo.
        self._encoder = proto.RequestEncoder()
        self._decoder = proto.EventDecoder()
        self._violation: ProtocolViolation | None = None
        """What came behind the events that were handed over last."""
        self._outgoing = _Slot()
        self._writer = asyncio.create_task(self._write(), name="tieline-grpc-writer")

    async def extensions(self) -> frozenset[str] | None:
        """The server tells them in its answer to our SessionStart."""
        return None

    async def send(self, request: Request) -> bool:
        """Hands a request to the writer; raises RequestTooLarge for one beyond the limit."""
        message = self._encoder.encode(request)
        if len(message) > UNTOLD_LIMIT and not self._told.is_set():
            # Past the server's limit its library would end the stream, and all that it remembers.
            with suppress(TimeoutError):
                async with asyncio.timeout(self._connect_timeout):
                    await self._told.wait()
        if len(message) > self._limit:
            raise ApiError.of(
                "request_too_large",
                f"The request has {len(message)} bytes; the server takes {self._limit}.",
            )
        return not self._call.done() and await self._outgoing.put(message)

    async def receive(self) -> Sequence[Event]:
        """The events of the next message; none when the server ended the stream with OK."""
        try:
            while self._violation is None:
                message: Any = await self._call.read()
                if message is grpc.aio.EOF:
                    self._told.set()
                    return ()
                events = self._decode(message)
                if events:
                    return events
            raise self._violation
        except grpc.aio.AioRpcError as error:
            self._told.set()
            raise _cause(error, self._endpoint) from error

    def limit(self, send_bytes: int) -> None:
        """The server takes messages of at most this size."""
        self._limit = send_bytes
        self._told.set()

    async def finish(self) -> None:
        """Says goodbye and half-closes."""
        await self._outgoing.put(_SESSION_END)
        await self._outgoing.put(None)

    async def close(self) -> None:
        """Cancels the stream and ends the writer."""
        self._outgoing.close()
        self._call.cancel()
        self._writer.cancel()
        await asyncio.wait((self._writer,))
        await self._channel.close()

    def _decode(self, message: bytes) -> list[Event]:
        """The events up to one that is none; that one is told by the next ``receive``."""
        events: list[Event] = []
        try:
            for said in service_pb2.ConverseResponse.FromString(message).events:
                try:
                    event = self._decoder.decode(said)
                except ApiError:
                    if _is_newer(said):
                        continue
                    raise
                if type(event) in CHECKED:
                    event = checked(_placed(event, said))
                events.append(event)
        except ProtocolViolation as error:
            self._violation = error
        except (DecodeError, ApiError) as error:
            text = f"a message of the server cannot be read: {error}"
            self._violation = ProtocolViolation(text)
            self._violation.__cause__ = error
        return events

    async def _write(self) -> None:
        """The only writer."""
        try:
            while (message := await self._next()) is not None:
                await _grpcio.write(self._call, message)
            await self._call.done_writing()
        except grpc.aio.BaseError:
            # The stream has ended; the reader knows why.
            pass
        finally:
            self._outgoing.close()

    async def _next(self) -> bytes | None:
        """The next message, or a heartbeat when there is none for too long."""
        try:
            async with asyncio.timeout(self._heartbeat):
                return await self._outgoing.get()
        except TimeoutError:
            return _HEARTBEAT


def _is_newer(said: ServerEvent) -> bool:
    """Whether an event is of a newer schema than ours: it is passed over."""
    return said.WhichOneof("event") is None and len(UnknownFieldSet(said)) > 0


def _placed(event: Event, said: ServerEvent) -> Event:
    """An event without a class, on its lane."""
    if isinstance(event, Opaque) and said.HasField("stream_id"):
        return replace(event, stream_id=said.stream_id)
    return event


def _cause(error: grpc.aio.AioRpcError, endpoint: Endpoint, *, opening: bool = False) -> Exception:
    """Why a stream ended: what the server stated, else the loss of the connection."""
    stated = _status(error)
    if stated is not None and stated.details:
        return proto.error_of_status(stated)
    code, details = error.code(), error.details() or ""
    if "larger than max" in details:
        return ApiError.of("request_too_large", f"A message was too large: {details}")
    if code in _STATED:
        return ApiError.of(BY_GRPC[code.value[0]], details)
    if code is grpc.StatusCode.UNIMPLEMENTED:
        return ConnectionLost(f"{endpoint.address} does not serve tieline.v1")
    if not opening:
        return ConnectionLost(f"lost the connection to {endpoint.address}: {details or code.name}")
    silent = details.endswith(_UNANSWERED)
    why = causes.unanswered(endpoint) if silent else causes.likely(details or code.name, endpoint)
    if (proxy := causes.proxy_in(details, endpoint)) is not None:
        return ConnectionLost(f"cannot connect to the proxy {proxy}: {why}")
    return ConnectionLost(f"cannot connect to {endpoint.address}: {why}")


_UNANSWERED: Final = ": Socket closed"


def _status(error: grpc.aio.AioRpcError) -> status_pb2.Status | None:
    try:
        return rpc_status.from_call(error)  # type: ignore[arg-type, no-any-return]
    except ValueError:
        # Details that contradict the status are not to be trusted.
        return None
