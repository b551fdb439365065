"""The private names of aiohttp that this server uses; no other module does.

Each says what it is for and what upstream has said of it. ``test_aiohttp`` fails where a release
of aiohttp no longer has one of them, or has it with another meaning.
"""

import asyncio
from collections.abc import Callable
from typing import Any, cast

from aiohttp import web
from aiohttp.http_parser import HttpRequestParser


class JoinedResponse(web.StreamResponse):
    """An answer whose head leaves together with its first bytes, not in a write before them.

    ``web.Response`` does so since aio-libs/aiohttp#10991; for a streamed answer the same switch
    has no public name.
    """

    _send_headers_immediately = False


class RequestHandler(web.RequestHandler):
    """aiohttp's protocol of one connection, with what it has no public way to set.

    aio-libs/aiohttp has no issue of these; what makes them necessary stands at each.
    """

    __slots__ = ("loop",)

    def __init__(self, server: web.Server, **settings: Any) -> None:
        super().__init__(server, **settings)
        self.loop: asyncio.AbstractEventLoop = self._loop
        """The loop that serves the connection."""

    def use_parser(self, wrap: Callable[[HttpRequestParser], object], *, pipelined: int) -> None:
        """Has ``wrap`` look at all that the parser of requests takes; ``pipelined`` may wait.

        The settings of ``web.Server`` reach the parser, but the number of requests that are read
        ahead does not: without it a client has as many in memory as it likes.
        """
        parser = HttpRequestParser(
            self,
            self._loop,
            self._read_bufsize,
            max_line_size=self.max_line_size,
            max_field_size=self.max_field_size,
            payload_exception=web.RequestPayloadError,
            auto_decompress=False,
            max_msg_queue_size=pipelined,
        )
        self._parser = cast(Any, wrap(parser))
        self._max_msg_queue_size = pipelined
        self._msg_queue_resume_size = pipelined // 2

    @property
    def reading_paused(self) -> bool:
        """Whether aiohttp reads nothing for now, since what has come waits to be taken."""
        return self._reading_paused

    def frame_reader(self, reader: Any) -> Any:
        """What reads the frames of an upgrade in place of aiohttp's ``reader``.

        That one takes frames without a mask and fragments out of order (RFC 6455 5.1, 5.4).
        """
        raise NotImplementedError

    def set_parser(self, parser: Any, *how: Any, **named: Any) -> None:
        """An upgrade: from here on ``parser`` reads frames."""
        super().set_parser(self.frame_reader(parser), *how, **named)
