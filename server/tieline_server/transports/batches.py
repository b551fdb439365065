"""What leaves in one write: whole events, joined up to a bound."""

from collections.abc import Callable, Sequence
from typing import Final

from tieline.events import Event
from tieline_server.runtime import ConnectionDriver

EVENTS: Final = 64
"""Events taken from a connection at once: bounds what is encoded and not yet written."""

Encode = Callable[[Sequence[Event]], list[bytes]]
"""The bytes of each event as the transport frames it; events that the client does not get have
none."""


class Batches:
    """The writes of one connection. ``most`` is where a write closes; a larger event goes alone.

    With ``most`` 0 every event is a write of its own.
    """

    __slots__ = ("_connection", "_encode", "_frames", "_outgoing", "most")

    def __init__(
        self,
        connection: ConnectionDriver,
        encode: Encode,
        *,
        most: int,
        first: Sequence[Event] = (),
    ) -> None:
        self._connection = connection
        self._outgoing = connection.connection.outgoing
        self._encode = encode
        self.most = most
        self._frames = encode(first)

    @property
    def empty(self) -> bool:
        """Whether there is nothing to write now."""
        return not self._frames and self._outgoing.empty

    def close(self) -> None:
        """Nothing more is written: who encodes is not kept alive from here."""
        self._frames.clear()
        self._encode = _nothing

    def next(self) -> bytes | None:
        """The next write; None when there is nothing to write now."""
        frames, self._frames = self._frames, []
        while sum(map(len, frames)) <= self.most and (events := self._connection.take(EVENTS)):
            frames += self._encode(events)
            if frames and len(events) < EVENTS:
                break
        data = b"".join(frames)
        if len(data) > self.most and len(frames) > 1:
            return self._cut(frames)
        return data or None

    def _cut(self, frames: list[bytes]) -> bytes:
        """As many frames as fit, at least one; the others are next."""
        count, size = 1, len(frames[0])
        while size + len(frames[count]) <= self.most:
            size += len(frames[count])
            count += 1
        self._frames = frames[count:]
        return b"".join(frames[:count])


def _nothing(_taken: Sequence[Event]) -> list[bytes]:
    return []
