"""The ledger interface: one row for each response id, on every way that it can end.

The row of a stored response is written with the response, by its store; all others come through
``book``. A response id that is booked twice has one row: the store's, else the first.
"""

from collections.abc import Sequence
from typing import Literal, Protocol

from msgspec import Struct

from tieline_server.core.values import Booking

By = Literal["key", "model", "day"]
"""What sums are grouped by: who asked, the model, or the day (UTC, ``YYYY-MM-DD``) of the end."""


class Question(Struct, frozen=True, kw_only=True):
    """Which rows to sum. Times are Unix seconds of a response's end; ``until`` is exclusive."""

    by: By = "day"
    owner: str | None = None
    """One owner's rows, or None for all."""
    since: float | None = None
    until: float | None = None


class Sum(Struct, frozen=True, kw_only=True):
    """The rows of one group, added up."""

    group: str
    responses: int
    input_tokens: int
    cached_tokens: int
    output_tokens: int
    reasoning_tokens: int


class Ledger(Protocol):
    """What keeps bookings."""

    keeps_phases: bool
    """Whether rows keep their phases: others may come without."""

    def book(self, booking: Booking) -> None:
        """Takes a row. Never waits and never raises; it is durable within 50 ms.

        A disk, or another process that holds the database's lock, may take longer.
        """
        ...

    async def usage(self, question: Question) -> Sequence[Sum]:
        """Sums in order of their group, by code point. What was booked before is in them."""
        ...

    async def close(self) -> None:
        """Writes what is left and frees what is open. Called once, after the last ``book``."""
        ...
