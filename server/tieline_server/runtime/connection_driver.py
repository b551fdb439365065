"""Drives the core with asyncio: requests in, effects carried out, events out.

One :class:`ConnectionDriver` for each connection (or each unary request). A transport feeds it and
sends what ``take`` yields; every task that a connection starts is owned here and ended by
``close``.
"""

import asyncio
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final

from tieline import events
from tieline.errors import ApiError
from tieline.requests import Append, Cancel, Create, Request, Resume, SessionEnd, Steer
from tieline.responses import Response
from tieline_server.core.connection.connection import Connection
from tieline_server.core.connection.refusals import no_target
from tieline_server.core.create.profile import Profile
from tieline_server.core.create.settings import SettingsCache
from tieline_server.core.deltas import Delta
from tieline_server.core.effects import (
    Begin,
    CancelSource,
    Claim,
    Close,
    Discard,
    Effect,
    Follow,
    Keep,
    Load,
    Outlive,
    Record,
    Release,
    Sample,
    Save,
    Stop,
    TurnId,
)
from tieline_server.core.turn.turn import Turn
from tieline_server.core.values import Principal, Work, is_response
from tieline_server.runtime import jobs, reading
from tieline_server.runtime.driver import Driver
from tieline_server.runtime.forwarded_lane import ForwardedLane
from tieline_server.runtime.recorder import Recorder
from tieline_server.runtime.services import INTERNAL, Services
from tieline_server.storage import base as storage

_AUTHENTICATED: Final = frozenset({Append, Create, Resume})
"""Requests that a key is asked for, each time."""

_OF_LANES: Final = (Append, Cancel, Create, Resume)
"""Requests that a lane is named for."""


class ConnectionDriver:
    """One connection, driven.

    ``authenticate`` is called for each create, append and resume, so that a revoked key stops at
    its next request; a 401 ends the connection after its error event. ``recall`` is what the
    nameless lane knows from a connection before this one.
    """

    def __init__(
        self,
        services: Services,
        *,
        transport: str,
        authenticate: Callable[[], Principal],
        merge: bool = True,
        profile: Profile | None = None,
        recall: SettingsCache | None = None,
    ) -> None:
        self._services = services
        self.transport = transport
        self._authenticate = authenticate
        self._principal = Principal()
        self._jobs: dict[asyncio.Task[None], Turn] = {}
        self._speaking: dict[TurnId, asyncio.Task[None]] = {}
        self._forwarded: dict[str | None, ForwardedLane] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at: float | None = None
        self._waiter: asyncio.Future[Exception | None] | None = None
        self._send: Callable[[], bool] | None = None
        self._space: asyncio.Event | None = None
        self._loop = asyncio.get_running_loop()
        self.closed = False
        """Whether the connection is over; what ``take`` still yields is to be sent."""
        self.error: ApiError | None = None
        """The error to end the transport with, where the connection did not end well."""
        self.connection = Connection(
            limits=services.limits,
            catalog=services.catalog,
            new_id=services.ids.new,
            sealer=services.sealer,
            wake=self._wake,
            merge=merge,
            profile=profile or services.profile,
            budget=services.budget,
            queued=services.queued,
            logs=services.running.logs,
            recall=recall,
        )
        self._outgoing = self.connection.outgoing
        services.running.enter(self)

    @property
    def work(self) -> Work:
        """The connection's counters."""
        return self.connection.work

    # What a transport calls.

    def receive(self, request: Request) -> None:
        """Takes a client event. Never waits, never raises on bad input."""
        self._set_time()
        started = self.connection.now
        if type(request) in _AUTHENTICATED:
            try:
                self._principal = self._authenticate()
            except ApiError as error:
                self._refuse(error, request)
                return
        lane = self._lane_of(request) if self._forwarded else None
        if lane is not None:
            lane.send(request, self._principal)
            return
        self.connection.receive(request, self._principal)
        if type(request) is SessionEnd:
            self._end_forwarded()
        self._carry_out(validated_since=started)

    @property
    def heard(self) -> bool:
        """Whether the client has said anything."""
        return self.connection.heard

    def runs(self, response_id: str) -> bool:
        """Whether this is a response of this connection, and not one that it only reads."""
        turn = self.connection.find(response_id)
        return turn is not None and turn.reading is None

    def read(self, resume: Resume) -> None:
        """Sends a response's events to one more reader; the response stays where it is."""
        self._set_time()
        self.connection.resume(resume, self._authenticate(), moves=False)
        self._carry_out()

    def _lane_of(self, request: Request) -> ForwardedLane | None:
        """Returns the lane of a request where a peer runs its turns."""
        if isinstance(request, Steer):
            # It names its response, and no lane.
            turn = self.connection.find(request.previous_response_id or "")
            return None if turn is None else self._forwarded.get(turn.lane)
        if isinstance(request, Create | Resume) and self.connection.state != "open":
            # After a goodbye nothing new begins, wherever it would run.
            return None
        return self._forwarded.get(request.stream_id) if isinstance(request, _OF_LANES) else None

    def forward(self, name: str | None, lane: ForwardedLane) -> None:
        """Sends what is asked on the lane of this name to a peer from here on."""
        self._forwarded[name] = lane
        for request, principal in self.connection.unpark(name):
            lane.send(request, principal)
        if self.connection.state != "open":
            lane.send(SessionEnd(), self._principal)

    def stop_forwarding(self, name: str | None) -> None:
        """The lane is this connection's own again."""
        self._forwarded.pop(name, None)

    def _end_forwarded(self) -> None:
        """Lanes whose turns run elsewhere end with what runs there: nothing new will be asked."""
        for lane in self._forwarded.values():
            lane.send(SessionEnd(), self._principal)

    def _refuse(self, error: ApiError, request: Request) -> None:
        """Refuses a client that may not ask this; expels one whose key is not valid (any more)."""
        if error.status != 401:
            self.connection.refuse(request, error)
            return
        for lane in self._forwarded.values():
            # Nothing goes on for one who may ask no more, wherever it runs.
            lane.send(Cancel(), self._principal)
        self._set_time()
        self.connection.expel(error, event_id=request.event_id, stream_id=request.stream_id)
        self._carry_out()

    def reject(
        self,
        error: ApiError,
        *,
        event_id: str | None = None,
        stream_id: str | None = None,
        begins: bool = False,
    ) -> None:
        """Answers a message that could not be read; the connection lives on."""
        self.connection.reject(error, event_id=event_id, stream_id=stream_id, begins=begins)

    def half_close(self) -> None:
        """The client will send no more: what runs ends, then the connection closes."""
        self._end_forwarded()
        self._set_time()
        self.connection.half_close()
        self._carry_out()

    def drop(self) -> None:
        """The client is gone: everything stops now."""
        self._set_time()
        self.connection.drop()
        self._carry_out()

    def drain(self, seconds: float) -> None:
        """Says goodbye: no new creates; closes when nothing runs, at the latest in ``seconds``."""
        self._end_forwarded()
        self._set_time()
        self.connection.drain(seconds)
        self._carry_out()

    def age(self) -> None:
        """The connection has lived as long as it may: what runs ends, then it closes."""
        self._end_forwarded()
        self._set_time()
        self.connection.age()
        self._carry_out()

    def hurry(self, seconds: float) -> None:
        """The process will stop: a connection without a client gets so long to end."""
        with self.reporting() as connection:
            connection.hurry(seconds)

    def forget(self, owner: str, response_id: str) -> None:
        """A response was deleted: the connection does not continue it any more."""
        self.connection.memory.forget(owner, response_id)

    def cancel(self, owner: str, response_id: str) -> Response | None:
        """Cancels a turn of this connection if it is the owner's; returns it as it then is."""
        self._set_time()
        response = self.connection.cut(response_id, "cancelled", owner=owner)
        self._carry_out()
        return response

    def next_event(self) -> events.Event | None:
        """Takes the next event to send, lanes in turn; None when all is sent."""
        taken = self.take(1)
        return taken[0] if taken else None

    def take(self, most: int) -> list[events.Event]:
        """Takes the next events to send, at most so many, lanes in turn."""
        taken = self._outgoing.take(most)
        if self._space is not None:
            self._space.set()
        return taken

    @property
    def sent(self) -> bool:
        """Whether every event is taken."""
        return self._outgoing.empty

    async def wait(self, send: Callable[[], bool] | None = None) -> None:
        """Returns when there is an event to send or the connection has closed.

        ``send``, called by the loop when there is, may save the caller that trip: it says whether
        all is sent, and only otherwise does the wait end. What it raises ends the wait as well.
        """
        if self.closed or not self._outgoing.empty:
            return
        self._waiter = self._loop.create_future()
        self._send = send
        try:
            error = await self._waiter
            if error is not None:
                raise error
        finally:
            self._waiter = self._send = None
            error = None  # It holds this frame.

    def phase(self) -> str:
        """Returns the phase that a heartbeat tells."""
        return self.connection.phase()

    async def close(self) -> None:
        """Ends every task of the connection. Idempotent.

        The task that closes may be cancelled meanwhile, as the client goes: what is being saved is
        saved and booked all the same, and what the connection holds is let go.
        """
        self.drop()
        self._services.running.connections.discard(self)
        if self._timer is not None:
            self._timer.cancel()
        cancelled = False
        while pending := self._jobs.keys() - {asyncio.current_task()}:
            try:
                await asyncio.wait(pending)
            except asyncio.CancelledError:
                cancelled = True
        if self._services.running.leave(self):
            self._services.running.logs.inherit(self.connection.memory, self._services.budget)
            self.connection.let_go()
            self._outgoing.wake = _asleep
        if cancelled:
            raise asyncio.CancelledError  # Not the one that came, which holds this frame.

    # Effects.

    def _carry_out(self, validated_since: float | None = None) -> None:
        while self.connection.effects:
            for effect in self.connection.take_effects():
                if validated_since is not None and type(effect) is Sample:
                    self._validated(effect.turn, self._services.clock() - validated_since)
                _CARRY[type(effect)](self, effect)
        self._set_timer()

    def _validated(self, own_id: TurnId, seconds: float) -> None:
        """Adds the time spent validating this request to the turn's timing."""
        turn = self.connection.turns.get(own_id)
        if turn is not None:
            turn.timestamps.add("validate", round(seconds * 1e6))

    # A turn that has ended since it asked for a job is on no lane any more, and needs none.

    def _on_claim(self, effect: Claim) -> None:
        turn = self.connection.turns.get(effect.turn)
        if turn is not None:
            self._spawn(turn, jobs.claim(self._services, turn, effect))

    def _on_release(self, effect: Release) -> None:
        services = self._services
        claim = storage.Claim(
            owner=effect.owner,
            key=effect.key,
            body=b"",
            response_id=effect.turn,
            stored=effect.stored,
        )
        at = None if effect.at_once else services.now() + services.limits.resume_window
        services.journal.expire(claim, at=at)

    def _on_begin(self, effect: Begin) -> None:
        services, turn = self._services, effect.log.turn
        if turn is None:
            # It has ended before it was written down that it runs.
            return
        recorder = Recorder(
            effect.log,
            services.journal,
            turn=turn,
            model=effect.model,
            transport=self.transport,
            started_at=services.now(),
        )
        services.running.own(recorder.begun)

    def _on_load(self, effect: Load) -> None:
        turn = self.connection.turns.get(effect.turn)
        if turn is not None:
            self._spawn(turn, jobs.load(self._services, turn, effect))

    def _on_sample(self, effect: Sample) -> None:
        turn = self.connection.turns.get(effect.turn)
        if turn is not None:
            self._speak(turn, jobs.sample(self._services, turn, effect))

    def _on_follow(self, effect: Follow) -> None:
        turn = self.connection.turns.get(effect.turn)
        if turn is not None:
            self._speak(turn, reading.follow(self._services, turn, effect))

    def _on_stop(self, effect: Stop) -> None:
        task = self._speaking.pop(effect.turn, None)
        # A turn that stops while its own engine speaks sees it when the step is done.
        if task is not None and task is not asyncio.current_task():
            task.cancel()

    def _on_cancel_source(self, effect: CancelSource) -> None:
        self._services.running.later(self._cancel_source(effect))

    async def _cancel_source(self, effect: CancelSource) -> None:
        found = await reading.cancels(self._services, effect.owner, effect.response_id)
        asked = effect.asked
        if not found and asked is not None:
            with self.reporting() as connection:
                error = no_target(asked)
                connection.reject(error, event_id=asked.event_id, stream_id=asked.stream_id)

    def _on_outlive(self, effect: Outlive) -> None:
        """The turn goes on on a connection of its own, which has no reader."""
        turn = self.connection.turns.pop(effect.turn)
        shelter = ConnectionDriver(
            self._services,
            transport=self.transport,
            authenticate=self._authenticate,
            profile=self.connection.profile,
        )
        window = None if turn.background else self._services.limits.resume_window
        self.hand_jobs(turn, shelter)
        with shelter.reporting() as connection:
            connection.shelter(turn, window)
        self._services.running.shelter(shelter)

    def _on_keep(self, effect: Keep) -> None:
        self._services.store.keep(effect)

    def _on_discard(self, effect: Discard) -> None:
        self._services.store.discard(effect)

    def _on_save(self, effect: Save) -> None:
        turn = self.connection.turns.get(effect.turn)
        if turn is not None:
            save = jobs.save(self._services, turn, effect, transport=self.transport)
            self._spawn(turn, save)

    def _on_record(self, effect: Record) -> None:
        if self.transport == INTERNAL:
            return
        services, record, log = self._services, effect.record, effect.log
        if log is not None:
            if services.running.tidying is None:
                services.running.tidy(services.clock)
            if log.recorder is not None:
                log.recorder.stop(stored=effect.booked)
        services.observe(record, self.transport)
        if not effect.booked and is_response(record):
            services.record_usage(record, self.transport)

    def _on_close(self, effect: Close) -> None:
        self._end(effect.error)

    @contextmanager
    def reporting(self) -> Iterator[Connection]:
        """Sets the connection's time for a report to it, and carries out what it then asks."""
        self._set_time()
        yield self.connection
        self._carry_out()

    def feed(self, turn: Turn, step: Sequence[Delta]) -> None:
        """An engine said these things. Most of them ask for nothing."""
        self._set_time()
        self.connection.deltas(turn, step)
        if self.connection.effects or not turn.placed:
            self._carry_out()

    async def events_taken(self) -> None:
        """Waits until events were taken, or turns have moved."""
        self._space = self._space or asyncio.Event()
        self._space.clear()
        await self._space.wait()

    def speaks(self, turn: Turn, task: "asyncio.Task[Any] | None") -> bool:
        """Whether this is the task that samples, or reads, for a turn."""
        return self._speaking.get(turn.own_id) is task

    # Time, wake-ups, tasks.

    def _set_time(self) -> None:
        self.connection.at(self._services.clock(), self._services.now())

    def _set_timer(self) -> None:
        """Sees to it that the connection is looked at in time.

        A deadline that has moved away leaves the timer as it is: nearly every turn sets one and
        none of them comes. The timer then finds nothing due, and is set anew.
        """
        at = self.connection.next_deadline()
        if at is None or (self._timer_at is not None and self._timer_at <= at):
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = at
        delay = max(0.0, at - self._services.clock())
        self._timer = self._loop.call_later(delay, self._tick)

    def _tick(self) -> None:
        self._timer = self._timer_at = None
        self._set_time()
        self.connection.tick()
        self._carry_out()

    def _wake(self) -> None:
        if self._send is not None:
            # Not here and now: what the step brings besides goes along.
            self._loop.call_soon(self._send_on)
        elif self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _send_on(self) -> None:
        # No variable for the waiter, which may keep an exception that holds this frame.
        if self._waiter is None or self._send is None or self._waiter.done():
            return
        try:
            if not self._send():
                self._waiter.set_result(None)
        except Exception as error:
            self._waiter.set_result(error)

    def _end(self, error: ApiError | None) -> None:
        self.closed = True
        if error is not None and self.error is None:
            self.error = error.bare()
        self._wake()

    def _speak(self, turn: Turn, work: Coroutine[Any, Any, None]) -> None:
        """The one job of a turn whose reports come one after the other, and that can be stopped."""
        task = self._spawn(turn, work)
        self._speaking[turn.own_id] = task

    def _spawn(self, turn: Turn, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task, drivers = self._loop.create_task(work), self._services.running.drivers

        def over(done: asyncio.Task[None]) -> None:
            # The turn may have moved meanwhile, and the connection that it was on may be gone.
            driver = drivers.get(turn.host.id)
            if driver is not None:
                driver.job_done(done)

        self._jobs[task] = turn
        task.add_done_callback(over)
        return task

    def job_done(self, task: asyncio.Task[None]) -> None:
        """A job of this connection is over."""
        turn = self._jobs.pop(task, None)
        if turn is not None and self._speaking.get(turn.own_id) is task:
            del self._speaking[turn.own_id]

    def hand_jobs(self, turn: Turn, other: Driver) -> None:
        """The turn moves to another connection, and its jobs with it."""
        own = [task for task, each in self._jobs.items() if each is turn]
        for task in own:
            del self._jobs[task]
        other.take_jobs(turn, own, self._speaking.pop(turn.own_id, None))
        if self._space is not None:
            self._space.set()

    def take_jobs(
        self, turn: Turn, jobs: Sequence[asyncio.Task[None]], speaking: asyncio.Task[None] | None
    ) -> None:
        """A turn has moved here, with its jobs."""
        self._jobs.update(dict.fromkeys(jobs, turn))
        if speaking is not None:
            self._speaking[turn.own_id] = speaking


def _asleep() -> None:
    """There is no connection any more to send on."""


_CARRY: Final[Mapping[type[Effect], Callable[[ConnectionDriver, Any], None]]] = {
    Begin: ConnectionDriver._on_begin,
    CancelSource: ConnectionDriver._on_cancel_source,
    Claim: ConnectionDriver._on_claim,
    Follow: ConnectionDriver._on_follow,
    Load: ConnectionDriver._on_load,
    Outlive: ConnectionDriver._on_outlive,
    Release: ConnectionDriver._on_release,
    Sample: ConnectionDriver._on_sample,
    Stop: ConnectionDriver._on_stop,
    Keep: ConnectionDriver._on_keep,
    Discard: ConnectionDriver._on_discard,
    Save: ConnectionDriver._on_save,
    Record: ConnectionDriver._on_record,
    Close: ConnectionDriver._on_close,
}
