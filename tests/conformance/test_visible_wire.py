"""What a client can see stays as it is committed, and every change of it is a difference."""

from collections.abc import Iterator

import pytest

from tests.conformance.visible_shapes import Fields, Shapes
from tests.conformance.visible_vocabulary import joined
from tests.conformance.visible_wire import Sections, committed, sections
from tieline.v1 import events_pb2

RENEW = "meant? then: python -m tests.conformance.visible_wire"


@pytest.fixture(scope="module")
def now() -> Sections:
    """What is so now."""
    return sections()


@pytest.mark.parametrize("title", committed())
def test_what_a_client_can_see_is_what_is_committed(title: str, now: Sections) -> None:
    assert now[title].splitlines() == committed()[title].splitlines(), RENEW


def test_all_that_is_looked_at_is_committed(now: Sections) -> None:
    assert list(now) == list(committed()), RENEW


def shapes(*values: object, wire: str = "sse") -> str:
    seen = Shapes()
    for value in values:
        seen.add("e", value, wire)
    return joined(seen.lines())


@pytest.mark.parametrize(
    "other",
    [
        {"type": "e", "a": {"b": [1]}, "id": "x_0123456789abcdef", "new": None},
        {"type": "e", "a": {"b": [1]}},
        {"type": "e", "a": {"c": [1]}, "id": "x_0123456789abcdef"},
        {"type": "e", "a": {"b": ["1"]}, "id": "x_0123456789abcdef"},
        {"type": "f", "a": {"b": [1]}, "id": "x_0123456789abcdef"},
        {"type": "e", "a": {"b": [1]}, "id": "y_0123456789abcdef"},
    ],
    ids=["a member more", "one less", "another name", "another kind", "another word", "another id"],
)
def test_a_change_that_a_client_can_see_changes_the_shape(other: object) -> None:
    one = {"type": "e", "a": {"b": [1]}, "id": "x_0123456789abcdef"}

    assert shapes(other) != shapes(one)


def test_another_value_of_the_same_kind_is_the_same_shape() -> None:
    one = {"delta": "a", "n": 1, "id": "x_0123456789abcdef", "many": [1, 2]}
    other = {"delta": "b", "n": 2.5, "id": "x_fedcba9876543210", "many": [3]}

    assert shapes(other) == shapes(one) == shapes(one, other)


def test_a_response_and_its_items_are_looked_at_once_wherever_they_are() -> None:
    item = {"type": "message", "role": "assistant"}
    response = {"object": "response", "output": [item]}

    assert shapes({"response": response, "item": item}).splitlines() == [
        "a response (sse)",
        '    object: "response"',
        "    output: array",
        "    output[]: (item message)",
        "e (sse)",
        "    item: (item message)",
        "    response: (a response)",
        "item message (sse)",
        '    role: "assistant"',
        '    type: "message"',
    ]


def test_what_a_client_has_to_ask_for_is_marked() -> None:
    seen = Shapes()
    seen.add("e", {"a": 1}, "sse")
    seen.add("e", {"a": 1, "b": 1}, "sse asked")

    assert "    a: number\n    b: number (sse asked)\n" in joined(seen.lines())


def test_a_field_that_is_no_longer_filled_is_a_difference() -> None:
    def fields(event: events_pb2.ServerEvent) -> Iterator[str]:
        seen = Fields()
        seen.add(event)
        return seen.lines()

    heartbeat = events_pb2.Heartbeat(phase=events_pb2.HEARTBEAT_PHASE_IDLE)

    assert list(fields(events_pb2.ServerEvent(heartbeat=heartbeat, stream_id="a"))) == [
        "tieline.v1.Heartbeat: phase",
        "tieline.v1.ServerEvent: heartbeat, stream_id",
    ]
    assert list(fields(events_pb2.ServerEvent(heartbeat=heartbeat))) == [
        "tieline.v1.Heartbeat: phase",
        "tieline.v1.ServerEvent: heartbeat",
    ]
