"""A connection under a test's hand: the clock stands still, ids are seeded, effects come at once.

:class:`Lockstep` drives a real ``Connection``. What an engine says, the test says; a store is a
dictionary. Every event goes through an :class:`Audit`, so that each test of the core also proves
the rules that hold for all streams: numbers without gaps, one end, nothing after it.
"""

import random
from collections.abc import Iterable, Mapping
from typing import Any, Final

import msgspec
from msgspec import UNSET, Raw

from tieline import events, ids
from tieline.codecs.json import decode_request
from tieline.errors import ApiError
from tieline.ids import IdSource
from tieline.items import CustomToolCall, FunctionCall, Item, Message, text_of
from tieline.requests import Append, Cancel, Create, Request
from tieline.responses import Response
from tieline_server.auth.sealing import Keyring
from tieline_server.core import effects
from tieline_server.core.connection.connection import Connection
from tieline_server.core.create.limits import Limits, Share, size_of
from tieline_server.core.create.profile import OPENAI, Profile
from tieline_server.core.deltas import Accepted, CallDelta, CallStart, Delta, Finish, TextDelta
from tieline_server.core.history.chain import ChainNode, Saved
from tieline_server.core.turn import steering
from tieline_server.core.turn.turn import WAITING, Turn
from tieline_server.core.values import Principal, Resolved, TurnRecord
from tieline_server.models.catalog import ModelCatalog

MODEL: Final = "m"
STUBBORN: Final = "stubborn"
"""A model that cannot be steered."""

LOCAL: Final = Principal()
SEALER: Final = Keyring.random(random.Random(7).randbytes)
TEN: Final = Accepted(input_tokens=10, cached_tokens=4)

_STEERS: Final = (events.SteerAccepted, events.SteerPending, events.SteerFailed)


def catalog() -> ModelCatalog:
    """Two models of one engine."""
    return ModelCatalog(
        [
            Resolved(model=MODEL, engine="e"),
            Resolved(model=STUBBORN, engine="e", steering=False),
        ]
    )


def user(text: str) -> dict[str, Any]:
    """A user message."""
    return {"type": "message", "role": "user", "content": text}


def output(call_id: str, text: str = "done") -> dict[str, Any]:
    """A function's output."""
    return {"type": "function_call_output", "call_id": call_id, "output": text}


def raw(value: object) -> Raw:
    """A value as raw JSON."""
    return Raw(msgspec.json.encode(value))


def words(segment: ChainNode | None) -> list[str]:
    """A chain in short: ``user: hi``, ``assistant: hello``, ``call look``, ``output done``."""
    return [] if segment is None else [word(item) for item in segment.items_of_chain()]


def word(item: Item) -> str:
    """An item in short."""
    view: Any = item.view
    if isinstance(view, Message):
        return f"{view.role}: {text_of(view.content)}"
    if isinstance(view, FunctionCall | CustomToolCall):
        return f"call {view.name}"
    return f"output {text_of(view.output)}" if hasattr(view, "output") else item.type


class Audit:
    """Checks what each reader of a connection may rely on, event by event, and sorts the events."""

    def __init__(self, *, quiet_holds: bool = False) -> None:
        self._quiet_holds = quiet_holds
        self.by_response: dict[str, list[events.Event]] = {}
        self.loose: list[events.Event] = []
        """Events that belong to no response, in order."""
        self._current: dict[str | None, str] = {}
        self._open_items: dict[str, set[int]] = {}

    def take(self, event: events.Event) -> None:
        """One more event, as it was sent."""
        lane = None if event.stream_id is UNSET else event.stream_id
        if isinstance(event, events.ResponseCreated):
            self._begin(lane, event)
            return
        if not event.sequence_number:  # UNSET is false as well.
            # Only created is number 0 of a response: this error is the connection's or the lane's.
            assert not isinstance(event, events.LifecycleEvent), event
            self.loose.append(event)
            return
        own = self.by_response[self._current[lane]]
        assert event.sequence_number == own[-1].sequence_number + 1, (own, event)  # type: ignore[operator]
        assert not self.ended(self._current[lane]) or isinstance(event, _STEERS), (own, event)
        own.append(event)
        self._check(self._current[lane], event)

    def ended(self, response_id: str) -> bool:
        """Whether the terminal event of a response has been sent."""
        return any(event.TERMINAL for event in self.by_response.get(response_id, ()))

    def _over(self, response_id: str) -> bool:
        """Whether a next response may begin: a held one may end without a word in one profile."""
        last = self.by_response[response_id][-1]
        silent = self._quiet_holds and isinstance(last, events.ResponseDone)
        return silent or self.ended(response_id)

    def _begin(self, lane: str | None, event: events.ResponseCreated) -> None:
        before = self._current.get(lane)
        assert before is None or self._over(before), "one response at a time on a lane"
        assert event.sequence_number == 0
        assert event.response.id not in self.by_response
        self._current[lane] = event.response.id
        self.by_response[event.response.id] = [event]
        self._open_items[event.response.id] = set()

    def _check(self, response_id: str, event: events.Event) -> None:
        still_open = self._open_items[response_id]
        if isinstance(event, events.LifecycleEvent):
            assert event.response.id == response_id
        if isinstance(event, events.OutputItemAdded):
            still_open.add(event.output_index)
        if isinstance(event, events.OutputItemDone):
            still_open.remove(event.output_index)
        if event.TERMINAL:
            assert not still_open, "items are closed before the end"
            assert sum(each.TERMINAL for each in self.by_response[response_id]) == 1


def links_of(saved: Saved) -> list[ChainNode]:
    """A response's own links, the first one first."""
    own: list[ChainNode] = []
    link: ChainNode | None = saved.head.node
    while link is not None and link is not saved.input_from:
        own.append(link)
        link = link.parent
    return own[::-1]


def waiting_bytes(connection: Connection, *outlived: Turn) -> int:
    """Bytes of all requests and steers that wait on a connection, and of turns that left it."""
    turns = [*connection._lanes.turns(), *outlived]
    for turn in turns:
        extra = steering.size(turn.extra) if turn.node is None and not turn.ended else 0
        assert turn.holdings._waits in (extra, extra + turn.size + WAITING)
    parked = [each for lane in connection._lanes for each, _ in lane.parked]
    pending = [each.items for each in connection._pending_steers._waiting.values()]
    return (
        sum(turn.holdings._waits + turn.steers.size for turn in turns)
        + sum(size_of(each) for each in parked if not isinstance(each, Cancel))
        + sum(map(steering.size, pending))
    )


class Lockstep:
    """Drives one connection. ``store_answers`` False leaves loads and saves to the test."""

    def __init__(
        self,
        *,
        limits: Limits | None = None,
        merge: bool = False,
        store_answers: bool = True,
        profile: Profile = OPENAI,
        queued: Share | None = None,
        seed: int = 1,
    ) -> None:
        self.made: list[str] = []
        """Every id that was made, in order."""
        self._source = IdSource(random.Random(seed).randbytes)
        self.connection = Connection(
            limits=limits or Limits(),
            catalog=catalog(),
            new_id=self._new_id,
            sealer=SEALER,
            merge=merge,
            profile=profile,
            queued=queued,
        )
        self.now = 100.0
        self.unix_time = 1_700_000_000.0
        self.audit = Audit(quiet_holds=profile.quiet_holds)
        self.reading = True
        """Whether events are taken as they come."""
        self.turns: dict[str, Turn] = {}
        self.asking: dict[effects.TurnId, Turn] = {}
        """Turns that effects have named, by their own ids."""
        self.asked: list[effects.Sample] = []
        """What the engine was asked, in order."""
        self.stopped: list[str] = []
        self.loads: list[effects.Load] = []
        self.saves: list[effects.Save] = []
        self.kept: dict[str, list[Item]] = {}
        """Items that were handed to the store while their response ran."""
        self.stored: dict[tuple[str, str], Saved] = {}
        self.claims: list[effects.Claim] = []
        self.keys: dict[bytes, tuple[str, bytes]] = {}
        """Digest of a key -> (the response that has it, digest of its body)."""
        self.released: list[tuple[str, bool]] = []
        """Responses whose keys end: (id, at once)."""
        self.begun: list[str] = []
        """Responses whose events are kept."""
        self.follows: list[effects.Follow] = []
        self.cancelled_sources: list[str] = []
        self.outlived: list[Turn] = []
        """Turns that have left the connection and have no other one yet."""
        self.records: list[TurnRecord] = []
        self.closed: effects.Close | None = None
        self._store_answers = store_answers
        self._at()

    # What a client does.

    def receive(self, request: Request, principal: Principal = LOCAL) -> None:
        """One client event."""
        self._at()
        self.connection.receive(request, principal)
        self.settle()

    def send(self, kind: str, *, principal: Principal = LOCAL, **members: Any) -> str:
        """A client event as JSON; returns the id of the response that it makes, or ""."""
        known = len(self.made)
        body = {"type": kind, **members}
        self.receive(decode_request(msgspec.json.encode(body)), principal)
        made = self.made[known:]
        return next((each for each in made if each.startswith(ids.RESPONSE)), "")

    def create(self, input: object = UNSET, *, lane: str | None = None, **members: Any) -> str:
        """A create, ``store`` false unless said; returns the response's id."""
        body = {"model": MODEL, "store": False, **members}
        if input is not UNSET:
            body["input"] = input
        if lane is not None:
            body["stream_id"] = lane
        return self.send("response.create", **body)

    def append(self, *items: object, lane: str | None = None, **members: Any) -> str:
        """An append of these items; returns the id of a response that it makes, or ""."""
        if lane is not None:
            members["stream_id"] = lane
        return self.send("response.append", input=list(items), **members)

    def steer(self, response_id: str, input: object = "shorter", **members: Any) -> None:
        """A steer of the response that is running."""
        self.send("response.steer", previous_response_id=response_id, input=input, **members)

    def cancel(self, **members: Any) -> None:
        """A cancel."""
        self.send("response.cancel", **members)

    # What an engine does.

    def say(self, response_id: str, *step: Delta) -> None:
        """One step of the engine that samples this response."""
        self._at()
        self.connection.deltas(self.turns[response_id], step)
        self.settle()

    def answer(self, response_id: str, text: str = "ok", **finish: Any) -> None:
        """A whole answer of text."""
        self.say(response_id, TEN, TextDelta(text), Finish(**finish))

    def call(self, response_id: str, *names: str) -> list[str]:
        """A whole answer of function calls; returns their call ids."""
        known = len(self.made)
        step: list[Delta] = [TEN]
        for name in names or ("look",):
            step += [CallStart(kind="function_call", name=name), CallDelta("{}")]
        self.say(response_id, *step, Finish())
        return [each for each in self.made[known:] if each.startswith(ids.CALL)]

    def fail(self, response_id: str, code: str = "server_error") -> None:
        """The engine breaks."""
        self._at()
        self.connection.engine_failed(self.turns[response_id], ApiError.of(code, "It broke."))
        self.settle()

    # Time and ends.

    def wait(self, seconds: float) -> None:
        """Lets time pass, then ticks once."""
        self.now += seconds
        self.unix_time += seconds
        self._at()
        self.connection.tick()
        self.settle()

    def half_close(self) -> None:
        """The client says no more."""
        self._at()
        self.connection.half_close()
        self.settle()

    def age(self) -> None:
        """The connection has lived as long as it may."""
        self._at()
        self.connection.age()
        self.settle()

    def drain(self, seconds: float = 30.0) -> None:
        """The server is about to stop."""
        self._at()
        self.connection.drain(seconds)
        self.settle()

    def drop(self) -> None:
        """The peer is gone."""
        self._at()
        self.connection.drop()
        self.settle()

    # Effects and events.

    def settle(self) -> None:
        """Carries out what the connection asks for and reads what it sends, until it is quiet."""
        self._note_turns()
        while taken := self.connection.take_effects():
            for effect in taken:
                self._carry_out(effect)
            self._note_turns()
        if self.reading:
            self.read()

    def read(self) -> list[events.Event]:
        """Takes all events that are unsent."""
        taken = []
        while (event := self.connection.outgoing.next()) is not None:
            self.audit.take(event)
            taken.append(event)
        return taken

    def loaded(self, load: effects.Load) -> None:
        """The store answers."""
        saved = self.stored.get((load.owner, load.response_id or ""))
        every = [each for (owner, _), each in self.stored.items() if owner == load.owner]
        found = {
            item.id: item
            for each in every
            for item in each.head.node.items_of_chain()
            if item.id in load.item_ids and item.id is not None
        }
        self._at()
        self.connection.loaded(self.asking[load.turn], saved, found)

    def saved(self, save: effects.Save, error: ApiError | None = None) -> None:
        """The store commits, or fails to."""
        own = [item for link in links_of(save.record) for item in link.items]
        assert self.kept.get(save.record.response.id, []) == own, "what was kept is its own links"
        if error is None:
            self.stored[save.record.owner, save.record.response.id] = save.record
        self._at()
        self.connection.saved(self.asking[save.turn], error)

    def _carry_out(self, effect: effects.Effect) -> None:
        named = getattr(effect, "turn", None)
        if named is not None and (turn := self.connection.turns.get(named)) is not None:
            self.asking[named] = turn
        if isinstance(effect, effects.Sample):
            if effect.turn in self.asking:  # Otherwise it has ended since it asked.
                self.asked.append(effect)
                self.turns[effect.prompt.response_id] = self.asking[effect.turn]
        elif isinstance(effect, effects.Stop):
            self.stopped.append(effect.turn)
        elif isinstance(effect, effects.Record):
            self.records.append(effect.record)
        elif isinstance(effect, effects.Close):
            assert self.closed is None, "a connection closes once"
            self.closed = effect
        elif isinstance(effect, effects.Load):
            self.loads.append(effect)
            if self._store_answers:
                self.loaded(effect)
        elif isinstance(effect, effects.Keep):
            self.kept.setdefault(effect.response_id, []).extend(effect.items)
        elif isinstance(effect, effects.Discard):
            del self.kept[effect.response_id]
        elif isinstance(effect, effects.Save):
            self.saves.append(effect)
            if self._store_answers:
                self.saved(effect)
        elif isinstance(effect, effects.Claim):
            self.claims.append(effect)
            if self._store_answers:
                self.claimed(effect)
        else:
            self._carry_on(effect)

    def _carry_on(self, effect: effects.Effect) -> None:
        """What concerns turns that others can find."""
        if isinstance(effect, effects.Outlive):
            turn = self.connection.turns.pop(effect.turn)
            self.outlived.append(turn)
            self.turns.pop(turn.id, None)
        elif isinstance(effect, effects.Follow):
            self.follows.append(effect)
        elif isinstance(effect, effects.Release):
            self.released.append((effect.turn, effect.at_once))
        elif isinstance(effect, effects.CancelSource):
            self.cancelled_sources.append(effect.response_id)
        else:
            assert isinstance(effect, effects.Begin)
            self.begun.append(effect.log.response_id)

    def claimed(self, claim: effects.Claim) -> None:
        """The first create of a key has it."""
        holder, body = self.keys.setdefault(claim.key, (claim.turn, claim.body))
        self._at()
        self.connection.claimed(self.asking[claim.turn], holder, same=body == claim.body)

    # What a test looks at.

    def response(self, response_id: str) -> Response:
        """The last snapshot of a response that was sent."""
        own = self.audit.by_response[response_id]
        return [each for each in own if isinstance(each, events.LifecycleEvent)][-1].response

    def types(self, response_id: str) -> list[str]:
        """The types of a response's events so far, without the ``response.`` before them."""
        own = self.audit.by_response.get(response_id, [])
        return [event.type.removeprefix("response.") for event in own]

    def status(self, response_id: str) -> tuple[str | None, str | None]:
        """Status and incomplete reason of a response's last snapshot."""
        response = self.response(response_id)
        details = response.incomplete_details
        return response.status, details.reason if details else None

    @property
    def errors(self) -> list[tuple[str | None, str | None]]:
        """(code, param) of every error event, in order."""
        return [(each.error.code, each.error.param) for each in self.error_events]

    @property
    def error_events(self) -> list[events.ErrorEvent]:
        """Every error event, those of the connection first."""
        own = [event for each in self.audit.by_response.values() for event in each]
        every = [*self.audit.loose, *own]
        return [event for event in every if isinstance(event, events.ErrorEvent)]

    def loose(self, kind: type[events.Event]) -> list[Any]:
        """Events of this class that belong to no response."""
        return [event for event in self.audit.loose if isinstance(event, kind)]

    def of(self, response_id: str, kind: type[events.Event]) -> list[Any]:
        """A response's events of this class."""
        own = self.audit.by_response.get(response_id, [])
        return [event for event in own if isinstance(event, kind)]

    def prompt(self, response_id: str) -> effects.Prompt:
        """What the engine was last asked for a response."""
        return [each.prompt for each in self.asked if each.prompt.response_id == response_id][-1]

    def context(self, response_id: str) -> list[str]:
        """The chain that the engine was last asked to continue, in short."""
        return words(self.prompt(response_id).chain)

    def record(self, response_id: str) -> TurnRecord:
        """The one record of a response."""
        (own,) = [each for each in self.records if each.response_id == response_id]
        return own

    @property
    def sampling(self) -> list[str]:
        """The responses that have an active place."""
        return [each.id for each in self.turns.values() if each.placed]

    def lanes(self) -> Mapping[str | None, Iterable[Turn]]:
        """The turns of each lane, the running one first."""
        return {lane.name: list(lane.turns()) for lane in self.connection._lanes}

    def check(self) -> None:
        """What holds between any two inputs."""
        limits = self.connection.limits
        placed = self.sampling
        assert self.connection.admission._active == len(placed) <= limits.active
        for lane in self.connection._lanes:
            assert all(turn.state in ("queued", "doomed") for turn in lane.queue)
            assert len(lane.queue) <= limits.queue + 1, "one more than asked for: a successor"
        waiting = waiting_bytes(self.connection, *self.outlived)
        assert self.connection.queued.taken == waiting, "what waits is counted, and nothing else"
        recorded = [each.response_id for each in self.records]
        assert len(recorded) == len(set(recorded)), "one record a response"
        for response_id in self.audit.by_response:
            if self.audit.ended(response_id):
                assert response_id in recorded

    def _at(self) -> None:
        self.connection.at(self.now, self.unix_time)

    def _new_id(self, prefix: str) -> str:
        self.made.append(self._source.new(prefix))
        return self.made[-1]

    def _note_turns(self) -> None:
        for turns in self.lanes().values():
            for turn in turns:
                if turn.reading is None or turn.id not in self.turns:
                    self.turns[turn.id] = turn


def create_of(**members: Any) -> Create:
    """A create as a server would hand it over; raises :class:`ApiError` as the codec does."""
    request = decode_request(msgspec.json.encode({"type": "response.create", **members}))
    assert isinstance(request, Create)
    return request


def append_of(*items: object, **members: Any) -> Append:
    """An append as a server would hand it over."""
    body = {"type": "response.append", "input": list(items), **members}
    request = decode_request(msgspec.json.encode(body))
    assert isinstance(request, Append)
    return request
