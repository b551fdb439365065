"""The rules of both ends of a stream, whatever the transport: one writer, and one reader.

A writer gathers what a connection has to say into writes of whole events, and hands them to the
loop for as long as its peer keeps up. One timer notices both that a write is stuck and that
nothing was said for too long. The reader waits for no turn; a client that takes nothing is
read no further than a backlog.
"""

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, Generic, NamedTuple, Protocol, TypeVar

from msgspec import structs

from tieline.codecs import json
from tieline.errors import ApiError
from tieline.events import ErrorDetail, ErrorEvent, Event
from tieline.ids import is_stream_id
from tieline.requests import BEGINNING, Append, Create, Request
from tieline_server.runtime import ConnectionDriver, server_error

M = TypeVar("M")

BACKLOG: Final = 64
"""Messages taken from a client that takes none: the next one waits for the stuck write."""

LEAST_BYTES: Final = 16 * 1024
"""A smaller ``max_receive_bytes`` is read as this: errors and greetings must fit."""

_log: Final = logging.getLogger(__name__)

PACE: Final = 16 * 1024
"""Bytes that a peer takes of a write within the write timeout, or is stuck: a usual write has no
more, and a larger one, of one large event, is given as much time as so many of them."""


class Stuck(Exception):
    """A write took longer than the write timeout."""


class WriterTimer:
    """One timer that interrupts a writer: stuck in a write, or silent for too long.

    It moves lazily: a write costs two stores here, where two timers of their own would cost a
    fifth of the write. It interrupts by a cancellation of the task that made it, and that task
    asks ``fired`` whose cancellation it was. ``unsent`` says how many bytes wait for the peer,
    where that can be known.
    """

    __slots__ = ("_caught_up", "_fired", "_handle", "_heartbeat", "_left", "_loop",
                 "_quiet_since", "_task", "_timeout", "_unsent", "_writing_since")  # fmt: skip

    def __init__(
        self,
        *,
        heartbeat: float,
        write_timeout: float,
        unsent: Callable[[], int] | None = None,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        task = asyncio.current_task()
        assert task is not None, "made by the coroutine that writes"
        self._task: asyncio.Task[Any] | None = task
        self._heartbeat = heartbeat
        self._timeout = write_timeout
        self._quiet_since = self._loop.time()
        self._writing_since: float | None = None
        self._unsent = unsent
        self._left = 0
        self._caught_up: asyncio.Event | None = None
        self._fired = False
        self._handle: asyncio.TimerHandle | None = None
        self._arm(self._quiet_since + heartbeat)

    @property
    def writing(self) -> bool:
        """Whether a write is in flight."""
        return self._writing_since is not None

    def begin(self, left: int = 0) -> None:
        """A write begins, of so many bytes, where progress of it can be seen."""
        self._writing_since = self._loop.time()
        self._left = left

    def end(self) -> None:
        """A write is done."""
        self._writing_since = None
        self._quiet_since = self._loop.time()
        if self._caught_up is not None:
            self._caught_up.set()
            self._caught_up = None

    async def caught_up(self) -> None:
        """Waits until the write in flight is done, or the writer is."""
        if self.writing:
            self._caught_up = self._caught_up or asyncio.Event()
            await self._caught_up.wait()

    def interrupt(self) -> None:
        """Interrupts the writer now."""
        if self._task is not None:
            self._fired = True
            self._task.cancel()

    def fired(self) -> bool:
        """Whether the cancellation that just arrived is this timer's; takes it back if so.

        False as well when the call itself was cancelled in the same moment.
        """
        if not self._fired or self._task is None:
            return False
        self._fired = False
        self._arm(self._loop.time() + self._heartbeat)
        return self._task.uncancel() == 0

    def cancelled(self) -> bool:
        """Whether the writer was cancelled by another than this timer, or is done."""
        return self._task is None or self._task.cancelling() > self._fired

    def interruption(self) -> BaseException:
        """What a cancellation that arrived in a write means: :class:`Stuck` where it is ours."""
        return Stuck() if self.fired() else asyncio.CancelledError()

    def stop(self) -> None:
        """Interrupts nothing any more, and keeps no task alive that ended by an exception."""
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None
        self._task = None
        self.end()

    def _arm(self, due: float) -> None:
        # Never further ahead than the shorter of the two, so that neither is noticed late.
        soon = self._loop.time() + min(self._heartbeat, self._timeout)
        self._handle = self._loop.call_at(min(due, soon), self._tick)

    def _tick(self) -> None:
        since = self._writing_since
        due = self._quiet_since + self._heartbeat if since is None else since + self._timeout
        if self._loop.time() < due:
            self._arm(due)
        elif since is not None and self._moves():
            self._writing_since = self._loop.time()
            self._arm(self._writing_since + self._timeout)
        else:
            self._handle = None
            self.interrupt()

    def _moves(self) -> bool:
        """Whether the peer, late as it is, has taken enough since this was asked last."""
        if self._unsent is None:
            return False
        before, self._left = self._left, self._unsent()
        return before - self._left >= PACE


class TransportWriter:
    """The writes of the coroutine that ``timer`` watches, which need not be woken for each.

    ``behind`` is how many bytes may wait for the peer; ``drain`` returns when it has caught up.
    """

    __slots__ = ("_behind", "_drain", "_timer", "_transport")

    def __init__(
        self,
        transport: asyncio.WriteTransport | None,
        timer: WriterTimer,
        *,
        behind: int,
        drain: Callable[[], Awaitable[object]],
    ) -> None:
        self._transport = transport
        self._timer = timer
        self._behind = behind
        self._drain = drain

    def put(self, data: bytes) -> bool:
        """Hands bytes over; False when the peer is behind, and a write in flight.

        Raises :class:`ConnectionResetError` where the peer is gone.
        """
        transport = self._transport
        if transport is None or transport.is_closing():
            raise ConnectionResetError("the peer is gone")
        transport.write(data)
        size = transport.get_write_buffer_size()
        if size > self._behind:
            self._timer.begin(size)
            return False
        self._timer.end()
        return True

    async def drain(self) -> None:
        """Waits until the peer has caught up with the write in flight.

        Raises :class:`Stuck` where that takes too long.
        """
        try:
            await self._drain()
        except asyncio.CancelledError:
            raise self._timer.interruption() from None
        self._timer.end()


EVENTS: Final = 64
"""Events taken from a connection at once: bounds what is encoded and not yet written."""

Encode = Callable[[Sequence[Event]], list[bytes]]
"""The bytes of each event as the transport frames it; events that the client does not get have
none."""


class Batches:
    """The writes of one connection. ``most`` is where a write closes; a larger event goes alone.

    With ``most`` 0 every event is a write of its own.
    """

    __slots__ = ("_connection", "_encode", "_frames", "_outgoing", "most")

    def __init__(
        self,
        connection: ConnectionDriver,
        encode: Encode,
        *,
        most: int,
        first: Sequence[Event] = (),
    ) -> None:
        self._connection = connection
        self._outgoing = connection.connection.outgoing
        self._encode = encode
        self.most = most
        self._frames = encode(first)

    @property
    def empty(self) -> bool:
        """Whether there is nothing to write now."""
        return not self._frames and self._outgoing.empty

    def close(self) -> None:
        """Drops unsent frames and the reference to the encoder, so that the writer can be freed."""
        self._frames.clear()
        self._encode = _nothing

    def next(self) -> bytes | None:
        """The next write; None when there is nothing to write now."""
        frames, self._frames = self._frames, []
        while sum(map(len, frames)) <= self.most and (events := self._connection.take(EVENTS)):
            frames += self._encode(events)
            if frames and len(events) < EVENTS:
                break
        data = b"".join(frames)
        if len(data) > self.most and len(frames) > 1:
            return self._cut(frames)
        return data or None

    def _cut(self, frames: list[bytes]) -> bytes:
        """As many frames as fit, at least one; the others are next."""
        count, size = 1, len(frames[0])
        while size + len(frames[count]) <= self.most:
            size += len(frames[count])
            count += 1
        self._frames = frames[count:]
        return b"".join(frames[:count])


def _nothing(_taken: Sequence[Event]) -> list[bytes]:
    return []


def too_large(event: Event, most: int, *, hint: str = "") -> ErrorEvent:
    """The error in place of an event that is larger than the ``most`` bytes of its client."""
    error = ApiError.of(
        "event_too_large",
        f"An event of type {event.type} is larger than the {most} bytes that the client can "
        f"receive{hint}.",
    )
    return ErrorEvent(
        sequence_number=event.sequence_number,
        stream_id=event.stream_id,
        status=error.status,
        error=ErrorDetail.of(error),
    )


class Worked(Protocol):
    """A decoder, which counts what it has decoded."""

    @property
    def work(self) -> int:
        """Bytes that it has read."""
        ...


class MessageReader(ABC, Generic[M]):
    """The only reader of one connection: messages in, requests to the connection.

    ``timer`` is that of the connection's writer.
    """

    __slots__ = ("_connection", "_decoder", "_timer")

    def __init__(
        self, connection: ConnectionDriver, *, timer: WriterTimer, decoder: Worked
    ) -> None:
        self._connection = connection
        self._timer = timer
        self._decoder = decoder

    async def _read_all(self) -> None:
        """Reads to the last message."""
        backlog = 0
        while await self._read():
            backlog = backlog + 1 if self._timer.writing else 0
            if backlog >= BACKLOG:
                await self._timer.caught_up()
                backlog = 0

    @abstractmethod
    async def _read(self) -> bool:
        """Reads one message and takes it; False after the last one."""

    @abstractmethod
    def _request(self, message: M) -> Request:
        """The request in a message; raises :class:`ApiError` 400."""

    @abstractmethod
    def _about(self, message: M) -> "About":
        """What a message that is refused says of itself."""

    def _take(self, message: M) -> None:
        """Passes a message on; one that is refused is answered by its error."""
        connection = self._connection
        try:
            connection.receive(self._request(message))
        except ApiError as error:
            self._reject(message, error)
        except Exception:
            # One message at fault must not leave a connection without its reader.
            _log.exception("a client event was not taken")
            self._reject(message, server_error())
        connection.work.decode = self._decoder.work

    def _reject(self, message: M, error: ApiError) -> None:
        about = self._about(message)
        self._connection.reject(
            error,
            event_id=about.event_id or None,
            stream_id=about.stream_id if is_stream_id(about.stream_id) else None,
            begins=about.begins,
        )


class About(NamedTuple):
    """What a message says of itself, for the error that refuses it."""

    event_id: str
    """Empty: none, as ``stream_id``."""
    stream_id: str
    begins: bool
    """Whether it asks for a turn, a new one or one to attach to."""


def about_json(raw: bytes, *, name: str = "") -> About:
    """What a client event that came as JSON says of itself, as far as it can be read.

    ``name`` is its type where it does not say one.

    >>> about_json(b'{"type": "response.create", "event_id": "e", "top_p": 7}')
    About(event_id='e', stream_id='', begins=True)
    """
    try:
        given = json.members(raw) or {}
    except ApiError:
        given = {}
    said, event_id, lane = (json.text_of(given.get(each)) for each in _ABOUT)
    return About(event_id, lane, begins=(said or name) in _BEGINNING)


_ABOUT: Final = ("type", "event_id", "stream_id")
_BEGINNING: Final = frozenset(str(kind.__struct_config__.tag) for kind in BEGINNING)


def traced(request: Request, trace_context: dict[str, str] | None) -> Request:
    """The request with its connection's trace context, where it brings none of its own."""
    if trace_context is None or not isinstance(request, (Create, Append)):
        return request
    if request.trace_context:
        return request
    return structs.replace(request, trace_context=trace_context)
