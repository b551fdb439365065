"""The interface of a connection's driver for its jobs and for the registry of the process.

The driver starts its jobs, and the jobs report to the driver: this interface stands below both.
"""

import asyncio
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

from tieline.responses import Response
from tieline_server.core.connection.connection import Connection
from tieline_server.core.deltas import Delta
from tieline_server.core.turn.turn import Turn
from tieline_server.runtime.forwarded_lane import ForwardedLane


class Driver(Protocol):
    """A connection that is driven by asyncio."""

    transport: str
    connection: Connection
    closed: bool

    def reporting(self) -> AbstractContextManager[Connection]:
        """Sets the connection's time for a report to it, and carries out what it then asks."""
        ...

    def feed(self, turn: Turn, step: Sequence[Delta]) -> None:
        """An engine said these things."""
        ...

    async def events_taken(self) -> None:
        """Waits until events were taken, or turns have moved."""
        ...

    def speaks(self, turn: Turn, task: asyncio.Task[Any] | None) -> bool:
        """Whether this is the task that samples, or reads, for a turn."""
        ...

    def hand_jobs(self, turn: Turn, other: "Driver") -> None:
        """The turn moves to another connection, and its jobs with it."""
        ...

    def take_jobs(
        self, turn: Turn, jobs: Sequence[asyncio.Task[None]], speaking: asyncio.Task[None] | None
    ) -> None:
        """A turn has moved here, with its jobs."""
        ...

    def job_done(self, task: asyncio.Task[None]) -> None:
        """A job of this connection is over."""
        ...

    def forward(self, name: str | None, lane: ForwardedLane) -> None:
        """Sends what is asked on the lane of this name to a peer from here on."""
        ...

    def stop_forwarding(self, name: str | None) -> None:
        """The lane is this connection's own again."""
        ...

    def cancel(self, owner: str, response_id: str) -> Response | None:
        """Cancels a turn of this connection if it is the owner's; returns it as it then is."""
        ...

    def forget(self, owner: str, response_id: str) -> None:
        """A response was deleted: the connection does not continue it any more."""
        ...

    def hurry(self, seconds: float) -> None:
        """The process will stop: a connection without a client gets so long to end."""
        ...

    async def wait(self) -> None:
        """Returns when there is an event to send or the connection has closed."""
        ...

    async def close(self) -> None:
        """Ends every task of the connection. Idempotent."""
        ...
