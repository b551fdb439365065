"""Steers: accepted, pending, failed; the successor; what joins once (CN-04, CN-05)."""

from typing import Any

import msgspec
import pytest

from tests.support.core import STUBBORN, TEN, Lockstep, output, user
from tieline import events
from tieline.items import CALL_KINDS, decode
from tieline_server.core.create.limits import Limits, Share
from tieline_server.core.deltas import CallDelta, CallStart, Finish, ItemEnd, TextDelta
from tieline_server.core.stream.outbox import Outbox, Outgoing
from tieline_server.core.turn.steering import Steers

LOOK = CallStart(kind="function_call", name="look")


def running(driver: Lockstep, **members: Any) -> str:
    """A response that is in the middle of its first message."""
    turn = driver.create("go", **members)
    driver.say(turn, TEN, TextDelta("half"))
    return turn


def failure(driver: Lockstep) -> events.SteerFailed:
    """The one refused steer that no response counts."""
    (failed,) = driver.loose(events.SteerFailed)
    assert isinstance(failed, events.SteerFailed)
    return failed


def go_past(driver: Lockstep, turn: str) -> None:
    """The open item is finished and the engine begins another."""
    driver.say(turn, ItemEnd(), TextDelta("not heard"))


def successor(driver: Lockstep) -> str:
    """The response that was asked for last."""
    return driver.asked[-1].turn


class TestAccepted:
    def test_cn_04_the_item_is_finished_and_a_successor_starts_by_itself(self) -> None:
        driver = Lockstep()
        turn = running(driver, instructions="be kind", temperature=0.5)
        driver.steer(turn)
        (accepted,) = driver.of(turn, events.SteerAccepted)
        assert accepted.steer.id.startswith("steer_")
        assert accepted.steer.previous_response_id == turn
        driver.say(turn, TextDelta(" and whole"))
        go_past(driver, turn)
        assert driver.status(turn) == ("incomplete", "steered")
        assert driver.stopped == [turn]
        after = successor(driver)
        assert driver.context(after) == ["user: go", "assistant: half and whole", "user: shorter"]
        driver.answer(after)
        response = driver.response(after)
        assert response.previous_response_id == turn
        assert response.temperature == 0.5
        assert driver.prompt(after).settings.instructions == "be kind"

    @pytest.mark.parametrize("begun", [LOOK, TextDelta("x")])
    def test_what_would_follow_the_item_is_never_begun(self, begun: Any) -> None:
        driver = Lockstep()
        turn = driver.create("go")
        driver.say(turn, TEN, CallStart(kind="custom_tool_call", name="first"), CallDelta("a"))
        driver.steer(turn)
        driver.say(turn, begun)
        assert driver.status(turn) == ("incomplete", "steered")
        (item,) = driver.of(turn, events.OutputItemDone)
        assert msgspec.json.decode(item.item)["status"] == "completed"

    @pytest.mark.parametrize("end", [[Finish()], [ItemEnd(), Finish()]])
    def test_one_that_completes_first_is_completed_and_then_followed(self, end: list[Any]) -> None:
        driver = Lockstep()
        turn = running(driver)
        driver.steer(turn)
        driver.say(turn, *end)
        assert driver.status(turn) == ("completed", None)
        assert driver.context(successor(driver))[-1] == "user: shorter"

    def test_several_steers_go_on_together_in_order(self) -> None:
        driver = Lockstep()
        turn = running(driver)
        driver.steer(turn, "one")
        driver.steer(turn, [user("two"), user("three")])
        go_past(driver, turn)
        after = successor(driver)
        assert driver.context(after)[-3:] == ["user: one", "user: two", "user: three"]
        assert len(driver.asked) == 2

    def test_the_successor_goes_before_what_is_queued(self) -> None:
        driver = Lockstep()
        turn, queued = running(driver), driver.create("next")
        driver.steer(turn)
        go_past(driver, turn)
        after = successor(driver)
        assert after != queued
        driver.answer(after)
        assert driver.sampling == [queued]

    def test_an_accepted_steer_takes_the_responses_next_number(self) -> None:
        driver = Lockstep()
        turn = running(driver, lane="a")
        driver.steer(turn)
        (accepted,) = driver.of(turn, events.SteerAccepted)
        assert accepted.sequence_number == len(driver.types(turn)) - 1
        assert accepted.stream_id == "a"

    def test_a_successor_can_be_steered_in_turn(self) -> None:
        driver = Lockstep()
        turn = running(driver)
        driver.steer(turn, "one")
        go_past(driver, turn)
        after = successor(driver)
        driver.say(after, TEN, TextDelta("x"))
        driver.steer(after, "two")
        go_past(driver, after)
        assert driver.context(successor(driver)) == [
            "user: go",
            "assistant: half",
            "user: one",
            "assistant: x",
            "user: two",
        ]


class TestPending:
    def test_cn_04_open_calls_are_asked_for_and_the_steer_joins_their_answer_once(self) -> None:
        driver = Lockstep()
        turn = running(driver)
        driver.steer(turn)
        driver.say(turn, LOOK)
        driver.answer(successor(driver))
        turn = driver.create("again")
        driver.say(turn, TEN, LOOK, CallDelta("{}"))
        driver.steer(turn)
        driver.say(turn, Finish())
        assert driver.status(turn) == ("completed", None)
        (pending,) = driver.of(turn, events.SteerPending)
        (call_id,) = driver.turns[turn].node.open_calls  # type: ignore[union-attr]
        assert pending.reason == "waiting_for_required_input"
        assert [msgspec.json.decode(each) for each in pending.required_input] == [
            {"type": "function_call_output", "call_id": call_id, "name": "look"}
        ]
        assert driver.types(turn)[-2:] == ["completed", "steer.pending"]
        assert driver.sampling == [], "no successor by itself"
        after = driver.create([output(call_id)], previous_response_id=turn)
        assert driver.context(after) == ["user: again", "call look", "output done", "user: shorter"]
        driver.answer(after)
        last = driver.create("more", previous_response_id=after)
        assert driver.context(last).count("user: shorter") == 1

    def test_a_refused_create_does_not_use_it_up(self) -> None:
        driver = Lockstep()
        turn = driver.create("go", lane="a")
        driver.say(turn, TEN, LOOK, CallDelta("{}"))
        driver.steer(turn)
        driver.say(turn, Finish())
        (call_id,) = driver.turns[turn].node.open_calls  # type: ignore[union-attr]
        driver.create("forgot the output", previous_response_id=turn, lane="b")
        assert driver.errors == [("tool_output_missing", "input")]
        after = driver.create([output(call_id)], previous_response_id=turn, lane="a")
        assert driver.context(after)[-1] == "user: shorter"

    def test_nor_does_one_that_the_engine_refused(self) -> None:
        driver = Lockstep()
        turn = driver.create("go", lane="a")
        driver.say(turn, TEN, LOOK, CallDelta("{}"))
        driver.steer(turn)
        driver.say(turn, Finish())
        (call_id,) = driver.turns[turn].node.open_calls  # type: ignore[union-attr]
        answer = {"previous_response_id": turn, "lane": "b"}
        driver.fail(driver.create([output(call_id)], **answer), "server_is_overloaded")
        after = driver.create([output(call_id)], **answer)
        assert driver.context(after)[-1] == "user: shorter"

    def test_a_create_that_was_cancelled_while_queued_does_not_either(self) -> None:
        driver = Lockstep()
        turn = driver.create("go", lane="a")
        driver.say(turn, TEN, LOOK, CallDelta("{}"))
        driver.steer(turn)
        driver.say(turn, Finish())
        (call_id,) = driver.turns[turn].node.open_calls  # type: ignore[union-attr]
        blocker = driver.create("slow", lane="b")
        answer = {"previous_response_id": turn, "lane": "b"}
        driver.create([output(call_id)], event_id="second", **answer)
        driver.cancel(event_id="second", stream_id="b")
        driver.answer(blocker)
        after = driver.create([output(call_id)], **answer)
        assert driver.context(after)[-1] == "user: shorter"

    @pytest.mark.parametrize("kind", CALL_KINDS)
    def test_the_stub_of_every_kind_of_call_says_what_the_client_owes(self, kind: str) -> None:
        """wire.md 2.3."""
        pushed: list[Any] = []
        outgoing = Outgoing(merge_from=None, wake=lambda: None)
        steers = Steers("resp_1", Outbox(outgoing, None), Share(), "local")
        steers.accept([], "steer_1")
        members = {"type": kind, "id": "c", "call_id": "c", "name": "n", "execution": "client"}
        call = decode(msgspec.json.encode(members))
        steers.conclude(goes_on=True, open_calls={"c": call})
        while (event := outgoing.next()) is not None:
            pushed.append(event)
        (stub,) = [msgspec.json.decode(each) for each in pushed[-1].required_input]
        expected = {"type": CALL_KINDS[kind], "call_id": "c"}
        if kind == "function_call":
            expected["name"] = "n"
        elif kind == "tool_search_call":
            expected["execution"] = "client"
        elif kind == "mcp_approval_request":
            expected = {"type": CALL_KINDS[kind], "approval_request_id": "c"}
        assert stub == expected


class TestCancel:
    def test_one_that_crosses_a_steered_end_reaches_the_successor(self) -> None:
        driver = Lockstep()
        turn = running(driver)
        driver.steer(turn)
        go_past(driver, turn)
        after = successor(driver)
        driver.cancel(response_id=turn)
        assert driver.status(after) == ("cancelled", None)
        assert driver.status(turn) == ("incomplete", "steered")


class TestHeldTurns:
    def test_a_steer_of_a_held_turn_joins_the_next_append(self) -> None:
        driver = Lockstep()
        turn = driver.create("go", append=True)
        (call_id,) = driver.call(turn)
        driver.steer(turn)
        assert driver.types(turn)[-1] == "steer.accepted"
        driver.append(output(call_id))
        assert driver.context(turn) == ["user: go", "call look", "output done", "user: shorter"]
        driver.answer(turn)
        assert driver.status(turn) == ("completed", None)
        assert len(driver.asked) == 2, "no successor: it has been used"

    def test_so_does_one_that_came_just_before_the_turn_was_held(self) -> None:
        driver = Lockstep()
        turn = driver.create("go", append=True)
        driver.say(turn, TEN, LOOK, CallDelta("{}"))
        driver.steer(turn)
        driver.say(turn, Finish())
        assert driver.types(turn)[-1] == "done"
        (call_id,) = driver.turns[turn].node.open_calls  # type: ignore[union-attr]
        driver.append(output(call_id))
        assert driver.context(turn)[-1] == "user: shorter"

    def test_the_create_that_supersedes_a_held_turn_takes_its_steer(self) -> None:
        driver = Lockstep()
        turn = driver.create("go", append=True)
        (call_id,) = driver.call(turn)
        driver.steer(turn)
        after = driver.create([output(call_id)], previous_response_id=turn)
        assert driver.types(turn)[-2:] == ["incomplete", "steer.pending"]
        assert driver.context(after) == ["user: go", "call look", "output done", "user: shorter"]


class TestFailed:
    def test_cn_05_an_unknown_response_is_response_not_found_and_echoes_the_input(self) -> None:
        driver = Lockstep()
        driver.steer("resp_unknown", "shorter please")
        failed = failure(driver)
        assert failed.error.code == "response_not_found"
        assert failed.error.type == "invalid_request_error"
        assert failed.steer.previous_response_id == "resp_unknown"
        assert msgspec.json.decode(failed.steer.input) == "shorter please"  # type: ignore[arg-type]

    def test_cn_05_a_finished_one_whose_lane_moved_on_is_response_not_found(self) -> None:
        driver = Lockstep()
        old = driver.create("one")
        driver.answer(old)
        now = running(driver)
        driver.say(now, Finish())
        driver.steer(old)
        assert failure(driver).error.code == "response_not_found"
        after = driver.create("three", previous_response_id=now)
        assert "user: shorter" not in driver.context(after)

    def test_the_lanes_latest_is_response_already_completed(self) -> None:
        driver = Lockstep()
        turn = driver.create("one")
        driver.answer(turn)
        driver.steer(turn)
        assert failure(driver).error.code == "response_already_completed"

    def test_cn_05_another_connection_has_never_heard_of_it(self) -> None:
        first = Lockstep(seed=1)
        turn = running(first)
        first.steer(turn)
        first.drop()
        second = Lockstep(seed=2)
        after = second.create("hi")
        assert second.context(after) == ["user: hi"]

    def test_one_that_is_queued_or_starting_is_response_not_active(self) -> None:
        driver = Lockstep()
        first, second = driver.create("1", lane="a"), driver.create("2", lane="a")
        for turn in (first, second):
            driver.steer(turn)
        failed = driver.loose(events.SteerFailed)
        assert [each.error.code for each in failed] == ["response_not_active"] * 2
        assert {each.stream_id for each in failed} == {"a"}

    def test_one_that_is_being_saved_is_response_already_completed(self) -> None:
        driver = Lockstep(store_answers=False)
        turn = driver.create("hi", store=True)
        driver.answer(turn)
        driver.steer(turn)
        assert failure(driver).error.code == "response_already_completed"

    def test_a_model_that_cannot_be_steered_says_so_and_goes_on(self) -> None:
        driver = Lockstep()
        turn = running(driver, model=STUBBORN)
        driver.steer(turn)
        assert failure(driver).error.code == "steering_not_supported"
        driver.say(turn, Finish())
        assert driver.status(turn) == ("completed", None)

    def test_one_with_automatic_compaction_cannot_be_steered_and_goes_on(self) -> None:
        driver = Lockstep()
        turn = running(driver, context_management=[{"type": "compaction"}])
        driver.steer(turn)
        assert failure(driver).error.code == "steering_not_supported"
        driver.say(turn, Finish())
        assert driver.status(turn) == ("completed", None)

    def test_one_too_many_is_too_many_pending_steers(self) -> None:
        driver = Lockstep(limits=Limits(steers=2))
        turn = running(driver)
        for _ in range(3):
            driver.steer(turn)
        assert driver.types(turn).count("steer.accepted") == 2
        assert failure(driver).error.code == "too_many_pending_steers"

    @pytest.mark.parametrize(
        "input",
        [[], 7, [7], [output("c")], [{"role": "assistant", "content": "x"}], [user("a"), {}]],
    )
    def test_anything_but_user_messages_is_invalid_input(self, input: object) -> None:
        driver = Lockstep()
        turn = running(driver)
        driver.steer(turn, input)
        assert failure(driver).error.code == "invalid_input"
        driver.say(turn, ItemEnd(), Finish())
        assert driver.status(turn) == ("completed", None)

    def test_the_failure_names_the_member_at_fault_and_the_message(self) -> None:
        driver = Lockstep()
        named: dict[str, Any] = {"previous_response_id": running(driver), "event_id": "mine"}
        driver.send("response.steer", **named, input=[{"role": "user", "content": 7}])
        error = failure(driver).error
        assert (error.param, error.event_id) == ("input[0].content", "mine")

    def test_a_failure_for_want_of_a_turn_names_the_message(self) -> None:
        driver = Lockstep()
        queued = [driver.create(text, lane="a") for text in "12"][1]
        for target in (queued, "resp_unknown"):
            driver.send("response.steer", previous_response_id=target, input="x", event_id=target)
        failed = driver.loose(events.SteerFailed)
        assert [each.error.event_id for each in failed] == [queued, "resp_unknown"]

    def test_no_input_at_all_is_invalid_input(self) -> None:
        driver = Lockstep()
        driver.send("response.steer", previous_response_id=running(driver))
        assert failure(driver).error.code == "invalid_input"

    @pytest.mark.parametrize("end", ["cancel", "fail"])
    def test_a_response_that_ends_badly_fails_its_steers(self, end: str) -> None:
        driver = Lockstep()
        turn = running(driver)
        driver.steer(turn)
        if end == "cancel":
            driver.cancel()
        else:
            driver.fail(turn)
        (failed,) = driver.of(turn, events.SteerFailed)
        assert failed.error.code == "successor_creation_failed"
        assert failed.steer.id == driver.of(turn, events.SteerAccepted)[0].steer.id
        assert driver.sampling == []

    def test_at_a_drains_deadline_nothing_begins_any_more(self) -> None:
        driver = Lockstep()
        turn = running(driver)
        driver.steer(turn)
        driver.drain(5)
        driver.wait(5)
        assert driver.status(turn) == ("incomplete", "server_draining")
        assert driver.of(turn, events.SteerFailed)[0].error.code == "successor_creation_failed"
        assert driver.closed is not None
