"""One TCP connection of the HTTP server: how it is read, and how little it buffers.

aiohttp's parser takes some of a request that an intermediary may read in another way. Two readers
that disagree where a request ends are how one is smuggled past the first of them (RFC 9112 11.2).
The parser refuses most of it by itself; what it takes wrongly is refused here, and so is a head
that is larger than all heads together should be: no key is known before it ends.
"""

import asyncio
import socket
from asyncio import BaseTransport, Transport
from collections.abc import Callable, Sequence
from typing import Any, Final, cast

from aiohttp import HttpVersion10, HttpVersion11, web
from aiohttp.http_exceptions import BadHttpMessage, LineTooLong
from aiohttp.http_parser import HttpRequestParser, RawRequestMessage
from aiohttp.streams import StreamReader

from tieline.errors import ApiError
from tieline_server.capacity import Capacity, LocalCapacity
from tieline_server.garbage_collection import forget_frames
from tieline_server.runtime import server_error
from tieline_server.transports._aiohttp import RequestHandler
from tieline_server.transports.client_frames import ClientFrames, FrameReader, Gate
from tieline_server.transports.http.request import SERVER, CreateReader, error_response
from tieline_server.transports.live_calls import RETRY_AFTER

HEAD_BYTES: Final = 64 * 1024
"""What the first line and all headers of a request may take together."""

PIPELINED: Final = 4
"""Requests that may wait behind the one that is answered; then the connection is not read."""

Fed = tuple[Sequence[tuple[RawRequestMessage, StreamReader]], bool, bytes]


class Unacceptable(BadHttpMessage):
    """A request that is not read any further; ``error`` is its answer."""

    def __init__(self, error: ApiError) -> None:
        super().__init__(error.message)
        self.error = error


class RequestParser:
    """aiohttp's parser, with a look at every head that it takes."""

    __slots__ = ("_body", "_head", "_parser", "_refused")

    def __init__(self, parser: HttpRequestParser) -> None:
        self._parser = parser
        self._head = 0
        """Bytes of a head whose end has not come."""
        self._body: StreamReader | None = None
        """That of the last request."""
        self._refused = False

    def feed_data(self, data: bytes) -> Fed:
        """Takes what came; raises :class:`Unacceptable`, after which nothing is taken any more."""
        if self._refused:
            return (), False, b""
        fed: Fed = self._parser.feed_data(data)
        messages = fed[0]
        if messages:
            large = self._head + len(data) > HEAD_BYTES
            for message, _ in messages:
                self._check(message, large=large)
            self._head = 0
            self._body = messages[-1][1]
        elif self._body is None or self._body.is_eof():
            self._head += len(data)
            if self._head > HEAD_BYTES:
                self._refuse(_head_too_large())
        return fed

    def feed_eof(self) -> Any:
        """Nothing comes any more."""
        return self._parser.feed_eof()

    def pause_reading(self) -> None:
        """The body that comes has to wait."""
        self._parser.pause_reading()

    def message_consumed(self) -> None:
        """A request that waited is answered now."""
        self._parser.message_consumed()

    def set_upgraded(self, upgraded: bool) -> None:
        """Whether what follows is no HTTP."""
        self._parser.set_upgraded(upgraded)

    def _check(self, message: RawRequestMessage, *, large: bool) -> None:
        if large and _size(message) > HEAD_BYTES:
            self._refuse(_head_too_large())
        version = message.version
        if version not in (HttpVersion11, HttpVersion10):
            self._refuse(_invalid("This server speaks HTTP/1.1."))
        if "Transfer-Encoding" not in message.headers:
            return
        if version == HttpVersion10:
            # RFC 9112 6.1: its framing is faulty, even with a Content-Length.
            self._refuse(_invalid("HTTP/1.0 has no 'Transfer-Encoding'."))
        if [coding.lower() for coding in message.headers.getall("Transfer-Encoding")] != [
            "chunked"
        ]:
            self._refuse(_invalid("Unsupported 'Transfer-Encoding': 'chunked' alone is known."))

    def _refuse(self, error: ApiError) -> None:
        self._refused = True
        raise Unacceptable(error)


def _size(message: RawRequestMessage) -> int:
    return len(message.path) + sum(len(name) + len(value) for name, value in message.raw_headers)


def _head_too_large() -> ApiError:
    return ApiError.of(
        "request_too_large", f"The headers are larger than {HEAD_BYTES} bytes together."
    )


def line_too_long(most: int) -> ApiError:
    """What a request is answered with whose path, or one header, has more than ``most`` bytes."""
    return ApiError.of(
        "request_too_large", f"The path, or one header, is larger than {most} bytes."
    )


def _invalid(message: str) -> ApiError:
    return ApiError.of("invalid_request", message)


UNSENT_BYTES: Final = 16 * 1024
"""What a connection buffers here, and again unsent in the kernel, before a writer waits.

Without the second bound the kernel takes megabytes for a reader that has stopped.
"""

LONG: Final = 0.002
"""Seconds of work on what came at once, above which the others have their turn before more comes.

A quarter of a megabyte of the smallest frames takes some fifty times as many, and the loop would
read it up to 32 times in a row.
"""

GRACE_CONNECTIONS: Final = 64
"""Connections past the limit that are still told so; any further one is reset."""

NOTSENT_LOWAT: Final[int | None] = getattr(socket, "TCP_NOTSENT_LOWAT", None)


class TcpConnections:
    """The connections of one server: ``most`` of them, or of several processes' by ``capacity``.

    ``new_id`` names requests that never become a call.
    """

    def __init__(
        self, most: int, *, new_id: Callable[[], str], capacity: Capacity | None = None
    ) -> None:
        self.capacity = capacity or LocalCapacity(most)
        self.new_id = new_id
        self.open: set[TcpConnection] = set()
        self.tasks: set[asyncio.Task[Any]] = set()
        """One for each connection, which answers its requests."""

    @property
    def admitted(self) -> int:
        """How many of this server are within the limit."""
        return sum(each.admitted for each in self.open)

    def refusal(self) -> ApiError:
        """What a request on a connection past the limit is answered with."""
        return ApiError.of(
            "too_many_connections",
            f"This server already has {self.capacity.most} connections open.",
            retry_after=RETRY_AFTER,
        )


class TcpConnection(RequestHandler):
    """What aiohttp makes for each connection, with our bounds and our errors."""

    __slots__ = (
        "_stuck",
        "_write_timeout",
        "admitted",
        "busy",
        "connections",
        "create_reader",
        "gate",
    )  # fmt: skip

    def __init__(
        self,
        server: web.Server,
        connections: TcpConnections,
        *,
        write_timeout: float,
        **settings: Any,
    ) -> None:
        super().__init__(server, **settings)
        self.use_parser(RequestParser, pipelined=PIPELINED)
        self.connections = connections
        self._write_timeout = write_timeout
        self._stuck: asyncio.TimerHandle | None = None
        self.create_reader = CreateReader()
        self.admitted = False
        self.busy = False
        """Whether a handler answers a request; what it returns is written after that."""
        self.gate: Gate | None = None
        """What an upgrade's messages go through: the server that upgrades sets it."""

    async def start(self) -> None:
        """Answers requests, as a task that the server can wait for."""
        task = asyncio.current_task()
        assert task is not None, "aiohttp runs this as a task"
        self.connections.tasks.add(task)
        try:
            await super().start()
        finally:
            self.connections.tasks.discard(task)
            del task  # An exception that ends it holds this frame.

    def connection_made(self, transport: BaseTransport) -> None:
        """Takes a place, if there is one."""
        connections = self.connections
        real = cast(Transport, transport)
        self.admitted = connections.capacity.take()
        connections.open.add(self)
        real.set_write_buffer_limits(high=UNSENT_BYTES)
        bare = real.get_extra_info("socket")
        if bare is not None and NOTSENT_LOWAT is not None:
            bare.setsockopt(socket.IPPROTO_TCP, NOTSENT_LOWAT, UNSENT_BYTES)
        super().connection_made(transport)
        if len(connections.open) > connections.capacity.most + GRACE_CONNECTIONS:
            real.abort()

    def connection_lost(self, exc: BaseException | None) -> None:
        """Gives the place back, however the connection ended."""
        connections = self.connections
        if self in connections.open:
            connections.open.discard(self)
            if self.admitted:
                connections.capacity.give_back()
        self._forget_stuck()
        super().connection_lost(exc)

    def frame_reader(self, reader: FrameReader) -> ClientFrames:
        """An upgrade: from here on only frames are taken that a client may send."""
        assert self.gate is not None, "the server that upgrades has set it"
        return ClientFrames(reader, self.gate)

    def data_received(self, data: bytes) -> None:
        """Takes what came. After long work the connection is not read for as long as that took."""
        clock = self.loop.time
        started = clock()
        super().data_received(data)
        spent = clock() - started
        transport = self.transport
        if spent > LONG and transport is not None and not self.reading_paused:
            transport.pause_reading()
            self.loop.call_later(spent, self._read_on)

    def _read_on(self) -> None:
        # aiohttp may have paused it since, for as long as what has come waits to be taken.
        if self.transport is not None and not self.reading_paused:
            self.transport.resume_reading()

    def pause_writing(self) -> None:
        """The peer is behind with a whole answer; a handler that writes has its own timer."""
        super().pause_writing()
        if not self.busy:
            self._watch()

    def resume_writing(self) -> None:
        """The peer has caught up."""
        self._forget_stuck()
        super().resume_writing()

    def _watch(self) -> None:
        transport = self.transport
        assert transport is not None, "only an open connection writes"
        left = transport.get_write_buffer_size()
        self._stuck = self.loop.call_later(self._write_timeout, self._look, left)

    def _look(self, left: int) -> None:
        """Cuts a peer that has taken nothing since ``left`` bytes were to be sent."""
        assert self.transport is not None, "the timer ends with the connection"
        if self.transport.get_write_buffer_size() < left:
            self._watch()
        else:
            self.transport.abort()

    def _forget_stuck(self) -> None:
        if self._stuck is not None:
            self._stuck.cancel()
            self._stuck = None

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """What is no HTTP is answered in our shape, without a word of what it was."""
        if exc is not None:
            forget_frames(exc)
        if request.writer.output_size > 0:
            raise ConnectionError("the answer has begun")
        error = server_error()
        if isinstance(exc, Unacceptable):
            error = exc.error
        elif isinstance(exc, LineTooLong):
            error = line_too_long(self.max_field_size)
        elif status == 400:
            error = ApiError.of("invalid_request", "The request is not valid HTTP.")
        response = error_response(error)
        response.headers["Server"] = SERVER
        response.headers["x-request-id"] = self.connections.new_id()
        response.force_close()
        return response
