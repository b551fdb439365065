"""The numbers of a process, and their text for Prometheus."""

import re
from typing import Any

import pytest

from tests.support.records import turn
from tieline_server.observability.metrics import BUCKETS, OTHER, Numbers, add_up

SAMPLE = re.compile(r"^([a-z_]+)(\{[^}]*\})? (\S+)$")
MODEL = 'gen_ai_request_model="scripted"'
LABELS = f'{MODEL},tieline_transport="sse",tieline_outcome="completed"'


def samples(numbers: Numbers, *, connections: int = 0) -> dict[str, float]:
    """Name and labels -> value; every line must be a sample or a comment."""
    found = {}
    for line in numbers.text(connections=connections).decode().splitlines():
        if line.startswith("# "):
            continue
        match = SAMPLE.match(line)
        assert match, line
        found[match[1] + (match[2] or "")] = float(match[3])
    return found


def test_turns_add_up_by_transport_model_and_outcome() -> None:
    numbers = Numbers()
    numbers.observe(turn(), "sse")
    numbers.observe(turn(), "sse")
    numbers.observe(turn(outcome="failed", error_code="server_error"), "grpc")
    found = samples(numbers, connections=3)
    ended = f'tieline_transport="sse",{MODEL},tieline_outcome="completed"'
    failed = f'tieline_transport="grpc",{MODEL},tieline_outcome="failed",error_type="server_error"'
    assert found["tieline_server_connections_active"] == 3
    assert found['tieline_server_events_total{tieline_transport="sse"}'] == 24
    assert found["tieline_server_responses_total{" + ended + "}"] == 2
    assert found["tieline_server_responses_total{" + failed + "}"] == 1
    tokens = "tieline_server_tokens_total{" + MODEL + ',gen_ai_token_type="%s"}'
    counted = {kind: found[tokens % kind] for kind in ("input", "cached", "output", "reasoning")}
    assert counted == {"input": 300, "cached": 180, "output": 84, "reasoning": 24}


def test_durations_are_cumulative_buckets_with_their_sum() -> None:
    numbers = Numbers()
    for seconds in (0.01, 0.011, 1000.0):
        numbers.observe(turn(started_at=0.0, ended_at=seconds, first_token_at=None), "sse")
    found = samples(numbers)
    name = "gen_ai_server_request_duration_seconds"
    edges = [f"{bound:g}" for bound in BUCKETS] + ["+Inf"]
    counts = [found[f'{name}_bucket{{{LABELS},le="{edge}"}}'] for edge in edges]
    assert counts == [1, *[2] * 13, 3]
    assert found[f"{name}_count{{{LABELS}}}"] == 3
    assert found[f"{name}_sum{{{LABELS}}}"] == 1000.021
    assert not any("time_to_first_token" in key for key in found)


def test_the_time_to_the_first_token_is_counted_where_there_was_one() -> None:
    numbers = Numbers()
    numbers.observe(turn(started_at=0.0, first_token_at=0.25), "sse")
    found = samples(numbers)
    assert found[f"gen_ai_server_time_to_first_token_seconds_sum{{{LABELS}}}"] == 0.25


@pytest.mark.parametrize(
    "never",
    [
        {"outcome": "refused", "error_code": "model_not_found"},
        {"outcome": "disconnected", "settled": False},
        {"outcome": "cancelled", "settled": False},
    ],
)
def test_a_model_that_was_never_resolved_is_no_label(never: dict[str, Any]) -> None:
    numbers = Numbers()
    numbers.observe(turn(model="x" * 1000, **never), "sse")
    text = numbers.text(connections=0).decode()
    assert "xxx" not in text
    assert f'gen_ai_request_model="{OTHER}"' in text


def test_labels_are_escaped() -> None:
    numbers = Numbers()
    numbers.observe(turn(model='a"b\\c\nd'), "sse")
    assert 'gen_ai_request_model="a\\"b\\\\c\\nd"' in numbers.text(connections=0).decode()


def test_every_metric_says_its_kind_and_its_meaning() -> None:
    text = Numbers().text(connections=0).decode()
    names = set(re.findall(r"^# TYPE (\S+) (?:counter|gauge|histogram)$", text, re.MULTILINE))
    assert names == set(re.findall(r"^# HELP (\S+) .+\.$", text, re.MULTILINE))
    assert len(names) == 13


def test_what_guards_did_is_told_by_guard_and_stage() -> None:
    numbers = Numbers()
    numbers.guards.checks["pii", "input"] += 3
    numbers.guards.hits["pii", "output"] += 1
    numbers.guards.failures["remote", "input"] += 2
    numbers.guards.seconds["remote", "input"] += 0.25
    found = samples(numbers)
    labels = '{{tieline_guard="{}",tieline_stage="{}"}}'.format
    assert found["tieline_server_guard_checks_total" + labels("pii", "input")] == 3
    assert found["tieline_server_guard_hits_total" + labels("pii", "output")] == 1
    assert found["tieline_server_guard_failures_total" + labels("remote", "input")] == 2
    assert found["tieline_server_guard_seconds_total" + labels("remote", "input")] == 0.25


def numbers_of(*transports: str) -> Numbers:
    """A process that has ended a turn over each of these."""
    numbers = Numbers()
    for transport in transports:
        numbers.observe(turn(), transport)
    return numbers


def read(text: bytes) -> dict[str, float]:
    """Name and labels -> value."""
    lines = [line for line in text.decode().splitlines() if not line.startswith("#")]
    return {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in lines}


def test_several_processes_add_up_to_what_one_would_have_said() -> None:
    whole = numbers_of("sse", "grpc", "sse")
    parts = [numbers_of("sse", "grpc"), numbers_of("sse")]
    texts = [part.text(connections=2, history_bytes=5, evicted=1) for part in parts]
    assert read(add_up(texts)) == read(whole.text(connections=4, history_bytes=10, evicted=2))


def test_what_one_process_says_is_unchanged() -> None:
    text = numbers_of("sse", "grpc").text(connections=2, history_bytes=5, evicted=1)
    assert add_up([text]) == text
    assert add_up([add_up([text])]) == text


def test_of_the_dead_only_what_never_shrinks_counts() -> None:
    text = numbers_of("sse").text(connections=2, history_bytes=5, evicted=1)
    living = Numbers().text(connections=7)
    found = read(add_up([living], [text]))
    assert found["tieline_server_connections_active"] == 7
    assert found["tieline_server_history_bytes"] == 0
    assert found["tieline_server_history_evictions_total"] == 1
    assert found['tieline_server_events_total{tieline_transport="sse"}'] == 12


def test_names_of_models_may_hold_what_the_format_is_made_of() -> None:
    numbers = Numbers()
    numbers.observe(turn(model="a 1\n# TYPE b {c} 2.5"), "sse")
    text = numbers.text(connections=0)
    assert add_up([text]) == text
