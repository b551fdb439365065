"""What leaves in one write: whole events in order, joined up to a bound."""

from collections.abc import Sequence

import pytest

from tests.support.runtime import Stage, hello, run
from tieline.events import Event, Heartbeat, SteerAccepted, SteerRef
from tieline_server.transports.stream import EVENTS, Batches


def words(taken: Sequence[Event]) -> list[bytes]:
    """Heartbeats as their phase; anything else is not for this client."""
    return [event.phase.encode() for event in taken if isinstance(event, Heartbeat)]


def written(*phases: str, most: int, first: str | None = None) -> list[bytes]:
    """The writes of a line that has these events to send."""
    writes: list[bytes] = []

    async def main() -> None:
        stage = Stage(hello)
        for phase in phases:
            stage.driver.connection.outgoing.put_connection(Heartbeat(phase=phase))
        given = [] if first is None else [Heartbeat(phase=first)]
        batches = Batches(stage.driver, words, most=most, first=given)
        while (data := batches.next()) is not None:
            writes.append(data)
            left = sum(map(len, writes)) < len("".join([first or "", *phases]))
            assert batches.empty is not left
        await stage.driver.close()

    run(main)
    return writes


@pytest.mark.parametrize(
    ("most", "expected"),
    [
        (100, [b"aabbccdd"]),
        (8, [b"aabbccdd"]),
        (7, [b"aabbcc", b"dd"]),
        (4, [b"aabb", b"ccdd"]),
        (3, [b"aa", b"bb", b"cc", b"dd"]),
        (0, [b"aa", b"bb", b"cc", b"dd"]),
    ],
)
def test_a_write_holds_as_many_whole_events_as_fit(most: int, expected: list[bytes]) -> None:
    assert written("aa", "bb", "cc", "dd", most=most) == expected


def test_a_larger_event_goes_alone() -> None:
    assert written("a", "b" * 9, "c", "d", most=4) == [b"a", b"b" * 9, b"cd"]


def test_what_was_given_first_goes_first() -> None:
    assert written("b", "c", most=2, first="a") == [b"ab", b"c"]


def test_more_events_than_are_taken_at_once_still_leave_together() -> None:
    phases = ["x"] * (2 * EVENTS + 3)
    assert written(*phases, most=1000) == [b"x" * len(phases)]


async def test_what_stands_behind_events_that_the_client_does_not_get_is_not_left() -> None:
    """The reason why a line ends goes out last, whatever was left out before it."""

    stage = Stage(hello)
    outgoing = stage.driver.connection.outgoing
    outgoing.put("a", SteerAccepted(steer=SteerRef(previous_response_id="resp_1")))
    outgoing.put_last(Heartbeat(phase="last"))
    batches = Batches(stage.driver, words, most=100)
    assert batches.next() == b"last"
    assert batches.next() is None
    await stage.driver.close()


async def test_events_that_the_client_does_not_get_leave_nothing_to_write() -> None:
    stage = Stage(hello)
    batches = Batches(stage.driver, lambda taken: [], most=10)
    stage.create()
    await stage.driver.wait()
    assert batches.next() is None
    assert batches.empty
    await stage.driver.close()
