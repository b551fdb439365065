"""Conversations that outlive their connections."""

import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Unpack

from msgspec import Raw

from tieline.ids import is_stream_id
from tieline_client._history import History
from tieline_client._replay import Policy
from tieline_client.aio.connection import Connection
from tieline_client.aio.connection_pool import ConnectionPool
from tieline_client.aio.requests import Input, Settings, to_create, to_items
from tieline_client.aio.session_stream import SessionStream
from tieline_client.errors import TurnState
from tieline_client.transports import Options, Tls


@asynccontextmanager
async def connect_session(
    url: str,
    *,
    api_key: str | None = None,
    tls: Tls | None = None,
    options: Options | None = None,
    policy: Policy | None = None,
) -> AsyncIterator["Session"]:
    """Opens a session for the body of an ``async with``.

    It takes the URLs of :func:`tieline_client.aio.connect`, and dials with its first turn.

    >>> async def chat(url: str) -> str:
    ...     async with connect_session(url) as session:
    ...         conversation = session.conversation(instructions="be brief")
    ...         await (await conversation.create(input="one")).result()
    ...         return (await (await conversation.create(input="two")).result()).text
    """
    session = Session(url, api_key=api_key, tls=tls, options=options, policy=policy)
    try:
        yield session
    finally:
        await session.close()


class Session:
    """A server, and the connections to it as they come and go; :func:`connect_session` closes it.

    Everything here must be called in the event loop in which it was made.
    """

    def __init__(
        self,
        url: str,
        *,
        api_key: str | None = None,
        tls: Tls | None = None,
        options: Options | None = None,
        policy: Policy | None = None,
    ) -> None:
        self.policy = policy or Policy()
        self._options = options or Options()
        self._pool = ConnectionPool(
            url,
            api_key=api_key,
            tls=tls,
            options=self._options,
            max_age=self.policy.max_age,
        )
        self._random = random.Random()

    def conversation(
        self,
        *,
        lane: str | None = None,
        previous_response_id: str | None = None,
        model: str | None = None,
        **settings: Unpack[Settings],
    ) -> "Conversation":
        """A new conversation; ``settings`` are those of each of its turns.

        ``lane``: those that run side by side need lanes of their own. ``previous_response_id``
        continues a response that the server knows.
        """
        if lane is not None and not is_stream_id(lane):
            raise ValueError(f"{lane!r} cannot name a lane")
        return Conversation(self, lane, previous_response_id, model, settings)

    async def create(
        self,
        input: Input | None = None,
        *,
        model: str | None = None,
        previous_response_id: str | None = None,
        **settings: Unpack[Settings],
    ) -> SessionStream:
        """One turn in a conversation of its own."""
        conversation = self.conversation(previous_response_id=previous_response_id, model=model)
        return await conversation.create(input=input, **settings)

    async def ready(self) -> Connection:
        """The connection that new work goes to, opened where there is none; tried once.

        Raises what :func:`tieline_client.aio.connect` raises: a first turn need not find out.
        """
        leased = await self._pool.take()
        self._pool.release(leased)
        return leased.connection

    @property
    def connection(self) -> Connection | None:
        """The connection that new work goes to, where one is open."""
        return self._pool.connection

    async def close(self) -> None:
        """Closes all connections, within ``close_timeout``; what is pending ends. Idempotent."""
        await self._pool.close()


class Conversation:
    """What was said, and what comes next: one turn at a time.

    Each turn sends only what is new where the server remembers the rest, and everything where
    it does not. ``items`` may be changed between turns; the next turn then sends them all.
    """

    def __init__(
        self,
        session: Session,
        lane: str | None,
        root: str | None,
        model: str | None,
        settings: Settings,
    ) -> None:
        self._session = session
        self._history = History(root)
        self._lane = lane
        self._model = model
        self._settings = settings
        self._turn: SessionStream | None = None

    @property
    def items(self) -> list[Raw]:
        """Input and output so far, as JSON; yours to change while no turn runs."""
        return self._history.items

    @property
    def latest(self) -> str | None:
        """The id of the latest response that can be continued."""
        return self._history.latest

    @property
    def lane(self) -> str | None:
        """The lane's name; None for the default lane."""
        return self._lane

    async def create(
        self,
        input: Input | None = None,
        *,
        model: str | None = None,
        previous_response_id: str | None = None,
        **settings: Unpack[Settings],
    ) -> SessionStream:
        """The next turn; its settings win over the conversation's.

        ``previous_response_id``, where it is not the latest, starts anew after that response.
        Raises :class:`TurnState` while a turn runs, and what cannot be mended of what
        :meth:`tieline_client.aio.Connection.create` raises.
        """
        if self._turn is not None and not self._turn.over:
            raise TurnState("create: a turn of this conversation runs")
        if previous_response_id not in (None, self._history.latest):
            assert previous_response_id is not None
            self._history.restart(previous_response_id)
        request = to_create(
            lane=self._lane,
            input=None,
            model=model or self._model,
            previous_response_id=None,
            settings={**self._settings, **settings},
        )
        stream = SessionStream(
            self._session._pool,
            self._history,
            request,
            [] if input is None else to_items(input),
            policy=self._session.policy,
            chance=self._session._random.random,
        )
        self._turn = stream
        await stream._open()
        return stream

    def add(self, items: Input) -> None:
        """Says something without asking for a response: it goes with the next turn."""
        self._history.items += to_items(items)
