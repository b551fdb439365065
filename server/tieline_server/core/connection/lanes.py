"""The lanes of one connection: queues of turns, who may have one, and which turn a request means.

A turn may change its connection: one outlives its own, one is resumed on another. It leaves its
lane (``Lane.part``) and joins another (``Lane.join``), and its host is another connection from one
event to the next.
"""

from collections import deque
from collections.abc import Iterator
from typing import Final, get_args

from tieline.errors import ApiError
from tieline.requests import Append, Cancel, Create, Resume
from tieline_server.core.create.limits import Admission, admit_waiting, size_of
from tieline_server.core.create.profile import Profile, unsupported
from tieline_server.core.create.settings import Settings, SettingsCache
from tieline_server.core.history.chain import ChainNode
from tieline_server.core.tables import LANES, LaneInput, LaneState, TurnState
from tieline_server.core.turn.machine import TurnMachine
from tieline_server.core.turn.turn import WAITING, Host, Turn
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
        # It may come from a connection before this one: what is read from here on counts here.
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
        # One with a key may have to wait for a response of another connection.
        key = request.idempotency_key if isinstance(request, Create) else None
        return self.current is not None or key is not None

    def parks(self, request: Create | Append, principal: Principal) -> bool:
        """Keeps a request until the response that was resumed here has come, if one is to come."""
        reading = self.current.reading if self.current is not None else None
        if reading is None or not reading.moves:
            return False
        # It is meant for the conversation that comes with that response.
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
            # A cancel is small, and was not counted.
            if not isinstance(request, Cancel):
                self._host.queued.give_back(principal.owner, size_of(request))
        return parked

    def admit_answer(self, named: str) -> None:
        """Refuses an append to a response that is not the lane's, or is no longer held.

        Such an append has crossed the end of its turn. A new response would start what no client
        waits for, or what was just cancelled.
        """
        turn, head = self.current, self._host.memory.latest(self.name)
        on_lane: str | None = None
        settings: Settings | None = None
        node: ChainNode | None = None
        if turn is not None:
            on_lane = turn.id
            if turn.state == "saving":
                settings, node = turn.settings, turn.node
        elif head is not None:
            on_lane, settings, node = head.response_id, head.settings, head.node
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
        if answerable and node is not None and node.open_calls:
            raise ApiError.of(
                "response_already_completed",
                f"Response '{named}' ended before its calls were answered.",
                param="response_id",
            )

    def part(self) -> None:
        """The lane's turn runs on without its connection, until another connection takes it."""
        turn, host = self.current, self._host
        assert turn is not None
        self.handle("end")
        if turn in host.waiting:
            host.waiting.remove(turn)
        if turn.placed:
            host.admission.leave()
        turn.holdings.let_go()

    def join(self, turn: Turn) -> None:
        """Moves a running turn of another connection to this lane, with its state and its jobs."""
        host = turn.host = self._host
        turn.lane = self.name
        turn.recall = self.recall
        turn.work_before = host.work.copy()
        turn.holdings.move_to(host)
        turn.outbox.move_to(host.outgoing, self.name)
        if turn.placed:
            host.admission.enter()
        if turn.state == "waiting":
            host.waiting.append(turn)
        reader = self.current
        self.handle("seat", turn)
        if reader is not None:
            reader.handle("read")

    # Actions of the table.

    def follow_turn(self) -> None:
        """Its turn became held, or goes on: the lane's state says so, and that is all."""

    def free(self) -> None:
        """Its turn has ended, or went elsewhere."""
        if self.current is not None:
            self._host.turns.pop(self.current.own_id, None)
            self.current = None

    def enqueue(self, turn: Turn) -> None:
        """The create takes its place in the queue. What may wait there is counted."""
        if self.may_wait(turn.request):
            turn.holdings.wait(turn.size)
        self.queue.append(turn)

    def begin(self) -> None:
        """The first in the queue has the lane now."""
        turn = self.current = self.queue.popleft()
        self._host.turns[turn.own_id] = turn
        turn.handle("head")

    def seat(self, turn: Turn) -> None:
        """A turn from elsewhere has the lane now; one that only read it gives way."""
        if self.current is not None:
            self._host.turns.pop(self.current.own_id, None)
        self.current = self._host.turns[turn.own_id] = turn

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


# States of a turn that is on its way to the next hold, or to its end.
_RUNNING: Final = frozenset(get_args(TurnState)) - {"held", "saving", "ended"}


def _is_held_open(turn: Turn) -> bool:
    return turn.settings is not None and turn.settings.append is True


class Lanes:
    """The lanes named so far; none is forgotten before its connection ends (wire.md 5.5)."""

    __slots__ = ("_admission", "_by_name", "_host", "_profile", "_recall")

    def __init__(
        self,
        host: Host,
        admission: Admission,
        profile: Profile,
        recall: SettingsCache | None,
    ) -> None:
        self._host = host
        self._admission = admission
        self._profile = profile
        # What the nameless lane begins with.
        self._recall = recall
        self._by_name: dict[str | None, Lane] = {}

    def __iter__(self) -> Iterator[Lane]:
        return iter(list(self._by_name.values()))

    def close(self) -> None:
        """Their connection is over, and not kept alive by them."""
        self._by_name.clear()
        del self._host

    def __contains__(self, name: object) -> bool:
        return name in self._by_name

    def find(self, name: str | None) -> Lane | None:
        """The lane of this name, where there is one."""
        return self._by_name.get(name)

    def get(self, name: str | None) -> Lane:
        """The lane of this name, made where it is new."""
        lane = self._by_name.get(name)
        if lane is None:
            known = self._recall if name is None else None
            lane = self._by_name[name] = Lane(self._host, name, known)
        return lane

    def admit(self, request: Create | Append, owner: str) -> Lane:
        """The lane of an owner's request; raises :class:`ApiError` 400, 429 or 503."""
        self._profile.admit(request)
        # The profile first: a name that is not taken here must use up no lane.
        self._admission.lane(request.stream_id)
        lane = self.get(request.stream_id)
        if lane.state != "held" or isinstance(request, Create):
            # An answer to a held turn waits behind no other request.
            self._admission.queue(lane.waiting)
            # What runs at once is not kept, and counts against no bound of what waits.
            if lane.current is not None:
                self._admission.queue_bytes(self._waiting_bytes(), request)
            if lane.may_wait(request):
                admit_waiting(self._host.queued, owner, size_of(request) + WAITING)
        return lane

    def _waiting_bytes(self) -> int:
        queued = sum(turn.size for lane in self._by_name.values() for turn in lane.queue)
        parked = (request for lane in self._by_name.values() for request, _ in lane.parked)
        return queued + sum(size_of(each) for each in parked if not isinstance(each, Cancel))

    def admit_resume(self, resume: Resume) -> Lane:
        """The lane that a response may come to; raises :class:`ApiError` 400 or 409."""
        if resume.response_id is None:
            raise ApiError.of(
                "missing_required_parameter",
                "Missing required parameter: 'response_id'.",
                param="response_id",
            )
        if resume.stream_id is not None and not self._profile.lanes:
            raise unsupported("stream_id")
        # A resume uses up a lane name as a create does.
        self._admission.lane(resume.stream_id)
        lane = self.get(resume.stream_id)
        if lane.current is not None or lane.queue:
            raise ApiError.of("lane_busy", "A response runs on this lane.", param="stream_id")
        return lane

    @property
    def idle(self) -> bool:
        """Whether nothing runs, waits or is held."""
        return all(lane.current is None and not lane.queue for lane in self._by_name.values())

    def next_deadline(self, at: float | None) -> float | None:
        """When the first of their turns is to be looked at, or ``at`` where that is sooner."""
        for lane in self._by_name.values():
            if lane.current is not None:
                at = _sooner(at, lane.current)
            for turn in lane.queue:
                at = _sooner(at, turn)
        return at

    @property
    def phase(self) -> str:
        """What a heartbeat says: the liveliest of the lanes."""
        phases = {_phase(lane.current) for lane in self._by_name.values()}
        return next((phase for phase in _LIVELY if phase in phases), "idle")

    def turns(self) -> Iterator[Turn]:
        """Those that run and those that wait, of all lanes."""
        return (turn for lane in self._by_name.values() for turn in lane.turns())

    def turn(self, response_id: str) -> Turn | None:
        """The turn of a response; where that runs elsewhere, one that reads it here."""
        found = None
        for turn in self.turns():
            if turn.id == response_id:
                # The response itself before one that reads it, on whichever lane.
                if turn.reading is None:
                    return turn
                found = found or turn
        return found

    def target(self, cancel: Cancel) -> Turn | None:
        """The turn that a cancel means: by response, by the create's event, or the lane's.

        What a steer started when the named response ended is meant as well: the two have crossed.
        """
        named = cancel.response_id
        if named is not None:
            succeeding = (turn for turn in self.turns() if turn.succeeds == named)
            return self.turn(named) or next(succeeding, None)
        lane = self.find(cancel.stream_id)
        if lane is None or cancel.event_id is None:
            return lane.current if lane is not None else None
        asked = (turn for turn in lane.turns() if turn.request.event_id == cancel.event_id)
        return next(asked, None)


def _sooner(at: float | None, turn: Turn) -> float | None:
    for each in (turn.expires_at, turn.wake_at):
        if each is not None and (at is None or each < at):
            at = each
    return at


_LIVELY: Final = ("thinking", "prefill", "queued", "held")
_UNBEGUN: Final = ("queued", "claiming", "waiting", "doomed")


def _phase(turn: Turn | None) -> str:
    if turn is None:
        return "idle"
    if turn.state == "held":
        return "held"
    # A client that reads "queued" knows that the engine has not been asked.
    if turn.state in _UNBEGUN:
        return "queued"
    return "prefill" if turn.timestamps.first_token_at is None else "thinking"
