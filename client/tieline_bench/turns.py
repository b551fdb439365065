"""Measures turns: their CPU on the product beside the bare server, and along a long chain."""

from collections.abc import Callable
from functools import partial
from math import sqrt
from pathlib import Path
from statistics import median, quantiles
from typing import Final, NamedTuple

from tieline_bench import workload
from tieline_bench.bare.base import DELTA_FILE, END_FILE, TURN_FILE, TURNS
from tieline_bench.clients import (
    Connection,
    GrpcConnection,
    LoadError,
    SseConnection,
    WebSocketConnection,
    take_turn,
)
from tieline_bench.cpu import CpuMeter
from tieline_bench.processes import Server, bare
from tieline_bench.rounds import interleaved
from tieline_bench.workload import GRPC, SSE, WEBSOCKET

ROUNDS: Final = 9
WARM_UP: Final = 200
TURNS_A_ROUND: Final = 200

RESUMABLE_ROUNDS: Final = 200
TURNS_A_SHORT_ROUND: Final = 20
"""What resumability adds is a twentieth of a turn, and within a second a machine that others use
too gets faster and slower by more. Many short rounds, each compared with its neighbour, show it.
"""

EARLY: Final = range(5, 16)
LATE: Final = range(190, 211)
"""Turns of a chain, from 1, whose costs are compared."""

CHAINS: Final = 5
"""Chains that are measured, after one that warms up."""

_CONNECTIONS: Final[dict[str, Callable[..., Connection]]] = {
    GRPC: GrpcConnection,
    WEBSOCKET: WebSocketConnection,
    SSE: SseConnection,
}


class Costs(NamedTuple):
    """Microseconds of server CPU a turn, one entry a round."""

    product: list[float]
    bare: list[float]


def connected(transport: str, server: Server, *, greet: bool = False) -> Connection:
    """A connection to a server; ``greet`` sends the gRPC session start that turns merging off.

    Raises :class:`LoadError` or :class:`OSError` where the server has no such transport.
    """
    address = server.address(transport)
    if address is None:
        raise LoadError("it has no such transport")
    connection = _CONNECTIONS[transport](address, api_key=workload.KEY)
    if greet and transport == GRPC:
        connection.send(workload.session_start())
        while not connection.receive():
            pass
    return connection


def record(transport: str, server: Server, folder: Path) -> None:
    """Takes one turn of the product and keeps its bytes for the bare server.

    Raises :class:`LoadError` unless its events are the ones that the benchmark is about.
    """
    connection = connected(transport, server, greet=True)
    connection.recorded = bytearray()
    turn = take_turn(connection, workload.create(transport, workload.ANSWER))
    connection.close()
    events = connection.split(bytes(connection.recorded))
    if turn.events != workload.EVENTS or turn.text != workload.WORD * workload.DELTAS:
        raise LoadError(f"a turn has {turn.events} events, not {workload.EVENTS}")
    last_delta = workload.EVENTS - workload.ENDING - 1
    (folder / TURN_FILE).write_bytes(b"".join(events))
    (folder / DELTA_FILE).write_bytes(events[last_delta])
    (folder / END_FILE).write_bytes(b"".join(events[last_delta:]))


def turn_costs(transport: str, server: Server, folder: Path, *, rounds: int = ROUNDS) -> Costs:
    """The turn of 28 events on the product and on the bare server, by turns.

    ``folder`` holds what :func:`record` has kept there.
    """
    request = workload.create(transport, workload.ANSWER)
    with bare(transport, folder, mode=TURNS, tokens=1, rate=1) as other:
        connections = {
            "product": connected(transport, server, greet=True),
            "bare": connected(transport, other),
        }
        meters = {"product": CpuMeter(server.pid), "bare": CpuMeter(other.pid)}
        for connection in connections.values():
            _take(connection, request, WARM_UP)

        contenders = {n: partial(_cost, connections[n], request, meters[n]) for n in connections}
        found = interleaved(contenders, rounds)
        for connection in connections.values():
            connection.close()
    return Costs(found["product"], found["bare"])


class Resumable(NamedTuple):
    """Microseconds of server CPU a turn, one entry a round."""

    plain: list[float]
    resumable: list[float]

    @property
    def added(self) -> float:
        """What a turn costs more that keeps its events: the median of each round's difference."""
        return median(self._differences)

    @property
    def error(self) -> float:
        """Of ``added``, one standard error, as if the differences were normal around it."""
        first, _, third = quantiles(self._differences, n=4)
        return 1.2533 * (third - first) / 1.349 / sqrt(len(self.plain))

    @property
    def _differences(self) -> list[float]:
        return [b - a for a, b in zip(self.plain, self.resumable, strict=True)]


def resumable_costs(transport: str, server: Server, *, rounds: int = RESUMABLE_ROUNDS) -> Resumable:
    """The same turn with and without ``resumable``, by turns; no connection ever drops."""
    connection, meter = connected(transport, server, greet=True), CpuMeter(server.pid)
    requests = {
        kind: workload.create(transport, workload.ANSWER, resumable=kind == "resumable")
        for kind in ("plain", "resumable")
    }
    for request in requests.values():
        _take(connection, request, WARM_UP)
    contenders = {
        kind: partial(_cost, connection, requests[kind], meter, turns=TURNS_A_SHORT_ROUND)
        for kind in requests
    }
    found = interleaved(contenders, rounds)
    connection.close()
    return Resumable(found["plain"], found["resumable"])


def _take(connection: Connection, request: bytes, turns: int) -> None:
    for _ in range(turns):
        take_turn(connection, request)


def _cost(
    connection: Connection, request: bytes, meter: CpuMeter, *, turns: int = TURNS_A_ROUND
) -> float:
    before = meter.settled()
    _take(connection, request, turns)
    return (meter.settled() - before) / turns / 1000


class Flatness(NamedTuple):
    """Microseconds of server CPU a turn at both ends of a chain, the median of all."""

    early: float
    late: float


def flatness(transport: str, server: Server, *, chains: int = CHAINS) -> Flatness:
    """Chains of turns that send their tools in full each time: what history costs."""
    meter = CpuMeter(server.pid)
    early: list[float] = []
    late: list[float] = []
    for number in range(chains + 1):
        connection = connected(transport, server, greet=True)
        costs = _chain(transport, connection, meter)
        connection.close()
        if number:
            early += [costs[turn] for turn in EARLY]
            late += [costs[turn] for turn in LATE]
    return Flatness(median(early), median(late))


def _chain(transport: str, connection: Connection, meter: CpuMeter) -> dict[int, float]:
    """Number of the turn -> its cost, for the turns that are compared."""
    costs: dict[int, float] = {}
    previous: str | None = None
    for number in range(1, LATE.stop):
        request = workload.create(transport, workload.ANSWER, previous=previous, tools=True)
        watched = number in EARLY or number in LATE
        before = meter.settled() if watched else 0
        previous = take_turn(connection, request).response_id
        if watched:
            costs[number] = (meter.settled() - before) / 1000
    return costs
