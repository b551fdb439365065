"""How other workers ask this one: a unix socket that this user alone can reach.

A connection takes one call after another, or one stream. What a slow reader has not taken stays
with the turn: the socket's own flow control is the only buffer.
"""

import asyncio
import logging
import os
import socket
from collections.abc import AsyncGenerator, AsyncIterator, Coroutine, Sequence
from contextlib import suppress
from pathlib import Path
from struct import Struct as Layout
from typing import Any, Final, Protocol

from tieline.codecs import json
from tieline.errors import ApiError
from tieline.events import Event
from tieline.requests import Resume as ResumeRequest
from tieline_server.peers import Peer, RemoteLane
from tieline_server.workers.framing import BrokenMessage, send
from tieline_server.workers.peer_messages import (
    ASKED,
    HEARTBEAT,
    SAID,
    Answer,
    Cancel,
    ClientEvent,
    Ended,
    Follow,
    Forget,
    Heartbeat,
    Look,
    Moved,
    Refused,
    Resume,
    answer_of,
    batches,
    principal_of,
    refused,
)

logger: Final = logging.getLogger("tieline.workers")

FAILED: Final = "The server had an error while processing your request."

FAREWELL: Final = 1.0
"""Seconds that the last events of a stream have to be sent."""

_PEER: Final = Layout("3i")
"""struct ucred: process, user, group (unix(7), SO_PEERCRED)."""


class DrainablePeer(Peer, Protocol):
    """A peer that can be told that its process will stop."""

    async def drain(self, seconds: float) -> None:
        """Gives the lanes that it serves for others so many seconds to end."""
        ...


class PeerSocket:
    """Answers what others ask ``peer``, at a path, from ``open`` to ``close``."""

    def __init__(self, peer: DrainablePeer, path: Path) -> None:
        self._peer = peer
        self._path = path
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._streams: set[asyncio.Task[None]] = set()
        """Those of them that are streams, not calls."""

    async def open(self) -> None:
        """Begins to listen."""
        self._server = await asyncio.start_unix_server(self._accept, self._path)

    async def drain(self, seconds: float) -> None:
        """Stops listening, and gives the lanes that it serves for others time to end."""
        self._stop_listening()
        await self._peer.drain(seconds)
        if self._streams:
            await asyncio.wait(self._streams, timeout=seconds + FAREWELL)

    async def close(self) -> None:
        """Ends every connection. Idempotent."""
        self._stop_listening()
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)

    def _stop_listening(self) -> None:
        if self._server is not None:
            with suppress(FileNotFoundError):
                self._path.unlink()
            self._server.close()
            self._server = None

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None, "asyncio runs this as a task"
        self._tasks.add(task)
        try:
            if _user_of(writer) == os.getuid():
                await self._serve(reader, writer)
        except (BrokenMessage, ConnectionError):
            pass
        except asyncio.CancelledError:
            # Closing; asyncio would log it as a fault of this handler.
            pass
        finally:
            self._tasks.discard(task)
            self._streams.discard(task)
            writer.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while (asked := await ASKED.read(reader)) is not None:
            try:
                if isinstance(asked, Follow | Resume):
                    await self._open(asked, reader, writer)
                    return
                answer: Answer | Refused = await self._answer(asked)
            except ApiError as error:
                answer = refused(error)
            except (BrokenMessage, ConnectionError):
                raise
            except Exception:
                logger.exception("a peer's call failed")
                answer = refused(ApiError.of("server_error", FAILED))
            send(writer, answer)
            await writer.drain()

    async def _answer(self, asked: object) -> Answer:
        peer = self._peer
        if isinstance(asked, Cancel):
            return answer_of(await peer.cancel(asked.owner, asked.response_id))
        if isinstance(asked, Look):
            return answer_of(await peer.look(asked.owner, asked.response_id))
        if isinstance(asked, Forget):
            await peer.forget(asked.owner, asked.response_id)
            return Answer()
        return Answer(await peer.metrics())

    async def _open(
        self, asked: Follow | Resume, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        task = asyncio.current_task()
        assert task is not None, "its connection is a task"
        self._streams.add(task)
        if isinstance(asked, Resume):
            await self._resume(asked, reader, writer)
            return
        events = self._peer.follow(asked.owner, asked.response_id, after=asked.after)
        await _stream(events, _gone(reader), writer)

    async def _resume(
        self, asked: Resume, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        request = json.decode_request(asked.first.request)
        assert isinstance(request, ResumeRequest)
        principal = principal_of(asked.first)
        lane = await self._peer.resume(request, principal, transport=asked.transport)
        try:
            send(writer, Moved())
            await _stream(lane.events(), _pass_on(reader, lane), writer)
        finally:
            await lane.close()


async def _stream(
    events: AsyncIterator[Sequence[Event]],
    reading: Coroutine[Any, Any, None],
    writer: asyncio.StreamWriter,
) -> None:
    """Sends events until they end, or until ``reading`` does: then the reader is gone."""
    tasks = [
        asyncio.ensure_future(work) for work in (_send(events, writer), reading, _beat(writer))
    ]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
    sent = tasks[0]
    if not sent.cancelled():
        sent.result()


async def _send(events: AsyncIterator[Sequence[Event]], writer: asyncio.StreamWriter) -> None:
    try:
        async for some in events:
            for batch in batches(some):
                send(writer, batch)
                await writer.drain()
    finally:
        if isinstance(events, AsyncGenerator):
            await events.aclose()
    send(writer, Ended())
    await writer.drain()


async def _beat(writer: asyncio.StreamWriter) -> None:
    """Sends heartbeats while nothing else is unsent."""
    while True:
        await asyncio.sleep(HEARTBEAT)
        if writer.transport.is_closing():
            return
        if not writer.transport.get_write_buffer_size():
            send(writer, Heartbeat())


async def _gone(reader: asyncio.StreamReader) -> None:
    """Returns when the reader has closed."""
    with suppress(OSError):
        while await reader.read(4096):
            pass


async def _pass_on(reader: asyncio.StreamReader, lane: RemoteLane) -> None:
    """Takes client events until the reader has closed."""
    with suppress(BrokenMessage):
        while isinstance(said := await SAID.read(reader), ClientEvent):
            lane.send(json.decode_request(said.request), principal_of(said))


def _user_of(writer: asyncio.StreamWriter) -> int:
    found = writer.get_extra_info("socket")
    peer = found.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size)
    user: int = _PEER.unpack(peer)[1]
    return user
