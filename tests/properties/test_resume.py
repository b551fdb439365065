"""Turns that change their line: whoever reads one, wherever, and how often it is cut off.

Several lines stand under one test's hand. Drops, resumes, appends, cancels and slow readers come
in any order; what the readers of a response saw one after the other must be its whole log.
"""

import random
from collections.abc import Callable
from typing import Any

from msgspec import UNSET
from msgspec.structs import replace

from tests.support.core import TEN, Lockstep, output, user, waiting_bytes
from tieline import events
from tieline.codecs.json import encode
from tieline.errors import ApiError
from tieline_server.core import effects
from tieline_server.core.connection.connection import Connection
from tieline_server.core.create.limits import Limits, Share
from tieline_server.core.deltas import (
    CallDelta,
    CallStart,
    Delta,
    Finish,
    ItemEnd,
    ReasoningDelta,
    TextDelta,
)
from tieline_server.core.history.chain import ChainHead
from tieline_server.core.history.holdings import Budget
from tieline_server.core.stream.replay_log import Replayed, ReplayLog, ReplayLogs
from tieline_server.core.turn.turn import Turn
from tieline_server.core.values import TurnRecord

LANES = [None, "a", "b"]
WINDOW = 120.0
GOES_ON = ("completed", "incomplete", "cancelled")

PIECES: list[list[Delta]] = [
    [TextDelta("text")],
    [TextDelta("te"), TextDelta("xt")],
    [ReasoningDelta("hm")],
    [ItemEnd()],
    [CallStart(kind="function_call", name="look"), CallDelta("{}")],
]
ENDS = [Finish(), Finish(), Finish(reason="length")]


class Loose:
    """No audit of a single line: a response's events are spread over several."""

    def __init__(self) -> None:
        self.by_response: dict[str, list[events.Event]] = {}
        self.loose: list[events.Event] = []

    def take(self, event: events.Event) -> None:
        """One more event, which the world has sorted already."""
        self.loose.append(event)

    def ended(self, response_id: str) -> bool:
        """Nobody asks here."""
        return False


class Session:
    """What one reader saw of one response, from when it asked until it was cut off."""

    def __init__(self, response_id: str, line: Lockstep) -> None:
        self.response_id = response_id
        self.line = line
        self.events: list[events.Event] = []
        self.next = 0
        self.told = False
        """Whether it heard that another reads it now."""


def bare(event: events.Event) -> bytes:
    """An event without its reader's lane."""
    return encode(replace(event, stream_id=UNSET))


class Member(Lockstep):
    """One line of several: the world carries out what it asks for."""

    def settle(self) -> None:
        """The world does."""


class Noted(ReplayLogs):
    """Tells the world of each turn that begins to keep its events."""

    def __init__(self, world: "World") -> None:
        super().__init__()
        self._world = world

    def begin(self, turn: Replayed, *, owner: str, key: str | None, size: int) -> ReplayLog:
        """As the replay logs do."""
        kept = super().begin(turn, owner=owner, key=key, size=size)
        assert isinstance(turn, Turn)
        self._world.begun(turn, kept)
        return kept


class World:
    """Some lines of one process, their shelters, and what their readers saw."""

    def __init__(self, seed: int, *, lines: int = 3, active: int = 2) -> None:
        self.dice = random.Random(seed)
        self.budget = Budget()
        self.queued = Share()
        """Of all lines, as in a process: a turn that waits may move."""
        self.logs = Noted(self)
        self.limits = Limits(active=active, queue=3, lanes=2, resume_window=WINDOW)
        self.made = 0
        self.now = 100.0
        self.steps: dict[str, Lockstep] = {}
        """Id of a connection -> what drives it."""
        self.lines: list[Lockstep] = []
        self.shelters: list[Lockstep] = []
        self.gone: list[Lockstep] = []
        self.held: list[tuple[Lockstep, effects.Effect]] = []
        """Claims, loads and saves that are not answered yet."""
        self.asking: dict[effects.TurnId, Turn] = {}
        """Turns that effects have named, by their own ids."""
        self.keys: dict[bytes, tuple[str, bytes]] = {}
        self.kept: dict[str, Turn] = {}
        """Responses whose events are kept, by id."""
        self.logged: dict[str, ReplayLog] = {}
        self.whole: dict[str, list[events.Event]] = {}
        """The uncut log of each response, copied as it grows."""
        self.found: dict[bytes, str] = {}
        """Event without its lane -> the response whose log it is in."""
        self.sessions: list[Session] = []
        self.current: dict[tuple[int, str | None], Session] = {}
        """(line, lane) -> what is read there."""
        self.starts: set[tuple[int, str | None, str, int | None]] = set()
        """(line, lane, response, behind which number): all that was asked for."""
        self.last: dict[str, int] = {}
        """Response -> the last number that its latest reader saw."""
        self.asked: list[tuple[Lockstep, effects.Follow]] = []
        self.records: list[TurnRecord] = []
        self.released: list[str] = []
        self.left: set[str] = set()
        """Responses that have left a line on which they ran: its reader hears no more of them."""
        self.moved = 0
        for _ in range(lines):
            self.open()

    # Connections.

    def _line(self, *, reads: bool = True) -> Lockstep:
        self.made += 1
        step = Member(limits=self.limits, seed=self.made, store_answers=False)
        step.now, step.unix_time = self.now, 1_700_000_000.0 + self.now
        before = step.connection
        step.connection = Connection(
            limits=self.limits,
            catalog=before.catalog,
            new_id=before.new_id,
            sealer=before.sealer,
            merge=self.dice.random() < 0.5,
            budget=self.budget,
            queued=self.queued,
            logs=self.logs,
        )
        self.steps[step.connection.id] = step
        step._at()
        step.audit = Loose()  # type: ignore[assignment]
        step.reading = False
        return step

    def open(self) -> None:
        """One more line with a client."""
        self.lines.append(self._line())

    def every(self) -> list[Lockstep]:
        """All lines that there ever were."""
        return [*self.lines, *self.shelters, *self.gone]

    # Effects, as the runtime carries them out.

    def settle(self) -> None:
        """Carries out what all lines ask for, until they are quiet."""
        while any(step.connection.effects for step in self.every()):
            for step in self.every():
                while taken := step.connection.take_effects():
                    for effect in taken:
                        self._carry_out(step, effect)
        self._copy_logs()

    def begun(self, turn: Turn, kept: ReplayLog) -> None:
        """A turn keeps its events from here on."""
        assert turn.id not in self.kept
        self.kept[turn.id] = turn
        self.logged[turn.id] = kept
        self.starts.add((id(self.steps[turn.host.id]), turn.lane, turn.id, None))

    def _carry_out(self, step: Lockstep, effect: effects.Effect) -> None:
        named = getattr(effect, "turn", None)
        if named is not None and (asking := step.connection.turns.get(named)) is not None:
            self.asking[named] = asking
        if isinstance(effect, effects.Claim | effects.Load | effects.Save):
            self.held.append((step, effect))
        elif isinstance(effect, effects.Follow):
            self.asked.append((step, effect))
            where = (id(step), self.asking[effect.turn].lane)
            self.starts.add((*where, effect.response_id, effect.after))
        elif isinstance(effect, effects.Outlive):
            turn = step.connection.turns.pop(effect.turn)
            self.left.add(turn.id)
            self._shelter(turn)
        elif isinstance(effect, effects.Record):
            self.records.append(effect.record)
            step.records.append(effect.record)
        elif isinstance(effect, effects.Release):
            self.released.append(effect.turn)
            self.keys = {key: own for key, own in self.keys.items() if own[0] != effect.turn}
        elif isinstance(effect, effects.CancelSource):
            self._cancel(effect.response_id, effect.owner)
        elif isinstance(effect, effects.Sample):
            if (asking := self.asking.get(effect.turn)) is not None:
                assert asking.host is step.connection, "who samples is on the line that asks for it"
        elif isinstance(effect, effects.Close):
            assert step.closed is None, "a line closes once"
            step.closed = effect

    def _shelter(self, turn: Turn) -> None:
        shelter = self._line()
        self.shelters.append(shelter)
        shelter.connection.shelter(turn, WINDOW)

    def _cancel(self, response_id: str, owner: str) -> None:
        for step in self.every():
            step._at()
            if step.connection.cut(response_id, "cancelled", owner=owner) is not None:
                return

    def _copy_logs(self) -> None:
        for response_id, log in self.logged.items():
            if log.whole:
                old = self.whole.setdefault(response_id, [])
                for event in log.after(None)[len(old) :]:
                    assert event.sequence_number == len(old), "an event's place is its number"
                    old.append(event)
                    assert self.found.setdefault(bare(event), response_id) == response_id

    # What the store, the journal and readers answer.

    def answer(self) -> None:
        """One of what waits is answered."""
        if not self.held:
            return
        _, effect = self.held.pop(self.dice.randrange(len(self.held)))
        assert isinstance(effect, effects.Claim | effects.Load | effects.Save)
        turn = self.asking[effect.turn]
        step = self.steps[turn.host.id]
        step._at()
        if isinstance(effect, effects.Claim):
            own = (effect.turn, effect.body)
            holder, body = self.keys.setdefault(effect.key, own)
            step.connection.claimed(turn, holder, same=body == effect.body)
        elif isinstance(effect, effects.Load):
            step.connection.loaded(turn, None, {})
        else:
            error = ApiError.of("server_error", "No.") if self.dice.random() < 0.1 else None
            step.connection.saved(turn, error)
        self.settle()

    def follow(self) -> None:
        """One who asked for another's events gets them, or the response itself."""
        if not self.asked:
            return
        at = self.dice.randrange(len(self.asked))
        step, effect = self.asked[at]
        reader = self.asking[effect.turn]
        if reader.state != "following":
            del self.asked[at]
            return
        turn = self.kept.get(effect.response_id)
        log = self.logged.get(effect.response_id)
        step._at()
        if log is None or not log.whole:
            del self.asked[at]
            step.connection.lost(reader, ApiError.of("response_not_found", "No."))
        elif effect.moves and turn is not None and not turn.ended:
            del self.asked[at]
            self._take_over(step, effect, turn)
        elif log.ended:
            del self.asked[at]
            assert turn is not None
            step.connection.relayed(reader, log.after(effect.after))
            tip = None
            if effect.moves and turn.status in GOES_ON and turn.node is not None:
                tip = ChainHead(
                    turn.id, turn.node, owner=turn.principal.owner, settings=turn.settings
                )
            step.connection.followed(reader, tip)
        self.settle()

    def _take_over(self, step: Lockstep, effect: effects.Follow, turn: Turn) -> None:
        source = self.steps[turn.host.id]
        source._at()
        assert source.connection.give(turn.id) is turn
        step.connection.take(turn, self.asking[effect.turn], effect.after)
        self.moved += 1

    # What clients do.

    def pick(self) -> Lockstep | None:
        """A line that is open."""
        open_ones = [each for each in self.lines if each.connection.state == "open"]
        return self.dice.choice(open_ones) if open_ones else None

    def send(self, step: Lockstep, kind: str, **members: Any) -> None:
        """A client event."""
        step.now = self.now
        step.send(kind, **members)
        self.settle()

    def create(self) -> None:
        """A create that can be resumed, or not, on any lane."""
        step = self.pick()
        if step is None:
            return
        dice = self.dice
        members: dict[str, Any] = {
            "model": "m",
            "store": dice.random() < 0.3,
            "append": dice.random() < 0.5,
            "input": [user("hi")],
            **dice.choice([{}, {"resumable": True}, {"resumable": True}, {"idempotency_key": "k"}]),
            **dice.choice([{}, {}, {}, {"timeout_ms": 3000}, {"previous_response_id": "resp_x"}]),
        }
        lane = dice.choice(LANES)
        tip = step.connection.memory.latest(lane)
        if tip is not None and dice.random() < 0.5 and not tip.node.open_calls:
            members["previous_response_id"] = tip.response_id
        if lane is not None:
            members["stream_id"] = lane
        self.send(step, "response.create", **members)

    def resume(self) -> None:
        """A resume of any response behind what its last reader saw."""
        step = self.pick()
        names = [each for each in self.logged if self.logged[each].whole]
        if step is None or not names:
            return
        named = self.dice.choice(names)
        after = self.dice.choice([None, self.last.get(named)])
        lane = self.dice.choice(LANES)
        members: dict[str, Any] = {"response_id": named}
        if after is not None:
            members["after"] = after
        if lane is not None:
            members["stream_id"] = lane
        self.send(step, "response.resume", **members)

    def append(self) -> None:
        """Outputs for a held turn."""
        step = self.pick()
        held = [] if step is None else [t for t in step.connection._lanes.turns() if t.held]
        if step is None or not held:
            return
        turn = self.dice.choice(held)
        assert turn.node is not None
        members: dict[str, Any] = {"input": [output(each) for each in turn.node.open_calls]}
        if turn.lane is not None:
            members["stream_id"] = turn.lane
        self.send(step, "response.append", **members)

    def cancel(self) -> None:
        """A cancel of whatever a lane has, or of any response by id."""
        step = self.pick()
        if step is None:
            return
        lane = self.dice.choice(LANES)
        named = self.dice.choice([None, *self.logged])
        members = {"response_id": named} if named else {"stream_id": lane} if lane else {}
        self.send(step, "response.cancel", **members)

    def steer(self) -> None:
        """A steer of what runs."""
        step = self.pick()
        turns = [] if step is None else [t for t in step.connection._lanes.turns() if t.placed]
        if step is not None and turns:
            named = self.dice.choice(turns).id
            self.send(step, "response.steer", previous_response_id=named, input="shorter")

    def end(self) -> None:
        """A line ends in some way, and another one is opened."""
        step = self.pick()
        if step is None:
            return
        how = self.dice.choice(["drop", "drop", "drop", "half_close", "drain", "age", "expel"])
        step._at()
        if how == "drain":
            step.connection.drain(10.0)
        elif how == "expel":
            step.connection.expel(
                ApiError.of("invalid_api_key", "No."), event_id=None, stream_id=None
            )
        else:
            getattr(step.connection, how)()
        self.settle()
        if how in ("drop", "expel"):
            self.lines.remove(step)
            self.gone.append(step)
        self.open()

    def read(self) -> None:
        """A client reads what there is for it."""
        self.take(self.dice.choice(self.lines))

    # Engines and time.

    def placed(self) -> list[Turn]:
        """What samples, wherever it is."""
        return [t for step in self.every() for t in step.connection._lanes.turns() if t.placed]

    def say(self, *, end: bool | None = None) -> None:
        """An engine says something, and maybe ends."""
        placed = self.placed()
        if not placed:
            return
        turn = self.dice.choice(placed)
        step: list[Delta] = [TEN] if turn.state == "starting" else []
        for piece in self.dice.choices(PIECES, k=self.dice.randrange(4)):
            step += piece
        if end if end is not None else self.dice.random() < 0.3:
            step.append(self.dice.choice(ENDS))
        line = self.steps[turn.host.id]
        line._at()
        line.connection.deltas(turn, step)
        self.settle()

    def break_down(self) -> None:
        """An engine breaks."""
        if placed := self.placed():
            turn = self.dice.choice(placed)
            line = self.steps[turn.host.id]
            line._at()
            line.connection.engine_failed(turn, ApiError.of("server_error", "No."))
            self.settle()

    def wait(self, seconds: float) -> None:
        """Time passes for all."""
        self.now += seconds
        for step in self.every():
            step.now, step.unix_time = self.now, 1_700_000_000.0 + self.now
            step._at()
            step.connection.tick()
        self.settle()

    # What is checked.

    def take(self, step: Lockstep) -> None:
        """A client reads all there is."""
        while (event := step.connection.outgoing.next()) is not None:
            where = (id(step), None if event.stream_id is UNSET else event.stream_id)
            if isinstance(event, events.ErrorEvent) and event.error.code == "resumed_elsewhere":
                session = self.current.pop(where, None)
                if session is not None:
                    session.told = True
                continue
            response_id = self.found.get(bare(event))
            if response_id is not None:
                self._see(step, where, response_id, event)

    def _see(
        self, step: Lockstep, where: tuple[int, str | None], response_id: str, event: events.Event
    ) -> None:
        number = event.sequence_number
        assert number is not UNSET
        session = self.current.get(where)
        same = session is not None and session.response_id == response_id
        if session is None or not same or number != session.next:
            asked = (*where, response_id, number - 1) in self.starts
            asked = asked or (number == 0 and (*where, response_id, None) in self.starts)
            assert asked or event.TERMINAL, "no gap, none twice"
            session = self.current[where] = Session(response_id, step)
            self.sessions.append(session)
        assert bare(event) == bare(self.whole[response_id][number])
        session.events.append(event)
        session.next = number + 1
        self.last[response_id] = number
        if event.TERMINAL:
            del self.current[where]

    def check(self) -> None:
        """What holds between any two steps."""
        for step in self.every():
            turns = list(step.connection._lanes.turns())
            assert step.connection.admission._active == sum(turn.placed for turn in turns)
            assert all(turn.host is step.connection for turn in turns)
            assert all(turn in turns for turn in step.connection.waiting)
            assert not step.connection.waiting or not step.connection.admission.has_place
        waiting = sum(waiting_bytes(step.connection) for step in self.every())
        assert self.queued.taken == waiting, "what waits is counted, wherever its turn has moved"
        ids = [record.response_id for record in self.records]
        assert len(ids) == len(set(ids)), "one record a response"
        assert len(self.released) == len(set(self.released)), "a key ends once"
        assert self.logs.size == sum(log.size for log in self.logged.values())
        busy = [turn for turn in self.kept.values() if not turn.ended]
        for turn in busy:
            assert self.steps[turn.host.id] in self.every()
            assert turn in list(self.steps[turn.host.id].connection._lanes.turns()), (
                "it is on one line"
            )

    def finish(self) -> None:
        """Brings everything to its end, and looks at what is left."""
        for step in self.lines:
            step._at()
            step.connection.half_close()
        self.settle()
        for _ in range(50):
            for _ in range(20):
                self.answer()
                self.follow()
                self.say(end=True)
            for step in self.lines:
                self.take(step)
            if all(step.connection.state == "closed" for step in self.every()):
                break
            self.wait(WINDOW)
        self.check()
        self._check_ends()

    def _check_ends(self) -> None:
        for step in self.every():
            assert step.connection.state == "closed"
            assert step.connection.admission.idle
            assert not step.connection.waiting
            step.connection.let_go()
            assert step.connection.memory.size == 0
        assert self.budget.size == 0
        assert self.queued.taken == 0
        outcomes = {record.response_id: record.outcome for record in self.records}
        for response_id, log in self.logged.items():
            over = outcomes[response_id] in ("refused", "disconnected")
            assert log.whole is not over
            assert log.ended is not over
            if log.whole:
                assert log.after(None)[-1].TERMINAL
                assert [event.TERMINAL for event in log.after(None)].count(True) == 1
            log.drop()
        assert self.logs.size == 0
        for session in self.sessions:
            if session.line in self.lines and not session.told:
                over = outcomes[session.response_id] in ("refused", "disconnected")
                moved = session.line.connection.state == "closed" and not over
                if moved and not session.events[-1].TERMINAL:
                    assert session.response_id in self.left, "a reader hears the end"


STEPS: list[tuple[int, Callable[[World], None]]] = [
    (8, World.create),
    (5, World.resume),
    (4, World.append),
    (1, World.cancel),
    (2, World.steer),
    (2, World.end),
    (8, World.read),
    (14, World.say),
    (1, World.break_down),
    (8, World.answer),
    (6, World.follow),
    (1, lambda world: world.wait(world.dice.choice([0.0, 0.5, 4.0, 60.0]))),
]


def test_whoever_reads_a_response_sees_its_one_log_however_often_it_moves(
    repeats: Callable[[int], int],
) -> None:
    moved = 0
    for seed in range(repeats(1000)):
        world = World(seed, lines=2 + seed % 2)
        weights = [weight for weight, _ in STEPS]
        for _ in range(120):
            world.dice.choices([step for _, step in STEPS], weights)[0](world)
            world.check()
        world.finish()
        moved += world.moved
    assert moved > repeats(1000), "it is no proof where nothing moves"
