"""Messages that are still coming: how many bytes of them may be held, and how slowly they may come.

Bytes are counted against the owner of the key and against the whole process before they are
kept. What is complete in the piece in which it begins is not: it was never waited for.
"""

from typing import Final

from tieline.errors import ApiError
from tieline_server.core.create.limits import Share

SLOWEST: Final = 1024
"""Bytes per second, on the whole, below which a message is given up: a trickle holds a place."""

RETRY_AFTER: Final = 1.0
"""Seconds after which messages that come now have come, or have been given up."""


class Arrival:
    """One message of ``owner`` from its first byte until it is handed on.

    ``started`` is the clock's time in seconds; ``patience`` is how long it may be silent.
    """

    __slots__ = ("_owner", "_patience", "_share", "_size", "_started", "due")

    def __init__(self, share: Share, owner: str, *, patience: float, started: float) -> None:
        self._share = share
        self._owner = owner
        self._patience = patience
        self._started = started
        self._size = 0
        self.due = started + patience
        """When the message is given up unless more of it comes."""

    @property
    def size(self) -> int:
        """Bytes that have come."""
        return self._size

    def take(self, size: int, now: float) -> None:
        """Counts ``size`` more bytes, which may then be kept; raises :class:`ApiError` 429 or 503.

        A message that is as fast as it must be may be silent for ``patience`` from now.
        """
        if not self._share.take(self._owner, size):
            raise self._refusal(size)
        self._size += size
        self.due = min(now, self._started + self._size / SLOWEST) + self._patience

    def forgive(self, now: float) -> None:
        """The message could not come because this side did not read: it is on time again."""
        self._started = now - self._size / SLOWEST
        self.due = now + self._patience

    def end(self) -> None:
        """Nothing of the message is held any more. Idempotent."""
        if self._size:
            self._share.give_back(self._owner, self._size)
            self._size = 0

    def _refusal(self, size: int) -> ApiError:
        share = self._share
        if not share.fits(self._owner, size):
            return ApiError.of(
                "memory_limit_exceeded",
                f"Messages that are still coming may have {share.each} bytes of one key's owner "
                "together. Send fewer at once.",
                retry_after=RETRY_AFTER,
            )
        return ApiError.of(
            "server_is_overloaded",
            "The server has no room for more messages that are still coming.",
            retry_after=RETRY_AFTER,
        )


def late() -> ApiError:
    """What a message is answered with that has not come in time."""
    return ApiError.of(
        "idle_timeout",
        f"The message did not come in time: at least {SLOWEST} bytes a second are expected.",
    )
