"""Steers whose response has ended (wire.md 2.3).

They go on in a successor, or with the create that answers the open calls.
"""

from collections import deque
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from tieline.items import Item
from tieline.requests import Create
from tieline_server.core.create.limits import admit_steer
from tieline_server.core.history.chain import ChainHead
from tieline_server.core.turn.machine import TurnMachine
from tieline_server.core.turn.steering import size
from tieline_server.core.turn.turn import Host, Turn

WAITING: Final = 256
"""Responses whose steers wait for tool outputs; of those that never come, the oldest go first."""


class Waiting(NamedTuple):
    """The messages of one response's steers."""

    owner: str
    items: tuple[Item, ...]


class PendingSteers:
    """The steers of one connection that outlive their response.

    They count among what waits of all connections until a chain has them, as do those of turns.
    """

    __slots__ = ("_host", "_waiting")

    def __init__(self, host: Host) -> None:
        self._host = host
        self._waiting: dict[str, Waiting] = {}

    def close(self) -> None:
        """Its connection is over, and not kept alive by it."""
        while self._waiting:
            self.take(next(iter(self._waiting)))
        del self._host

    def admit(self, turn: Turn, items: Sequence[Item], turns: Iterable[Turn]) -> None:
        """Refuses a steer of ``turn`` where a bound is in the way; raises 429 or 503.

        One bound is for the connection, all whose ``turns`` count; others for owner and server.
        """
        self._host.admission.steer_bytes(self._waiting_bytes(turns), size(items))
        admit_steer(self._host.queued, turn.principal.owner, size(items))

    def take(self, response_id: str) -> tuple[Item, ...]:
        """What waits for a create that continues this response; it is used now."""
        waiting = self._waiting.pop(response_id, None)
        if waiting is None:
            return ()
        self._host.queued.give_back(waiting.owner, size(waiting.items))
        return waiting.items

    def join(self, turn: Turn, response_id: str) -> None:
        """A create that continues this response has what waits for it as further input."""
        _add(turn, self.take(response_id))

    def _waiting_bytes(self, turns: Iterable[Turn]) -> int:
        """Bytes of all steers of the connection that are in no chain yet."""
        waiting = sum(size(each.items) for each in self._waiting.values())
        # A turn that has a chain has what it took in it.
        return waiting + sum(
            each.steers.size + (size(each.extra) if each.node is None else 0) for each in turns
        )

    def restore(self, turn: Turn) -> None:
        """A turn ended: where it came to nothing, the steers that it had taken wait again."""
        named = turn.request.previous_response_id
        unused = turn.status == "refused" or turn.node is None
        if unused and turn.extra and named:
            self._keep(named, turn.principal.owner, turn.extra)

    def follow(self, turn: Turn, queue: deque[Turn] | None) -> None:
        """A turn ended: its own unused steers go on in its lane's ``queue``, or wait.

        Where its connection is gone there is no queue, and they go with it.
        """
        items = tuple(turn.steers.take())
        if queue is None or not items:
            return
        if turn.node is None or not turn.node.open_calls:
            # Before what waits on the lane: a steer belongs to the response that it steered.
            queue.appendleft(self._successor(turn, items))
            return
        waits = (each for each in queue if each.request.previous_response_id == turn.id)
        follower = next(waits, None)
        if follower is not None:
            # The create that superseded a held turn carries its outputs.
            _add(follower, items)
        else:
            self._keep(turn.id, turn.principal.owner, items)

    def _keep(self, response_id: str, owner: str, items: tuple[Item, ...]) -> None:
        self._waiting[response_id] = Waiting(owner, items)
        self._host.queued.add(owner, size(items))
        # The client may never answer the calls; what it does not use must not grow.
        if len(self._waiting) > WAITING:
            self.take(next(iter(self._waiting)))

    def _successor(self, turn: Turn, items: tuple[Item, ...]) -> Turn:
        """The response that a steer starts by itself, with the settings of the one before."""
        assert turn.settings is not None
        assert turn.node is not None
        create = Create(
            stream_id=turn.lane,
            previous_response_id=turn.id,
            trace_context=turn.request.trace_context,
            resumable=turn.log is not None,
        )
        successor = TurnMachine(self._host, create, principal=turn.principal, recall=turn.recall)
        successor.settings = turn.settings.following()
        owner = turn.principal.owner
        successor.pinned = ChainHead(turn.id, turn.node, owner=owner, settings=turn.settings)
        _add(successor, items)
        successor.succeeds = turn.id
        return successor


def _add(turn: Turn, items: tuple[Item, ...]) -> None:
    """Further input of a turn; it counts as waiting until the turn's chain has it."""
    turn.extra = items
    if items:
        turn.holdings.count(size(items))
