"""Capacity: how many connections or calls may be open, in this process or in several together."""

from typing import Protocol


class Capacity(Protocol):
    """A cap and what is taken of it. Nothing here waits."""

    @property
    def most(self) -> int:
        """How many may be taken at once."""
        ...

    def take(self) -> bool:
        """Takes one; False where all are taken."""
        ...

    def give_back(self) -> None:
        """Gives one back that was taken here."""
        ...


class LocalCapacity:
    """The capacity of one process."""

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
