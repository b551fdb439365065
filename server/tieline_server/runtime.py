"""Drives the core with asyncio: requests in, effects carried out, events out.

One :class:`LineRuntime` for each connection (or each unary request). A door feeds it and sends
what ``take`` yields; every task that a line starts is owned here and ended by ``close``.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping
from contextlib import aclosing
from functools import partial
from typing import Any, Final

import msgspec
from msgspec import UNSET, Struct

from tieline import events
from tieline.errors import ApiError
from tieline.ids import IdSource
from tieline.requests import Append, Create, Request
from tieline.responses import Response, Usage
from tieline_server import summaries
from tieline_server.core import compaction
from tieline_server.core.booking import booking_of, is_response
from tieline_server.core.budget import Budget
from tieline_server.core.deltas import Accepted, Finish
from tieline_server.core.effects import (
    Catalog,
    Close,
    Discard,
    Effect,
    Keep,
    Load,
    Principal,
    Prompt,
    Record,
    Sample,
    Save,
    Stop,
    TurnRecord,
    Work,
)
from tieline_server.core.history import Tip
from tieline_server.core.limits import Limits
from tieline_server.core.line import Line
from tieline_server.core.profile import OPENAI, Profile
from tieline_server.core.sealed import Sealer
from tieline_server.core.turn import Turn
from tieline_server.engines.base import Engine
from tieline_server.ledger.base import Ledger
from tieline_server.stores.base import ResponseStore

logger: Final = logging.getLogger("tieline.runtime")

SERVER_ERROR: Final = "The server had an error while processing your request."
"""The fixed text of an internal error: what went wrong is in the log, never on the wire."""


INTERNAL: Final = "internal"
"""The transport of lines that nobody is connected to: what runs on them is no one's response."""


class Running:
    """The live lines of this process: who can be cancelled, and who must be drained."""

    def __init__(self) -> None:
        self.lines: set[LineRuntime] = set()

    def cancel(self, owner: str, response_id: str) -> Response | None:
        """Cancels a running response of this owner and returns it; None when none runs here."""
        cut = (line.cancel(owner, response_id) for line in list(self.lines))
        return next((response for response in cut if response is not None), None)

    def forget(self, owner: str, response_id: str) -> None:
        """A response was deleted: no line of this process continues it any more."""
        for line in list(self.lines):
            line.forget(owner, response_id)


class Services(Struct, frozen=True, kw_only=True):
    """What lines need of the process. Built once, by ``app``."""

    engines: Mapping[str, Engine]
    catalog: Catalog
    store: ResponseStore
    ledger: Ledger
    limits: Limits
    observe: Callable[[TurnRecord, str], None]
    """Called once for each response id: (record, transport)."""
    clock: Callable[[], float]
    """Monotonic seconds."""
    now: Callable[[], float]
    """Unix seconds."""
    ids: IdSource
    running: Running
    budget: Budget
    sealer: Sealer
    profile: Profile = OPENAI
    compaction: str = "keep-tail"
    """What becomes of history that is folded away: the setting of the same name."""
    keys: Any = None
    """The door's: ``keys.authenticate(header) -> Principal``."""


class LineRuntime:
    """One line, driven.

    ``authenticate`` is called for each create and append, so that a revoked key stops at its
    next request; a 401 ends the line after its error event.
    """

    def __init__(
        self,
        services: Services,
        *,
        transport: str,
        authenticate: Callable[[], Principal],
        merge: bool = True,
        profile: Profile | None = None,
    ) -> None:
        self._services = services
        self.transport = transport
        self._authenticate = authenticate
        self._principal = Principal()
        self._tasks: set[asyncio.Task[None]] = set()
        self._sampling: dict[str, asyncio.Task[None]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at: float | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._space: asyncio.Event | None = None
        self._loop = asyncio.get_running_loop()
        self.closed = False
        """Whether the line is over; what ``take`` still yields is to be sent."""
        self.error: ApiError | None = None
        """The error to end the transport with, where the line did not end well."""
        self.line = Line(
            limits=services.limits,
            catalog=services.catalog,
            new_id=services.ids.new,
            sealer=services.sealer,
            wake=self._wake,
            merge=merge,
            profile=profile or services.profile,
            budget=services.budget,
        )
        services.running.lines.add(self)

    @property
    def work(self) -> Work:
        """The line's counters."""
        return self.line.work

    # What a door calls.

    def receive(self, request: Request, *, size: int) -> None:
        """Takes a client event of ``size`` bytes. Never waits, never raises on bad input."""
        started = self._services.clock()
        if isinstance(request, Create | Append):
            try:
                self._principal = self._authenticate()
            except ApiError as error:
                self._refuse(error, request)
                return
        self._set_time()
        self.line.receive(request, self._principal)
        self._carry_out(validated_since=started)

    def _refuse(self, error: ApiError, request: Create | Append) -> None:
        """Who may not ask this is told so; who is not known (any more) is sent away."""
        echo = {"event_id": request.event_id, "stream_id": request.stream_id}
        if error.status != 401:
            self.reject(error, **echo)
            return
        self._set_time()
        self.line.expel(error, **echo)
        self._carry_out()

    def reject(
        self, error: ApiError, *, event_id: str | None = None, stream_id: str | None = None
    ) -> None:
        """Answers a message that could not be read; the line lives on."""
        self.line.reject(error, event_id=event_id, stream_id=stream_id)

    def half_close(self) -> None:
        """The peer will send no more: what runs ends, then the line closes."""
        self._set_time()
        self.line.half_close()
        self._carry_out()

    def drop(self) -> None:
        """The peer is gone: everything stops now."""
        self._set_time()
        self.line.drop()
        self._carry_out()

    def drain(self, seconds: float) -> None:
        """Says goodbye: no new creates; closes when nothing runs, at the latest in ``seconds``."""
        self._set_time()
        self.line.drain(seconds)
        self._carry_out()

    def age(self) -> None:
        """The line has lived as long as it may: what runs ends, then it closes."""
        self._set_time()
        self.line.age()
        self._carry_out()

    def forget(self, owner: str, response_id: str) -> None:
        """A response was deleted: the line does not continue it any more."""
        self.line.memory.forget(owner, response_id)

    def cancel(self, owner: str, response_id: str) -> Response | None:
        """Cancels a turn of this line if it is the owner's, and returns it as it then stands."""
        self._set_time()
        response = self.line.cut(response_id, "cancelled", owner=owner)
        self._carry_out()
        return response

    def next_event(self) -> events.Event | None:
        """Takes the next event to send, lanes in turn; None when all is sent."""
        taken = self.take(1)
        return taken[0] if taken else None

    def take(self, most: int) -> list[events.Event]:
        """Takes the next events to send, at most so many, lanes in turn."""
        taken = self.line.outgoing.take(most)
        if self._space is not None:
            self._space.set()
        return taken

    @property
    def sent(self) -> bool:
        """Whether every event is taken."""
        return self.line.outgoing.empty

    async def wait(self) -> None:
        """Returns when there is an event to send or the line has closed."""
        if self.closed or not self.line.outgoing.empty:
            return
        self._waiter = self._loop.create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    def phase(self) -> str:
        """What a heartbeat says."""
        return self.line.phase()

    async def close(self) -> None:
        """Ends every task of the line. Idempotent.

        Whoever closes may be cancelled meanwhile, as the peer goes: what is being saved is saved
        and booked all the same, and what the line holds is let go.
        """
        self.drop()
        self._services.running.lines.discard(self)
        if self._timer is not None:
            self._timer.cancel()
        cancelled: asyncio.CancelledError | None = None
        while pending := self._tasks - {asyncio.current_task()}:
            try:
                await asyncio.wait(pending)
            except asyncio.CancelledError as error:
                cancelled = error
        self.line.memory.clear()
        if cancelled is not None:
            raise cancelled

    # Effects.

    def _carry_out(self, validated_since: float | None = None) -> None:
        while effects := self.line.take_effects():
            for effect in effects:
                if validated_since is not None and isinstance(effect, Sample):
                    spent = self._services.clock() - validated_since
                    effect.turn.marks.add("validate", round(spent * 1e6))
                _CARRY[type(effect)](self, effect)
        self._set_timer()

    def _on_load(self, effect: Load) -> None:
        self._spawn(self._load(effect))

    def _on_sample(self, effect: Sample) -> None:
        task = self._spawn(self._sample(effect.turn, effect.engine, effect.prompt))
        self._sampling[effect.turn.id] = task

    def _on_stop(self, effect: Stop) -> None:
        task = self._sampling.pop(effect.turn.id, None)
        # A turn that stops while its own engine speaks sees it when the step is done.
        if task is not None and task is not asyncio.current_task():
            task.cancel()

    def _on_keep(self, effect: Keep) -> None:
        self._services.store.keep(effect)

    def _on_discard(self, effect: Discard) -> None:
        self._services.store.discard(effect)

    def _on_save(self, effect: Save) -> None:
        self._spawn(self._save(effect))

    def _on_record(self, effect: Record) -> None:
        if self.transport == INTERNAL:
            return
        services = self._services
        services.observe(effect.record, self.transport)
        if not effect.booked and is_response(effect.record):
            services.ledger.book(booking_of(effect.record, self.transport, ended_at=services.now()))

    def _on_close(self, effect: Close) -> None:
        self._end(effect.error)

    async def _load(self, effect: Load) -> None:
        store, owner = self._services.store, effect.owner
        saved, found = None, {}
        try:
            if effect.response_id is not None:
                saved = await store.get(owner, effect.response_id)
            for item_id in effect.item_ids:
                item = await store.item(owner, item_id)
                if item is not None:
                    found[item_id] = item
        except Exception:
            logger.exception("store.load failed", extra={"response_id": effect.turn.id})
            self._set_time()
            self.line.engine_failed(effect.turn, ApiError.of("server_error", SERVER_ERROR))
        else:
            self._set_time()
            self.line.loaded(effect.turn, saved, found)
        self._carry_out()

    async def _save(self, effect: Save) -> None:
        error: ApiError | None = None
        try:
            booking = booking_of(effect.booking, self.transport, ended_at=self._services.now())
            await self._services.store.put(effect.record, booking)
        except Exception:
            logger.exception("store.put failed", extra={"response_id": effect.turn.id})
            error = ApiError.of("server_error", "The response could not be stored.")
        self._set_time()
        self.line.saved(effect.turn, error)
        self._carry_out()

    async def _sample(self, turn: Turn, engine_name: str, prompt: Prompt) -> None:
        try:
            await self._pump(turn, self._services.engines[engine_name], prompt)
        except ApiError as error:
            self._fail(turn, error)
        except Exception:
            logger.exception("engine failed", extra={"response_id": turn.id})
            self._fail(turn, ApiError.of("server_error", SERVER_ERROR))
        finally:
            if self._sampling.get(turn.id) is asyncio.current_task():
                del self._sampling[turn.id]

    async def _pump(self, turn: Turn, engine: Engine, prompt: Prompt) -> None:
        if not prompt.settings.generate:
            # A warm-up prepares state and samples nothing (wire.md 3.2).
            counted = Accepted(input_tokens=await engine.count(prompt))
            self._feed(turn, [counted, Finish(output_tokens=0)])
            return
        if prompt.settings.compaction is not None:
            prompt = await self._fold(turn, engine, prompt)
        async with aclosing(engine.sample(prompt)) as steps:
            async for step in steps:
                self._feed(turn, step)
                if not turn.placed:
                    return
                if turn.outbox.crowd >= self._services.limits.outbox:
                    await self._wait_for_space(turn)
        raise ApiError.of("server_error", SERVER_ERROR)

    async def _fold(self, turn: Turn, engine: Engine, prompt: Prompt) -> Prompt:
        """The prompt, with its history folded away where that has become too long."""
        listen = partial(compaction.count, turn.tally)
        fold = await summaries.fold(engine, prompt, mode=self._services.compaction, listen=listen)
        if fold is None:
            return prompt
        self._set_time()
        self.line.folded(turn, fold)
        self._carry_out()
        assert turn.tip is not None
        return msgspec.structs.replace(prompt, tip=turn.tip)

    def _feed(self, turn: Turn, step: Any) -> None:
        self._set_time()
        self.line.deltas(turn, step)
        if self.line.effects or not turn.placed:
            self._carry_out()

    async def _wait_for_space(self, turn: Turn) -> None:
        """The reader is slow: the engine waits, nothing is dropped."""
        self._space = self._space or asyncio.Event()
        while turn.outbox.crowd >= self._services.limits.outbox:
            self._space.clear()
            await self._space.wait()

    def _fail(self, turn: Turn, error: ApiError) -> None:
        if self._sampling.get(turn.id) is not asyncio.current_task():
            # A sampling that was stopped, or whose turn samples anew after its outputs came.
            return
        self._set_time()
        self.line.engine_failed(turn, error)
        self._carry_out()

    # Time, wake-ups, tasks.

    def _set_time(self) -> None:
        self.line.at(self._services.clock(), self._services.now())

    def _set_timer(self) -> None:
        """Sees to it that the line is looked at in time.

        A deadline that has moved away leaves the timer as it is: nearly every turn sets one and
        none of them comes. The timer then finds nothing due, and is set anew.
        """
        at = self.line.next_deadline()
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
        self.line.tick()
        self._carry_out()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _end(self, error: ApiError | None) -> None:
        self.closed = True
        self.error = self.error or error
        self._wake()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task


_CARRY: Final[Mapping[type[Effect], Callable[[LineRuntime, Any], None]]] = {
    Load: LineRuntime._on_load,
    Sample: LineRuntime._on_sample,
    Stop: LineRuntime._on_stop,
    Keep: LineRuntime._on_keep,
    Discard: LineRuntime._on_discard,
    Save: LineRuntime._on_save,
    Record: LineRuntime._on_record,
    Close: LineRuntime._on_close,
}


async def prepare(
    services: Services, principal: Principal, create: Create, *, unanswered: bool = False
) -> tuple[Usage, Tip]:
    """Runs a create as a warm-up that leaves no trace; returns its usage and its chain.

    With ``unanswered`` calls may wait for their outputs. Raises :class:`ApiError` as the create
    would.
    """
    profile = msgspec.structs.replace(services.profile, warm_up=True, unanswered=unanswered)
    warm_up = msgspec.structs.replace(
        create, generate=False, store=False, stream_id=None, append=None
    )
    runtime = LineRuntime(
        services, transport=INTERNAL, authenticate=lambda: principal, profile=profile
    )
    try:
        runtime.receive(warm_up, size=0)
        runtime.half_close()
        while True:
            await runtime.wait()
            event = runtime.next_event()
            if isinstance(event, events.ErrorEvent):
                detail = event.error
                code = detail.code or "invalid_request"
                status = None if event.status is UNSET else event.status
                raise ApiError.of(code, detail.message, param=detail.param, status=status)
            if isinstance(event, events.ResponseCompleted):
                tip = runtime.line.memory.latest(None)
                assert tip is not None
                return event.response.usage or Usage(), tip
            if event is None and runtime.closed:
                raise ApiError.of("server_error", SERVER_ERROR)
    finally:
        await runtime.close()


async def count_input_tokens(services: Services, principal: Principal, create: Create) -> int:
    """How many input tokens a create would have; raises :class:`ApiError` as the create would."""
    usage, _ = await prepare(services, principal, create)
    return usage.input_tokens
