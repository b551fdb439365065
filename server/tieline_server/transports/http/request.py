"""One request as its handler sees it: its headers, its body, the create in it, and its answers.

Errors go as HTTP says them: a status, OpenAI's envelope, and headers that say when to retry.
Agents send their tools and instructions in full with every request. Bytes that are those of the
last create on the same connection are neither checked nor read again. This is all that two
requests share: whose they are, and the chain that they continue, is a matter of each.
"""

import asyncio
import math
import sys
import zlib
from collections.abc import Awaitable, Callable, Mapping
from typing import Final

import msgspec
from aiohttp import HttpVersion11, web
from msgspec import Struct

from tieline.codecs.json import RequestDecoder
from tieline.errors import ApiError
from tieline.requests import Create
from tieline_server.core.create.settings import SettingsCache
from tieline_server.core.values import Caller
from tieline_server.transports.arrivals import Arrival
from tieline_server.transports.live_calls import REQUEST_ID, trace_context_of

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

JSON: Final = "application/json"

SERVER: Final = "tieline"
"""Who answers; not which version of what, which would help only an attacker."""

HEADERS: Final[dict[int, dict[str, str]]] = {
    401: {"WWW-Authenticate": "Bearer"},
    # RFC 9110 15.5.22: the answer says what would be accepted.
    426: {"Upgrade": "websocket", "Connection": "Upgrade", "Sec-WebSocket-Version": "13"},
}
"""Status -> the headers that it demands."""


API_VERSION: Final = "2020-10-01"
"""The version that OpenAI's API answers with, and SDKs know."""


class Call(Struct, frozen=True, kw_only=True):
    """A request, its id, and what every answer to it says."""

    request: web.Request
    caller: Caller
    started: float
    """Monotonic seconds."""
    clock: Callable[[], float]
    cors: Mapping[str, str]
    """Headers for a browser of a listed origin."""
    create_reader: "CreateReader"
    """Reads creates, by what came before on the same connection."""
    name: str = ""
    """What the path names: a response's id, a model."""

    @property
    def request_id(self) -> str:
        """Its id, in the answer and in the log."""
        return self.caller.request_id

    @property
    def spent(self) -> float:
        """Seconds since the request came in."""
        return self.clock() - self.started

    @property
    def authorization(self) -> str | None:
        """The header that says who asks."""
        return self.request.headers.get("Authorization")

    @property
    def trace_context(self) -> dict[str, str] | None:
        """The caller's trace context, where there is one."""
        return trace_context_of(self.request.headers)

    def stamp(self, response: web.StreamResponse, phases: Mapping[str, float]) -> None:
        """Writes what every answer says into its headers; ``phases`` are milliseconds."""
        headers = response.headers
        headers["Server"] = SERVER
        headers[REQUEST_ID] = self.request_id
        headers["openai-version"] = API_VERSION
        headers["openai-processing-ms"] = str(round(self.spent * 1000))
        if phases:
            timings = (f"{name};dur={spent:g}" for name, spent in phases.items())
            headers["Server-Timing"] = ", ".join(timings)
        headers.update(self.cors)


Handler = Callable[[Call], Awaitable[web.StreamResponse]]


def json_response(body: bytes, *, status: int = 200) -> web.Response:
    """A JSON answer."""
    return web.Response(body=body, status=status, content_type=JSON)


def error_response(error: ApiError) -> web.Response:
    """The answer to a request that failed (wire.md 4.1.3)."""
    detail = {
        "message": error.message,
        "type": error.type,
        "param": error.param,
        "code": error.code,
    }
    response = json_response(msgspec.json.encode({"error": detail}), status=error.status)
    headers = response.headers
    headers.update(HEADERS.get(error.status, {}))
    headers["x-should-retry"] = "true" if error.retryable else "false"
    if error.retry_after is not None:
        headers["Retry-After"] = str(math.ceil(error.retry_after))
        headers["retry-after-ms"] = str(math.ceil(error.retry_after * 1000))
    return response


MOST: Final = 128 * 1024
"""Bytes of a body that is worth remembering: agents repeat some 40 kB, and connections are many."""


class CreateReader:
    """Reads the creates of one connection.

    >>> create_reader = CreateReader()
    >>> create_reader.read(b'{"model": "m", "input": "hi"}').model
    'm'
    """

    __slots__ = ("_decoder", "recall")

    def __init__(self) -> None:
        self._decoder: RequestDecoder | None = None
        self.recall: SettingsCache | None = None
        """For the connection of the create that was read last; None: it remembers for itself."""

    def read(self, body: bytes) -> Create:
        """The create in a request's body; raises :class:`ApiError` (400) for what is none.

        A body that is too large to be remembered has all that came before it forgotten.
        """
        if len(body) > MOST:
            self._decoder = self.recall = None
            return RequestDecoder().create(body)
        if self._decoder is None:
            self._decoder = RequestDecoder()
            self.recall = SettingsCache()
        return self._decoder.create(body)


CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"


async def read_body(
    request: web.Request, arrival: Callable[[float], Arrival], *, limit: int
) -> bytes:
    """All of the body, decoded. ``arrival`` makes what counts its bytes while they come.

    Raises :class:`ApiError`: 413 past ``limit`` bytes, before or after decoding; 429 or 503 where
    what still comes has no room; 408 when it is silent for too long, or slower than it may be;
    415 for an encoding that we do not know; 400 for a body that does not keep to its framing or
    its encoding. One that is cut short ends with its connection.
    """
    if request.content_length is not None and request.content_length > limit:
        raise _too_large(limit)
    encoding = request.headers.get("Content-Encoding", "identity").strip().lower()
    decode = _DECODERS.get(encoding)
    if decode is None:
        known = ", ".join(f"'{name}'" for name in _DECODERS)
        raise ApiError.of(
            "unsupported_media_type",
            f"Unsupported 'Content-Encoding'. Supported values are: {known}.",
        )
    try:
        data = await _read(request, arrival, limit)
    except web.RequestPayloadError:
        raise ApiError.of("invalid_request", "The request's framing is broken.") from None
    except TimeoutError:
        raise ApiError.of("idle_timeout", "The request's body did not come in time.") from None
    try:
        plain = decode(data, limit + 1)
    except (zlib.error, zstd.ZstdError, EOFError):
        raise ApiError.of("invalid_request", f"The body is not valid {encoding}.") from None
    if len(plain) > limit:
        raise _too_large(limit)
    return plain


async def _read(request: web.Request, arrival: Callable[[float], Arrival], limit: int) -> bytes:
    content = request.content
    if content.is_eof():
        # The rule: a body of a few kB came with its head, and no timer is needed.
        return content.read_nowait()
    # RFC 9110 10.1.1: not to a client of HTTP/1.0.
    expects = request.headers.get("Expect", "").lower() == "100-continue"
    if expects and request.version >= HttpVersion11:
        await request.writer.write(CONTINUE)
    # Not a list of what came: pieces of two bytes would take thirty times as many.
    body = bytearray()
    loop = asyncio.get_running_loop()
    coming = arrival(loop.time())
    try:
        async with asyncio.timeout_at(coming.due) as deadline:
            while part := await content.readany():
                if len(body) + len(part) > limit:
                    raise _too_large(limit)
                coming.take(len(part), loop.time())
                body += part
                deadline.reschedule(coming.due)
        return bytes(body)
    finally:
        coming.end()


def _too_large(limit: int) -> ApiError:
    return ApiError.of("request_too_large", f"The body is larger than {limit} bytes.")


def _identity(data: bytes, _most: int) -> bytes:
    return data


def _gunzip(data: bytes, most: int) -> bytes:
    decoder = zlib.decompressobj(wbits=31)
    plain = decoder.decompress(data, most)
    if len(plain) < most and (not decoder.eof or decoder.unused_data):
        raise EOFError
    return plain


def _unzstd(data: bytes, most: int) -> bytes:
    decoder = zstd.ZstdDecompressor()
    plain = decoder.decompress(data, max_length=most)
    if len(plain) < most and (not decoder.eof or decoder.unused_data):
        raise EOFError
    return plain


_DECODERS: Final[dict[str, Callable[[bytes, int], bytes]]] = {
    "identity": _identity,
    "gzip": _gunzip,
    "zstd": _unzstd,
}
"""Content-Encoding -> decoder: (body, most bytes that are wanted) -> plain bytes."""
