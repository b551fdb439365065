"""The blocking face: a thin proxy for :mod:`tieline_client.aio` on a loop of its own thread.

>>> def ask(url: str) -> str:
...     with connect(url) as connection:
...         return connection.create(input="hello").result().text
"""

import asyncio
import threading
from collections import deque
from collections.abc import Coroutine, Iterator
from concurrent.futures import CancelledError, Future
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Generic, Self, TypeVar, Unpack

from msgspec import Raw

from tieline.events import Event, RequestWarning, SessionGoingAway, SessionStarted
from tieline.responses import Response
from tieline_client import aio
from tieline_client._replay import Policy
from tieline_client.aio import Call, Input, Result, Settings, ToolChoice
from tieline_client.errors import ConnectionClosed
from tieline_client.transports import Options, Tls

T = TypeVar("T")
S = TypeVar("S", aio.ResponseStream, aio.SessionStream)


@contextmanager
def connect(
    url: str,
    *,
    api_key: str | None = None,
    tls: Tls | None = None,
    options: Options | None = None,
) -> Iterator["Connection"]:
    """Opens a connection for the body of a ``with``, as :func:`tieline_client.aio.connect` does."""
    with _LoopThread() as loop:
        connection = loop.run(aio.Connection.open(url, api_key=api_key, tls=tls, options=options))
        try:
            yield Connection(loop, connection)
        finally:
            loop.run(connection.close())


@contextmanager
def connect_session(
    url: str,
    *,
    api_key: str | None = None,
    tls: Tls | None = None,
    options: Options | None = None,
    policy: Policy | None = None,
) -> Iterator["Session"]:
    """Opens a session for the body of a ``with``, as :func:`tieline_client.aio.connect_session`.

    >>> def chat(url: str) -> str:
    ...     with connect_session(url) as session:
    ...         conversation = session.conversation()
    ...         conversation.create(input="one").result()
    ...         return conversation.create(input="two").result().text
    """

    async def opened() -> aio.Session:
        return aio.Session(url, api_key=api_key, tls=tls, options=options, policy=policy)

    with _LoopThread() as loop:
        session = loop.run(opened())
        try:
            yield Session(loop, session)
        finally:
            loop.run(session.close())


class _LoopThread:
    """One event loop in one thread, which it owns from enter to exit."""

    def __init__(self) -> None:
        self._started: Future[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = Future()
        self._thread = threading.Thread(
            target=lambda: asyncio.run(self._live()), name="tieline-loop", daemon=True
        )
        self._lock = threading.Lock()
        self._closed = False

    def __enter__(self) -> Self:
        self._thread.start()
        self._loop, self._stop = self._started.result()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with self._lock:
            self._closed = True
            self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """What ``work`` returns or raises; interrupted, it is cancelled there.

        Raises :class:`ConnectionClosed` once the thread ends: what it still has is cancelled then.
        """
        with self._lock:
            if self._closed:
                work.close()
                raise ConnectionClosed("the connection is closed")
            future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except CancelledError:
            raise ConnectionClosed("the connection was closed") from None
        except BaseException:
            future.cancel()
            raise

    async def _live(self) -> None:
        loop, stop = asyncio.get_running_loop(), asyncio.Event()
        loop.set_exception_handler(_ignore_stolen_wakeups)
        self._started.set_result((loop, stop))
        await stop.wait()


def _ignore_stolen_wakeups(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    # Loops of one process share grpc.aio's wake-up socket: one that comes late finds it empty,
    # and nothing is lost (grpc#25364).
    if not isinstance(context.get("exception"), BlockingIOError):
        loop.default_exception_handler(context)


class Connection:
    """A connection for blocking callers; may be used from several threads."""

    def __init__(self, loop: _LoopThread, connection: aio.Connection) -> None:
        self._loop = loop
        self.aio = connection
        """The asynchronous connection; what is awaited on it goes through :meth:`wait`."""

    def create(
        self,
        input: Input | None = None,
        *,
        model: str | None = None,
        previous_response_id: str | None = None,
        **settings: Unpack[Settings],
    ) -> "ResponseStream":
        """As :meth:`tieline_client.aio.Connection.create`."""
        work = self.aio.create(
            input=input, model=model, previous_response_id=previous_response_id, **settings
        )
        return ResponseStream(self._loop, self._loop.run(work))

    def append(self, input: Input) -> "ResponseStream":
        """As :meth:`tieline_client.aio.Connection.append`."""
        return ResponseStream(self._loop, self._loop.run(self.aio.append(input)))

    def resume(self, response_id: str, *, after: int | None = None) -> "ResponseStream":
        """As :meth:`tieline_client.aio.Connection.resume`."""
        work = self.aio.resume(response_id, after=after)
        return ResponseStream(self._loop, self._loop.run(work))

    def cancel(self, response_id: str) -> None:
        """As :meth:`tieline_client.aio.Connection.cancel`."""
        self._loop.run(self.aio.cancel(response_id))

    def extensions(self) -> frozenset[str]:
        """As :meth:`tieline_client.aio.Connection.extensions`."""
        return self._loop.run(self.aio.extensions())

    def lane(self, name: str) -> "Lane":
        """As :meth:`tieline_client.aio.Connection.lane`."""
        return Lane(self._loop, self.aio.lane(name))

    def wait(self, work: Coroutine[Any, Any, T]) -> T:
        """Runs a coroutine in the connection's loop.

        For instance ``connection.wait(Agent(connection.aio, ...).run("..."))``.
        """
        return self._loop.run(work)

    @property
    def transport(self) -> str:
        """What carries the connection: grpc, websocket or sse."""
        return self.aio.transport

    @property
    def extended(self) -> bool:
        """Whether members of ours may go with a create."""
        return self.aio.extended

    @property
    def alive(self) -> bool:
        """Whether requests can be sent."""
        return self.aio.alive

    @property
    def session(self) -> SessionStarted | None:
        """What the server speaks and allows, once it has told."""
        return self.aio.session

    @property
    def going_away(self) -> SessionGoingAway | None:
        """Set when the server is about to close the connection."""
        return self.aio.going_away


class Lane:
    """A named lane for blocking callers."""

    def __init__(self, loop: _LoopThread, lane: aio.Lane) -> None:
        self._loop = loop
        self.aio = lane

    @property
    def name(self) -> str:
        """The lane's name."""
        return self.aio.name

    def create(
        self,
        input: Input | None = None,
        *,
        model: str | None = None,
        previous_response_id: str | None = None,
        **settings: Unpack[Settings],
    ) -> "ResponseStream":
        """As :meth:`tieline_client.aio.Lane.create`."""
        work = self.aio.create(
            input=input, model=model, previous_response_id=previous_response_id, **settings
        )
        return ResponseStream(self._loop, self._loop.run(work))

    def append(self, input: Input) -> "ResponseStream":
        """As :meth:`tieline_client.aio.Lane.append`."""
        return ResponseStream(self._loop, self._loop.run(self.aio.append(input)))

    def resume(self, response_id: str, *, after: int | None = None) -> "ResponseStream":
        """As :meth:`tieline_client.aio.Lane.resume`."""
        work = self.aio.resume(response_id, after=after)
        return ResponseStream(self._loop, self._loop.run(work))


class Session:
    """A server and the connections to it, for blocking callers; several threads may use it."""

    def __init__(self, loop: _LoopThread, session: aio.Session) -> None:
        self._loop = loop
        self.aio = session
        """The asynchronous session; what is awaited on it goes through :meth:`wait`."""

    def conversation(
        self,
        *,
        lane: str | None = None,
        previous_response_id: str | None = None,
        model: str | None = None,
        **settings: Unpack[Settings],
    ) -> "Conversation":
        """As :meth:`tieline_client.aio.Session.conversation`."""
        conversation = self.aio.conversation(
            lane=lane, previous_response_id=previous_response_id, model=model, **settings
        )
        return Conversation(self._loop, conversation)

    def create(
        self,
        input: Input | None = None,
        *,
        model: str | None = None,
        previous_response_id: str | None = None,
        **settings: Unpack[Settings],
    ) -> "SessionStream":
        """As :meth:`tieline_client.aio.Session.create`."""
        work = self.aio.create(
            input=input, model=model, previous_response_id=previous_response_id, **settings
        )
        return SessionStream(self._loop, self._loop.run(work))

    def wait(self, work: Coroutine[Any, Any, T]) -> T:
        """Runs a coroutine in the session's loop: ``session.wait(Agent(session.aio).run(""))``."""
        return self._loop.run(work)

    def ready(self) -> Connection:
        """As :meth:`tieline_client.aio.Session.ready`."""
        return Connection(self._loop, self._loop.run(self.aio.ready()))

    @property
    def policy(self) -> Policy:
        """What the session does about failures."""
        return self.aio.policy

    @property
    def connection(self) -> Connection | None:
        """The connection that new work goes to, where one is open."""
        connection = self.aio.connection
        return Connection(self._loop, connection) if connection is not None else None


class Conversation:
    """What was said, and what comes next, for blocking callers."""

    def __init__(self, loop: _LoopThread, conversation: aio.Conversation) -> None:
        self._loop = loop
        self.aio = conversation

    def create(
        self,
        input: Input | None = None,
        *,
        model: str | None = None,
        previous_response_id: str | None = None,
        **settings: Unpack[Settings],
    ) -> "SessionStream":
        """As :meth:`tieline_client.aio.Conversation.create`."""
        work = self.aio.create(
            input=input, model=model, previous_response_id=previous_response_id, **settings
        )
        return SessionStream(self._loop, self._loop.run(work))

    def add(self, items: Input) -> None:
        """Says something without asking for a response: it goes with the next turn."""
        self.aio.add(items)

    @property
    def items(self) -> list[Raw]:
        """Input and output so far, as JSON; yours to change while no turn runs."""
        return self.aio.items

    @property
    def latest(self) -> str | None:
        """The id of the latest response that can be continued."""
        return self.aio.latest

    @property
    def lane(self) -> str | None:
        """The lane's name; None for the default lane."""
        return self.aio.lane


class _Stream(Generic[S]):
    """What both kinds of streams are to a blocking caller."""

    def __init__(self, loop: _LoopThread, stream: S) -> None:
        self._loop = loop
        self._fetched: deque[Event] = deque()
        self.aio: S = stream

    def __iter__(self) -> Iterator[Event]:
        # One hop to the other thread for all that is there, not one for each event; what a
        # broken loop leaves is there for the next one.
        while self._fetched or self._fetch():
            yield self._fetched.popleft()

    def _fetch(self) -> bool:
        self._fetched.extend(self._loop.run(self.aio.batch()))
        return bool(self._fetched)

    def response(self) -> Response:
        """Reads to the end, or to the hold, and returns the response."""
        self._fetched.clear()
        return self._loop.run(self.aio.response())

    def result(self) -> Result:
        """As :meth:`response`, with the text and the open calls picked out."""
        self._fetched.clear()
        return self._loop.run(self.aio.result())

    def append(self, outputs: Input, *, tool_choice: ToolChoice | None = None) -> None:
        """Answers the open calls of a held turn; iterate again for what follows."""
        self._loop.run(self.aio.append(outputs, tool_choice=tool_choice))

    def steer(self, input: Input) -> None:
        """Gives the running response new user messages."""
        self._loop.run(self.aio.steer(input))

    def cancel(self) -> None:
        """Ends the turn; the iteration ends with its partial output."""
        self._loop.run(self.aio.cancel())

    def close(self) -> None:
        """Cancels the turn unless it has ended, and reads no more of it."""
        self._loop.run(self.aio.aclose())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def text(self) -> str:
        """The text of the messages so far."""
        return self.aio.text

    @property
    def calls(self) -> tuple[Call, ...]:
        """Calls that are whole and wait for their outputs."""
        return self.aio.calls

    @property
    def response_id(self) -> str | None:
        """The id of the response, once there is one."""
        return self.aio.response_id

    @property
    def cursor(self) -> int | None:
        """The sequence_number up to which events have come."""
        return self.aio.cursor

    @property
    def lane(self) -> str | None:
        """The lane's name; None for the default lane."""
        return self.aio.lane

    @property
    def held(self) -> bool:
        """Whether the turn waits for tool outputs."""
        return self.aio.held

    @property
    def ended(self) -> bool:
        """Whether nothing more will come from the server."""
        return self.aio.ended

    @property
    def timing(self) -> dict[str, int] | None:
        """Microseconds by phase, once the server has told."""
        return self.aio.timing

    @property
    def warnings(self) -> tuple[RequestWarning, ...]:
        """What of the create the server ignores, once it has begun the response."""
        return self.aio.warnings

    @property
    def wall(self) -> float | None:
        """Seconds from the last create or append to the end or hold."""
        return self.aio.wall


class ResponseStream(_Stream[aio.ResponseStream]):
    """The events of one turn for blocking callers; see :class:`aio.ResponseStream`."""


class SessionStream(_Stream[aio.SessionStream]):
    """The events of one turn of a session for blocking callers; see :class:`aio.SessionStream`."""

    @property
    def over(self) -> bool:
        """Whether the conversation can go on with another create."""
        return self.aio.over
