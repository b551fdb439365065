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


def running(line: Lockstep, **members: Any) -> str:
    """A response that is in the middle of its first message."""
    turn = line.create("go", **members)
    line.say(turn, TEN, TextDelta("half"))
    return turn


def failure(line: Lockstep) -> events.SteerFailed:
    """The one refused steer that no response counts."""
    (failed,) = line.loose(events.SteerFailed)
    assert isinstance(failed, events.SteerFailed)
    return failed


def go_past(line: Lockstep, turn: str) -> None:
    """The open item is finished and the engine begins another."""
    line.say(turn, ItemEnd(), TextDelta("not heard"))


def successor(line: Lockstep) -> str:
    """The response that was asked for last."""
    return line.asked[-1].turn


class TestAccepted:
    def test_cn_04_the_item_is_finished_and_a_successor_starts_by_itself(self) -> None:
        line = Lockstep()
        turn = running(line, instructions="be kind", temperature=0.5)
        line.steer(turn)
        (accepted,) = line.of(turn, events.SteerAccepted)
        assert accepted.steer.id.startswith("steer_")
        assert accepted.steer.previous_response_id == turn
        line.say(turn, TextDelta(" and whole"))
        go_past(line, turn)
        assert line.status(turn) == ("incomplete", "steered")
        assert line.stopped == [turn]
        after = successor(line)
        assert line.context(after) == ["user: go", "assistant: half and whole", "user: shorter"]
        line.answer(after)
        response = line.response(after)
        assert response.previous_response_id == turn
        assert response.temperature == 0.5
        assert line.prompt(after).settings.instructions == "be kind"

    @pytest.mark.parametrize("begun", [LOOK, TextDelta("x")])
    def test_what_would_follow_the_item_is_never_begun(self, begun: Any) -> None:
        line = Lockstep()
        turn = line.create("go")
        line.say(turn, TEN, CallStart(kind="custom_tool_call", name="first"), CallDelta("a"))
        line.steer(turn)
        line.say(turn, begun)
        assert line.status(turn) == ("incomplete", "steered")
        (item,) = line.of(turn, events.OutputItemDone)
        assert msgspec.json.decode(item.item)["status"] == "completed"

    @pytest.mark.parametrize("end", [[Finish()], [ItemEnd(), Finish()]])
    def test_one_that_completes_first_is_completed_and_then_followed(self, end: list[Any]) -> None:
        line = Lockstep()
        turn = running(line)
        line.steer(turn)
        line.say(turn, *end)
        assert line.status(turn) == ("completed", None)
        assert line.context(successor(line))[-1] == "user: shorter"

    def test_several_steers_go_on_together_in_order(self) -> None:
        line = Lockstep()
        turn = running(line)
        line.steer(turn, "one")
        line.steer(turn, [user("two"), user("three")])
        go_past(line, turn)
        after = successor(line)
        assert line.context(after)[-3:] == ["user: one", "user: two", "user: three"]
        assert len(line.asked) == 2

    def test_the_successor_goes_before_what_is_queued(self) -> None:
        line = Lockstep()
        turn, queued = running(line), line.create("next")
        line.steer(turn)
        go_past(line, turn)
        after = successor(line)
        assert after != queued
        line.answer(after)
        assert line.sampling == [queued]

    def test_an_accepted_steer_takes_the_responses_next_number(self) -> None:
        line = Lockstep()
        turn = running(line, lane="a")
        line.steer(turn)
        (accepted,) = line.of(turn, events.SteerAccepted)
        assert accepted.sequence_number == len(line.types(turn)) - 1
        assert accepted.stream_id == "a"

    def test_a_successor_can_be_steered_in_turn(self) -> None:
        line = Lockstep()
        turn = running(line)
        line.steer(turn, "one")
        go_past(line, turn)
        after = successor(line)
        line.say(after, TEN, TextDelta("x"))
        line.steer(after, "two")
        go_past(line, after)
        assert line.context(successor(line)) == [
            "user: go",
            "assistant: half",
            "user: one",
            "assistant: x",
            "user: two",
        ]


class TestPending:
    def test_cn_04_open_calls_are_asked_for_and_the_steer_joins_their_answer_once(self) -> None:
        line = Lockstep()
        turn = running(line)
        line.steer(turn)
        line.say(turn, LOOK)
        line.answer(successor(line))
        turn = line.create("again")
        line.say(turn, TEN, LOOK, CallDelta("{}"))
        line.steer(turn)
        line.say(turn, Finish())
        assert line.status(turn) == ("completed", None)
        (pending,) = line.of(turn, events.SteerPending)
        (call_id,) = line.turns[turn].node.open_calls  # type: ignore[union-attr]
        assert pending.reason == "waiting_for_required_input"
        assert [msgspec.json.decode(each) for each in pending.required_input] == [
            {"type": "function_call_output", "call_id": call_id, "name": "look"}
        ]
        assert line.types(turn)[-2:] == ["completed", "steer.pending"]
        assert line.sampling == [], "no successor by itself"
        after = line.create([output(call_id)], previous_response_id=turn)
        assert line.context(after) == ["user: again", "call look", "output done", "user: shorter"]
        line.answer(after)
        last = line.create("more", previous_response_id=after)
        assert line.context(last).count("user: shorter") == 1

    def test_a_refused_create_does_not_use_it_up(self) -> None:
        line = Lockstep()
        turn = line.create("go", lane="a")
        line.say(turn, TEN, LOOK, CallDelta("{}"))
        line.steer(turn)
        line.say(turn, Finish())
        (call_id,) = line.turns[turn].node.open_calls  # type: ignore[union-attr]
        line.create("forgot the output", previous_response_id=turn, lane="b")
        assert line.errors == [("tool_output_missing", "input")]
        after = line.create([output(call_id)], previous_response_id=turn, lane="a")
        assert line.context(after)[-1] == "user: shorter"

    def test_nor_does_one_that_the_engine_refused(self) -> None:
        line = Lockstep()
        turn = line.create("go", lane="a")
        line.say(turn, TEN, LOOK, CallDelta("{}"))
        line.steer(turn)
        line.say(turn, Finish())
        (call_id,) = line.turns[turn].node.open_calls  # type: ignore[union-attr]
        answer = {"previous_response_id": turn, "lane": "b"}
        line.fail(line.create([output(call_id)], **answer), "server_is_overloaded")
        after = line.create([output(call_id)], **answer)
        assert line.context(after)[-1] == "user: shorter"

    def test_a_create_that_was_cancelled_while_queued_does_not_either(self) -> None:
        line = Lockstep()
        turn = line.create("go", lane="a")
        line.say(turn, TEN, LOOK, CallDelta("{}"))
        line.steer(turn)
        line.say(turn, Finish())
        (call_id,) = line.turns[turn].node.open_calls  # type: ignore[union-attr]
        blocker = line.create("slow", lane="b")
        answer = {"previous_response_id": turn, "lane": "b"}
        line.create([output(call_id)], event_id="second", **answer)
        line.cancel(event_id="second", stream_id="b")
        line.answer(blocker)
        after = line.create([output(call_id)], **answer)
        assert line.context(after)[-1] == "user: shorter"

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
        line = Lockstep()
        turn = running(line)
        line.steer(turn)
        go_past(line, turn)
        after = successor(line)
        line.cancel(response_id=turn)
        assert line.status(after) == ("cancelled", None)
        assert line.status(turn) == ("incomplete", "steered")


class TestHeldTurns:
    def test_a_steer_of_a_held_turn_joins_the_next_append(self) -> None:
        line = Lockstep()
        turn = line.create("go", append=True)
        (call_id,) = line.call(turn)
        line.steer(turn)
        assert line.types(turn)[-1] == "steer.accepted"
        line.append(output(call_id))
        assert line.context(turn) == ["user: go", "call look", "output done", "user: shorter"]
        line.answer(turn)
        assert line.status(turn) == ("completed", None)
        assert len(line.asked) == 2, "no successor: it has been used"

    def test_so_does_one_that_came_just_before_the_turn_was_held(self) -> None:
        line = Lockstep()
        turn = line.create("go", append=True)
        line.say(turn, TEN, LOOK, CallDelta("{}"))
        line.steer(turn)
        line.say(turn, Finish())
        assert line.types(turn)[-1] == "done"
        (call_id,) = line.turns[turn].node.open_calls  # type: ignore[union-attr]
        line.append(output(call_id))
        assert line.context(turn)[-1] == "user: shorter"

    def test_the_create_that_supersedes_a_held_turn_takes_its_steer(self) -> None:
        line = Lockstep()
        turn = line.create("go", append=True)
        (call_id,) = line.call(turn)
        line.steer(turn)
        after = line.create([output(call_id)], previous_response_id=turn)
        assert line.types(turn)[-2:] == ["incomplete", "steer.pending"]
        assert line.context(after) == ["user: go", "call look", "output done", "user: shorter"]


class TestFailed:
    def test_cn_05_an_unknown_response_is_response_not_found_and_echoes_the_input(self) -> None:
        line = Lockstep()
        line.steer("resp_unknown", "shorter please")
        failed = failure(line)
        assert failed.error.code == "response_not_found"
        assert failed.error.type == "invalid_request_error"
        assert failed.steer.previous_response_id == "resp_unknown"
        assert msgspec.json.decode(failed.steer.input) == "shorter please"  # type: ignore[arg-type]

    def test_cn_05_a_finished_one_whose_lane_moved_on_is_response_not_found(self) -> None:
        line = Lockstep()
        old = line.create("one")
        line.answer(old)
        now = running(line)
        line.say(now, Finish())
        line.steer(old)
        assert failure(line).error.code == "response_not_found"
        after = line.create("three", previous_response_id=now)
        assert "user: shorter" not in line.context(after)

    def test_the_lanes_latest_is_response_already_completed(self) -> None:
        line = Lockstep()
        turn = line.create("one")
        line.answer(turn)
        line.steer(turn)
        assert failure(line).error.code == "response_already_completed"

    def test_cn_05_another_line_has_never_heard_of_it(self) -> None:
        first = Lockstep(seed=1)
        turn = running(first)
        first.steer(turn)
        first.drop()
        second = Lockstep(seed=2)
        after = second.create("hi")
        assert second.context(after) == ["user: hi"]

    def test_one_that_is_queued_or_starting_is_response_not_active(self) -> None:
        line = Lockstep()
        first, second = line.create("1", lane="a"), line.create("2", lane="a")
        for turn in (first, second):
            line.steer(turn)
        failed = line.loose(events.SteerFailed)
        assert [each.error.code for each in failed] == ["response_not_active"] * 2
        assert {each.stream_id for each in failed} == {"a"}

    def test_one_that_is_being_saved_is_response_already_completed(self) -> None:
        line = Lockstep(store_answers=False)
        turn = line.create("hi", store=True)
        line.answer(turn)
        line.steer(turn)
        assert failure(line).error.code == "response_already_completed"

    def test_a_model_that_cannot_be_steered_says_so_and_goes_on(self) -> None:
        line = Lockstep()
        turn = running(line, model=STUBBORN)
        line.steer(turn)
        assert failure(line).error.code == "steering_not_supported"
        line.say(turn, Finish())
        assert line.status(turn) == ("completed", None)

    def test_one_with_automatic_compaction_cannot_be_steered_and_goes_on(self) -> None:
        line = Lockstep()
        turn = running(line, context_management=[{"type": "compaction"}])
        line.steer(turn)
        assert failure(line).error.code == "steering_not_supported"
        line.say(turn, Finish())
        assert line.status(turn) == ("completed", None)

    def test_one_too_many_is_too_many_pending_steers(self) -> None:
        line = Lockstep(limits=Limits(steers=2))
        turn = running(line)
        for _ in range(3):
            line.steer(turn)
        assert line.types(turn).count("steer.accepted") == 2
        assert failure(line).error.code == "too_many_pending_steers"

    @pytest.mark.parametrize(
        "input",
        [[], 7, [7], [output("c")], [{"role": "assistant", "content": "x"}], [user("a"), {}]],
    )
    def test_anything_but_user_messages_is_invalid_input(self, input: object) -> None:
        line = Lockstep()
        turn = running(line)
        line.steer(turn, input)
        assert failure(line).error.code == "invalid_input"
        line.say(turn, ItemEnd(), Finish())
        assert line.status(turn) == ("completed", None)

    def test_no_input_at_all_is_invalid_input(self) -> None:
        line = Lockstep()
        line.send("response.steer", previous_response_id=running(line))
        assert failure(line).error.code == "invalid_input"

    @pytest.mark.parametrize("end", ["cancel", "fail"])
    def test_a_response_that_ends_badly_fails_its_steers(self, end: str) -> None:
        line = Lockstep()
        turn = running(line)
        line.steer(turn)
        if end == "cancel":
            line.cancel()
        else:
            line.fail(turn)
        (failed,) = line.of(turn, events.SteerFailed)
        assert failed.error.code == "successor_creation_failed"
        assert failed.steer.id == line.of(turn, events.SteerAccepted)[0].steer.id
        assert line.sampling == []

    def test_at_a_drains_deadline_nothing_begins_any_more(self) -> None:
        line = Lockstep()
        turn = running(line)
        line.steer(turn)
        line.drain(5)
        line.wait(5)
        assert line.status(turn) == ("incomplete", "server_draining")
        assert line.of(turn, events.SteerFailed)[0].error.code == "successor_creation_failed"
        assert line.closed is not None
