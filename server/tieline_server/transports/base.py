"""The interface of transports: what opens a server, and what a server can do."""

from collections.abc import Awaitable, Callable
from typing import NamedTuple, Protocol

from tieline_server.capacity import Capacity
from tieline_server.config import Config
from tieline_server.runtime import Services


class TransportServer(Protocol):
    """What listens. Made on the running loop, started once, stopped once."""

    async def start(self) -> list[str]:
        """Listens; returns the addresses bound, as ``HOST:PORT``.

        Raises :class:`OSError` where an address cannot be bound.
        """
        ...

    async def drain(self, seconds: float) -> None:
        """Says goodbye: no new work, running turns get ``seconds`` to end, then it stops."""
        ...

    async def stop(self) -> None:
        """Ends all that still runs and closes the listener. Idempotent."""
        ...


class Opening(NamedTuple):
    """What a server is opened with."""

    services: Services
    config: Config
    capacity: Callable[[str, int], Capacity | None]
    """Name and size of a cap -> what counts over all processes; None: this process counts alone."""
    metrics: Callable[[], Awaitable[bytes]]
    """Returns what all processes have counted, as Prometheus's text."""
    reuse_port: bool = False
    """Whether several processes listen on the same address (SO_REUSEPORT)."""


Opener = Callable[[Opening], TransportServer | None]
"""Opens a server that does not listen yet; None where the settings turn it off.

Raises :class:`OSError` that names a file which cannot be read.
"""
