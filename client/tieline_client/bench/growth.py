"""What a longer history costs before a model: the product beside a bare client, turn by turn."""

from pathlib import Path
from statistics import median
from typing import Final, NamedTuple

from tieline_client.bench.clients import LoadError
from tieline_client.bench.cpu import CpuMeter
from tieline_client.bench.model.answers import CHAT
from tieline_client.bench.model.asked import last_asked, last_body
from tieline_client.bench.processes import HTTP, Poster, Server, poster
from tieline_client.bench.tool_loop import LATE, Loop
from tieline_client.bench.turns import connected
from tieline_client.bench.workload import TOOLS_BYTES, tool_list

EARLY: Final = range(2, 9)
"""Turns around 5, from 1, whose costs are compared with those around 200."""

CHAINS: Final = 9
"""Chains that are measured, after one that warms up."""

MOST_NEW: Final = 10_000
"""Bytes of a request beside its tools, where the model knows the conversation."""


class Ends(NamedTuple):
    """Microseconds of CPU a turn at both ends of a chain, the median of all."""

    early: float
    late: float

    @property
    def growth(self) -> float:
        """What the history costs."""
        return self.late - self.early


class Growth(NamedTuple):
    """The product, and the bare client that posts the same bytes."""

    product: Ends
    bare: Ends
    late_bytes: int
    """Of the last request to the model."""


def growth(
    transport: str, server: Server, model: Server, folder: Path, *, chains: int = CHAINS
) -> Growth:
    """Chains through the product; the bare client posts each turn's request behind it.

    ``folder`` takes the requests of the first chain, which the bare client posts from then on.
    """
    size = _record(transport, server, model, folder)
    found: list[tuple[Ends, Ends]] = []
    with poster(f"http://{model.doors[HTTP]}{CHAT}", folder) as bare:
        for _ in range(chains):
            found.append(_chain(transport, server, bare))
    product = [ends for ends, _ in found]
    other = [ends for _, ends in found]
    return Growth(_median(product), _median(other), size)


def flatness(transport: str, server: Server, model: Server, *, chains: int = CHAINS) -> Ends:
    """Chains through the product alone, before a model that keeps what it was told.

    Raises :class:`LoadError` where it was told the whole conversation all the same.
    """
    found = [_chain(transport, server, None)[0] for _ in range(chains + 1)]
    size = len(last_body(model))
    if size > TOOLS_BYTES + MOST_NEW:
        raise LoadError(f"the model keeps its state, and was sent {size} bytes")
    return _median(found[1:])


def _record(transport: str, server: Server, model: Server, folder: Path) -> int:
    line = connected(transport, server, greet=True)
    loop = Loop(line, transport, tools=tool_list(TOOLS_BYTES))
    size = 0
    for number in range(1, LATE.stop):
        loop.take(loop.request())
        asked = last_asked(model)
        if asked.calls != number - 1:
            raise LoadError(f"at turn {number} the model was told of {asked.calls} calls")
        (folder / f"{number}.json").write_bytes(asked.body)
        size = len(asked.body)
    line.close()
    return size


def _chain(transport: str, server: Server, bare: Poster | None) -> tuple[Ends, Ends]:
    """One chain; without a bare client its ends are nothing."""
    line = connected(transport, server, greet=True)
    loop = Loop(line, transport, tools=tool_list(TOOLS_BYTES))
    meter = CpuMeter(server.pid)
    other = CpuMeter(bare.pid) if bare is not None else None
    costs: dict[int, float] = {}
    bare_costs: dict[int, float] = {}
    for number in range(1, LATE.stop):
        watched = number in EARLY or number in LATE
        request = loop.request()
        before = meter.settled() if watched else 0
        loop.take(request)
        if watched:
            costs[number] = (meter.settled() - before) / 1000
        if bare is None or other is None:
            continue
        before = other.settled() if watched else 0
        bare.post(str(number))
        if watched:
            bare_costs[number] = (other.settled() - before) / 1000
    line.close()
    return _ends(costs), _ends(bare_costs)


def _ends(costs: dict[int, float]) -> Ends:
    if not costs:
        return Ends(0.0, 0.0)
    return Ends(median(costs[turn] for turn in EARLY), median(costs[turn] for turn in LATE))


def _median(chains: list[Ends]) -> Ends:
    return Ends(median(ends.early for ends in chains), median(ends.late for ends in chains))
