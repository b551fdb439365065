"""The list of cases that a real model can answer holds nothing that is not a case."""

import re
from pathlib import Path

import pytest

from tests.conformance.llama_way import ALWAYS, LEFT_OUT, SOAKED, WAYS, roads_of

CASES = {
    name
    for path in Path(__file__).parent.glob("test_*.py")
    for name in re.findall(r"^(?:async )?def (test_\w+)", path.read_text(), re.MULTILINE)
}


@pytest.mark.parametrize("case", sorted(ALWAYS | SOAKED))
def test_what_is_listed_is_a_case(case: str) -> None:
    assert case in CASES


def test_a_few_cases_run_always_and_the_others_under_soak() -> None:
    assert not ALWAYS & SOAKED
    first, second = min(ALWAYS), min(SOAKED)
    for way in WAYS:
        assert dict(roads_of(first, {"grpc", "websocket"}, soak=False))[way] == "websocket"
        assert dict(roads_of(first, {"sse"}, soak=True))[way] == "sse"
        assert dict(roads_of(second, {"websocket"}, soak=True))[way] == "websocket"
    assert not dict(roads_of(second, {"websocket"}, soak=False))
    assert not dict(roads_of("a case", {"websocket"}, soak=True))


@pytest.mark.parametrize("way", LEFT_OUT)
def test_what_is_left_out_is_listed_and_has_a_reason(way: str) -> None:
    assert way in WAYS
    for case, reason in LEFT_OUT[way].items():
        assert case in ALWAYS | SOAKED
        assert reason
        assert way not in dict(roads_of(case, {"websocket"}, soak=True))
