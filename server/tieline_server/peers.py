"""Peers: the processes in which turns run, and what each of them can be asked.

A turn runs in one process, and its id carries that process's tag. Each process offers the calls
of ``Peer``: directly to itself, and over a socket to the others on its machine. A request thus
takes one way, whether its turn runs here or at a peer.

Every call names the owner. A response of another owner is exactly like one that does not exist.
"""

from collections.abc import AsyncGenerator, Sequence
from typing import Protocol

from tieline.events import Event
from tieline.requests import Request, Resume
from tieline.responses import Response
from tieline_server.core.values import Principal


class RemoteLane(Protocol):
    """A lane of a connection here whose turns run at a peer: requests go there, events come back.

    The peer has a connection of its own for it, so that a lane resumed there goes on as any
    other: appends, steers, cancels and further creates are sent to it.
    """

    def send(self, request: Request, principal: Principal) -> None:
        """Forwards a client event. Never waits, never raises; a lost peer ends ``events``."""
        ...

    def events(self) -> AsyncGenerator[Sequence[Event], None]:
        """Yields what the peer's connection sends, in order, until the lane is closed.

        Raises :class:`ApiError` (``server_error``) where the peer is gone.
        """
        ...

    async def close(self) -> None:
        """Drops the connection at the peer. Idempotent."""
        ...


class Peer(Protocol):
    """A process in which turns run. All calls may raise :class:`ApiError` where it is gone."""

    async def cancel(self, owner: str, response_id: str) -> Response | None:
        """Ends a running turn and returns it as it then stands; None where none such runs."""
        ...

    async def look(self, owner: str, response_id: str) -> Response | None:
        """Returns a response that runs, or that the peer still remembers, as it stands."""
        ...

    def follow(
        self, owner: str, response_id: str, *, after: int | None
    ) -> AsyncGenerator[Sequence[Event], None]:
        """Reads along: yields events with numbers > ``after``, to the terminal one.

        One that is at or behind ``after`` all the same is the terminal one. Raises
        :class:`ApiError`: ``response_not_found``, or ``not_resumable``.
        """
        ...

    async def resume(self, resume: Resume, principal: Principal, *, transport: str) -> RemoteLane:
        """Moves a turn to a new connection of the peer and returns the lane to it.

        Raises :class:`ApiError`: ``response_not_found``, or ``not_resumable``.
        """
        ...

    async def forget(self, owner: str, response_id: str) -> None:
        """Removes a deleted response from the peer's connections and memory."""
        ...

    async def metrics(self) -> bytes:
        """Returns what the peer counted, for the process that tells the metrics of all."""
        ...


class Peers(Protocol):
    """The other processes that this one can ask."""

    def peer_of(self, response_id: str) -> Peer | None:
        """Returns the peer whose tag an id carries; None for own ids, and where there is none."""
        ...

    def others(self) -> Sequence[Peer]:
        """Returns all peers that live now."""
        ...


class NoPeers:
    """The peers of a process that serves by itself."""

    def peer_of(self, response_id: str) -> None:
        """Returns None for any id."""

    def others(self) -> Sequence[Peer]:
        """Returns none."""
        return ()
