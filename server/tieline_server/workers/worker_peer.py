"""Another worker as a peer, asked over its socket.

A call takes a connection of its own from a few that are kept, a stream one until its end. Each
call has a bound in time; a stream has none, but its other side says from time to time that it
lives.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, Sequence
from pathlib import Path
from typing import Final

import msgspec

from tieline import responses
from tieline.codecs import json
from tieline.errors import ApiError
from tieline.events import Event
from tieline.requests import Request
from tieline.requests import Resume as ResumeRequest
from tieline.responses import Response
from tieline_server.core.values import Principal
from tieline_server.peers import RemoteLane
from tieline_server.workers.framing import BrokenMessage, pack, send
from tieline_server.workers.peer_messages import (
    ANSWERED,
    HEARTBEAT,
    Answer,
    Batch,
    Call,
    Cancel,
    ClientEvent,
    Ended,
    Follow,
    Forget,
    Look,
    Metrics,
    Moved,
    Refused,
    Resume,
    error_of,
    events_in,
)

logger: Final = logging.getLogger("tieline.workers")

PATIENCE: Final = 5.0
"""Seconds that a call may take."""

SILENCE: Final = 3 * HEARTBEAT
"""Seconds without a word on a stream after which the other side counts as gone."""

KEPT: Final = 4
"""Connections that wait for the next call."""

UNSENT: Final = 64 * 1024 * 1024
"""Bytes of client events that the other side has not taken, past which a lane is cut off."""

Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Absent(Exception):
    """No process listens: the worker has ended, and so has all that ran there."""


def gone() -> ApiError:
    """The error of a call to a worker that ended before it answered, or does not answer."""
    return ApiError.of("server_error", "The process that has this response does not answer.")


class WorkerPeer:
    """A worker that listens at a path. See ``peers.Peer``."""

    def __init__(self, path: Path, *, patience: float = PATIENCE, silence: float = SILENCE) -> None:
        self.path = path
        self._patience = patience
        self._silence = silence
        self._idle: list[Connection] = []

    async def cancel(self, owner: str, response_id: str) -> Response | None:
        """See ``Peer``."""
        return await self._response(Cancel(owner, response_id))

    async def look(self, owner: str, response_id: str) -> Response | None:
        """See ``Peer``."""
        return await self._response(Look(owner, response_id))

    async def forget(self, owner: str, response_id: str) -> None:
        """See ``Peer``."""
        await self._response(Forget(owner, response_id))

    async def metrics(self) -> bytes:
        """See ``Peer``."""
        try:
            return (await self._ask(Metrics())).body or b""
        except Absent:
            raise gone() from None

    async def follow(
        self, owner: str, response_id: str, *, after: int | None
    ) -> AsyncGenerator[Sequence[Event], None]:
        """See ``Peer``."""
        reader, writer = await self._begin(Follow(owner, response_id, after), response_id)
        try:
            while (batch := await _next_batch(reader, self._silence)) is not None:
                yield batch
        finally:
            writer.close()

    async def resume(
        self, resume: ResumeRequest, principal: Principal, *, transport: str
    ) -> RemoteLane:
        """See ``Peer``."""
        asked = Resume(_say(resume, principal), transport)
        reader, writer = await self._begin(asked, resume.response_id or "")
        try:
            async with asyncio.timeout(self._patience):
                said = await _hear(reader)
            if isinstance(said, Refused):
                raise error_of(said)
            if not isinstance(said, Moved):
                raise gone()
        except BaseException as error:
            writer.close()
            if isinstance(error, TimeoutError):
                raise gone() from None
            raise
        return WorkerLane(reader, writer, silence=self._silence)

    def close(self) -> None:
        """Closes the connections that wait."""
        while self._idle:
            self._idle.pop()[1].close()

    async def _response(self, call: Call) -> Response | None:
        try:
            body = (await self._ask(call)).body
        except Absent:
            return None
        try:
            return None if body is None else responses.decode(body)
        except msgspec.MsgspecError:
            logger.exception("a peer's response cannot be read")
            raise gone() from None

    async def _ask(self, call: Call) -> Answer:
        try:
            async with asyncio.timeout(self._patience):
                while self._idle:
                    # One that has waited may have been closed meanwhile.
                    connection = self._idle.pop()
                    try:
                        return await self._exchange(call, connection)
                    except (BrokenMessage, ConnectionError):
                        continue
                return await self._exchange(call, await self._dial())
        except (BrokenMessage, OSError, TimeoutError):
            raise gone() from None

    async def _exchange(self, call: Call, connection: Connection) -> Answer:
        reader, writer = connection
        try:
            send(writer, call)
            await writer.drain()
            said = await ANSWERED.read(reader)
        except BaseException:
            writer.close()
            raise
        if isinstance(said, Answer | Refused) and len(self._idle) < KEPT:
            self._idle.append(connection)
        else:
            writer.close()
        if isinstance(said, Refused):
            raise error_of(said)
        if not isinstance(said, Answer):
            raise BrokenMessage
        return said

    async def _begin(self, asked: Follow | Resume, response_id: str) -> Connection:
        """Begins a stream; a worker that does not listen has ended, and its response with it."""
        try:
            async with asyncio.timeout(self._patience):
                connection = await self._dial()
            send(connection[1], asked)
        except Absent:
            raise ApiError.of(
                "response_not_found", f"Response with id '{response_id[:128]}' not found."
            ) from None
        except (OSError, TimeoutError):
            raise gone() from None
        return connection

    async def _dial(self) -> Connection:
        try:
            return await asyncio.open_unix_connection(self.path)
        except (FileNotFoundError, ConnectionRefusedError):
            raise Absent from None


class WorkerLane:
    """A lane whose turns run at another worker. See ``peers.RemoteLane``."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, silence: float
    ) -> None:
        self._silence = silence
        self._reader = reader
        self._writer = writer
        self._closed = False

    def send(self, request: Request, principal: Principal) -> None:
        """Forwards a client event; a peer that takes none is cut off, which ends ``events``."""
        transport = self._writer.transport
        if transport.is_closing():
            return
        self._writer.write(pack(_say(request, principal)))
        if transport.get_write_buffer_size() > UNSENT:
            transport.abort()

    async def events(self) -> AsyncGenerator[Sequence[Event], None]:
        """Yields what the peer's connection sends."""
        try:
            while (batch := await _next_batch(self._reader, self._silence)) is not None:
                yield batch
        except ApiError:
            if not self._closed:
                raise

    async def close(self) -> None:
        """Drops the connection at the peer."""
        self._closed = True
        self._writer.close()


def _say(request: Request, principal: Principal) -> ClientEvent:
    models = None if principal.models is None else tuple(principal.models)
    return ClientEvent(json.encode(request), principal.owner, models)


async def _next_batch(reader: asyncio.StreamReader, silence: float) -> Sequence[Event] | None:
    """Reads the next events of a stream; None at its end. Raises :class:`ApiError`."""
    while True:
        try:
            async with asyncio.timeout(silence):
                said = await _hear(reader)
        except TimeoutError:
            raise gone() from None
        if isinstance(said, Batch):
            return events_in(said)
        if isinstance(said, Ended):
            return None
        if isinstance(said, Refused):
            raise error_of(said)


async def _hear(reader: asyncio.StreamReader) -> object:
    """Reads the next message; raises :class:`ApiError` where none can come."""
    try:
        said = await ANSWERED.read(reader)
    except BrokenMessage:
        said = None
    if said is None:
        raise gone()
    return said
