"""The list of cases that a real model can answer holds nothing that is not a case."""

import re
from pathlib import Path

import pytest

from tests.conformance.llama_way import ALWAYS, SOAKED, road_of

CASES = {
    name
    for path in Path(__file__).parent.glob("test_*.py")
    for name in re.findall(r"^def (test_\w+)", path.read_text(), re.MULTILINE)
}


@pytest.mark.parametrize("case", sorted(ALWAYS | SOAKED))
def test_what_is_listed_is_a_case(case: str) -> None:
    assert case in CASES


def test_a_few_cases_run_always_and_the_others_under_soak() -> None:
    assert not ALWAYS & SOAKED
    first, second = min(ALWAYS), min(SOAKED)
    assert road_of(first, {"grpc", "websocket"}, soak=False) == "websocket"
    assert road_of(first, {"sse"}, soak=True) == "sse"
    assert road_of(second, {"websocket"}, soak=True) == "websocket"
    assert road_of(second, {"websocket"}, soak=False) is None
    assert road_of("a case", {"websocket"}, soak=True) is None
