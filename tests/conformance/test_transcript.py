"""The comparison of transcripts can fail, and fails for nothing that may differ."""

import copy
from typing import Any

import pytest

from tests.conformance.transcript import Json, difference


def event(kind: str, **members: Any) -> Json:
    return {"type": kind, "sequence_number": members.pop("number", 0), **members}


def turn(
    mark: str = "1", *, lane: str | None = None, pieces: tuple[str, ...] = ("a", "b")
) -> list[Json]:
    """A turn of text whose ids end in ``mark``."""
    ids = {"id": f"resp_{mark * 32}", "created_at": int(mark), "store": mark == "1"}
    item = f"msg_{mark * 32}"
    events = [
        event("response.created", response={**ids, "status": "in_progress"}),
        *(event("response.output_text.delta", item_id=item, delta=each) for each in pieces),
        event("response.completed", response={**ids, "status": "completed", "output": [item]}),
    ]
    for number, each in enumerate(events):
        each["sequence_number"] = number
        if lane is not None:
            each["stream_id"] = lane
    return events


def test_ids_times_and_the_transports_own_say_nothing() -> None:
    assert difference(turn("1"), turn("2"), whole=False) is None


def test_an_id_that_comes_back_is_the_same_id() -> None:
    other = turn("2")
    other[1]["item_id"] = "msg_" + "3" * 32
    assert difference(turn("1"), other, whole=False) is not None


def test_an_id_in_pieces_is_compared_as_one() -> None:
    ours = turn("1", pieces=("msg_", "1" * 16, "1" * 16))
    theirs = turn("2", pieces=("msg_", "2" * 16, "2" * 16))
    assert difference(ours, theirs, whole=False) is None
    fewer = turn("2", pieces=("msg_", "2" * 32))
    assert difference(ours, fewer, whole=False) is not None


@pytest.mark.parametrize(
    ("at", "member", "value"),
    [
        (0, "type", "response.queued"),
        (1, "delta", "c"),
        (1, "sequence_number", 7),
        (2, "logprobs", []),
        (3, "response", {"status": "incomplete"}),
    ],
)
def test_anything_else_is_a_difference(at: int, member: str, value: object) -> None:
    other = copy.deepcopy(turn("1"))
    other[at][member] = value
    assert difference(turn("1"), other, whole=False) is not None


def test_an_event_more_or_less_is_a_difference() -> None:
    assert difference(turn(), turn()[:-1], whole=False) == "3 and 2 events"
    assert difference(turn(), [*turn(), *turn()], whole=True) == "1 and 2 events"


def test_lanes_may_come_in_any_order_and_a_lane_may_not() -> None:
    a, b = turn("1", lane="a"), turn("1", lane="b")
    mixed = [each for pair in zip(a, b, strict=True) for each in pair]
    assert difference([*a, *b], mixed, whole=False) is None
    assert difference([*a, *b], [*b, *a], whole=False) is None
    assert difference(a, a[::-1], whole=False) is not None


def test_a_whole_answer_is_the_end_of_its_stream_without_its_number() -> None:
    end = {name: value for name, value in turn("2")[-1].items() if name != "sequence_number"}
    assert difference(turn("1"), [end], whole=True) is None
    assert difference(turn("1"), [{**end, "type": "response.failed"}], whole=True) is not None
