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


def running(connection: Connection, response_id: str = "r1", lane: str | None = None) -> Ask:
    ask = connection.create(lane)
    members = {} if lane is None else {"stream_id": lane}
    connection.receive(created(response_id, event_id=ask.event_id, **members))
    return ask


def held(connection: Connection, response_id: str = "r1") -> Ask:
    ask = running(connection, response_id)
    connection.receive(done(response_id))
    return ask


def state(ask: Ask) -> AskState:
    return ask.state


def test_a_created_finds_its_ask_by_the_echoed_event_id() -> None:
    connection = Connection()
    first, second = connection.create("a"), connection.create("b")
    assert connection.receive(created("r2", stream_id="b", event_id=second.event_id)).ask is second
    assert connection.receive(created("r1", stream_id="a", event_id=first.event_id)).ask is first
    assert (first.response_id, second.response_id) == ("r1", "r2")


def test_without_an_echo_creates_of_a_lane_are_answered_in_order() -> None:
    connection = Connection()
    first, second = connection.create(), connection.create()
    assert connection.receive(created("r1")).ask is first
    assert connection.receive(ended("r1")).ask is first
    assert connection.receive(created("r2")).ask is second
    assert first.ended


def test_events_of_a_lane_go_to_its_running_ask() -> None:
    connection = Connection()
    first, second = running(connection, "r1", "a"), running(connection, "r2", "b")
    assert connection.receive(delta(stream_id="b")).ask is second
    assert connection.receive(delta(stream_id="a")).ask is first


def test_an_error_ends_the_create_that_it_names_and_no_other() -> None:
    connection = Connection()
    first, second = running(connection), connection.create()
    delivery = connection.receive(error(second.event_id))
    assert (delivery.ask, delivery.verdict) == (second, Verdict.REFUSE)
    assert (second.state, first.state) == (AskState.ENDED, AskState.RUNNING)


def test_an_error_without_an_echo_is_for_the_create_whose_turn_it_is() -> None:
    connection = Connection()
    first = connection.create()
    connection.create()
    assert connection.receive(error()).ask is first


def test_a_numbered_error_belongs_to_the_running_response() -> None:
    connection = Connection()
    ask = running(connection)
    delivery = connection.receive(error(sequence_number=2))
    assert (delivery.ask, delivery.verdict) == (ask, Verdict.DELIVER)
    assert state(ask) is AskState.RUNNING


def test_an_unnumbered_error_beside_a_running_response_belongs_to_the_line() -> None:
    connection = Connection()
    running(connection)
    assert connection.receive(error(sequence_number=0)).ask is None


def test_an_error_that_names_nobody_belongs_to_the_line() -> None:
    connection = Connection()
    ask = connection.create()
    assert connection.receive(error("create_99")).ask is None
    assert state(ask) is AskState.WAITING


def test_events_of_the_line_belong_to_no_ask() -> None:
    connection = Connection()
    running(connection)
    for event in (
        events.Heartbeat(phase="prefill"),
        events.SessionStarted(session_id="s", revision="1", extensions=[], limits={}),
        events.SessionGoingAway(reason="draining", seconds=1.0),
    ):
        assert connection.receive(event).ask is None


def test_unknown_events_are_delivered_as_they_are_and_change_nothing() -> None:
    """EV-09: a vendor's event, and one without a number, kill no stream."""
    connection = Connection()
    ask = running(connection)
    vendor = events.Opaque(sequence_number=4, name="acme:gauge", raw=Raw(b'{"v":1}'))
    delivery = connection.receive(vendor)
    assert (delivery.ask, delivery.verdict, delivery.event) == (ask, Verdict.DELIVER, vendor)
    bare = events.OutputTextDelta(item_id="m", output_index=0, content_index=0, delta="x")
    assert connection.receive(bare).ask is ask
    assert state(ask) is AskState.RUNNING


def test_an_unknown_event_that_nobody_waits_for_is_no_violation() -> None:
    connection = Connection()
    connection.create()
    assert connection.receive(events.Opaque(name="acme:gauge", raw=Raw(b"{}"))).ask is None


def test_a_held_turn_goes_on_with_its_append() -> None:
    connection = Connection()
    ask = held(connection)
    assert state(ask) is AskState.HELD
    assert connection.held() is ask
    connection.append(ask)
    assert state(ask) is AskState.RESUMING
    connection.receive(delta())
    assert state(ask) is AskState.RUNNING
    connection.receive(ended("r1"))
    assert ask.ended


def test_a_refused_append_leaves_the_turn_held() -> None:
    connection = Connection()
    ask = held(connection)
    event_id = connection.append(ask)
    delivery = connection.receive(error(event_id, sequence_number=3))
    assert (delivery.ask, delivery.verdict) == (ask, Verdict.REPORT)
    assert state(ask) is AskState.HELD
    connection.append(ask)
    assert state(ask) is AskState.RESUMING


def test_a_late_answer_to_a_steer_is_no_answer_to_an_append() -> None:
    connection = Connection()
    ask = running(connection)
    connection.steer(ask)
    connection.receive(done("r1"))
    event_id = connection.append(ask)
    connection.receive(ACCEPTED)
    assert state(ask) is AskState.RESUMING
    assert connection.receive(error(event_id)).verdict is Verdict.REPORT


def test_a_create_behind_a_held_turn_begins_after_its_end() -> None:
    connection = Connection()
    first = held(connection)
    second = connection.create()
    assert connection.receive(ended("r1", "incomplete")).ask is first
    assert connection.receive(created("r2", event_id=second.event_id)).ask is second


def test_an_append_that_was_not_sent_has_not_happened() -> None:
    connection = Connection()
    ask = held(connection)
    connection.append(ask)
    connection.withdraw(ask)
    assert state(ask) is AskState.HELD


def test_a_create_that_was_not_sent_has_not_happened() -> None:
    connection = Connection()
    gone, ask = connection.create(), connection.create()
    connection.withdraw(gone)
    assert connection.receive(created("r1")).ask is ask
    assert connection.pending == [ask]


@pytest.mark.parametrize("where", ["waiting", "running", "resuming", "ended"])
def test_only_a_held_turn_takes_an_append(where: str) -> None:
    connection = Connection()
    ask = connection.create() if where == "waiting" else running(connection)
    if where in ("resuming", "ended"):
        connection.receive(done("r1"))
    if where == "resuming":
        connection.append(ask)
    if where == "ended":
        connection.receive(ended("r1"))
    with pytest.raises(TurnState, match=where):
        connection.append(ask)


def test_a_steered_response_is_followed_by_its_successor_in_the_same_ask() -> None:
    connection = Connection()
    ask = running(connection)
    assert connection.steer(ask) == "r1"
    connection.receive(ACCEPTED)
    connection.receive(ended("r1", "incomplete"))
    assert state(ask) is AskState.SUCCEEDING
    assert connection.receive(created("r2")).ask is ask
    assert (ask.state, ask.response_id) == (AskState.RUNNING, "r2")
    connection.receive(ended("r2"))
    assert ask.ended


def test_the_successor_of_a_steer_goes_before_the_next_create_of_the_lane() -> None:
    connection = Connection()
    ask = running(connection)
    connection.steer(ask)
    following = connection.create()
    connection.receive(ACCEPTED)
    connection.receive(ended("r1", "incomplete"))
    assert connection.receive(created("r2")).ask is ask
    connection.receive(ended("r2"))
    assert connection.receive(created("r3", event_id=following.event_id)).ask is following


@pytest.mark.parametrize("settles", [NOT_CREATED, PENDING], ids=lambda event: event.type)
def test_a_taken_steer_without_a_successor_ends_the_ask(settles: Event) -> None:
    connection = Connection()
    ask = running(connection)
    connection.steer(ask)
    connection.receive(ACCEPTED)
    connection.receive(ended("r1"))
    assert state(ask) is AskState.SUCCEEDING
    connection.receive(settles)
    assert ask.ended


def test_a_steer_that_was_not_taken_before_the_end_never_is() -> None:
    connection = Connection()
    ask = running(connection)
    connection.steer(ask)
    connection.receive(ended("r1"))
    assert ask.ended
    assert connection.receive(FAILED).ask is None


def test_a_refused_steer_harms_nothing() -> None:
    connection = Connection()
    ask = running(connection)
    connection.steer(ask)
    assert connection.receive(FAILED).ask is ask
    connection.receive(ended("r1"))
    assert ask.ended


def test_two_steers_one_refused_and_one_taken_make_one_successor() -> None:
    connection = Connection()
    ask = running(connection)
    connection.steer(ask)
    connection.steer(ask)
    connection.receive(ACCEPTED)
    connection.receive(FAILED)
    connection.receive(ended("r1", "incomplete"))
    connection.receive(created("r2"))
    connection.receive(ended("r2"))
    assert ask.ended


def test_a_steer_of_a_held_turn_joins_the_append_and_makes_no_successor() -> None:
    connection = Connection()
    ask = held(connection)
    connection.steer(ask)
    connection.append(ask)
    connection.receive(ACCEPTED)
    connection.receive(delta())
    connection.receive(ended("r1"))
    assert ask.ended


def test_a_steer_whose_append_was_refused_still_counts() -> None:
    connection = Connection()
    ask = held(connection)
    connection.steer(ask)
    connection.receive(ACCEPTED)
    connection.receive(error(connection.append(ask)))
    connection.receive(ended("r1", "incomplete"))
    assert state(ask) is AskState.SUCCEEDING


@pytest.mark.parametrize("status", ["failed", "cancelled"])
def test_a_failed_or_cancelled_response_has_no_successor(status: str) -> None:
    connection = Connection()
    ask = running(connection)
    connection.steer(ask)
    connection.receive(ACCEPTED)
    connection.receive(ended("r1", status))
    assert ask.ended
    assert connection.receive(FAILED).ask is None


def test_a_turn_that_has_ended_can_be_cancelled_without_effect_and_not_steered() -> None:
    connection = Connection()
    ask = running(connection)
    assert connection.cancel(ask)
    connection.receive(ended("r1", "cancelled"))
    assert not connection.cancel(ask)
    with pytest.raises(TurnState, match="ended"):
        connection.steer(ask)


def test_a_waiting_turn_can_be_cancelled_and_not_steered() -> None:
    connection = Connection()
    ask = connection.create()
    assert connection.cancel(ask)
    with pytest.raises(TurnState, match="waiting"):
        connection.steer(ask)


@pytest.mark.parametrize(
    "event",
    [delta(), done("r1"), ended("r1")],
    ids=lambda event: event.type,
)
def test_an_event_before_created_is_a_violation(event: Event) -> None:
    connection = Connection()
    connection.create()
    with pytest.raises(ProtocolViolation, match=event.type):
        connection.receive(event)


def test_two_responses_at_once_on_a_lane_are_a_violation() -> None:
    connection = Connection()
    running(connection)
    second = connection.create()
    with pytest.raises(ProtocolViolation):
        connection.receive(created("r2", event_id=second.event_id))


def test_a_second_created_is_a_violation() -> None:
    connection = Connection()
    running(connection)
    with pytest.raises(ProtocolViolation):
        connection.receive(created("r2"))


def test_a_lost_create_ends_alone_and_the_next_of_its_lane_follows() -> None:
    connection = Connection()
    lost, following, other = (
        running(connection),
        connection.create(),
        running(connection, "r2", "a"),
    )
    assert connection.lose(lost.event_id) is lost
    assert (lost.ended, following.ended, other.ended) == (True, False, False)
    connection.receive(created("r3", event_id=following.event_id))
    assert state(following) is AskState.RUNNING
    assert connection.lose(lost.event_id) is None
    assert connection.lose("never heard of") is None


def test_a_lost_line_ends_everything_once() -> None:
    connection = Connection()
    first, second, third = running(connection, lane="a"), connection.create("a"), held(connection)
    assert set(connection.lost()) == {first, second, third}
    assert all(ask.ended for ask in (first, second, third))
    assert connection.lost() == []


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
    connection = Connection()
    ask = connection.resume("r1")
    assert (state(ask), ask.response_id) == (AskState.ATTACHING, "r1")
    delivery = connection.receive(first)
    assert (delivery.ask, delivery.verdict) == (ask, Verdict.DELIVER)
    assert state(ask) is after


def test_a_refused_resume_is_over() -> None:
    connection = Connection()
    ask = connection.resume("r1", "a")
    delivery = connection.receive(error(ask.event_id, stream_id="a"))
    assert (delivery.ask, delivery.verdict, ask.ended) == (ask, Verdict.REFUSE, True)
    assert connection.pending == []


def test_a_resume_of_a_held_turn_is_answered_as_before() -> None:
    connection = Connection()
    ask = connection.resume("r1")
    connection.receive(done("r1"))
    append = connection.append(ask)
    connection.receive(delta())
    assert state(ask) is AskState.RUNNING
    assert connection.receive(error(append)).ask is None


def test_an_append_that_had_been_taken_before_is_no_refusal() -> None:
    connection = Connection()
    ask = connection.resume("r1")
    connection.receive(done("r1"))
    append = connection.append(ask, repeats=True)
    detail = events.ErrorDetail(code="response_not_active", message="no", event_id=append)
    delivery = connection.receive(events.ErrorEvent(status=409, error=detail))
    assert (delivery.ask, delivery.verdict) == (ask, Verdict.DROP)
    assert state(ask) is AskState.RUNNING


def test_an_append_that_was_not_sent_before_is_refused_by_the_same_error() -> None:
    connection = Connection()
    ask = held(connection)
    append = connection.append(ask)
    detail = events.ErrorDetail(code="response_not_active", message="no", event_id=append)
    delivery = connection.receive(events.ErrorEvent(status=409, error=detail))
    assert (delivery.verdict, state(ask)) == (Verdict.REPORT, AskState.HELD)


def test_a_held_turn_whose_append_had_been_taken_runs() -> None:
    """After a resume: the hold comes again, and then what followed it."""
    connection = Connection()
    ask = connection.resume("r1")
    connection.receive(done("r1"))
    connection.receive(delta())
    assert state(ask) is AskState.RUNNING
    assert not ask.rests


@pytest.mark.parametrize("where", ["running", "held"])
def test_a_response_that_was_resumed_elsewhere_is_over_here(where: str) -> None:
    connection = Connection()
    ask = running(connection) if where == "running" else held(connection)
    behind = connection.create()
    delivery = connection.receive(moved())
    assert (delivery.ask, delivery.verdict, ask.ended) == (ask, Verdict.REFUSE, True)
    connection.receive(created("r2", event_id=behind.event_id))
    assert state(behind) is AskState.RUNNING


def test_names_of_two_lines_are_never_the_same() -> None:
    """What is replayed still has the names of the connection on which it was made."""
    old, new = Connection("a_"), Connection("b_")
    made = old.create()
    ask = new.create()
    again = new.create(event_id=made.event_id)
    assert len({made.event_id, ask.event_id}) == 2
    assert new.receive(created("r1", event_id=made.event_id)).ask is again


def test_a_create_whose_key_was_used_before_gets_the_replay_with_the_first_ones_name() -> None:
    connection = Connection("b_")
    ask = connection.create()
    assert connection.receive(created("r1", event_id="a_create_1")).ask is ask
    connection.receive(ended("r1"))
    beside = connection.create("lane")
    running(connection, "r2")
    again = connection.create("other")
    assert (
        connection.receive(created("r3", stream_id="other", event_id=beside.event_id)).ask is again
    )


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
    connection, server = Connection(), _Server(echo)
    for what, lane, choice in steps:
        if what == "ask":
            server.queue[lane].append(connection.create(lane))
            continue
        said = server.next(lane, choice)
        if said is not None:
            expected, event = said
            assert connection.receive(event).ask is expected
    waiting = [ask for asks in server.queue.values() for ask in asks]
    assert set(connection.pending) == set(waiting)
    assert set(connection.lost()) == set(waiting)


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
    """Any event at any moment: a delivery, or a violation that gives the connection up."""
    connection = Connection()
    asks: list[Ask] = []
    for what, which, whose in steps:
        ask = asks[whose % len(asks)] if asks else None
        try:
            if what == 0 or ask is None:
                asks.append(connection.create())
            elif what == 1:
                connection.append(ask, repeats=bool(which % 2))
            elif what == 4:
                asks.append(connection.resume(f"r{which}"))
            elif what == 2:
                connection.steer(ask)
            elif what == 3:
                connection.cancel(ask)
            else:
                connection.receive(_EVENTS[which](ask.event_id if whose % 2 else None))
        except TurnState:
            continue
        except ProtocolViolation:
            break
    connection.lost()
    assert all(ask.ended for ask in asks)
    assert connection.pending == []
