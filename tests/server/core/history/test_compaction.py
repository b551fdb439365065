"""What survives folding, and a turn that goes on behind it."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.core import TEN, Lockstep, output, user, word, words
from tieline import events
from tieline.items import Item, decode
from tieline_server.core.deltas import Finish, ReasoningDelta, TextDelta, UsageCounter
from tieline_server.core.history import compaction
from tieline_server.core.history.compaction import Fold, Plan, plan, plan_within, window_of


def item(members: dict[str, Any]) -> Item:
    return decode(msgspec.json.encode(members))


def says(text: str, role: str = "assistant") -> Item:
    return item({**user(text), "role": role})


def asks(text: str) -> Item:
    return item(user(text))


def calls(call_id: str, name: str = "f") -> Item:
    return item({"type": "function_call", "call_id": call_id, "name": name, "arguments": "{}"})


def answers(call_id: str, text: str = "done") -> Item:
    return item(output(call_id, text))


def kept(*context: Item, **how: Any) -> list[str]:
    return [word(each) for each in plan(context, **{"room": 0, "users": 0, **how}).kept]


class TestPlan:
    def test_with_room_enough_all_stays_in_order(self) -> None:
        context = (asks("a"), says("b"), calls("c"), answers("c"), says("d"), asks("e"))
        assert plan(context, room=10_000) == Plan(kept=context, folded=())

    def test_without_room_the_last_question_and_the_instructions_stay(self) -> None:
        context = (says("rules", "developer"), asks("a"), says("b"), asks("c"), says("d"))
        assert kept(*context) == ["developer: rules", "user: c"]

    def test_tools_that_came_with_the_input_stay(self) -> None:
        tools = item({"type": "additional_tools", "tools": []})
        assert kept(tools, asks("a"), says("b"), asks("c")) == ["additional_tools", "user: c"]

    def test_up_07_so_do_those_that_a_search_has_found(self) -> None:
        members = {"call_id": "s1", "execution": "client"}
        search = item({"type": "tool_search_call", "arguments": {}, **members})
        found = item({"type": "tool_search_output", "tools": [], **members})
        chosen = plan((asks("a"), search, found, says("b"), asks("c")), room=0, users=0)
        assert chosen.kept == (search, found, asks("c"))

    def test_a_call_that_waits_for_its_output_stays(self) -> None:
        context = (asks("a"), calls("1"), answers("1"), calls("2", "open"), says("b"))
        assert kept(*context) == ["user: a", "call open"]

    def test_what_came_since_the_model_spoke_stays_with_the_calls_it_answers(self) -> None:
        context = (asks("a"), calls("0"), answers("0"), says("x"), calls("1"), calls("2"))
        new = (answers("1"), answers("2"), asks("b"))
        chosen = plan((*context, *new), room=0, users=0)
        assert chosen.kept == (*context[4:], *new)

    def test_the_newest_fit_first_and_the_first_that_does_not_ends_it(self) -> None:
        context = (asks("a"), says("small"), says("large " * 100), says("b"), says("c"))
        room = sum(len(each.raw) for each in context[1:2] + context[3:])
        assert kept(*context, room=room) == ["user: a", "assistant: b", "assistant: c"]

    def test_an_output_never_stays_without_its_call(self) -> None:
        context = (asks("a"), calls("1", "f" * 500), answers("1"), says("b"))
        assert kept(*context, room=300) == ["user: a", "assistant: b"]

    def test_user_messages_have_a_part_of_the_room_or_all_they_need(self) -> None:
        context = (asks("one"), says("x"), asks("two"), says("y"), asks("three"), says("z"))
        size = len(asks("two").raw)
        assert kept(*context, users=size, room=size) == ["user: two", "user: three"]
        assert kept(*context, users=None) == ["user: one", "user: two", "user: three"]

    def test_a_summary_stands_where_the_folded_part_ended(self) -> None:
        context = (says("rules", "system"), asks("a"), says("old"), asks("b"), says("new"))
        chosen = plan(context, room=len(says("new").raw), users=None)
        assert [word(each) for each in chosen.with_summary("S")] == [
            "system: rules",
            "user: a",
            "assistant: Summary of what came before: S",
            "user: b",
            "assistant: new",
        ]

    @given(st.lists(st.sampled_from("uaorst"), max_size=24), st.integers(0, 2000))
    def test_whatever_the_history_what_stays_is_whole(self, kinds: list[str], room: int) -> None:
        """u: user, a: assistant, o: call with output, r: call alone, s: system, t: long text."""
        context: list[Item] = []
        for number, kind in enumerate(kinds):
            call_id = f"c{number}"
            context += {
                "u": [asks(f"u{number}")],
                "a": [says(f"a{number}")],
                "t": [says("long " * 50)],
                "s": [says("s", "system")],
                "o": [calls(call_id), answers(call_id)],
                "r": [calls(call_id)],
            }[kind]
        chosen = plan(context, room=room, users=room // 2)
        called = {each.opens for each in chosen.kept}
        assert all(each.answers in called for each in chosen.kept if each.answers is not None)
        open_calls = [f"c{number}" for number, kind in enumerate(kinds) if kind == "r"]
        assert set(open_calls) <= called
        assert len(chosen.kept) + len(chosen.folded) == len(context)
        places = [next(i for i, e in enumerate(context) if e is each) for each in chosen.kept]
        assert places == sorted(places)


class TestThreshold:
    context = (asks("a" * 400), says("b" * 400), asks("c" * 400), says("d" * 400), asks("e"))

    def test_half_of_the_threshold_is_left(self) -> None:
        chosen = plan_within(self.context, tokens=400, threshold=300, tail=True)
        assert chosen is not None
        size = sum(len(each.raw) for each in chosen.kept)
        whole = sum(len(each.raw) for each in self.context)
        assert 0 < size <= whole * 300 / 400 / 2

    def test_without_a_tail_the_models_own_words_go(self) -> None:
        chosen = plan_within(self.context, tokens=400, threshold=399, tail=False)
        assert chosen is not None
        assert all(word(each).startswith("user") for each in chosen.kept)

    def test_where_nothing_can_go_there_is_no_plan(self) -> None:
        only = (says("rules", "system"), asks("a" * 10_000))
        assert plan_within(only, tokens=5000, threshold=1000, tail=True) is None

    def test_what_one_item_cannot_hold_is_left_alone(self) -> None:
        large = (says("x"), asks("a" * compaction.MOST))
        assert plan_within(large, tokens=10**7, threshold=1000, tail=True) is None


def test_a_window_has_its_user_messages_in_front_and_remembers_their_places() -> None:
    users, rest = window_of((says("s", "system"), asks("a"), says("b"), asks("c"), says("d")))
    assert [word(each) for each in users] == ["user: a", "user: c"]
    assert [word(each) for each in rest.items] == ["system: s", "assistant: b", "assistant: d"]
    assert (rest.behind, rest.users, rest.whole) == ((0, 1, 2), 2, False)


def test_a_model_is_not_asked_about_calls_that_wait() -> None:
    context = (asks("a"), calls("1"), answers("1"), calls("2"))
    assert compaction.without_open_calls(context) == context[:3]


def test_a_summarys_tokens_are_counted_without_its_ends() -> None:
    counter = UsageCounter()
    compaction.count(counter, [TEN, ReasoningDelta("x", 2), TextDelta("y", 3), Finish()])
    usage = counter.usage(None)
    assert (usage.input_tokens, usage.output_tokens) == (10, 5)
    assert usage.output_tokens_details.reasoning_tokens == 2


class TestTurn:
    """A turn whose history is folded before it samples."""

    FOLD = Fold(items=(says("remember"), asks("go on")))

    def folded(self, driver: Lockstep, turn: str, fold: Fold = FOLD) -> None:
        driver.connection.folded(driver.turns[turn], fold)
        driver.settle()

    def test_it_begins_with_the_item_and_goes_on_from_what_is_kept(self) -> None:
        driver = Lockstep()
        first = driver.create("long")
        driver.answer(first, "story")
        second = driver.create("go on", previous_response_id=first)
        self.folded(driver, second)
        assert driver.types(second) == [
            "created", "in_progress", "output_item.added", "output_item.done",
        ]  # fmt: skip
        driver.answer(second, "on it")
        third = driver.create("and?", previous_response_id=second)
        head = driver.prompt(third).chain
        assert [word(each) for each in head.context()] == [
            "assistant: remember", "user: go on", "assistant: on it", "user: and?",
        ]  # fmt: skip
        assert words(head) == ["compaction", "assistant: on it", "user: and?"]

    def test_what_is_not_stored_does_not_grow_by_folding(self) -> None:
        driver = Lockstep()
        named: dict[str, str] = {}
        for _ in range(5):
            turn = driver.create("long", **named)
            self.folded(driver, turn)
            driver.answer(turn, "ok")
            named = {"previous_response_id": turn}
        head = driver.connection.memory.latest(None)
        assert head is not None
        assert words(head.node) == ["compaction", "assistant: ok"]
        assert len(head.node.branch.ids) == 2
        assert head.node.turn == 5

    def test_what_is_stored_are_its_own_links_with_the_sealed_item(self) -> None:
        driver = Lockstep()
        turn = driver.create("long", store=True)
        self.folded(driver, turn)
        driver.answer(turn, "ok")
        (saved,) = driver.saves
        own = [each.type for each in saved.record.head.node.items_of_chain()]
        assert own == ["message", "compaction", "message"]
        assert driver.response(turn).output == [
            added.item for added in driver.of(turn, events.OutputItemDone)
        ]

    def test_a_summary_is_in_its_usage_and_not_in_its_budget(self) -> None:
        driver = Lockstep()
        turn = driver.create("long", max_output_tokens=20)
        compaction.count(driver.turns[turn].usage_counter, [TEN, TextDelta("sum", 15)])
        self.folded(driver, turn)
        driver.answer(turn, "ok")
        usage = driver.response(turn).usage
        assert usage is not None
        assert (usage.input_tokens, usage.output_tokens) == (20, 16)
        assert driver.turns[turn].budget() == 19

    @pytest.mark.parametrize("end", ["cancel", "drop"])
    def test_one_that_is_cut_while_it_is_summarised_has_used_that(self, end: str) -> None:
        driver = Lockstep()
        turn = driver.create("long")
        compaction.count(driver.turns[turn].usage_counter, [TEN, TextDelta("sum", 3)])
        getattr(driver, end)()
        assert driver.record(turn).usage.input_tokens == 10
        assert driver.record(turn).usage.output_tokens == 3
        assert driver.stopped == [turn]

    def test_a_fold_that_comes_too_late_changes_nothing(self) -> None:
        driver = Lockstep()
        turn = driver.create("long")
        driver.say(turn, TEN)
        self.folded(driver, turn)
        driver.say(turn, TextDelta("ok"), Finish())
        assert len(driver.response(turn).output) == 1

    def test_each_leg_of_a_held_turn_may_fold(self) -> None:
        driver = Lockstep()
        turn = driver.create("long", append=True)
        (call_id,) = driver.call(turn, "look")
        driver.append(output(call_id))
        self.folded(driver, turn)
        driver.answer(turn, "seen")
        kinds = [msgspec.json.decode(raw)["type"] for raw in driver.response(turn).output]
        assert kinds == ["function_call", "compaction", "message"]

    def test_a_refusal_after_it_is_a_failed_response(self) -> None:
        driver = Lockstep()
        turn = driver.create("long")
        self.folded(driver, turn)
        driver.fail(turn, "context_length_exceeded")
        assert driver.status(turn) == ("failed", None)
