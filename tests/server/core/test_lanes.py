"""The lanes of one line: who may have one, and which turn a request means."""

from collections.abc import Callable

import pytest

from tests.support.core import TEN, Lockstep, create_of
from tieline.errors import ApiError
from tieline.requests import Cancel, Resume
from tieline_server.core.deltas import TextDelta
from tieline_server.core.lanes import Lanes
from tieline_server.core.limits import Limits, Share
from tieline_server.core.profile import PROFILES
from tieline_server.core.turn_holdings import WAITING
from tieline_server.core.values import Principal


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
