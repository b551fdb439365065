"""HTTP/1.1 to upstreams (RFC 9112): pooled connections, one request at a time on each.

A turn is one request, so what a client library builds for each (a session's request, its body,
writer, response, reader and timers) costs as much as the rest of the turn, and each token goes
through its reader. Here a request is one write, and a piece of an answer is handed from the parser,
which is llhttp, to who reads. Only what the engine needs is there: no redirects, no cookies, no
encodings, no proxies.
"""

import asyncio
import base64
import math
import ssl
from collections.abc import Mapping
from copy import copy
from typing import Final, Literal, cast
from urllib.parse import quote, unquote, urlsplit

from httptools import HttpParserError, HttpResponseParser
from msgspec import Struct

MOST_HEAD: Final = 64 * 1024
"""Bytes of an answer that bring nothing of its body: its head, or a line between its chunks.
llhttp knows no bound; this one is seen once a read."""

MOST_UNREAD: Final = 256 * 1024
"""Bytes of an answer that wait to be read; with more, the upstream has to wait."""


class HttpError(ConnectionError):
    """What came is no HTTP."""


class Unreachable(ConnectionError):
    """No connection within its time."""


class Late(ConnectionError):
    """What was waited for did not come in time."""


_State = Literal["idle", "head", "body", "until close", "ended"]
"""What the next byte belongs to: nothing, as no request is out; the head of an answer; its body,
which may end with the connection; nothing, as the answer is whole."""


class Connection(asyncio.Protocol):
    """One connection, and the answer to its last request. It belongs to one reader at a time."""

    __slots__ = (
        "_bare", "_closed", "_error", "_looks_at", "_loop", "_parser", "_persistent", "_pieces",
        "_pool", "_state", "_target", "_timer", "_transport", "_unread", "_waiter", "deadline",
        "headers", "on_body", "paused", "status", "time",
    )  # fmt: skip

    def __init__(self, pool: "Pool", target: "_Target") -> None:
        self._pool = pool
        self._target = target
        self._loop = asyncio.get_running_loop()
        self.time = self._loop.time
        self._state: _State = "idle"
        self._closed = False
        self._waiter: asyncio.Future[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._pieces: list[bytes] = []
        self.on_body = self._pieces.append
        """The parser's, for each piece of a body: it runs no Python."""
        self.deadline = math.inf
        """When it is closed, unless something comes that is waited for, or a request goes out."""
        self._begin()

    def _begin(self) -> None:
        self.status = 0
        self.headers: dict[str, str] = {}
        """By their names in lower case."""
        self._error: Exception | None = None
        """What it ended with. Never raised itself: the frames would hold this, and it them."""
        self._pieces.clear()
        self._unread = 0
        self._bare = 0
        self.paused = False
        """Whether the upstream has to wait until more is read."""
        self._persistent = False

    # What the engine does.

    def send(self, head: bytes, body: bytes, *, deadline: float = math.inf) -> None:
        """Sends a request."""
        self._begin()
        self._state = "head"
        self.deadline = deadline
        self._transport.writelines((head, body))

    def answered(self) -> bool:
        """Whether the head of the answer is there. Raises :class:`ConnectionError`."""
        if not self.status and self._error is not None:
            raise copy(self._error)
        return self.status != 0

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
                raise copy(self._error)
            return b"" if self._state == "ended" else None
        piece = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        pieces.clear()
        self._unread = 0
        if self.paused:
            self.paused = False
            self._transport.resume_reading()
        return piece

    @property
    def waits(self) -> bool:
        """Whether there is nothing for :meth:`take`, not even an end."""
        return not (self._pieces or self._state == "ended" or self._error is not None)

    def more(self) -> "asyncio.Future[None]":
        """Done when something has come, or at the deadline. One at a time."""
        if self.deadline < self._looks_at:
            self._look_at(self.deadline)
        self._waiter = self._loop.create_future()
        return self._waiter

    @property
    def ended(self) -> bool:
        """Whether the whole answer is there, and read."""
        return self._state == "ended" and not self._pieces

    def release(self) -> None:
        """The answer was read: the connection may serve again."""
        if self._persistent and self.usable and self._state == "ended":
            self._state = "idle"
            self.deadline = self.time() + self._pool.keep
            self._pool.kept(self._target, self)
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
        waiter, self._waiter = self._waiter, None
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    def _look_at(self, when: float) -> None:
        """Has the deadline looked at then.

        It moves many times a turn. One timer that outlives it costs a turn nothing; it is never
        set further off than a connection waits for its next request.
        """
        if self._timer is not None:
            self._timer.cancel()
        self._looks_at = when
        self._timer = self._loop.call_at(when, self._look)

    def _look(self) -> None:
        now = self.time()
        waits = self._state == "idle" or self._waiter is not None
        if waits and self.deadline <= now:
            self._fail(Late("nothing came in time"))
            self._transport.abort()
        else:
            soon = now + self._pool.keep
            self._look_at(min(self.deadline, soon) if waits else soon)

    # What the loop says.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """It is open."""
        # uvloop's is one, but does not inherit from it.
        self._transport = cast("asyncio.Transport", transport)
        self._parser = HttpResponseParser(self)
        self._look_at(self.time() + self._pool.keep)
        self._pool.opened(self)

    def data_received(self, data: bytes) -> None:
        """Bytes of an answer."""
        before = self._state
        try:
            self._parser.feed_data(data)
        except HttpParserError as error:
            self._break(str(error.__context__ or error))
        if self._pieces:
            self._bare = 0
            self._unread += len(data)
            if self._unread > MOST_UNREAD and not self.paused:
                self.paused = True
                self._transport.pause_reading()
            self._wake()
        else:
            self._bare += len(data)
            if self._bare > MOST_HEAD:
                self._break("a line, or a head, without an end")
            if self._state != before:
                self._wake()

    def connection_lost(self, exc: Exception | None) -> None:
        """It is closed."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        # They hold each other.
        del self._parser
        self._pool.lost(self._target, self)
        if self._state == "until close" and exc is None:
            self._state = "ended"
            self._wake()
        elif self._state not in ("ended", "idle"):
            self._fail(exc or ConnectionResetError("the upstream closed the connection"))

    def _break(self, why: str) -> None:
        """What came is no HTTP, or not asked for: an answer that is whole stays so."""
        if self._state != "ended":
            self._fail(HttpError(why))
        self._transport.abort()

    def _fail(self, error: Exception) -> None:
        if self._error is None:
            self._error = error
        self._wake()

    # What the parser says.

    def on_message_begin(self) -> None:
        """The first byte of an answer."""
        if self._state != "head":
            raise HttpError("an answer without a request")

    def on_header(self, name: bytes, value: bytes) -> None:
        """A field of the head, or of the trailer."""
        if self._state == "head":
            # No tabs: with one behind it, llhttp takes "chunked" for another coding.
            self.headers[name.decode("latin-1").lower()] = value.rstrip(b" ").decode("latin-1")

    def on_headers_complete(self) -> None:
        """The head is whole."""
        parser, headers = self._parser, self.headers
        status = parser.get_status_code()
        if 100 <= status < 200 and status != 101:
            # Only on the way to an answer (RFC 9110 15.2).
            headers.clear()
            return
        if not 200 <= status < 600:
            raise HttpError("a status that was not asked for")
        coding = headers.get("transfer-encoding")
        if coding is not None and coding.lower() != "chunked":
            raise HttpError("a transfer coding that was not asked for")
        self._persistent = parser.should_keep_alive()
        # The parser sees no end of these (RFC 9112 6.3), except where a status has no body.
        endless = coding is None and "content-length" not in headers
        self._state = "until close" if endless else "body"
        self.status = status

    def on_message_complete(self) -> None:
        """The answer is whole, or one on the way to it."""
        if self._state != "head":
            self._state = "ended"


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
        self.keep = keep
        self._headers = headers
        self._targets: dict[str, _Target] = {}
        self._idle: dict[_Target, list[Connection]] = {}
        self._all: set[Connection] = set()
        self._tls: ssl.SSLContext | None = None
        self._closed = False

    async def post(self, url: str, body: bytes, *, within: float = math.inf) -> Connection:
        """Posts JSON; returns at the head of the answer, which has so many seconds to come.

        To be released or closed. Raises :class:`OSError`.
        """
        target = self._targets.get(url)
        if target is None:
            target = self._targets[url] = _target(url, self._headers)
        deadline = asyncio.get_running_loop().time() + within
        connection = self._take(target) or await self._open(target, deadline)
        try:
            head = b"%b%d\r\n\r\n" % (target.head, len(body))
            connection.send(head, body, deadline=deadline)
            while not connection.answered():
                await connection.more()
        except BaseException:
            connection.close()
            raise
        return connection

    def close(self) -> None:
        """Closes every connection: who reads from one hears that it broke."""
        self._closed = True
        for connection in list(self._all):
            connection.close()

    def kept(self, target: _Target, connection: Connection) -> None:
        """A connection waits for its next request."""
        if self._closed:
            connection.close()
            return
        self._idle.setdefault(target, []).append(connection)

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

    async def _open(self, target: _Target, deadline: float) -> Connection:
        if target.tls and self._tls is None:
            self._tls = ssl.create_default_context()
        loop = asyncio.get_running_loop()
        connected = loop.time() + self._connect
        try:
            async with asyncio.timeout_at(min(connected, deadline)):
                _, connection = await loop.create_connection(
                    lambda: Connection(self, target),
                    target.host,
                    target.port,
                    ssl=self._tls if target.tls else None,
                )
        except TimeoutError as error:
            # Ours, or the system's (ETIMEDOUT): no server was reached, whichever time was shorter.
            raise Unreachable(f"{target.host} took too long") from error
        if self._closed:
            connection.close()
        return connection


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
