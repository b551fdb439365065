"""This process as a peer: it answers itself, and the other processes that ask it."""

from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing

from tieline.events import Event
from tieline.requests import Request, Resume
from tieline.responses import Response
from tieline_server.core.values import Principal
from tieline_server.peers import RemoteLane
from tieline_server.runtime.connection_driver import ConnectionDriver
from tieline_server.runtime.reading import BATCH, events_of, forget, not_found
from tieline_server.runtime.services import Services


class ServedLane:
    """A connection of this process for a lane of another one; see ``peers.RemoteLane``."""

    def __init__(
        self,
        services: Services,
        principal: Principal,
        *,
        transport: str,
        lanes: "set[ServedLane]",
    ) -> None:
        self._lanes = lanes
        lanes.add(self)
        self._principal = principal
        self._connection = ConnectionDriver(
            services, transport=transport, authenticate=lambda: self._principal, merge=False
        )

    def send(self, request: Request, principal: Principal) -> None:
        """Takes a client event of the lane; the other process has authenticated the client."""
        self._principal = principal
        self._connection.receive(request)

    async def events(self) -> AsyncGenerator[Sequence[Event], None]:
        """Yields what the connection sends, until it is closed."""
        while True:
            batch = self._connection.take(BATCH)
            if batch:
                yield batch
            elif self._connection.closed:
                return
            else:
                await self._connection.wait()

    def drain(self, seconds: float) -> None:
        """The process will stop: what runs gets so long to end, then the connection does."""
        self._connection.hurry(seconds)
        self._connection.half_close()

    async def close(self) -> None:
        """The other process has dropped the lane: turns that outlive a connection go on."""
        self._lanes.discard(self)
        await self._connection.close()


class LocalPeer:
    """This process; see ``peers.Peer``. ``metrics`` tells what it has counted."""

    def __init__(self, services: Services, *, metrics: Callable[[], bytes] = lambda: b"") -> None:
        self._services = services
        self._metrics = metrics
        self._lanes: set[ServedLane] = set()

    async def cancel(self, owner: str, response_id: str) -> Response | None:
        """Ends a turn that runs here."""
        return await self._services.running.end(owner, response_id)

    async def look(self, owner: str, response_id: str) -> Response | None:
        """Returns a response that runs here, or did a short while ago."""
        log = self._services.running.logs.find(owner, response_id)
        return None if log is None else log.look()

    async def follow(
        self, owner: str, response_id: str, *, after: int | None
    ) -> AsyncGenerator[Sequence[Event], None]:
        """Yields the events of a response that is kept here."""
        if self._services.running.logs.find(owner, response_id) is None:
            raise not_found(response_id)
        async with aclosing(events_of(self._services, owner, response_id, after)) as batches:
            async for batch in batches:
                yield batch

    async def resume(self, resume: Resume, principal: Principal, *, transport: str) -> RemoteLane:
        """Moves a turn that is kept here to a connection of its own, for a lane elsewhere."""
        named = resume.response_id or ""
        if self._services.running.logs.find(principal.owner, named) is None:
            raise not_found(named)
        lane = ServedLane(self._services, principal, transport=transport, lanes=self._lanes)
        lane.send(resume, principal)
        return lane

    async def forget(self, owner: str, response_id: str) -> None:
        """Removes a deleted response."""
        forget(self._services, owner, response_id)

    async def metrics(self) -> bytes:
        """Returns what was counted here."""
        return self._metrics()

    async def drain(self, seconds: float) -> None:
        """The process will stop: the lanes that it serves for others get so long to end."""
        for lane in list(self._lanes):
            lane.drain(seconds)
