"""What aiohttp's parser takes of a request and an intermediary may read in another way.

Two readers that disagree where a request ends are how one is smuggled past the first of them
(RFC 9112 11.2). The parser refuses most of it by itself; what it takes wrongly is refused here,
and so is a head that is larger than all heads together should be: no key is known before it ends.
"""

from collections.abc import Sequence
from typing import Any, Final

from aiohttp import HttpVersion10, HttpVersion11
from aiohttp.http_exceptions import BadHttpMessage
from aiohttp.http_parser import HttpRequestParser, RawRequestMessage
from aiohttp.streams import StreamReader

from tieline.errors import ApiError

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
