"""The life of one response: carries out the actions of the turn table.

``Turn.handle`` is the one funnel: it looks up the row, takes the next state, then runs the
action. Actions never wait; what must be done outside becomes an effect of the connection.
"""

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, Final, Protocol

from msgspec import UNSET

from tieline import events, ids
from tieline.errors import ApiError
from tieline.items import Item
from tieline.requests import Append, Create, Steer
from tieline.responses import NO_USAGE, Response
from tieline_server.core import compaction, idempotency, input_checks, reading, resolve, steering
from tieline_server.core.compaction import Fold
from tieline_server.core.deltas import Accepted, CallStart, Delta, Finish
from tieline_server.core.effects import Begin, Claim, Effect, Load, Release, Sample, Stop
from tieline_server.core.finish import (
    CANCELLED,
    conclude,
    conclude_cut,
    finish,
    forsake,
    push_timing,
    record,
    refuse,
)
from tieline_server.core.history import ChainHead, ChainNode
from tieline_server.core.latest_responses import LatestResponses
from tieline_server.core.limits import Admission, Limits, size_of
from tieline_server.core.outbox import Outbox, Outgoing
from tieline_server.core.output import Output
from tieline_server.core.profile import Profile
from tieline_server.core.reading import Reading
from tieline_server.core.record import Timestamps
from tieline_server.core.replay_log import ReplayLog, ReplayLogs
from tieline_server.core.sealed import Sealer
from tieline_server.core.settings import Settings, SettingsCache
from tieline_server.core.share import Share
from tieline_server.core.snapshot import snapshot
from tieline_server.core.steering import Steers
from tieline_server.core.tables import TURNS, TurnInput, TurnState
from tieline_server.core.turn_holdings import TurnHoldings
from tieline_server.core.usage_counter import UsageCounter
from tieline_server.core.values import Catalog, Principal, Resolved, Work

_MARKS: Final = frozenset({Accepted, Finish})


class Host(Protocol):
    """What a turn needs of its connection."""

    admission: Admission
    catalog: Catalog
    driver: Any
    effects: list[Effect]
    extensions: frozenset[str]
    limits: Limits
    kept: ReplayLogs
    memory: LatestResponses
    now: float
    outgoing: Outgoing
    profile: Profile
    queued: Share
    sealer: Sealer
    unix_time: int
    waiting: deque["Turn"]
    work: Work

    def new_id(self, prefix: str) -> str:
        """A fresh id."""
        ...

    def session(self, lane: str | None) -> str:
        """Names the connection and lane for engines."""
        ...


class Turn:
    """One response. ``parent`` is the link that its input follows, once that is known."""

    # A queued turn is mostly its attributes: as a dictionary they take twice as much.
    __slots__ = ("_size", "announced", "aside", "booked", "claimed", "claims", "completed_at",
                 "created_at", "expires_at", "extra", "failure", "follows_latest", "held", "host",
                 "id", "lane", "marks", "outbox", "output", "parent", "pinned", "placed",
                 "principal", "quiet", "reading", "reason", "recall", "request", "resolved",
                 "running", "settings", "standing", "state", "status", "steers", "succeeds",
                 "tally", "tip", "usage", "wake_at", "work_before")  # fmt: skip

    def __init__(
        self, host: Host, request: Create, *, principal: Principal, recall: SettingsCache
    ) -> None:
        self.host = host
        self.request = request
        self.principal = principal
        self.recall = recall
        self.lane = request.stream_id
        self.id = host.new_id(ids.RESPONSE)
        self.state: TurnState = "queued"
        self.outbox = Outbox(host.outgoing, self.lane)
        self.output = Output(self.outbox, host.new_id)
        self.steers = Steers(self.id, self.outbox, host.queued, principal.owner)
        self.resolved: Resolved | None = None
        self.settings: Settings | None = None
        self.pinned: ChainHead | None = None
        """The parent, held from the moment the create was accepted."""
        self.follows_latest = False
        """Whether it continues the lane's latest response with that one's settings."""
        self.succeeds: str | None = None
        """The response that a steer ended and that this one follows by itself."""
        self.extra: tuple[Item, ...] = ()
        """Input that a steer adds behind the create's own."""
        self.parent: ChainNode | None = None
        self.tip: ChainNode | None = None
        self.announced = False
        self.running = False
        self.placed = False
        self.held = False
        self.quiet = False
        """Whether its end sends no event (the append prototype's held turns)."""
        self.status = "in_progress"
        self.reason: str | None = None
        self.failure: ApiError | None = None
        self.created_at = host.unix_time
        self.completed_at: int | None = None
        self.usage = NO_USAGE
        self.marks = Timestamps(host.now)
        self.wake_at: float | None = None
        """When the connection should look at it again: announce or held time-out."""
        self.expires_at = host.now + request.timeout_ms / 1000 if request.timeout_ms else None
        self.work_before = host.work.copy()
        self.tally = UsageCounter()
        self.aside = 0
        """Output tokens that went into summaries, which no budget of the client's counts."""
        self.booked = False
        """Whether the store books it together with the response."""
        self.standing = TurnHoldings(host, self.id, principal.owner)
        self.claimed = False
        """Whether its idempotency key is its own."""
        self.claims = 0
        self.reading: Reading | None = None
        """What it reads, for want of a response of its own."""
        self._size: int | None = None

    def handle(self, what: TurnInput, *args: Any) -> None:
        """Runs the row of (state, ``what``); what the state ignores has none."""
        row = TURNS.get((self.state, what))
        if row is not None:
            action, self.state = row
            getattr(self, action)(*args)

    @property
    def size(self) -> int:
        """Bytes, about, that its request keeps in memory while it waits."""
        if self._size is None:
            self._size = size_of(self.request)
        return self._size

    @property
    def ended(self) -> bool:
        """Whether nothing more will be sent."""
        return self.state == "ended"

    @property
    def log(self) -> ReplayLog | None:
        """Its events so far, where they are kept."""
        return self.outbox.log

    @property
    def outlives(self) -> bool:
        """Whether it outlives its connection (docs/protocol.md#when-a-connection-drops)."""
        return self.log is not None and (self.log.whole or self.background)

    @property
    def background(self) -> bool:
        """Whether nobody need be connected to it."""
        return self.settings is not None and self.settings.background

    @property
    def follows(self) -> str | None:
        """The response that it continues, by name or as the lane's latest."""
        if self.follows_latest and self.pinned is not None:
            return self.pinned.response_id
        return self.request.previous_response_id

    # Inputs that are weighed before they enter the table.

    def answer(self, append: Append) -> bool:
        """A held turn gets an append; False when it was refused and the turn stays held."""
        try:
            items, settings = resolve.answer_of(self, append)
        except ApiError as error:
            self.push_error(error, append.event_id)
            return False
        self.settings = settings
        self.handle("append", items)
        return True

    def sampled(self, step: Sequence[Delta]) -> None:
        """The engine said these things, in order."""
        if self.state == "sampling" and len(step) == 1 and self.output.grow(step[0]):
            # One token more: all that its row comes to.
            self.tally.count(step)
            return
        begin = 0
        for at in [at for at, kind in enumerate(map(type, step)) if kind in _MARKS]:
            if begin < at:
                self.handle("output", step[begin:at])
            self._mark(step[at])
            begin = at + 1
        if begin < len(step):
            self.handle("output", step[begin:] if begin else step)

    def _mark(self, delta: Delta) -> None:
        """Where a sampling begins or ends."""
        if type(delta) is Finish:
            held = self._must_hold(delta)
            self.handle("hold" if held else "finish", delta)
        elif delta.held:  # type: ignore[union-attr]  # it is Accepted
            self.tally.accept(delta)  # type: ignore[arg-type]
        else:
            self.handle("accept", delta)

    def broke(self, error: ApiError) -> None:
        """The engine refused or failed."""
        self.handle("fail" if self.announced else "refuse", error)

    # Actions of the table.

    def resolve(
        self, tip: ChainHead | None = None, found: Mapping[str, Item] | None = None
    ) -> None:
        """Resolves settings, parent and input; asks the store for what is not in memory."""
        loaded = found is not None
        if not loaded and not self.claimed:
            self.marks.head(self.host.now)
        if self.reading is not None:
            self.handle("follow", self.reading)
            return
        try:
            resolve.ground(self)
            if self.request.idempotency_key is not None and not self.claimed:
                self.handle("claim")
                return
            self._keep_events()
            parent = tip or resolve.parent_of(self)
            named = self.request.previous_response_id
            if parent is None and named is not None and loaded:
                raise ApiError.of(
                    "previous_response_not_found",
                    f"Previous response with id '{named[:128]}' not found.",
                    param="previous_response_id",
                )
            items = resolve.input_of(self)
            self.parent = parent.segment if parent else None
            if self.parent is not None:
                resolve.reveal(self, self.parent)
            missing = input_checks.references(items, self.parent)
            if not loaded and (missing or (parent is None and named is not None)):
                self.handle("load", None if parent else named, tuple(missing))
                return
            items = resolve.follow(self, items, self.parent, found or {})
            number = self.parent.turn + 1 if self.parent else 1
            self.tip = self.standing.move(ChainNode(self.parent, tuple(items), turn=number))
            self.host.memory.admit(self.principal.owner)
        except ApiError as error:
            self.handle("refuse", error)
            return
        self.marks.resolved(self.host.now)
        if self.stores:
            self.standing.keep(self.tip.items, after=self.parent)
        self._go()

    def claim(self, _gone: ApiError | None = None) -> None:
        """One create of each key makes a response; the others read that one."""
        reading.again(self)
        self.claims += 1
        key, body = idempotency.digests(self.principal.owner, self.request)
        self.host.effects.append(Claim(self, self.principal.owner, key, body, self.stores))

    def follow(self, other: Reading) -> None:
        """Another response's events answer it."""
        reading.begin(self, other)

    def relay(self, taken: Sequence[events.Event]) -> None:
        """That response said these things."""
        reading.relay(self, taken)

    def part(self, tip: ChainHead | None = None) -> None:
        """There is no more to read, or nobody to read it; ``tip`` is now the lane's."""
        reading.part(self, tip)

    def lose(self, error: ApiError) -> None:
        """The other response cannot be read."""
        reading.lose(self, error)

    def cut_source(self, reason: str) -> None:
        """What is cancelled is the response that is read."""
        reading.cut(self, reason)

    def ask_store(self, response_id: str | None, item_ids: Sequence[str]) -> None:
        """The parent, or items that the input names, are not on the connection."""
        self.host.effects.append(Load(self, response_id, tuple(item_ids), self.principal.owner))

    def wait(self) -> None:
        """No active place: a client sees created and queued (wire.md 3.2.2)."""
        self.host.waiting.append(self)
        self._say_queued()

    def ask_engine(self) -> None:
        """Takes a place and has the engine asked."""
        host = self.host
        assert self.resolved is not None
        host.admission.enter()
        self.placed = True
        self.marks.asked(host.now)
        self.wake_at = None if self.running else host.now + host.limits.announce_after
        host.effects.append(Sample(self, self.resolved.engine, resolve.prompt_of(self)))

    def announce(self) -> None:
        """Says created and in_progress, once."""
        self.wake_at = None
        if self.running:
            return
        response = snapshot(self, "in_progress")  # One for both: nothing happens between them.
        if not self.announced:
            self._push_created(response)
        self.running = True
        self._say(events.ResponseInProgress, response)

    def fold(self, fold: Fold) -> None:
        """The history was too long: a compaction item stands for it from here on."""
        self.announce()
        compaction.apply(self, fold)
        assert self.tip is not None
        if self.stores:
            self.standing.keep(self.tip.items, after=self.parent)

    def run(self, accepted: Accepted) -> None:
        """The engine took the prompt."""
        self.tally.accept(accepted)
        self.announce()

    def take(self, run: Sequence[Delta]) -> None:
        """Deltas become events; one by one only where the turn may end between two of them."""
        assert self.settings is not None
        if self.state == "sampling" and self.settings.max_tool_calls is None:
            self._feed(run)
            return
        for delta in run:
            begins = type(delta) is CallStart or self.state == "steered"
            if begins and self._stops_at(delta):
                return
            self._feed((delta,))

    def _feed(self, run: Sequence[Delta]) -> None:
        self.tally.count(run)
        if self.marks.first_token_at is None:
            self.marks.first_token(self.host.now)
        self.output.feed(run)
        if self.stores:
            self.standing.keep_output(self.output.kept, after=self.parent)

    def finish(self, finish: Finish) -> None:
        """Sampling ended by itself."""
        self._end_leg(finish)
        if finish.reason == "stop":
            conclude(self, "completed")
        else:
            reasons = {"length": "max_output_tokens", "content_filter": "content_filter"}
            conclude(self, "incomplete", reasons.get(finish.reason, finish.reason))

    def hold(self, finish: Finish) -> None:
        """Append shape: gives its place back and waits for the client's tool outputs."""
        self._end_leg(finish)
        self.output.close("completed")
        self.link()
        self.held = True
        self.marks.held(self.host.now)
        self.wake_at = self.host.now + self.host.limits.held_timeout
        push_timing(self)
        self._say(events.ResponseDone, snapshot(self, "in_progress"))

    def extend(self, items: Sequence[Item]) -> None:
        """The client answered: the outputs join the context and sampling goes on."""
        assert self.tip is not None
        self.wake_at = None
        self.held = False
        self.marks.resume(self.host.now)
        self.tally = UsageCounter()
        joined = (*items, *self.steers.take())
        self.tip = self.standing.move(ChainNode(self.tip, joined))
        if self.stores:
            self.standing.keep(joined, after=self.parent)
        self._go()

    def accept_steer(self, _steer: Steer, items: Sequence[Item]) -> None:
        """It acts at the end of the open item, at once if none is; or joins the next append."""
        self.steers.accept(items, self.host.new_id(ids.STEER))
        if self.state == "steered" and self.output.open is None:
            self.handle("boundary")

    def decline(self, steer: Steer, _items: Sequence[Item]) -> None:
        """It is not running (any more)."""
        over = self.state in ("saving", "ended")
        code = "response_already_completed" if over else "response_not_active"
        words = f"Response '{self.id}' {'has already ended' if over else 'is not active yet'}."
        refusal = steering.failed(steering.ref(steer), code, words, stream_id=self.lane)
        self.host.outgoing.put(self.lane, refusal)

    def doom(self, reason: str) -> None:
        """Cut while queued: says so when its turn comes, to keep the lane's order."""
        self.reason = reason

    def confess(self) -> None:
        """The turn of a doomed one has come."""
        conclude_cut(self, self.reason or CANCELLED)

    def yield_to_steer(self) -> None:
        """The open item is whole and a steer waits (wire.md 2.3.3)."""
        self.cut("steered")

    def cut(self, reason: str) -> None:
        """Ends early, with what there is and what it really used."""
        self.quiet = self.held and self.host.profile.quiet_holds
        if self in self.host.waiting:
            self.host.waiting.remove(self)
        self.stop()
        conclude_cut(self, reason)

    def fail(self, error: ApiError) -> None:
        """It broke after response.created."""
        self.failure = error.bare()
        self.stop()
        conclude(self, "failed")

    def refuse(self, error: ApiError) -> None:
        """It cannot run: one error event, no response."""
        refuse(self, error)

    def abandon(self) -> None:
        """The connection is gone."""
        self.stop()
        self.status = CANCELLED
        forsake(self)
        record(self, "disconnected")

    def end(self) -> None:
        """The store has it, or need not: the terminal event goes out."""
        finish(self)
        self.release_key(at_once=False)

    def end_unsaved(self, error: ApiError) -> None:
        """A failed commit is a failed response (wire.md 5.8)."""
        self.status, self.reason, self.failure = "failed", None, error
        self.completed_at, self.booked = None, False
        self.standing.discard()
        self.end()

    def release_key(self, *, at_once: bool) -> None:
        """Its claim of its idempotency key ends, where it has one."""
        if self.claimed:
            self.host.effects.append(Release(self, at_once))

    def _keep_events(self) -> None:
        """A response that may be read again has its events kept from the first one on."""
        request, settings = self.request, self.settings
        if settings is None or self.log is not None:
            return
        if request.resumable or settings.background or request.idempotency_key is not None:
            self.outbox.log = self.host.kept.begin(self, settings.echoed)
            if settings.store:
                self.host.effects.append(Begin(self))

    # Events.

    def push_error(self, error: ApiError, event_id: str | None) -> None:
        """An error event on this turn's lane, with the response's next number."""
        box = self.outbox
        box.push(
            events.ErrorEvent(
                sequence_number=box.count,
                stream_id=box.stream_id,
                status=error.status,
                error=events.ErrorDetail.of(error, event_id),
            )
        )

    def _say_queued(self) -> None:
        if self.announced:
            return
        response = snapshot(self, "queued")
        self._push_created(response)
        self._say(events.ResponseQueued, response)

    def _push_created(self, response: Response) -> None:
        self.announced = True
        event_id, box = self.request.event_id, self.outbox
        box.push(
            events.ResponseCreated(
                sequence_number=box.count,
                stream_id=box.stream_id,
                response=response,
                event_id=UNSET if event_id is None else event_id,
                warnings=self.settings.warnings or UNSET if self.settings else UNSET,
            )
        )

    def _say(self, kind: type[events.LifecycleEvent], response: Response) -> None:
        box = self.outbox
        box.push(kind(sequence_number=box.count, stream_id=box.stream_id, response=response))

    # Steps that actions share.

    def _go(self) -> None:
        """Ready to sample: with a place at once, else in connection for one."""
        if self.background:
            self._say_queued()
        if self.budget() == 0:
            self.handle("cut", "max_output_tokens")
        elif self.host.admission.has_place and not self.host.waiting:
            self.handle("start")
        else:
            self.handle("wait")

    def budget(self) -> int | None:
        """Output tokens left for the whole rollout, or None."""
        assert self.settings is not None
        limit = self.settings.max_output_tokens
        return None if limit is None else max(0, limit - self.usage.output_tokens + self.aside)

    def _stops_at(self, delta: Delta) -> bool:
        """Whether the turn ends here, where ``delta`` would begin one item more."""
        steered = self.state == "steered"
        if not self.output.begins_an_item(delta) or not (steered or self._calls_used_up()):
            return False
        self.output.close("completed")
        if steered:
            self.handle("boundary")
        else:
            self.handle("cut", "max_tool_calls")
        return True

    def _calls_used_up(self) -> bool:
        limit = self.settings.max_tool_calls if self.settings else None
        return limit is not None and self.output.calls >= limit

    def _must_hold(self, finish: Finish) -> bool:
        append = self.settings is not None and self.settings.append
        return append and finish.reason == "stop" and self.output.has_open_calls

    def stop(self) -> None:
        """What samples for it is stopped, and what that has used is booked."""
        if self.placed:
            self.host.effects.append(Stop(self))
            self._end_leg(None)

    def _end_leg(self, finish: Finish | None) -> None:
        """Books what one sampling used; a cut one what its deltas added up to."""
        self.usage = self.usage.plus(self.tally.usage(finish))
        self.marks.sampled(self.host.now, finish.phases if finish else None)
        self.leave()

    def leave(self) -> None:
        """Gives its place back."""
        if self.placed:
            self.placed = False
            self.host.admission.leave()

    @property
    def stores(self) -> bool:
        """Whether the response will be stored."""
        return self.settings is not None and self.settings.store

    def link(self) -> None:
        """What the chain has not got yet becomes its next link."""
        kept = self.output.take_kept()
        if self.stores:
            self.standing.keep_output(kept, after=self.parent)
            self.standing.linked()
        if kept and self.tip is not None:
            self.tip = self.standing.move(ChainNode(self.tip, kept))
