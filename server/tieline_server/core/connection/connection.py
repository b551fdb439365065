"""The rules of one connection: lanes, the turns on them, and when the connection ends.

A driver sets the time with ``at``, feeds what happened (``receive``, ``deltas``, ``saved``, ...),
then carries out ``take_effects()`` and sends what ``outgoing`` holds. It calls ``tick`` when
``next_deadline()`` has passed. Nothing here waits, and nothing raises on bad input: a client's
mistake becomes an error event and the connection lives on.
"""

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from msgspec.structs import replace

from tieline import events, ids
from tieline.errors import ApiError
from tieline.items import Item
from tieline.requests import (
    BEGINNING,
    Append,
    Cancel,
    Create,
    Opaque,
    Request,
    Resume,
    SessionStart,
    Steer,
)
from tieline.responses import Response
from tieline_server.core.connection import refusals
from tieline_server.core.connection.lanes import Lane, Lanes
from tieline_server.core.connection.pending_steers import PendingSteers
from tieline_server.core.create.limits import Admission, Limits, Share
from tieline_server.core.create.profile import OPENAI, Profile, session_started, unsupported
from tieline_server.core.create.settings import SettingsCache
from tieline_server.core.deltas import Delta
from tieline_server.core.effects import CancelSource, Close, Effect, Outlive, TurnId
from tieline_server.core.history.chain import ChainHead, Saved
from tieline_server.core.history.compaction import Fold
from tieline_server.core.history.holdings import Budget, LatestResponses
from tieline_server.core.history.sealed import Sealer
from tieline_server.core.stream.outbox import Outgoing
from tieline_server.core.stream.replay_log import ReplayLogs
from tieline_server.core.tables import CONNECTIONS, INPUTS, ConnectionInput, ConnectionState
from tieline_server.core.turn import follow, steering
from tieline_server.core.turn.finish import CANCELLED, DRAINED
from tieline_server.core.turn.machine import TurnMachine
from tieline_server.core.turn.turn import Reading, Turn
from tieline_server.core.values import Catalog, Principal, Work

_SAMPLING: Final = frozenset({"sampling", "steered"})
# Ended responses whose late cancel is told apart from an unknown id.
_RECENT: Final = 256


class Connection:
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
        queued: Share | None = None,
        logs: ReplayLogs | None = None,
        recall: SettingsCache | None = None,
    ) -> None:
        self.limits = limits
        self.profile = profile
        self.catalog = catalog
        self.new_id = new_id
        self.sealer = sealer
        self.logs = ReplayLogs() if logs is None else logs
        self.id = new_id(ids.CONNECTION)
        self.state: ConnectionState = "open"
        self.heard = False
        """Whether the client has said anything: only its first message may start a session."""
        self.outgoing = Outgoing(merge_from=limits.merge_from if merge else None, wake=wake)
        self.queued = Share() if queued is None else queued
        """Bytes of requests that wait, of all connections."""
        self.memory = LatestResponses(budget, most=limits.connection_bytes)
        self.admission = Admission(limits)
        self.extensions: frozenset[str] = frozenset()
        self.max_receive_bytes: int | None = None
        self.work = Work()
        self.now = 0.0
        self.unix_time = 0
        self.effects: list[Effect] = []
        self.turns: dict[TurnId, Turn] = {}
        """The turns that effects name: those that have their lanes, and those that leave."""
        self.waiting: deque[Turn] = deque()
        self._lanes = Lanes(self, self.admission, profile, recall)
        self._pending_steers = PendingSteers(self)
        self._ended: deque[str] = deque(maxlen=_RECENT)
        self._cut_at: float | None = None
        self._cut_reason = DRAINED

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
        self.handle(INPUTS[type(request)], request, principal)
        # Behind the action, which asks whether something came before.
        self.heard = True
        self._rest()

    def reject(
        self, error: ApiError, *, event_id: str | None, stream_id: str | None, begins: bool = False
    ) -> None:
        """A message that could not be read or may not be run: an error event (wire.md 4.1.1).

        ``begins`` says that it asked for a turn, a new one or one to attach to.
        """
        told = refusals.error_event(error, event_id, stream_id, begins=begins)
        self.outgoing.put_connection(told)

    def refuse(self, request: Request, error: ApiError) -> None:
        """A request that may not run: the error says so, and whether its turn will come."""
        begins = isinstance(request, BEGINNING)
        self.reject(error, event_id=request.event_id, stream_id=request.stream_id, begins=begins)

    def expel(self, error: ApiError, *, event_id: str | None, stream_id: str | None) -> None:
        """The peer may ask no more: everything stops, and the error is the last event."""
        self.handle("drop", refusals.error_event(error, event_id, stream_id, begins=True), error)

    def loaded(self, turn: Turn, saved: Saved | None, found: Mapping[str, Item]) -> None:
        """The store answered a ``Load``. A failed response cannot be continued."""
        usable = saved is not None and saved.response.status != "failed"
        turn.handle("loaded", saved.head if saved and usable else None, found)
        self._follow(turn)

    def deltas(self, turn: Turn, step: Sequence[Delta]) -> None:
        """An engine said these things, in order."""
        turn.sampled(step)
        # Nearly every step leaves the turn sampling, and its lane as it is.
        if turn.state not in _SAMPLING:
            self._follow(turn)

    def folded(self, turn: Turn, fold: Fold) -> None:
        """Before it samples, the turn's history was folded away."""
        turn.handle("fold", fold)

    def engine_failed(self, turn: Turn, error: ApiError) -> None:
        """An engine refused (before it accepted) or failed (after it)."""
        turn.broke(error)
        self._follow(turn)

    def saved(self, turn: Turn, error: ApiError | None) -> None:
        """The store answered a ``Save``."""
        if error is None:
            turn.handle("saved")
        else:
            turn.handle("unsaved", error)
        self._follow(turn)

    def claimed(self, turn: Turn, holder: str, *, same: bool) -> None:
        """The response that holds a key: the turn's own, or another's of the same body or not."""
        if turn.state != "claiming":
            # It has ended while it waited: a key that it was given is free again.
            key = turn.request.idempotency_key
            if holder == turn.id and key is not None:
                turn.release(key, at_once=True)
            return
        if holder == turn.id:
            turn.handle("claimed")
        elif same:
            turn.handle("follow", Reading(holder, None, moves=False))
        else:
            turn.handle("refuse", refusals.other_body())
        self._follow(turn)

    def unclaimed(self, turn: Turn, error: ApiError) -> None:
        """The journal failed, so the owner of the idempotency key is unknown: refuses the turn."""
        turn.handle("refuse", error)
        self._follow(turn)

    def relayed(self, turn: Turn, taken: Sequence[events.Event]) -> None:
        """The response that a turn follows said these things, in order."""
        turn.handle("relay", taken)

    def followed(self, turn: Turn, head: ChainHead | None) -> None:
        """It has been read to its end; with ``head`` it is this lane's latest now."""
        turn.handle("read", head)
        self._follow(turn)

    def lost(self, turn: Turn, error: ApiError) -> None:
        """It cannot be read."""
        # The response of its key may have come to nothing: then it needs one of its own.
        turn.handle("claim" if follow.gone(turn, error) else "fail", error)
        self._follow(turn)

    def give(self, response_id: str) -> Turn:
        """Another connection ``takes`` a turn that runs here, at once: its reader is told."""
        turn = self._lanes.turn(response_id)
        assert turn is not None, "it is on a lane while it runs"
        follow.say_elsewhere(turn)
        self.memory.forget_lane(turn.lane)
        self._part(turn)
        self._rest()
        return turn

    def take(self, turn: Turn, reader: Turn, after: int | None) -> None:
        """A turn of another connection moves to the lane on which ``reader`` asked for it."""
        self.outgoing.extend(reader.lane, follow.relaned(follow.missed(turn, after), reader.lane))
        self._join(turn, reader.lane)

    def shelter(self, turn: Turn, seconds: float | None) -> None:
        """This connection is for a turn that has outlived its own: it has no reader here.

        It ends with the turn, which is cancelled when ``seconds`` have passed; None: never.
        """
        self.outgoing.close()
        self.handle("drain", seconds)
        self._cut_reason = CANCELLED
        self._join(turn, None)
        self._rest()

    def hurry(self, seconds: float) -> None:
        """The process will stop: what is sheltered here gets ``seconds`` to end."""
        self._cut_at, self._cut_reason = self.now + seconds, DRAINED

    def cut(self, response_id: str, reason: str, *, owner: str) -> Response | None:
        """Ends an owner's turn of this connection early and returns it as it then stands.

        None when this connection has no such turn.
        """
        turn = self._lanes.turn(response_id)
        # A turn that only reads the response here is not the one that can be ended.
        if turn is None or turn.reading is not None or turn.principal.owner != owner:
            return None
        turn.handle("cut", reason)
        response = turn.snapshot(turn.status)
        self._follow(turn)
        return response

    def find(self, response_id: str) -> Turn | None:
        """The turn of a response on this connection, or one that reads it here."""
        return self._lanes.turn(response_id)

    def unpark(self, name: str | None) -> list[tuple[Create | Append | Cancel, Principal]]:
        """Takes what was asked on a lane while the response that it resumed was on its way."""
        return self._lanes.get(name).unpark()

    def half_close(self) -> None:
        """The client will send no more; what runs ends."""
        self.handle("half_close")
        self._rest()

    def drop(self) -> None:
        """The peer is gone."""
        self.handle("drop")

    def let_go(self) -> None:
        """The driver has done with it, and calls nothing more: all that it holds is let go."""
        self.memory.clear()
        self._lanes.close()
        self.turns.clear()
        self._pending_steers.close()

    def age(self) -> None:
        """The connection has lived as long as it may: what runs ends, then it closes."""
        self.handle("age")
        self._rest()

    def drain(self, seconds: float) -> None:
        """The server will stop in ``seconds``."""
        self.handle("drain", seconds)
        self._rest()

    def tick(self) -> None:
        """Time has passed: looks at what is due."""
        for turn in list(self._lanes.turns()):
            turn.check_time(self.now)
            self._follow(turn)
        if self._cut_at is not None and self._cut_at <= self.now:
            self._cut_at = None
            self._cut_all(self._cut_reason)
        self._rest()

    def next_deadline(self) -> float | None:
        """When ``tick`` is to be called next, or None."""
        return self._lanes.next_deadline(self._cut_at)

    def phase(self) -> str:
        """What a heartbeat says: the liveliest of the lanes."""
        return self._lanes.phase

    def handle(self, what: ConnectionInput, *args: object) -> None:
        """Runs the row of (state, ``what``); what the state ignores has none."""
        row = CONNECTIONS.get((self.state, what))
        if row is not None:
            action, self.state = row
            getattr(self, action)(*args)

    # Host of turns.

    def session(self, lane: str | None) -> str:
        """Names the connection and lane for engines."""
        return f"{self.id}/{lane or ''}"

    # Actions of the table.

    def start_session(self, start: SessionStart, _principal: Principal) -> None:
        """The client says what it can take; the answer says what the server offers."""
        if self.heard:
            self.refuse(start, refusals.not_first())
            return
        if start.merge == "never":
            self.outgoing.merge_from = None
        self.extensions = frozenset(start.extensions or ())
        self.max_receive_bytes = start.max_receive_bytes
        self.outgoing.put_connection(session_started(self.id, self.limits))

    def create(self, create: Create, principal: Principal) -> None:
        """A new response on its lane."""
        lane = self._admit(create, principal)
        if lane is None or lane.parks(create, principal):
            return
        # Clients of the prototype say it once, in the header of their connection.
        if self.profile.appends_by_default:
            create = replace(create, append=True)
        turn = TurnMachine(self, create, principal=principal, recall=lane.recall)
        named = create.previous_response_id
        if named is not None:
            head = self.memory.find(named)
            if head is not None and head.owner == principal.owner:
                turn.pinned = head
            self._pending_steers.join(turn, named)
        lane.handle("create", turn)
        self._follow_lane(lane)

    def append(self, append: Append, principal: Principal) -> None:
        """Answers what the lane holds, or continues its latest response."""
        lane = self._admit(append, principal)
        if lane is None or lane.parks(append, principal):
            return
        if append.response_id is not None:
            try:
                lane.admit_answer(append.response_id)
            except ApiError as error:
                self.refuse(append, error)
                return
        lane.handle("append", append, principal)
        self._follow_lane(lane)

    def append_last(self, append: Append, principal: Principal) -> None:
        """A held turn may still end well; nothing new begins."""
        lane = self._lanes.find(append.stream_id)
        if lane is not None and lane.state == "held":
            self.append(append, principal)
        elif self.state == "aged":
            self.refuse_old(append, principal)
        else:
            self.refuse_draining(append, principal)

    def cancel(self, cancel: Cancel, principal: Principal) -> None:
        """Ends the named turn, the named create, or the lane's turn (wire.md 2.4.1)."""
        lane = self._lanes.find(cancel.stream_id)
        if lane is not None and lane.parks_cancel(cancel, principal):
            return
        turn = self._lanes.target(cancel)
        if turn is not None:
            turn.handle("cut", CANCELLED)
            self._follow(turn)
            return
        named = cancel.response_id or cancel.event_id
        # A cancel that crosses the end of its turn is no error.
        known = cancel.stream_id in self._lanes if named is None else named in self._ended
        # It may run on another connection, or in another process.
        if not known and cancel.response_id is not None:
            self.effects.append(CancelSource(cancel.response_id, principal.owner, cancel))
        elif not known:
            self.refuse(cancel, refusals.no_target(cancel))

    def steer(self, steer: Steer, _principal: Principal) -> None:
        """New user messages for the running response (wire.md 2.3)."""
        if not self.profile.steer:
            # Its events do not exist there either.
            self.refuse(steer, unsupported("response.steer"))
            return
        turn = self._lanes.turn(steer.previous_response_id or "")
        try:
            items = steering.read(steer)
            if turn is None:
                raise steering.no_target(steer, latest=self.memory)
            turn.steers.admit(turn.resolved, turn.settings, most=self.limits.steers)
            self._pending_steers.admit(turn, items, self._lanes.turns())
        except ApiError as refusal:
            # A name that no lane has yet may be a bad one: it is not echoed.
            named = steer.stream_id if steer.stream_id in self._lanes else None
            lane = turn.lane if turn is not None else named
            self.outgoing.put(lane, steering.failed(steer, refusal, stream_id=lane))
            return
        turn.handle("steer", steer, items)
        self._follow(turn)

    def resume(self, resume: Resume, principal: Principal, *, moves: bool = True) -> None:
        """Sends this lane the events of a response that runs on another connection.

        With ``moves`` the response itself moves to this lane.
        """
        try:
            lane = self._lanes.admit_resume(resume)
        except ApiError as error:
            self.refuse(resume, error)
            return
        # It takes its place as a create does, and then reads instead of asking an engine.
        ask = Create(stream_id=resume.stream_id, event_id=resume.event_id)
        reader = TurnMachine(self, ask, principal=principal, recall=lane.recall)
        reader.reading = Reading(resume.response_id or "", resume.after, moves)
        lane.handle("create", reader)
        self._follow_lane(lane)

    def refuse_unknown(self, request: Opaque, _principal: Principal) -> None:
        """An event type that this server does not know."""
        self.refuse(request, refusals.unknown(request))

    def refuse_late(self, request: Request, _principal: Principal) -> None:
        """The client has said goodbye."""
        self.refuse(request, refusals.late(request))

    def refuse_draining(self, request: Request, _principal: Principal) -> None:
        """The server has said goodbye."""
        self.refuse(request, refusals.draining())

    def refuse_old(self, request: Request, _principal: Principal) -> None:
        """Its time is up (wire.md 1.1.6)."""
        self.refuse(request, refusals.too_old())

    def stop_input(self, *_: object) -> None:
        """What is held ends, since no outputs can come; the rest runs to its end."""
        for lane in self._lanes:
            self._follow_lane(lane)

    def go_away(self, seconds: float | None) -> None:
        """Tells the client to finish and to send new work elsewhere."""
        if seconds is not None:
            self._cut_at = self.now + seconds
            going = events.SessionGoingAway(reason="server_draining", seconds=seconds)
            self.outgoing.put_connection(going)

    def grow_old(self) -> None:
        """From here on only what runs goes on."""

    def retire(self) -> None:
        """Nothing runs any more: says why, then closes (wire.md 1.1.6)."""
        self.outgoing.put_last(refusals.error_event(refusals.too_old(), None, None, begins=False))
        self.effects.append(Close())

    def drop_all(self, last: events.Event | None = None, error: ApiError | None = None) -> None:
        """Everything that runs is stopped and booked, or goes on without a connection.

        Nothing goes on for one who may ask no more.
        """
        # First: what the turns still say would have no reader.
        self.outgoing.close(last)
        self.waiting.clear()
        for lane in self._lanes:
            for turn in list(lane.turns()):
                self._abandon(turn, outright=error is not None)
            lane.queue.clear()
            lane.unpark()
        self.effects.append(Close(error))

    def close(self) -> None:
        """Nothing runs and nothing will come."""
        self.effects.append(Close())

    # Steps that inputs share.

    def _admit(self, request: Create | Append, principal: Principal) -> Lane | None:
        """The lane of a request, or None when it was refused there and then."""
        try:
            return self._lanes.admit(request, principal.owner)
        except ApiError as error:
            self.refuse(request, error)
            return None

    def _abandon(self, turn: Turn, *, outright: bool) -> None:
        """Its connection goes: it ends, or goes on without."""
        if not outright and turn.outlives and turn is self._lanes.get(turn.lane).current:
            self._outlive(turn)
        else:
            turn.handle("drop")

    def _outlive(self, turn: Turn) -> None:
        self._part(turn)
        self.turns[turn.own_id] = turn
        self.effects.append(Outlive(turn.own_id))

    def _part(self, turn: Turn) -> None:
        lane = self._lanes.get(turn.lane)
        lane.part()
        if self.state != "closed":
            self._follow_lane(lane)

    def _join(self, turn: Turn, name: str | None) -> None:
        lane = self._lanes.get(name)
        lane.join(turn)
        self._follow_lane(lane)
        self._unpark(lane)

    def _unpark(self, lane: Lane) -> None:
        """The response that was to come is here, or will not come."""
        for request, principal in lane.unpark():
            # It came while the connection took it.
            action, _ = CONNECTIONS["open", INPUTS[type(request)]]
            getattr(self, action)(request, principal)

    def _cut_all(self, reason: str) -> None:
        for lane in self._lanes:
            for request, _ in lane.unpark():
                self.refuse(request, refusals.draining())
            for turn in list(lane.turns()):
                turn.handle("cut", reason)
            self._follow_lane(lane)

    def _follow(self, turn: Turn) -> None:
        """Brings its lane, and the turns that wait for a place, up to date with its state."""
        lane = self._lanes.find(turn.lane)
        if lane is not None:
            self._follow_lane(lane)
        self._rest()

    def _follow_lane(self, lane: Lane) -> None:
        # One step makes the next one possible: a turn that ended frees the lane, and the one behind
        # it may be refused at once.
        while (turn := lane.current) is not None or lane.queue:
            if turn is None:
                lane.handle("next")
            elif turn.ended:
                lane.handle("end")
                self._after(turn, lane)
            elif turn.state == "held" and self.state == "ending":
                self._unanswered(turn)
            elif (turn.state == "held") != (lane.state == "held"):
                held = turn.state == "held"
                lane.handle("hold" if held else "resume")
            else:
                break
        self._fill_places()

    def _unanswered(self, turn: Turn) -> None:
        """No client is left here to answer its calls."""
        if turn.outlives:
            self._outlive(turn)
        else:
            turn.handle("cut", CANCELLED)

    def _fill_places(self) -> None:
        # In the order in which they became ready, whatever their lanes.
        while self.waiting and self.admission.has_place:
            turn = self.waiting.popleft()
            turn.handle("start")

    def _after(self, turn: Turn, lane: Lane) -> None:
        """A turn ended: late cancels know it, unless it was lost on the way; its steers go on."""
        # A response that could not be read has not ended here: a cancel may find it elsewhere.
        if turn.reading is None or turn.failure is None:
            self._ended.append(turn.id)
        if turn.request.event_id is not None:
            self._ended.append(turn.request.event_id)
        self._pending_steers.restore(turn)
        self._pending_steers.follow(turn, None if self.state == "closed" else lane.queue)
        if lane.parked:
            self._unpark(lane)

    def _rest(self) -> None:
        """Nothing runs, waits or is held: a connection that was told goodbye can close."""
        if self.state != "open" and self._lanes.idle:
            self.handle("idle")
