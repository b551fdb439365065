"""The door interface: a door frames and nothing else; what a message means is the connection's
affair."""

from typing import Protocol


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
        """Ends whatever still runs and closes the listener. Idempotent."""
        ...
