"""What becomes of steers when their response has ended (wire.md 2.3).

They go on in a successor, or with the create that answers the open calls.
"""

from collections import deque
from collections.abc import Iterable
from typing import Final

from tieline.items import Item
from tieline.requests import Create
from tieline_server.core.history import ChainHead
from tieline_server.core.steering import size
from tieline_server.core.turn import Host, Turn

WAITING: Final = 256
"""Responses whose steers wait for tool outputs; of those that never come, the oldest go first."""


class PendingSteers:
    """The steers of one connection that outlive their response."""

    __slots__ = ("_host", "_waiting")

    def __init__(self, host: Host) -> None:
        self._host = host
        self._waiting: dict[str, tuple[Item, ...]] = {}

    def close(self) -> None:
        """Its connection is over, and not kept alive by it."""
        self._waiting.clear()
        del self._host

    def take(self, response_id: str) -> tuple[Item, ...]:
        """What waits for a create that continues this response; it is used now."""
        return self._waiting.pop(response_id, ())

    def waiting_bytes(self, turns: Iterable[Turn]) -> int:
        """Bytes of all steers of the connection that are in no chain yet, those of its turns
        included."""
        waiting = sum(map(size, self._waiting.values()))
        # A turn that has a chain has what it took in it.
        return waiting + sum(
            each.steers.size + (size(each.extra) if each.tip is None else 0) for each in turns
        )

    def restore(self, turn: Turn) -> None:
        """A turn ended: where it came to nothing, the steers that it had taken wait again."""
        named = turn.request.previous_response_id
        unused = turn.status == "refused" or turn.tip is None
        if unused and turn.extra and named:
            self._keep(named, turn.extra)

    def follow(self, turn: Turn, queue: deque[Turn]) -> None:
        """A turn ended: its own unused steers go on in its lane's ``queue``, or wait."""
        if not len(turn.steers):
            return
        items = tuple(turn.steers.take())
        if turn.tip is None or not turn.tip.open_calls:
            queue.appendleft(self._successor(turn, items))
            return
        waits = (each for each in queue if each.request.previous_response_id == turn.id)
        follower = next(waits, None)
        if follower is not None:
            # The create that superseded a held turn carries its outputs.
            follower.extra = items
        else:
            self._keep(turn.id, items)

    def _keep(self, response_id: str, items: tuple[Item, ...]) -> None:
        self._waiting[response_id] = items
        if len(self._waiting) > WAITING:
            del self._waiting[next(iter(self._waiting))]

    def _successor(self, turn: Turn, items: tuple[Item, ...]) -> Turn:
        """The response that a steer starts by itself, with the settings of the one before."""
        assert turn.settings is not None
        assert turn.tip is not None
        create = Create(
            stream_id=turn.lane,
            previous_response_id=turn.id,
            trace_context=turn.request.trace_context,
            resumable=turn.log is not None,
        )
        successor = Turn(self._host, create, principal=turn.principal, recall=turn.recall)
        successor.settings = turn.settings.following()
        owner = turn.principal.owner
        successor.pinned = ChainHead(turn.id, turn.tip, owner=owner, settings=turn.settings)
        successor.extra = items
        successor.succeeds = turn.id
        return successor
