"""The life of one response: carries out the actions of the turn table.

``TurnMachine.handle`` is the one funnel: it looks up the row, takes the next state, then runs the
action. Actions never wait; what must be done outside becomes an effect of the connection.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from tieline import events, ids
from tieline.errors import ApiError
from tieline.items import Item, Opened
from tieline.requests import Append, Steer
from tieline_server.core.create import idempotency
from tieline_server.core.deltas import Accepted, CallStart, Delta, Finish, UsageCounter
from tieline_server.core.effects import Claim, Load, Sample
from tieline_server.core.history import input_checks, sealed
from tieline_server.core.history.chain import ChainHead, ChainNode
from tieline_server.core.history.compaction import Fold
from tieline_server.core.tables import TURNS, TurnInput
from tieline_server.core.turn import follow, resolve, steering
from tieline_server.core.turn.finish import (
    CANCELLED,
    conclude,
    conclude_cut,
    finish,
    forsake,
    push_timing,
    record,
    refuse,
)
from tieline_server.core.turn.turn import Reading, Turn

_ENDS_OF_SAMPLING: Final = frozenset({Accepted, Finish})


class TurnMachine(Turn):
    """One response, with the actions of its table."""

    __slots__ = ()

    def handle(self, what: TurnInput, *args: Any) -> None:
        """Runs the row of (state, ``what``); what the state ignores has none."""
        row = TURNS.get((self.state, what))
        if row is not None:
            action, self.state = row
            getattr(self, action)(*args)

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

    def check_time(self, now: float) -> None:
        """Time has passed: ends the turn where it took too long, or announces it."""
        if self.expires_at is not None and self.expires_at <= now:
            # Once: the end may have to wait for the store.
            self.expires_at = None
            self.handle("cut", "deadline")
        elif self.wake_at is not None and self.wake_at <= now:
            self.wake_at = None
            if self.state == "held":
                self.handle("cut", "held_timeout")
            else:
                self.handle("announce")

    def sampled(self, step: Sequence[Delta]) -> None:
        """The engine said these things, in order."""
        if self.state == "sampling" and len(step) == 1 and self.output.grow(step[0]):
            # One token more: all that its row comes to.
            self.usage_counter.count(step)
            return
        # Where an engine accepts or finishes, the table is asked; what is between goes on as one.
        begin = 0
        for at in [at for at, kind in enumerate(map(type, step)) if kind in _ENDS_OF_SAMPLING]:
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
            self.usage_counter.accept(delta)  # type: ignore[arg-type]
        else:
            self.handle("accept", delta)

    def broke(self, error: ApiError) -> None:
        """The engine refused or failed."""
        self.handle("fail" if self.announced else "refuse", error)

    # Actions of the table.

    def resolve(self) -> None:
        """First on its lane: its model, its settings, and whose its idempotency key is."""
        self.timestamps.head(self.host.now)
        if self.reading is not None:
            self.handle("follow", self.reading)
            return
        try:
            resolve.ground(self)
        except ApiError as error:
            self.handle("refuse", error)
            return
        if self.request.idempotency_key is not None:
            self.handle("claim")
        else:
            self._look_up()

    def resolve_claimed(self) -> None:
        """Its idempotency key is its own, and it has a response of its own."""
        self.claimed = True
        self._look_up()

    def resolve_loaded(self, head: ChainHead | None, found: Mapping[str, Item]) -> None:
        """The store has answered: ``head`` is what it continues, where that was asked for."""
        parent = head or resolve.parent_of(self)
        named = self.request.previous_response_id
        try:
            if parent is None and named is not None:
                raise resolve.parent_not_found(named)
            self._settle(resolve.input_after(self, parent), found)
        except ApiError as error:
            self.handle("refuse", error)
            return
        self._go()

    def _look_up(self) -> None:
        """Goes on with what is in memory, or asks the store for what is not."""
        try:
            self.keep_events()
            parent = resolve.parent_of(self)
            items = resolve.input_after(self, parent)
            missing = input_checks.references(items, self.parent)
            named = self.request.previous_response_id if parent is None else None
            if missing or named is not None:
                self.handle("load", named, tuple(missing))
                return
            self._settle(items, {})
        except ApiError as error:
            self.handle("refuse", error)
            return
        self._go()

    def _settle(self, items: Sequence[Item], found: Mapping[str, Item]) -> None:
        """Its input joins the chain; raises :class:`ApiError` for what may not follow there."""
        checked = resolve.follow(self, items, self.parent, found)
        number = self.parent.turn + 1 if self.parent else 1
        self.node = self.holdings.move(ChainNode(self.parent, tuple(checked), turn=number))
        self.host.memory.admit(self.principal.owner)
        self.timestamps.resolved(self.host.now)
        if self.stores:
            self.holdings.keep(self.node.items, after=self.parent)

    def claim(self, _gone: ApiError | None = None) -> None:
        """One create of each key makes a response; the others read that one."""
        follow.again(self)
        self.claims += 1
        key, body = idempotency.digests(self.principal.owner, self.request)
        again = self.claims > 1
        self.host.effects.append(
            Claim(self.own_id, self.principal.owner, key, body, self.stores, again)
        )

    def follow(self, other: Reading) -> None:
        """Another response's events answer it."""
        follow.begin(self, other)

    def relay(self, taken: Sequence[events.Event]) -> None:
        """That response said these things."""
        follow.relay(self, taken)

    def part(self, head: ChainHead | None = None) -> None:
        """There is no more to read, or its connection is gone; ``head`` is now the lane's."""
        follow.part(self, head)

    def lose(self, error: ApiError) -> None:
        """The other response cannot be read."""
        follow.lose(self, error)

    def cut_source(self, reason: str) -> None:
        """What is cancelled is the response that is read."""
        follow.cut(self, reason)

    def ask_store(self, response_id: str | None, item_ids: Sequence[str]) -> None:
        """The parent, or items that the input names, are not on the connection."""
        owner = self.principal.owner
        self.host.effects.append(Load(self.own_id, response_id, tuple(item_ids), owner))

    def wait(self) -> None:
        """No active place: a client sees created and queued (wire.md 3.2.2)."""
        self.host.waiting.append(self)
        self.say_queued()

    def ask_engine(self) -> None:
        """Takes a place and has the engine asked."""
        host = self.host
        assert self.resolved is not None
        host.admission.enter()
        self.placed = True
        self.timestamps.asked(host.now)
        self.wake_at = None if self.running else host.now + host.limits.announce_after
        prompt = resolve.prompt_of(self)
        host.effects.append(Sample(self.own_id, self.resolved.engine, prompt))

    def fold(self, fold: Fold) -> None:
        """The history was too long: a compaction item, the next of its output, stands for it."""
        self.announce()
        owner, host = self.principal.owner, self.host
        spent = self.usage_counter.usage(fold.finish)
        self.usage = self.usage.plus(spent)
        self.aside += spent.output_tokens
        self.usage_counter = UsageCounter()
        item = sealed.history(
            Opened(items=fold.items, whole=True),
            lambda content: host.sealer.seal(owner, content),
            item_id=host.new_id(ids.COMPACTION),
        )
        self.output.add(item)
        assert self.node is not None
        # What is not stored has no use for what is behind: the chain begins anew, so that a
        # connection which folds again and again does not grow.
        before = self.node if self.stores else None
        self.node = self.holdings.move(ChainNode(before, (item,), turn=self.node.turn))
        if self.stores:
            self.holdings.keep(self.node.items, after=self.parent)

    def run(self, accepted: Accepted) -> None:
        """The engine took the prompt."""
        self.usage_counter.accept(accepted)
        self.announce()

    def take(self, run: Sequence[Delta]) -> None:
        """Deltas become events; one by one only where the turn may end between two of them."""
        assert self.settings is not None
        # Nothing can end the turn between two of these.
        if self.state == "sampling" and self.settings.max_tool_calls is None:
            self._feed(run)
            return
        for delta in run:
            begins = type(delta) is CallStart or self.state == "steered"
            if begins and self._stops_at(delta):
                return
            self._feed((delta,))

    def _feed(self, run: Sequence[Delta]) -> None:
        self.usage_counter.count(run)
        if self.timestamps.first_token_at is None:
            self.timestamps.first_token(self.host.now)
        self.output.feed(run)
        if self.stores:
            self.holdings.keep_output(self.output.kept, after=self.parent)

    def finish(self, finish: Finish) -> None:
        """Sampling ended by itself."""
        self.end_sampling(finish)
        if finish.reason == "stop":
            conclude(self, "completed")
        else:
            reasons = {"length": "max_output_tokens", "content_filter": "content_filter"}
            conclude(self, "incomplete", reasons.get(finish.reason, finish.reason))

    def hold(self, finish: Finish) -> None:
        """Append shape: gives its place back and waits for the client's tool outputs."""
        self.end_sampling(finish)
        self.output.close("completed")
        self.extend_chain()
        self.held = True
        self.timestamps.held(self.host.now)
        self.wake_at = self.host.now + self.host.limits.held_timeout
        push_timing(self)
        self.say(events.ResponseDone, self.snapshot("in_progress"))

    def extend(self, items: Sequence[Item]) -> None:
        """The client answered: the outputs join the context and sampling goes on."""
        assert self.node is not None
        self.wake_at = None
        self.held = False
        self.timestamps.resume(self.host.now)
        # Each sampling is counted by itself: an engine states the totals of its own.
        self.usage_counter = UsageCounter()
        joined = (*items, *self.steers.take())
        self.node = self.holdings.move(ChainNode(self.node, joined))
        if self.stores:
            self.holdings.keep(joined, after=self.parent)
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
        failed = steering.failed(steer, ApiError.of(code, words), stream_id=self.lane)
        self.host.outgoing.put(self.lane, failed)

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
        # The client of the append prototype took response.done for the end.
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
        # A client that heard of an end must find the response, also from another process.
        self.status, self.reason, self.failure = "failed", None, error
        self.completed_at, self.booked = None, False
        self.holdings.discard()
        self.end()

    # Steps that actions share.

    def _go(self) -> None:
        """Starts sampling if an active place is free; otherwise waits for one."""
        # The client does not wait for events: it may ask for the response before it samples.
        if self.background:
            self.say_queued()
        if self.budget() == 0:
            self.handle("cut", "max_output_tokens")
        # Not past turns of other lanes that wait already.
        elif self.host.admission.has_place and not self.host.waiting:
            self.handle("start")
        else:
            self.handle("wait")

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
        # What a limit or a filter cut ends: the call that was cut cannot be answered.
        append = self.settings is not None and self.settings.append
        return append and finish.reason == "stop" and self.output.has_open_calls
