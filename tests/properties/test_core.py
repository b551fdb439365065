"""The core under every input: each state of each table, and a line that anything happens to."""

import random
from collections.abc import Callable
from itertools import product
from typing import Any, get_args

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from tests.support.core import (
    LOCAL,
    TEN,
    Lockstep,
    append_of,
    create_of,
    output,
    raw,
    user,
    word,
    words,
)
from tests.support.turn_states import held, loading, sampling, saving, starting, steered
from tieline import events
from tieline.errors import ApiError
from tieline.events import ResponseQueued
from tieline.items import decode, decode_input
from tieline.requests import ClientHeartbeat, Opaque, Steer
from tieline.responses import Response
from tieline_server.core.create.limits import NO_BOUND, Limits, Share
from tieline_server.core.deltas import (
    CallDelta,
    CallStart,
    Delta,
    Finish,
    ItemEnd,
    ReasoningDelta,
    RefusalDelta,
    SummaryDelta,
    TextDelta,
)
from tieline_server.core.history.compaction import Fold
from tieline_server.core.tables import (
    CONNECTIONS,
    LANES,
    TURNS,
    ConnectionInput,
    ConnectionState,
    LaneInput,
    LaneState,
    TurnInput,
    TurnState,
)
from tieline_server.core.turn.machine import TurnMachine
from tieline_server.core.turn.turn import Reading, Turn

ERROR = ApiError.of("server_error", "It broke.")
ITEMS = tuple(decode_input(b'"more"'))
STEER = Steer(previous_response_id="resp_x", input=raw("more"))


def bench() -> Lockstep:
    """A line whose store answers only when told to."""
    return Lockstep(store_answers=False, limits=Limits(active=1))


# Every state of a turn, reached by real inputs.


def _queued(line: Lockstep) -> str:
    line.create("first")
    return line.create("second", event_id="second")


def _doomed(line: Lockstep) -> str:
    turn = _queued(line)
    line.cancel(event_id="second")
    return turn


class Stopped(TurnMachine):
    """A turn that is ready to run and does not."""

    __slots__ = ()

    def _go(self) -> None:
        pass


def _resolving(line: Lockstep) -> str:
    """The one state that never outlasts a call: the call is stopped in its middle."""
    turn = _queued(line)
    line.turns[turn].__class__ = Stopped
    line.cancel()
    return turn


def _claiming(line: Lockstep) -> str:
    return line.create("hi", idempotency_key="k")


def _following(line: Lockstep) -> str:
    line.send("response.resume", response_id="resp_x")
    return "resp_x"


def _waiting(line: Lockstep) -> str:
    line.create("first", lane="a")
    return line.create("second", lane="b")


def _ended(line: Lockstep) -> str:
    turn = starting(line)
    line.answer(turn)
    return turn


REACH: dict[TurnState, Callable[[Lockstep], str]] = {
    "queued": _queued,
    "doomed": _doomed,
    "resolving": _resolving,
    "claiming": _claiming,
    "loading": loading,
    "waiting": _waiting,
    "starting": starting,
    "sampling": sampling,
    "steered": steered,
    "held": held,
    "following": _following,
    "saving": saving,
    "ended": _ended,
}

ARGUMENTS: dict[TurnInput, tuple[Any, ...]] = {
    "head": (),
    "claim": (),
    "claimed": (),
    "follow": (Reading("resp_y", None, moves=False),),
    "relay": ([ResponseQueued(sequence_number=1, response=Response())],),
    "read": (),
    "load": ("resp_x", ()),
    "loaded": (None, {}),
    "refuse": (ERROR,),
    "wait": (),
    "start": (),
    "announce": (),
    "fold": (Fold(items=ITEMS),),
    "accept": (TEN,),
    "output": ([TextDelta("y")],),
    "boundary": (),
    "finish": (Finish(),),
    "hold": (Finish(),),
    "fail": (ERROR,),
    "append": (ITEMS,),
    "steer": (STEER, ITEMS),
    "cut": ("cancelled",),
    "drop": (),
    "saved": (),
    "unsaved": (ERROR,),
}


def any_of(literal: Any) -> st.SearchStrategy[Any]:
    """One of the strings of a ``Literal``."""
    return st.sampled_from(get_args(literal))


def _reachable(start: TurnState) -> set[TurnState]:
    """Where the table can lead from here: an action may itself feed further inputs."""
    reached = {start}
    while more := {after for (at, _), (_, after) in TURNS.items() if at in reached} - reached:
        reached |= more
    return reached


def _feed(line: Lockstep, turn: Turn, what: TurnInput) -> None:
    """One input, and what must hold whatever it was."""
    before, sent = turn.state, turn.outbox.count
    row = TURNS.get((before, what))
    turn.handle(what, *ARGUMENTS[what])
    after = before if row is None else row[1]
    if row is None:
        assert (turn.state, turn.outbox.count, line.connection.effects) == (before, sent, [])
    assert turn.state in _reachable(after)
    line.connection._follow(turn)
    line.settle()
    assert line.connection.admission._active == len(line.sampling)
    assert turn.placed is (turn.state in ("starting", "sampling", "steered"))
    own = [each for each in line.records if each.response_id == turn.id]
    # What only reads another's events is no response, and leaves no record.
    assert len(own) == (turn.state == "ended" and turn.reading is None)
    assert turn.output.open is None or turn.placed or own[0].outcome == "disconnected"


@pytest.mark.parametrize("state", get_args(TurnState))
def test_every_state_of_a_turn_is_reached_by_real_inputs(state: TurnState) -> None:
    line = bench()
    assert line.turns[REACH[state](line)].state is state


@pytest.mark.parametrize(("state", "what"), list(product(get_args(TurnState), get_args(TurnInput))))
def test_a_turn_takes_every_input_in_every_state(state: TurnState, what: TurnInput) -> None:
    line = bench()
    turn = line.turns[REACH[state](line)]
    line.reading = False
    _feed(line, turn, what)


@given(
    st.sampled_from(get_args(TurnState)),
    st.lists(st.sampled_from(get_args(TurnInput)), max_size=12),
)
def test_a_turn_takes_any_inputs_in_any_order(state: TurnState, inputs: list[TurnInput]) -> None:
    line = bench()
    turn = line.turns[REACH[state](line)]
    line.reading = False
    for what in inputs:
        _feed(line, turn, what)


# Lanes and lines.

LANE_STATES: dict[LaneState, Callable[[Lockstep], object]] = {
    "idle": _ended,
    "busy": sampling,
    "held": held,
}


def _lane_input(line: Lockstep, what: LaneInput) -> None:
    lane = line.connection._lanes.get(None)
    create = TurnMachine(
        line.connection, create_of(input="hi"), principal=LOCAL, recall=lane.recall
    )
    if what == "next" and not lane.queue:
        lane.queue.append(create)  # By its meaning: something is queued.
    if what == "hold" and lane.current is not None and lane.current.node is None:
        return  # By its meaning: the turn has sampled.
    arguments: dict[LaneInput, tuple[Any, ...]] = {
        "create": (create,),
        "append": (append_of(user("more")), LOCAL),
        "seat": (create,),
    }
    before = lane.state
    lane.handle(what, *arguments.get(what, ()))
    row = LANES.get((before, what))
    assert lane.state is (before if row is None else row[1])
    assert line.connection.admission._active >= 0


@pytest.mark.parametrize(("state", "what"), list(product(get_args(LaneState), get_args(LaneInput))))
def test_a_lane_takes_every_input_in_every_state(state: LaneState, what: LaneInput) -> None:
    line = bench()
    LANE_STATES[state](line)
    assert line.connection._lanes.get(None).state is state
    _lane_input(line, what)


@given(
    st.sampled_from(get_args(LaneState)),
    st.lists(st.sampled_from(get_args(LaneInput)), max_size=12),
)
def test_a_lane_takes_any_inputs_in_any_order(state: LaneState, inputs: list[LaneInput]) -> None:
    line = bench()
    LANE_STATES[state](line)
    for what in inputs:
        _lane_input(line, what)


def _after(before: ConnectionState, what: ConnectionInput) -> ConnectionState:
    row = CONNECTIONS.get((before, what))
    return before if row is None else row[1]


def _line_input(line: Lockstep, what: ConnectionInput) -> None:
    """One input as a driver gives it, and what must hold whatever it was."""
    before = line.connection.state
    inputs: dict[ConnectionInput, Callable[[], object]] = {
        "session_start": lambda: line.send("tieline.session.start", merge="never"),
        "create": lambda: line.create("hi", append=True),
        "append": lambda: line.append(user("more")),
        "cancel": line.cancel,
        "steer": lambda: line.steer("resp_x"),
        "resume": lambda: line.send("response.resume", response_id="resp_x"),
        "notice": lambda: line.receive(ClientHeartbeat()),
        "unknown": lambda: line.receive(Opaque(name="x", raw=raw({}))),
        "session_end": lambda: line.send("tieline.session.end"),
        "half_close": line.half_close,
        "drain": line.drain,
        "age": line.age,
        "drop": line.drop,
        # A line sees for itself that nothing runs; it is only made to look.
        "idle": lambda: line.wait(0),
    }
    inputs[what]()
    after = before if what == "idle" else _after(before, what)
    # Where nothing runs, a goodbye is followed by the close at once.
    assert line.connection.state in (after, _after(after, "idle"))
    line.check()
    assert (line.closed is not None) is (line.connection.state == "closed")
    assert line.closed is None or line.sampling == []


@pytest.mark.parametrize("busy", [False, True])
@given(inputs=st.lists(any_of(ConnectionInput), max_size=12))
def test_a_line_takes_any_inputs_in_any_order(busy: bool, inputs: list[ConnectionInput]) -> None:
    line = bench()
    if busy:
        sampling(line)
    for what in inputs:
        _line_input(line, what)


def _ending(line: Lockstep) -> None:
    sampling(line)
    line.half_close()


def _draining(line: Lockstep) -> None:
    sampling(line)
    line.drain()


def _aged(line: Lockstep) -> None:
    sampling(line)
    line.age()


LINE_STATES: dict[ConnectionState, Callable[[Lockstep], object]] = {
    "open": sampling,
    "ending": _ending,
    "draining": _draining,
    "aged": _aged,
    "closed": Lockstep.drop,
}


@pytest.mark.parametrize(
    ("state", "what"), list(product(get_args(ConnectionState), get_args(ConnectionInput)))
)
def test_a_line_takes_every_input_in_every_state(
    state: ConnectionState, what: ConnectionInput
) -> None:
    line = bench()
    LINE_STATES[state](line)
    assert line.connection.state is state
    _line_input(line, what)


EXTRAS: list[dict[str, Any]] = [
    {},
    {},
    {},
    {"timeout_ms": 2000},
    {"max_output_tokens": 3},
    {"max_tool_calls": 1},
    {"generate": False},
    {"model": "stubborn"},
    {"model": "nobody"},
]

CALLS: list[list[Delta]] = [
    [CallStart(kind="function_call", name="look"), CallDelta("{}")],
    [CallStart(kind="custom_tool_call", name="patch"), CallDelta("x")],
]
PIECES: list[list[Delta]] = [
    *CALLS,
    [TextDelta("text")],
    [RefusalDelta("no")],
    [ReasoningDelta("hm")],
    [SummaryDelta("in short")],
    [ItemEnd()],
]
ENDS = [Finish(), Finish(reason="length"), Finish(reason="content_filter")]

ENDINGS = ["half_close", "drain", "age", "drop"]
APPENDABLE = ["open", "draining", "aged"]
"""Where a held turn can still be answered."""
BYTES = [NO_BOUND, NO_BOUND, 12_000, 800]
"""How much of what waits an owner may have."""
LANES_OF = [None, "a", "b"]

lanes = st.sampled_from(LANES_OF)
numbers = st.integers(0, 10**6)
"""Picks one of however many there are then."""


class AnyConnection(RuleBasedStateMachine):
    """A line to which clients, engines, the store and time do whatever they like.

    ``Lockstep`` audits each event as it is read. At the end everything is brought to its end,
    and the chains that engines were asked to continue are compared with what was sent.
    """

    def __init__(self) -> None:
        super().__init__()
        self.line = Lockstep()
        self.count = 0
        self.queued: dict[str | None, list[str]] = {}
        """Responses of each lane in the order of their creates."""
        self.appended: dict[str, list[list[str]]] = {}
        """What was appended to a held response, leg by leg."""
        self.steers: dict[str, list[str]] = {}
        """Accepted and not yet used."""
        self.dropped = False

    @initialize(
        merge=st.booleans(),
        active=st.integers(1, 3),
        queue=st.integers(1, 4),
        bytes_=st.sampled_from(BYTES),
    )
    def open(self, merge: bool, active: int, queue: int, bytes_: int) -> None:
        limits = Limits(active=active, queue=queue, lanes=2, steers=2, held_timeout=50.0)
        queued = Share(each=bytes_)
        self.line = Lockstep(limits=limits, merge=merge, store_answers=False, queued=queued)

    def _fresh(self) -> str:
        """A text that nobody has said yet."""
        self.count += 1
        return f"text-{self.count}"

    def _turns(self) -> list[Turn]:
        return list(self.line.turns.values())

    def _outputs(self, turn: Turn | None) -> list[dict[str, Any]]:
        """Whatever answers the open calls of a turn."""
        if turn is None or turn.node is None:
            return []
        kinds = {"function_call": "function_call_output"}
        return [
            {**output(call_id), "type": kinds.get(call.type, "custom_tool_call_output")}
            for call_id, call in turn.node.open_calls.items()
        ]

    def _held(self) -> list[Turn]:
        return [turn for turn in self._turns() if turn.state == "held"]

    # The client.

    @rule(
        lane=lanes,
        parent=st.sampled_from(["none", "latest", "latest", "any"]),
        which=numbers,
        answers=st.sampled_from([True, True, False]),
        store=st.booleans(),
        append=st.booleans(),
        extra=st.sampled_from(EXTRAS),
    )
    def create(
        self,
        lane: str | None,
        parent: str,
        which: int,
        answers: bool,
        store: bool,
        append: bool,
        extra: dict[str, Any],
    ) -> None:
        named = None
        if parent == "any" and (turns := self._turns()):
            named = turns[which % len(turns)]
        elif parent == "latest" and (tip := self.line.connection.memory.latest(lane)) is not None:
            named = self.line.turns[tip.response_id]
        members = {"store": store, "append": append, "event_id": self._fresh(), **extra}
        if named is not None:
            members["previous_response_id"] = named.id
        items = [*(self._outputs(named) if answers else []), user(self._fresh())]
        made = self.line.create(items, lane=lane, **members)
        if made:
            self.queued.setdefault(lane, []).append(made)

    @precondition(lambda self: self._held())
    @rule(which=numbers, right=st.sampled_from([True, True, False]))
    def answer_calls(self, which: int, right: bool) -> None:
        held = self._held()
        turn = held[which % len(held)]
        items = [*(self._outputs(turn) if right else []), user(self._fresh())]
        self.line.append(*items, lane=turn.lane)
        if right and self.line.connection.state in APPENDABLE:
            said = [word(decode(msgspec.json.encode(item))) for item in items]
            joined = [*said, *self.steers.pop(turn.id, [])]
            self.appended.setdefault(turn.id, []).append(joined)

    @rule(lane=lanes)
    def append(self, lane: str | None) -> None:
        """To a lane that may hold nothing; where it does, no call is answered."""
        made = self.line.append(user(self._fresh()), lane=lane)
        if made:
            self.queued.setdefault(lane, []).append(made)

    @rule(which=numbers, by=st.sampled_from(["id", "event", "lane"]))
    def cancel(self, which: int, by: str) -> None:
        turns = self._turns()
        if by == "lane" or not turns:
            self.line.cancel()
            return
        turn = turns[which % len(turns)]
        if by == "id":
            self.line.cancel(response_id=turn.id)
        else:
            lane = {} if turn.lane is None else {"stream_id": turn.lane}
            self.line.cancel(event_id=turn.request.event_id, **lane)

    @rule(which=numbers, running=st.booleans())
    def steer(self, which: int, running: bool) -> None:
        turns = self._turns()
        if running:
            turns = [turn for turn in turns if turn.placed or turn.state == "held"]
        turn = turns[which % len(turns)] if turns else None
        text, before = self._fresh(), len(turn.steers) if turn else 0
        self.line.steer(turn.id if turn else "resp_x", text)
        if turn is not None and len(turn.steers) > before:
            self.steers.setdefault(turn.id, []).append(f"user: {text}")

    @rule()
    def stall(self) -> None:
        self.line.reading = False

    @rule()
    def read(self) -> None:
        self.line.reading = True
        self.line.read()

    # The engine and the store.

    @precondition(lambda self: self.line.sampling)
    @rule(
        which=numbers,
        pieces=st.lists(st.sampled_from(PIECES), max_size=4),
        end=st.none() | st.sampled_from(ENDS),
    )
    def say(self, which: int, pieces: list[list[Delta]], end: Finish | None) -> None:
        sampling = self.line.sampling
        turn = self.line.turns[sampling[which % len(sampling)]]
        step: list[Delta] = [TEN] if turn.state == "starting" else []
        for piece in pieces if turn.settings and turn.settings.generate else []:
            for delta in piece:
                if isinstance(delta, TextDelta):
                    delta = TextDelta(self._fresh())
                elif isinstance(delta, CallStart):
                    delta = CallStart(kind=delta.kind, name=self._fresh())
                step.append(delta)
        self.line.say(turn.id, *step, *([] if end is None else [end]))

    @precondition(lambda self: self.line.sampling)
    @rule(which=numbers, kinds=st.lists(st.sampled_from(CALLS), min_size=1, max_size=2))
    def call(self, which: int, kinds: list[list[Delta]]) -> None:
        """A whole answer of calls, as agents get them most of the time."""
        self.say(which, kinds, Finish())

    @precondition(lambda self: self.line.sampling)
    @rule(which=numbers)
    def break_down(self, which: int) -> None:
        sampling = self.line.sampling
        self.line.fail(sampling[which % len(sampling)])

    @precondition(lambda self: self.line.saves)
    @rule(works=st.booleans())
    def commit(self, works: bool) -> None:
        self.line.saved(self.line.saves.pop(0), None if works else ERROR)
        self.line.settle()

    @precondition(lambda self: self.line.loads)
    @rule()
    def load(self) -> None:
        self.line.loaded(self.line.loads.pop(0))
        self.line.settle()

    # Time and ends.

    @rule(seconds=st.sampled_from([0.0, 0.5, 2.0, 60.0]))
    def wait(self, seconds: float) -> None:
        self.line.wait(seconds)

    @precondition(lambda self: len(self.line.asked) > 5)
    @rule(how=st.sampled_from(ENDINGS))
    def end(self, how: str) -> None:
        if how == "half_close":
            self.line.half_close()
        elif how == "drain":
            self.line.drain(10.0)
        elif how == "age":
            self.line.age()
        else:
            self.line.read()
            self.line.drop()
            self.dropped = True

    def _starting(self) -> list[str]:
        turns = self.line.turns
        return [each for each in self.line.sampling if turns[each].state == "starting"]

    @precondition(lambda self: self._starting())
    @rule(which=numbers)
    def fold(self, which: int) -> None:
        """A history is folded away before the engine samples."""
        starting = self._starting()
        turn = self.line.turns[starting[which % len(starting)]]
        self.line.connection.folded(turn, Fold(items=ITEMS))
        self.line.settle()
        assert turn.node is not None
        assert turn.node.context() == ITEMS

    # What always holds.

    @invariant()
    def books_are_right(self) -> None:
        self.line.check()
        busy = ("starting", "sampling", "steered")
        for turn in self._turns():
            assert turn.placed is (turn.state in busy)
        for lane, turns in self.line.lanes().items():
            bound = self.line.connection.limits.queue
            assert len(self.line.connection._lanes.get(lane).queue) <= bound + 1
            assert "resolving" not in {turn.state for turn in turns}

    @invariant()
    def lanes_are_first_in_first_out(self) -> None:
        """A drop ends those that wait at once, and before one that is just being saved."""
        lived = [each for each in self.line.records if each.outcome != "disconnected"]
        for created in self.queued.values():
            ended = [each.response_id for each in lived if each.response_id in created]
            assert ended == created[: len(ended)]

    @invariant()
    def a_place_is_never_left_empty(self) -> None:
        if self.line.connection.waiting:
            assert not self.line.connection.admission.has_place

    @invariant()
    def nothing_runs_on_a_closed_line(self) -> None:
        if self.line.closed is not None:
            assert self.line.sampling == []
            left = [turn for turns in self.line.lanes().values() for turn in turns]
            saving = ("saving", "ended")
            assert all(turn.state in saving for turn in left), "only what was being saved"
        if self.dropped:
            assert self.line.connection.outgoing.empty

    def teardown(self) -> None:
        self._bring_to_its_end()
        assert self.line.closed is not None
        self.read()
        made = [each for each in self.line.made if each.startswith("resp_")]
        assert sorted(made) == sorted(each.response_id for each in self.line.records)
        announced = self.line.audit.by_response
        if not self.dropped:
            assert all(self.line.audit.ended(each) for each in announced)
        for response_id in {sample.turn for sample in self.line.asked}:
            self._compare_chain(self.line.turns[response_id])
        memory = self.line.connection.memory
        latest = filter(None, map(memory.latest, {None, *LANES_OF}))
        held = {link for tip in latest for link in tip.node.path()}
        assert memory.size == sum(link.size for link in held), "what has ended holds nothing"
        self.line.connection.let_go()
        assert memory.size == 0
        assert self.line.connection.queued.taken == 0, "nothing waits any more"

    def _bring_to_its_end(self) -> None:
        self.line.half_close()
        for _ in range(500):
            while self.line.loads:
                self.load()
            while self.line.saves:
                self.commit(works=True)
            if self.line.closed is not None and not self.line.loads and not self.line.saves:
                return
            for turn_id in self.line.sampling:
                first = self.line.turns[turn_id].state == "starting"
                self.line.say(turn_id, *([TEN] if first else []), Finish())

    def _compare_chain(self, turn: Turn) -> None:
        """Each prompt was the parent's chain, the input, then what was said, in true order."""
        expected, _ = self._grown(turn)
        asked = [words(each.prompt.chain) for each in self.line.asked if each.turn == turn.own_id]
        assert asked == expected[: len(asked)]
        for context in expected:
            texts = [each for each in context if "text-" in each]
            assert len(texts) == len(set(texts)), "nothing is in a context twice"

    def _grown(self, turn: Turn) -> tuple[list[list[str]], list[str]]:
        """What each sampling continued, and the chain at the end, by what was sent alone."""
        parent = [] if turn.follows is None else self._grown(self.line.turns[turn.follows])[1]
        request = turn.request
        own = decode_input(request.input) if request.input else []
        contexts = [[*parent, *map(word, own), *map(word, turn.extra)]]
        legs = self._legs(turn.id)
        appended = self.appended.get(turn.id, [])
        for leg, answer in zip(legs, appended, strict=False):
            contexts.append([*self._joined(turn, contexts[-1], leg), *answer])
        last = legs[len(appended)] if len(legs) > len(appended) else []
        return contexts, self._joined(turn, contexts[-1], last)

    def _joined(self, turn: Turn, chain: list[str], leg: list[str]) -> list[str]:
        """The chain with a sampling's items: what is not stored begins anew where it folds."""
        if "compaction" not in leg or (turn.settings is not None and turn.settings.store):
            return [*chain, *leg]
        return leg[len(leg) - 1 - leg[::-1].index("compaction") :]

    def _legs(self, response_id: str) -> list[list[str]]:
        """What a response said and the chain keeps, sampling by sampling, as it was sent."""
        legs: list[list[str]] = [[]]
        for event in self.line.audit.by_response.get(response_id, []):
            if isinstance(event, events.ResponseDone):
                legs.append([])
            if isinstance(event, events.OutputItemDone):
                item = decode(event.item)
                whole = b'"status":"completed"' in item.raw
                if whole or item.type in ("message", "compaction"):
                    legs[-1].append(word(item))
        return legs


TestAnyLine = AnyConnection.TestCase


def _live(life: AnyConnection, dice: random.Random) -> None:
    """One step of a long life, likely ones more often."""
    which = dice.randrange(10**6)
    lane = dice.choice(LANES_OF)
    steps: list[tuple[int, Callable[[], None]]] = [
        (
            8,
            lambda: life.create(
                lane,
                dice.choice(["none", "latest", "latest", "any"]),
                which,
                dice.random() < 0.9,
                dice.random() < 0.5,
                dice.random() < 0.5,
                dice.choice(EXTRAS),
            ),
        ),
        (1, lambda: life.append(lane)),
        (1, lambda: life.cancel(which, dice.choice(["id", "event", "lane"]))),
        (2, lambda: life.steer(which, dice.random() < 0.8)),
        (1, life.stall),
        (2, life.read),
        (1, lambda: life.wait(dice.choice([0.0, 0.5, 2.0, 60.0]))),
    ]
    if life._held():
        steps.append((6, lambda: life.answer_calls(which, dice.random() < 0.8)))
    if life.line.sampling:
        pieces = dice.choices(PIECES, k=dice.randrange(4))
        end = dice.choice(ENDS) if dice.random() < 0.5 else None
        steps.append((12, lambda: life.say(which, pieces, end)))
        steps.append((1, lambda: life.break_down(which)))
    if life._starting():
        steps.append((2, lambda: life.fold(which)))
    if life.line.saves:
        steps.append((8, lambda: life.commit(dice.random() < 0.9)))
    if life.line.loads:
        steps.append((8, life.load))
    weights = [weight for weight, _ in steps]
    dice.choices([step for _, step in steps], weights)[0]()


def test_a_line_lives_long_whatever_happens(repeats: Callable[[int], int]) -> None:
    """Longer than hypothesis goes: 200 steps, and in half of them one of the ends."""
    for seed in range(repeats(500)):
        dice = random.Random(seed)
        life = AnyConnection()
        bytes_ = dice.choice(BYTES)
        life.open(dice.random() < 0.5, dice.randrange(1, 4), dice.randrange(1, 5), bytes_)
        end_at = dice.randrange(400)
        for number in range(200):
            _live(life, dice)
            if number == end_at:
                life.end(dice.choice(ENDINGS))
            life.books_are_right()
            life.lanes_are_first_in_first_out()
            life.a_place_is_never_left_empty()
            life.nothing_runs_on_a_closed_line()
        life.teardown()
