"""What owners share of a process: bytes, calls, or connections."""

from typing import Final

NO_BOUND: Final = 1 << 62


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

    def has_room(self, owner: str, amount: int = 1) -> bool:
        """Whether so much more is within both bounds."""
        return self.fits(owner, amount) and self.taken + amount <= self.total

    def take(self, owner: str, amount: int = 1) -> bool:
        """Takes so much for an owner; False where a bound is in the way."""
        if not self.has_room(owner, amount):
            return False
        self.add(owner, amount)
        return True

    def add(self, owner: str, amount: int) -> None:
        """Counts what an owner has already, whatever the bounds."""
        self.taken += amount
        self._owners[owner] = self.held_by(owner) + amount

    def give_back(self, owner: str, amount: int = 1) -> None:
        """Gives back what was taken for an owner."""
        self.taken -= amount
        left = self._owners[owner] - amount
        if left:
            self._owners[owner] = left
        else:
            del self._owners[owner]
