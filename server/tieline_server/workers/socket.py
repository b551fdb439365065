"""A home as its neighbours ask it: a unix socket that this user alone can reach.

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
from tieline_server.homes import Home, Link
from tieline_server.workers.calls import (
    ASKED,
    PULSE,
    SAID,
    Answer,
    Cancel,
    Ended,
    Follow,
    Forget,
    Linked,
    Look,
    Pulse,
    Refused,
    Resume,
    Say,
    answer_of,
    batches,
    principal_of,
    refused,
)
from tieline_server.workers.frames import Torn, send

logger: Final = logging.getLogger("tieline.workers")

FAILED: Final = "The server had an error while processing your request."

FAREWELL: Final = 1.0
"""Seconds that the last events of a stream have to leave."""

_PEER: Final = Layout("3i")
"""struct ucred: process, user, group (unix(7), SO_PEERCRED)."""


class LastingHome(Home, Protocol):
    """A home that can be told that its process will stop."""

    async def drain(self, seconds: float) -> None:
        """What neighbours have on lanes of theirs gets so long to end."""
        ...


class HomeSocket:
    """Serves a home at a path, from ``open`` to ``close``."""

    def __init__(self, home: LastingHome, path: Path) -> None:
        self._home = home
        self._path = path
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._streams: set[asyncio.Task[None]] = set()
        """Those of them that are no calls."""

    async def open(self) -> None:
        """Listens."""
        self._server = await asyncio.start_unix_server(self._accept, self._path)

    async def drain(self, seconds: float) -> None:
        """Nobody finds it any more; what neighbours have here gets so long to end."""
        self._stop_listening()
        await self._home.drain(seconds)
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
        except (Torn, ConnectionError):
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
            except (Torn, ConnectionError):
                raise
            except Exception:
                logger.exception("a neighbour's call failed")
                answer = refused(ApiError.of("server_error", FAILED))
            send(writer, answer)
            await writer.drain()

    async def _answer(self, asked: object) -> Answer:
        home = self._home
        if isinstance(asked, Cancel):
            return answer_of(await home.cancel(asked.owner, asked.response_id))
        if isinstance(asked, Look):
            return answer_of(await home.look(asked.owner, asked.response_id))
        if isinstance(asked, Forget):
            await home.forget(asked.owner, asked.response_id)
            return Answer()
        return Answer(await home.metrics())

    async def _open(
        self, asked: Follow | Resume, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        task = asyncio.current_task()
        assert task is not None, "its connection is a task"
        self._streams.add(task)
        if isinstance(asked, Resume):
            await self._resume(asked, reader, writer)
            return
        events = self._home.follow(asked.owner, asked.response_id, after=asked.after)
        await _stream(events, _gone(reader), writer)

    async def _resume(
        self, asked: Resume, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        request = json.decode_request(asked.first.request)
        assert isinstance(request, ResumeRequest)
        principal = principal_of(asked.first)
        link = await self._home.resume(request, principal, transport=asked.transport)
        try:
            send(writer, Linked())
            await _stream(link.events(), _pass_on(reader, link), writer)
        finally:
            await link.close()


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
    """Says that the stream lives; one that has something unsent needs no such word."""
    while True:
        await asyncio.sleep(PULSE)
        if writer.transport.is_closing():
            return
        if not writer.transport.get_write_buffer_size():
            send(writer, Pulse())


async def _gone(reader: asyncio.StreamReader) -> None:
    """Returns when the other side has closed."""
    with suppress(OSError):
        while await reader.read(4096):
            pass


async def _pass_on(reader: asyncio.StreamReader, link: Link) -> None:
    """Client events, until the other side has closed."""
    with suppress(Torn):
        while isinstance(said := await SAID.read(reader), Say):
            link.send(json.decode_request(said.request), principal_of(said))


def _user_of(writer: asyncio.StreamWriter) -> int:
    found = writer.get_extra_info("socket")
    peer = found.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size)
    user: int = _PEER.unpack(peer)[1]
    return user
