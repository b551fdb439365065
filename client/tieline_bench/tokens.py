"""Measures streams of tokens: their CPU beside the bare server, what is lost, what comes late."""

import selectors
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

from tieline_bench import workload
from tieline_bench.bare.base import TOKENS
from tieline_bench.clients import Connection, LoadError, Seen
from tieline_bench.clients.base import TERMINAL, TIMEOUT
from tieline_bench.cpu import CpuMeter
from tieline_bench.processes import Server, bare
from tieline_bench.rounds import interleaved, percentile
from tieline_bench.turns import connected

ROUNDS: Final = 5
TOKENS_A_STREAM: Final = 2000


class Run(NamedTuple):
    """All streams once."""

    us_a_token: float
    lost: int
    late_us: list[float]
    """How long after it was due each token was seen, by the clock of its stream."""
    busy: float
    """CPU time of server and load client together over the time that the streams took."""


class Streams(NamedTuple):
    """The rounds of both contenders."""

    product: list[Run]
    bare: list[Run]


class _Stream:
    """One answer on its way."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.seen_at: list[float] = []
        self.ended = False

    def take(self, seen: Sequence[Seen], now: float) -> None:
        for event in seen:
            for _ in range(len(event.delta) // len(workload.WORD)):
                self.seen_at.append(now)
            if event.kind in TERMINAL:
                self.ended = True
                if event.kind != "response.completed":
                    raise LoadError(f"a stream ended with {event.kind}")

    @property
    def late(self) -> list[float]:
        """Microseconds of each token, counted from the one that came earliest for its number.

        When a stream began is what a turn costs, and has a bar of its own.
        """
        offsets = [at - number / workload.RATE for number, at in enumerate(self.seen_at)]
        begun = min(offsets, default=0.0)
        return [(offset - begun) * 1e6 for offset in offsets]


def token_costs(
    transport: str,
    server: Server,
    folder: Path,
    *,
    rounds: int = ROUNDS,
    tokens: int = TOKENS_A_STREAM,
) -> Streams:
    """``STREAMS`` connections with one answer each at ``RATE``, on the product and the bare server.

    ``folder`` holds what ``turns.record`` has kept there; ``tokens`` is what the product's script
    says in one answer.
    """
    with bare(transport, folder, mode=TOKENS, tokens=tokens, rate=workload.RATE) as other:
        runs: dict[str, list[Run]] = {"product": [], "bare": []}
        servers = {"product": server, "bare": other}

        def measure(name: str) -> float:
            runs[name].append(_run(transport, servers[name], tokens))
            return runs[name][-1].us_a_token

        interleaved({name: partial(measure, name) for name in servers}, rounds)
    return Streams(runs["product"], runs["bare"])


def _run(transport: str, server: Server, tokens: int) -> Run:
    streams = [_Stream(connected(transport, server)) for _ in range(workload.STREAMS)]
    request = workload.create(transport, workload.STREAM)
    meter = CpuMeter(server.pid)
    before = meter.settled()
    started, own = time.monotonic(), time.process_time()
    for stream in streams:
        stream.connection.send(request)
    _follow(streams)
    took, own = time.monotonic() - started, time.process_time() - own
    used = meter.settled() - before
    for stream in streams:
        stream.connection.close()
    wanted = workload.STREAMS * tokens
    came = sum(len(stream.seen_at) for stream in streams)
    late = [each for stream in streams for each in stream.late]
    return Run(used / max(came, 1) / 1000, wanted - came, late, (used / 1e9 + own) / took)


def _follow(streams: list[_Stream]) -> None:
    """Reads every stream to its end."""
    with selectors.DefaultSelector() as selector:
        for stream in streams:
            selector.register(stream.connection, selectors.EVENT_READ, stream)
        while selector.get_map():
            ready = selector.select(TIMEOUT)
            if not ready:
                raise LoadError("the tokens stopped")
            for key, _ in ready:
                stream = key.data
                seen = stream.connection.receive()
                stream.take(seen, time.monotonic())
                if stream.ended:
                    selector.unregister(stream.connection)


def late(runs: list[Run], share: float) -> float:
    """A percentile of lateness over all rounds, microseconds."""
    return percentile([each for run in runs for each in run.late_us], share)
