"""The tool loop: the model calls a tool at every turn, the client sends a kilobyte of output."""

from typing import Any, Final

import msgspec

from tieline.codecs import json, proto
from tieline_bench.clients import Connection, LoadError, Turn, take_turn
from tieline_bench.cpu import CpuMeter
from tieline_bench.model.answers import ARGUMENTS, CALLS, TOOL
from tieline_bench.model.asked import last_asked
from tieline_bench.processes import Server
from tieline_bench.workload import GRPC, INPUT_BYTES, INSTRUCTIONS_BYTES, prose

FIRSTS: Final = 100
"""Conversations whose first turns are measured together."""

LATE: Final = range(195, 206)
"""Turns of a long conversation, from 1, that are measured together."""

_TOOL: Final = {
    "type": "function",
    "name": TOOL,
    "description": "Reads a file of the project.",
    "parameters": {"type": "object", "properties": {"path": {"type": "string"}}},
    "strict": False,
}


class Loop:
    """One conversation on a connection; ``tools`` are further ones that each turn sends in full."""

    def __init__(
        self, connection: Connection, transport: str, *, tools: list[dict[str, Any]]
    ) -> None:
        self._connection = connection
        self._transport = transport
        self._settings = {
            "type": "response.create",
            "model": CALLS,
            "store": False,
            "instructions": prose(INSTRUCTIONS_BYTES),
            "tools": [_TOOL, *tools],
        }
        self._last: Turn | None = None

    def request(self) -> bytes:
        """The next create, as the transport sends it."""
        last = self._last
        item: dict[str, Any] = {"type": "message", "role": "user", "content": prose(INPUT_BYTES)}
        members: dict[str, Any] = {"input": [item]}
        if last is not None:
            output = {"type": "function_call_output", "call_id": last.call_id}
            members = {
                "previous_response_id": last.response_id,
                "input": [{**output, "output": prose(INPUT_BYTES)}],
            }
        return encoded(self._transport, {**self._settings, **members})

    def take(self, request: bytes) -> Turn:
        """Takes the turn; raises :class:`LoadError` unless the answer is the model's call."""
        turn = take_turn(self._connection, request)
        if turn.text != "".join(ARGUMENTS) or turn.deltas != len(ARGUMENTS) or not turn.call_id:
            raise LoadError(f"the model called its tool, but what came was {turn}")
        self._last = turn
        return turn


def encoded(transport: str, create: dict[str, Any]) -> bytes:
    """A create as ``transport`` sends it on a connection."""
    event = msgspec.json.encode(create)
    if transport != GRPC:
        return event
    return proto.encode_request(json.RequestDecoder().decode(event)).SerializeToString()


def first_turns(
    connection: Connection, transport: str, meter: CpuMeter, *, count: int = FIRSTS
) -> float:
    """Microseconds of CPU a turn of ``count`` that each begin a conversation."""
    loops = [Loop(connection, transport, tools=[]) for _ in range(count)]
    requests = [loop.request() for loop in loops]
    before = meter.rested()
    for loop, request in zip(loops, requests, strict=True):
        loop.take(request)
    return (meter.rested() - before) / count / 1000


def last_turns(
    connection: Connection, transport: str, meter: CpuMeter, model: Server, *, turns: range = LATE
) -> float:
    """Microseconds of CPU a turn of the last ``turns`` of a conversation.

    Raises :class:`LoadError` unless the model was shown all of it in the end.
    """
    loop = Loop(connection, transport, tools=[])
    before = 0
    for number in range(1, turns.stop):
        if number == turns.start:
            before = meter.rested()
        loop.take(loop.request())
    used = meter.rested() - before
    seen = last_asked(model).calls
    if seen != turns.stop - 2:
        raise LoadError(f"the model was shown {seen} calls of {turns.stop - 2}")
    return used / len(turns) / 1000
