"""What one WebSocket may keep of messages that are still coming, and how slowly they may come.

A message that finds no room is skipped, and answered by an error on a connection that lives on.
One that does not come in time cannot be skipped: its connection ends.
"""

import asyncio
from collections.abc import Callable

from tieline.errors import ApiError
from tieline_server.core.create.limits import Share
from tieline_server.transports.arrivals import Arrival, late

Told = Callable[[ApiError], object]


def _ignore(error: ApiError) -> None:
    """Before a connection has begun, and after its end."""


class IncomingMessages:
    """The gate of :class:`ClientFrames`, and a part of the reader behind it.

    ``most`` is how many bytes a message may have, ``patience`` how many seconds it may be silent.
    """

    __slots__ = ("_coming", "_loop", "_owner", "_patience", "_share", "_taken", "_timer", "_whole",
                 "deflate", "give_up", "most", "reject", "transport")  # fmt: skip

    def __init__(
        self, share: Share, owner: str, *, most: int, patience: float, deflate: bool
    ) -> None:
        self.most = most
        self.deflate = deflate
        self.reject: Told = _ignore
        """Called with why a message was not kept."""
        self.give_up: Told = _ignore
        """Called with why nothing more is waited for."""
        self.transport: asyncio.Transport | None = None
        """Tells whether this side reads."""
        self._share = share
        self._owner = owner
        self._patience = patience
        self._loop = asyncio.get_running_loop()
        self._coming: Arrival | None = None
        self._whole: list[tuple[int, Arrival]] = []
        """Messages that have come and that the reader has not taken: number, bytes."""
        self._taken = 0
        self._timer: asyncio.TimerHandle | None = None

    def take(self, size: int) -> bool:
        """So many bytes more are to be kept; False: none of the message may be."""
        coming = self._arrival()
        try:
            coming.take(size, self._loop.time())
        except ApiError as error:
            self._coming = None
            coming.end()
            self.reject(error)
            return False
        return True

    def complete(self, number: int) -> None:
        """The message has come; it is the ``number``-th that the reader is given."""
        if self._coming is not None:
            self._whole.append((number, self._coming))
            self._coming = None

    def taken(self) -> None:
        """The reader has taken the next message."""
        self._taken += 1
        if self._whole and self._whole[0][0] <= self._taken:
            self._whole.pop(0)[1].end()

    def wait(self) -> None:
        """The rest of a message or of a header is due."""
        due = self._arrival().due
        if self._timer is None:
            self._timer = self._loop.call_at(due, self._look)

    def rest(self) -> None:
        """Nothing is due any more."""
        if self._coming is not None:
            self._coming.end()
            self._coming = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def close(self) -> None:
        """The connection is over: nothing of it is kept, and no callback is called."""
        self.rest()
        self.reject = self.give_up = _ignore
        self.transport = None
        while self._whole:
            self._whole.pop(0)[1].end()

    def _arrival(self) -> Arrival:
        if self._coming is None:
            self._coming = Arrival(
                self._share, self._owner, patience=self._patience, started=self._loop.time()
            )
        return self._coming

    def _look(self) -> None:
        """Looks, at the time that was due when the timer was set, what is due by now."""
        self._timer = None
        coming, now = self._coming, self._loop.time()
        if coming is None:
            return
        if coming.due <= now:
            if self.transport is None or self.transport.is_reading():
                self.rest()
                self.give_up(late())
                return
            coming.forgive(now)
        self._timer = self._loop.call_at(coming.due, self._look)
