"""One response as all its rules see it: what is known of it, and the steps that they share.

The rules stand above: what it needs before it can run (``resolve.py``), how it ends
(``finish.py``), how it reads another response's events (``follow.py``). The machine that calls
them, by the turn table, is ``machine.py``.
"""

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Sequence
from typing import Any, Final, Protocol

from msgspec import UNSET, Struct
from msgspec.structs import replace

from tieline import events, ids
from tieline.errors import ApiError
from tieline.events import ErrorEvent
from tieline.items import Item
from tieline.requests import Append, Create
from tieline.responses import NO_USAGE, IncompleteDetails, Response, ResponseError
from tieline_server.core.create import idempotency
from tieline_server.core.create.limits import Admission, Limits, Share, size_of
from tieline_server.core.create.profile import Profile
from tieline_server.core.create.settings import Settings, SettingsCache
from tieline_server.core.deltas import Delta, Finish, UsageCounter
from tieline_server.core.effects import Begin, Discard, Effect, Keep, Release, Stop, TurnId
from tieline_server.core.history.chain import ChainHead, ChainNode
from tieline_server.core.history.holdings import LatestResponses
from tieline_server.core.history.sealed import Sealer
from tieline_server.core.stream.outbox import Outbox, Outgoing
from tieline_server.core.stream.output import Output
from tieline_server.core.stream.replay_log import ReplayLog, ReplayLogs
from tieline_server.core.tables import TurnInput, TurnState
from tieline_server.core.turn.steering import Steers
from tieline_server.core.turn.timestamps import Timestamps
from tieline_server.core.values import Catalog, Principal, Resolved, Work

WAITING: Final = 4096
"""Bytes, about, that a turn takes beside its request."""


class Host(Protocol):
    """What a turn needs of its connection."""

    admission: Admission
    catalog: Catalog
    effects: list[Effect]
    extensions: frozenset[str]
    id: str
    limits: Limits
    logs: ReplayLogs
    memory: LatestResponses
    now: float
    outgoing: Outgoing
    profile: Profile
    queued: Share
    sealer: Sealer
    turns: "dict[TurnId, Turn]"
    unix_time: int
    waiting: "deque[Turn]"
    work: Work

    def new_id(self, prefix: str) -> str:
        """A fresh id."""
        ...

    def session(self, lane: str | None) -> str:
        """Names the connection and lane for engines."""
        ...


class TurnHoldings:
    """The chain of one turn as its connection counts it and as the store is handed it.

    ``kept`` says whether items of it were handed to the store.
    """

    __slots__ = ("_host", "_node", "_owner", "_response_id", "_waits", "_written", "kept")

    def __init__(self, host: Host, response_id: str, owner: str) -> None:
        self._host = host
        self._response_id = response_id
        self._owner = owner
        self._node: ChainNode | None = None
        self._waits = 0
        self._written = 0
        self.kept = False

    def wait(self, size: int) -> None:
        """Its request of ``size`` bytes waits for the end of another response."""
        self.count(size + WAITING)

    def count(self, size: int) -> None:
        """So many more bytes wait to join its chain."""
        self._host.queued.add(self._owner, size)
        self._waits += size

    def _waited(self) -> None:
        if self._waits:
            self._host.queued.give_back(self._owner, self._waits)
            self._waits = 0

    def move(self, node: ChainNode) -> ChainNode:
        """The chain ends here now: this is what counts among what the connection holds."""
        self._waited()
        if node.parent is self._node is not None:
            self._host.memory.grow(self._owner, node)
        else:
            self._host.memory.hold(self._owner, node)
            self._release()
        self._node = node
        return node

    def rest(self, lane: str | None, head: ChainHead) -> None:
        """The turn is over and this is its lane's latest: what it held, the lane holds now."""
        held = self._node is head.node
        self._host.memory.advance(lane, head, held=held)
        if held:
            self._node = None

    def leave(self) -> None:
        """The turn is over: what it holds is let go."""
        self._waited()
        self._release()
        self._node = None

    def let_go(self) -> None:
        """The turn leaves its connection, which counts its chain no more."""
        self._release()

    def move_to(self, host: Host) -> None:
        """The turn has another connection, which counts its chain from here on."""
        self._host = host
        if self._node is not None:
            host.memory.hold(self._owner, self._node)

    def _release(self) -> None:
        if self._node is not None:
            self._host.memory.release(self._owner, self._node)

    def keep(self, items: Sequence[Item], *, after: ChainNode | None) -> None:
        """What joins the chain may be written at once, so that little is left for the end."""
        if items:
            self.kept = True
            keep = Keep(self._response_id, self._owner, after, tuple(items))
            self._host.effects.append(keep)

    def keep_output(self, kept: Sequence[Item], *, after: ChainNode | None) -> None:
        """The same for output that grows: what of it was not handed over yet."""
        if len(kept) > self._written:
            self.keep(kept[self._written :], after=after)
            self._written = len(kept)

    def linked(self) -> None:
        """The output so far is a node of the chain; what comes next counts from zero."""
        self._written = 0

    def discard(self) -> None:
        """The response will never be stored: what was written of it goes."""
        if self.kept:
            self.kept = False
            self._host.effects.append(Discard(self._response_id, self._owner))


class Reading(Struct, frozen=True):
    """Which response is read, from behind which number, and whether it comes to the lane."""

    response_id: str
    after: int | None
    moves: bool


class Turn(ABC):
    """One response. ``parent`` is the node that its input follows, once that is known."""

    # A queued turn is mostly its attributes: as a dictionary they take twice as much.
    __slots__ = ("_size", "announced", "aside", "booked", "claimed", "claims", "completed_at",
                 "created_at", "expires_at", "extra", "failure", "follows_latest", "held",
                 "holdings", "host", "id", "lane", "node", "outbox", "output", "own_id",
                 "parent", "pinned", "placed", "principal", "quiet", "reading", "reason",
                 "recall", "request", "resolved", "running", "settings", "state", "status",
                 "steers", "succeeds", "timestamps", "usage", "usage_counter", "wake_at",
                 "work_before")  # fmt: skip

    def __init__(
        self, host: Host, request: Create, *, principal: Principal, recall: SettingsCache
    ) -> None:
        self.host = host
        self.request = request
        self.principal = principal
        self.recall = recall
        self.lane = request.stream_id
        self.own_id = self.id = host.new_id(ids.RESPONSE)
        """``own_id`` names the turn for good; ``id`` is the response that it runs or reads."""
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
        self.node: ChainNode | None = None
        """The end of its own chain, once it has one."""
        self.announced = False
        self.running = False
        self.placed = False
        self.held = False
        self.quiet = False
        """Whether its end sends no event (the append prototype's held turns)."""
        self.status = "in_progress"
        self.reason: str | None = None
        self.failure: ApiError | None = None
        # Two clocks: what clients see is the time of day, what is measured never jumps.
        self.created_at = host.unix_time
        self.completed_at: int | None = None
        self.usage = NO_USAGE
        self.timestamps = Timestamps(host.now)
        self.wake_at: float | None = None
        """When the connection should look at it again: announce or held time-out."""
        self.expires_at = host.now + request.timeout_ms / 1000 if request.timeout_ms else None
        self.work_before = host.work.copy()
        self.usage_counter = UsageCounter()
        self.aside = 0
        """Output tokens that went into summaries, which no budget of the client's counts."""
        self.booked = False
        """Whether the store books it together with the response."""
        self.holdings = TurnHoldings(host, self.id, principal.owner)
        self.claimed = False
        """Whether its idempotency key is its own."""
        self.claims = 0
        self.reading: Reading | None = None
        """What it reads, for want of a response of its own."""
        self._size: int | None = None

    @abstractmethod
    def handle(self, what: TurnInput, *args: Any) -> None:
        """Runs the row of (state, ``what``); what the state ignores has none."""

    @abstractmethod
    def answer(self, append: Append) -> bool:
        """A held turn gets an append; False when it was refused and the turn stays held."""

    @abstractmethod
    def check_time(self, now: float) -> None:
        """Time has passed: ends the turn where it took too long, or announces it."""

    @abstractmethod
    def sampled(self, step: Sequence[Delta]) -> None:
        """The engine said these things, in order."""

    @abstractmethod
    def broke(self, error: ApiError) -> None:
        """The engine refused or failed."""

    @property
    def size(self) -> int:
        """Bytes, about, that its request keeps in memory while it waits."""
        # Only for what has to wait: most turns run at once.
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
        """Whether it runs without a connected client."""
        return self.settings is not None and self.settings.background

    @property
    def follows(self) -> str | None:
        """The response that it continues, by name or as the lane's latest."""
        if self.follows_latest and self.pinned is not None:
            return self.pinned.response_id
        return self.request.previous_response_id

    @property
    def stores(self) -> bool:
        """Whether the response will be stored."""
        return self.settings is not None and self.settings.store

    def budget(self) -> int | None:
        """Output tokens left for the whole rollout, or None."""
        assert self.settings is not None
        limit = self.settings.max_output_tokens
        return None if limit is None else max(0, limit - self.usage.output_tokens + self.aside)

    @property
    def connection_id(self) -> str:
        """The connection that it is on now: it may move."""
        return self.host.id

    def head(self) -> ChainHead | None:
        """What a client can continue: the response with its chain, once it has one."""
        if self.node is None:
            return None
        return ChainHead(self.id, self.node, owner=self.principal.owner, settings=self.settings)

    def snapshot(self, status: str) -> Response:
        """The response as clients see it at this moment, with this status."""
        blank = self.settings.blank if self.settings else Response(model=self.request.model or "")
        failure = self.failure if status == "failed" else None
        reason = self.reason if status == "incomplete" else None
        started = self.usage.total_tokens or status not in ("queued", "in_progress")
        return replace(
            blank,
            id=self.id,
            previous_response_id=self.follows,
            created_at=self.created_at,
            completed_at=self.completed_at,
            status=status,
            # A copy: the output grows while the snapshot may wait to be sent.
            output=list(self.output.raws),
            error=ResponseError(code=failure.code, message=failure.message) if failure else None,
            incomplete_details=IncompleteDetails(reason=reason) if reason else None,
            usage=self.usage if started else None,
        )

    def so_far(self) -> Response:
        """The response while it runs, with what it has used until now.

        It runs until its end is durable: a client that has read of an end can continue the
        response.
        """
        now = self.snapshot("in_progress" if self.running else "queued")
        usage = self.usage.plus(self.usage_counter.usage(None)) if self.placed else self.usage
        return replace(now, completed_at=None, usage=usage if usage.total_tokens else None)

    # Events.

    def push_error(
        self, error: ApiError, event_id: str | None, *, kind: type[ErrorEvent] = ErrorEvent
    ) -> None:
        """An error event on this turn's lane, with the response's next number."""
        box = self.outbox
        box.push(
            kind(
                sequence_number=box.count,
                stream_id=box.stream_id,
                status=error.status,
                error=events.ErrorDetail.of(error, event_id),
            )
        )

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

    def say(self, kind: type[events.LifecycleEvent], response: Response) -> None:
        box = self.outbox
        box.push(kind(sequence_number=box.count, stream_id=box.stream_id, response=response))

    def announce(self) -> None:
        """Says created and in_progress, once."""
        self.wake_at = None
        if self.running:
            return
        response = self.snapshot("in_progress")  # One for both: nothing happens between them.
        if not self.announced:
            self._push_created(response)
        self.running = True
        self.say(events.ResponseInProgress, response)

    def say_queued(self) -> None:
        if self.announced:
            return
        response = self.snapshot("queued")
        self._push_created(response)
        self.say(events.ResponseQueued, response)

    # Steps that its rules share.

    def keep_events(self) -> None:
        """A response that may be read again has its events kept from the first one on."""
        request, settings = self.request, self.settings
        if settings is None or self.log is not None:
            return
        if request.resumable or settings.background or request.idempotency_key is not None:
            owner = self.principal.owner
            self.outbox.log = log = self.host.logs.begin(
                self, owner=owner, key=request.idempotency_key, size=settings.echoed
            )
            # Another process finds it only where its response will be stored.
            if settings.store:
                self.host.effects.append(Begin(log, settings.model))

    def release_key(self, *, at_once: bool) -> None:
        """Its claim of its idempotency key ends, where it has one."""
        key = self.request.idempotency_key
        # A stored response keeps its key.
        if self.claimed and key is not None and (at_once or not self.booked):
            self.release(key, at_once=at_once)

    def release(self, key: str, *, at_once: bool) -> None:
        """What it has claimed of this key ends."""
        owner = self.principal.owner
        digest = idempotency.key_digest(owner, key)
        self.host.effects.append(Release(self.own_id, owner, digest, self.stores, at_once))

    def stop(self) -> None:
        """What samples for it is stopped, and what that has used is booked."""
        if self.placed:
            self.host.effects.append(Stop(self.own_id))
            self.end_sampling(None)

    def end_sampling(self, finish: Finish | None) -> None:
        """Books what one sampling used; a cut one what its deltas added up to."""
        self.usage = self.usage.plus(self.usage_counter.usage(finish))
        self.timestamps.sampled(self.host.now, finish.phases if finish else None)
        self.leave()

    def leave(self) -> None:
        """Gives its place back."""
        if self.placed:
            self.placed = False
            self.host.admission.leave()

    def extend_chain(self) -> None:
        """Output that the chain has not got yet is put into its next node."""
        kept = self.output.take_kept()
        if self.stores:
            self.holdings.keep_output(kept, after=self.parent)
            self.holdings.linked()
        if kept and self.node is not None:
            self.node = self.holdings.move(ChainNode(self.node, kept))
