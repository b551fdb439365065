"""The client's half without I/O: every event finds the request that it belongs to."""

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

from tieline import events
from tieline.events import Event
from tieline.responses import Response
from tieline_client._asks import Ask, AskState, Verdict
from tieline_client._connection import Connection
from tieline_client.errors import ProtocolViolation, TurnState

LANES = (None, "a", "b")


def created(response_id: str, **members: Any) -> events.ResponseCreated:
    return events.ResponseCreated(sequence_number=0, response=Response(id=response_id), **members)


def delta(text: str = "x", **members: Any) -> events.OutputTextDelta:
    return events.OutputTextDelta(
        sequence_number=1,
        item_id="m",
        output_index=0,
        content_index=0,
        delta=text,
        **members,
    )


def done(response_id: str, **members: Any) -> events.ResponseDone:
    return events.ResponseDone(sequence_number=2, response=Response(id=response_id), **members)


def ended(response_id: str, status: str = "completed", **members: Any) -> events.LifecycleEvent:
    kinds = {"completed": events.ResponseCompleted, "failed": events.ResponseFailed}
    kind = kinds.get(status, events.ResponseIncomplete)
    response = Response(id=response_id, status=status)
    return kind(sequence_number=3, response=response, **members)


def error(event_id: str | None = None, **members: Any) -> events.ErrorEvent:
    detail = events.ErrorDetail(code="invalid_value", message="no")
    if event_id is not None:
        detail = events.ErrorDetail(code="invalid_value", message="no", event_id=event_id)
    return events.ErrorEvent(status=400, error=detail, **members)


STEER = events.SteerRef(previous_response_id="r1")
ACCEPTED = events.SteerAccepted(sequence_number=1, steer=STEER)
PENDING = events.SteerPending(
    sequence_number=2, reason="waiting_for_required_input", required_input=[], steer=STEER
)
FAILED = events.SteerFailed(
    sequence_number=0, error=events.ErrorDetail(code="response_not_found"), steer=STEER
)

NOT_CREATED = events.SteerFailed(
    sequence_number=3,
    error=events.ErrorDetail(code="successor_creation_failed"),
    steer=STEER,
)


def running(line: Connection, response_id: str = "r1", lane: str | None = None) -> Ask:
    ask = line.create(lane)
    members = {} if lane is None else {"stream_id": lane}
    line.receive(created(response_id, event_id=ask.event_id, **members))
    return ask


def held(line: Connection, response_id: str = "r1") -> Ask:
    ask = running(line, response_id)
    line.receive(done(response_id))
    return ask


def state(ask: Ask) -> AskState:
    return ask.state


def test_a_created_finds_its_ask_by_the_echoed_event_id() -> None:
    line = Connection()
    first, second = line.create("a"), line.create("b")
    assert line.receive(created("r2", stream_id="b", event_id=second.event_id)).ask is second
    assert line.receive(created("r1", stream_id="a", event_id=first.event_id)).ask is first
    assert (first.response_id, second.response_id) == ("r1", "r2")


def test_without_an_echo_creates_of_a_lane_are_answered_in_order() -> None:
    line = Connection()
    first, second = line.create(), line.create()
    assert line.receive(created("r1")).ask is first
    assert line.receive(ended("r1")).ask is first
    assert line.receive(created("r2")).ask is second
    assert first.ended


def test_events_of_a_lane_go_to_its_running_ask() -> None:
    line = Connection()
    first, second = running(line, "r1", "a"), running(line, "r2", "b")
    assert line.receive(delta(stream_id="b")).ask is second
    assert line.receive(delta(stream_id="a")).ask is first


def test_an_error_ends_the_create_that_it_names_and_no_other() -> None:
    line = Connection()
    first, second = running(line), line.create()
    delivery = line.receive(error(second.event_id))
    assert (delivery.ask, delivery.verdict) == (second, Verdict.REFUSE)
    assert (second.state, first.state) == (AskState.ENDED, AskState.RUNNING)


def test_an_error_without_an_echo_is_for_the_create_whose_turn_it_is() -> None:
    line = Connection()
    first = line.create()
    line.create()
    assert line.receive(error()).ask is first


def test_a_numbered_error_belongs_to_the_running_response() -> None:
    line = Connection()
    ask = running(line)
    delivery = line.receive(error(sequence_number=2))
    assert (delivery.ask, delivery.verdict) == (ask, Verdict.DELIVER)
    assert state(ask) is AskState.RUNNING


def test_an_unnumbered_error_beside_a_running_response_belongs_to_the_line() -> None:
    line = Connection()
    running(line)
    assert line.receive(error(sequence_number=0)).ask is None


def test_an_error_that_names_nobody_belongs_to_the_line() -> None:
    line = Connection()
    ask = line.create()
    assert line.receive(error("create_99")).ask is None
    assert state(ask) is AskState.WAITING


def test_events_of_the_line_belong_to_no_ask() -> None:
    line = Connection()
    running(line)
    for event in (
        events.Heartbeat(phase="prefill"),
        events.SessionStarted(session_id="s", revision="1", extensions=[], limits={}),
        events.SessionGoingAway(reason="draining", seconds=1.0),
    ):
        assert line.receive(event).ask is None


def test_unknown_events_are_delivered_as_they_are_and_change_nothing() -> None:
    """EV-09: a vendor's event, and one without a number, kill no stream."""
    line = Connection()
    ask = running(line)
    vendor = events.Opaque(sequence_number=4, name="acme:gauge", raw=Raw(b'{"v":1}'))
    delivery = line.receive(vendor)
    assert (delivery.ask, delivery.verdict, delivery.event) == (ask, Verdict.DELIVER, vendor)
    bare = events.OutputTextDelta(item_id="m", output_index=0, content_index=0, delta="x")
    assert line.receive(bare).ask is ask
    assert state(ask) is AskState.RUNNING


def test_an_unknown_event_that_nobody_waits_for_is_no_violation() -> None:
    line = Connection()
    line.create()
    assert line.receive(events.Opaque(name="acme:gauge", raw=Raw(b"{}"))).ask is None


def test_a_held_turn_goes_on_with_its_append() -> None:
    line = Connection()
    ask = held(line)
    assert state(ask) is AskState.HELD
    assert line.held() is ask
    line.append(ask)
    assert state(ask) is AskState.RESUMING
    line.receive(delta())
    assert state(ask) is AskState.RUNNING
    line.receive(ended("r1"))
    assert ask.ended


def test_a_refused_append_leaves_the_turn_held() -> None:
    line = Connection()
    ask = held(line)
    event_id = line.append(ask)
    delivery = line.receive(error(event_id, sequence_number=3))
    assert (delivery.ask, delivery.verdict) == (ask, Verdict.REPORT)
    assert state(ask) is AskState.HELD
    line.append(ask)
    assert state(ask) is AskState.RESUMING


def test_a_late_answer_to_a_steer_is_no_answer_to_an_append() -> None:
    line = Connection()
    ask = running(line)
    line.steer(ask)
    line.receive(done("r1"))
    event_id = line.append(ask)
    line.receive(ACCEPTED)
    assert state(ask) is AskState.RESUMING
    assert line.receive(error(event_id)).verdict is Verdict.REPORT


def test_a_create_behind_a_held_turn_begins_after_its_end() -> None:
    line = Connection()
    first = held(line)
    second = line.create()
    assert line.receive(ended("r1", "incomplete")).ask is first
    assert line.receive(created("r2", event_id=second.event_id)).ask is second


def test_an_append_that_was_not_sent_has_not_happened() -> None:
    line = Connection()
    ask = held(line)
    line.append(ask)
    line.withdraw(ask)
    assert state(ask) is AskState.HELD


def test_a_create_that_was_not_sent_has_not_happened() -> None:
    line = Connection()
    gone, ask = line.create(), line.create()
    line.withdraw(gone)
    assert line.receive(created("r1")).ask is ask
    assert line.pending == [ask]


@pytest.mark.parametrize("where", ["waiting", "running", "resuming", "ended"])
def test_only_a_held_turn_takes_an_append(where: str) -> None:
    line = Connection()
    ask = line.create() if where == "waiting" else running(line)
    if where in ("resuming", "ended"):
        line.receive(done("r1"))
    if where == "resuming":
        line.append(ask)
    if where == "ended":
        line.receive(ended("r1"))
    with pytest.raises(TurnState, match=where):
        line.append(ask)


def test_a_steered_response_is_followed_by_its_successor_in_the_same_ask() -> None:
    line = Connection()
    ask = running(line)
    assert line.steer(ask) == "r1"
    line.receive(ACCEPTED)
    line.receive(ended("r1", "incomplete"))
    assert state(ask) is AskState.SUCCEEDING
    assert line.receive(created("r2")).ask is ask
    assert (ask.state, ask.response_id) == (AskState.RUNNING, "r2")
    line.receive(ended("r2"))
    assert ask.ended


def test_the_successor_of_a_steer_goes_before_the_next_create_of_the_lane() -> None:
    line = Connection()
    ask = running(line)
    line.steer(ask)
    following = line.create()
    line.receive(ACCEPTED)
    line.receive(ended("r1", "incomplete"))
    assert line.receive(created("r2")).ask is ask
    line.receive(ended("r2"))
    assert line.receive(created("r3", event_id=following.event_id)).ask is following


@pytest.mark.parametrize("settles", [NOT_CREATED, PENDING], ids=lambda event: event.type)
def test_a_taken_steer_without_a_successor_ends_the_ask(settles: Event) -> None:
    line = Connection()
    ask = running(line)
    line.steer(ask)
    line.receive(ACCEPTED)
    line.receive(ended("r1"))
    assert state(ask) is AskState.SUCCEEDING
    line.receive(settles)
    assert ask.ended


def test_a_steer_that_was_not_taken_before_the_end_never_is() -> None:
    line = Connection()
    ask = running(line)
    line.steer(ask)
    line.receive(ended("r1"))
    assert ask.ended
    assert line.receive(FAILED).ask is None


def test_a_refused_steer_harms_nothing() -> None:
    line = Connection()
    ask = running(line)
    line.steer(ask)
    assert line.receive(FAILED).ask is ask
    line.receive(ended("r1"))
    assert ask.ended


def test_two_steers_one_refused_and_one_taken_make_one_successor() -> None:
    line = Connection()
    ask = running(line)
    line.steer(ask)
    line.steer(ask)
    line.receive(ACCEPTED)
    line.receive(FAILED)
    line.receive(ended("r1", "incomplete"))
    line.receive(created("r2"))
    line.receive(ended("r2"))
    assert ask.ended


def test_a_steer_of_a_held_turn_joins_the_append_and_makes_no_successor() -> None:
    line = Connection()
    ask = held(line)
    line.steer(ask)
    line.append(ask)
    line.receive(ACCEPTED)
    line.receive(delta())
    line.receive(ended("r1"))
    assert ask.ended


def test_a_steer_whose_append_was_refused_still_counts() -> None:
    line = Connection()
    ask = held(line)
    line.steer(ask)
    line.receive(ACCEPTED)
    line.receive(error(line.append(ask)))
    line.receive(ended("r1", "incomplete"))
    assert state(ask) is AskState.SUCCEEDING


@pytest.mark.parametrize("status", ["failed", "cancelled"])
def test_a_failed_or_cancelled_response_has_no_successor(status: str) -> None:
    line = Connection()
    ask = running(line)
    line.steer(ask)
    line.receive(ACCEPTED)
    line.receive(ended("r1", status))
    assert ask.ended
    assert line.receive(FAILED).ask is None


def test_a_turn_that_has_ended_can_be_cancelled_without_effect_and_not_steered() -> None:
    line = Connection()
    ask = running(line)
    assert line.cancel(ask)
    line.receive(ended("r1", "cancelled"))
    assert not line.cancel(ask)
    with pytest.raises(TurnState, match="ended"):
        line.steer(ask)


def test_a_waiting_turn_can_be_cancelled_and_not_steered() -> None:
    line = Connection()
    ask = line.create()
    assert line.cancel(ask)
    with pytest.raises(TurnState, match="waiting"):
        line.steer(ask)


@pytest.mark.parametrize(
    "event",
    [delta(), done("r1"), ended("r1")],
    ids=lambda event: event.type,
)
def test_an_event_before_created_is_a_violation(event: Event) -> None:
    line = Connection()
    line.create()
    with pytest.raises(ProtocolViolation, match=event.type):
        line.receive(event)


def test_two_responses_at_once_on_a_lane_are_a_violation() -> None:
    line = Connection()
    running(line)
    second = line.create()
    with pytest.raises(ProtocolViolation):
        line.receive(created("r2", event_id=second.event_id))


def test_a_second_created_is_a_violation() -> None:
    line = Connection()
    running(line)
    with pytest.raises(ProtocolViolation):
        line.receive(created("r2"))


def test_a_lost_create_ends_alone_and_the_next_of_its_lane_follows() -> None:
    line = Connection()
    lost, following, other = running(line), line.create(), running(line, "r2", "a")
    assert line.lose(lost.event_id) is lost
    assert (lost.ended, following.ended, other.ended) == (True, False, False)
    line.receive(created("r3", event_id=following.event_id))
    assert state(following) is AskState.RUNNING
    assert line.lose(lost.event_id) is None
    assert line.lose("never heard of") is None


def test_a_lost_line_ends_everything_once() -> None:
    line = Connection()
    first, second, third = running(line, lane="a"), line.create("a"), held(line)
    assert set(line.lost()) == {first, second, third}
    assert all(ask.ended for ask in (first, second, third))
    assert line.lost() == []


def moved(**members: Any) -> events.ErrorEvent:
    detail = events.ErrorDetail(code="resumed_elsewhere", message="no")
    return events.ErrorEvent(sequence_number=7, status=409, error=detail, **members)


@pytest.mark.parametrize(
    ("first", "after"),
    [
        (delta(), AskState.RUNNING),
        (created("r1"), AskState.RUNNING),
        (created("r1", event_id="of_another_line"), AskState.RUNNING),
        (done("r1"), AskState.HELD),
        (ended("r1"), AskState.ENDED),
        (error(sequence_number=6), AskState.RUNNING),
    ],
)
def test_any_event_may_be_the_first_of_a_resumed_response(first: Event, after: AskState) -> None:
    line = Connection()
    ask = line.resume("r1")
    assert (state(ask), ask.response_id) == (AskState.ATTACHING, "r1")
    delivery = line.receive(first)
    assert (delivery.ask, delivery.verdict) == (ask, Verdict.DELIVER)
    assert state(ask) is after


def test_a_refused_resume_is_over() -> None:
    line = Connection()
    ask = line.resume("r1", "a")
    delivery = line.receive(error(ask.event_id, stream_id="a"))
    assert (delivery.ask, delivery.verdict, ask.ended) == (ask, Verdict.REFUSE, True)
    assert line.pending == []


def test_a_resume_of_a_held_turn_is_answered_as_before() -> None:
    line = Connection()
    ask = line.resume("r1")
    line.receive(done("r1"))
    append = line.append(ask)
    line.receive(delta())
    assert state(ask) is AskState.RUNNING
    assert line.receive(error(append)).ask is None


def test_an_append_that_had_been_taken_before_is_no_refusal() -> None:
    line = Connection()
    ask = line.resume("r1")
    line.receive(done("r1"))
    append = line.append(ask, repeats=True)
    detail = events.ErrorDetail(code="response_not_active", message="no", event_id=append)
    delivery = line.receive(events.ErrorEvent(status=409, error=detail))
    assert (delivery.ask, delivery.verdict) == (ask, Verdict.DROP)
    assert state(ask) is AskState.RUNNING


def test_an_append_that_was_not_sent_before_is_refused_by_the_same_error() -> None:
    line = Connection()
    ask = held(line)
    append = line.append(ask)
    detail = events.ErrorDetail(code="response_not_active", message="no", event_id=append)
    delivery = line.receive(events.ErrorEvent(status=409, error=detail))
    assert (delivery.verdict, state(ask)) == (Verdict.REPORT, AskState.HELD)


def test_a_held_turn_whose_append_had_been_taken_runs() -> None:
    """After a resume: the hold comes again, and then what followed it."""
    line = Connection()
    ask = line.resume("r1")
    line.receive(done("r1"))
    line.receive(delta())
    assert state(ask) is AskState.RUNNING
    assert not ask.rests


@pytest.mark.parametrize("where", ["running", "held"])
def test_a_response_that_was_resumed_elsewhere_is_over_here(where: str) -> None:
    line = Connection()
    ask = running(line) if where == "running" else held(line)
    behind = line.create()
    delivery = line.receive(moved())
    assert (delivery.ask, delivery.verdict, ask.ended) == (ask, Verdict.REFUSE, True)
    line.receive(created("r2", event_id=behind.event_id))
    assert state(behind) is AskState.RUNNING


def test_names_of_two_lines_are_never_the_same() -> None:
    """What is replayed still has the names of the line on which it was made."""
    old, new = Connection("a_"), Connection("b_")
    made = old.create()
    ask = new.create()
    again = new.create(event_id=made.event_id)
    assert len({made.event_id, ask.event_id}) == 2
    assert new.receive(created("r1", event_id=made.event_id)).ask is again


def test_a_create_whose_key_was_used_before_gets_the_replay_with_the_first_ones_name() -> None:
    line = Connection("b_")
    ask = line.create()
    assert line.receive(created("r1", event_id="a_create_1")).ask is ask
    line.receive(ended("r1"))
    beside = line.create("lane")
    running(line, "r2")
    again = line.create("other")
    assert line.receive(created("r3", stream_id="other", event_id=beside.event_id)).ask is again


class _Server:
    """A server that answers as the rules say: what each lane may send next, at random."""

    def __init__(self, echo: bool) -> None:
        self.echo = echo
        self.queue: dict[str | None, list[Ask]] = {lane: [] for lane in LANES}
        self.response: dict[str | None, str | None] = dict.fromkeys(LANES)
        self.count = 0

    def next(self, lane: str | None, choice: int) -> tuple[Ask, Event] | None:
        if not self.queue[lane]:
            return None
        ask = self.queue[lane][0]
        members: dict[str, Any] = {} if lane is None else {"stream_id": lane}
        response_id = self.response[lane]
        if response_id is None:
            if self.echo:
                members["event_id"] = ask.event_id
            if choice == 0:
                members.pop("event_id", None)
                self.queue[lane].pop(0)
                return ask, error(ask.event_id if self.echo else None, **members)
            self.count += 1
            self.response[lane] = f"r{self.count}"
            return ask, created(f"r{self.count}", **members)
        if choice < 3:
            return ask, delta(**members)
        self.response[lane] = None
        self.queue[lane].pop(0)
        return ask, ended(response_id, ("completed", "incomplete", "failed")[choice % 3], **members)


@given(
    st.booleans(),
    st.lists(
        st.tuples(st.sampled_from(["ask", "say"]), st.sampled_from(LANES), st.integers(0, 5)),
        max_size=80,
    ),
)
def test_whatever_the_order_every_event_reaches_the_ask_that_it_answers(
    echo: bool, steps: list[tuple[str, str | None, int]]
) -> None:
    line, server = Connection(), _Server(echo)
    for what, lane, choice in steps:
        if what == "ask":
            server.queue[lane].append(line.create(lane))
            continue
        said = server.next(lane, choice)
        if said is not None:
            expected, event = said
            assert line.receive(event).ask is expected
    waiting = [ask for asks in server.queue.values() for ask in asks]
    assert set(line.pending) == set(waiting)
    assert set(line.lost()) == set(waiting)


_EVENTS: list[Callable[[str | None], Event]] = [
    lambda event_id: created("r9", **({"event_id": event_id} if event_id else {})),
    lambda _: delta(),
    lambda _: done("r9"),
    lambda _: ended("r9"),
    lambda _: ended("r9", "failed"),
    lambda _: ended("r9", "cancelled"),
    lambda event_id: error(event_id),
    lambda _: error(sequence_number=3),
    lambda _: ACCEPTED,
    lambda _: PENDING,
    lambda _: FAILED,
    lambda _: events.Opaque(name="acme:gauge", raw=Raw(b"{}")),
    lambda _: moved(),
]


@given(st.lists(st.tuples(st.integers(0, 6), st.integers(0, 12), st.integers(0, 3)), max_size=60))
def test_whatever_comes_an_ask_is_in_a_state_of_the_table_and_ends_with_the_line(
    steps: list[tuple[int, int, int]],
) -> None:
    """Any event at any moment: a delivery, or a violation after which the line is given up."""
    line = Connection()
    asks: list[Ask] = []
    for what, which, whose in steps:
        ask = asks[whose % len(asks)] if asks else None
        try:
            if what == 0 or ask is None:
                asks.append(line.create())
            elif what == 1:
                line.append(ask, repeats=bool(which % 2))
            elif what == 4:
                asks.append(line.resume(f"r{which}"))
            elif what == 2:
                line.steer(ask)
            elif what == 3:
                line.cancel(ask)
            else:
                line.receive(_EVENTS[which](ask.event_id if whose % 2 else None))
        except TurnState:
            continue
        except ProtocolViolation:
            break
    line.lost()
    assert all(ask.ended for ask in asks)
    assert line.pending == []
