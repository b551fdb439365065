"""``upstream``: what the service costs before a model that answers at once.

Bars:

- ``growth.<transport>``: server CPU of turn 200 minus that of turn 5, over the same difference
  of a bare client that posts the very bytes which the product posted. 20 kB of tools are sent in
  full at every turn, with 1 kB of new input.
- ``kept.<transport>``: server CPU of turn 200 over that of turn 5 of the same conversation, where
  the model keeps what it was told (responses with ``previous_response_id``).
"""

import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from tieline_bench import workload
from tieline_bench.clients import LoadError
from tieline_bench.growth import flatness, growth
from tieline_bench.limits import machine
from tieline_bench.model.answers import CALLS
from tieline_bench.one_cpu import on_one_cpu
from tieline_bench.processes import Server, before, model
from tieline_bench.report import Bar, Report, bar, report
from tieline_bench.workload import GRPC, WEBSOCKET

GROWTH: Final = 1.5
KEPT: Final = 1.15
TRANSPORTS: Final = (WEBSOCKET, GRPC)
"""A chain that is not stored lives on a connection: HTTP has none."""


class Upstream:
    """One run; ``say`` is told what is being measured."""

    def __init__(self, *, say: Callable[[str], None]) -> None:
        self._say = say
        self._bars: list[Bar] = []
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
        return report(self._bars, [], self._figures)

    def _measure(self, folder: Path) -> None:
        keys = workload.write(folder, tokens=1).keys
        with model(tokens=1, rate=1) as behind, before(behind, keys) as server:
            for transport in TRANSPORTS:
                (folder / transport).mkdir()
                self._growth(transport, server, behind, folder / transport)
        state = workload.keeps_state(folder, CALLS)
        with model(tokens=1, rate=1) as behind, before(behind, keys, *state) as server:
            for transport in TRANSPORTS:
                self._kept(transport, server, behind)

    def _growth(self, transport: str, server: Server, behind: Server, folder: Path) -> None:
        name = f"growth.{transport}"
        self._say(name)
        try:
            found = growth(transport, server, behind, folder)
        except (LoadError, OSError) as error:
            self._bars.append(bar(name, None, GROWTH, note=str(error)))
            return
        self._bars.append(bar(name, found.product.growth / found.bare.growth, GROWTH))
        for who, ends in (("product", found.product), ("bare", found.bare)):
            self._figures[f"{name}.{who}_turn_5_us"] = ends.early
            self._figures[f"{name}.{who}_turn_200_us"] = ends.late
        self._figures[f"{name}.posted_bytes"] = found.late_bytes

    def _kept(self, transport: str, server: Server, behind: Server) -> None:
        name = f"kept.{transport}"
        self._say(name)
        try:
            ends = flatness(transport, server, behind)
        except (LoadError, OSError) as error:
            self._bars.append(bar(name, None, KEPT, note=str(error)))
            return
        self._bars.append(bar(name, ends.late / ends.early, KEPT))
        self._figures[f"{name}.turn_5_us"] = ends.early
        self._figures[f"{name}.turn_200_us"] = ends.late
