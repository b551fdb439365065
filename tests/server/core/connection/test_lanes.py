"""The lanes of a connection: what waits, what is parked, which turn is meant."""

from collections.abc import Callable

import pytest

from tests.support.core import TEN, Lockstep, create_of, output, raw, user
from tieline import events
from tieline.errors import ApiError
from tieline.requests import Cancel, Opaque, Request, Resume, Steer
from tieline_server.core.connection.lanes import Lanes
from tieline_server.core.create.limits import Limits, Share
from tieline_server.core.create.profile import PROFILES
from tieline_server.core.deltas import TextDelta
from tieline_server.core.turn.turn import WAITING
from tieline_server.core.values import Principal


class TestQueue:
    def test_mx_03_one_lane_is_strictly_first_in_first_out(self) -> None:
        line = Lockstep()
        turns = [line.create(f"hi {number}") for number in range(3)]
        for number, turn in enumerate(turns):
            assert line.sampling == [turn]
            assert [line.types(each) for each in turns[number + 1 :]] == [[]] * (2 - number)
            line.answer(turn)
        assert [line.status(turn)[0] for turn in turns] == ["completed"] * 3
        assert [record.response_id for record in line.records] == turns
        line.check()

    def test_mx_03_a_create_behind_another_sends_nothing_until_its_turn(self) -> None:
        line = Lockstep()
        first, second = line.create("a"), line.create("b")
        line.say(first, TEN)
        assert line.types(first) == ["created", "in_progress"]
        assert line.types(second) == []
        line.answer(first)
        line.say(second, TEN)
        assert line.types(second) == ["created", "in_progress"]

    def test_mx_03_different_lanes_overlap(self) -> None:
        line = Lockstep()
        turns = [line.create("hi", lane=lane) for lane in (None, "a", "b")]
        assert line.sampling == turns
        for turn in reversed(turns):
            line.answer(turn)
        assert [line.status(turn)[0] for turn in turns] == ["completed"] * 3

    def test_every_event_of_a_named_lane_names_it(self) -> None:
        line = Lockstep()
        named, default = line.create("hi", lane="a"), line.create("hi")
        line.answer(named)
        line.answer(default)
        assert {event.stream_id for event in line.audit.by_response[named]} == {"a"}
        assert not any(event.stream_id for event in line.audit.by_response[default])

    def test_mx_03_a_queue_has_a_bound_and_past_it_is_429(self) -> None:
        line = Lockstep(limits=Limits(queue=2))
        running, *queued = [line.create("hi", lane="a") for _ in range(3)]
        assert line.create("one more", lane="a", event_id="e") == ""
        (refused,) = line.error_events
        assert (refused.status, refused.error.code) == (429, "queue_full")
        assert (refused.stream_id, refused.sequence_number) == ("a", 0)
        assert refused.error.event_id == "e"
        line.create("elsewhere", lane="b")
        line.answer(running)
        assert line.sampling[0] == queued[0], "what was queued is unharmed"
        assert line.create("again", lane="a") != ""

    def test_what_waits_on_all_lanes_has_a_bound_in_bytes(self) -> None:
        line = Lockstep(limits=Limits(queue_bytes=1000))
        for lane in ("a", "b"):
            line.create("runs", lane=lane)
        waiting = line.create("x" * 600, lane="a")
        assert line.create("y" * 600, lane="b") == ""
        (refused,) = line.error_events
        assert (refused.status, refused.error.code) == (429, "queue_full")
        assert line.create("z" * 5000, lane="c") != "", "what need not wait may be large"
        assert line.create("small", lane="b") != ""
        line.answer(line.sampling[0])
        assert waiting in line.sampling

    def test_a_full_queue_behind_a_held_turn_does_not_keep_its_answer_out(self) -> None:
        line = Lockstep(limits=Limits(queue=1))
        turn = line.create("go", append=True)
        waiting = line.create("next")
        (call_id,) = line.call(turn)
        line.append(output(call_id))
        assert line.errors == []
        line.answer(turn)
        assert line.sampling == [waiting]

    def test_a_refused_create_lets_the_next_one_run(self) -> None:
        line = Lockstep()
        first = line.create("a")
        bad, good = line.create("b", model="nobody"), line.create("c")
        line.answer(first)
        assert line.errors == [("model_not_found", "model")]
        assert line.types(bad) == []
        assert line.sampling == [good]

    def test_a_lane_is_idle_busy_or_held(self) -> None:
        line = Lockstep()
        turn = line.create("a", append=True)
        lane = line.line._lanes.get(None)
        states = [lane.state]
        (call_id,) = line.call(turn)
        states.append(lane.state)
        line.append(output(call_id))
        states.append(lane.state)
        line.answer(turn)
        states.append(lane.state)
        assert states == ["busy", "held", "busy", "idle"]

    def test_a_lane_recalls_what_it_was_sent_and_another_lane_does_not(self) -> None:
        line = Lockstep()
        tools = [{"type": "function", "name": "f", "description": "x" * 10_000}]
        for lane, cost in (("a", True), ("a", False), ("b", True), ("a", False)):
            before = line.line.work.validate
            line.answer(line.create("hi", lane=lane, tools=tools))
            assert (line.line.work.validate - before > 10_000) is cost


class TestNames:
    def test_the_33rd_name_is_refused_and_echoed(self) -> None:
        line = Lockstep()
        for number in range(32):
            line.answer(line.create("hi", lane=f"lane-{number}"))
        assert line.create("hi", lane="lane-32") == ""
        (refused,) = line.error_events
        assert refused.error.code == "websocket_stream_limit_reached"
        assert refused.stream_id == "lane-32"
        assert line.create("hi") != "", "the default lane is not counted"
        assert line.create("hi", lane="lane-7") != ""

    @pytest.mark.parametrize("kind", ["response.create", "response.append"])
    def test_an_invalid_name_is_refused_and_not_echoed(self, kind: str) -> None:
        line = Lockstep()
        line.send(kind, input="hi", stream_id="not a name", event_id="e")
        (refused,) = line.error_events
        assert (refused.error.code, refused.error.param) == ("invalid_stream_id", "stream_id")
        assert not refused.stream_id
        assert refused.error.event_id == "e"

    @pytest.mark.parametrize("kind", ["cancel", "steer", "unknown"])
    def test_no_other_answer_echoes_an_invalid_name(self, kind: str) -> None:
        line = Lockstep()
        requests: dict[str, Request] = {
            "cancel": Cancel(stream_id="not a name"),
            "steer": Steer(stream_id="not a name", previous_response_id="r", input=raw("hi")),
            "unknown": Opaque(stream_id="not a name", name="vendor.unknown", raw=raw({})),
        }
        line.receive(requests[kind])
        (answer,) = line.audit.loose
        assert not answer.stream_id


class TestPlaces:
    def test_mx_03_the_17th_waits_with_created_and_queued_and_starts_when_one_ends(self) -> None:
        line = Lockstep()
        turns = [line.create("hi", lane=f"l{number}") for number in range(17)]
        assert line.sampling == turns[:16]
        assert line.types(turns[16]) == ["created", "queued"]
        assert line.response(turns[16]).status == "queued"
        assert line.errors == []
        line.answer(turns[3])
        assert turns[16] in line.sampling
        line.answer(turns[16])
        assert line.types(turns[16])[:4] == [
            "created",
            "queued",
            "in_progress",
            "output_item.added",
        ]
        line.check()

    def test_places_are_given_in_the_order_of_waiting(self) -> None:
        line = Lockstep(limits=Limits(active=1))
        first, *others = [line.create("hi", lane=f"l{number}") for number in range(4)]
        line.answer(first)
        for turn in others:
            assert line.sampling == [turn]
            line.answer(turn)

    def test_who_waits_goes_before_the_next_of_the_lane_that_ended(self) -> None:
        line = Lockstep(limits=Limits(active=1))
        first = line.create("1", lane="a")
        next_on_a = line.create("2", lane="a")
        on_b = line.create("3", lane="b")
        line.answer(first)
        assert line.sampling == [on_b]
        assert line.types(next_on_a) == ["created", "queued"]
        line.answer(on_b)
        assert line.sampling == [next_on_a]

    def test_a_cancelled_waiter_does_not_keep_others_waiting(self) -> None:
        line = Lockstep(limits=Limits(active=1))
        running, waiter = line.create("1", lane="a"), line.create("2", lane="b")
        line.cancel(response_id=waiter)
        assert line.status(waiter) == ("cancelled", None)
        assert line.types(waiter) == ["created", "queued", "in_progress", "incomplete"]
        assert line.stopped == [], "no engine was asked"
        after = line.create("3", lane="a")
        line.answer(running)
        line.say(after, TEN)
        assert line.types(after) == ["created", "in_progress"], "it never had to wait"

    def test_a_held_turn_holds_its_lane_and_not_a_place(self) -> None:
        line = Lockstep(limits=Limits(active=1))
        held = line.create("1", lane="a", append=True)
        (call_id,) = line.call(held)
        assert line.sampling == []
        other = line.create("2", lane="b")
        assert line.sampling == [other]
        line.append(output(call_id), lane="a")
        assert line.sampling == [other], "it waits for a place as everybody"
        assert "queued" not in line.types(held), "created and queued are said once, at the start"
        line.answer(other)
        assert line.sampling == [held]
        line.answer(held)
        assert line.status(held) == ("completed", None)

    @pytest.mark.parametrize("end", ["answer", "fail", "cancel", "refuse"])
    def test_every_end_gives_the_place_back(self, end: str) -> None:
        line = Lockstep(limits=Limits(active=1))
        first, second = line.create("1", lane="a"), line.create("2", lane="b")
        if end == "answer":
            line.answer(first)
        elif end == "cancel":
            line.cancel(stream_id="a")
        else:
            if end == "fail":
                line.say(first, TEN, TextDelta("x"))
            line.fail(first)
        assert line.sampling == [second]
        line.check()


class TestAppendToNothingHeld:
    def test_it_is_a_create_after_the_latest_response_with_the_same_settings(self) -> None:
        line = Lockstep()
        first = line.create("one", instructions="be terse", temperature=0.5, lane="a")
        line.answer(first, "1")
        second = line.append(user("two"), lane="a", event_id="e")
        assert line.context(second) == ["user: one", "assistant: 1", "user: two"]
        assert line.prompt(second).settings.instructions == "be terse"
        line.answer(second)
        response = line.response(second)
        assert response.previous_response_id == first
        assert response.temperature == 0.5
        assert line.of(second, events.ResponseCreated)[0].event_id == "e"

    def test_behind_a_running_response_it_waits_for_that_one_to_be_the_latest(self) -> None:
        line = Lockstep()
        first = line.create("one")
        second = line.append(user("two"), response_id=first)
        line.answer(first, "1")
        assert line.context(second) == ["user: one", "assistant: 1", "user: two"]

    def test_on_an_empty_lane_it_is_a_typed_error(self) -> None:
        line = Lockstep()
        line.append(user("two"), event_id="e")
        (refused,) = line.error_events
        assert (refused.status, refused.error.code) == (400, "nothing_to_append")
        assert refused.error.event_id == "e"
        assert line.create("fine") != ""

    def test_another_response_id_is_a_typed_error(self) -> None:
        line = Lockstep()
        line.answer(line.create("one"))
        assert line.append(user("two"), response_id="resp_other") == ""
        assert line.errors == [("response_not_found", "response_id")]

    def test_a_failed_one_evicts_the_latest_as_a_failed_continuation_does(self) -> None:
        line = Lockstep()
        line.answer(line.create("one"))
        line.append(output("nope"))
        line.append(user("two"))
        assert [code for code, _ in line.errors] == ["tool_call_not_found", "nothing_to_append"]


def lanes_of(line: Lockstep) -> Lanes:
    return line.line._lanes


def refusal(line: Lockstep, resume: Resume) -> tuple[int, str, str | None]:
    with pytest.raises(ApiError) as caught:
        lanes_of(line).admit_resume(resume)
    return caught.value.status, caught.value.code, caught.value.param


class TestResumes:
    def test_a_free_lane_takes_a_response_and_is_named_by_it(self) -> None:
        line = Lockstep()
        lane = lanes_of(line).admit_resume(Resume(response_id="resp_x", stream_id="a"))
        assert lane is lanes_of(line).find("a")
        assert "a" in lanes_of(line)
        assert "b" not in lanes_of(line)

    def test_a_resume_names_its_response(self) -> None:
        missing = (400, "missing_required_parameter", "response_id")
        assert refusal(Lockstep(), Resume()) == missing

    @pytest.mark.parametrize("state", ["running", "held", "reading"])
    def test_a_lane_on_which_something_is_takes_no_response(self, state: str) -> None:
        line = Lockstep()
        if state == "reading":
            line.send("response.resume", response_id="resp_y")
        else:
            turn = line.create("hi", append=True)
            if state == "held":
                line.call(turn)
        busy = (409, "lane_busy", "stream_id")
        assert refusal(line, Resume(response_id="resp_x")) == busy
        assert lanes_of(line).admit_resume(Resume(response_id="resp_x", stream_id="a"))

    def test_a_lane_whose_turn_has_ended_is_free(self) -> None:
        line = Lockstep()
        line.answer(line.create("hi"))
        assert lanes_of(line).admit_resume(Resume(response_id="resp_x")).name is None

    def test_a_resume_names_no_more_lanes_than_a_create(self) -> None:
        line = Lockstep(limits=Limits(lanes=1))
        line.send("response.resume", response_id="resp_x", stream_id="a")
        too_many = refusal(line, Resume(response_id="resp_x", stream_id="b"))
        assert too_many[1] == "websocket_stream_limit_reached"
        assert refusal(line, Resume(response_id="r", stream_id="no name"))[1] == "invalid_stream_id"

    def test_a_profile_without_lanes_refuses_a_name_and_no_more(self) -> None:
        line = Lockstep(profile=PROFILES["open-responses"])
        unsupported = (400, "unsupported_parameter", "stream_id")
        assert refusal(line, Resume(response_id="resp_x", stream_id="a")) == unsupported
        assert lanes_of(line).admit_resume(Resume(response_id="resp_x"))


class TestTargets:
    def test_a_response_is_meant_before_those_who_only_read_it(self) -> None:
        line = Lockstep()
        line.create("first", lane="a")
        turn = line.create("second", lane="b", idempotency_key="k")
        # The lane that reads comes first in order.
        line.cancel(stream_id="a")
        line.create("second", lane="a", idempotency_key="k")
        (follow,) = line.follows
        assert follow.response_id == turn == line.asking[follow.turn].id
        assert lanes_of(line).turn(turn) is line.line.find(turn) is line.asking[line.asked[-1].turn]
        line.cancel(response_id=turn)
        assert line.status(turn) == ("cancelled", None)
        assert line.cancelled_sources == []

    def test_a_reader_is_meant_where_its_response_is_elsewhere(self) -> None:
        line = Lockstep()
        line.send("response.resume", response_id="resp_x")
        reader = lanes_of(line).turn("resp_x")
        assert reader is not None
        assert reader.reading is not None
        assert lanes_of(line).turn("resp_y") is None

    @pytest.mark.parametrize(
        "by", [{"response_id": "resp_x"}, {}, {"event_id": "e"}], ids=["id", "lane", "event"]
    )
    def test_a_cancel_of_what_is_read_means_the_response(self, by: dict[str, str]) -> None:
        line = Lockstep()
        line.send("response.resume", response_id="resp_x", event_id="e")
        line.cancel(**by)
        assert line.cancelled_sources == ["resp_x"]
        assert line.errors == []
        assert len(line.follows) == 1, "it is read on, to its end"

    def test_a_turn_is_cut_by_id_for_its_owner_and_one_that_reads_is_not(self) -> None:
        line = Lockstep()
        line.send("response.resume", response_id="resp_x", stream_id="a")
        turn = line.create("hi")
        assert line.line.cut("resp_x", "cancelled", owner="local") is None
        assert line.line.cut(turn, "cancelled", owner="other") is None
        line.settle()
        assert line.cancelled_sources == []
        cut = line.line.cut(turn, "cancelled", owner="local")
        assert cut is not None
        assert cut.status == "cancelled"

    def test_a_cancel_that_names_a_create_of_another_lane_finds_nothing(self) -> None:
        line = Lockstep()
        line.create("hi", lane="a", event_id="e")
        assert lanes_of(line).target(Cancel(event_id="e")) is None
        assert lanes_of(line).target(Cancel(event_id="e", stream_id="a")) is not None


PHASES: dict[str, Callable[[Lockstep], object]] = {
    "idle": lambda line: None,
    "queued": lambda line: line.create("hi", idempotency_key="k"),
    "prefill": lambda line: line.create("hi"),
    "thinking": lambda line: line.say(line.create("hi"), TEN, TextDelta("x")),
    "held": lambda line: line.call(line.create("hi", append=True)),
}


@pytest.mark.parametrize("phase", PHASES)
def test_a_heartbeat_says_what_the_liveliest_lane_does(phase: str) -> None:
    line = Lockstep(store_answers=False)
    PHASES[phase](line)
    assert lanes_of(line).phase == phase
    assert lanes_of(line).idle is (phase == "idle")
    line.say(line.create("hi", lane="other"), TEN, TextDelta("x"))
    assert lanes_of(line).phase == "thinking"


class TestWhatWaitsOnAllConnections:
    """Waiting requests count against their owner and the whole, whatever line they are on."""

    def test_an_owner_has_a_bound_over_all_lines_and_another_owner_is_served(self) -> None:
        queued = Share(each=3 * WAITING, total=100 * WAITING)
        lines = [Lockstep(queued=queued, seed=seed) for seed in range(3)]
        running = [line.create("runs") for line in lines]
        for line in lines[:2]:
            line.create("x" * (WAITING // 4))
        assert lines[2].create("y" * WAITING, event_id="e") == ""
        (refused,) = lines[2].error_events
        assert (refused.status, refused.error.code) == (429, "queue_full")
        assert refused.error.event_id == "e"
        assert lines[2].create("z" * WAITING, lane="idle") != "", "what need not wait is served"
        other = Principal(owner="other")
        lines[2].receive(create_of(input="y" * WAITING), other)
        assert len(lines[2].error_events) == 1
        for line, turn in zip(lines, running, strict=True):
            line.answer(turn)
        lines[2].drop()
        for line in lines[:2]:
            line.answer(line.sampling[0])
        assert queued.taken == 0

    def test_past_the_bound_of_all_owners_what_must_wait_is_503_and_the_rest_is_served(
        self,
    ) -> None:
        queued = Share(each=3 * WAITING, total=3 * WAITING)
        line, other = Lockstep(queued=queued), Lockstep(queued=queued, seed=2)
        for each in (line, other):
            each.create("runs")
        line.create("x" * WAITING)
        other.receive(create_of(input="y" * WAITING), Principal(owner="other"))
        assert [event.status for event in other.error_events] == [503]
        assert other.error_events[0].error.code == "server_is_overloaded"
        other.receive(create_of(stream_id="b", input="y" * WAITING), Principal(owner="other"))
        assert len(other.sampling) == 2

    def test_a_turn_without_much_to_say_counts_for_what_it_takes_itself(self) -> None:
        line = Lockstep(queued=Share(each=2 * WAITING))
        line.create("runs")
        assert line.create("") != ""
        assert line.create("") == ""
        assert [code for code, _ in line.errors] == ["queue_full"]

    @pytest.mark.parametrize("end", ["drop", "cancel", "refuse", "run"])
    def test_however_waiting_ends_nothing_is_counted_any_more(self, end: str) -> None:
        queued = Share()
        line = Lockstep(queued=queued)
        turn = line.create("runs", append=True)
        model = "nobody" if end == "refuse" else "scripted"
        line.create("waits", event_id="e", model=model)
        line.check()
        assert queued.taken > WAITING
        if end == "drop":
            line.drop()
        elif end == "cancel":
            line.receive(Cancel(event_id="e"))
            line.answer(turn)
        else:
            line.answer(turn)
        line.check()
        assert queued.taken == 0

    def test_a_create_that_follows_another_one_of_its_key_counts_while_it_does(self) -> None:
        queued = Share()
        line = Lockstep(queued=queued)
        line.create("hi", idempotency_key="k")
        assert queued.taken == 0, "it has a chain by now"
        line.create("hi", idempotency_key="k", lane="b")
        assert queued.taken > WAITING
        line.check()
        line.drop()
        assert queued.taken == 0
