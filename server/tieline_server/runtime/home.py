"""This process as a home of turns: what it answers itself, and its neighbours."""

from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing

from tieline.events import Event
from tieline.requests import Request, Resume
from tieline.responses import Response
from tieline_server.core.values import Principal
from tieline_server.homes import Link
from tieline_server.runtime.connection_driver import ConnectionDriver
from tieline_server.runtime.reading import BATCH, events_of, forget, not_found
from tieline_server.runtime.services import Services


class LocalLink:
    """A connection of this process for a lane elsewhere."""

    def __init__(
        self,
        services: Services,
        principal: Principal,
        *,
        transport: str,
        links: "set[LocalLink]",
    ) -> None:
        self._links = links
        links.add(self)
        self._principal = principal
        self._connection = ConnectionDriver(
            services, transport=transport, authenticate=lambda: self._principal, merge=False
        )

    def send(self, request: Request, principal: Principal) -> None:
        """A client event of the lane; who asks was made sure of where it came in."""
        self._principal = principal
        self._connection.receive(request, size=0)

    async def events(self) -> AsyncGenerator[Sequence[Event], None]:
        """What the connection sends, until it is closed."""
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
        """The lane elsewhere is gone: what can outlive it does."""
        self._links.discard(self)
        await self._connection.close()


class LocalHome:
    """What this process offers. ``metrics`` is what it has counted, as its neighbours add it up."""

    def __init__(self, services: Services, *, metrics: Callable[[], bytes] = lambda: b"") -> None:
        self._services = services
        self._metrics = metrics
        self._links: set[LocalLink] = set()

    async def cancel(self, owner: str, response_id: str) -> Response | None:
        """Ends a turn that runs here."""
        return await self._services.running.end(owner, response_id)

    async def look(self, owner: str, response_id: str) -> Response | None:
        """A response that runs here, or did a short while ago."""
        log = self._services.running.logs.find(owner, response_id)
        return None if log is None else log.look()

    async def follow(
        self, owner: str, response_id: str, *, after: int | None
    ) -> AsyncGenerator[Sequence[Event], None]:
        """The events of a response that is kept here."""
        if self._services.running.logs.find(owner, response_id) is None:
            raise not_found(response_id)
        async with aclosing(events_of(self._services, owner, response_id, after)) as batches:
            async for batch in batches:
                yield batch

    async def resume(self, resume: Resume, principal: Principal, *, transport: str) -> Link:
        """Moves a turn that is kept here to a connection of its own, for a lane elsewhere."""
        named = resume.response_id or ""
        if self._services.running.logs.find(principal.owner, named) is None:
            raise not_found(named)
        link = LocalLink(self._services, principal, transport=transport, links=self._links)
        link.send(resume, principal)
        return link

    async def forget(self, owner: str, response_id: str) -> None:
        """A response was deleted."""
        forget(self._services, owner, response_id)

    async def metrics(self) -> bytes:
        """What was counted here."""
        return self._metrics()

    async def drain(self, seconds: float) -> None:
        """The process will stop: lanes elsewhere that are linked here get so long to end."""
        for link in list(self._links):
            link.drain(seconds)
