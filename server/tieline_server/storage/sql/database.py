"""A database, whichever it is: questions side by side, changes one transaction after another.

What is asked and what is changed are plain functions of a connection, so that one code path
serves both databases. SQLite runs them on threads of its own, since its driver blocks;
PostgreSQL runs them on the loop.
"""

from collections.abc import Callable
from typing import Final, Protocol, TypeVar

from sqlalchemy import Connection

T = TypeVar("T")

READERS: Final = 4
"""Questions that are asked side by side; further ones wait."""

PATIENCE: Final = 5.0
"""Seconds to wait for a lock, or for a connection."""


class Database(Protocol):
    """What runs functions of a connection. Raises :class:`DatabaseError` where it cannot."""

    async def read(self, ask: Callable[[Connection], T]) -> T:
        """Runs a question. Every statement of it sees what was committed before it."""
        ...

    async def write(self, change: Callable[[Connection], T]) -> T:
        """Runs a change in a transaction of its own; it is durable on return.

        One at a time. It may run twice, where a lost connection leaves open whether it ran.
        """
        ...

    async def erase(self) -> bool:
        """Sees to it that what was deleted is in no file any more; False: not yet."""
        ...

    async def tidy(self) -> None:
        """Gives some room that nothing needs back to the file system."""
        ...

    def abandon(self) -> None:
        """Breaks off what is in flight at a server that does not answer."""
        ...

    async def close(self) -> None:
        """Ends every connection. Called once."""
        ...
