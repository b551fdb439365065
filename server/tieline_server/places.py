"""Places: what a cap is counted with, by this process alone or by several together.

A :class:`Share` is the same for an amount that owners share: bytes, or calls.
"""

from typing import Final, Protocol

NO_BOUND: Final = 1 << 62


class Places(Protocol):
    """So many may be taken at once. Nothing here waits."""

    @property
    def most(self) -> int:
        """How many there are."""
        ...

    def take(self) -> bool:
        """Takes one; False where all are taken."""
        ...

    def give_back(self) -> None:
        """Gives one back that was taken here."""
        ...


class OwnPlaces:
    """Places of one process."""

    __slots__ = ("most", "taken")

    def __init__(self, most: int) -> None:
        self.most = most
        self.taken = 0

    def take(self) -> bool:
        """Takes one; False where all are taken."""
        if self.taken >= self.most:
            return False
        self.taken += 1
        return True

    def give_back(self) -> None:
        """Gives one back."""
        self.taken -= 1


class Share:
    """An amount of one process: an owner may have ``each`` of it, all together ``total``."""

    __slots__ = ("_owners", "each", "taken", "total")

    def __init__(self, *, each: int = NO_BOUND, total: int = NO_BOUND) -> None:
        self.each = each
        self.total = total
        self.taken = 0
        """What all owners have now."""
        self._owners: dict[str, int] = {}

    def held_by(self, owner: str) -> int:
        """What one owner has now."""
        return self._owners.get(owner, 0)

    def fits(self, owner: str, amount: int = 1) -> bool:
        """Whether so much more is within the owner's own bound, whatever the others have."""
        return self.held_by(owner) + amount <= self.each

    def take(self, owner: str, amount: int = 1) -> bool:
        """Takes so much for an owner; False where a bound is in the way."""
        if not self.fits(owner, amount) or self.taken + amount > self.total:
            return False
        self.taken += amount
        self._owners[owner] = self.held_by(owner) + amount
        return True

    def give_back(self, owner: str, amount: int = 1) -> None:
        """Gives back what was taken for an owner."""
        self.taken -= amount
        left = self._owners[owner] - amount
        if left:
            self._owners[owner] = left
        else:
            del self._owners[owner]
