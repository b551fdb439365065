"""The rules of one connection: lanes, the turns on them, and when the line ends.

A driver sets the time with ``at``, feeds what happened (``receive``, ``deltas``, ``saved``, ...),
then carries out ``take_effects()`` and sends what ``outgoing`` holds. It calls ``tick`` when
``next_deadline()`` has passed. Nothing here waits, and nothing raises on bad input: a client's
mistake becomes an error event and the line lives on.
"""

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final

from msgspec import UNSET
from msgspec.structs import replace

from tieline import events, ids
from tieline.errors import ApiError
from tieline.items import Item
from tieline.requests import (
    EVENT_ID,
    Append,
    Cancel,
    ClientHeartbeat,
    Create,
    Opaque,
    Processed,
    Request,
    Resume,
    SessionEnd,
    SessionStart,
    Steer,
)
from tieline.responses import Response
from tieline_server.core import steering
from tieline_server.core.budget import Budget
from tieline_server.core.compaction import Fold
from tieline_server.core.deltas import Delta
from tieline_server.core.effects import (
    Catalog,
    Close,
    Effect,
    Principal,
    Resolved,
    Saved,
    Work,
)
from tieline_server.core.lane import Lane
from tieline_server.core.limits import Admission, Limits
from tieline_server.core.memory import Memory
from tieline_server.core.outbox import Outgoing
from tieline_server.core.profile import OPENAI, Profile, unsupported
from tieline_server.core.sealed import Sealer
from tieline_server.core.succession import Succession
from tieline_server.core.transitions import (
    LINES,
    LaneInput,
    LaneState,
    LineInput,
    LineState,
    TurnInput,
    TurnState,
)
from tieline_server.core.turn import CANCELLED, DRAINED, Turn

REVISION: Final = "2026-11-29"
"""The protocol revision that ``SessionStarted`` names."""

EXTENSIONS: Final = ("append", "cancel", "heartbeat", "steer", "timeout_ms", "timing")
"""What this server offers beyond OpenAI's API (docs/protocol.md)."""

_INPUTS: Final[dict[type[Request], LineInput]] = {
    Create: LineInput.CREATE,
    Append: LineInput.APPEND,
    Cancel: LineInput.CANCEL,
    Steer: LineInput.STEER,
    Resume: LineInput.RESUME,
    Processed: LineInput.NOTICE,
    ClientHeartbeat: LineInput.NOTICE,
    SessionStart: LineInput.SESSION_START,
    SessionEnd: LineInput.SESSION_END,
    Opaque: LineInput.UNKNOWN,
}

_SAMPLING: Final = frozenset({TurnState.SAMPLING, TurnState.STEERED})
_RECENT: Final = 256
"""Ended responses whose late cancel is told apart from an unknown id."""


class Line:
    """One connection's state machine. See the module's docstring for how to drive it."""

    def __init__(
        self,
        *,
        limits: Limits,
        catalog: Catalog,
        new_id: Callable[[str], str],
        sealer: Sealer,
        wake: Callable[[], None] = lambda: None,
        merge: bool = True,
        profile: Profile = OPENAI,
        budget: Budget | None = None,
    ) -> None:
        self.limits = limits
        self.profile = profile
        self.catalog = catalog
        self.new_id = new_id
        self.sealer = sealer
        self.id = new_id(ids.LINE)
        self.state = LineState.OPEN
        self.outgoing = Outgoing(merge_from=limits.merge_from if merge else None, wake=wake)
        self.memory = Memory(budget, most=limits.line_bytes)
        self.admission = Admission(limits)
        self.extensions: frozenset[str] = frozenset()
        self.max_receive_bytes: int | None = None
        self.work = Work()
        self.now = 0.0
        self.unix_time = 0
        self.effects: list[Effect] = []
        self.waiting: deque[Turn] = deque()
        self._lanes: dict[str | None, Lane] = {}
        self._succession = Succession(self)
        self._ended: deque[str] = deque(maxlen=_RECENT)
        self._drain_at: float | None = None

    # What the driver calls.

    def at(self, now: float, unix_time: float) -> None:
        """Sets the time: monotonic seconds and Unix seconds. Called before any input."""
        self.now = now
        self.unix_time = int(unix_time)

    def take_effects(self) -> list[Effect]:
        """What is to be done now, in order."""
        taken, self.effects = self.effects, []
        return taken

    def receive(self, request: Request, principal: Principal) -> None:
        """A client event arrived."""
        self.handle(_INPUTS[type(request)], request, principal)
        self._rest()

    def reject(self, error: ApiError, *, event_id: str | None, stream_id: str | None) -> None:
        """A message that could not be read or may not be run: an error event (wire.md 4.1)."""
        self.outgoing.put_line(_error(error, event_id, stream_id))

    def expel(self, error: ApiError, *, event_id: str | None, stream_id: str | None) -> None:
        """The peer may ask no more: everything stops, and the error is the last event."""
        self.handle(LineInput.DROP, _error(error, event_id, stream_id), error)

    def loaded(self, turn: Turn, saved: Saved | None, found: Mapping[str, Item]) -> None:
        """The store answered a ``Load``. A failed response cannot be continued."""
        usable = saved is not None and saved.response.status != "failed"
        turn.handle(TurnInput.LOADED, saved.tip if saved and usable else None, found)
        self._follow(turn)

    def deltas(self, turn: Turn, step: Sequence[Delta]) -> None:
        """An engine said these things, in order."""
        turn.sampled(step)
        if turn.state not in _SAMPLING:
            self._follow(turn)

    def folded(self, turn: Turn, fold: Fold) -> None:
        """Before it samples, the turn's history was folded away."""
        turn.handle(TurnInput.FOLD, fold)

    def engine_failed(self, turn: Turn, error: ApiError) -> None:
        """An engine refused (before it accepted) or failed (after it)."""
        turn.broke(error)
        self._follow(turn)

    def saved(self, turn: Turn, error: ApiError | None) -> None:
        """The store answered a ``Save``."""
        if error is None:
            turn.handle(TurnInput.SAVED)
        else:
            turn.handle(TurnInput.UNSAVED, error)
        self._follow(turn)

    def cut(self, response_id: str, reason: str, *, owner: str) -> Response | None:
        """Ends an owner's turn of this line early and returns it as it then stands.

        None when this line has no such turn.
        """
        turn = self._find(response_id)
        if turn is None or turn.principal.owner != owner:
            return None
        turn.handle(TurnInput.CUT, reason)
        response = turn.snapshot(turn.status)
        self._follow(turn)
        return response

    def half_close(self) -> None:
        """The client will send no more; what runs ends."""
        self.handle(LineInput.HALF_CLOSE)
        self._rest()

    def drop(self) -> None:
        """The peer is gone."""
        self.handle(LineInput.DROP)

    def age(self) -> None:
        """The line has lived as long as it may: what runs ends, then it closes."""
        self.handle(LineInput.AGE)
        self._rest()

    def drain(self, seconds: float) -> None:
        """The server will stop in ``seconds``."""
        self.handle(LineInput.DRAIN, seconds)
        self._rest()

    def tick(self) -> None:
        """Time has passed: looks at what is due."""
        for turn in [turn for lane in self._lanes.values() for turn in lane.turns()]:
            self._check_time(turn)
        if self._drain_at is not None and self._drain_at <= self.now:
            self._drain_at = None
            self._cut_all(DRAINED)
        self._rest()

    def next_deadline(self) -> float | None:
        """When ``tick`` is to be called next, or None."""
        times = [self._drain_at] if self._drain_at is not None else []
        for lane in self._lanes.values():
            for turn in lane.turns():
                times += [at for at in (turn.expires_at, turn.wake_at) if at is not None]
        return min(times, default=None)

    def phase(self) -> str:
        """What a heartbeat says: the liveliest of the lanes."""
        phases = {_phase(lane.current) for lane in self._lanes.values()}
        order = ("thinking", "prefill", "queued", "held")
        return next((phase for phase in order if phase in phases), "idle")

    def handle(self, what: LineInput, *args: object) -> None:
        """Runs the row of (state, ``what``)."""
        action, self.state = LINES[self.state, what]
        getattr(self, action)(*args)

    # Host of turns.

    def session(self, lane: str | None) -> str:
        """Names the line and lane for engines."""
        return f"{self.id}/{lane or ''}"

    def resolve(self, model: str | None, principal: Principal) -> Resolved:
        """The model of this name; raises :class:`ApiError` 404 or 403."""
        resolved = self.catalog.resolve(model)
        if resolved is None:
            raise ApiError.of(
                "model_not_found",
                f"The model '{(model or '')[:128]}' does not exist.",
                param="model",
            )
        if principal.models is not None and resolved.model not in principal.models:
            raise ApiError.of(
                "model_not_allowed",
                f"This key may not use the model '{resolved.model}'.",
                param="model",
            )
        return resolved

    # Actions of the table.

    def ignore(self, *_: object) -> None:
        """Late, or needs no answer."""

    def start_session(self, start: SessionStart, _principal: Principal) -> None:
        """The client says what it can take; the answer says what the server offers."""
        if start.merge == "never":
            self.outgoing.merge_from = None
        self.extensions = frozenset(start.extensions or ())
        self.max_receive_bytes = start.max_receive_bytes
        limits = self.limits
        self.outgoing.put_line(
            events.SessionStarted(
                session_id=self.id,
                revision=REVISION,
                extensions=list(EXTENSIONS),
                limits={
                    "active_responses": limits.active,
                    "lanes": limits.lanes,
                    "queued_per_lane": limits.queue,
                    "held_timeout_ms": int(limits.held_timeout * 1000),
                    "max_message_bytes": limits.message_bytes,
                },
            )
        )

    def create(self, create: Create, principal: Principal) -> None:
        """A new response on its lane."""
        lane = self._admit(create)
        if lane is None:
            return
        if self.profile.appends_by_default:
            create = replace(create, append=True)
        turn = Turn(self, create, principal=principal, recall=lane.recall)
        named = create.previous_response_id
        if named is not None:
            tip = self.memory.find(named)
            if tip is not None and tip.owner == principal.owner:
                turn.pinned = tip
            turn.extra = self._succession.take(named)
        lane.handle(LaneInput.CREATE, turn)
        self._follow_lane(lane)

    def append(self, append: Append, principal: Principal) -> None:
        """Answers what the lane holds, or continues its latest response."""
        lane = self._admit(append)
        if lane is None:
            return
        if append.response_id is not None:
            try:
                lane.admit_answer(append.response_id)
            except ApiError as error:
                self.reject(error, event_id=append.event_id, stream_id=append.stream_id)
                return
        lane.handle(LaneInput.APPEND, append, principal)
        self._follow_lane(lane)

    def append_last(self, append: Append, principal: Principal) -> None:
        """A held turn may still end well; nothing new begins."""
        lane = self._lanes.get(append.stream_id)
        if lane is not None and lane.state is LaneState.HELD:
            self.append(append, principal)
        elif self.state is LineState.AGED:
            self.refuse_old(append, principal)
        else:
            self.refuse_draining(append, principal)

    def cancel(self, cancel: Cancel, _principal: Principal) -> None:
        """Ends the named turn, the named create, or the lane's turn (design: cancel)."""
        turn = self._cancel_target(cancel)
        if turn is not None:
            turn.handle(TurnInput.CUT, CANCELLED)
            self._follow(turn)
            return
        named = cancel.response_id or cancel.event_id
        known = cancel.stream_id in self._lanes if named is None else named in self._ended
        if not known:
            error = ApiError.of(
                "response_not_found",
                f"Response with id '{named[:128]}' not found."
                if named
                else "Nothing runs on this lane.",
                param="response_id",
            )
            self.reject(error, event_id=cancel.event_id, stream_id=cancel.stream_id)

    def steer(self, steer: Steer, _principal: Principal) -> None:
        """New user messages for the running response (wire.md 2.3)."""
        if not self.profile.steer:
            # Its events do not exist there either.
            error = unsupported("response.steer")
            self.reject(error, event_id=steer.event_id, stream_id=steer.stream_id)
            return
        turn = self._find(steer.previous_response_id or "")
        try:
            items = steering.read(steer)
            if turn is None:
                raise steering.no_target(steer, latest=self.memory)
            steering.admit(turn, most=self.limits.steers)
            waiting = self._succession.waiting_bytes(self._turns())
            self.admission.steer_bytes(waiting, steering.size(items))
        except ApiError as refusal:
            named = steer.stream_id if steer.stream_id in self._lanes else None
            lane = turn.lane if turn is not None else named
            failed = steering.failed(
                steering.ref(steer), refusal.code, refusal.message, stream_id=lane
            )
            self.outgoing.put(lane, failed)
            return
        turn.handle(TurnInput.STEER, steer, items)
        self._follow(turn)

    def resume(self, resume: Resume, _principal: Principal) -> None:
        """Attaches the lane to a response that runs or ran elsewhere."""
        error = ApiError.of("not_resumable", "This response keeps no events.", param="response_id")
        self.reject(error, event_id=resume.event_id, stream_id=resume.stream_id)

    def refuse_unknown(self, request: Opaque, _principal: Principal) -> None:
        """An event type that this server does not know."""
        error = ApiError.of("invalid_event", f"Unknown event type '{request.name[:64]}'.")
        self.reject(error, event_id=request.event_id, stream_id=request.stream_id)

    def refuse_late(self, request: Request, _principal: Principal) -> None:
        """The client has said goodbye."""
        error = ApiError.of("invalid_event", f"'{request.type}' came after the session's end.")
        self.reject(error, event_id=request.event_id, stream_id=request.stream_id)

    def refuse_draining(self, request: Request, _principal: Principal) -> None:
        """The server has said goodbye."""
        error = ApiError.of(
            "server_draining", "This server is about to stop; connect again.", retry_after=1.0
        )
        self.reject(error, event_id=request.event_id, stream_id=request.stream_id)

    def refuse_old(self, request: Request, _principal: Principal) -> None:
        """Its time is up (wire.md 1.1)."""
        self.reject(_too_old(), event_id=request.event_id, stream_id=request.stream_id)

    def stop_input(self, *_: object) -> None:
        """What is held ends, since no outputs can come; the rest runs to its end."""
        for lane in list(self._lanes.values()):
            self._follow_lane(lane)

    def go_away(self, seconds: float) -> None:
        """Tells the client to finish and to send new work elsewhere."""
        self._drain_at = self.now + seconds
        self.outgoing.put_line(events.SessionGoingAway(reason="server_draining", seconds=seconds))

    def grow_old(self) -> None:
        """From here on only what runs goes on."""

    def retire(self) -> None:
        """Nothing runs any more: says why, then closes (wire.md 1.1)."""
        self.outgoing.put_last(_error(_too_old(), None, None))
        self.effects.append(Close())

    def drop_all(self, last: events.Event | None = None, error: ApiError | None = None) -> None:
        """Everything that runs is stopped and booked."""
        self.outgoing.close(last)
        self.waiting.clear()
        for lane in self._lanes.values():
            for turn in list(lane.turns()):
                turn.handle(TurnInput.DROP)
            lane.queue.clear()
        self.effects.append(Close(error))

    def close(self) -> None:
        """Nothing runs and nothing will come."""
        self.effects.append(Close())

    # Steps that inputs share.

    def _admit(self, request: Create | Append) -> Lane | None:
        """The lane of a request, or None when it was refused there and then."""
        name = request.stream_id
        try:
            self.profile.admit(request)
            self.admission.lane(name)
            lane = self._lanes.get(name)
            if lane is None:
                lane = self._lanes[name] = Lane(self, name)
            if lane.state is not LaneState.HELD or isinstance(request, Create):
                # An answer to a held turn waits behind nobody.
                self.admission.queue(len(lane.queue))
                if lane.current is not None:
                    waiting = (each for every in self._lanes.values() for each in every.queue)
                    self.admission.queue_bytes(sum(each.size for each in waiting), request)
        except ApiError as error:
            self.reject(error, event_id=request.event_id, stream_id=name)
            return None
        return lane

    def _turns(self) -> Iterator[Turn]:
        return (turn for lane in self._lanes.values() for turn in lane.turns())

    def _find(self, response_id: str) -> Turn | None:
        return next((turn for turn in self._turns() if turn.id == response_id), None)

    def _successor_of(self, response_id: str) -> Turn | None:
        """What a steer started when this response ended: a cancel that crossed means that."""
        return next((turn for turn in self._turns() if turn.succeeds == response_id), None)

    def _cancel_target(self, cancel: Cancel) -> Turn | None:
        if cancel.response_id is not None:
            return self._find(cancel.response_id) or self._successor_of(cancel.response_id)
        lane = self._lanes.get(cancel.stream_id)
        if lane is None or cancel.event_id is None:
            return lane.current if lane is not None else None
        named = (turn for turn in lane.turns() if turn.request.event_id == cancel.event_id)
        return next(named, None)

    def _check_time(self, turn: Turn) -> None:
        if turn.expires_at is not None and turn.expires_at <= self.now:
            turn.expires_at = None
            turn.handle(TurnInput.CUT, "deadline")
        elif turn.wake_at is not None and turn.wake_at <= self.now:
            turn.wake_at = None
            if turn.state is TurnState.HELD:
                turn.handle(TurnInput.CUT, "held_timeout")
            else:
                turn.handle(TurnInput.ANNOUNCE)
        self._follow(turn)

    def _cut_all(self, reason: str) -> None:
        for lane in list(self._lanes.values()):
            for turn in list(lane.turns()):
                turn.handle(TurnInput.CUT, reason)
            self._follow_lane(lane)

    def _follow(self, turn: Turn) -> None:
        """Brings the turn's lane, and whoever waits for a place, in line with its new state."""
        lane = self._lanes.get(turn.lane)
        if lane is not None:
            self._follow_lane(lane)
        self._rest()

    def _follow_lane(self, lane: Lane) -> None:
        while (turn := lane.current) is not None or lane.queue:
            if turn is None:
                lane.handle(LaneInput.NEXT)
            elif turn.ended:
                lane.current = None
                lane.handle(LaneInput.END)
                self._after(turn, lane)
            elif turn.state is TurnState.HELD and self.state is LineState.ENDING:
                # Nobody is left to answer its calls.
                turn.handle(TurnInput.CUT, CANCELLED)
            elif (turn.state is TurnState.HELD) != (lane.state is LaneState.HELD):
                held = turn.state is TurnState.HELD
                lane.handle(LaneInput.HOLD if held else LaneInput.RESUME)
            else:
                break
        self._fill_places()

    def _fill_places(self) -> None:
        while self.waiting and self.admission.has_place:
            turn = self.waiting.popleft()
            turn.handle(TurnInput.START)

    def _after(self, turn: Turn, lane: Lane) -> None:
        """A turn ended: late cancels know it, and its steers go on."""
        self._ended.append(turn.id)
        if turn.request.event_id is not None:
            self._ended.append(turn.request.event_id)
        self._succession.restore(turn)
        if self.state is not LineState.CLOSED:
            self._succession.follow(turn, lane.queue)

    def _rest(self) -> None:
        """Nothing runs, waits or is held: a line that was told goodbye can close."""
        if all(lane.current is None and not lane.queue for lane in self._lanes.values()):
            self.handle(LineInput.IDLE)


def _error(error: ApiError, event_id: str | None, stream_id: str | None) -> events.ErrorEvent:
    """An error outside any response: number 0, and no echo of a bad name (wire.md 3.3)."""
    known = stream_id is not None and ids.is_stream_id(stream_id)
    if event_id is not None and len(event_id) > EVENT_ID:
        event_id = None
    return events.ErrorEvent(
        sequence_number=0,
        stream_id=stream_id if known and stream_id is not None else UNSET,
        status=error.status,
        error=events.ErrorDetail.of(error, event_id),
    )


def _too_old() -> ApiError:
    return ApiError.of(
        "websocket_connection_limit_reached",
        "This connection has reached its age limit. Create a new connection to continue.",
    )


def _phase(turn: Turn | None) -> str:
    if turn is None:
        return "idle"
    if turn.state is TurnState.HELD:
        return "held"
    if turn.state in (TurnState.QUEUED, TurnState.WAITING, TurnState.DOOMED):
        return "queued"
    if turn.marks.first_token_at is None:
        return "prefill"
    return "thinking"
