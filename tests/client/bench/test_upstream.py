"""The whole run, with its measurement replaced: what becomes a bar."""

from contextlib import nullcontext
from typing import Any

import pytest

from tieline_client.bench import upstream
from tieline_client.bench.clients import LoadError
from tieline_client.bench.growth import Ends, Growth
from tieline_client.bench.processes import Server
from tieline_client.bench.workload import GRPC


def growth(transport: str, *_: Any) -> Growth:
    if transport == GRPC:
        raise LoadError("it closed")
    return Growth(Ends(500.0, 680.0), Ends(100.0, 220.0), 280_000)


def test_growth_is_over_that_of_the_bare_client_and_what_fails_is_a_missed_bar(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("model", "before"):
        monkeypatch.setattr(upstream, name, lambda *_, **__: nullcontext(Server(0, {})))
    monkeypatch.setattr(upstream, "growth", growth)
    names: list[str] = []
    result = upstream.Upstream(say=names.append).run()
    websocket, grpc = result.bars
    assert (websocket.name, websocket.value, websocket.target) == ("growth.websocket", 1.5, 1.5)
    assert websocket.met
    assert (grpc.name, grpc.value, grpc.met, grpc.note) == ("growth.grpc", None, False, "it closed")
    assert result.figures["growth.websocket.bare_turn_200_us"] == 220.0
    assert names == ["growth.websocket", "growth.grpc"]
