"""``peer``: the product beside agentic-api before the same model, in one run.

Each contender is measured in every round, after one round that warms up; a figure is the median.
The model speaks chat completions to the product and responses to the peer, which is how each of
them asks; both get the same calls and the same words, and each answer is checked. Nothing is
stored. On either side one event is sent for each token.

Bars, server CPU over the peer's WebSocket:

- ``loop.<transport>.turn_1``, ``.turn_200``: a turn of a tool loop with a small tool and 1 kB of
  output a turn, at the beginning of a conversation and with the calls of 199 turns behind it.
- ``tokens.<way>``: a token of 64 streams at 50 tokens/s, on a connection each or lanes of 4.
  The model says a word of every stream at each step, as servers that batch do. What the same
  costs when no two words come together is among the figures (``apart``), over WebSocket.
"""

import tempfile
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, Final, NamedTuple

from tieline_bench import agentic, processes, workload
from tieline_bench.clients import Connection
from tieline_bench.cpu import CpuMeter
from tieline_bench.limits import machine
from tieline_bench.model.answers import APART
from tieline_bench.one_cpu import on_one_cpu
from tieline_bench.paced import RATE, Way, token_cost
from tieline_bench.processes import Server
from tieline_bench.report import Bar, Report, bar, report
from tieline_bench.rounds import interleaved
from tieline_bench.tool_loop import first_turns, last_turns
from tieline_bench.turns import connected
from tieline_bench.workload import GRPC, WEBSOCKET

ROUNDS: Final = 7
TOKEN_ROUNDS: Final = 5
TOKENS_A_STREAM: Final = 125

PEER: Final = "peer"
LANES: Final = "grpc_4_connections"

FIRST: Final = {WEBSOCKET: 0.6, GRPC: 1.0}
LAST: Final = {WEBSOCKET: 0.8, GRPC: 1.0}
TOKEN: Final = {WEBSOCKET: 0.9, GRPC: 1.5, LANES: 1.0}

WAYS: Final = {
    PEER: Way(WEBSOCKET),
    WEBSOCKET: Way(WEBSOCKET),
    GRPC: Way(GRPC),
    LANES: Way(GRPC, connections=4),
    f"{PEER}_apart": Way(WEBSOCKET, model=APART),
    f"{WEBSOCKET}_apart": Way(WEBSOCKET, model=APART),
}
"""Who is measured with streams of tokens, and how."""


class Sides(NamedTuple):
    """The two servers, and the model behind both."""

    model: Server
    product: Server
    peer: Server

    def of(self, name: str) -> Server:
        """The server of a contender."""
        return self.peer if name.startswith(PEER) else self.product


class Peer:
    """One run; ``say`` is told what is being measured."""

    def __init__(self, *, say: Callable[[str], None]) -> None:
        self._say = say
        self._bars: list[Bar] = []
        self._figures: dict[str, Any] = machine()
        self._figures["peer"] = agentic.PACKAGE

    def run(self) -> Report:
        """Measures everything.

        Raises ``StartError`` when a server does not start or the peer cannot be installed, and
        ``LoadError`` when one of them answers wrongly.
        """
        started = time.monotonic()
        self._say(f"after installing {agentic.PACKAGE}")
        with (
            agentic.installed() as program,
            tempfile.TemporaryDirectory(prefix="tieline-bench-") as name,
            on_one_cpu() as self._figures["pinned_to_cpu"],
        ):
            keys = workload.write(Path(name), tokens=1).keys
            with (
                processes.model(tokens=TOKENS_A_STREAM, rate=RATE) as model,
                processes.before(model, keys) as product,
                agentic.before(model, program) as peer,
            ):
                self._measure(Sides(model, product, peer))
        self._figures["seconds"] = round(time.monotonic() - started, 1)
        return report(self._bars, [], self._figures)

    def _measure(self, sides: Sides) -> None:
        self._say("the tool loop")
        first, last = loop_costs(sides, rounds=ROUNDS)
        self._compare("loop.{}.turn_1", first, FIRST)
        self._compare("loop.{}.turn_200", last, LAST)
        self._say("paced tokens")
        tokens = token_costs(sides, rounds=TOKEN_ROUNDS, tokens=TOKENS_A_STREAM)
        self._compare("tokens.{}", tokens, TOKEN)

    def _compare(
        self, name: str, costs: Mapping[str, list[float]], bars: Mapping[str, float]
    ) -> None:
        for who, rounds in costs.items():
            self._figures[f"{name.format(who)}_us"] = median(rounds)
            self._figures[f"{name.format(who)}_rounds_us"] = [round(each, 1) for each in rounds]
        peer = median(costs[PEER])
        self._bars += [
            bar(name.format(who), median(costs[who]) / peer, most) for who, most in bars.items()
        ]


Rounds = dict[str, list[float]]
"""Contender -> microseconds of CPU, one entry a round."""


def loop_costs(sides: Sides, *, rounds: int) -> tuple[Rounds, Rounds]:
    """A turn of the tool loop at the beginning, and with a long history: on all three."""
    connections = {
        PEER: connected(WEBSOCKET, sides.peer),
        WEBSOCKET: connected(WEBSOCKET, sides.product),
        GRPC: connected(GRPC, sides.product, greet=True),
    }
    last: Rounds = {name: [] for name in connections}

    def measure(name: str, connection: Connection) -> float:
        transport = GRPC if name == GRPC else WEBSOCKET
        meter = CpuMeter(sides.of(name).pid)
        cost = first_turns(connection, transport, meter)
        last[name].append(last_turns(connection, transport, meter, sides.model))
        return cost

    found = interleaved(
        {name: partial(measure, name, connections[name]) for name in connections}, rounds + 1
    )
    for connection in connections.values():
        connection.close()
    return _warm(found), _warm(last)


def token_costs(sides: Sides, *, rounds: int, tokens: int) -> Rounds:
    """A token of many paced streams, on each way."""

    def measure(name: str) -> float:
        greet = not name.startswith(PEER)
        return token_cost(WAYS[name], sides.of(name), tokens=tokens, greet=greet)

    return _warm(interleaved({name: partial(measure, name) for name in WAYS}, rounds + 1))


def _warm(found: Rounds) -> Rounds:
    """Without the round that warmed up."""
    return {name: costs[1:] for name, costs in found.items()}
