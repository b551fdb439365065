"""The check by openai-python's types can fail: on each member, literal and type."""

import copy
from collections.abc import Iterator
from typing import Any

import pytest

from tests.conformance.open_responses import MEMBERS
from tests.conformance.openai_types import EVENTS, check_answer, check_event
from tests.conformance.server import run, serve
from tests.conformance.test_events import ALL_KINDS
from tests.conformance.wire import WIRES, Json, ask

ANNOUNCED = ("response.created", "response.completed")


@pytest.fixture(scope="module")
def heard() -> dict[str, Json]:
    """One real event of each type of a turn."""
    found: dict[str, Json] = {}

    async def case() -> None:
        async with serve(ALL_KINDS) as served, WIRES["websocket"](served) as peer:
            for event in await ask(peer, input="all"):
                found.setdefault(event["type"], event)

    run(case())
    return found


def refused(event: Any, *asked: str) -> bool:
    """Whether the check says no to it."""
    try:
        check_event(event, set(asked))
    except (AssertionError, ValueError):
        return True
    return False


def without(event: Json) -> Iterator[tuple[str, Json]]:
    """The event again and again, each time without one of its members."""
    for name in event.keys() - {"type"}:
        yield name, {key: value for key, value in event.items() if key != name}


def test_each_member_that_a_model_requires_is_missed(heard: dict[str, Json]) -> None:
    assert len(heard) > 20
    for kind, event in heard.items():
        assert not refused(event)
        required = {n for n, field in EVENTS[kind].model_fields.items() if field.is_required()}
        missed = {name for name, less in without(event) if refused(less)}
        assert missed == required - {"type"}, kind


@pytest.mark.parametrize("kind", ANNOUNCED)
def test_each_of_the_31_members_of_a_response_is_missed(heard: dict[str, Json], kind: str) -> None:
    assert len(MEMBERS) == 31
    event = heard[kind]
    missed = {
        name for name, less in without(event["response"]) if refused({**event, "response": less})
    }
    assert missed == MEMBERS.keys()


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("sequence_number",), "1"),
        (("response", "id"), 7),
        (("response", "status"), "ended"),
        (("response", "parallel_tool_calls"), "yes"),
        (("response", "output"), None),
        (("response", "output", 1, "status"), "over"),
        (("response", "output", 1, "content", 0, "annotations"), None),
        (("response", "output", 3, "arguments"), {"a": 1}),
        (("response", "output", 3, "type"), "tieline_call"),
        (("response", "usage", "total_tokens"), None),
        (("response", "usage", "input_tokens_details"), {}),
        (("response", "incomplete_details"), {"reason": "superseded"}),
        (("response", "error"), {"code": "engine_unavailable", "message": "x"}),
    ],
    ids=str,
)
def test_a_wrong_type_or_literal_is_refused_at_any_depth(
    heard: dict[str, Json], path: tuple[Any, ...], value: object
) -> None:
    event = copy.deepcopy(heard["response.completed"])
    assert not refused(event)
    place: Any = event
    for step in path[:-1]:
        place = place[step]
    place[path[-1]] = value
    assert refused(event)


def test_an_event_of_our_own_is_refused_unless_append_brings_it(heard: dict[str, Json]) -> None:
    done = {**heard["response.completed"], "type": "response.done"}
    assert refused(done)
    assert not refused(done, "append")
    assert refused({"type": "tieline.heartbeat", "phase": "prefill"}, "append")


@pytest.mark.parametrize(
    ("reason", "asked"), [("superseded", "append"), ("deadline", "timeout_ms")]
)
def test_a_reason_of_ours_is_for_who_used_what_brings_it(
    heard: dict[str, Json], reason: str, asked: str
) -> None:
    event = copy.deepcopy(heard["response.completed"])
    event["response"]["incomplete_details"] = {"reason": reason}
    assert refused(event)
    assert not refused(event, asked)


def test_an_error_needs_its_words_and_a_whole_answer_its_members(heard: dict[str, Json]) -> None:
    error = {"type": "error", "status": 400, "sequence_number": 0}
    words = {"type": "invalid_request_error", "code": "x", "message": "m", "param": None}
    check_answer({**error, "error": words}, set())
    with pytest.raises(ValueError, match="message"):
        check_answer({**error, "error": {**words, "message": None}}, set())
    whole = copy.deepcopy(heard["response.completed"])
    check_answer(whole, set())
    del whole["response"]["usage"]
    with pytest.raises(AssertionError, match="usage"):
        check_answer(whole, set())
