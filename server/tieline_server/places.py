"""Places: what a cap is counted with, by this process alone or by several together."""

from typing import Protocol


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
