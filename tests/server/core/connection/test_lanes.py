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
        driver = Lockstep()
        turns = [driver.create(f"hi {number}") for number in range(3)]
        for number, turn in enumerate(turns):
            assert driver.sampling == [turn]
            assert [driver.types(each) for each in turns[number + 1 :]] == [[]] * (2 - number)
            driver.answer(turn)
        assert [driver.status(turn)[0] for turn in turns] == ["completed"] * 3
        assert [record.response_id for record in driver.records] == turns
        driver.check()

    def test_mx_03_a_create_behind_another_sends_nothing_until_its_turn(self) -> None:
        driver = Lockstep()
        first, second = driver.create("a"), driver.create("b")
        driver.say(first, TEN)
        assert driver.types(first) == ["created", "in_progress"]
        assert driver.types(second) == []
        driver.answer(first)
        driver.say(second, TEN)
        assert driver.types(second) == ["created", "in_progress"]

    def test_mx_03_different_lanes_overlap(self) -> None:
        driver = Lockstep()
        turns = [driver.create("hi", lane=lane) for lane in (None, "a", "b")]
        assert driver.sampling == turns
        for turn in reversed(turns):
            driver.answer(turn)
        assert [driver.status(turn)[0] for turn in turns] == ["completed"] * 3

    def test_every_event_of_a_named_lane_names_it(self) -> None:
        driver = Lockstep()
        named, default = driver.create("hi", lane="a"), driver.create("hi")
        driver.answer(named)
        driver.answer(default)
        assert {event.stream_id for event in driver.audit.by_response[named]} == {"a"}
        assert not any(event.stream_id for event in driver.audit.by_response[default])

    def test_mx_03_a_queue_has_a_bound_and_past_it_is_429(self) -> None:
        driver = Lockstep(limits=Limits(queue=2))
        running, *queued = [driver.create("hi", lane="a") for _ in range(3)]
        assert driver.create("one more", lane="a", event_id="e") == ""
        (refused,) = driver.error_events
        assert (refused.status, refused.error.code) == (429, "queue_full")
        assert (refused.stream_id, refused.sequence_number) == ("a", 0)
        assert refused.error.event_id == "e"
        driver.create("elsewhere", lane="b")
        driver.answer(running)
        assert driver.sampling[0] == queued[0], "what was queued is unharmed"
        assert driver.create("again", lane="a") != ""

    def test_what_waits_on_all_lanes_has_a_bound_in_bytes(self) -> None:
        driver = Lockstep(limits=Limits(queue_bytes=1000))
        for lane in ("a", "b"):
            driver.create("runs", lane=lane)
        waiting = driver.create("x" * 600, lane="a")
        assert driver.create("y" * 600, lane="b") == ""
        (refused,) = driver.error_events
        assert (refused.status, refused.error.code) == (429, "queue_full")
        assert driver.create("z" * 5000, lane="c") != "", "what need not wait may be large"
        assert driver.create("small", lane="b") != ""
        driver.answer(driver.sampling[0])
        assert waiting in driver.sampling

    def test_a_full_queue_behind_a_held_turn_does_not_keep_its_answer_out(self) -> None:
        driver = Lockstep(limits=Limits(queue=1))
        turn = driver.create("go", append=True)
        waiting = driver.create("next")
        (call_id,) = driver.call(turn)
        driver.append(output(call_id))
        assert driver.errors == []
        driver.answer(turn)
        assert driver.sampling == [waiting]

    def test_a_refused_create_lets_the_next_one_run(self) -> None:
        driver = Lockstep()
        first = driver.create("a")
        bad, good = driver.create("b", model="nobody"), driver.create("c")
        driver.answer(first)
        assert driver.errors == [("model_not_found", "model")]
        assert driver.types(bad) == []
        assert driver.sampling == [good]

    def test_a_lane_is_idle_busy_or_held(self) -> None:
        driver = Lockstep()
        turn = driver.create("a", append=True)
        lane = driver.connection._lanes.get(None)
        states = [lane.state]
        (call_id,) = driver.call(turn)
        states.append(lane.state)
        driver.append(output(call_id))
        states.append(lane.state)
        driver.answer(turn)
        states.append(lane.state)
        assert states == ["busy", "held", "busy", "idle"]

    def test_a_lane_recalls_what_it_was_sent_and_another_lane_does_not(self) -> None:
        driver = Lockstep()
        tools = [{"type": "function", "name": "f", "description": "x" * 10_000}]
        for lane, cost in (("a", True), ("a", False), ("b", True), ("a", False)):
            before = driver.connection.work.validate
            driver.answer(driver.create("hi", lane=lane, tools=tools))
            assert (driver.connection.work.validate - before > 10_000) is cost


class TestNames:
    def test_the_33rd_name_is_refused_and_echoed(self) -> None:
        driver = Lockstep()
        for number in range(32):
            driver.answer(driver.create("hi", lane=f"lane-{number}"))
        assert driver.create("hi", lane="lane-32") == ""
        (refused,) = driver.error_events
        assert refused.error.code == "websocket_stream_limit_reached"
        assert refused.stream_id == "lane-32"
        assert driver.create("hi") != "", "the default lane is not counted"
        assert driver.create("hi", lane="lane-7") != ""

    @pytest.mark.parametrize("kind", ["response.create", "response.append"])
    def test_an_invalid_name_is_refused_and_not_echoed(self, kind: str) -> None:
        driver = Lockstep()
        driver.send(kind, input="hi", stream_id="not a name", event_id="e")
        (refused,) = driver.error_events
        assert (refused.error.code, refused.error.param) == ("invalid_stream_id", "stream_id")
        assert not refused.stream_id
        assert refused.error.event_id == "e"

    @pytest.mark.parametrize("kind", ["cancel", "steer", "unknown"])
    def test_no_other_answer_echoes_an_invalid_name(self, kind: str) -> None:
        driver = Lockstep()
        requests: dict[str, Request] = {
            "cancel": Cancel(stream_id="not a name"),
            "steer": Steer(stream_id="not a name", previous_response_id="r", input=raw("hi")),
            "unknown": Opaque(stream_id="not a name", name="vendor.unknown", raw=raw({})),
        }
        driver.receive(requests[kind])
        (answer,) = driver.audit.loose
        assert not answer.stream_id


class TestPlaces:
    def test_mx_03_the_17th_waits_with_created_and_queued_and_starts_when_one_ends(self) -> None:
        driver = Lockstep()
        turns = [driver.create("hi", lane=f"l{number}") for number in range(17)]
        assert driver.sampling == turns[:16]
        assert driver.types(turns[16]) == ["created", "queued"]
        assert driver.response(turns[16]).status == "queued"
        assert driver.errors == []
        driver.answer(turns[3])
        assert turns[16] in driver.sampling
        driver.answer(turns[16])
        assert driver.types(turns[16])[:4] == [
            "created",
            "queued",
            "in_progress",
            "output_item.added",
        ]
        driver.check()

    def test_places_are_given_in_the_order_of_waiting(self) -> None:
        driver = Lockstep(limits=Limits(active=1))
        first, *others = [driver.create("hi", lane=f"l{number}") for number in range(4)]
        driver.answer(first)
        for turn in others:
            assert driver.sampling == [turn]
            driver.answer(turn)

    def test_who_waits_goes_before_the_next_of_the_lane_that_ended(self) -> None:
        driver = Lockstep(limits=Limits(active=1))
        first = driver.create("1", lane="a")
        next_on_a = driver.create("2", lane="a")
        on_b = driver.create("3", lane="b")
        driver.answer(first)
        assert driver.sampling == [on_b]
        assert driver.types(next_on_a) == ["created", "queued"]
        driver.answer(on_b)
        assert driver.sampling == [next_on_a]

    def test_a_cancelled_waiter_does_not_keep_others_waiting(self) -> None:
        driver = Lockstep(limits=Limits(active=1))
        running, waiter = driver.create("1", lane="a"), driver.create("2", lane="b")
        driver.cancel(response_id=waiter)
        assert driver.status(waiter) == ("cancelled", None)
        assert driver.types(waiter) == ["created", "queued", "in_progress", "incomplete"]
        assert driver.stopped == [], "no engine was asked"
        after = driver.create("3", lane="a")
        driver.answer(running)
        driver.say(after, TEN)
        assert driver.types(after) == ["created", "in_progress"], "it never had to wait"

    def test_a_held_turn_holds_its_lane_and_not_a_place(self) -> None:
        driver = Lockstep(limits=Limits(active=1))
        held = driver.create("1", lane="a", append=True)
        (call_id,) = driver.call(held)
        assert driver.sampling == []
        other = driver.create("2", lane="b")
        assert driver.sampling == [other]
        driver.append(output(call_id), lane="a")
        assert driver.sampling == [other], "it waits for a place as everybody"
        assert "queued" not in driver.types(held), "created and queued are said once, at the start"
        driver.answer(other)
        assert driver.sampling == [held]
        driver.answer(held)
        assert driver.status(held) == ("completed", None)

    @pytest.mark.parametrize("end", ["answer", "fail", "cancel", "refuse"])
    def test_every_end_gives_the_place_back(self, end: str) -> None:
        driver = Lockstep(limits=Limits(active=1))
        first, second = driver.create("1", lane="a"), driver.create("2", lane="b")
        if end == "answer":
            driver.answer(first)
        elif end == "cancel":
            driver.cancel(stream_id="a")
        else:
            if end == "fail":
                driver.say(first, TEN, TextDelta("x"))
            driver.fail(first)
        assert driver.sampling == [second]
        driver.check()


class TestAppendToNothingHeld:
    def test_it_is_a_create_after_the_latest_response_with_the_same_settings(self) -> None:
        driver = Lockstep()
        first = driver.create("one", instructions="be terse", temperature=0.5, lane="a")
        driver.answer(first, "1")
        second = driver.append(user("two"), lane="a", event_id="e")
        assert driver.context(second) == ["user: one", "assistant: 1", "user: two"]
        assert driver.prompt(second).settings.instructions == "be terse"
        driver.answer(second)
        response = driver.response(second)
        assert response.previous_response_id == first
        assert response.temperature == 0.5
        assert driver.of(second, events.ResponseCreated)[0].event_id == "e"

    def test_behind_a_running_response_it_waits_for_that_one_to_be_the_latest(self) -> None:
        driver = Lockstep()
        first = driver.create("one")
        second = driver.append(user("two"), response_id=first)
        driver.answer(first, "1")
        assert driver.context(second) == ["user: one", "assistant: 1", "user: two"]

    def test_on_an_empty_lane_it_is_a_typed_error(self) -> None:
        driver = Lockstep()
        driver.append(user("two"), event_id="e")
        (refused,) = driver.error_events
        assert (refused.status, refused.error.code) == (400, "nothing_to_append")
        assert refused.error.event_id == "e"
        assert driver.create("fine") != ""

    def test_another_response_id_is_a_typed_error(self) -> None:
        driver = Lockstep()
        driver.answer(driver.create("one"))
        assert driver.append(user("two"), response_id="resp_other") == ""
        assert driver.errors == [("response_not_found", "response_id")]

    def test_a_failed_one_evicts_the_latest_as_a_failed_continuation_does(self) -> None:
        driver = Lockstep()
        driver.answer(driver.create("one"))
        driver.append(output("nope"))
        driver.append(user("two"))
        assert [code for code, _ in driver.errors] == ["tool_call_not_found", "nothing_to_append"]


def lanes_of(driver: Lockstep) -> Lanes:
    return driver.connection._lanes


def refusal(driver: Lockstep, resume: Resume) -> tuple[int, str, str | None]:
    with pytest.raises(ApiError) as caught:
        lanes_of(driver).admit_resume(resume)
    return caught.value.status, caught.value.code, caught.value.param


class TestResumes:
    def test_a_free_lane_takes_a_response_and_is_named_by_it(self) -> None:
        driver = Lockstep()
        lane = lanes_of(driver).admit_resume(Resume(response_id="resp_x", stream_id="a"))
        assert lane is lanes_of(driver).find("a")
        assert "a" in lanes_of(driver)
        assert "b" not in lanes_of(driver)

    def test_a_resume_names_its_response(self) -> None:
        missing = (400, "missing_required_parameter", "response_id")
        assert refusal(Lockstep(), Resume()) == missing

    @pytest.mark.parametrize("state", ["running", "held", "reading"])
    def test_a_lane_on_which_something_is_takes_no_response(self, state: str) -> None:
        driver = Lockstep()
        if state == "reading":
            driver.send("response.resume", response_id="resp_y")
        else:
            turn = driver.create("hi", append=True)
            if state == "held":
                driver.call(turn)
        busy = (409, "lane_busy", "stream_id")
        assert refusal(driver, Resume(response_id="resp_x")) == busy
        assert lanes_of(driver).admit_resume(Resume(response_id="resp_x", stream_id="a"))

    def test_a_lane_whose_turn_has_ended_is_free(self) -> None:
        driver = Lockstep()
        driver.answer(driver.create("hi"))
        assert lanes_of(driver).admit_resume(Resume(response_id="resp_x")).name is None

    def test_a_resume_names_no_more_lanes_than_a_create(self) -> None:
        driver = Lockstep(limits=Limits(lanes=1))
        driver.send("response.resume", response_id="resp_x", stream_id="a")
        too_many = refusal(driver, Resume(response_id="resp_x", stream_id="b"))
        assert too_many[1] == "websocket_stream_limit_reached"
        assert (
            refusal(driver, Resume(response_id="r", stream_id="no name"))[1] == "invalid_stream_id"
        )

    def test_a_profile_without_lanes_refuses_a_name_and_no_more(self) -> None:
        driver = Lockstep(profile=PROFILES["open-responses"])
        unsupported = (400, "unsupported_parameter", "stream_id")
        assert refusal(driver, Resume(response_id="resp_x", stream_id="a")) == unsupported
        assert lanes_of(driver).admit_resume(Resume(response_id="resp_x"))


class TestTargets:
    def test_a_response_is_meant_before_those_who_only_read_it(self) -> None:
        driver = Lockstep()
        driver.create("first", lane="a")
        turn = driver.create("second", lane="b", idempotency_key="k")
        # The lane that reads comes first in order.
        driver.cancel(stream_id="a")
        driver.create("second", lane="a", idempotency_key="k")
        (follow,) = driver.follows
        assert follow.response_id == turn == driver.asking[follow.turn].id
        assert (
            lanes_of(driver).turn(turn)
            is driver.connection.find(turn)
            is driver.asking[driver.asked[-1].turn]
        )
        driver.cancel(response_id=turn)
        assert driver.status(turn) == ("cancelled", None)
        assert driver.cancelled_sources == []

    def test_a_reader_is_meant_where_its_response_is_elsewhere(self) -> None:
        driver = Lockstep()
        driver.send("response.resume", response_id="resp_x")
        reader = lanes_of(driver).turn("resp_x")
        assert reader is not None
        assert reader.reading is not None
        assert lanes_of(driver).turn("resp_y") is None

    @pytest.mark.parametrize(
        "by", [{"response_id": "resp_x"}, {}, {"event_id": "e"}], ids=["id", "lane", "event"]
    )
    def test_a_cancel_of_what_is_read_means_the_response(self, by: dict[str, str]) -> None:
        driver = Lockstep()
        driver.send("response.resume", response_id="resp_x", event_id="e")
        driver.cancel(**by)
        assert driver.cancelled_sources == ["resp_x"]
        assert driver.errors == []
        assert len(driver.follows) == 1, "it is read on, to its end"

    def test_a_turn_is_cut_by_id_for_its_owner_and_one_that_reads_is_not(self) -> None:
        driver = Lockstep()
        driver.send("response.resume", response_id="resp_x", stream_id="a")
        turn = driver.create("hi")
        assert driver.connection.cut("resp_x", "cancelled", owner="local") is None
        assert driver.connection.cut(turn, "cancelled", owner="other") is None
        driver.settle()
        assert driver.cancelled_sources == []
        cut = driver.connection.cut(turn, "cancelled", owner="local")
        assert cut is not None
        assert cut.status == "cancelled"

    def test_a_cancel_that_names_a_create_of_another_lane_finds_nothing(self) -> None:
        driver = Lockstep()
        driver.create("hi", lane="a", event_id="e")
        assert lanes_of(driver).target(Cancel(event_id="e")) is None
        assert lanes_of(driver).target(Cancel(event_id="e", stream_id="a")) is not None


PHASES: dict[str, Callable[[Lockstep], object]] = {
    "idle": lambda driver: None,
    "queued": lambda driver: driver.create("hi", idempotency_key="k"),
    "prefill": lambda driver: driver.create("hi"),
    "thinking": lambda driver: driver.say(driver.create("hi"), TEN, TextDelta("x")),
    "held": lambda driver: driver.call(driver.create("hi", append=True)),
}


@pytest.mark.parametrize("phase", PHASES)
def test_a_heartbeat_says_what_the_liveliest_lane_does(phase: str) -> None:
    driver = Lockstep(store_answers=False)
    PHASES[phase](driver)
    assert lanes_of(driver).phase == phase
    assert lanes_of(driver).idle is (phase == "idle")
    driver.say(driver.create("hi", lane="other"), TEN, TextDelta("x"))
    assert lanes_of(driver).phase == "thinking"


class TestWhatWaitsOnAllConnections:
    """Waiting requests count against their owner and the whole, whatever connection they are on."""

    def test_an_owner_has_a_bound_over_all_connections_and_another_owner_is_served(self) -> None:
        queued = Share(each=3 * WAITING, total=100 * WAITING)
        drivers = [Lockstep(queued=queued, seed=seed) for seed in range(3)]
        running = [driver.create("runs") for driver in drivers]
        for driver in drivers[:2]:
            driver.create("x" * (WAITING // 4))
        assert drivers[2].create("y" * WAITING, event_id="e") == ""
        (refused,) = drivers[2].error_events
        assert (refused.status, refused.error.code) == (429, "queue_full")
        assert refused.error.event_id == "e"
        assert drivers[2].create("z" * WAITING, lane="idle") != "", "what need not wait is served"
        other = Principal(owner="other")
        drivers[2].receive(create_of(input="y" * WAITING), other)
        assert len(drivers[2].error_events) == 1
        for driver, turn in zip(drivers, running, strict=True):
            driver.answer(turn)
        drivers[2].drop()
        for driver in drivers[:2]:
            driver.answer(driver.sampling[0])
        assert queued.taken == 0

    def test_past_the_bound_of_all_owners_what_must_wait_is_503_and_the_rest_is_served(
        self,
    ) -> None:
        queued = Share(each=3 * WAITING, total=3 * WAITING)
        driver, other = Lockstep(queued=queued), Lockstep(queued=queued, seed=2)
        for each in (driver, other):
            each.create("runs")
        driver.create("x" * WAITING)
        other.receive(create_of(input="y" * WAITING), Principal(owner="other"))
        assert [event.status for event in other.error_events] == [503]
        assert other.error_events[0].error.code == "server_is_overloaded"
        other.receive(create_of(stream_id="b", input="y" * WAITING), Principal(owner="other"))
        assert len(other.sampling) == 2

    def test_a_turn_without_much_to_say_counts_for_what_it_takes_itself(self) -> None:
        driver = Lockstep(queued=Share(each=2 * WAITING))
        driver.create("runs")
        assert driver.create("") != ""
        assert driver.create("") == ""
        assert [code for code, _ in driver.errors] == ["queue_full"]

    @pytest.mark.parametrize("end", ["drop", "cancel", "refuse", "run"])
    def test_however_waiting_ends_nothing_is_counted_any_more(self, end: str) -> None:
        queued = Share()
        driver = Lockstep(queued=queued)
        turn = driver.create("runs", append=True)
        model = "nobody" if end == "refuse" else "scripted"
        driver.create("waits", event_id="e", model=model)
        driver.check()
        assert queued.taken > WAITING
        if end == "drop":
            driver.drop()
        elif end == "cancel":
            driver.receive(Cancel(event_id="e"))
            driver.answer(turn)
        else:
            driver.answer(turn)
        driver.check()
        assert queued.taken == 0

    def test_a_create_that_follows_another_one_of_its_key_counts_while_it_does(self) -> None:
        queued = Share()
        driver = Lockstep(queued=queued)
        driver.create("hi", idempotency_key="k")
        assert queued.taken == 0, "it has a chain by now"
        driver.create("hi", idempotency_key="k", lane="b")
        assert queued.taken > WAITING
        driver.check()
        driver.drop()
        assert queued.taken == 0
