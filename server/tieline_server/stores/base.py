"""The store interface: keeping responses that asked for ``store``, by owner.

The owner is part of every question: what belongs to another owner is exactly like what does
not exist. After ``put`` has returned, every ``get`` sees the response.
"""

from typing import Protocol

from tieline.items import Item
from tieline_server.core.effects import Discard, Keep
from tieline_server.core.history import Saved
from tieline_server.core.values import Booking


class ResponseStore(Protocol):
    """What keeps responses."""

    def keep(self, keep: Keep) -> None:
        """Takes items of a response that still runs. Never waits and never raises."""
        ...

    def discard(self, discard: Discard) -> None:
        """Forgets what was kept of a response that will not be put. Never waits, never raises."""
        ...

    async def put(self, record: Saved, booking: Booking) -> None:
        """Keeps a response, in place of an earlier one of the same id and owner, and books it.

        Both are durable on return; where it raises, neither is. What a journal has of it stays
        with it from then on, and it does not run any more; it raises where it had been ended by
        another process meanwhile.
        """
        ...

    async def get(self, owner: str, response_id: str) -> Saved | None:
        """The owner's response, or None."""
        ...

    async def delete(self, owner: str, response_id: str) -> bool:
        """Forgets a response, its items and events; False where the owner has no such response.

        Responses that continue it keep what they inherited.
        """
        ...

    async def item(self, owner: str, item_id: str) -> Item | None:
        """An item of one of the owner's stored responses, its input or its output, or None."""
        ...

    async def close(self) -> None:
        """Frees what the store holds open. Called once."""
        ...
