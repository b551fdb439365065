"""The body of a request: within its limit, its share and its time, and as plain bytes."""

import asyncio
import sys
import zlib
from collections.abc import Callable
from typing import Final

from aiohttp import HttpVersion11, web

from tieline.errors import ApiError
from tieline_server.transports.arrivals import Arrival

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

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
