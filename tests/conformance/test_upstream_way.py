"""The lists of cases that an upstream cannot carry hold nothing that is not a case."""

import re
from pathlib import Path

import pytest

from tests.conformance.server import UPSTREAMS
from tests.conformance.upstream_way import MODES, roads_of

CASES = {
    name
    for path in Path(__file__).parent.glob("test_*.py")
    for name in re.findall(r"^(?:async )?def (test_\w+)", path.read_text(), re.MULTILINE)
}


def test_each_mode_has_a_server() -> None:
    assert MODES.keys() <= UPSTREAMS.keys()


@pytest.mark.parametrize("mode", MODES)
def test_what_is_left_out_is_a_case_with_a_reason(mode: str) -> None:
    for case, reason in MODES[mode].items():
        assert case in CASES
        assert reason
        assert mode not in roads_of(case, {"websocket"})


def test_a_case_runs_over_the_first_road_that_can_carry_it() -> None:
    assert roads_of("a case", {"grpc", "sse", "websocket"})["chat"] == "websocket"
    assert roads_of("a case", {"grpc", "sse"})["chat"] == "sse"
    assert roads_of("a case", {"grpc"}) == {}
