"""The journal of one process in its memory: gone when it ends, bounded by the store beside it.

The store of the same process is told of it (``MemoryStore(journal=...)``), so that a response
goes with its events and claims, and counts with them.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from heapq import heappop, heappush
from typing import Final

from tieline_server.journals.base import Begun, Cancellation, Claim, Entry

WORD: Final = 10.0
"""Seconds for which a word to cancel is good."""

Key = tuple[str, str]
"""Owner and response id."""


class MemoryJournal:
    """Dictionaries. Nothing here outlives the process, so no process is ever found dead."""

    def __init__(self, *, now: Callable[[], float]) -> None:
        self._now = now
        self._running: dict[Key, Begun] = {}
        self._events: dict[Key, list[bytes]] = {}
        """Of responses that run or are stored: events in order, the first has number 0."""
        self._parent: dict[Key, Key] = {}
        """What a running response continues."""
        self._parents: Counter[Key] = Counter()
        self._claims: dict[tuple[str, bytes], Claim] = {}
        self._claims_of: dict[Key, set[Claim]] = {}
        self._until: dict[Claim, float] = {}
        self._due: list[tuple[float, str, bytes]] = []
        """(when, owner, key) of claims that will be over, as a heap."""
        self._words: list[tuple[float, Cancellation]] = []
        self.size = 0
        """Bytes of all events."""

    # Turns.

    async def begin(self, begun: Begun) -> None:
        """Notes that a response runs."""
        key = (begun.owner, begun.response.id)
        self._running[key] = begun
        self._events.setdefault(key, [])
        previous = begun.response.previous_response_id
        if previous is not None:
            parent = self._parent[key] = (begun.owner, previous)
            self._parents[parent] += 1

    def log(self, entry: Entry) -> None:
        """Takes events, if the response runs still."""
        key = (entry.owner, entry.response_id)
        if key not in self._running:
            return
        self._running[key] = entry.begun
        events = self._events[key]
        if entry.first == len(events):
            events.extend(entry.events)
            self.size += sum(map(len, entry.events))

    def end(self, owner: str, response_id: str) -> None:
        """Removes all of a begun response."""
        if (owner, response_id) in self._running:
            self.stored(owner, response_id)
            self.dropped(owner, response_id)

    async def running(self, owner: str, response_id: str) -> Begun | None:
        """The owner's begun response as it stands."""
        return self._running.get((owner, response_id))

    async def events(
        self, owner: str, response_id: str, *, after: int, most: int
    ) -> Sequence[bytes] | None:
        """Events of a response that runs or is stored."""
        events = self._events.get((owner, response_id))
        first = max(after + 1, 0)
        return None if events is None else events[first : first + most]

    # What the store beside it says and asks.

    def stored(self, owner: str, response_id: str) -> None:
        """A response has been put: if it ran, it does so no more; its events stay."""
        key = (owner, response_id)
        self._running.pop(key, None)
        parent = self._parent.pop(key, None)
        if parent is not None:
            self._parents[parent] -= 1
            if not self._parents[parent]:
                del self._parents[parent]

    def dropped(self, owner: str, response_id: str) -> None:
        """A stored response has gone, and its events and claims go with it."""
        key = (owner, response_id)
        self.size -= sum(map(len, self._events.pop(key, ())))
        for claim in self._claims_of.pop(key, ()):
            self._release(claim)

    def spares(self, owner: str, response_id: str) -> bool:
        """Whether a running response continues this one."""
        return (owner, response_id) in self._parents

    # Keys.

    async def claim(self, claim: Claim) -> Claim:
        """Takes the key, or finds the claim that has it."""
        self._release_due()
        holds = self._claims.setdefault((claim.owner, claim.key), claim)
        if holds is claim:
            self._claims_of.setdefault((claim.owner, claim.response_id), set()).add(claim)
        return holds

    def expire(self, claim: Claim, *, at: float | None) -> None:
        """Has a claim end."""
        self._release_due()
        held = self._claims.get((claim.owner, claim.key))
        if held is None or held.response_id != claim.response_id:
            return
        if at is None:
            self._drop_claim(held)
        else:
            self._until[held] = at
            heappush(self._due, (at, held.owner, held.key))

    def _release_due(self) -> None:
        now = self._now()
        while self._due and self._due[0][0] <= now:
            at, owner, key = heappop(self._due)
            claim = self._claims.get((owner, key))
            if claim is not None and self._until.get(claim) == at:
                self._drop_claim(claim)

    def _drop_claim(self, claim: Claim) -> None:
        self._release(claim)
        key = (claim.owner, claim.response_id)
        claims = self._claims_of.get(key, set())
        claims.discard(claim)
        if not claims:
            self._claims_of.pop(key, None)

    def _release(self, claim: Claim) -> None:
        self._claims.pop((claim.owner, claim.key), None)
        self._until.pop(claim, None)

    # Cancels.

    async def ask_cancel(self, wanted: Cancellation) -> None:
        """Leaves word, for nobody but this process."""
        self._words = [word for word in self._words if word[0] > self._now()]
        self._words.append((self._now() + WORD, wanted))

    async def asked_cancels(self) -> Sequence[Cancellation]:
        """The words that are good still, once."""
        words, self._words = self._words, []
        return [wanted for until, wanted in words if until > self._now()]

    async def close(self) -> None:
        """Forgets everything."""
        self._running.clear()
        self._events.clear()
        self._parent.clear()
        self._parents.clear()
        self._claims.clear()
        self._claims_of.clear()
        self._until.clear()
        self._due.clear()
        self._words.clear()
        self.size = 0
