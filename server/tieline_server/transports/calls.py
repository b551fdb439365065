"""The calls of a door that make responses: how many there may be, and the goodbye to them."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Final

from tieline.errors import ApiError
from tieline_server.core.limits import Share
from tieline_server.places import OwnPlaces, Places
from tieline_server.runtime import ConnectionDriver

RETRY_AFTER: Final = 1.0
"""Seconds after which another server, or this one, may well have room."""


FAREWELL: Final = 1.0
"""Seconds that a connection's last events have to leave once its time to drain is over."""


class LiveConnection:
    """The connection of one call while it is open."""

    __slots__ = ("connection", "error")

    def __init__(self, connection: ConnectionDriver) -> None:
        self.connection = connection
        self.error: ApiError | None = None
        """Why the door ended it, or None."""

    def end(self, error: ApiError) -> None:
        """Ends the connection now, whatever runs on it; the call ends with ``error``."""
        self.error = error
        self.connection.drop()


class LiveCalls:
    """Counts calls against ``most``, or those of several processes by ``places``.

    ``share`` bounds those of one owner in this process. It knows the connections of its own.
    """

    def __init__(
        self, most: int, places: Places | None = None, *, share: Share | None = None
    ) -> None:
        self._places = places or OwnPlaces(most)
        self._share = share or Share()
        self._count = 0
        self._connections: set[LiveConnection] = set()
        self._draining = False
        self._empty = asyncio.Event()
        self._empty.set()

    def __len__(self) -> int:
        return self._count

    @contextmanager
    def place(self, owner: str, *, begins: bool = True) -> Iterator[None]:
        """A place for one call of ``owner``, held to its very end; raises :class:`ApiError`.

        429 where the owner or all together have as many as they may, 503 while draining where
        the call ``begins`` something.

        A caller that does not even take its error keeps its place: what it holds is bounded.
        """
        if self._draining and begins:
            raise draining()
        if not self._share.take(owner):
            raise _too_many(f"This key's owner already has {self._share.each} calls open.")
        if not self._places.take():
            self._share.give_back(owner)
            raise _too_many(f"This server already has {self._places.most} calls open.")
        self._count += 1
        try:
            yield
        finally:
            self._count -= 1
            self._places.give_back()
            self._share.give_back(owner)

    @asynccontextmanager
    async def opened(self, connection: ConnectionDriver) -> AsyncIterator[LiveConnection]:
        """Keeps a connection's place among the living, and ends the connection in any case."""
        live = LiveConnection(connection)
        self._connections.add(live)
        self._empty.clear()
        try:
            yield live
        finally:
            try:
                if not connection.closed:
                    connection.drop()
                await connection.close()
            finally:
                self._connections.discard(live)
                if not self._connections:
                    self._empty.set()

    async def empty(self) -> None:
        """Returns when no connection is open."""
        await self._empty.wait()

    async def drain(self, seconds: float) -> None:
        """Refuses new calls, tells every connection, and waits until they have ended.

        After ``seconds`` a connection ends its turns by itself, with what they have. One that still
        has not said all of it after ``FAREWELL`` ends with ``server_draining``.
        """
        self._draining = True
        for live in list(self._connections):
            live.connection.drain(seconds)
        try:
            async with asyncio.timeout(seconds + FAREWELL):
                await self.empty()
        except TimeoutError:
            for live in list(self._connections):
                live.end(draining())


def _too_many(message: str) -> ApiError:
    return ApiError.of("too_many_connections", message, retry_after=RETRY_AFTER)


def draining() -> ApiError:
    """What a caller sees of a server that is about to stop."""
    return ApiError.of("server_draining", "The server is shutting down.", retry_after=RETRY_AFTER)
