"""Server-sent events: the only writer of one streamed answer (wire.md 7.3, WHATWG SSE)."""

import asyncio
from collections.abc import Sequence
from typing import Final

from aiohttp.http_writer import StreamWriter
from msgspec import UNSET

from tieline import events
from tieline.errors import ApiError
from tieline_server.core.create.profile import PROFILES
from tieline_server.garbage_collection import forget_frames
from tieline_server.transports.http.tcp_connection import UNSENT_BYTES
from tieline_server.transports.json_events import EventJson, error_json
from tieline_server.transports.live_calls import LiveConnection
from tieline_server.transports.stream import Batches, TransportWriter, WriterTimer

WRITE_BYTES: Final = 16 * 1024
"""Where a write of gathered events closes; a larger event goes alone."""

DONE: Final = b"data: [DONE]\n\n"
"""What follows the terminal event."""

_TYPE_AT: Final = len(b'{"type":"')
_BREAKS: Final = bytes.maketrans(b"\r\n", b"  ")
_END: Final = b"\n\n"
_LF, _CR = b"\n\r"
# As numbers: to look for bytes in bytes, CPython first raises and formats a TypeError.


def _head(kind: bytes) -> bytes:
    return b"event: %b\ndata: " % kind


_RENAMED: Final = {name for profile in PROFILES.values() for name, _ in profile.renamed}
_HEADS: Final = {
    kind: _head(name.encode())
    for name, kind in events.BY_TYPE.items()
    if name not in _RENAMED and kind is not events.Timing
}
"""What stands before the events that have one name in all profiles."""


def frame(data: bytes) -> bytes:
    """One event as a frame; ``data`` is JSON that begins with its ``type``.

    Line breaks are legal between the tokens of a client's JSON that is echoed, and would end
    the frame; inside strings JSON has none.

    >>> frame(b'{"type":"error"}')
    b'event: error\\ndata: {"type":"error"}\\n\\n'
    """
    if _LF in data or _CR in data:
        data = data.translate(_BREAKS)
    kind = data[_TYPE_AT : data.index(b'"', _TYPE_AT)]
    return _head(kind) + data + _END


def comment(text: str) -> bytes:
    """What every reader ignores: proof of life."""
    return b": %b\n\n" % text.encode()


class EventStream:
    """Gathers the events of a connection into writes of whole events, and sends them.

    Made and run by the coroutine that answers the request. ``first`` is the event that it took
    already; ``joined`` says whether a write may hold several events. ``heartbeat`` and
    ``write_timeout`` are seconds.
    """

    def __init__(
        self,
        writer: StreamWriter,
        live: LiveConnection,
        encoder: EventJson,
        *,
        first: events.Event,
        joined: bool,
        heartbeat: float,
        write_timeout: float,
    ) -> None:
        self._writer = writer
        self._live = live
        self._connection = live.connection
        self._encoder = encoder
        self._joined = joined
        transport = writer.transport
        self._timer = WriterTimer(
            heartbeat=heartbeat,
            write_timeout=write_timeout,
            unsent=None if transport is None else transport.get_write_buffer_size,
        )
        self._out = TransportWriter(transport, self._timer, behind=UNSENT_BYTES, drain=writer.drain)
        self._numbers = 0
        most = WRITE_BYTES if joined else 0
        self._batches = Batches(self._connection, self._encode, most=most, first=[first])
        self._begun = False
        """Whether the head has left."""

    async def run(self) -> None:
        """Writes until the connection has closed, then ``[DONE]`` and the end of the body.

        Raises ``Stuck`` when a write takes longer than ``write_timeout`` seconds, and
        :class:`asyncio.CancelledError` when the peer is gone.
        """
        try:
            await self._pump()
        except ConnectionError as error:
            # aiohttp's word for a peer that is gone.
            forget_frames(error)
            raise asyncio.CancelledError from None
        finally:
            self._timer.stop()
            self._batches.close()

    async def _pump(self) -> None:
        batches, connection = self._batches, self._connection
        while True:
            data = batches.next()
            if connection.closed and batches.empty and (self._joined or data is None):
                await self._write((data or b"") + self._end(), last=True)
                return
            if data is None:
                if not await self._silent():
                    continue
                data = batches.next() or comment(connection.phase())
            await self._write(data)

    async def _silent(self) -> bool:
        """Waits for what it has to do itself; True when it took so long that a sign is due."""
        try:
            await self._connection.wait(self._send_now if self._joined and self._begun else None)
        except asyncio.CancelledError:
            if self._timer.fired():
                return True
            raise
        if self._timer.writing:
            await self._out.drain()
        return False

    def _send_now(self) -> bool:
        """Sends what a write takes; False when the peer is behind, or there is more to do."""
        if self._connection.closed:
            # The last events leave together with the end of the body.
            return False
        data = self._batches.next()
        if data is not None and not self._out.put(self._framed(data)):
            return False
        return self._batches.empty

    def _framed(self, data: bytes) -> bytes:
        """As a chunk (RFC 9112, 7.1), where the version has them."""
        return b"%x\r\n%b\r\n" % (len(data), data) if self._writer.chunked else data

    async def _write(self, data: bytes, *, last: bool = False) -> None:
        self._timer.begin(len(data))
        try:
            if last:
                await self._writer.write_eof(data)
            else:
                await self._writer.write(data)
            await self._writer.drain()
            if not self._joined:
                # The loop joins what is written in one of its turns.
                await asyncio.sleep(0)
        except asyncio.CancelledError:
            raise self._timer.interruption() from None
        self._timer.end()
        self._begun = True

    def _encode(self, taken: Sequence[events.Event]) -> list[bytes]:
        frames: list[bytes] = []
        encoders, encoded = self._encoder.encoders, 0
        for event in taken:
            text = encoders[type(event)](event)
            if event.sequence_number is not UNSET:
                self._numbers = event.sequence_number + 1
            if text is None:
                continue
            encoded += len(text)
            head = _HEADS.get(type(event))
            if head is None or _LF in text or _CR in text:
                frames.append(frame(text))
            else:
                frames.append(head + text + _END)
        self._connection.work.encode += encoded
        return frames

    def _end(self) -> bytes:
        error = self._live.error or self._connection.error
        return DONE if error is None else self._error(error) + DONE

    def _error(self, error: ApiError) -> bytes:
        """Why the connection ended before its response did."""
        event = events.ErrorEvent(
            sequence_number=self._numbers,
            status=error.status,
            error=events.ErrorDetail.of(error),
        )
        return frame(error_json(event))
