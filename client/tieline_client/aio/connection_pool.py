"""The connections of a session: one for new work, and those whose last turns are ending."""

import asyncio
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any, Final

from msgspec.structs import replace

from tieline_client.aio.connection import Connection
from tieline_client.errors import ConnectionClosed, ConnectionLost, NotSent
from tieline_client.transports import Options, Tls, beside

_SETTLE: Final = 5
"""Turns of the loop in which the end of a connection that has come is noticed."""


class Leased:
    """A connection, and what a session knows about it."""

    def __init__(self, connection: Connection, *, opened_at: float) -> None:
        self.connection = connection
        self.opened_at = opened_at
        self.turns = 0
        """How many turns are on it; with none left, one that takes no new work is closed."""
        self.latest: dict[str | None, str] = {}
        """Lane -> the response that it remembers."""


class ConnectionPool:
    """Opens connections and closes them; each is checked before it is lent.

    One that has ended, that the server is about to close, or that is older than ``max_age``
    gets no new work: what runs on it ends there.
    """

    def __init__(
        self,
        url: str,
        *,
        api_key: str | None,
        tls: Tls | None,
        options: Options,
        max_age: float,
    ) -> None:
        self._url = url
        self._api_key = api_key
        self._tls = tls
        # Each has a connection of TCP to itself. Those that gRPC shares between its channels are
        # dialled again only after a wait that the channels share as well.
        own: dict[str, str | int] = {"grpc.use_local_subchannel_pool": 1}
        self._options = replace(options, channel={**own, **options.channel})
        self._max_age = max_age
        self.loop = asyncio.get_running_loop()
        self._dialing = asyncio.Lock()
        self._current: Leased | None = None
        self._side: Leased | None = None
        self._ending: set[Leased] = set()
        self._closers: set[asyncio.Task[None]] = set()
        self._opening: asyncio.Task[Connection] | None = None
        self._closing = asyncio.Event()
        self.too_large: int | None = None
        """Bytes of an input that was too large for one message, once there was one."""
        self._offered: frozenset[str] = frozenset()

    @property
    def connection(self) -> Connection | None:
        """The connection for new work, where there is one."""
        return self._current.connection if self._current is not None else None

    @property
    def closed(self) -> bool:
        """Whether no connection will be lent any more."""
        return self._closing.is_set()

    @property
    def beside(self) -> str | None:
        """The URL of the same server's HTTP, where that is another transport."""
        return beside(self._url)

    async def take(self, *, side: bool = False) -> Leased:
        """A connection that can be used, for one turn; ``side``: over HTTP.

        Raises what opening a connection raises, and :class:`ConnectionClosed`.
        """
        async with self._dialing:
            self._check_open()
            leased = self._side if side else self._current
            if leased is not None and not leased.turns:
                # What the system knows of a connection's end is read before a turn rests on it.
                for _ in range(_SETTLE):
                    await asyncio.sleep(0)
            if leased is None or not self._takes_work(leased):
                if leased is not None:
                    self.retire(leased)
                leased = await self._dial(side=side)
            leased.turns += 1
            return leased

    async def offers(self, leased: Leased, name: str) -> bool:
        """Whether the server has this extension; one that has said so is not asked again."""
        if name not in self._offered:
            self._offered |= await leased.connection.extensions()
        return name in self._offered

    async def pause(self, seconds: float) -> None:
        """Waits, but not beyond the end of the session."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._closing.wait()

    def release(self, leased: Leased) -> None:
        """One turn of the connection has ended, or went elsewhere."""
        leased.turns -= 1
        if not leased.turns and leased in self._ending:
            self._ending.discard(leased)
            self._spawn(leased.connection.close())

    def retire(self, leased: Leased) -> None:
        """The connection gets no new work; it is closed when its turns have ended. Idempotent."""
        if leased is self._current:
            self._current = None
        elif leased is self._side:
            self._side = None
        else:
            return
        if leased.turns:
            self._ending.add(leased)
        else:
            self._spawn(leased.connection.close())

    async def close(self) -> None:
        """Closes every connection and ends every task. Idempotent."""
        self._closing.set()
        if self._opening is not None:
            self._opening.cancel()
        pool = [self._current, self._side, *self._ending]
        self._current = self._side = None
        self._ending.clear()
        for leased in pool:
            if leased is not None:
                self._spawn(leased.connection.close())
        if self._closers:
            await asyncio.wait(self._closers)

    async def _dial(self, *, side: bool) -> Leased:
        connection = await self._open(self.beside if side else self._url)
        leased = Leased(connection, opened_at=self.loop.time())
        if side:
            self._side = leased
        else:
            self._current = leased
        return leased

    async def _open(self, url: str | None) -> Connection:
        assert url is not None
        work = Connection.open(url, api_key=self._api_key, tls=self._tls, options=self._options)
        self._opening = opening = asyncio.create_task(work, name="tieline-session-dialler")
        try:
            return await opening
        except asyncio.CancelledError:
            # By the end of the session, or with the caller that waits for the connection.
            self._check_open()
            raise
        except ConnectionLost as error:
            if isinstance(error, NotSent):
                raise
            raise NotSent(str(error)) from error

    def _takes_work(self, leased: Leased) -> bool:
        connection = leased.connection
        if not connection.alive or connection.going_away is not None:
            return False
        # Each request over HTTP is as new as can be.
        return connection.transport == "sse" or self.loop.time() - leased.opened_at < self._max_age

    def _check_open(self) -> None:
        if self.closed:
            raise ConnectionClosed("the session is closed")

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work, name="tieline-session-closer")
        self._closers.add(task)
        task.add_done_callback(self._closers.discard)
