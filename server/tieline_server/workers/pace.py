"""Paces restarts: a slot is filled at once, unless its workers die soon after they start."""

from typing import Final

SOON: Final = 1.0
"""Seconds of serving after which a death counts as the first one again."""

FREE: Final = 3
"""Deaths in a row that come soon and cost nothing yet."""

FIRST: Final = 0.2
LONGEST: Final = 30.0


class Pace:
    """Counts the workers of one slot that die soon, one after another."""

    __slots__ = ("_soon",)

    def __init__(self) -> None:
        self._soon = 0

    def died(self, served: float) -> float:
        """Returns how many seconds to wait after a worker that ``served`` so many."""
        if served >= SOON:
            self._soon = 0
            return 0.0
        self._soon += 1
        if self._soon <= FREE:
            return 0.0
        # The exponent has a bound of its own: a slot may fail for weeks.
        return min(LONGEST, FIRST * 2.0 ** min(self._soon - FREE - 1, 16))
