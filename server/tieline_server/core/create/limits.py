"""How much an owner may have of a process, and a connection may ask for at once (wire.md 5).

Numbers are settings; the rules that use them are here and nowhere else.
"""

from operator import attrgetter
from typing import Any, Final

from msgspec import Raw, Struct

from tieline.errors import ApiError
from tieline.ids import is_stream_id
from tieline.requests import MEMBERS, Append, Create

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


class Limits(Struct, frozen=True, kw_only=True):
    """What one connection may use. Times are seconds."""

    active: int = 16
    """Responses that sample side by side; further ones wait."""
    lanes: int = 32
    """Distinct lane names in the life of a connection; the default lane is not counted."""
    queue: int = 64
    """Creates that may wait behind another on one lane."""
    queue_bytes: int = 256 * 1024 * 1024
    """Bytes, about, of all creates that wait behind others on the connection; and of all steers."""
    steers: int = 8
    """Steers that one response may collect."""
    held_timeout: float = 900.0
    """How long a held turn waits for its tool outputs."""
    resume_window: float = 120.0
    """How long a resumable turn outlives its connection, and its events their end."""
    announce_after: float = 0.5
    """How long ``response.created`` waits for the engine's acceptance."""
    merge_from: int = 16
    """Unsent events on a lane from which on a delta joins the one before it."""
    message_bytes: int = 32 * 1024 * 1024
    """Largest message that a client may send on the connection's transport."""
    websocket_message_bytes: int = 16 * 1024 * 1024
    """The same on a WebSocket, as others are told."""
    grpc_message_bytes: int = 4 * 1024 * 1024
    """And on gRPC."""
    connection_bytes: int = 256 * 1024 * 1024
    """Bytes of JSON of all items that a connection may remember."""
    outbox: int = 512
    """Unsent events on a connection, its lanes sharing them, at which engines are paused."""
    ignores: bool = True
    """Whether what nothing acts on is ignored with a warning, or refused."""


# Members of a create that may be of any size.
_members_of: Final = attrgetter(*(each.name for each in MEMBERS if each.large))


def size_of(request: Create | Append) -> int:
    """Bytes, about, that a request keeps in memory while it waits."""
    members = _members_of(request) if isinstance(request, Create) else (request.input,)
    return sum(map(_size, members))


def _size(member: Any) -> int:
    kind = type(member)
    if kind is Raw:
        # The size is known without a copy, and without a look at the JSON.
        return memoryview(member).nbytes
    if kind is dict:
        return sum(len(name) + len(value) for name, value in member.items())
    if kind is list:
        return sum(map(len, member))
    return len(member) if kind is str else 0


def admit_steer(queued: Share, owner: str, size: int) -> None:
    """Admits a steer beside all that waits of all connections; raises 429 or 503."""
    # 429 where the owner itself asks for too much, 503 where all owners together do.
    if not queued.fits(owner, size):
        raise ApiError.of(
            "too_many_pending_steers",
            f"What waits may have {queued.each} bytes of one key's owner together.",
        )
    if not queued.has_room(owner, size):
        raise ApiError.of("server_is_overloaded", "The server has no room for more steers.")


def admit_waiting(queued: Share, owner: str, size: int) -> None:
    """Admits a request that waits, beside those of all connections; raises 429 or 503."""
    if not queued.fits(owner, size):
        raise ApiError.of(
            "queue_full",
            f"Requests that wait may have {queued.each} bytes of one key's owner together. "
            "Send fewer at once.",
            retry_after=1.0,
        )
    if not queued.has_room(owner, size):
        raise ApiError.of(
            "server_is_overloaded",
            "The server has no room for more requests that wait.",
            retry_after=1.0,
        )


class Admission:
    """Counts lanes and active places of one connection."""

    __slots__ = ("_active", "_limits", "_names")

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._names: set[str] = set()
        self._active = 0

    def lane(self, name: str | None) -> None:
        """Admits a lane name; raises :class:`ApiError` 400 for a bad one or one too many.

        Names are never freed before the connection ends (wire.md 5.5).
        """
        if name is None or name in self._names:
            return
        if not is_stream_id(name):
            raise ApiError.of(
                "invalid_stream_id",
                "Invalid 'stream_id': expected 1 to 256 of letters, digits, '_', '.', '-'.",
                param="stream_id",
            )
        if len(self._names) >= self._limits.lanes:
            raise ApiError.of(
                "websocket_stream_limit_reached",
                f"This connection already has {self._limits.lanes} distinct stream ids.",
                param="stream_id",
            )
        self._names.add(name)

    def queue(self, waiting: int) -> None:
        """Admits one more create behind ``waiting`` others; raises :class:`ApiError` 429."""
        if waiting >= self._limits.queue:
            raise ApiError.of(
                "queue_full", f"This lane already has {waiting} requests waiting.", retry_after=1.0
            )

    def queue_bytes(self, waiting: int, request: Create | Append) -> None:
        """Admits one more beside ``waiting`` bytes of its connection; raises :class:`ApiError`."""
        # One alone always fits: the size of a message bounds it.
        if waiting and waiting + size_of(request) > self._limits.queue_bytes:
            raise ApiError.of(
                "queue_full",
                f"Requests of {waiting} bytes already wait on this connection.",
                retry_after=1.0,
            )

    def steer_bytes(self, waiting: int, size: int) -> None:
        """Admits a steer beside ``waiting`` bytes of its connection; raises :class:`ApiError`."""
        # As for requests, one alone always fits.
        if waiting and waiting + size > self._limits.queue_bytes:
            raise ApiError.of(
                "too_many_pending_steers",
                f"Steers of {waiting} bytes already wait on this connection.",
            )

    @property
    def has_place(self) -> bool:
        """Whether one more response may sample now."""
        return self._active < self._limits.active

    @property
    def idle(self) -> bool:
        """Whether nothing samples."""
        return self._active == 0

    def enter(self) -> None:
        """A response takes an active place."""
        self._active += 1

    def leave(self) -> None:
        """A response gives its active place back."""
        self._active -= 1
