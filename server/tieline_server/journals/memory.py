"""A journal in memory: gone with its process, and so are all turns that it tells of."""

from collections.abc import Callable, Sequence

from tieline_server.journals.base import Begun, Cancellation, Claim, Entry


class MemoryJournal:
    """Begun responses, their events and keys, in dictionaries."""

    def __init__(self, *, now: Callable[[], float]) -> None:
        self._now = now
        self._begun: dict[tuple[str, str], Begun] = {}
        self._events: dict[tuple[str, str], list[bytes]] = {}
        self._claims: dict[bytes, tuple[Claim, float | None]] = {}

    async def begin(self, begun: Begun) -> None:
        """Notes that it runs."""
        self._begun[begun.owner, begun.response.id] = begun

    def log(self, entry: Entry) -> None:
        """Takes its events."""
        self._events.setdefault((entry.owner, entry.response_id), []).extend(entry.events)
        self._begun[entry.owner, entry.response_id] = entry.begun

    def end(self, owner: str, response_id: str) -> None:
        """It will never be stored."""
        self._begun.pop((owner, response_id), None)
        self._events.pop((owner, response_id), None)

    async def running(self, owner: str, response_id: str) -> Begun | None:
        """Whether it runs."""
        return self._begun.get((owner, response_id))

    async def events(
        self, owner: str, response_id: str, *, after: int, most: int
    ) -> Sequence[bytes] | None:
        """Its events."""
        events = self._events.get((owner, response_id))
        return None if events is None else events[after + 1 : after + 1 + most]

    async def claim(self, claim: Claim) -> Claim:
        """The one that holds."""
        held = self._claims.get(claim.key)
        if held is None or (held[1] is not None and held[1] <= self._now()):
            self._claims[claim.key] = (claim, None)
            return claim
        return held[0]

    def expire(self, claim: Claim, *, at: float | None) -> None:
        """Lets it end."""
        held = self._claims.get(claim.key)
        if held is not None and held[0].response_id == claim.response_id:
            self._claims[claim.key] = (held[0], self._now() if at is None else at)

    async def ask_cancel(self, wanted: Cancellation) -> None:
        """There is no other process."""

    async def asked_cancels(self) -> Sequence[Cancellation]:
        """There is no other process."""
        return ()

    async def close(self) -> None:
        """Nothing to free."""
