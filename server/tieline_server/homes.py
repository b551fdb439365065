"""Homes: the processes in which turns run, as whoever meets a response's id asks them.

A turn runs in one process, and its id carries that process's tag. A request that concerns a turn
of this process and one that came from a neighbour are the same call: ``Home`` is what each
process offers, directly to itself and over a socket to the others on the machine.

Every call names the owner, and what is another's is exactly like what does not exist.
"""

from collections.abc import AsyncGenerator, Sequence
from typing import Protocol

from tieline.events import Event
from tieline.requests import Request, Resume
from tieline.responses import Response
from tieline_server.core.values import Principal


class Link(Protocol):
    """A lane of a connection here whose turns run at another home: events this way, requests that
    way.

    The other side has a connection of its own for it, so that a lane resumed there goes on as any
    other: appends, steers, cancels and further creates are sent to it.
    """

    def send(self, request: Request, principal: Principal) -> None:
        """Passes on a client event. Never waits, never raises; a lost link ends ``events``."""
        ...

    def events(self) -> AsyncGenerator[Sequence[Event], None]:
        """What its connection sends, in order, until the link is closed.

        Raises :class:`ApiError` (``server_error``) where the other process is gone.
        """
        ...

    async def close(self) -> None:
        """Drops the connection at the other side. Idempotent."""
        ...


class Home(Protocol):
    """A process in which turns run. All calls may raise :class:`ApiError` where it is gone."""

    async def cancel(self, owner: str, response_id: str) -> Response | None:
        """Ends a running turn and returns it as it then stands; None where none such runs."""
        ...

    async def look(self, owner: str, response_id: str) -> Response | None:
        """A response that runs, or that its home still remembers, as it stands; else None."""
        ...

    def follow(
        self, owner: str, response_id: str, *, after: int | None
    ) -> AsyncGenerator[Sequence[Event], None]:
        """A further reader: events with numbers > ``after``, to the terminal one.

        One that is at or behind ``after`` all the same is the terminal one. Raises
        :class:`ApiError`: ``response_not_found``, or ``not_resumable``.
        """
        ...

    async def resume(self, resume: Resume, principal: Principal, *, transport: str) -> Link:
        """Moves a turn to a new line there and links to it.

        Raises :class:`ApiError`: ``response_not_found``, or ``not_resumable``.
        """
        ...

    async def forget(self, owner: str, response_id: str) -> None:
        """A response was deleted: no connection and no memory of that process has it any more."""
        ...

    async def metrics(self) -> bytes:
        """What it counted, for whoever is asked for the metrics of all."""
        ...


class Homes(Protocol):
    """The other homes that this process can ask."""

    def home_of(self, response_id: str) -> Home | None:
        """The neighbour whose tag an id carries; None for our own ids, and where there is none."""
        ...

    def others(self) -> Sequence[Home]:
        """All neighbours that live now."""
        ...


class Alone:
    """A process without neighbours."""

    def home_of(self, response_id: str) -> None:
        """Nobody."""

    def others(self) -> Sequence[Home]:
        """Nobody."""
        return ()
