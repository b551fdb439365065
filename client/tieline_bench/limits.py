"""``limits``: what the service costs beside the least that each stack can do.

Bars (each of them a ratio within one run, or a count):

- ``turn.<transport>``: a turn of 28 events, merging off, keys on, telemetry off, over a bare
  server that sends the same bytes joined.
- ``resumable.<transport>.added_us``: what such a turn costs more when it can be resumed.
- ``flatness.<transport>``: turns 190 to 210 of a chain over turns 5 to 15.
- ``tokens.<transport>``: CPU a token of 16 streams at 1,000 tokens/s over the bare adaptive
  server; how many tokens are lost; how much later than on the bare server the median one comes.

All of it runs on one CPU, see ``one_cpu``. For the streams that means that the load client takes
its share of it: a token that waits for the client counts as late, on either server, and the
figure ``busy`` says how much of the CPU both used. Near 1 a server does not keep up: then its
tokens gather, which makes them cheap, and what they are late says so. On two CPUs that are
otherwise idle the same bare gRPC server read 28 to 32 µs a token instead of 20 to 25.
"""

import os
import platform
import tempfile
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import Any, Final

from tieline_bench import workload
from tieline_bench.clients import LoadError
from tieline_bench.one_cpu import on_one_cpu
from tieline_bench.processes import Server, product
from tieline_bench.report import Bar, Bare, Report, bar, report
from tieline_bench.rounds import ratio
from tieline_bench.tokens import TOKENS_A_STREAM, late, token_costs
from tieline_bench.turns import flatness, record, resumable_costs, turn_costs
from tieline_bench.workload import GRPC, SSE, TRANSPORTS, WEBSOCKET

TURN: Final = 3.0
FLAT: Final = 1.15
RESUMABLE_US: Final = 20.0
TOKEN: Final = {GRPC: 1.3, WEBSOCKET: 1.4, SSE: 1.4}
LATE_MS: Final = 1.0

KNOWN_TURN_US: Final = {GRPC: 66.0, WEBSOCKET: 29.0, SSE: 44.0}
"""Server CPU on a 2-core virtual machine that was busy (load 6 to 12), good to 15 %. gRPC: a
message of 100 bytes each way on an open stream, grpc.aio on uvloop, which was 58 to 66; the other
two: 28 events joined to one write, WebSocket on aiohttp and SSE on uvicorn, both on uvloop. No
CPU was idle there, so no process paid for waking one: what a run on one CPU is comparable with."""
KNOWN_TOKEN_US: Final = {GRPC: 22.3, WEBSOCKET: 7.6, SSE: 8.0}
"""The same machine, just as busy: adaptive writes at 16 streams of 1,000 tokens/s, on grpc.aio,
picows and uvicorn; of two runs the one that was disturbed less."""

NOT_SERVED: Final = "not served"


class Limits:
    """One run; ``say`` is told what is being measured."""

    def __init__(self, *, say: Callable[[str], None]) -> None:
        self._say = say
        self._bars: list[Bar] = []
        self._bare: list[Bare] = []
        self._figures: dict[str, Any] = machine()

    def run(self) -> Report:
        """Measures everything; raises ``StartError`` when a server does not start."""
        started = time.monotonic()
        with (
            tempfile.TemporaryDirectory(prefix="tieline-bench-") as name,
            on_one_cpu() as self._figures["pinned_to_cpu"],
        ):
            self._measure(Path(name))
        self._figures["seconds"] = round(time.monotonic() - started, 1)
        self._figures["load_after"] = list(os.getloadavg())
        return report(self._bars, self._bare, self._figures)

    def _measure(self, folder: Path) -> None:
        files = workload.write(folder, tokens=TOKENS_A_STREAM)
        with product(files, merge="never") as server:
            for transport in TRANSPORTS:
                (folder / transport).mkdir()
                self._turn(transport, server, folder / transport)
                self._resumable(transport, server)
            # A chain that is not stored lives on a connection: HTTP has none.
            for transport in (GRPC, WEBSOCKET):
                self._flatness(transport, server)
        with product(files, merge="auto") as server:
            for transport in TRANSPORTS:
                self._tokens(transport, server, folder / transport)

    def _turn(self, transport: str, server: Server, folder: Path) -> None:
        name = f"turn.{transport}"
        self._say(name)
        try:
            record(transport, server, folder)
            costs = turn_costs(transport, server, folder)
        except (LoadError, OSError) as error:
            self._missing(name, TURN, error)
            return
        self._bars.append(bar(name, ratio(costs.product, costs.bare), TURN))
        self._compare(name, costs.product, costs.bare, KNOWN_TURN_US[transport])

    def _resumable(self, transport: str, server: Server) -> None:
        name = f"resumable.{transport}"
        self._say(name)
        try:
            costs = resumable_costs(transport, server)
        except (LoadError, OSError) as error:
            self._missing(f"{name}.added_us", RESUMABLE_US, error)
            return
        self._bars.append(bar(f"{name}.added_us", costs.added, RESUMABLE_US))
        self._figures[f"{name}.added_error_us"] = round(costs.error, 1)
        self._figures[f"{name}.plain_us"] = median(costs.plain)
        self._figures[f"{name}.resumable_us"] = median(costs.resumable)

    def _flatness(self, transport: str, server: Server) -> None:
        name = f"flatness.{transport}"
        self._say(name)
        try:
            found = flatness(transport, server)
        except (LoadError, OSError) as error:
            self._missing(name, FLAT, error)
            return
        self._bars.append(bar(name, found.late / found.early, FLAT))
        self._figures[f"{name}.early_us"] = found.early
        self._figures[f"{name}.late_us"] = found.late

    def _tokens(self, transport: str, server: Server, folder: Path) -> None:
        name = f"tokens.{transport}"
        self._say(name)
        try:
            if not any(folder.iterdir()):
                raise LoadError("it answered no turn")
            streams = token_costs(transport, server, folder)
        except (LoadError, OSError) as error:
            self._missing(name, TOKEN[transport], error)
            return
        costs = [run.us_a_token for run in streams.product]
        bare = [run.us_a_token for run in streams.bare]
        added = (late(streams.product, 0.5) - late(streams.bare, 0.5)) / 1000
        self._bars.append(bar(name, ratio(costs, bare), TOKEN[transport]))
        self._bars.append(bar(f"{name}.lost", sum(run.lost for run in streams.product), 0))
        self._bars.append(bar(f"{name}.added_p50_ms", added, LATE_MS))
        self._compare(name, costs, bare, KNOWN_TOKEN_US[transport])
        for who, runs in (("product", streams.product), ("bare", streams.bare)):
            self._figures[f"{name}.{who}_late_p50_us"] = late(runs, 0.5)
            self._figures[f"{name}.{who}_late_p99_us"] = late(runs, 0.99)
            self._figures[f"{name}.{who}_busy"] = round(median(run.busy for run in runs), 2)

    def _compare(self, name: str, costs: list[float], bare: list[float], known: float) -> None:
        self._bare.append(Bare(name=name, us=round(median(bare), 1), known_us=known))
        self._figures[f"{name}.product_us"] = median(costs)
        self._figures[f"{name}.bare_us"] = median(bare)
        self._figures[f"{name}.product_rounds_us"] = [round(cost, 1) for cost in costs]
        self._figures[f"{name}.bare_rounds_us"] = [round(cost, 1) for cost in bare]

    def _missing(self, name: str, target: float, error: Exception) -> None:
        self._bars.append(bar(name, None, target, note=f"{NOT_SERVED}: {error}"))


def machine() -> dict[str, Any]:
    """What the figures depend on."""
    names = ("grpcio", "protobuf", "uvloop", "aiohttp", "msgspec", "h2")
    return {
        "cpus": os.cpu_count() or 0,
        "kernel": platform.release(),
        "python": platform.python_version(),
        "versions": ", ".join(f"{name} {version(name)}" for name in names),
        "load_before": list(os.getloadavg()),
    }
