"""One connection: what it remembers, what it refuses, how it ends."""

from typing import Any

import pytest
from msgspec import UNSET

from tests.support.core import TEN, Lockstep, output, user, words
from tieline import events
from tieline.errors import ApiError
from tieline.requests import ClientHeartbeat, Opaque, Processed
from tieline_server.core.create.limits import Limits
from tieline_server.core.create.profile import EXTENSIONS, REVISION
from tieline_server.core.deltas import (
    CallDelta,
    CallStart,
    Finish,
    ItemEnd,
    ReasoningDelta,
    TextDelta,
)
from tieline_server.core.values import Principal

LOOK = CallStart(kind="function_call", name="look")
NOT_FOUND = ("previous_response_not_found", "previous_response_id")
ALICE, BOB = Principal(owner="alice"), Principal(owner="bob")


class TestChains:
    def test_st_02_a_turn_sees_its_own_earlier_answer_and_no_old_instructions(self) -> None:
        driver = Lockstep()
        first = driver.create("pick a colour", instructions="be terse")
        driver.answer(first, "teal")
        second = driver.create("which colour?", previous_response_id=first)
        assert driver.context(second) == [
            "user: pick a colour",
            "assistant: teal",
            "user: which colour?",
        ]
        assert driver.prompt(second).settings.instructions is None

    def test_st_05_a_long_chain_remembers_every_step_once_and_in_order(self) -> None:
        driver = Lockstep()
        expected, last = [], None
        for number in range(1, 6):
            last = driver.create(f"fact {number}", previous_response_id=last)
            driver.answer(last, f"noted {number}")
            expected += [f"user: fact {number}", f"assistant: noted {number}"]
        sixth = driver.create("tell", previous_response_id=last)
        assert driver.context(sixth) == [*expected, "user: tell"]
        assert driver.prompt(sixth).chain.turn == 6

    def test_st_06_a_an_output_alone_continues_with_every_item_once(self) -> None:
        driver = Lockstep()
        first = driver.create("go")
        (call_id,) = driver.call(first)
        second = driver.create([output(call_id)], previous_response_id=first)
        assert driver.context(second) == ["user: go", "call look", "output done"]
        named = [item.id for item in driver.prompt(second).chain.items_of_chain() if item.id]
        assert len(named) == len(set(named))

    def test_st_06_b_a_repeated_item_is_a_400_that_names_it(self) -> None:
        driver = Lockstep()
        first = driver.create("go")
        (call_id,) = driver.call(first)
        (item,) = driver.turns[first].output.done
        again = {"type": "function_call", "id": item.id, "call_id": call_id, "name": "look"}
        again["arguments"] = "{}"
        driver.create([again, output(call_id)], previous_response_id=first)
        (refused,) = driver.error_events
        assert (refused.status, refused.error.param) == (400, "input")
        assert str(item.id) in refused.error.message

    def test_st_08_no_previous_id_is_a_new_chain_whatever_was_left_open(self) -> None:
        driver = Lockstep()
        driver.call(driver.create("go"))
        second = driver.create([user("summary: we use port 9"), user("go on")])
        assert driver.context(second) == ["user: summary: we use port 9", "user: go on"]

    def test_settings_and_tools_are_never_inherited(self) -> None:
        driver = Lockstep()
        tools = [{"type": "function", "name": "f"}]
        first = driver.create("a", tools=tools, temperature=0.1, max_output_tokens=99)
        driver.answer(first)
        second = driver.create("b", previous_response_id=first)
        settings = driver.prompt(second).settings
        assert settings.tools.offered == ()
        assert (settings.temperature, settings.max_output_tokens) == (None, None)

    @pytest.mark.parametrize("end", ["length", "cancel"])
    def test_incomplete_and_cancelled_can_be_continued(self, end: str) -> None:
        driver = Lockstep()
        first = driver.create("go")
        driver.say(first, TEN, ReasoningDelta("hm"), TextDelta("half an ans"))
        if end == "length":
            driver.say(first, Finish(reason="length"))
        else:
            driver.cancel()
        second = driver.create("go on", previous_response_id=first)
        kept = ["user: go", "reasoning", "assistant: half an ans", "user: go on"]
        assert driver.context(second) == kept

    @pytest.mark.parametrize("unfinished", [[LOOK, CallDelta('{"a')], [ReasoningDelta("hm")]])
    def test_an_unfinished_call_or_thought_does_not_stay_in_the_chain(
        self, unfinished: list[Any]
    ) -> None:
        driver = Lockstep()
        first = driver.create("go")
        driver.say(first, TEN, TextDelta("so"), *unfinished)
        driver.cancel()
        second = driver.create("go on", previous_response_id=first)
        assert driver.context(second) == ["user: go", "assistant: so", "user: go on"]

    def test_a_whole_call_of_a_cancelled_response_still_wants_its_output(self) -> None:
        driver = Lockstep()
        first = driver.create("go")
        driver.say(first, TEN, LOOK, CallDelta("{}"), ItemEnd(), TextDelta("and"))
        driver.cancel()
        driver.create("go on", previous_response_id=first)
        assert driver.errors == [("tool_output_missing", "input")]

    def test_a_fork_shares_its_parents_links(self) -> None:
        driver = Lockstep()
        root = driver.create("root", lane="a")
        driver.answer(root, "r")
        left = driver.create("left", lane="a", previous_response_id=root)
        right = driver.create("right", lane="b", previous_response_id=root)
        assert driver.prompt(left).chain.parent is driver.prompt(right).chain.parent


class TestEviction:
    def test_st_09_a_failed_continuation_evicts_its_parent(self) -> None:
        driver = Lockstep()
        first = driver.create("one")
        driver.answer(first)
        driver.create([output("nope")], previous_response_id=first)
        driver.create("hello", previous_response_id=first)
        assert driver.errors == [("tool_call_not_found", "input"), NOT_FOUND]
        assert (driver.error_events[1].status, driver.closed) == (400, None)
        assert first in driver.error_events[1].error.message

    def test_st_09_with_store_true_it_comes_back_from_the_store(self) -> None:
        driver = Lockstep()
        first = driver.create("one", store=True)
        driver.answer(first, "1")
        driver.create([output("nope")], previous_response_id=first)
        third = driver.create("hello", previous_response_id=first)
        assert driver.context(third) == ["user: one", "assistant: 1", "user: hello"]

    def test_a_response_that_failed_evicts_its_parent_and_cannot_be_continued(self) -> None:
        driver = Lockstep()
        first = driver.create("one")
        driver.answer(first)
        second = driver.create("two", previous_response_id=first)
        driver.say(second, TEN, TextDelta("x"))
        driver.fail(second)
        for named in (first, second):
            driver.create("three", previous_response_id=named)
        assert driver.errors == [NOT_FOUND, NOT_FOUND]

    @pytest.mark.parametrize("announced", [False, True])
    def test_a_refusal_of_what_was_said_leaves_the_chain_that_it_was_said_to(
        self, announced: bool
    ) -> None:
        driver = Lockstep()
        first = driver.create("one")
        driver.answer(first, "1")
        second = driver.create("bad", previous_response_id=first)
        if announced:
            driver.say(second, TEN)
        driver.fail(second, "invalid_prompt")
        third = driver.create("two", previous_response_id=first)
        assert driver.context(third) == ["user: one", "assistant: 1", "user: two"]

    def test_a_stored_failed_response_cannot_be_continued_either(self) -> None:
        driver = Lockstep()
        first = driver.create("one", store=True)
        driver.say(first, TEN)
        driver.fail(first)
        assert driver.stored["local", first].response.status == "failed"
        driver.create("two", previous_response_id=first)
        assert driver.errors == [NOT_FOUND]

    def test_a_queued_continuation_of_a_parent_that_was_evicted_keeps_its_pin(self) -> None:
        driver = Lockstep()
        first = driver.create("one")
        driver.answer(first, "1")
        second = driver.create("two", previous_response_id=first)
        third = driver.create("three", previous_response_id=first)
        driver.fail(second)
        assert driver.context(third) == ["user: one", "assistant: 1", "user: three"]

    def test_mx_05_a_failed_fork_on_another_lane_leaves_the_parent(self) -> None:
        driver = Lockstep()
        first = driver.create("one", lane="m")
        driver.answer(first, "1")
        driver.create([output("nope")], lane="f2", previous_response_id=first)
        second = driver.create("two", lane="m", previous_response_id=first)
        assert driver.context(second) == ["user: one", "assistant: 1", "user: two"]

    def test_an_unknown_id_evicts_nothing(self) -> None:
        driver = Lockstep()
        first = driver.create("one")
        driver.answer(first)
        driver.create("two", previous_response_id="resp_unknown")
        assert driver.create("three", previous_response_id=first) in driver.sampling

    def test_store_false_an_older_response_of_the_lane_is_not_found(self) -> None:
        driver = Lockstep()
        first = driver.create("one")
        driver.answer(first)
        driver.answer(driver.create("two", previous_response_id=first))
        driver.create("three", previous_response_id=first)
        assert driver.errors == [NOT_FOUND]

    def test_store_false_is_not_reachable_from_another_connection(self) -> None:
        one, two = Lockstep(seed=1), Lockstep(seed=2)
        first = one.create("one")
        one.answer(first)
        two.stored = one.stored
        two.create("two", previous_response_id=first)
        assert two.errors == [NOT_FOUND]

    def test_store_true_is(self) -> None:
        one, two = Lockstep(seed=1), Lockstep(seed=2)
        first = one.create("one", store=True)
        one.answer(first, "1")
        two.stored = one.stored
        second = two.create("two", previous_response_id=first)
        assert two.context(second) == ["user: one", "assistant: 1", "user: two"]


class TestPinning:
    def test_mx_05_a_fork_holds_its_parent_from_acceptance(self) -> None:
        driver = Lockstep()
        first = driver.create("one", lane="m")
        driver.answer(first, "1")
        slow = driver.create("slow", lane="f")
        fork = driver.create("fork", lane="f", previous_response_id=first)
        driver.answer(driver.create("two", lane="m", previous_response_id=first), "2")
        driver.answer(slow)
        assert driver.context(fork) == ["user: one", "assistant: 1", "user: fork"]

    def test_mx_05_also_behind_a_busy_place(self) -> None:
        driver = Lockstep(limits=Limits(active=1))
        first = driver.create("one", lane="m")
        driver.answer(first, "1")
        slow = driver.create("slow", lane="x")
        fork = driver.create("fork", lane="f", previous_response_id=first)
        second = driver.create("two", lane="m", previous_response_id=first)
        driver.answer(slow)
        driver.answer(fork, "f")
        driver.answer(second, "2")
        assert driver.context(fork) == ["user: one", "assistant: 1", "user: fork"]
        assert driver.context(second) == ["user: one", "assistant: 1", "user: two"]

    def test_a_parent_found_at_its_turn_is_held_while_the_store_is_asked_for_items(self) -> None:
        driver = Lockstep(store_answers=False)
        old = driver.create([{**user("old"), "id": "msg_old"}], store=True)
        driver.answer(old)
        driver.saved(driver.saves[0])
        driver.settle()
        parent = driver.create("one", lane="m")
        fork_behind = driver.create("slow", lane="f")
        reference = {"type": "item_reference", "id": "msg_old"}
        fork = driver.create([reference], lane="f", previous_response_id=parent)
        driver.answer(parent, "1")
        driver.answer(fork_behind)
        driver.answer(driver.create("two", lane="m", previous_response_id=parent))
        (load,) = driver.loads
        assert (load.response_id, load.item_ids) == (None, ("msg_old",))
        driver.loaded(load)
        driver.settle()
        assert driver.context(fork) == ["user: one", "assistant: 1", "user: old"]


class TestLoading:
    def test_parent_and_items_are_asked_for_together_and_once(self) -> None:
        driver = Lockstep()
        first = driver.create([{**user("one"), "id": "msg_1"}], store=True, lane="a")
        driver.answer(first, "1")
        driver.answer(driver.create("else", lane="a"))
        second = driver.create(
            [{"type": "item_reference", "id": "msg_1"}, user("two")],
            previous_response_id=first,
        )
        (load,) = driver.loads
        assert (load.response_id, load.item_ids, load.owner) == (first, ("msg_1",), "local")
        assert driver.context(second) == ["user: one", "assistant: 1", "user: two"]

    def test_a_stored_item_joins_another_chain(self) -> None:
        driver = Lockstep()
        driver.answer(driver.create([{**user("one"), "id": "msg_1"}], store=True))
        second = driver.create([{"type": "item_reference", "id": "msg_1"}, user("two")])
        assert driver.context(second) == ["user: one", "user: two"]

    def test_what_the_connection_knows_is_not_asked_of_the_store(self) -> None:
        driver = Lockstep()
        first = driver.create("one", store=True)
        driver.answer(first)
        driver.create("two", previous_response_id=first)
        assert driver.loads == []

    def test_an_unknown_item_is_item_not_found(self) -> None:
        driver = Lockstep()
        driver.create([{"type": "item_reference", "id": "msg_x"}])
        assert driver.errors == [("item_not_found", "input")]

    def test_au_01_another_owners_response_is_like_an_unknown_one(self) -> None:
        driver = Lockstep()
        secret = driver.send(
            "response.create", model="m", input="codeword fig", principal=ALICE, stream_id="a"
        )
        driver.answer(secret)
        item_id = driver.turns[secret].output.done[0].id
        asks: list[dict[str, Any]] = [
            {"previous_response_id": secret, "input": "what codeword?"},
            {"input": [{"type": "item_reference", "id": item_id}]},
        ]
        for body in asks:
            driver.send("response.create", model="m", principal=BOB, stream_id="b", **body)
        assert driver.errors == [NOT_FOUND, ("item_not_found", "input")]
        assert driver.sampling == []
        driver.send("response.append", input=[user("x")], principal=BOB, stream_id="a")
        assert driver.errors[-1] == ("nothing_to_append", None)

    def test_tl_03_an_open_call_of_a_loaded_parent_is_named(self) -> None:
        driver = Lockstep()
        first = driver.create("go", store=True, lane="a")
        driver.say(first, TEN, CallStart(kind="custom_tool_call", name="p"), Finish())
        (call_id,) = driver.stored["local", first].head.node.open_calls
        driver.answer(driver.create("else", lane="a"))
        driver.create("hi", previous_response_id=first)
        (refused,) = driver.error_events
        assert refused.error.message == f"No tool output found for custom tool call {call_id}."
        answer = {"type": "custom_tool_call_output", "call_id": call_id, "output": "x"}
        assert driver.create([answer], previous_response_id=first) in driver.sampling


class TestModels:
    def test_a_key_may_be_kept_from_a_model(self) -> None:
        """AU-02: per create; the connection lives on."""
        driver = Lockstep()
        only = Principal(models=frozenset({"m"}))
        driver.send("response.create", model="stubborn", input="hi", principal=only)
        (refused,) = driver.error_events
        assert (refused.status, refused.error.code) == (403, "model_not_allowed")
        assert (
            driver.send("response.create", model="m", input="hi", principal=only) in driver.sampling
        )

    def test_no_model_is_the_first_one(self) -> None:
        driver = Lockstep()
        turn = driver.send("response.create", input="hi")
        assert driver.prompt(turn).model == "m"

    def test_a_long_unknown_name_is_cut_in_the_message(self) -> None:
        driver = Lockstep()
        driver.create("hi", model="x" * 10_000)
        assert len(driver.error_events[0].error.message) < 200


class TestSession:
    def test_a_session_says_what_the_server_offers(self) -> None:
        driver = Lockstep(limits=Limits(active=3, lanes=5))
        driver.send("tieline.session.start", max_receive_bytes=1000)
        (started,) = driver.loose(events.SessionStarted)
        assert (started.revision, started.session_id) == (REVISION, driver.connection.id)
        assert started.extensions == list(EXTENSIONS)
        assert (started.limits["active_responses"], started.limits["lanes"]) == (3, 5)
        assert started.limits["held_timeout_ms"] == 900_000
        assert driver.connection.max_receive_bytes == 1000

    def test_cn_16_only_the_first_message_starts_one(self) -> None:
        driver = Lockstep()
        driver.receive(ClientHeartbeat())
        driver.send("tieline.session.start", merge="never", max_receive_bytes=9, event_id="late")
        (refused,) = driver.error_events
        assert (refused.status, refused.error.code) == (400, "invalid_event")
        assert "first message" in refused.error.message
        assert refused.error.event_id == "late"
        assert driver.loose(events.SessionStarted) == []
        assert driver.connection.max_receive_bytes is None
        assert driver.create("still there") in driver.sampling

    def test_it_may_turn_merging_off(self) -> None:
        driver = Lockstep(merge=True)
        driver.send("tieline.session.start", merge="never")
        turn = driver.create("hi")
        driver.reading = False
        driver.say(turn, TEN, *[TextDelta("x")] * 100)
        assert sum(isinstance(each, events.OutputTextDelta) for each in driver.read()) == 100

    def test_without_that_a_slow_reader_gets_deltas_merged_and_numbers_without_gaps(self) -> None:
        driver = Lockstep(merge=True)
        turn = driver.create("hi")
        driver.reading = False
        driver.say(turn, TEN, *[TextDelta("x")] * 100)
        assert driver.turns[turn].outbox.unsent == 16
        driver.read()
        driver.reading = True
        driver.say(turn, Finish())
        deltas = driver.of(turn, events.OutputTextDelta)
        assert "".join(each.delta for each in deltas) == "x" * 100
        assert driver.status(turn) == ("completed", None)

    def test_notices_need_no_answer(self) -> None:
        driver = Lockstep()
        driver.receive(Processed(response_id="r"))
        driver.receive(ClientHeartbeat(phase="idle"))
        assert driver.audit.loose == []

    def test_an_unknown_event_is_a_typed_error_and_the_connection_lives(self) -> None:
        driver = Lockstep()
        driver.receive(Opaque(name="vendor.thing", raw=b"{}", event_id="e"))  # type: ignore[arg-type]
        (refused,) = driver.error_events
        assert (refused.status, refused.error.code) == (400, "invalid_event")
        assert refused.error.event_id == "e"
        assert driver.create("hi") in driver.sampling

    def test_a_rejected_message_never_takes_a_running_turns_number(self) -> None:
        driver = Lockstep()
        turn = driver.create("hi")
        driver.say(turn, TEN)
        error = ApiError.of("invalid_json", "The message is not valid JSON.")
        driver.connection.reject(error, event_id=None, stream_id=None)
        driver.answer(turn)
        assert driver.error_events[0].sequence_number == 0
        assert driver.status(turn) == ("completed", None)

    def test_session_end_lets_what_runs_end_and_refuses_what_comes_late(self) -> None:
        driver = Lockstep()
        first, second = driver.create("1"), driver.create("2")
        driver.send("tieline.session.end")
        driver.create("3", event_id="late")
        assert driver.errors == [("invalid_event", None)]
        driver.answer(first)
        assert driver.closed is None
        driver.answer(second)
        assert driver.closed is not None
        assert driver.closed.error is None
        assert driver.connection.state == "closed"

    def test_session_end_of_an_idle_connection_closes_it_at_once(self) -> None:
        driver = Lockstep()
        driver.answer(driver.create("hi"))
        driver.send("tieline.session.end")
        assert driver.closed is not None

    @pytest.mark.parametrize("busy", [True, False])
    def test_half_close_closes_when_nothing_runs(self, busy: bool) -> None:
        driver = Lockstep()
        turn = driver.create("hi") if busy else None
        driver.half_close()
        assert (driver.closed is None) is busy
        if turn is not None:
            driver.answer(turn)
        assert driver.closed is not None

    def test_half_close_ends_what_is_held_and_what_will_be(self) -> None:
        driver = Lockstep()
        now = driver.create("1", lane="a", append=True)
        driver.call(now)
        later = driver.create("2", lane="b", append=True)
        driver.half_close()
        assert driver.status(now) == ("cancelled", None)
        driver.call(later)
        assert driver.types(later)[-2:] == ["done", "incomplete"]
        assert driver.closed is not None

    def test_cancel_is_still_heard_after_half_close(self) -> None:
        driver = Lockstep()
        turn = driver.create("hi")
        driver.send("tieline.session.end")
        driver.cancel(response_id=turn)
        assert driver.closed is not None


class TestDrain:
    def test_the_client_is_told_running_turns_end_and_new_ones_are_refused(self) -> None:
        driver = Lockstep()
        first, second = driver.create("1"), driver.create("2")
        driver.drain(30)
        (going,) = driver.loose(events.SessionGoingAway)
        assert going.seconds == 30
        driver.create("3", event_id="late")
        (refused,) = driver.error_events
        assert (refused.status, refused.error.code) == (503, "server_draining")
        assert (refused.error.retry_after, refused.error.event_id) == (1.0, "late")
        driver.answer(first)
        driver.answer(second)
        assert driver.closed is not None

    def test_an_idle_connection_closes_at_once(self) -> None:
        driver = Lockstep()
        driver.drain()
        assert driver.closed is not None

    def test_a_held_turn_may_still_be_answered_and_a_lane_may_not_begin_anew(self) -> None:
        driver = Lockstep()
        turn = driver.create("go", append=True)
        (call_id,) = driver.call(turn)
        driver.drain()
        driver.append(user("x"), lane="b")
        assert driver.errors == [("server_draining", None)]
        driver.append(output(call_id))
        driver.answer(turn)
        assert driver.status(turn) == ("completed", None)
        assert driver.closed is not None

    def test_at_the_deadline_what_is_left_ends_incomplete(self) -> None:
        driver = Lockstep(limits=Limits(active=1))
        running = driver.create("1", lane="a")
        driver.say(running, TEN, TextDelta("half"))
        queued, waiting = driver.create("2", lane="a"), driver.create("3", lane="b")
        driver.drain(5)
        assert driver.connection.next_deadline() == driver.now + 5
        driver.wait(5)
        for turn in (running, queued, waiting):
            assert driver.status(turn) == ("incomplete", "server_draining")
        assert driver.closed is not None
        assert driver.stopped == [running] or waiting in driver.stopped

    def test_a_connection_that_was_half_closed_is_told_and_held_to_the_deadline(self) -> None:
        driver = Lockstep()
        turn = driver.create("1")
        driver.half_close()
        driver.drain(5)
        driver.wait(5)
        assert driver.status(turn) == ("incomplete", "server_draining")
        assert driver.closed is not None

    def test_a_second_drain_changes_nothing(self) -> None:
        driver = Lockstep()
        driver.create("1")
        driver.drain(5)
        driver.drain(50)
        assert len(driver.loose(events.SessionGoingAway)) == 1
        assert driver.connection.next_deadline() is not None

    def test_a_client_may_close_while_the_server_drains(self) -> None:
        driver = Lockstep()
        turn = driver.create("1")
        driver.drain(5)
        driver.half_close()
        driver.answer(turn)
        assert driver.closed is not None


class TestAge:
    TOO_OLD = ("websocket_connection_limit_reached", None)

    def test_an_idle_connection_says_why_and_closes(self) -> None:
        driver = Lockstep()
        driver.age()
        assert driver.errors == [self.TOO_OLD]
        assert driver.closed is not None
        assert driver.closed.error is None

    def test_what_runs_ends_and_nothing_new_begins(self) -> None:
        driver = Lockstep()
        turn = driver.create("go", append=True)
        driver.age()
        driver.create("late", event_id="late")
        driver.append(user("late"), lane="b")
        assert driver.errors == [self.TOO_OLD, self.TOO_OLD]
        assert driver.error_events[0].error.event_id == "late"
        (call_id,) = driver.call(turn)
        driver.append(output(call_id))
        driver.answer(turn)
        assert driver.status(turn) == ("completed", None)
        assert driver.errors == [self.TOO_OLD] * 3
        assert driver.closed is not None

    def test_it_may_still_be_drained(self) -> None:
        driver = Lockstep()
        turn = driver.create("hi")
        driver.age()
        driver.drain(5)
        driver.wait(5)
        assert driver.status(turn) == ("incomplete", "server_draining")
        assert driver.closed is not None


class TestDrop:
    def test_cn_01_everything_is_stopped_and_booked_and_nothing_is_sent(self) -> None:
        driver = Lockstep(limits=Limits(active=2))
        driver.reading = False
        starting, running = driver.create("1", lane="a"), driver.create("2", lane="b")
        driver.say(running, TEN, TextDelta("x", tokens=3))
        queued, waiting = driver.create("3", lane="a"), driver.create("4", lane="c")
        driver.drop()
        assert driver.stopped == [starting, running]
        assert {each.outcome for each in driver.records} == {"disconnected"}
        assert {each.response_id for each in driver.records} == {starting, running, queued, waiting}
        assert driver.record(running).usage.output_tokens == 3
        assert driver.read() == []
        assert driver.sampling == []
        assert driver.closed is not None

    def test_what_is_being_saved_is_still_saved_and_booked_as_it_ended(self) -> None:
        driver = Lockstep(store_answers=False)
        turn = driver.create("hi", store=True)
        driver.answer(turn)
        driver.drop()
        driver.saved(driver.saves[0])
        driver.settle()
        assert driver.record(turn).outcome == "completed"
        assert driver.types(turn)[-1] == "output_item.done"

    def test_late_answers_of_engine_and_store_find_nobody(self) -> None:
        driver = Lockstep(store_answers=False)
        running = driver.create("1", lane="a")
        loading = driver.create("2", lane="b", previous_response_id="resp_x")
        driver.drop()
        driver.say(running, TEN, TextDelta("x"), Finish())
        driver.fail(running)
        driver.loaded(driver.loads[0])
        driver.settle()
        assert [each.response_id for each in driver.records] == [running, loading]
        assert driver.audit.by_response == {}

    def test_a_dropped_connection_hears_nothing(self) -> None:
        driver = Lockstep()
        driver.drop()
        driver.create("hi")
        driver.append(user("x"))
        driver.cancel()
        driver.steer("r")
        driver.send("tieline.session.start")
        driver.half_close()
        driver.drain()
        driver.drop()
        driver.connection.reject(ApiError.of("invalid_json", "x"), event_id=None, stream_id=None)
        assert driver.read() == []
        assert driver.records == []

    def test_an_expelled_peer_gets_its_error_and_no_more(self) -> None:
        driver = Lockstep()
        turn = driver.create("hi")
        driver.say(turn, TEN, TextDelta("half"))
        error = ApiError.of("invalid_api_key", "Incorrect API key provided.")
        driver.connection.expel(error, event_id="e", stream_id="a")
        driver.settle()
        (last,) = driver.loose(events.ErrorEvent)
        assert (last.status, last.error.event_id, last.stream_id) == (401, "e", "a")
        assert driver.stopped == [turn]
        assert driver.closed is not None
        assert driver.closed.error is error


class TestPhase:
    def test_a_heartbeat_says_what_the_liveliest_lane_does(self) -> None:
        driver = Lockstep(limits=Limits(active=1))
        assert driver.connection.phase() == "idle"
        held = driver.create("1", lane="a", append=True)
        driver.call(held)
        assert driver.connection.phase() == "held"
        running = driver.create("2", lane="b")
        assert driver.connection.phase() == "prefill"
        waiting = driver.create("3", lane="c")
        driver.say(running, TEN, TextDelta("x"))
        assert driver.connection.phase() == "thinking"
        driver.cancel(stream_id="b")
        driver.cancel(response_id=held)
        assert driver.sampling == [waiting]
        driver.answer(waiting)
        assert driver.connection.phase() == "idle"

    def test_engines_are_told_the_connection_and_the_lane(self) -> None:
        driver = Lockstep()
        sessions = [
            driver.prompt(driver.create("hi", lane=lane)).session for lane in ("a", "b", None)
        ]
        assert len(set(sessions)) == 3
        driver.answer(driver.asked[0].turn)
        assert driver.prompt(driver.create("hi", lane="a")).session == sessions[0]


class TestMemory:
    def test_flatness_a_200_turn_chain_costs_what_is_new(self) -> None:
        """20 kB of tools sent in full each time: bytes read at turn 200 are those of turn 5."""
        driver = Lockstep()
        tools = [{"type": "function", "name": "f", "description": "x" * 20_000}]
        last, spent = None, []
        for _ in range(200):
            before = driver.connection.work.copy()
            settings: dict[str, Any] = {"tools": tools, "instructions": "z" * 500}
            last = driver.create("y" * 1000, previous_response_id=last, **settings)
            driver.answer(last, "w" * 1000)
            spent.append(driver.connection.work.since(before).total)
        assert spent[0] > 20_000
        assert spent[199] <= 1.05 * spent[4] < 2000
        assert driver.record(last or "").work.total == spent[199]

    def test_a_deleted_response_can_be_forgotten(self) -> None:
        driver = Lockstep()
        first = driver.create("one")
        driver.answer(first)
        driver.connection.memory.forget("local", first)
        driver.create("two", previous_response_id=first)
        assert driver.errors == [NOT_FOUND]

    def test_the_chain_of_the_latest_is_what_was_said(self) -> None:
        driver = Lockstep()
        turn = driver.create("go", append=True, lane="a")
        (call_id,) = driver.call(turn)
        driver.append(output(call_id, "42"), lane="a")
        driver.answer(turn, "it is 42")
        tip = driver.connection.memory.latest("a")
        assert tip is not None
        assert words(tip.node) == ["user: go", "call look", "output 42", "assistant: it is 42"]

    def test_numbers_are_absent_where_an_event_belongs_to_no_response(self) -> None:
        driver = Lockstep()
        driver.send("tieline.session.start")
        driver.drain()
        assert {event.sequence_number for event in driver.audit.loose} == {UNSET}
