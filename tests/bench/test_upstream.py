"""The whole run, with its measurement replaced: what becomes a bar."""

from contextlib import nullcontext
from typing import Any

import pytest

from tieline_bench import upstream
from tieline_bench.clients import LoadError
from tieline_bench.growth import Ends, Growth
from tieline_bench.processes import Server
from tieline_bench.workload import GRPC


def growth(transport: str, *_: Any) -> Growth:
    if transport == GRPC:
        raise LoadError("it closed")
    return Growth(Ends(500.0, 680.0), Ends(100.0, 220.0), 280_000)


def flatness(transport: str, *_: Any) -> Ends:
    return growth(transport) and Ends(500.0, 600.0)


def test_growth_is_over_that_of_the_bare_client_and_what_fails_is_a_missed_bar(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("model", "before"):
        monkeypatch.setattr(upstream, name, lambda *_, **__: nullcontext(Server(0, {})))
    monkeypatch.setattr(upstream, "growth", growth)
    monkeypatch.setattr(upstream, "flatness", flatness)
    names: list[str] = []
    result = upstream.Upstream(say=names.append).run()
    websocket, grpc, kept, failed = result.bars
    assert (websocket.name, websocket.value, websocket.target) == ("growth.websocket", 1.5, 1.5)
    assert websocket.met
    assert (grpc.name, grpc.value, grpc.met, grpc.note) == ("growth.grpc", None, False, "it closed")
    assert result.figures["growth.websocket.bare_turn_200_us"] == 220.0
    assert (kept.name, kept.value, kept.target) == ("kept.websocket", 1.2, 1.15)
    assert not kept.met
    assert (failed.name, failed.note) == ("kept.grpc", "it closed")
    assert names == [bar.name for bar in result.bars]
