"""The table of the open-responses profile can fail: on each member, and on each other type."""

import copy
from collections.abc import Iterator
from typing import Any

import pytest

from tests.conformance.open_responses import EVENTS, check_answer, check_event
from tests.conformance.server import run, serve
from tests.conformance.test_events import ALL_KINDS
from tests.conformance.wire import WIRES, Json, ask


@pytest.fixture(scope="module")
def heard() -> dict[str, Json]:
    """One real event of each type."""
    found: dict[str, Json] = {}

    async def case() -> None:
        async with serve(ALL_KINDS) as served, WIRES["open-websocket"](served) as peer:
            tool = {"type": "function", "name": "f", "parameters": {"type": "object"}}
            turns: list[Json] = [
                {"input": "no custom tools", "tools": [tool]},
                {"input": "no custom tools", "max_output_tokens": 2},
                {"input": "fail"},
                {"input": "x", "temperature": 9},
            ]
            for members in turns:
                for event in await ask(peer, **members):
                    found.setdefault(event["type"], event)

    run(case())
    return found


def refused(event: Any) -> bool:
    """Whether the check says no to it."""
    try:
        check_event(event, set())
    except AssertionError:
        return True
    return False


def paths(value: Any, *at: Any) -> Iterator[tuple[Any, ...]]:
    """The path of every member of every object in it."""
    if isinstance(value, dict):
        for name, each in value.items():
            yield (*at, name)
            yield from paths(each, *at, name)
    elif isinstance(value, list):
        for index, each in enumerate(value):
            yield from paths(each, *at, index)


def holder(event: Json, path: tuple[Any, ...]) -> Any:
    """What has the member that a path ends at."""
    place: Any = event
    for step in path[:-1]:
        place = place[step]
    return place


OPTIONAL = {"logprobs", "cache_write_tokens", "encrypted_content", "param"}
"""Members that we send and the specification does not know of, or takes as they come."""

FREE = {"parameters", "metadata"}
"""Members whose own members are the client's affair."""


def known(event: Json) -> Iterator[tuple[bool, tuple[Any, ...]]]:
    """Whether it is required, and the path, of each member that the specification knows."""
    for path in paths(event):
        name = path[-1]
        if name in OPTIONAL or FREE.intersection(path[:-1]):
            continue
        reasoning = holder(event, path).get("type") == "reasoning"
        error_type = path == ("error", "type")
        yield not error_type and not (reasoning and name in ("status", "content")), path


def test_the_union_has_24_types_and_a_server_makes_all_but_two(heard: dict[str, Json]) -> None:
    assert len(EVENTS) == 24
    assert EVENTS.keys() - heard.keys() == {
        "response.queued",  # needs lanes
        "response.output_text.annotation.added",  # no engine of ours makes one
    }


def test_each_member_is_missed_at_any_depth(heard: dict[str, Json]) -> None:
    for kind, event in heard.items():
        assert not refused(event)
        for required, path in known(event):
            less = copy.deepcopy(event)
            del holder(less, path)[path[-1]]
            assert refused(less) == required, (kind, path)


def test_each_type_is_held_to(heard: dict[str, Json]) -> None:
    for kind, event in heard.items():
        for _, path in known(event):
            other = copy.deepcopy(event)
            holder(other, path)[path[-1]] = object()
            assert refused(other), (kind, path)


@pytest.mark.parametrize(
    "kind",
    [
        "response.reasoning_text.delta",
        "response.custom_tool_call_input.delta",
        "response.done",
        "tieline.heartbeat",
        "codex.rate_limits",
    ],
)
def test_a_type_outside_the_union_is_refused(heard: dict[str, Json], kind: str) -> None:
    event = {**heard["response.reasoning.delta"], "type": kind}
    assert refused(event)


def test_a_lifecycle_event_has_its_own_status(heard: dict[str, Json]) -> None:
    completed = heard["response.completed"]
    assert refused({**completed, "type": "response.incomplete"})
    assert refused({**heard["response.failed"], "type": "response.completed"})


def test_a_whole_answer_is_held_to_the_same_table(heard: dict[str, Json]) -> None:
    whole = copy.deepcopy(heard["response.completed"])
    check_answer(whole, set())
    del whole["response"]["safety_identifier"]
    with pytest.raises(AssertionError, match="safety_identifier"):
        check_answer(whole, set())
    with pytest.raises(AssertionError, match="code"):
        check_answer(
            {"type": "error", "status": 400, "sequence_number": 0, "error": {"message": "m"}}, set()
        )
