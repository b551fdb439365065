"""Which replica answers: the same for a conversation, another where that one is down.

A conversation goes to the replica that kept its prefix: by rendezvous hashing, so that a replica
more or less moves only its own share. One that fails several times in a row is left alone for a
while, then tried by one request. Only what speaks against the replica counts: a request that the
upstream refuses says nothing about the next one.
"""

import asyncio
import hashlib
from collections.abc import Callable, Iterator, Sequence
from typing import Final

FAILURES: Final = 3
"""In a row, after which a replica is left alone."""

SHORTEST: Final = 1.0
LONGEST: Final = 30.0
"""Seconds for which it is left alone: doubled with each further failure."""


class Replica:
    """One server. ``url`` is the base of its API, ``root`` what that stands on."""

    def __init__(self, url: str, *, places: int) -> None:
        self.url = url
        self.root = url.removesuffix("/v1")
        self.places = asyncio.Semaphore(places)
        """Requests that may run there at once; further ones wait their turn."""
        self.failures = 0
        self.shut_until = 0.0

    def worked(self) -> None:
        """It answered."""
        self.failures = 0
        self.shut_until = 0.0

    def failed(self, now: float) -> None:
        """It did not."""
        self.failures += 1
        if self.failures >= FAILURES:
            pause = SHORTEST * 2 ** min(self.failures - FAILURES, 10)
            self.shut_until = now + min(pause, LONGEST)

    @property
    def away(self) -> bool:
        """Whether it has failed so often that it is left alone."""
        return self.failures >= FAILURES

    def back(self) -> None:
        """It answers something again: the next request may try it."""
        self.shut_until = 0.0

    def admits(self, now: float) -> bool:
        """Whether it may be asked now. The first to ask after a pause goes alone."""
        if now < self.shut_until:
            return False
        if self.failures >= FAILURES:
            self.shut_until = now + SHORTEST
        return True


class Replicas:
    """All of them. ``clock`` tells seconds, monotonic."""

    def __init__(self, urls: Sequence[str], *, places: int, clock: Callable[[], float]) -> None:
        self.all = tuple(Replica(url, places=places) for url in urls)
        self._clock = clock

    def order(self, affinity: str) -> list[Replica]:
        """All replicas, the one that a conversation belongs to first."""
        if len(self.all) == 1:
            return [self.all[0]]

        def weight(replica: Replica) -> bytes:
            return hashlib.blake2b(f"{affinity}\n{replica.url}".encode(), digest_size=8).digest()

        return sorted(self.all, key=weight)

    def course(self, affinity: str, *, tries: int) -> Iterator[Replica]:
        """Whom to ask, one after the other, at most ``tries`` times; who is shut is passed over.

        Whether a replica admits is asked when its turn comes.
        """
        order = self.order(affinity)
        for at in range(max(tries, len(order))):
            replica = order[at % len(order)]
            if replica.admits(self._clock()):
                yield replica

    def failed(self, replica: Replica) -> None:
        """Something spoke against this replica."""
        replica.failed(self._clock())

    def opens_in(self) -> float:
        """Seconds until one of them may be asked."""
        return max(0.0, min(each.shut_until for each in self.all) - self._clock())
