"""What leaves in one write: whole events, joined up to a bound."""

from collections.abc import Callable, Sequence
from typing import Final

from tieline.events import Event
from tieline_server.runtime import LineRuntime

EVENTS: Final = 64
"""Events taken from a line at once: what is encoded and not yet written is bounded by this."""

Encode = Callable[[Sequence[Event]], list[bytes]]
"""The bytes of each event as the transport frames it; events that the client does not get have
none."""


class Batches:
    """The writes of one line. ``most`` is where a write closes; a larger event goes alone.

    With ``most`` 0 every event is a write of its own.
    """

    __slots__ = ("_encode", "_frames", "_line", "_outgoing", "most")

    def __init__(
        self,
        line: LineRuntime,
        encode: Encode,
        *,
        most: int,
        first: Sequence[Event] = (),
    ) -> None:
        self._line = line
        self._outgoing = line.line.outgoing
        self._encode = encode
        self.most = most
        self._frames = encode(first)

    @property
    def empty(self) -> bool:
        """Whether there is nothing to write now."""
        return not self._frames and self._outgoing.empty

    def next(self) -> bytes | None:
        """The next write; None when there is nothing to write now."""
        frames, size = self._frames, 0
        if frames:
            self._frames, size = [], sum(map(len, frames))
        while size <= self.most and (events := self._line.take(EVENTS)):
            made = self._encode(events)
            if not frames and len(events) == len(made) == 1:
                # Most writes are one token, with nothing behind it.
                return made[0]
            frames = frames + made if frames else made
            size += sum(map(len, made))
            if frames and len(events) < EVENTS:
                break
        if len(frames) == 1:
            return frames[0]
        return (b"".join(frames) or None) if size <= self.most else self._cut(frames)

    def _cut(self, frames: list[bytes]) -> bytes:
        """As many frames as fit, at least one; the others are next."""
        count, size = 1, len(frames[0])
        while size + len(frames[count]) <= self.most:
            size += len(frames[count])
            count += 1
        self._frames = frames[count:]
        return b"".join(frames[:count])
