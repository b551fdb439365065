"""Streams of a model that speaks slowly: what each of its tokens costs the server before it."""

import selectors
import time
from collections import deque
from typing import Any, Final, NamedTuple

from tieline_bench import workload
from tieline_bench.clients import Connection, LoadError
from tieline_bench.clients.base import TERMINAL, TIMEOUT
from tieline_bench.cpu import CpuMeter
from tieline_bench.model.answers import IN_STEP, WORD
from tieline_bench.processes import Server
from tieline_bench.tool_loop import encoded
from tieline_bench.turns import connected

STREAMS: Final = 64
RATE: Final = 50
"""Tokens a second of each stream."""


class Way(NamedTuple):
    """How ``STREAMS`` streams reach a server."""

    transport: str
    connections: int = STREAMS
    model: str = IN_STEP


class _Spoken:
    """What came over one connection."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.deltas = 0
        self.text = 0
        self.open = 0
        """Streams that were asked for and have not ended."""

    def take(self) -> None:
        """Reads what is there."""
        for event in self.connection.receive():
            if event.delta:
                self.deltas += 1
                self.text += len(event.delta)
            elif event.kind in TERMINAL:
                self.open -= 1
                if event.kind != "response.completed":
                    raise LoadError(f"a stream ended with {event.kind}")


def token_cost(way: Way, server: Server, *, tokens: int, greet: bool) -> float:
    """Microseconds of server CPU a token of ``STREAMS`` streams that begin one after the other.

    Raises :class:`LoadError` unless each token came, as an event of its own. ``greet``: the
    server is ours, and a gRPC connection says that nothing is to be merged.
    """
    transport = way.transport
    connections = [
        _Spoken(connected(transport, server, greet=greet)) for _ in range(way.connections)
    ]
    meter = CpuMeter(server.pid)
    before = meter.rested()
    _listen(connections, _requests(way))
    used = meter.rested() - before
    for each in connections:
        each.connection.close()
    wanted = STREAMS * tokens
    if sum(each.text for each in connections) != wanted * len(WORD):
        raise LoadError("tokens were lost")
    if sum(each.deltas for each in connections) != wanted:
        raise LoadError("tokens were merged")
    return used / wanted / 1000


def _requests(way: Way) -> list[bytes]:
    """The creates, connection by connection in turn."""
    item = {"type": "message", "role": "user", "content": workload.prose(100)}
    members: dict[str, Any] = {"model": way.model, "store": False, "input": [item]}
    made = []
    for number in range(STREAMS):
        lane = {"stream_id": f"lane_{number}"} if way.connections < STREAMS else {}
        made.append(encoded(way.transport, {"type": "response.create", **members, **lane}))
    return made


def _listen(connections: list[_Spoken], requests: list[bytes]) -> None:
    """Sends each request a little after the one before, and reads to the end of the last.

    So streams that keep to their own time are never in step.
    """
    waiting = deque(enumerate(requests))
    gap = 1 / RATE / STREAMS
    due = time.monotonic()
    with selectors.DefaultSelector() as selector:
        for each in connections:
            selector.register(each.connection, selectors.EVENT_READ, each)
        while waiting or any(each.open for each in connections):
            now = time.monotonic()
            if waiting and now >= due:
                number, request = waiting.popleft()
                asked = connections[number % len(connections)]
                asked.open += 1
                asked.connection.send(request)
                due += gap
                continue
            ready = selector.select(due - now if waiting else TIMEOUT)
            if not ready and not waiting:
                raise LoadError("the tokens stopped")
            for key, _ in ready:
                key.data.take()
