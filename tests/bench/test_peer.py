"""The run against the peer: its rounds on real servers, its bars with measurements replaced."""

from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from tests.bench.servers import TOKENS, pair
from tieline_bench import agentic, peer, processes
from tieline_bench.peer import LANES, PEER, Rounds, Sides, loop_costs, token_costs
from tieline_bench.processes import Server
from tieline_bench.tool_loop import first_turns, last_turns
from tieline_bench.workload import GRPC, WEBSOCKET


def test_every_contender_is_measured_in_every_round_but_the_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peer, "first_turns", few(first_turns, count=2))
    monkeypatch.setattr(peer, "last_turns", few(last_turns, turns=range(2, 4)))
    with pair(tmp_path) as servers:
        # The product stands in for the peer: it speaks the same WebSocket, and asks for no key.
        sides = Sides(servers.model, servers.product, servers.product)
        first, last = loop_costs(sides, rounds=1)
        tokens = token_costs(sides, rounds=1, tokens=TOKENS)
    assert list(first) == list(last) == [PEER, WEBSOCKET, GRPC]
    assert list(tokens) == list(peer.WAYS)
    assert {len(rounds) for rounds in (*first.values(), *last.values(), *tokens.values())} == {1}
    assert all(min(rounds) > 0 for found in (first, last, tokens) for rounds in found.values())


def few(measure: Callable[..., float], **options: Any) -> Callable[..., float]:
    """A measurement made short."""
    return lambda *arguments: measure(*arguments, **options)


def test_bars_are_over_the_peers_websocket(monkeypatch: pytest.MonkeyPatch) -> None:
    first: Rounds = {PEER: [500.0], WEBSOCKET: [300.0], GRPC: [600.0]}
    tokens: Rounds = {PEER: [50.0], WEBSOCKET: [45.0], GRPC: [75.0], LANES: [50.5]}
    monkeypatch.setattr(agentic, "installed", lambda: nullcontext(Path()))
    monkeypatch.setattr(agentic, "before", lambda *_: nullcontext(Server(0, {})))
    for name in ("model", "before"):
        monkeypatch.setattr(processes, name, lambda *_, **__: nullcontext(Server(0, {})))
    monkeypatch.setattr(peer, "loop_costs", lambda *_, **__: (first, first))
    monkeypatch.setattr(peer, "token_costs", lambda *_, **__: tokens)
    result = peer.Peer(say=lambda _: None).run()
    assert {each.name: (each.value, each.target, each.met) for each in result.bars} == {
        "loop.websocket.turn_1": (0.6, 0.6, True),
        "loop.grpc.turn_1": (1.2, 1.0, False),
        "loop.websocket.turn_200": (0.6, 0.8, True),
        "loop.grpc.turn_200": (1.2, 1.0, False),
        "tokens.websocket": (0.9, 0.9, True),
        "tokens.grpc": (1.5, 1.5, True),
        "tokens.grpc_4_connections": (1.01, 1.0, False),
    }
    assert result.figures["peer"] == "agentic-api==0.9.0"
    assert "aiohttp" in result.figures["versions"]
