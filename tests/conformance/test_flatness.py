"""A turn costs what is new in it, counted in the bytes really handled."""

import json
from itertools import pairwise

import pytest

from tests.conformance.server import serve
from tests.conformance.wire import Wire, ask, response

TOOLS = [
    {
        "type": "function",
        "name": f"tool_{number}",
        "description": "What this tool does, at some length. " * 20,
        "parameters": {
            "type": "object",
            "properties": {f"p{i}": {"type": "string", "description": "x" * 60} for i in range(12)},
        },
    }
    for number in range(10)
]


@pytest.mark.needs("connection")
async def test_the_bytes_handled_at_turn_200_are_those_of_turn_5(wire: Wire) -> None:
    assert len(json.dumps(TOOLS)) > 18_000
    script = {
        "models": ["scripted"],
        "rules": [{"id": "ok", "emit": {"type": "message", "text": "noted, go on"}}],
    }
    async with serve(script) as served, wire(served) as peer:
        previous = None
        line = next(iter(served.services.running.connections))
        totals = [line.connection.work.copy()]
        for number in range(1, 201):
            events = await ask(
                peer,
                previous_response_id=previous,
                tools=TOOLS,
                instructions="Answer in few words. " * 40,
                input=f"fact {number:03}: " + "y" * 1000,
            )
            previous = response(events)["id"]
            totals.append(line.connection.work.copy())

        work = [after.since(before) for before, after in pairwise(totals)]
        for stage in ("decode", "validate", "render", "encode"):
            early, late = getattr(work[4], stage), getattr(work[199], stage)
            assert 0 < late <= 1.05 * early, (stage, early, late)
        # What is the same as last time is not read again: the tools cost once.
        assert work[0].validate > 18_000 > work[4].validate
