"""The list of cases that an upstream cannot carry holds nothing that is not a case."""

import re
from pathlib import Path

import pytest

from tests.conformance.upstream_way import EXCEPT, road_of

CASES = {
    name
    for path in Path(__file__).parent.glob("test_*.py")
    for name in re.findall(r"^def (test_\w+)", path.read_text(), re.MULTILINE)
}


@pytest.mark.parametrize("case", EXCEPT)
def test_what_is_left_out_is_a_case_with_a_reason(case: str) -> None:
    assert case in CASES
    assert EXCEPT[case]
    assert road_of(case, {"websocket"}) is None


def test_a_case_runs_over_the_first_road_that_can_carry_it() -> None:
    assert road_of("a case", {"grpc", "sse", "websocket"}) == "websocket"
    assert road_of("a case", {"grpc", "sse"}) == "sse"
    assert road_of("a case", {"grpc"}) is None
