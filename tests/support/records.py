"""The record of a turn, as the core would leave it."""

from typing import Any

from tieline.responses import Usage
from tieline_server.core.values import Times, TurnRecord, Work


def turn(**changes: Any) -> TurnRecord:
    """A completed turn with these members changed."""
    members: dict[str, Any] = {
        "response_id": "resp_2",
        "previous_response_id": "resp_1",
        "owner": "ann",
        "model": "scripted",
        "lane": "side",
        "outcome": "completed",
        "kind": "turn",
        "reason": None,
        "error_code": None,
        "usage": Usage.of(input=100, cached=60, output=28, reasoning=8),
        "trace_context": None,
        "work": Work(),
        "store": True,
        "events": 12,
    }
    times: dict[str, Any] = {
        "started_at": 10.0,
        "ended_at": 10.5,
        "first_token_at": 10.2,
        "phases": lambda: {"prefill": 200_000, "decode": 300_000, "overhead": 900},
    }
    times |= {name: changes.pop(name) for name in times.keys() & changes.keys()}
    return TurnRecord(times=Times(**times), **(members | changes))
