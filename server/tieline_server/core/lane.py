"""One lane: a first-in first-out queue of turns (wire.md 5.3; the LANES table)."""

from collections import deque
from collections.abc import Iterator
from typing import Final, get_args

from tieline.errors import ApiError
from tieline.requests import Append, Cancel, Create
from tieline_server.core.history import ChainNode
from tieline_server.core.limits import size_of
from tieline_server.core.settings import Settings, SettingsCache
from tieline_server.core.tables import LANES, LaneInput, LaneState, TurnState
from tieline_server.core.turn import Host, Turn
from tieline_server.core.turn_machine import TurnMachine
from tieline_server.core.values import Principal


class Lane:
    """A first-in first-out queue of turns, and what it recalls between them."""

    def __init__(self, host: Host, name: str | None, recall: SettingsCache | None = None) -> None:
        self.name = name
        self.state: LaneState = "idle"
        self.current: Turn | None = None
        self.queue: deque[Turn] = deque()
        self.parked: deque[tuple[Create | Append | Cancel, Principal]] = deque()
        """What was asked while a response is on its way here: it is meant for that one's lane."""
        self.recall = recall or SettingsCache()
        self.recall.work = host.work
        self._host = host

    def handle(self, what: LaneInput, *args: object) -> None:
        """Runs the row of (state, ``what``); what the state ignores has none."""
        row = LANES.get((self.state, what))
        if row is not None:
            action, self.state = row
            getattr(self, action)(*args)

    def turns(self) -> Iterator[Turn]:
        """The running turn, then those that wait."""
        if self.current is not None:
            yield self.current
        yield from self.queue

    @property
    def waiting(self) -> int:
        """How many requests wait."""
        return len(self.queue) + len(self.parked)

    def may_wait(self, request: Create | Append) -> bool:
        """Whether another response may have to end before this is answered."""
        key = request.idempotency_key if isinstance(request, Create) else None
        return self.current is not None or key is not None

    def parks(self, request: Create | Append, principal: Principal) -> bool:
        """Keeps a request until the response that was resumed here has come, if one is to come."""
        reading = self.current.reading if self.current is not None else None
        if reading is None or not reading.moves:
            return False
        self._host.queued.take(principal.owner, size_of(request))
        self.parked.append((request, principal))
        return True

    def parks_cancel(self, cancel: Cancel, principal: Principal) -> bool:
        """Keeps a cancel behind the create that it names, if that is kept."""
        named = cancel.event_id if cancel.response_id is None else None
        if named is None or all(named != request.event_id for request, _ in self.parked):
            return False
        self.parked.append((cancel, principal))
        return True

    def unpark(self) -> list[tuple[Create | Append | Cancel, Principal]]:
        """Takes what is kept, in order."""
        parked = list(self.parked)
        self.parked.clear()
        for request, principal in parked:
            if not isinstance(request, Cancel):
                self._host.queued.give_back(principal.owner, size_of(request))
        return parked

    def admit_answer(self, named: str) -> None:
        """Refuses an append to a response that is not the lane's, or is no longer held.

        Such an append has crossed the end of its turn. A new response would start what nobody
        waits for, or what was just cancelled.
        """
        turn, tip = self.current, self._host.memory.latest(self.name)
        on_lane: str | None = None
        settings: Settings | None = None
        link: ChainNode | None = None
        if turn is not None:
            on_lane = turn.id
            if turn.state == "saving":
                settings, link = turn.settings, turn.tip
        elif tip is not None:
            on_lane, settings, link = tip.response_id, tip.settings, tip.segment
        if named != on_lane:
            raise ApiError.of(
                "response_not_found",
                f"Response with id '{named[:128]}' is not the one on this lane.",
                param="response_id",
            )
        if turn is not None and turn.state in _RUNNING and _is_held_open(turn):
            # A client that lost its connection cannot know whether its append was taken, and sends
            # it again: behind the running turn it would end the next hold (superseded).
            raise ApiError.of(
                "response_not_active",
                f"Response '{named}' is not held: its calls have been answered.",
                param="response_id",
            )
        answerable = settings is not None and settings.append
        if answerable and link is not None and link.open_calls:
            raise ApiError.of(
                "response_already_completed",
                f"Response '{named}' ended before its calls were answered.",
                param="response_id",
            )

    # Actions of the table.

    def follow_turn(self) -> None:
        """Its turn became held, or goes on: the lane's state says so, and that is all."""

    def free(self) -> None:
        """Its turn has ended, or went elsewhere."""
        self.current = None

    def enqueue(self, turn: Turn) -> None:
        """The create takes its place in the queue. What may wait there is counted."""
        if self.may_wait(turn.request):
            turn.standing.wait(turn.size)
        self.queue.append(turn)

    def begin(self) -> None:
        """The first in the queue has the lane now."""
        self.current = self.queue.popleft()
        self.current.handle("head")

    def seat(self, turn: Turn) -> None:
        """A turn from elsewhere has the lane now; one that only read it gives way."""
        self.current = turn

    def supersede(self, turn: Turn) -> None:
        """A create behind a held turn ends that turn, then runs (wire.md 2.2.3).

        One of the same key asks for that very turn: it waits, and hears it when that has ended.
        """
        self.enqueue(turn)
        assert self.current is not None
        key = turn.request.idempotency_key
        if key is not None and key == self.current.request.idempotency_key:
            return
        self.current.handle("cut", "superseded")

    def follow_latest(self, append: Append, principal: Principal) -> None:
        """Nothing is held: create after the lane's latest response, with its settings."""
        create = Create(
            stream_id=append.stream_id,
            event_id=append.event_id,
            input=append.input,
            tool_choice=append.tool_choice,
            trace_context=append.trace_context,
        )
        turn = TurnMachine(self._host, create, principal=principal, recall=self.recall)
        turn.follows_latest = True
        self.enqueue(turn)

    def answer(self, append: Append, _principal: Principal) -> None:
        """The held turn gets its tool outputs, or an error and stays held."""
        assert self.current is not None
        self.current.answer(append)


_RUNNING: Final = frozenset(get_args(TurnState)) - {"held", "saving", "ended"}
"""States of a turn that is on its way to the next hold, or to its end."""


def _is_held_open(turn: Turn) -> bool:
    return turn.settings is not None and turn.settings.append is True
