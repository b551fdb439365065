"""Where a turn's time went, and the one record that it leaves."""

import pytest

from tests.support.core import TEN, Lockstep, output
from tieline import events
from tieline_server.core.create.limits import Limits
from tieline_server.core.deltas import CallDelta, CallStart, Finish, ReasoningDelta, TextDelta
from tieline_server.core.turn.timestamps import Timestamps

S = 1_000_000
"""Microseconds in a second."""


def later(driver: Lockstep, seconds: float) -> None:
    """Lets time pass without a tick."""
    driver.now += seconds
    driver.unix_time += seconds


class TestTimestamps:
    def test_a_turn_that_never_had_its_lane_waited_all_the_time(self) -> None:
        phases = Timestamps(100.0).phases(103.0)
        assert (phases["lane"], phases["total"], phases["overhead"]) == (3 * S, 3 * S, 0)

    def test_what_is_neither_engine_nor_queue_nor_client_is_overhead(self) -> None:
        marks = Timestamps(0.0)
        marks.head(1.0)
        marks.resolved(1.5)
        marks.asked(3.5)
        marks.first_token(5.0)
        marks.sampled(9.0, None)
        marks.concluded(9.0)
        marks.saved(9.25)
        phases = marks.phases(9.25)
        assert phases["lane"] == 1 * S
        assert phases["resolve"] == S // 2
        assert phases["queue"] == 2 * S
        assert phases["prefill"] == 1.5 * S
        assert phases["decode"] == 4 * S
        assert phases["store"] == S // 4
        assert phases["first_token"] == 5 * S
        assert phases["overhead"] == 0.75 * S

    def test_only_the_first_token_counts_as_the_first(self) -> None:
        marks = Timestamps(0.0)
        marks.asked(1.0)
        marks.first_token(2.0)
        marks.first_token(3.0)
        assert marks.first_token_at == 2.0

    def test_what_an_engine_measured_adds_up_over_samplings(self) -> None:
        marks = Timestamps(0.0)
        for _ in range(2):
            marks.asked(0.0)
            marks.sampled(1.0, {"render": 5})
        assert marks.phases(1.0)["render"] == 10

    def test_rendering_is_the_services_own_work(self) -> None:
        marks = Timestamps(0.0)
        marks.head(0.0)
        marks.resolved(0.0)
        marks.asked(0.0)
        marks.sampled(1.0, {"render": 300})
        assert marks.phases(1.0)["overhead"] == 300

    def test_waiting_for_guards_is_the_services_own_work_and_counts_once(self) -> None:
        marks = Timestamps(0.0)
        marks.head(0.0)
        marks.resolved(0.0)
        marks.asked(0.0)
        marks.sampled(1.0, {"render": 300, "guard": 500})
        assert marks.phases(1.0)["overhead"] == 800
        refused = Timestamps(0.0)
        refused.head(0.0)
        refused.resolved(0.0)
        refused.asked(0.0)
        refused.add("guard", 500_000)
        phases = refused.phases(1.0)
        assert (phases["guard"], phases["overhead"]) == (500_000, 1_000_000)


class TestRecord:
    def test_it_says_who_what_and_how_it_ended(self) -> None:
        driver = Lockstep()
        first = driver.create("hi", lane="a")
        driver.answer(first)
        second = driver.create(
            "more", lane="a", previous_response_id=first, trace_context={"traceparent": "00-1"}
        )
        driver.answer(second)
        record = driver.record(second)
        assert record.previous_response_id == first
        assert (record.owner, record.model, record.lane) == ("local", "m", "a")
        assert (record.outcome, record.kind, record.reason) == ("completed", "turn", None)
        assert record.trace_context == {"traceparent": "00-1"}
        assert not record.store

    def test_an_append_to_a_finished_response_names_it(self) -> None:
        driver = Lockstep()
        first = driver.create("hi")
        driver.answer(first)
        second = driver.append({"role": "user", "content": "more"})
        driver.answer(second)
        assert driver.record(second).previous_response_id == first

    def test_us_04_a_warm_up_is_a_row_of_its_own_kind(self) -> None:
        driver = Lockstep()
        warm = driver.create("hi", generate=False)
        driver.say(warm, TEN, Finish(output_tokens=0))
        record = driver.record(warm)
        assert (record.kind, record.usage.output_tokens) == ("prewarm", 0)
        assert record.usage.input_tokens == 10

    @pytest.mark.parametrize("how", ["cancelled", "disconnected"])
    def test_us_03_a_turn_that_is_stopped_books_what_was_really_used(self, how: str) -> None:
        driver = Lockstep()
        turn = driver.create("hi")
        driver.say(turn, TEN, ReasoningDelta("hm", tokens=5))
        driver.say(turn, TextDelta("a", tokens=2), TextDelta("b"))
        if how == "cancelled":
            driver.cancel()
        else:
            driver.drop()
        usage = driver.record(turn).usage
        assert driver.record(turn).outcome == how
        assert (usage.input_tokens, usage.output_tokens, usage.total_tokens) == (10, 8, 18)
        assert usage.output_tokens_details.reasoning_tokens == 5
        assert usage.input_tokens_details.cached_tokens == 4

    def test_us_01_what_an_engine_counted_replaces_what_was_added_up(self) -> None:
        driver = Lockstep()
        turn = driver.create("hi")
        counts = Finish(input_tokens=100, cached_tokens=60, output_tokens=20, reasoning_tokens=5)
        driver.say(turn, TEN, TextDelta("a"), counts)
        usage = driver.record(turn).usage
        assert usage == driver.response(turn).usage
        assert (usage.input_tokens, usage.output_tokens, usage.total_tokens) == (100, 20, 120)
        assert usage.input_tokens_details.cached_tokens == 60
        assert usage.output_tokens_details.reasoning_tokens == 5

    def test_a_refused_create_leaves_a_record_too(self) -> None:
        driver = Lockstep()
        refused = driver.create("hi", model="nobody")
        record = driver.record(refused)
        assert (record.outcome, record.error_code) == ("refused", "model_not_found")
        assert record.model == "nobody"
        assert record.usage.total_tokens == 0

    def test_a_failed_turn_books_its_tokens_and_its_code(self) -> None:
        driver = Lockstep()
        turn = driver.create("hi")
        driver.say(turn, TEN, TextDelta("a"))
        driver.fail(turn, "engine_unavailable")
        record = driver.record(turn)
        assert (record.outcome, record.error_code) == ("failed", "engine_unavailable")
        assert record.usage.total_tokens == 11

    def test_the_time_of_a_rollout_is_told_apart(self) -> None:
        """Behind another on the lane, waiting for a place, engine, client, engine again."""
        driver = Lockstep(limits=Limits(active=1))
        before, blocker = driver.create("hi", lane="a"), driver.create("hi", lane="b")
        turn = driver.create("hi", lane="a", append=True)
        later(driver, 1)
        driver.answer(before)
        later(driver, 2)
        driver.answer(blocker)
        later(driver, 4)
        driver.say(turn, TEN, CallStart(kind="function_call", name="look"), CallDelta("{}"))
        later(driver, 8)
        driver.say(turn, Finish())
        later(driver, 16)
        (call_id,) = driver.turns[turn].node.open_calls  # type: ignore[union-attr]
        driver.append(output(call_id), lane="a")
        later(driver, 32)
        driver.answer(turn)
        phases = driver.record(turn).times.phases()
        assert phases["lane"] == 1 * S
        assert phases["queue"] == 2 * S
        assert phases["prefill"] == 4 * S
        assert phases["decode"] == (8 + 32) * S
        assert phases["held"] == 16 * S
        assert phases["total"] == 63 * S
        assert phases["overhead"] == 0

    def test_the_commit_has_a_phase_of_its_own(self) -> None:
        driver = Lockstep(store_answers=False)
        turn = driver.create("hi", store=True)
        driver.answer(turn)
        later(driver, 2)
        driver.saved(driver.saves[0])
        driver.settle()
        phases = driver.record(turn).times.phases()
        assert (phases["store"], phases["overhead"]) == (2 * S, 2 * S)

    def test_a_turn_that_ends_while_held_counts_that_time_as_the_clients(self) -> None:
        driver = Lockstep()
        turn = driver.create("hi", append=True)
        later(driver, 1)
        driver.call(turn)
        later(driver, 7)
        driver.cancel()
        phases = driver.record(turn).times.phases()
        assert (phases["held"], phases["overhead"]) == (7 * S, 0)

    def test_it_counts_the_events_of_the_response(self) -> None:
        driver = Lockstep()
        turn = driver.create("hi")
        driver.answer(turn)
        assert driver.record(turn).events == len(driver.types(turn)) == 9

    def test_completed_at_is_when_it_completed(self) -> None:
        driver = Lockstep()
        turn = driver.create("hi")
        started = driver.unix_time
        later(driver, 60)
        driver.answer(turn)
        response = driver.response(turn)
        assert (response.created_at, response.completed_at) == (started, started + 60)


class TestTiming:
    def test_it_is_sent_once_a_turn_to_who_asked(self) -> None:
        driver = Lockstep()
        driver.send("tieline.session.start", extensions=["timing"])
        turn = driver.create("hi", lane="a")
        driver.answer(turn)
        (timing,) = driver.loose(events.Timing)
        assert (timing.response_id, timing.stream_id) == (turn, "a")
        assert timing.phases == driver.record(turn).times.phases()
        driver.create("hi", model="nobody")
        assert len(driver.loose(events.Timing)) == 1, "a refused create is no turn"

    def test_a_held_turn_says_where_its_time_went_so_far(self) -> None:
        driver = Lockstep()
        driver.send("tieline.session.start", extensions=["timing"])
        turn = driver.create("hi", append=True)
        later(driver, 3)
        driver.call(turn)
        (timing,) = driver.loose(events.Timing)
        assert timing.phases["total"] == 3 * S

    @pytest.mark.parametrize("extensions", [[], ["heartbeat"]])
    def test_who_did_not_ask_never_sees_it(self, extensions: list[str]) -> None:
        driver = Lockstep()
        driver.send("tieline.session.start", extensions=extensions)
        driver.answer(driver.create("hi"))
        assert driver.loose(events.Timing) == []
