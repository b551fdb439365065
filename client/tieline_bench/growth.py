"""What a longer history costs before a model: the product beside a bare client, turn by turn.

A turn costs a tenth more or less than the next by chance, which is as much as 280 kB of history
cost. So no two turns are compared: every turn of every chain is measured, and a line is drawn
through the medians of the turns. What is stated of turns 5 and 200 is where it passes.
"""

from itertools import pairwise
from pathlib import Path
from statistics import linear_regression, median
from typing import Final, NamedTuple

from tieline_bench.clients import LoadError
from tieline_bench.cpu import CpuMeter
from tieline_bench.model.answers import CHAT
from tieline_bench.model.asked import last_asked, last_body
from tieline_bench.processes import HTTP, Poster, Server, poster
from tieline_bench.tool_loop import Loop
from tieline_bench.turns import connected
from tieline_bench.workload import TOOLS_BYTES, tool_list

EARLY: Final = 5
LATE: Final = 200
"""The turns whose costs are compared, from 1."""

CHAINS: Final = 20
"""Chains that are measured, after one that warms up."""

MOST_NEW: Final = 10_000
"""Bytes of a request beside its tools, where the model knows the conversation."""


class Ends(NamedTuple):
    """Microseconds of CPU of turns ``EARLY`` and ``LATE``."""

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
    product: list[list[float]] = []
    bare: list[list[float]] = []
    with poster(f"http://{model.addresses[HTTP]}{CHAT}", folder) as client:
        for _ in range(chains):
            costs, others = _chain(transport, server, client)
            product.append(costs)
            bare.append(others)
    return Growth(ends(product), ends(bare), size)


def flatness(transport: str, server: Server, model: Server, *, chains: int = CHAINS) -> Ends:
    """Chains through the product alone, before a model that keeps what it was told.

    Raises :class:`LoadError` where it was told the whole conversation all the same.
    """
    found = [_chain(transport, server)[0] for _ in range(chains + 1)]
    size = len(last_body(model))
    if size > TOOLS_BYTES + MOST_NEW:
        raise LoadError(f"the model keeps its state, and was sent {size} bytes")
    return ends(found[1:])


def _record(transport: str, server: Server, model: Server, folder: Path) -> int:
    """Keeps what the model was sent at each turn of a chain; the bytes of the last one."""
    connection = connected(transport, server, greet=True)
    loop = Loop(connection, transport, tools=tool_list(TOOLS_BYTES))
    size = 0
    for number in range(1, LATE + 1):
        loop.take(loop.request())
        asked = last_asked(model)
        if asked.calls != number - 1:
            raise LoadError(f"at turn {number} the model was told of {asked.calls} calls")
        (folder / f"{number}.json").write_bytes(asked.body)
        size = len(asked.body)
    connection.close()
    return size


def _chain(
    transport: str, server: Server, bare: Poster | None = None
) -> tuple[list[float], list[float]]:
    """The cost of each turn of one chain; the bare client's behind each.

    What a server does after a turn is counted with the next one, so nothing is left out.
    """
    connection = connected(transport, server, greet=True)
    loop = Loop(connection, transport, tools=tool_list(TOOLS_BYTES))
    meters = [CpuMeter(server.pid), *([CpuMeter(bare.pid)] if bare is not None else [])]
    reads = [[meter.settled()] for meter in meters]
    for number in range(1, LATE + 1):
        loop.take(loop.request())
        if bare is not None:
            bare.post(str(number))
        for meter, read in zip(meters, reads, strict=True):
            read.append(meter.read())
    connection.close()
    costs, *others = ([(b - a) / 1000 for a, b in pairwise(read)] for read in reads)
    return costs, others[0] if others else []


def ends(chains: list[list[float]]) -> Ends:
    """Where the line through the medians of all turns but the first passes.

    >>> ends([[9.0, *(100.0 + 2 * turn for turn in range(2, 201))]])
    Ends(early=110.0, late=500.0)
    """
    turns = [median(costs) for costs in zip(*chains, strict=True)][1:]
    slope, at_zero = linear_regression(range(2, len(turns) + 2), turns)
    return Ends(at_zero + slope * EARLY, at_zero + slope * LATE)
