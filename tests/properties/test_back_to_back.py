"""Both cores back to back, without I/O: what the client makes of a line is what the server did."""

import random
from collections.abc import Callable
from typing import Any, ClassVar, Final

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from tests.support.core import TEN, output
from tests.support.pair import BareProtoWire, JsonWire, Pair, ProtoWire, Story, Wire
from tieline.errors import ApiError
from tieline_client._asks import AskState
from tieline_server.core.create.limits import Limits
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

WIRES: Final[list[Callable[[], Wire]]] = [ProtoWire, BareProtoWire, JsonWire]
LANES = [None, "a", "b"]


@pytest.fixture(params=WIRES, ids=["proto", "proto-bare", "json"])
def pair(request: pytest.FixtureRequest) -> Pair:
    """Both cores, joined by each wire in turn."""
    return Pair(request.param())


def said(text: str) -> list[Delta]:
    """A whole answer of text."""
    return [TEN, TextDelta(text), Finish()]


def called(*names: str) -> list[Delta]:
    """A whole answer of function calls."""
    calls = [(CallStart(kind="function_call", name=name), CallDelta("{}")) for name in names]
    return [TEN, *(delta for call in calls for delta in call), Finish()]


def test_a_conversation_of_two_turns(pair: Pair) -> None:
    first = pair.create("My name is Ada.")
    pair.speak(first, *said("Hello Ada."))
    second = pair.create("And?", previous_response_id=first.ask.response_id)
    pair.speak(second, *said("You are Ada."))
    assert (first.end, second.end) == ("ended", "ended")
    assert second.fold.response.previous_response_id == first.ask.response_id
    assert [first.fold.text, second.fold.text] == ["Hello Ada.", "You are Ada."]
    pair.check()


def test_a_rollout_of_two_tool_rounds_is_one_response(pair: Pair) -> None:
    story = pair.create("Look around.", append=True)
    for _ in range(2):
        pair.speak(story, *called("look", "listen"))
        assert (story.state, len(story.calls())) == (AskState.HELD, 2)
        pair.check()
        pair.answer(story)
        pair.check()
    pair.speak(story, *said("All is quiet."))
    assert (story.end, len(story.folds), len(story.fold.response.output)) == ("ended", 1, 5)
    pair.check()


def test_a_wrong_append_is_reported_and_the_turn_is_still_held(pair: Pair) -> None:
    story = pair.create("Look.", append=True)
    pair.speak(story, *called("look"))
    pair.answer(story, output("call_of_nobody"))
    assert (story.reports, story.state) == (["tool_call_not_found"], AskState.HELD)
    pair.answer(story)
    pair.speak(story, *said("Seen."))
    assert story.status == ("completed", None)
    pair.check()


def test_lanes_run_side_by_side_and_each_in_order(pair: Pair) -> None:
    first, second = pair.create("one", lane="a"), pair.create("two", lane="a")
    other = pair.create("three", lane="b")
    pair.speak(other, *said("3"))
    assert (first.end, second.end, other.end) == (None, None, "ended")
    pair.speak(first, *said("1"))
    pair.speak(second, *said("2"))
    assert [story.fold.text for story in (first, second, other)] == ["1", "2", "3"]
    pair.check()


def test_a_cancel_by_event_id_ends_the_create_that_waits_and_no_other(pair: Pair) -> None:
    first, second, third = pair.create("one"), pair.create("two"), pair.create("three")
    pair.cancel(second)
    pair.check()
    pair.speak(first, *said("1"))
    assert second.status == ("cancelled", None)
    pair.speak(third, *said("3"))
    assert [first.status, third.status] == [("completed", None)] * 2
    pair.check()


def test_a_steer_goes_on_in_the_same_ask_before_the_next_create(pair: Pair) -> None:
    story, following = pair.create("Tell me."), pair.create("next")
    pair.speak(story, TEN, TextDelta("Once upon"))
    pair.steer(story, "shorter")
    pair.speak(story, ItemEnd(), TextDelta(" a time"))
    assert (story.status, story.state) == (("incomplete", "steered"), AskState.SUCCEEDING)
    pair.check()
    pair.speak(story, *said("Short."))
    assert (story.end, len(story.folds), story.fold.text) == ("ended", 2, "Short.")
    pair.speak(following, *said("ok"))
    assert following.end == "ended"
    pair.check()


def test_a_steer_that_crosses_the_end_harms_neither_its_ask_nor_the_next(pair: Pair) -> None:
    """Refused when another create of the lane runs already, it is nobody's concern."""
    story, following = pair.create("one"), pair.create("two")
    pair.speak(story, TEN, TextDelta("1"))
    pair.steer(story, now=False)
    pair.server.say(story.ask.response_id or "", Finish())
    pair.server.say(pair.turns_of(following)[-1].id, TEN, TextDelta("2"))
    pair.settle()
    assert (story.status, story.end) == (("completed", None), "ended")
    pair.steer(following)
    pair.speak(following, ItemEnd(), TextDelta("more"))
    pair.speak(following, *said("short"))
    assert (len(following.folds), following.fold.text) == (2, "short")
    pair.check()


def test_a_second_steer_that_comes_late_is_refused_beside_the_successor(pair: Pair) -> None:
    story = pair.create("one")
    pair.speak(story, TEN, TextDelta("1"))
    pair.steer(story, "first")
    pair.steer(story, "second", now=False)
    pair.server.say(story.ask.response_id or "", ItemEnd(), TextDelta("more"))
    pair.settle()
    assert (story.types[-1], story.state) == ("steer.failed", AskState.SUCCEEDING)
    pair.speak(story, *said("2"))
    assert (story.end, story.fold.text) == ("ended", "2")
    pair.check()


def test_an_append_that_crosses_the_end_of_its_hold_starts_nothing(pair: Pair) -> None:
    story = pair.create("Look.", append=True)
    pair.speak(story, *called("look"))
    pair.answer(story, now=False)
    pair.server.wait(1000.0)
    pair.settle()
    assert story.status == ("incomplete", "held_timeout")
    (refusal,) = pair.server.error_events
    assert refusal.error.code == "response_already_completed"
    assert pair.server.sampling == []
    following = pair.create("next")
    pair.speak(following, *said("ok"))
    assert following.end == "ended"
    pair.check()


def test_a_cancelled_rollout_is_not_begun_anew_by_the_append_behind(pair: Pair) -> None:
    story = pair.create("Look.", append=True)
    pair.speak(story, *called("look"))
    pair.cancel(story, now=False)
    pair.answer(story)
    assert (story.status, story.end) == (("cancelled", None), "ended")
    assert pair.server.sampling == []
    pair.check()


def test_a_create_behind_a_held_turn_supersedes_it(pair: Pair) -> None:
    held = pair.create("Look.", append=True)
    pair.speak(held, *called("look"))
    story = pair.create(*held.outputs(), "now", previous_response_id=held.ask.response_id)
    assert (held.status, held.end) == (("incomplete", "superseded"), "ended")
    pair.speak(story, *said("Seen."))
    assert story.end == "ended"
    pair.check()


def test_an_error_ends_the_create_that_it_names(pair: Pair) -> None:
    running = pair.create("one")
    bad = pair.create("two", temperature=9.0)
    unknown = pair.create("three", lane="a", model="nobody")
    broken = pair.create("four", lane="a")
    pair.server.fail(pair.turns_of(broken)[-1].id, "engine_unavailable")
    pair.settle()
    codes = [story.error and story.error.error.code for story in (bad, unknown, broken)]
    assert codes == ["decimal_above_max_value", "model_not_found", "engine_unavailable"]
    pair.speak(running, *said("1"))
    assert running.end == "ended"
    pair.check()


def test_a_response_that_breaks_after_its_start_fails(pair: Pair) -> None:
    story = pair.create("one")
    pair.speak(story, TEN, TextDelta("par"))
    pair.server.fail(story.ask.response_id or "")
    pair.settle()
    assert (story.status, story.end) == (("failed", None), "ended")
    assert story.fold.text == "par"
    pair.check()


def test_a_half_close_lets_what_runs_end_and_then_ends_the_line(pair: Pair) -> None:
    running, held = pair.create("one"), pair.create("two", lane="a", append=True)
    pair.speak(held, *called("look"))
    pair.half_close()
    assert (held.status, pair.over) == (("cancelled", None), False)
    pair.speak(running, *said("1"))
    assert (running.end, pair.over, pair.client.pending) == ("ended", True, [])
    pair.check()


def test_a_drain_refuses_what_is_new_and_finishes_what_runs(pair: Pair) -> None:
    held = pair.create("one", append=True)
    pair.speak(held, *called("look"))
    pair.server.drain(30.0)
    late = pair.create("two", lane="a")
    assert late.error is not None
    assert late.error.error.code == "server_draining"
    pair.answer(held)
    pair.speak(held, *said("1"))
    assert (held.status, pair.over) == (("completed", None), True)
    pair.check()


def test_a_broken_connection_ends_all_that_is_pending_once(pair: Pair) -> None:
    running, waiting = pair.create("one"), pair.create("two")
    unsent = pair.create("three", lane="a", now=False)
    pair.drop()
    assert [story.end for story in (running, waiting, unsent)] == ["lost"] * 3
    assert {record.outcome for record in pair.server.records} == {"disconnected"}
    pair.check()


def test_many_turns_leave_nothing_behind(pair: Pair) -> None:
    """What the client and the codecs of a line remember does not grow with its turns."""
    for number in range(200):
        lane = LANES[number % 3]
        story = pair.create("Look.", lane=lane, append=True)
        pair.speak(story, *called("look"))
        pair.answer(story)
        if number % 5 == 0:
            pair.cancel(story)
        else:
            pair.speak(story, TEN, TextDelta("ok"))
            pair.steer(story)
            pair.speak(story, ItemEnd(), TextDelta("more"))
            pair.speak(story, *said("Short."))
        assert story.end == "ended"
    assert pair.client.pending == []
    assert pair.client._asks == {}
    assert set(pair.client._lanes) == set(LANES)
    assert not any(lane.current or lane.waiting for lane in pair.client._lanes.values())
    assert pair.server.connection.next_deadline() is None


ERROR = ApiError.of("server_error", "It broke.")
EXTRAS: list[dict[str, Any]] = [
    *({} for _ in range(16)),
    {"timeout_ms": 2000},
    {"max_output_tokens": 3},
    {"max_tool_calls": 1},
    {"generate": False},
    {"model": "stubborn"},
    {"model": "nobody"},
    {"temperature": 9.0},
    {"previous_response_id": "resp_x"},
]
CALLS: list[list[Delta]] = [
    [CallStart(kind="function_call", name="look"), CallDelta("{}")],
    [CallStart(kind="custom_tool_call", name="patch"), CallDelta("x")],
]
PIECES: list[list[Delta]] = [
    *CALLS,
    [TextDelta("text"), TextDelta(" and more")],
    [RefusalDelta("no")],
    [ReasoningDelta("hm")],
    [SummaryDelta("in short")],
    [ItemEnd()],
    [ItemEnd()],
]
ENDS = [Finish(), Finish(), Finish(reason="length"), Finish(reason="content_filter")]
ENDINGS = ["half_close", "drain", "drop"]

lanes = st.sampled_from(LANES)
numbers = st.integers(0, 10**6)
"""Picks one of however many there are then."""


class AnyPair(RuleBasedStateMachine):
    """A client, an engine, a store, time and the network do whatever they like.

    Requests and events arrive when the network says so, so that they pass each other.
    ``Pair`` compares each event's owner as it arrives; :meth:`agreement` compares the rest.
    """

    wire: ClassVar[Callable[[], Wire]] = ProtoWire

    def __init__(self) -> None:
        super().__init__()
        self.pair = Pair(type(self).wire())

    @initialize(merge=st.booleans(), active=st.integers(1, 3), queue=st.integers(1, 4))
    def open(self, merge: bool, active: int, queue: int) -> None:
        limits = Limits(
            active=active, queue=queue, lanes=2, steers=2, held_timeout=50.0, merge_from=2
        )
        self.pair = Pair(type(self).wire(), limits=limits, merge=merge, store_answers=False)

    # The client's user.

    def _stories(self, *states: AskState) -> list[Story]:
        stories = self.pair.stories.values()
        return [s for s in stories if not states or s.state in states]

    def _speaks(self) -> bool:
        return not self.pair.half_closed and not self.pair.over

    @precondition(lambda self: self._speaks())
    @rule(
        lane=lanes,
        follow=st.booleans(),
        append=st.booleans(),
        store=st.booleans(),
        extra=st.sampled_from(EXTRAS),
    )
    def create(
        self, lane: str | None, follow: bool, append: bool, store: bool, extra: dict[str, Any]
    ) -> None:
        """A create that continues what the client last saw on the lane, or begins anew."""
        seen = [s for s in self._stories() if s.folds and s.ask.lane == lane]
        members: dict[str, Any] = {"append": append, "store": store}
        items: list[object] = []
        if follow and seen:
            members["previous_response_id"] = seen[-1].fold.response.id
            items = [*seen[-1].outputs()]
        self.pair.create(*items, "hi", lane=lane, now=False, **{**members, **extra})

    @precondition(lambda self: self._speaks())
    @rule(lane=lanes)
    def go_on(self, lane: str | None) -> None:
        if self.pair.client.held(lane) is None:
            self.pair.go_on("more", lane=lane, now=False)

    @precondition(lambda self: self._speaks() and self._stories(AskState.HELD))
    @rule(which=numbers, right=st.sampled_from([True, True, True, False]))
    def answer(self, which: int, right: bool) -> None:
        held = self._stories(AskState.HELD)
        story = held[which % len(held)]
        said = {"type": "message", "role": "user", "content": "never mind"}
        self.pair.answer(story, *([] if right else [said]), now=False)

    @precondition(lambda self: self._speaks() and self.pair.stories)
    @rule(which=numbers, pending=st.sampled_from([True, True, True, False]))
    def cancel(self, which: int, pending: bool) -> None:
        stories = self._stories()
        if pending:
            stories = [s for s in stories if not s.ask.ended] or stories
        self.pair.cancel(stories[which % len(stories)], now=False)

    @precondition(lambda self: self._speaks() and self._steerable())
    @rule(which=numbers)
    def steer(self, which: int) -> None:
        stories = self._steerable()
        self.pair.steer(stories[which % len(stories)], now=False)

    def _steerable(self) -> list[Story]:
        return self._stories(AskState.RUNNING, AskState.HELD, AskState.RESUMING)

    # The network.

    @precondition(lambda self: self.pair.up)
    @rule(count=st.integers(1, 4))
    def carry_up(self, count: int) -> None:
        for _ in range(min(count, len(self.pair.up))):
            self.pair.carry_up()

    @precondition(lambda self: self.pair.down)
    @rule(count=st.integers(1, 16))
    def carry_down(self, count: int) -> None:
        for _ in range(min(count, len(self.pair.down))):
            self.pair.carry_down()

    @rule()
    def catch_up(self) -> None:
        self.pair.settle()

    @rule()
    def stall(self) -> None:
        self.pair.server.reading = False

    @rule()
    def write(self) -> None:
        self.pair.server.reading = True
        self.pair.server.settle()

    # The engine and the store.

    @precondition(lambda self: self.pair.server.sampling)
    @rule(
        which=numbers,
        pieces=st.lists(st.sampled_from(PIECES), max_size=3),
        end=st.none() | st.sampled_from(ENDS),
    )
    def say(self, which: int, pieces: list[list[Delta]], end: Finish | None) -> None:
        sampling = self.pair.server.sampling
        turn = self.pair.server.turns[sampling[which % len(sampling)]]
        step: list[Delta] = [TEN] if turn.state == "starting" else []
        if turn.settings is not None and turn.settings.generate:
            step += [delta for piece in pieces for delta in piece]
        self.pair.server.say(turn.id, *step, *([] if end is None else [end]))

    @precondition(lambda self: self.pair.server.sampling)
    @rule(which=numbers, kinds=st.lists(st.sampled_from(CALLS), min_size=1, max_size=2))
    def call(self, which: int, kinds: list[list[Delta]]) -> None:
        """A whole answer of calls, as agents get them most of the time."""
        self.say(which, kinds, Finish())

    @precondition(lambda self: self.pair.server.sampling)
    @rule(which=numbers)
    def break_down(self, which: int) -> None:
        sampling = self.pair.server.sampling
        self.pair.server.fail(sampling[which % len(sampling)])

    @precondition(lambda self: self.pair.server.saves)
    @rule(works=st.sampled_from([True, True, False]))
    def commit(self, works: bool) -> None:
        server = self.pair.server
        server.saved(server.saves.pop(0), None if works else ERROR)
        server.settle()

    @precondition(lambda self: self.pair.server.loads)
    @rule()
    def load(self) -> None:
        server = self.pair.server
        server.loaded(server.loads.pop(0))
        server.settle()

    # Time and ends.

    @rule(seconds=st.sampled_from([0.0, 0.5, 2.0, 60.0]))
    def wait(self, seconds: float) -> None:
        self.pair.server.wait(seconds)

    @precondition(lambda self: len(self.pair.stories) > 4 and not self.pair.over)
    @rule(how=st.sampled_from(ENDINGS))
    def end(self, how: str) -> None:
        if how == "drain":
            self.pair.server.drain(10.0)
        elif how == "drop":
            self.pair.drop()
        elif not self.pair.half_closed:
            self.pair.half_close(now=False)

    # What always holds.

    @invariant()
    def agreement(self) -> None:
        self.pair.check()

    def teardown(self) -> None:
        pair = self.pair
        if self._speaks():
            pair.half_close(now=False)
        for _ in range(500):
            pair.settle()
            self._push_on()
            if pair.over and not pair.server.saves and not pair.server.loads:
                break
        pair.check()
        assert pair.over
        assert pair.client.pending == []
        assert pair.client._asks == {}
        for story in pair.stories.values():
            if not pair.dropped and story.event_id in pair.taken:
                assert story.end in ("ended", "refused"), story.ask
            if story.end != "lost":
                pair.check_end(story)

    def _push_on(self) -> None:
        server = self.pair.server
        while server.loads:
            self.load()
        while server.saves:
            self.commit(works=True)
        for turn_id in server.sampling:
            first = server.turns[turn_id].state == "starting"
            server.say(turn_id, *([TEN] if first else []), Finish())


class AnyBarePair(AnyPair):
    """The same; responses come without their output."""

    wire = BareProtoWire


class AnyJsonPair(AnyPair):
    """The same in JSON."""

    wire = JsonWire


TestAnyPair = AnyPair.TestCase
TestAnyBarePair = AnyBarePair.TestCase
TestAnyJsonPair = AnyJsonPair.TestCase


def _live(life: AnyPair, dice: random.Random) -> None:
    """One step of a long life, likely ones more often."""
    which = dice.randrange(10**6)
    lane = dice.choice(LANES)
    pair = life.pair
    steps: list[tuple[int, Callable[[], None]]] = [
        (2, life.catch_up),
        (1, life.stall),
        (2, life.write),
        (1, lambda: life.wait(dice.choice([0.0, 0.5, 2.0, 60.0]))),
    ]
    if pair.up:
        steps.append((8, lambda: life.carry_up(dice.randrange(1, 4))))
    if pair.down:
        steps.append((12, lambda: life.carry_down(dice.randrange(1, 12))))
    if life._speaks():
        steps += _spoken(life, dice, which, lane)
    if pair.server.sampling:
        pieces = dice.choices(PIECES, k=dice.randrange(4))
        end = dice.choice(ENDS) if dice.random() < 0.3 else None
        steps.append((10, lambda: life.say(which, pieces, end)))
        steps.append((4, lambda: life.call(which, dice.choices(CALLS, k=dice.randrange(1, 3)))))
        steps.append((1, lambda: life.break_down(which)))
    if pair.server.saves:
        steps.append((6, lambda: life.commit(dice.random() < 0.9)))
    if pair.server.loads:
        steps.append((6, life.load))
    dice.choices([step for _, step in steps], [weight for weight, _ in steps])[0]()


def _spoken(
    life: AnyPair, dice: random.Random, which: int, lane: str | None
) -> list[tuple[int, Callable[[], None]]]:
    """What the client's user may do now."""
    flags = [dice.random() < 0.5 for _ in range(3)]
    steps: list[tuple[int, Callable[[], None]]] = [
        (5, lambda: life.create(lane, *flags, dice.choice(EXTRAS))),
        (1, lambda: life.go_on(lane)),
    ]
    if life.pair.stories:
        steps.append((1, lambda: life.cancel(which, dice.random() < 0.8)))
    if life._stories(AskState.HELD):
        steps.append((5, lambda: life.answer(which, dice.random() < 0.8)))
    if life._steerable():
        steps.append((8, lambda: life.steer(which)))
    return steps


@pytest.mark.parametrize("life_of", [AnyPair, AnyBarePair, AnyJsonPair])
def test_both_sides_agree_for_long_whatever_happens(
    life_of: type[AnyPair], repeats: Callable[[int], int]
) -> None:
    """Longer than hypothesis goes: 150 steps, and in half of them one of the ends."""
    for seed in range(repeats(400)):
        dice = random.Random(seed)
        life = life_of()
        life.open(dice.random() < 0.5, dice.randrange(1, 4), dice.randrange(1, 5))
        end_at = dice.randrange(300)
        for number in range(150):
            _live(life, dice)
            if number == end_at and not life.pair.over:
                life.end(dice.choice(ENDINGS))
            life.agreement()
        life.teardown()
