"""A TCP proxy that understands just enough HTTP/2 (RFC 9113 4.1) to misbehave like a real one."""

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import Final, Self

from tests.support.signal import Signal

PREFACE: Final = 24
"""Bytes that a client sends before its first frame (RFC 9113 3.4)."""

DATA: Final = 0x0
PING: Final = 0x6
GOAWAY: Final = 0x7


class FrameCounter:
    """Counts the frames of one connection and direction by type, however the bytes are cut."""

    def __init__(self, total: Counter[int], signal: Signal, *, preface: int) -> None:
        self._total = total
        self._signal = signal
        self._skip = preface
        self._header = bytearray()

    def feed(self, data: bytes) -> Counter[int]:
        """The frames that begin in these bytes, by type; empty DATA frames do not count."""
        fresh: Counter[int] = Counter()
        position = 0
        while position < len(data):
            skipped = min(self._skip, len(data) - position)
            self._skip -= skipped
            position += skipped
            wanted = 9 - len(self._header)
            self._header += data[position : position + wanted]
            position += wanted
            if len(self._header) == 9:
                length = int.from_bytes(self._header[:3], "big")
                kind = self._header[3]
                if kind != DATA or length:
                    fresh[kind] += 1
                self._skip = length
                self._header.clear()
        self._total.update(fresh)
        self._signal.notify()
        return fresh


class FrameProxy:
    """Stands between a client and the server on ``target``; listens on ``port``.

    With ``quiet_limit`` a connection without a DATA frame for so many seconds, in either
    direction, is closed, as load balancers do: pings are no activity to them. ``abort`` resets
    every connection, as a crashed peer or a pulled cable would.
    """

    def __init__(self, target: int, *, quiet_limit: float | None = None) -> None:
        self._target = target
        self._quiet_limit = quiet_limit
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self.signal = Signal()
        self.port = 0
        self.cuts = 0
        self.from_client: Counter[int] = Counter()
        self.from_server: Counter[int] = Counter()
        """Frames that have passed, by type."""

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        self.abort()
        await self._server.wait_closed()

    def abort(self) -> None:
        """Resets every connection, both ways."""
        for writer in self._writers:
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self._target)
        pair = {writer, far_writer}
        self._writers |= pair
        watch = _Watch(self._quiet_limit, lambda: self._cut(pair))
        try:
            await asyncio.gather(
                _pump(
                    reader,
                    far_writer,
                    FrameCounter(self.from_client, self.signal, preface=PREFACE),
                    watch,
                ),
                _pump(
                    far_reader,
                    writer,
                    FrameCounter(self.from_server, self.signal, preface=0),
                    watch,
                ),
            )
        finally:
            watch.stop()
            self._writers -= pair
            for each in pair:
                each.transport.abort()

    def _cut(self, pair: set[asyncio.StreamWriter]) -> None:
        self.cuts += 1
        for writer in pair:
            writer.transport.abort()


class _Watch:
    def __init__(self, limit: float | None, cut: Callable[[], None]) -> None:
        self._limit = limit
        self._cut = cut
        self._handle: asyncio.TimerHandle | None = None
        self.touch()

    def touch(self) -> None:
        self.stop()
        if self._limit is not None:
            self._handle = asyncio.get_running_loop().call_later(self._limit, self._cut)

    def stop(self) -> None:
        if self._handle is not None:
            self._handle.cancel()


async def _pump(
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    counter: FrameCounter,
    watch: _Watch,
) -> None:
    try:
        while data := await reader.read(65536):
            if counter.feed(data)[DATA]:
                watch.touch()
            writer.write(data)
            await writer.drain()
    except ConnectionError:
        pass
    writer.transport.abort()
