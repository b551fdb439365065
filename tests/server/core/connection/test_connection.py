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
        line = Lockstep()
        first = line.create("pick a colour", instructions="be terse")
        line.answer(first, "teal")
        second = line.create("which colour?", previous_response_id=first)
        assert line.context(second) == [
            "user: pick a colour",
            "assistant: teal",
            "user: which colour?",
        ]
        assert line.prompt(second).settings.instructions is None

    def test_st_05_a_long_chain_remembers_every_step_once_and_in_order(self) -> None:
        line = Lockstep()
        expected, last = [], None
        for number in range(1, 6):
            last = line.create(f"fact {number}", previous_response_id=last)
            line.answer(last, f"noted {number}")
            expected += [f"user: fact {number}", f"assistant: noted {number}"]
        sixth = line.create("tell", previous_response_id=last)
        assert line.context(sixth) == [*expected, "user: tell"]
        assert line.prompt(sixth).chain.turn == 6

    def test_st_06_a_an_output_alone_continues_with_every_item_once(self) -> None:
        line = Lockstep()
        first = line.create("go")
        (call_id,) = line.call(first)
        second = line.create([output(call_id)], previous_response_id=first)
        assert line.context(second) == ["user: go", "call look", "output done"]
        named = [item.id for item in line.prompt(second).chain.items_of_chain() if item.id]
        assert len(named) == len(set(named))

    def test_st_06_b_a_repeated_item_is_a_400_that_names_it(self) -> None:
        line = Lockstep()
        first = line.create("go")
        (call_id,) = line.call(first)
        (item,) = line.turns[first].output.done
        again = {"type": "function_call", "id": item.id, "call_id": call_id, "name": "look"}
        again["arguments"] = "{}"
        line.create([again, output(call_id)], previous_response_id=first)
        (refused,) = line.error_events
        assert (refused.status, refused.error.param) == (400, "input")
        assert str(item.id) in refused.error.message

    def test_st_08_no_previous_id_is_a_new_chain_whatever_was_left_open(self) -> None:
        line = Lockstep()
        line.call(line.create("go"))
        second = line.create([user("summary: we use port 9"), user("go on")])
        assert line.context(second) == ["user: summary: we use port 9", "user: go on"]

    def test_settings_and_tools_are_never_inherited(self) -> None:
        line = Lockstep()
        tools = [{"type": "function", "name": "f"}]
        first = line.create("a", tools=tools, temperature=0.1, max_output_tokens=99)
        line.answer(first)
        second = line.create("b", previous_response_id=first)
        settings = line.prompt(second).settings
        assert settings.tools.offered == ()
        assert (settings.temperature, settings.max_output_tokens) == (None, None)

    @pytest.mark.parametrize("end", ["length", "cancel"])
    def test_incomplete_and_cancelled_can_be_continued(self, end: str) -> None:
        line = Lockstep()
        first = line.create("go")
        line.say(first, TEN, ReasoningDelta("hm"), TextDelta("half an ans"))
        if end == "length":
            line.say(first, Finish(reason="length"))
        else:
            line.cancel()
        second = line.create("go on", previous_response_id=first)
        kept = ["user: go", "reasoning", "assistant: half an ans", "user: go on"]
        assert line.context(second) == kept

    @pytest.mark.parametrize("unfinished", [[LOOK, CallDelta('{"a')], [ReasoningDelta("hm")]])
    def test_an_unfinished_call_or_thought_does_not_stay_in_the_chain(
        self, unfinished: list[Any]
    ) -> None:
        line = Lockstep()
        first = line.create("go")
        line.say(first, TEN, TextDelta("so"), *unfinished)
        line.cancel()
        second = line.create("go on", previous_response_id=first)
        assert line.context(second) == ["user: go", "assistant: so", "user: go on"]

    def test_a_whole_call_of_a_cancelled_response_still_wants_its_output(self) -> None:
        line = Lockstep()
        first = line.create("go")
        line.say(first, TEN, LOOK, CallDelta("{}"), ItemEnd(), TextDelta("and"))
        line.cancel()
        line.create("go on", previous_response_id=first)
        assert line.errors == [("tool_output_missing", "input")]

    def test_a_fork_shares_its_parents_links(self) -> None:
        line = Lockstep()
        root = line.create("root", lane="a")
        line.answer(root, "r")
        left = line.create("left", lane="a", previous_response_id=root)
        right = line.create("right", lane="b", previous_response_id=root)
        assert line.prompt(left).chain.parent is line.prompt(right).chain.parent


class TestEviction:
    def test_st_09_a_failed_continuation_evicts_its_parent(self) -> None:
        line = Lockstep()
        first = line.create("one")
        line.answer(first)
        line.create([output("nope")], previous_response_id=first)
        line.create("hello", previous_response_id=first)
        assert line.errors == [("tool_call_not_found", "input"), NOT_FOUND]
        assert (line.error_events[1].status, line.closed) == (400, None)
        assert first in line.error_events[1].error.message

    def test_st_09_with_store_true_it_comes_back_from_the_store(self) -> None:
        line = Lockstep()
        first = line.create("one", store=True)
        line.answer(first, "1")
        line.create([output("nope")], previous_response_id=first)
        third = line.create("hello", previous_response_id=first)
        assert line.context(third) == ["user: one", "assistant: 1", "user: hello"]

    def test_a_response_that_failed_evicts_its_parent_and_cannot_be_continued(self) -> None:
        line = Lockstep()
        first = line.create("one")
        line.answer(first)
        second = line.create("two", previous_response_id=first)
        line.say(second, TEN, TextDelta("x"))
        line.fail(second)
        for named in (first, second):
            line.create("three", previous_response_id=named)
        assert line.errors == [NOT_FOUND, NOT_FOUND]

    @pytest.mark.parametrize("announced", [False, True])
    def test_a_refusal_of_what_was_said_leaves_the_chain_that_it_was_said_to(
        self, announced: bool
    ) -> None:
        line = Lockstep()
        first = line.create("one")
        line.answer(first, "1")
        second = line.create("bad", previous_response_id=first)
        if announced:
            line.say(second, TEN)
        line.fail(second, "invalid_prompt")
        third = line.create("two", previous_response_id=first)
        assert line.context(third) == ["user: one", "assistant: 1", "user: two"]

    def test_a_stored_failed_response_cannot_be_continued_either(self) -> None:
        line = Lockstep()
        first = line.create("one", store=True)
        line.say(first, TEN)
        line.fail(first)
        assert line.stored["local", first].response.status == "failed"
        line.create("two", previous_response_id=first)
        assert line.errors == [NOT_FOUND]

    def test_a_queued_continuation_of_a_parent_that_was_evicted_keeps_its_pin(self) -> None:
        line = Lockstep()
        first = line.create("one")
        line.answer(first, "1")
        second = line.create("two", previous_response_id=first)
        third = line.create("three", previous_response_id=first)
        line.fail(second)
        assert line.context(third) == ["user: one", "assistant: 1", "user: three"]

    def test_mx_05_a_failed_fork_on_another_lane_leaves_the_parent(self) -> None:
        line = Lockstep()
        first = line.create("one", lane="m")
        line.answer(first, "1")
        line.create([output("nope")], lane="f2", previous_response_id=first)
        second = line.create("two", lane="m", previous_response_id=first)
        assert line.context(second) == ["user: one", "assistant: 1", "user: two"]

    def test_an_unknown_id_evicts_nothing(self) -> None:
        line = Lockstep()
        first = line.create("one")
        line.answer(first)
        line.create("two", previous_response_id="resp_unknown")
        assert line.create("three", previous_response_id=first) in line.sampling

    def test_store_false_an_older_response_of_the_lane_is_not_found(self) -> None:
        line = Lockstep()
        first = line.create("one")
        line.answer(first)
        line.answer(line.create("two", previous_response_id=first))
        line.create("three", previous_response_id=first)
        assert line.errors == [NOT_FOUND]

    def test_store_false_is_not_reachable_from_another_line(self) -> None:
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
        line = Lockstep()
        first = line.create("one", lane="m")
        line.answer(first, "1")
        slow = line.create("slow", lane="f")
        fork = line.create("fork", lane="f", previous_response_id=first)
        line.answer(line.create("two", lane="m", previous_response_id=first), "2")
        line.answer(slow)
        assert line.context(fork) == ["user: one", "assistant: 1", "user: fork"]

    def test_mx_05_also_behind_a_busy_place(self) -> None:
        line = Lockstep(limits=Limits(active=1))
        first = line.create("one", lane="m")
        line.answer(first, "1")
        slow = line.create("slow", lane="x")
        fork = line.create("fork", lane="f", previous_response_id=first)
        second = line.create("two", lane="m", previous_response_id=first)
        line.answer(slow)
        line.answer(fork, "f")
        line.answer(second, "2")
        assert line.context(fork) == ["user: one", "assistant: 1", "user: fork"]
        assert line.context(second) == ["user: one", "assistant: 1", "user: two"]

    def test_a_parent_found_at_its_turn_is_held_while_the_store_is_asked_for_items(self) -> None:
        line = Lockstep(store_answers=False)
        old = line.create([{**user("old"), "id": "msg_old"}], store=True)
        line.answer(old)
        line.saved(line.saves[0])
        line.settle()
        parent = line.create("one", lane="m")
        fork_behind = line.create("slow", lane="f")
        reference = {"type": "item_reference", "id": "msg_old"}
        fork = line.create([reference], lane="f", previous_response_id=parent)
        line.answer(parent, "1")
        line.answer(fork_behind)
        line.answer(line.create("two", lane="m", previous_response_id=parent))
        (load,) = line.loads
        assert (load.response_id, load.item_ids) == (None, ("msg_old",))
        line.loaded(load)
        line.settle()
        assert line.context(fork) == ["user: one", "assistant: 1", "user: old"]


class TestLoading:
    def test_parent_and_items_are_asked_for_together_and_once(self) -> None:
        line = Lockstep()
        first = line.create([{**user("one"), "id": "msg_1"}], store=True, lane="a")
        line.answer(first, "1")
        line.answer(line.create("else", lane="a"))
        second = line.create(
            [{"type": "item_reference", "id": "msg_1"}, user("two")],
            previous_response_id=first,
        )
        (load,) = line.loads
        assert (load.response_id, load.item_ids, load.owner) == (first, ("msg_1",), "local")
        assert line.context(second) == ["user: one", "assistant: 1", "user: two"]

    def test_a_stored_item_joins_another_chain(self) -> None:
        line = Lockstep()
        line.answer(line.create([{**user("one"), "id": "msg_1"}], store=True))
        second = line.create([{"type": "item_reference", "id": "msg_1"}, user("two")])
        assert line.context(second) == ["user: one", "user: two"]

    def test_what_the_line_knows_is_not_asked_of_the_store(self) -> None:
        line = Lockstep()
        first = line.create("one", store=True)
        line.answer(first)
        line.create("two", previous_response_id=first)
        assert line.loads == []

    def test_an_unknown_item_is_item_not_found(self) -> None:
        line = Lockstep()
        line.create([{"type": "item_reference", "id": "msg_x"}])
        assert line.errors == [("item_not_found", "input")]

    def test_au_01_another_owners_response_is_like_an_unknown_one(self) -> None:
        line = Lockstep()
        secret = line.send(
            "response.create", model="m", input="codeword fig", principal=ALICE, stream_id="a"
        )
        line.answer(secret)
        item_id = line.turns[secret].output.done[0].id
        asks: list[dict[str, Any]] = [
            {"previous_response_id": secret, "input": "what codeword?"},
            {"input": [{"type": "item_reference", "id": item_id}]},
        ]
        for body in asks:
            line.send("response.create", model="m", principal=BOB, stream_id="b", **body)
        assert line.errors == [NOT_FOUND, ("item_not_found", "input")]
        assert line.sampling == []
        line.send("response.append", input=[user("x")], principal=BOB, stream_id="a")
        assert line.errors[-1] == ("nothing_to_append", None)

    def test_tl_03_an_open_call_of_a_loaded_parent_is_named(self) -> None:
        line = Lockstep()
        first = line.create("go", store=True, lane="a")
        line.say(first, TEN, CallStart(kind="custom_tool_call", name="p"), Finish())
        (call_id,) = line.stored["local", first].head.node.open_calls
        line.answer(line.create("else", lane="a"))
        line.create("hi", previous_response_id=first)
        (refused,) = line.error_events
        assert refused.error.message == f"No tool output found for custom tool call {call_id}."
        answer = {"type": "custom_tool_call_output", "call_id": call_id, "output": "x"}
        assert line.create([answer], previous_response_id=first) in line.sampling


class TestModels:
    def test_a_key_may_be_kept_from_a_model(self) -> None:
        """AU-02: per create; the line lives on."""
        line = Lockstep()
        only = Principal(models=frozenset({"m"}))
        line.send("response.create", model="stubborn", input="hi", principal=only)
        (refused,) = line.error_events
        assert (refused.status, refused.error.code) == (403, "model_not_allowed")
        assert line.send("response.create", model="m", input="hi", principal=only) in line.sampling

    def test_no_model_is_the_first_one(self) -> None:
        line = Lockstep()
        turn = line.send("response.create", input="hi")
        assert line.prompt(turn).model == "m"

    def test_a_long_unknown_name_is_cut_in_the_message(self) -> None:
        line = Lockstep()
        line.create("hi", model="x" * 10_000)
        assert len(line.error_events[0].error.message) < 200


class TestSession:
    def test_a_session_says_what_the_server_offers(self) -> None:
        line = Lockstep(limits=Limits(active=3, lanes=5))
        line.send("tieline.session.start", max_receive_bytes=1000)
        (started,) = line.loose(events.SessionStarted)
        assert (started.revision, started.session_id) == (REVISION, line.line.id)
        assert started.extensions == list(EXTENSIONS)
        assert (started.limits["active_responses"], started.limits["lanes"]) == (3, 5)
        assert started.limits["held_timeout_ms"] == 900_000
        assert line.line.max_receive_bytes == 1000

    def test_cn_16_only_the_first_message_starts_one(self) -> None:
        line = Lockstep()
        line.receive(ClientHeartbeat())
        line.send("tieline.session.start", merge="never", max_receive_bytes=9, event_id="late")
        (refused,) = line.error_events
        assert (refused.status, refused.error.code) == (400, "invalid_event")
        assert "first message" in refused.error.message
        assert refused.error.event_id == "late"
        assert line.loose(events.SessionStarted) == []
        assert line.line.max_receive_bytes is None
        assert line.create("still there") in line.sampling

    def test_it_may_turn_merging_off(self) -> None:
        line = Lockstep(merge=True)
        line.send("tieline.session.start", merge="never")
        turn = line.create("hi")
        line.reading = False
        line.say(turn, TEN, *[TextDelta("x")] * 100)
        assert sum(isinstance(each, events.OutputTextDelta) for each in line.read()) == 100

    def test_without_that_a_slow_reader_gets_deltas_merged_and_numbers_without_gaps(self) -> None:
        line = Lockstep(merge=True)
        turn = line.create("hi")
        line.reading = False
        line.say(turn, TEN, *[TextDelta("x")] * 100)
        assert line.turns[turn].outbox.unsent == 16
        line.read()
        line.reading = True
        line.say(turn, Finish())
        deltas = line.of(turn, events.OutputTextDelta)
        assert "".join(each.delta for each in deltas) == "x" * 100
        assert line.status(turn) == ("completed", None)

    def test_notices_need_no_answer(self) -> None:
        line = Lockstep()
        line.receive(Processed(response_id="r"))
        line.receive(ClientHeartbeat(phase="idle"))
        assert line.audit.loose == []

    def test_an_unknown_event_is_a_typed_error_and_the_line_lives(self) -> None:
        line = Lockstep()
        line.receive(Opaque(name="vendor.thing", raw=b"{}", event_id="e"))  # type: ignore[arg-type]
        (refused,) = line.error_events
        assert (refused.status, refused.error.code) == (400, "invalid_event")
        assert refused.error.event_id == "e"
        assert line.create("hi") in line.sampling

    def test_a_rejected_message_never_takes_a_running_turns_number(self) -> None:
        line = Lockstep()
        turn = line.create("hi")
        line.say(turn, TEN)
        error = ApiError.of("invalid_json", "The message is not valid JSON.")
        line.line.reject(error, event_id=None, stream_id=None)
        line.answer(turn)
        assert line.error_events[0].sequence_number == 0
        assert line.status(turn) == ("completed", None)

    def test_session_end_lets_what_runs_end_and_refuses_what_comes_late(self) -> None:
        line = Lockstep()
        first, second = line.create("1"), line.create("2")
        line.send("tieline.session.end")
        line.create("3", event_id="late")
        assert line.errors == [("invalid_event", None)]
        line.answer(first)
        assert line.closed is None
        line.answer(second)
        assert line.closed is not None
        assert line.closed.error is None
        assert line.line.state == "closed"

    def test_session_end_of_an_idle_line_closes_it_at_once(self) -> None:
        line = Lockstep()
        line.answer(line.create("hi"))
        line.send("tieline.session.end")
        assert line.closed is not None

    @pytest.mark.parametrize("busy", [True, False])
    def test_half_close_closes_when_nothing_runs(self, busy: bool) -> None:
        line = Lockstep()
        turn = line.create("hi") if busy else None
        line.half_close()
        assert (line.closed is None) is busy
        if turn is not None:
            line.answer(turn)
        assert line.closed is not None

    def test_half_close_ends_what_is_held_and_what_will_be(self) -> None:
        line = Lockstep()
        now = line.create("1", lane="a", append=True)
        line.call(now)
        later = line.create("2", lane="b", append=True)
        line.half_close()
        assert line.status(now) == ("cancelled", None)
        line.call(later)
        assert line.types(later)[-2:] == ["done", "incomplete"]
        assert line.closed is not None

    def test_cancel_is_still_heard_after_half_close(self) -> None:
        line = Lockstep()
        turn = line.create("hi")
        line.send("tieline.session.end")
        line.cancel(response_id=turn)
        assert line.closed is not None


class TestDrain:
    def test_the_client_is_told_running_turns_end_and_new_ones_are_refused(self) -> None:
        line = Lockstep()
        first, second = line.create("1"), line.create("2")
        line.drain(30)
        (going,) = line.loose(events.SessionGoingAway)
        assert going.seconds == 30
        line.create("3", event_id="late")
        (refused,) = line.error_events
        assert (refused.status, refused.error.code) == (503, "server_draining")
        assert (refused.error.retry_after, refused.error.event_id) == (1.0, "late")
        line.answer(first)
        line.answer(second)
        assert line.closed is not None

    def test_an_idle_line_closes_at_once(self) -> None:
        line = Lockstep()
        line.drain()
        assert line.closed is not None

    def test_a_held_turn_may_still_be_answered_and_a_lane_may_not_begin_anew(self) -> None:
        line = Lockstep()
        turn = line.create("go", append=True)
        (call_id,) = line.call(turn)
        line.drain()
        line.append(user("x"), lane="b")
        assert line.errors == [("server_draining", None)]
        line.append(output(call_id))
        line.answer(turn)
        assert line.status(turn) == ("completed", None)
        assert line.closed is not None

    def test_at_the_deadline_what_is_left_ends_incomplete(self) -> None:
        line = Lockstep(limits=Limits(active=1))
        running = line.create("1", lane="a")
        line.say(running, TEN, TextDelta("half"))
        queued, waiting = line.create("2", lane="a"), line.create("3", lane="b")
        line.drain(5)
        assert line.line.next_deadline() == line.now + 5
        line.wait(5)
        for turn in (running, queued, waiting):
            assert line.status(turn) == ("incomplete", "server_draining")
        assert line.closed is not None
        assert line.stopped == [running] or waiting in line.stopped

    def test_a_line_that_was_half_closed_is_told_and_held_to_the_deadline(self) -> None:
        line = Lockstep()
        turn = line.create("1")
        line.half_close()
        line.drain(5)
        line.wait(5)
        assert line.status(turn) == ("incomplete", "server_draining")
        assert line.closed is not None

    def test_a_second_drain_changes_nothing(self) -> None:
        line = Lockstep()
        line.create("1")
        line.drain(5)
        line.drain(50)
        assert len(line.loose(events.SessionGoingAway)) == 1
        assert line.line.next_deadline() is not None

    def test_a_client_may_close_while_the_server_drains(self) -> None:
        line = Lockstep()
        turn = line.create("1")
        line.drain(5)
        line.half_close()
        line.answer(turn)
        assert line.closed is not None


class TestAge:
    TOO_OLD = ("websocket_connection_limit_reached", None)

    def test_an_idle_line_says_why_and_closes(self) -> None:
        line = Lockstep()
        line.age()
        assert line.errors == [self.TOO_OLD]
        assert line.closed is not None
        assert line.closed.error is None

    def test_what_runs_ends_and_nothing_new_begins(self) -> None:
        line = Lockstep()
        turn = line.create("go", append=True)
        line.age()
        line.create("late", event_id="late")
        line.append(user("late"), lane="b")
        assert line.errors == [self.TOO_OLD, self.TOO_OLD]
        assert line.error_events[0].error.event_id == "late"
        (call_id,) = line.call(turn)
        line.append(output(call_id))
        line.answer(turn)
        assert line.status(turn) == ("completed", None)
        assert line.errors == [self.TOO_OLD] * 3
        assert line.closed is not None

    def test_it_may_still_be_drained(self) -> None:
        line = Lockstep()
        turn = line.create("hi")
        line.age()
        line.drain(5)
        line.wait(5)
        assert line.status(turn) == ("incomplete", "server_draining")
        assert line.closed is not None


class TestDrop:
    def test_cn_01_everything_is_stopped_and_booked_and_nothing_is_sent(self) -> None:
        line = Lockstep(limits=Limits(active=2))
        line.reading = False
        starting, running = line.create("1", lane="a"), line.create("2", lane="b")
        line.say(running, TEN, TextDelta("x", tokens=3))
        queued, waiting = line.create("3", lane="a"), line.create("4", lane="c")
        line.drop()
        assert line.stopped == [starting, running]
        assert {each.outcome for each in line.records} == {"disconnected"}
        assert {each.response_id for each in line.records} == {starting, running, queued, waiting}
        assert line.record(running).usage.output_tokens == 3
        assert line.read() == []
        assert line.sampling == []
        assert line.closed is not None

    def test_what_is_being_saved_is_still_saved_and_booked_as_it_ended(self) -> None:
        line = Lockstep(store_answers=False)
        turn = line.create("hi", store=True)
        line.answer(turn)
        line.drop()
        line.saved(line.saves[0])
        line.settle()
        assert line.record(turn).outcome == "completed"
        assert line.types(turn)[-1] == "output_item.done"

    def test_late_answers_of_engine_and_store_find_nobody(self) -> None:
        line = Lockstep(store_answers=False)
        running = line.create("1", lane="a")
        loading = line.create("2", lane="b", previous_response_id="resp_x")
        line.drop()
        line.say(running, TEN, TextDelta("x"), Finish())
        line.fail(running)
        line.loaded(line.loads[0])
        line.settle()
        assert [each.response_id for each in line.records] == [running, loading]
        assert line.audit.by_response == {}

    def test_a_dropped_line_hears_nothing(self) -> None:
        line = Lockstep()
        line.drop()
        line.create("hi")
        line.append(user("x"))
        line.cancel()
        line.steer("r")
        line.send("tieline.session.start")
        line.half_close()
        line.drain()
        line.drop()
        line.line.reject(ApiError.of("invalid_json", "x"), event_id=None, stream_id=None)
        assert line.read() == []
        assert line.records == []

    def test_an_expelled_peer_gets_its_error_and_no_more(self) -> None:
        line = Lockstep()
        turn = line.create("hi")
        line.say(turn, TEN, TextDelta("half"))
        error = ApiError.of("invalid_api_key", "Incorrect API key provided.")
        line.line.expel(error, event_id="e", stream_id="a")
        line.settle()
        (last,) = line.loose(events.ErrorEvent)
        assert (last.status, last.error.event_id, last.stream_id) == (401, "e", "a")
        assert line.stopped == [turn]
        assert line.closed is not None
        assert line.closed.error is error


class TestPhase:
    def test_a_heartbeat_says_what_the_liveliest_lane_does(self) -> None:
        line = Lockstep(limits=Limits(active=1))
        assert line.line.phase() == "idle"
        held = line.create("1", lane="a", append=True)
        line.call(held)
        assert line.line.phase() == "held"
        running = line.create("2", lane="b")
        assert line.line.phase() == "prefill"
        waiting = line.create("3", lane="c")
        line.say(running, TEN, TextDelta("x"))
        assert line.line.phase() == "thinking"
        line.cancel(stream_id="b")
        line.cancel(response_id=held)
        assert line.sampling == [waiting]
        line.answer(waiting)
        assert line.line.phase() == "idle"

    def test_engines_are_told_the_line_and_the_lane(self) -> None:
        line = Lockstep()
        sessions = [line.prompt(line.create("hi", lane=lane)).session for lane in ("a", "b", None)]
        assert len(set(sessions)) == 3
        line.answer(line.asked[0].turn)
        assert line.prompt(line.create("hi", lane="a")).session == sessions[0]


class TestMemory:
    def test_flatness_a_200_turn_chain_costs_what_is_new(self) -> None:
        """20 kB of tools sent in full each time: bytes read at turn 200 are those of turn 5."""
        line = Lockstep()
        tools = [{"type": "function", "name": "f", "description": "x" * 20_000}]
        last, spent = None, []
        for _ in range(200):
            before = line.line.work.copy()
            settings: dict[str, Any] = {"tools": tools, "instructions": "z" * 500}
            last = line.create("y" * 1000, previous_response_id=last, **settings)
            line.answer(last, "w" * 1000)
            spent.append(line.line.work.since(before).total)
        assert spent[0] > 20_000
        assert spent[199] <= 1.05 * spent[4] < 2000
        assert line.record(last or "").work.total == spent[199]

    def test_a_deleted_response_can_be_forgotten(self) -> None:
        line = Lockstep()
        first = line.create("one")
        line.answer(first)
        line.line.memory.forget("local", first)
        line.create("two", previous_response_id=first)
        assert line.errors == [NOT_FOUND]

    def test_the_chain_of_the_latest_is_what_was_said(self) -> None:
        line = Lockstep()
        turn = line.create("go", append=True, lane="a")
        (call_id,) = line.call(turn)
        line.append(output(call_id, "42"), lane="a")
        line.answer(turn, "it is 42")
        tip = line.line.memory.latest("a")
        assert tip is not None
        assert words(tip.node) == ["user: go", "call look", "output 42", "assistant: it is 42"]

    def test_numbers_are_absent_where_an_event_belongs_to_no_response(self) -> None:
        line = Lockstep()
        line.send("tieline.session.start")
        line.drain()
        assert {event.sequence_number for event in line.audit.loose} == {UNSET}
