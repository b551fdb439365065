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


def held(driver: Lockstep, *names: str, **members: Any) -> tuple[str, list[str]]:
    """A held turn: its response id, and the ids of its open calls."""
    turn = driver.create("go", append=True, **members)
    return turn, driver.call(turn, *names)


class TestStart:
    def test_created_waits_for_the_engines_acceptance(self) -> None:
        driver = Lockstep()
        turn = driver.create("hi", event_id="e")
        assert driver.types(turn) == []
        driver.say(turn, TEN)
        assert driver.types(turn) == ["created", "in_progress"]
        (created,) = driver.of(turn, events.ResponseCreated)
        assert created.event_id == "e"
        assert (created.response.status, created.response.usage) == ("in_progress", None)
        assert created.response.output == []

    def test_but_no_longer_than_500_ms(self) -> None:
        driver = Lockstep()
        turn = driver.create("hi")
        driver.wait(0.4)
        assert driver.types(turn) == []
        assert driver.connection.next_deadline() == pytest.approx(driver.now + 0.1)
        driver.wait(0.1)
        assert driver.types(turn) == ["created", "in_progress"]
        assert driver.connection.next_deadline() is None
        driver.answer(turn)
        assert driver.types(turn).count("in_progress") == 1

    def test_a_refusal_of_the_engine_before_created_is_an_error_and_no_response(self) -> None:
        driver = Lockstep()
        turn = driver.create("hi", event_id="e", lane="a")
        driver.fail(turn, "engine_unavailable")
        (refused,) = driver.error_events
        assert (refused.status, refused.error.code) == (503, "engine_unavailable")
        assert (refused.sequence_number, refused.stream_id) == (0, "a")
        assert refused.error.event_id == "e"
        assert driver.types(turn) == []

    @pytest.mark.parametrize("late", [True, False])
    def test_after_created_it_is_response_failed(self, late: bool) -> None:
        driver = Lockstep()
        turn = driver.create("hi")
        if late:
            driver.wait(1.0)
        else:
            driver.say(turn, TEN, TextDelta("half"))
        driver.fail(turn, "server_error")
        assert driver.types(turn)[-1] == "failed"
        response = driver.response(turn)
        assert response.status == "failed"
        assert response.error is not None
        assert (response.error.code, response.error.message) == ("server_error", "It broke.")
        assert response.usage is not None
        assert driver.errors == []
        assert driver.stopped == [turn]

    def test_what_the_engine_took_but_may_not_tell_yet_announces_nothing_and_counts(self) -> None:
        driver = Lockstep()
        turn = driver.create("hi")
        driver.say(turn, Accepted(input_tokens=30, held=True))
        assert driver.types(turn) == []
        driver.wait(1.0)
        driver.fail(turn, "invalid_prompt")
        usage = driver.response(turn).usage
        assert usage is not None
        assert (usage.input_tokens, usage.output_tokens) == (30, 0)
        assert driver.record(turn).usage == usage

    def test_generate_false_ends_completed_without_output_and_can_be_continued(self) -> None:
        driver = Lockstep()
        warm = driver.create("context", generate=False)
        driver.say(warm, TEN, Finish(output_tokens=0))
        assert driver.types(warm) == ["created", "in_progress", "completed"]
        response = driver.response(warm)
        assert response.output == []
        assert response.usage is not None
        assert (response.usage.input_tokens, response.usage.output_tokens) == (10, 0)
        turn = driver.create("now", previous_response_id=warm)
        assert driver.context(turn) == ["user: context", "user: now"]

    def test_generate_false_may_have_no_input_at_all(self) -> None:
        driver = Lockstep()
        warm = driver.create(generate=False)
        driver.say(warm, TEN, Finish(output_tokens=0))
        assert driver.status(warm) == ("completed", None)

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
        driver = Lockstep()
        turn = driver.create("hi")
        driver.answer(turn, reason=reason)
        assert driver.status(turn) == (status, why)
        assert (driver.response(turn).completed_at is None) is (status != "completed")

    def test_what_an_engine_says_after_its_end_is_not_heard(self) -> None:
        driver = Lockstep()
        turn = driver.create("hi")
        driver.say(turn, TEN, TextDelta("a"), Finish(), TextDelta("b"), Finish())
        driver.say(turn, TextDelta("c"))
        driver.fail(turn)
        assert driver.types(turn)[-1] == "completed"
        driver.check()


class TestHeld:
    """The table of docs/protocol.md#the-two-shapes-of-a-turn, row by row."""

    def test_sampling_that_stops_at_client_calls_holds_the_turn(self) -> None:
        driver = Lockstep()
        turn, calls = held(driver)
        (done,) = driver.of(turn, events.ResponseDone)
        assert driver.types(turn)[-1] == "done"
        assert done.response.status == "in_progress"
        assert len(done.response.output) == 1
        assert done.response.usage.total_tokens == 11
        assert list(driver.turns[turn].node.open_calls) == calls  # type: ignore[union-attr]

    @pytest.mark.parametrize("reason", ["length", "content_filter"])
    def test_sampling_that_was_cut_short_does_not(self, reason: Any) -> None:
        driver = Lockstep()
        turn = driver.create("go", append=True)
        driver.say(turn, TEN, LOOK, CallDelta("{}"), Finish(reason=reason))
        assert driver.status(turn)[0] == "incomplete"

    def test_without_append_a_call_ends_the_response(self) -> None:
        driver = Lockstep()
        turn = driver.create("go")
        driver.call(turn)
        assert driver.status(turn) == ("completed", None)

    def test_append_with_every_open_call_answered_goes_on_in_the_same_response(self) -> None:
        driver = Lockstep()
        turn, (one, two) = held(driver, "look", "read")
        made = driver.append(output(two, "2"), output(one, "1"), user("and hurry"))
        assert made == "", "no new response"
        assert driver.context(turn) == [
            "user: go",
            "call look",
            "call read",
            "output 2",
            "output 1",
            "user: and hurry",
        ]
        driver.answer(turn, "all done")
        assert driver.status(turn) == ("completed", None)
        response = driver.response(turn)
        assert len(response.output) == 3, "appended items are not output"
        done = driver.of(turn, events.OutputItemDone)
        assert [event.output_index for event in done] == [0, 1, 2]

    def test_the_chain_of_a_rollout_keeps_the_true_order(self) -> None:
        driver = Lockstep()
        turn, (one,) = held(driver)
        driver.append(output(one, "1"))
        (two,) = driver.call(turn, "read")
        driver.append(output(two, "2"))
        driver.answer(turn, "fine")
        after = driver.create("next", previous_response_id=turn)
        assert driver.context(after) == [
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
        driver = Lockstep()
        turn, (one, two) = held(driver, "look", "read")
        names = {"one": one, "two": two, "nope": "call_nope"}
        driver.append(*[output(names[each]) for each in answers], event_id="e")
        (refused,) = driver.of(turn, events.ErrorEvent)
        assert (refused.error.code, refused.error.param) == (code, "input")
        assert refused.error.event_id == "e"
        driver.append(output(one), output(two))
        driver.answer(turn)
        assert driver.status(turn) == ("completed", None)

    @pytest.mark.parametrize("input", [None, 7, [7], [{"type": "function_call_output"}]])
    def test_an_append_that_cannot_be_read_leaves_it_held(self, input: object) -> None:
        driver = Lockstep()
        turn, (one,) = held(driver)
        driver.send("response.append", input=input)
        assert len(driver.of(turn, events.ErrorEvent)) == 1
        driver.append(output(one))
        driver.answer(turn)
        assert driver.status(turn) == ("completed", None)

    def test_an_append_may_choose_tools_anew_for_what_follows(self) -> None:
        driver = Lockstep()
        tools = [{"type": "function", "name": "look"}]
        turn, (one,) = held(driver, tools=tools, tool_choice="required")
        driver.append(output(one), tool_choice="none")
        assert driver.prompt(turn).settings.tool_choice.mode == "none"
        driver.answer(turn)
        assert bytes(driver.response(turn).tool_choice) == b'"none"'

    def test_without_a_choice_of_its_own_it_keeps_the_last_one(self) -> None:
        driver = Lockstep()
        tools = [{"type": "function", "name": "look"}]
        turn, (one,) = held(driver, tools=tools, tool_choice="required")
        driver.append(output(one))
        assert driver.prompt(turn).settings.tool_choice.mode == "required"

    @pytest.mark.parametrize("choice", ["some", 7, {"type": "function", "name": "other"}])
    def test_a_choice_that_cannot_be_leaves_it_held(self, choice: object) -> None:
        driver = Lockstep()
        turn, (one,) = held(driver)
        driver.append(output(one), tool_choice=choice)
        assert [param for _, param in driver.errors] == ["tool_choice"]
        driver.append(output(one))
        assert driver.sampling == [turn]

    def test_an_append_may_name_the_held_response_and_no_other(self) -> None:
        driver = Lockstep()
        turn, (one,) = held(driver)
        driver.append(output(one), response_id="resp_other")
        assert driver.errors == [("response_not_found", "response_id")]
        driver.append(output(one), response_id=turn)
        assert driver.sampling == [turn]

    def test_an_append_that_names_it_again_while_it_samples_is_refused_and_ends_no_hold(
        self,
    ) -> None:
        """A client whose connection was lost sends its append again, which was taken already."""
        driver = Lockstep()
        turn, (one,) = held(driver)
        driver.append(output(one), response_id=turn)
        driver.append(output(one), response_id=turn)
        assert driver.errors == [("response_not_active", "response_id")]
        (two,) = driver.call(turn)
        driver.append(output(two), response_id=turn)
        assert driver.sampling == [turn]

    def test_an_append_may_refer_to_what_the_chain_has(self) -> None:
        driver = Lockstep()
        turn = driver.create([{**user("go"), "id": "msg_1"}], append=True)
        (one,) = driver.call(turn)
        driver.append(output(one), {"type": "item_reference", "id": "msg_1"})
        assert driver.context(turn) == ["user: go", "call look", "output done"]

    def test_and_to_nothing_else(self) -> None:
        driver = Lockstep()
        _, (one,) = held(driver)
        driver.append(output(one), {"type": "item_reference", "id": "msg_9"})
        assert driver.errors == [("item_not_found", "input")]

    def test_a_create_on_the_lane_supersedes_it_and_then_runs(self) -> None:
        driver = Lockstep()
        turn, (one,) = held(driver)
        after = driver.create([output(one)], previous_response_id=turn)
        assert driver.status(turn) == ("incomplete", "superseded")
        assert driver.sampling == [after]
        assert driver.context(after) == ["user: go", "call look", "output done"]

    def test_a_create_on_another_lane_leaves_it_held(self) -> None:
        driver = Lockstep()
        turn, _ = held(driver)
        driver.create("hi", lane="b")
        assert driver.types(turn)[-1] == "done"

    def test_cancel_ends_it_at_once_with_usage(self) -> None:
        driver = Lockstep()
        turn, _ = held(driver)
        driver.cancel()
        assert driver.status(turn) == ("cancelled", None)
        assert driver.response(turn).usage == driver.record(turn).usage
        assert driver.record(turn).usage.total_tokens == 11
        assert driver.stopped == [], "nothing was sampling"

    def test_nothing_for_fifteen_minutes_ends_it(self) -> None:
        driver = Lockstep()
        turn, _ = held(driver)
        assert driver.connection.next_deadline() == driver.now + 900
        driver.wait(899)
        assert driver.types(turn)[-1] == "done"
        driver.wait(1)
        assert driver.status(turn) == ("incomplete", "held_timeout")
        assert driver.connection.next_deadline() is None

    def test_an_answer_stops_that_clock(self) -> None:
        driver = Lockstep(limits=Limits(held_timeout=10))
        turn, (one,) = held(driver)
        driver.append(output(one))
        driver.wait(20)
        assert driver.sampling == [turn]

    def test_the_connection_drops_and_it_ends_without_a_word(self) -> None:
        driver = Lockstep()
        turn, _ = held(driver)
        driver.drop()
        assert driver.types(turn)[-1] == "done"
        assert driver.record(turn).outcome == "disconnected"

    def test_usage_sums_over_the_whole_rollout(self) -> None:
        driver = Lockstep()
        turn, (one,) = held(driver)
        driver.append(output(one))
        driver.say(
            turn, Accepted(input_tokens=30, cached_tokens=20), ReasoningDelta("hm", tokens=3)
        )
        driver.say(turn, TextDelta("ok", tokens=2), Finish())
        expected = Usage.of(input=40, cached=24, output=6, reasoning=3)
        assert driver.response(turn).usage == expected == driver.record(turn).usage

    def test_max_output_tokens_spans_the_whole_rollout(self) -> None:
        driver = Lockstep()
        turn = driver.create("go", append=True, max_output_tokens=10)
        assert driver.prompt(turn).max_output_tokens == 10
        driver.say(turn, TEN, LOOK, CallDelta("{}", tokens=7), Finish())
        (one,) = driver.turns[turn].node.open_calls  # type: ignore[union-attr]
        driver.append(output(one))
        assert driver.prompt(turn).max_output_tokens == 3
        driver.say(turn, TEN, LOOK, CallDelta("{}", tokens=3), Finish())
        (two,) = driver.turns[turn].node.open_calls  # type: ignore[union-attr]
        driver.append(output(two))
        assert driver.status(turn) == ("incomplete", "max_output_tokens")
        assert len(driver.asked) == 2, "nothing is asked of the engine for no tokens"

    def test_max_tool_calls_spans_the_whole_rollout(self) -> None:
        driver = Lockstep()
        turn = driver.create("go", append=True, max_tool_calls=2)
        (one,) = driver.call(turn)
        driver.append(output(one))
        driver.say(turn, TEN, LOOK, CallDelta("{}"), LOOK, CallDelta("{}"), Finish())
        assert driver.status(turn) == ("incomplete", "max_tool_calls")
        assert len(driver.response(turn).output) == 2

    def test_the_last_call_that_was_allowed_is_whole(self) -> None:
        driver = Lockstep()
        turn = driver.create("go", max_tool_calls=1)
        driver.say(turn, TEN, LOOK, CallDelta("{}"), LOOK)
        assert driver.status(turn) == ("incomplete", "max_tool_calls")
        (item,) = driver.of(turn, events.OutputItemDone)
        assert b'"status":"completed"' in bytes(item.item)
        assert driver.stopped == [turn]
        assert len(driver.turns[turn].node.open_calls) == 1  # type: ignore[union-attr]

    def test_a_custom_tool_call_holds_as_well(self) -> None:
        driver = Lockstep()
        turn = driver.create("go", append=True)
        driver.say(turn, TEN, PATCH, CallDelta("x"), ItemEnd(), Finish())
        (call_id,) = driver.turns[turn].node.open_calls  # type: ignore[union-attr]
        driver.append({"type": "custom_tool_call_output", "call_id": call_id, "output": "y"})
        assert driver.sampling == [turn]

    def test_a_failure_in_a_later_sampling_is_response_failed(self) -> None:
        driver = Lockstep()
        turn, (one,) = held(driver)
        driver.append(output(one))
        driver.fail(turn)
        assert driver.types(turn)[-1] == "failed"
        assert driver.record(turn).usage.total_tokens == 11


class TestCrossing:
    """An append that names a response which ended while the append was on its way."""

    @pytest.mark.parametrize("end", ["cancel", "held_timeout"])
    def test_it_starts_nothing_that_nobody_waits_for(self, end: str) -> None:
        driver = Lockstep()
        turn, (one,) = held(driver)
        if end == "cancel":
            driver.cancel()
        else:
            driver.wait(900)
        assert driver.append(output(one), response_id=turn) == ""
        assert driver.errors == [("response_already_completed", "response_id")]
        assert driver.append(output(one)) in driver.sampling, "who means it leaves the name out"

    def test_nor_while_the_end_is_being_saved(self) -> None:
        driver = Lockstep(store_answers=False)
        turn, (one,) = held(driver, store=True)
        driver.cancel()
        assert driver.append(output(one), response_id=turn) == ""
        assert driver.errors == [("response_already_completed", "response_id")]

    def test_a_response_without_open_calls_is_simply_continued(self) -> None:
        driver = Lockstep()
        turn = driver.create("go", append=True)
        driver.answer(turn)
        assert driver.append(user("more"), response_id=turn) in driver.sampling


class TestCancel:
    def test_a_running_turn_ends_with_its_partial_output_and_real_usage(self) -> None:
        driver = Lockstep()
        turn = driver.create("hi")
        driver.say(turn, TEN, TextDelta("half"))
        driver.cancel(response_id=turn)
        assert driver.types(turn)[-1] == "incomplete"
        response = driver.response(turn)
        assert (response.status, response.incomplete_details) == ("cancelled", None)
        assert len(response.output) == 1
        assert response.usage is not None
        assert response.usage.output_tokens == 1
        assert driver.stopped == [turn]
        assert driver.record(turn).outcome == "cancelled"

    def test_without_a_name_it_is_the_lanes_running_turn(self) -> None:
        driver = Lockstep()
        ours, other = driver.create("1", lane="a"), driver.create("2", lane="b")
        driver.cancel(stream_id="a")
        assert driver.status(ours) == ("cancelled", None)
        assert driver.sampling == [other]

    def test_also_when_its_create_had_a_name(self) -> None:
        driver = Lockstep()
        turn = driver.create("hi", event_id="e")
        driver.cancel()
        assert driver.status(turn) == ("cancelled", None)

    def test_a_create_that_still_waits_is_named_by_its_event_id(self) -> None:
        """It says so when its turn comes, to keep the lane's order."""
        driver = Lockstep()
        first, second = driver.create("1"), driver.create("2", event_id="second")
        third = driver.create("3")
        driver.cancel(event_id="second")
        assert driver.types(second) == []
        driver.answer(first)
        assert driver.types(second) == ["created", "in_progress", "incomplete"]
        assert driver.status(second) == ("cancelled", None)
        assert driver.sampling == [third]

    @pytest.mark.parametrize("named", ["response_id", "event_id", "lane"])
    def test_what_has_finished_gets_no_event_and_no_error(self, named: str) -> None:
        driver = Lockstep()
        turn = driver.create("hi", event_id="e")
        driver.answer(turn)
        before = driver.types(turn)
        members = {"response_id": {"response_id": turn}, "event_id": {"event_id": "e"}, "lane": {}}
        driver.cancel(**members[named])
        assert driver.types(turn) == before
        assert driver.error_events == []

    def test_a_response_that_the_connection_does_not_have_is_cancelled_where_it_runs(self) -> None:
        driver = Lockstep()
        driver.answer(driver.create("hi"))
        driver.cancel(response_id="resp_x")
        assert driver.cancelled_sources == ["resp_x"]
        assert driver.error_events == []

    @pytest.mark.parametrize("members", [{"event_id": "x"}, {"stream_id": "x"}])
    def test_what_is_unknown_is_response_not_found(self, members: dict[str, str]) -> None:
        driver = Lockstep()
        driver.answer(driver.create("hi"))
        driver.cancel(**members)
        (refused,) = driver.error_events
        assert (refused.status, refused.error.code) == (404, "response_not_found")

    def test_a_response_is_cancelled_from_any_lane(self) -> None:
        driver = Lockstep()
        turn = driver.create("hi", lane="a")
        driver.cancel(response_id=turn, stream_id="b")
        assert driver.status(turn) == ("cancelled", None)

    def test_a_second_cancel_is_silent(self) -> None:
        driver = Lockstep()
        turn = driver.create("hi")
        driver.say(turn, TEN)
        for _ in range(2):
            driver.cancel(response_id=turn)
        assert driver.types(turn) == ["created", "in_progress", "incomplete"]
        assert driver.errors == []

    def test_an_owner_cancels_by_id_from_elsewhere_and_nobody_else_does(self) -> None:
        driver = Lockstep()
        turn = driver.create("hi")
        driver.say(turn, TEN)
        assert not driver.connection.cut(turn, "cancelled", owner="other")
        assert not driver.connection.cut("resp_x", "cancelled", owner="local")
        assert driver.sampling == [turn]
        queued = driver.create("next")
        cut = driver.connection.cut(turn, "cancelled", owner="local")
        driver.settle()
        assert cut == driver.response(turn)
        assert driver.status(turn) == ("cancelled", None)
        assert driver.sampling == [queued]

    def test_so_does_one_that_is_queued(self) -> None:
        driver = Lockstep()
        first, second = driver.create("1"), driver.create("2")
        assert driver.connection.cut(second, "cancelled", owner="local") is not None
        driver.settle()
        driver.answer(first)
        assert driver.status(second) == ("cancelled", None)


class TestDeadline:
    def test_a_running_turn_ends_incomplete_with_usage(self) -> None:
        driver = Lockstep()
        turn = driver.create("hi", timeout_ms=2000)
        driver.say(turn, TEN, TextDelta("half"))
        driver.wait(1.9)
        assert driver.sampling == [turn]
        driver.wait(0.2)
        assert driver.status(turn) == ("incomplete", "deadline")
        assert driver.response(turn).usage == driver.record(turn).usage
        assert driver.stopped == [turn]

    def test_one_that_waits_for_a_place_ends_as_well(self) -> None:
        driver = Lockstep(limits=Limits(active=1))
        running = driver.create("1", lane="a")
        turn = driver.create("2", lane="b", timeout_ms=1000)
        driver.wait(1)
        assert driver.types(turn) == ["created", "queued", "in_progress", "incomplete"]
        assert driver.status(turn) == ("incomplete", "deadline")
        assert driver.sampling == [running]

    def test_one_that_is_queued_says_so_when_its_turn_comes(self) -> None:
        driver = Lockstep()
        first, second = driver.create("1"), driver.create("2", timeout_ms=1000)
        driver.wait(5)
        assert driver.types(second) == []
        assert driver.connection.next_deadline() is None, "and is looked at no more"
        driver.answer(first)
        assert driver.status(second) == ("incomplete", "deadline")

    def test_it_counts_from_the_create_and_over_held_time(self) -> None:
        driver = Lockstep()
        turn = driver.create("go", append=True, timeout_ms=1000)
        driver.call(turn)
        driver.wait(1)
        assert driver.status(turn) == ("incomplete", "deadline")

    def test_while_the_store_is_asked_it_ends_too(self) -> None:
        driver = Lockstep(store_answers=False)
        turn = driver.create("hi", previous_response_id="resp_x", timeout_ms=1000)
        driver.wait(1)
        assert driver.status(turn) == ("incomplete", "deadline")
        driver.loaded(driver.loads[0])
        driver.settle()
        assert driver.errors == []


class TestSaving:
    def test_the_terminal_event_follows_the_commit(self) -> None:
        driver = Lockstep(store_answers=False)
        turn = driver.create("hi", store=True)
        driver.answer(turn, "hello")
        assert driver.types(turn)[-1] == "output_item.done"
        (save,) = driver.saves
        assert save.record.response.status == "completed"
        assert save.record.owner == "local"
        assert save.record.input_from is None
        driver.saved(save)
        driver.settle()
        assert driver.types(turn)[-1] == "completed"

    def test_a_failed_commit_is_a_failed_response(self) -> None:
        driver = Lockstep(store_answers=False)
        turn = driver.create("hi", store=True)
        driver.answer(turn)
        driver.saved(
            driver.saves[0], ApiError.of("server_error", "The response could not be stored.")
        )
        driver.settle()
        assert driver.types(turn)[-1] == "failed"
        response = driver.response(turn)
        assert response.completed_at is None
        assert response.error is not None
        assert driver.record(turn).outcome == "failed"
        assert driver.connection.memory.find(turn) is None

    def test_what_is_saved_is_the_responses_own_links(self) -> None:
        driver = Lockstep()
        first = driver.create("one", store=True)
        driver.answer(first)
        second = driver.create("two", store=True, previous_response_id=first)
        driver.answer(second)
        saved = driver.stored["local", second]
        assert saved.input_from is driver.stored["local", first].head.node
        assert saved.response == driver.response(second)

    def test_store_false_is_never_saved(self) -> None:
        driver = Lockstep()
        driver.answer(driver.create("hi"))
        assert driver.saves == []

    def test_while_it_is_saved_nothing_else_can_end_it(self) -> None:
        driver = Lockstep(store_answers=False)
        turn = driver.create("hi", store=True, timeout_ms=1000)
        driver.answer(turn)
        driver.wait(10)
        driver.cancel(response_id=turn)
        driver.saved(driver.saves[0])
        driver.settle()
        assert driver.status(turn) == ("completed", None)
        assert driver.errors == []

    def test_what_was_cancelled_is_stored_as_cancelled(self) -> None:
        driver = Lockstep()
        turn = driver.create("hi", store=True)
        driver.say(turn, TEN, TextDelta("half"))
        driver.cancel()
        saved = driver.stored["local", turn].response
        assert (saved.status, saved.incomplete_details) == ("cancelled", None)
        assert saved.usage == driver.record(turn).usage
