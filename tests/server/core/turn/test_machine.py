"""The life of one response: its events, its held turns, its early ends."""

from typing import Any

import pytest

from tests.support.core import TEN, Lockstep, output, user
from tieline import events
from tieline.errors import ApiError
from tieline.responses import Usage
from tieline_server.core.create.limits import Limits
from tieline_server.core.deltas import (
    Accepted,
    CallDelta,
    CallStart,
    Finish,
    ItemEnd,
    ReasoningDelta,
    TextDelta,
)

LOOK = CallStart(kind="function_call", name="look")
PATCH = CallStart(kind="custom_tool_call", name="patch")


def held(line: Lockstep, *names: str, **members: Any) -> tuple[str, list[str]]:
    """A held turn: its response id, and the ids of its open calls."""
    turn = line.create("go", append=True, **members)
    return turn, line.call(turn, *names)


class TestStart:
    def test_created_waits_for_the_engines_acceptance(self) -> None:
        line = Lockstep()
        turn = line.create("hi", event_id="e")
        assert line.types(turn) == []
        line.say(turn, TEN)
        assert line.types(turn) == ["created", "in_progress"]
        (created,) = line.of(turn, events.ResponseCreated)
        assert created.event_id == "e"
        assert (created.response.status, created.response.usage) == ("in_progress", None)
        assert created.response.output == []

    def test_but_no_longer_than_500_ms(self) -> None:
        line = Lockstep()
        turn = line.create("hi")
        line.wait(0.4)
        assert line.types(turn) == []
        assert line.line.next_deadline() == pytest.approx(line.now + 0.1)
        line.wait(0.1)
        assert line.types(turn) == ["created", "in_progress"]
        assert line.line.next_deadline() is None
        line.answer(turn)
        assert line.types(turn).count("in_progress") == 1

    def test_a_refusal_of_the_engine_before_created_is_an_error_and_no_response(self) -> None:
        line = Lockstep()
        turn = line.create("hi", event_id="e", lane="a")
        line.fail(turn, "engine_unavailable")
        (refused,) = line.error_events
        assert (refused.status, refused.error.code) == (503, "engine_unavailable")
        assert (refused.sequence_number, refused.stream_id) == (0, "a")
        assert refused.error.event_id == "e"
        assert line.types(turn) == []

    @pytest.mark.parametrize("late", [True, False])
    def test_after_created_it_is_response_failed(self, late: bool) -> None:
        line = Lockstep()
        turn = line.create("hi")
        if late:
            line.wait(1.0)
        else:
            line.say(turn, TEN, TextDelta("half"))
        line.fail(turn, "server_error")
        assert line.types(turn)[-1] == "failed"
        response = line.response(turn)
        assert response.status == "failed"
        assert response.error is not None
        assert (response.error.code, response.error.message) == ("server_error", "It broke.")
        assert response.usage is not None
        assert line.errors == []
        assert line.stopped == [turn]

    def test_what_the_engine_took_but_may_not_tell_yet_announces_nothing_and_counts(self) -> None:
        line = Lockstep()
        turn = line.create("hi")
        line.say(turn, Accepted(input_tokens=30, held=True))
        assert line.types(turn) == []
        line.wait(1.0)
        line.fail(turn, "invalid_prompt")
        usage = line.response(turn).usage
        assert usage is not None
        assert (usage.input_tokens, usage.output_tokens) == (30, 0)
        assert line.record(turn).usage == usage

    def test_generate_false_ends_completed_without_output_and_can_be_continued(self) -> None:
        line = Lockstep()
        warm = line.create("context", generate=False)
        line.say(warm, TEN, Finish(output_tokens=0))
        assert line.types(warm) == ["created", "in_progress", "completed"]
        response = line.response(warm)
        assert response.output == []
        assert response.usage is not None
        assert (response.usage.input_tokens, response.usage.output_tokens) == (10, 0)
        turn = line.create("now", previous_response_id=warm)
        assert line.context(turn) == ["user: context", "user: now"]

    def test_generate_false_may_have_no_input_at_all(self) -> None:
        line = Lockstep()
        warm = line.create(generate=False)
        line.say(warm, TEN, Finish(output_tokens=0))
        assert line.status(warm) == ("completed", None)

    @pytest.mark.parametrize(
        ("reason", "status", "why"),
        [
            ("stop", "completed", None),
            ("length", "incomplete", "max_output_tokens"),
            ("content_filter", "incomplete", "content_filter"),
        ],
    )
    def test_why_sampling_ended_is_how_the_response_ends(
        self, reason: str, status: str, why: str | None
    ) -> None:
        line = Lockstep()
        turn = line.create("hi")
        line.answer(turn, reason=reason)
        assert line.status(turn) == (status, why)
        assert (line.response(turn).completed_at is None) is (status != "completed")

    def test_what_an_engine_says_after_its_end_is_not_heard(self) -> None:
        line = Lockstep()
        turn = line.create("hi")
        line.say(turn, TEN, TextDelta("a"), Finish(), TextDelta("b"), Finish())
        line.say(turn, TextDelta("c"))
        line.fail(turn)
        assert line.types(turn)[-1] == "completed"
        line.check()


class TestHeld:
    """The table of docs/protocol.md#the-two-shapes-of-a-turn, row by row."""

    def test_sampling_that_stops_at_client_calls_holds_the_turn(self) -> None:
        line = Lockstep()
        turn, calls = held(line)
        (done,) = line.of(turn, events.ResponseDone)
        assert line.types(turn)[-1] == "done"
        assert done.response.status == "in_progress"
        assert len(done.response.output) == 1
        assert done.response.usage.total_tokens == 11
        assert list(line.turns[turn].node.open_calls) == calls  # type: ignore[union-attr]

    @pytest.mark.parametrize("reason", ["length", "content_filter"])
    def test_sampling_that_was_cut_short_does_not(self, reason: Any) -> None:
        line = Lockstep()
        turn = line.create("go", append=True)
        line.say(turn, TEN, LOOK, CallDelta("{}"), Finish(reason=reason))
        assert line.status(turn)[0] == "incomplete"

    def test_without_append_a_call_ends_the_response(self) -> None:
        line = Lockstep()
        turn = line.create("go")
        line.call(turn)
        assert line.status(turn) == ("completed", None)

    def test_append_with_every_open_call_answered_goes_on_in_the_same_response(self) -> None:
        line = Lockstep()
        turn, (one, two) = held(line, "look", "read")
        made = line.append(output(two, "2"), output(one, "1"), user("and hurry"))
        assert made == "", "no new response"
        assert line.context(turn) == [
            "user: go",
            "call look",
            "call read",
            "output 2",
            "output 1",
            "user: and hurry",
        ]
        line.answer(turn, "all done")
        assert line.status(turn) == ("completed", None)
        response = line.response(turn)
        assert len(response.output) == 3, "appended items are not output"
        done = line.of(turn, events.OutputItemDone)
        assert [event.output_index for event in done] == [0, 1, 2]

    def test_the_chain_of_a_rollout_keeps_the_true_order(self) -> None:
        line = Lockstep()
        turn, (one,) = held(line)
        line.append(output(one, "1"))
        (two,) = line.call(turn, "read")
        line.append(output(two, "2"))
        line.answer(turn, "fine")
        after = line.create("next", previous_response_id=turn)
        assert line.context(after) == [
            "user: go",
            "call look",
            "output 1",
            "call read",
            "output 2",
            "assistant: fine",
            "user: next",
        ]

    @pytest.mark.parametrize(
        ("answers", "code"),
        [
            ([], "tool_output_missing"),
            (["one"], "tool_output_missing"),
            (["one", "two", "nope"], "tool_call_not_found"),
            (["one", "one", "two"], "duplicate_item"),
        ],
    )
    def test_a_missing_foreign_or_double_call_id_is_an_error_and_it_stays_held(
        self, answers: list[str], code: str
    ) -> None:
        line = Lockstep()
        turn, (one, two) = held(line, "look", "read")
        names = {"one": one, "two": two, "nope": "call_nope"}
        line.append(*[output(names[each]) for each in answers], event_id="e")
        (refused,) = line.of(turn, events.ErrorEvent)
        assert (refused.error.code, refused.error.param) == (code, "input")
        assert refused.error.event_id == "e"
        line.append(output(one), output(two))
        line.answer(turn)
        assert line.status(turn) == ("completed", None)

    @pytest.mark.parametrize("input", [None, 7, [7], [{"type": "function_call_output"}]])
    def test_an_append_that_cannot_be_read_leaves_it_held(self, input: object) -> None:
        line = Lockstep()
        turn, (one,) = held(line)
        line.send("response.append", input=input)
        assert len(line.of(turn, events.ErrorEvent)) == 1
        line.append(output(one))
        line.answer(turn)
        assert line.status(turn) == ("completed", None)

    def test_an_append_may_choose_tools_anew_for_what_follows(self) -> None:
        line = Lockstep()
        tools = [{"type": "function", "name": "look"}]
        turn, (one,) = held(line, tools=tools, tool_choice="required")
        line.append(output(one), tool_choice="none")
        assert line.prompt(turn).settings.tool_choice.mode == "none"
        line.answer(turn)
        assert bytes(line.response(turn).tool_choice) == b'"none"'

    def test_without_a_choice_of_its_own_it_keeps_the_last_one(self) -> None:
        line = Lockstep()
        tools = [{"type": "function", "name": "look"}]
        turn, (one,) = held(line, tools=tools, tool_choice="required")
        line.append(output(one))
        assert line.prompt(turn).settings.tool_choice.mode == "required"

    @pytest.mark.parametrize("choice", ["some", 7, {"type": "function", "name": "other"}])
    def test_a_choice_that_cannot_be_leaves_it_held(self, choice: object) -> None:
        line = Lockstep()
        turn, (one,) = held(line)
        line.append(output(one), tool_choice=choice)
        assert [param for _, param in line.errors] == ["tool_choice"]
        line.append(output(one))
        assert line.sampling == [turn]

    def test_an_append_may_name_the_held_response_and_no_other(self) -> None:
        line = Lockstep()
        turn, (one,) = held(line)
        line.append(output(one), response_id="resp_other")
        assert line.errors == [("response_not_found", "response_id")]
        line.append(output(one), response_id=turn)
        assert line.sampling == [turn]

    def test_an_append_that_names_it_again_while_it_samples_is_refused_and_ends_no_hold(
        self,
    ) -> None:
        """A client that lost its line sends its append again, not knowing that it was taken."""
        line = Lockstep()
        turn, (one,) = held(line)
        line.append(output(one), response_id=turn)
        line.append(output(one), response_id=turn)
        assert line.errors == [("response_not_active", "response_id")]
        (two,) = line.call(turn)
        line.append(output(two), response_id=turn)
        assert line.sampling == [turn]

    def test_an_append_may_refer_to_what_the_chain_has(self) -> None:
        line = Lockstep()
        turn = line.create([{**user("go"), "id": "msg_1"}], append=True)
        (one,) = line.call(turn)
        line.append(output(one), {"type": "item_reference", "id": "msg_1"})
        assert line.context(turn) == ["user: go", "call look", "output done"]

    def test_and_to_nothing_else(self) -> None:
        line = Lockstep()
        _, (one,) = held(line)
        line.append(output(one), {"type": "item_reference", "id": "msg_9"})
        assert line.errors == [("item_not_found", "input")]

    def test_a_create_on_the_lane_supersedes_it_and_then_runs(self) -> None:
        line = Lockstep()
        turn, (one,) = held(line)
        after = line.create([output(one)], previous_response_id=turn)
        assert line.status(turn) == ("incomplete", "superseded")
        assert line.sampling == [after]
        assert line.context(after) == ["user: go", "call look", "output done"]

    def test_a_create_on_another_lane_leaves_it_held(self) -> None:
        line = Lockstep()
        turn, _ = held(line)
        line.create("hi", lane="b")
        assert line.types(turn)[-1] == "done"

    def test_cancel_ends_it_at_once_with_usage(self) -> None:
        line = Lockstep()
        turn, _ = held(line)
        line.cancel()
        assert line.status(turn) == ("cancelled", None)
        assert line.response(turn).usage == line.record(turn).usage
        assert line.record(turn).usage.total_tokens == 11
        assert line.stopped == [], "nothing was sampling"

    def test_nothing_for_fifteen_minutes_ends_it(self) -> None:
        line = Lockstep()
        turn, _ = held(line)
        assert line.line.next_deadline() == line.now + 900
        line.wait(899)
        assert line.types(turn)[-1] == "done"
        line.wait(1)
        assert line.status(turn) == ("incomplete", "held_timeout")
        assert line.line.next_deadline() is None

    def test_an_answer_stops_that_clock(self) -> None:
        line = Lockstep(limits=Limits(held_timeout=10))
        turn, (one,) = held(line)
        line.append(output(one))
        line.wait(20)
        assert line.sampling == [turn]

    def test_the_line_drops_and_it_ends_without_a_word(self) -> None:
        line = Lockstep()
        turn, _ = held(line)
        line.drop()
        assert line.types(turn)[-1] == "done"
        assert line.record(turn).outcome == "disconnected"

    def test_usage_sums_over_the_whole_rollout(self) -> None:
        line = Lockstep()
        turn, (one,) = held(line)
        line.append(output(one))
        line.say(turn, Accepted(input_tokens=30, cached_tokens=20), ReasoningDelta("hm", tokens=3))
        line.say(turn, TextDelta("ok", tokens=2), Finish())
        expected = Usage.of(input=40, cached=24, output=6, reasoning=3)
        assert line.response(turn).usage == expected == line.record(turn).usage

    def test_max_output_tokens_spans_the_whole_rollout(self) -> None:
        line = Lockstep()
        turn = line.create("go", append=True, max_output_tokens=10)
        assert line.prompt(turn).max_output_tokens == 10
        line.say(turn, TEN, LOOK, CallDelta("{}", tokens=7), Finish())
        (one,) = line.turns[turn].node.open_calls  # type: ignore[union-attr]
        line.append(output(one))
        assert line.prompt(turn).max_output_tokens == 3
        line.say(turn, TEN, LOOK, CallDelta("{}", tokens=3), Finish())
        (two,) = line.turns[turn].node.open_calls  # type: ignore[union-attr]
        line.append(output(two))
        assert line.status(turn) == ("incomplete", "max_output_tokens")
        assert len(line.asked) == 2, "nothing is asked of the engine for no tokens"

    def test_max_tool_calls_spans_the_whole_rollout(self) -> None:
        line = Lockstep()
        turn = line.create("go", append=True, max_tool_calls=2)
        (one,) = line.call(turn)
        line.append(output(one))
        line.say(turn, TEN, LOOK, CallDelta("{}"), LOOK, CallDelta("{}"), Finish())
        assert line.status(turn) == ("incomplete", "max_tool_calls")
        assert len(line.response(turn).output) == 2

    def test_the_last_call_that_was_allowed_is_whole(self) -> None:
        line = Lockstep()
        turn = line.create("go", max_tool_calls=1)
        line.say(turn, TEN, LOOK, CallDelta("{}"), LOOK)
        assert line.status(turn) == ("incomplete", "max_tool_calls")
        (item,) = line.of(turn, events.OutputItemDone)
        assert b'"status":"completed"' in bytes(item.item)
        assert line.stopped == [turn]
        assert len(line.turns[turn].node.open_calls) == 1  # type: ignore[union-attr]

    def test_a_custom_tool_call_holds_as_well(self) -> None:
        line = Lockstep()
        turn = line.create("go", append=True)
        line.say(turn, TEN, PATCH, CallDelta("x"), ItemEnd(), Finish())
        (call_id,) = line.turns[turn].node.open_calls  # type: ignore[union-attr]
        line.append({"type": "custom_tool_call_output", "call_id": call_id, "output": "y"})
        assert line.sampling == [turn]

    def test_a_failure_in_a_later_sampling_is_response_failed(self) -> None:
        line = Lockstep()
        turn, (one,) = held(line)
        line.append(output(one))
        line.fail(turn)
        assert line.types(turn)[-1] == "failed"
        assert line.record(turn).usage.total_tokens == 11


class TestCrossing:
    """An append that names a response which ended while the append was on its way."""

    @pytest.mark.parametrize("end", ["cancel", "held_timeout"])
    def test_it_starts_nothing_that_nobody_waits_for(self, end: str) -> None:
        line = Lockstep()
        turn, (one,) = held(line)
        if end == "cancel":
            line.cancel()
        else:
            line.wait(900)
        assert line.append(output(one), response_id=turn) == ""
        assert line.errors == [("response_already_completed", "response_id")]
        assert line.append(output(one)) in line.sampling, "who means it leaves the name out"

    def test_nor_while_the_end_is_being_saved(self) -> None:
        line = Lockstep(store_answers=False)
        turn, (one,) = held(line, store=True)
        line.cancel()
        assert line.append(output(one), response_id=turn) == ""
        assert line.errors == [("response_already_completed", "response_id")]

    def test_a_response_without_open_calls_is_simply_continued(self) -> None:
        line = Lockstep()
        turn = line.create("go", append=True)
        line.answer(turn)
        assert line.append(user("more"), response_id=turn) in line.sampling


class TestCancel:
    def test_a_running_turn_ends_with_its_partial_output_and_real_usage(self) -> None:
        line = Lockstep()
        turn = line.create("hi")
        line.say(turn, TEN, TextDelta("half"))
        line.cancel(response_id=turn)
        assert line.types(turn)[-1] == "incomplete"
        response = line.response(turn)
        assert (response.status, response.incomplete_details) == ("cancelled", None)
        assert len(response.output) == 1
        assert response.usage is not None
        assert response.usage.output_tokens == 1
        assert line.stopped == [turn]
        assert line.record(turn).outcome == "cancelled"

    def test_without_a_name_it_is_the_lanes_running_turn(self) -> None:
        line = Lockstep()
        ours, other = line.create("1", lane="a"), line.create("2", lane="b")
        line.cancel(stream_id="a")
        assert line.status(ours) == ("cancelled", None)
        assert line.sampling == [other]

    def test_also_when_its_create_had_a_name(self) -> None:
        line = Lockstep()
        turn = line.create("hi", event_id="e")
        line.cancel()
        assert line.status(turn) == ("cancelled", None)

    def test_a_create_that_still_waits_is_named_by_its_event_id(self) -> None:
        """It says so when its turn comes, to keep the lane's order."""
        line = Lockstep()
        first, second = line.create("1"), line.create("2", event_id="second")
        third = line.create("3")
        line.cancel(event_id="second")
        assert line.types(second) == []
        line.answer(first)
        assert line.types(second) == ["created", "in_progress", "incomplete"]
        assert line.status(second) == ("cancelled", None)
        assert line.sampling == [third]

    @pytest.mark.parametrize("named", ["response_id", "event_id", "lane"])
    def test_what_has_finished_gets_no_event_and_no_error(self, named: str) -> None:
        line = Lockstep()
        turn = line.create("hi", event_id="e")
        line.answer(turn)
        before = line.types(turn)
        members = {"response_id": {"response_id": turn}, "event_id": {"event_id": "e"}, "lane": {}}
        line.cancel(**members[named])
        assert line.types(turn) == before
        assert line.error_events == []

    def test_a_response_that_the_line_does_not_have_is_cancelled_where_it_runs(self) -> None:
        line = Lockstep()
        line.answer(line.create("hi"))
        line.cancel(response_id="resp_x")
        assert line.cancelled_sources == ["resp_x"]
        assert line.error_events == []

    @pytest.mark.parametrize("members", [{"event_id": "x"}, {"stream_id": "x"}])
    def test_what_is_unknown_is_response_not_found(self, members: dict[str, str]) -> None:
        line = Lockstep()
        line.answer(line.create("hi"))
        line.cancel(**members)
        (refused,) = line.error_events
        assert (refused.status, refused.error.code) == (404, "response_not_found")

    def test_a_response_is_cancelled_from_any_lane(self) -> None:
        line = Lockstep()
        turn = line.create("hi", lane="a")
        line.cancel(response_id=turn, stream_id="b")
        assert line.status(turn) == ("cancelled", None)

    def test_a_second_cancel_is_silent(self) -> None:
        line = Lockstep()
        turn = line.create("hi")
        line.say(turn, TEN)
        for _ in range(2):
            line.cancel(response_id=turn)
        assert line.types(turn) == ["created", "in_progress", "incomplete"]
        assert line.errors == []

    def test_an_owner_cancels_by_id_from_elsewhere_and_nobody_else_does(self) -> None:
        line = Lockstep()
        turn = line.create("hi")
        line.say(turn, TEN)
        assert not line.line.cut(turn, "cancelled", owner="other")
        assert not line.line.cut("resp_x", "cancelled", owner="local")
        assert line.sampling == [turn]
        queued = line.create("next")
        cut = line.line.cut(turn, "cancelled", owner="local")
        line.settle()
        assert cut == line.response(turn)
        assert line.status(turn) == ("cancelled", None)
        assert line.sampling == [queued]

    def test_so_does_one_that_is_queued(self) -> None:
        line = Lockstep()
        first, second = line.create("1"), line.create("2")
        assert line.line.cut(second, "cancelled", owner="local") is not None
        line.settle()
        line.answer(first)
        assert line.status(second) == ("cancelled", None)


class TestDeadline:
    def test_a_running_turn_ends_incomplete_with_usage(self) -> None:
        line = Lockstep()
        turn = line.create("hi", timeout_ms=2000)
        line.say(turn, TEN, TextDelta("half"))
        line.wait(1.9)
        assert line.sampling == [turn]
        line.wait(0.2)
        assert line.status(turn) == ("incomplete", "deadline")
        assert line.response(turn).usage == line.record(turn).usage
        assert line.stopped == [turn]

    def test_one_that_waits_for_a_place_ends_as_well(self) -> None:
        line = Lockstep(limits=Limits(active=1))
        running = line.create("1", lane="a")
        turn = line.create("2", lane="b", timeout_ms=1000)
        line.wait(1)
        assert line.types(turn) == ["created", "queued", "in_progress", "incomplete"]
        assert line.status(turn) == ("incomplete", "deadline")
        assert line.sampling == [running]

    def test_one_that_is_queued_says_so_when_its_turn_comes(self) -> None:
        line = Lockstep()
        first, second = line.create("1"), line.create("2", timeout_ms=1000)
        line.wait(5)
        assert line.types(second) == []
        assert line.line.next_deadline() is None, "and is looked at no more"
        line.answer(first)
        assert line.status(second) == ("incomplete", "deadline")

    def test_it_counts_from_the_create_and_over_held_time(self) -> None:
        line = Lockstep()
        turn = line.create("go", append=True, timeout_ms=1000)
        line.call(turn)
        line.wait(1)
        assert line.status(turn) == ("incomplete", "deadline")

    def test_while_the_store_is_asked_it_ends_too(self) -> None:
        line = Lockstep(store_answers=False)
        turn = line.create("hi", previous_response_id="resp_x", timeout_ms=1000)
        line.wait(1)
        assert line.status(turn) == ("incomplete", "deadline")
        line.loaded(line.loads[0])
        line.settle()
        assert line.errors == []


class TestSaving:
    def test_the_terminal_event_follows_the_commit(self) -> None:
        line = Lockstep(store_answers=False)
        turn = line.create("hi", store=True)
        line.answer(turn, "hello")
        assert line.types(turn)[-1] == "output_item.done"
        (save,) = line.saves
        assert save.record.response.status == "completed"
        assert save.record.owner == "local"
        assert save.record.input_from is None
        line.saved(save)
        line.settle()
        assert line.types(turn)[-1] == "completed"

    def test_a_failed_commit_is_a_failed_response(self) -> None:
        line = Lockstep(store_answers=False)
        turn = line.create("hi", store=True)
        line.answer(turn)
        line.saved(line.saves[0], ApiError.of("server_error", "The response could not be stored."))
        line.settle()
        assert line.types(turn)[-1] == "failed"
        response = line.response(turn)
        assert response.completed_at is None
        assert response.error is not None
        assert line.record(turn).outcome == "failed"
        assert line.line.memory.find(turn) is None

    def test_what_is_saved_is_the_responses_own_links(self) -> None:
        line = Lockstep()
        first = line.create("one", store=True)
        line.answer(first)
        second = line.create("two", store=True, previous_response_id=first)
        line.answer(second)
        saved = line.stored["local", second]
        assert saved.input_from is line.stored["local", first].head.node
        assert saved.response == line.response(second)

    def test_store_false_is_never_saved(self) -> None:
        line = Lockstep()
        line.answer(line.create("hi"))
        assert line.saves == []

    def test_while_it_is_saved_nothing_else_can_end_it(self) -> None:
        line = Lockstep(store_answers=False)
        turn = line.create("hi", store=True, timeout_ms=1000)
        line.answer(turn)
        line.wait(10)
        line.cancel(response_id=turn)
        line.saved(line.saves[0])
        line.settle()
        assert line.status(turn) == ("completed", None)
        assert line.errors == []

    def test_what_was_cancelled_is_stored_as_cancelled(self) -> None:
        line = Lockstep()
        turn = line.create("hi", store=True)
        line.say(turn, TEN, TextDelta("half"))
        line.cancel()
        saved = line.stored["local", turn].response
        assert (saved.status, saved.incomplete_details) == ("cancelled", None)
        assert saved.usage == line.record(turn).usage
