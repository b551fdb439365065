"""HTTP/1.1 to upstreams (RFC 9112): pooled connections, one request at a time on each.

A turn is one request, so what a client library builds for each (a session's request, its body,
writer, response, reader and timers) costs as much as the rest of the turn, and each token goes
through its reader. Here a request is one write, and a piece of an answer is handed to who reads.
Only what the engine needs is there: no redirects, no cookies, no encodings, no proxies.
"""

import asyncio
import base64
import re
import ssl
from collections.abc import Mapping
from enum import Enum, auto
from typing import Final, cast
from urllib.parse import quote, unquote, urlsplit

from msgspec import Struct

MOST_HEAD: Final = 64 * 1024
"""Bytes of the head of an answer."""

MOST_UNREAD: Final = 256 * 1024
"""Bytes of an answer that wait to be read; with more, the upstream has to wait."""

_STATUS: Final = re.compile(rb"HTTP/1\.([01]) ([1-5]\d\d)(?: [^\r\n]*)?")
_FIELD: Final = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]+):[ \t]*([^\r\n]*?)[ \t]*")
_CHUNK: Final = re.compile(rb"([0-9A-Fa-f]{1,15})[ \t]*(?:;[^\r\n]*)?")
_HEX: Final = frozenset(b"0123456789abcdefABCDEF")
_CHUNK_HEAD: Final = 17
"""Bytes of a chunk's first line without extensions, at most."""


class HttpError(ConnectionError):
    """What came is no HTTP."""


class Unreachable(ConnectionError):
    """No connection within its time."""


class _State(Enum):
    """What the next byte belongs to."""

    IDLE = auto()
    """Nothing: no request is out."""
    HEAD = auto()
    SIZED = auto()
    """A body of a stated length."""
    CHUNK = auto()
    """The size of the next chunk."""
    CHUNK_DATA = auto()
    CHUNK_END = auto()
    TRAILER = auto()
    UNTIL_CLOSE = auto()
    """A body that ends with the connection."""
    ENDED = auto()
    """Nothing: the answer is whole."""


class Connection(asyncio.Protocol):
    """One connection, and the answer to its last request. It belongs to one reader at a time."""

    __slots__ = (
        "_body", "_closed", "_error", "_left", "_loop", "_persistent", "_pieces",
        "_pool", "_rest", "_state", "_target", "_transport", "_unread", "_waiter", "headers",
        "idle_since", "paused", "status",
    )  # fmt: skip

    def __init__(self, pool: "Pool", target: "_Target") -> None:
        self._pool = pool
        self._target = target
        self._loop = asyncio.get_running_loop()
        self._state = _State.IDLE
        self._closed = False
        self._rest = b""
        self._waiter: asyncio.Future[None] | None = None
        self.idle_since = 0.0
        self._begin()

    def _begin(self) -> None:
        self.status = 0
        self.headers: Mapping[str, str] = {}
        """By their names in lower case."""
        self._error: Exception | None = None
        self._pieces: list[bytes] = []
        self._unread = 0
        self._left = 0
        self.paused = False
        """Whether the upstream has to wait until more is read."""
        self._persistent = False

    # What the engine does.

    def send(self, head: bytes, body: bytes) -> None:
        """Sends a request."""
        self._begin()
        self._state = _State.HEAD
        self._transport.writelines((head, body))

    async def head(self) -> None:
        """Waits for the head of the answer."""
        while not self.status:
            if self._error is not None:
                raise self._error
            await self.more()

    async def read(self) -> bytes:
        """The next bytes of the body, b"" at its end. Raises :class:`ConnectionError`."""
        while (piece := self.take()) is None:
            await self.more()
        return piece

    def take(self) -> bytes | None:
        """The bytes of :meth:`read` where they are there; None where one has to wait."""
        pieces = self._pieces
        if not pieces:
            if self._error is not None:
                raise self._error
            return b"" if self._state is _State.ENDED else None
        piece = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        pieces.clear()
        self._unread = 0
        if self.paused:
            self.paused = False
            self._transport.resume_reading()
        return piece

    def more(self) -> "asyncio.Future[None]":
        """Done when something has come. One at a time."""
        self._waiter = self._loop.create_future()
        return self._waiter

    @property
    def ended(self) -> bool:
        """Whether the whole answer is there, and read."""
        return self._state is _State.ENDED and not self._pieces

    def release(self) -> None:
        """The answer was read: the connection may serve again."""
        if self._persistent and self.usable and self._state is _State.ENDED:
            self._state = _State.IDLE
            self._pool.keep(self._target, self)
        else:
            self.close()

    def close(self) -> None:
        """Ends it at once, and with it the request."""
        if not self._closed:
            self._transport.abort()

    @property
    def usable(self) -> bool:
        """Whether another request can be sent."""
        return not (self._closed or self._transport.is_closing())

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    # What the loop says.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """It is open."""
        # uvloop's is one, but does not inherit from it.
        self._transport = cast("asyncio.Transport", transport)
        self._pool.opened(self)

    def data_received(self, data: bytes) -> None:
        """Bytes of an answer."""
        at = 0
        if self._rest:
            data = self._rest + data
        elif self._state is _State.CHUNK:
            at = self._take_whole(data)
        try:
            self._take(data, at)
        except HttpError as error:
            self._fail(error)
            self._transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """It is closed."""
        self._closed = True
        self._pool.lost(self._target, self)
        if self._state is _State.UNTIL_CLOSE and exc is None:
            self._end()
        elif self._state not in (_State.ENDED, _State.IDLE):
            self._fail(exc or ConnectionResetError("the upstream closed the connection"))

    def _fail(self, error: Exception) -> None:
        if self._error is None:
            self._error = error
        self._wake()

    # The parser. ``_rest`` is a line, or a head, that is not whole yet.

    def _take_whole(self, data: bytes) -> int:
        """Hands on the chunks that are there whole, as nearly all are; where the rest begins."""
        at = 0
        while (line := data.find(b"\r\n", at, at + _CHUNK_HEAD)) > at:
            digits = data[at:line]
            size = int(digits, 16) if _HEX.issuperset(digits) else 0
            end = line + 2 + size
            if not size or data[end : end + 2] != b"\r\n":
                break
            self._push(data[line + 2 : end])
            at = end + 2
        return at

    def _take(self, data: bytes, at: int) -> None:
        """What is behind ``at``."""
        self._rest = b""
        while at < len(data):
            state = self._state
            if state is _State.SIZED or state is _State.CHUNK_DATA:
                at = self._take_body(data, at)
            elif state is _State.UNTIL_CLOSE:
                self._push(data[at:])
                return
            elif state is _State.IDLE or state is _State.ENDED:
                # Nobody asked for it. What was read is whole, and nothing can follow it.
                self._persistent = False
                self._transport.abort()
                return
            else:
                mark = b"\r\n\r\n" if state is _State.HEAD else b"\r\n"
                end = data.find(mark, at)
                if (end if end >= 0 else len(data)) - at > MOST_HEAD:
                    raise HttpError("a line, or a head, without an end")
                if end < 0:
                    self._rest = data[at:]
                    return
                self._take_line(data[at:end])
                at = end + len(mark)

    def _take_body(self, data: bytes, at: int) -> int:
        """Of a body, or a chunk, that is not there whole."""
        end = min(at + self._left, len(data))
        self._push(data[at:end])
        self._left -= end - at
        if not self._left and self._state is _State.SIZED:
            self._end()
        elif not self._left:
            self._state = _State.CHUNK_END
        return end

    def _take_line(self, line: bytes) -> None:
        state = self._state
        if state is _State.CHUNK:
            self._take_size(line)
        elif state is _State.CHUNK_END:
            if line:
                raise HttpError("a chunk that is longer than its size")
            self._state = _State.CHUNK
        elif state is _State.HEAD:
            self._take_head(line)
        elif not line:
            # Behind the trailer.
            self._end()

    def _take_head(self, head: bytes) -> None:
        first, *lines = head.split(b"\r\n")
        status = _STATUS.fullmatch(first)
        fields = [_FIELD.fullmatch(line) for line in lines]
        if status is None or not all(fields):
            raise HttpError("a head that is none")
        code = int(status[2])
        if code < 200:
            # Only on the way to an answer (RFC 9110 15.2).
            return
        headers = {
            field[1].decode().lower(): field[2].decode("latin-1")
            for field in fields
            if field is not None
        }
        options = {each.strip() for each in headers.get("connection", "").lower().split(",")}
        self._persistent = "keep-alive" in options or (status[1] == b"1" and "close" not in options)
        self.status, self.headers = code, headers
        self._frame(code, headers)
        self._wake()

    def _frame(self, code: int, headers: Mapping[str, str]) -> None:
        """How long the body is (RFC 9112 6.3)."""
        coding, length = headers.get("transfer-encoding"), headers.get("content-length")
        if code in (204, 304):
            self._end()
        elif coding is not None:
            if coding.lower() != "chunked":
                raise HttpError("a transfer coding that was not asked for")
            self._state = _State.CHUNK
        elif length is not None:
            if not (length.isascii() and length.isdigit() and len(length) < _CHUNK_HEAD):
                raise HttpError("a length that is none")
            self._left, self._state = int(length), _State.SIZED
            if not self._left:
                self._end()
        else:
            self._state, self._persistent = _State.UNTIL_CLOSE, False

    def _take_size(self, line: bytes) -> None:
        size = _CHUNK.fullmatch(line)
        if size is None:
            raise HttpError("a chunk without a size")
        self._left = int(size[1], 16)
        self._state = _State.CHUNK_DATA if self._left else _State.TRAILER

    def _push(self, piece: bytes) -> None:
        self._pieces.append(piece)
        self._unread += len(piece)
        if self._unread > MOST_UNREAD and not self.paused:
            self.paused = True
            self._transport.pause_reading()
        self._wake()

    def _end(self) -> None:
        self._state = _State.ENDED
        self._wake()


class _Target(Struct, frozen=True, kw_only=True, eq=False):
    """Where a URL leads, and the head of a request there up to its length."""

    host: str
    port: int
    tls: bool
    head: bytes


class Pool:
    """Connections to upstreams, kept for ``keep`` seconds after an answer.

    ``connect`` seconds may pass until one is open; ``headers`` go with every request.
    """

    def __init__(self, *, connect: float, keep: float, headers: Mapping[str, str]) -> None:
        self._connect = connect
        self._keep = keep
        self._headers = headers
        self._targets: dict[str, _Target] = {}
        self._idle: dict[_Target, list[Connection]] = {}
        self._all: set[Connection] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._tls: ssl.SSLContext | None = None
        self._closed = False

    async def post(self, url: str, body: bytes) -> Connection:
        """Posts JSON; returns at the head of the answer.

        To be released or closed. Raises :class:`OSError`.
        """
        target = self._targets.get(url)
        if target is None:
            target = self._targets[url] = _target(url, self._headers)
        connection = self._take(target) or await self._open(target)
        try:
            connection.send(b"%b%d\r\n\r\n" % (target.head, len(body)), body)
            await connection.head()
        except BaseException:
            connection.close()
            raise
        return connection

    def close(self) -> None:
        """Closes every connection: who reads from one hears that it broke."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        for connection in list(self._all):
            connection.close()

    def keep(self, target: _Target, connection: Connection) -> None:
        """A connection waits for its next request."""
        if self._closed:
            connection.close()
            return
        loop = asyncio.get_running_loop()
        connection.idle_since = loop.time()
        self._idle.setdefault(target, []).append(connection)
        if self._timer is None:
            self._timer = loop.call_later(self._keep, self._sweep)

    def opened(self, connection: Connection) -> None:
        """A connection is there."""
        self._all.add(connection)

    def lost(self, target: _Target, connection: Connection) -> None:
        """A connection is gone."""
        self._all.discard(connection)
        idle = self._idle.get(target)
        if idle is not None and connection in idle:
            idle.remove(connection)

    def _take(self, target: _Target) -> Connection | None:
        """The connection that has waited the shortest, which is the likeliest to be open still."""
        idle = self._idle.get(target)
        while idle:
            connection = idle.pop()
            if connection.usable:
                return connection
        return None

    async def _open(self, target: _Target) -> Connection:
        if target.tls and self._tls is None:
            self._tls = ssl.create_default_context()
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(self._connect):
                _, connection = await loop.create_connection(
                    lambda: Connection(self, target),
                    target.host,
                    target.port,
                    ssl=self._tls if target.tls else None,
                )
        except TimeoutError as error:
            raise Unreachable(f"{target.host} took too long") from error
        if self._closed:
            connection.close()
        return connection

    def _sweep(self) -> None:
        """Closes what has waited too long."""
        loop = asyncio.get_running_loop()
        self._timer = None
        oldest = None
        for idle in self._idle.values():
            for connection in list(idle):
                if loop.time() - connection.idle_since >= self._keep:
                    connection.close()
                elif oldest is None or connection.idle_since < oldest:
                    oldest = connection.idle_since
        if oldest is not None:
            self._timer = loop.call_at(oldest + self._keep, self._sweep)


def _target(url: str, headers: Mapping[str, str]) -> _Target:
    parts = urlsplit(url)
    host = parts.hostname or ""
    if not host.isascii():
        host = host.encode("idna").decode()
    tls = parts.scheme == "https"
    port = parts.port or (443 if tls else 80)
    name = f"[{host}]" if ":" in host else host
    path = quote(parts.path or "/", safe="/%:@!$&'()*+,;=~")
    fields = {
        "Host": name if parts.port is None else f"{name}:{port}",
        "Accept": "*/*",
        "Content-Type": "application/json",
        **_credentials(parts.username, parts.password),
        **headers,
    }
    lines = [f"POST {path} HTTP/1.1", *(f"{name}: {value}" for name, value in fields.items())]
    head = "\r\n".join([*lines, "Content-Length: "]).encode("latin-1")
    return _Target(host=host, port=port, tls=tls, head=head)


def _credentials(user: str | None, password: str | None) -> dict[str, str]:
    """Those in a URL (RFC 7617)."""
    if user is None:
        return {}
    said = f"{unquote(user)}:{unquote(password or '')}".encode()
    return {"Authorization": f"Basic {base64.b64encode(said).decode()}"}
