"""The whole run, with its measurements replaced: what becomes a bar, what is said to be missing."""

import os
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from tieline_bench import limits
from tieline_bench.clients import LoadError
from tieline_bench.processes import Server
from tieline_bench.tokens import Run, Streams
from tieline_bench.turns import Costs, Flatness, Resumable
from tieline_bench.workload import GRPC, WEBSOCKET

SERVED = (GRPC, WEBSOCKET)


def only_served(transport: str) -> None:
    if transport not in SERVED:
        raise LoadError("it has no such transport")


def record(transport: str, _: Any, folder: Path) -> None:
    only_served(transport)
    (folder / "turn.bin").touch()


def turn_costs(*_: Any) -> Costs:
    return Costs([80.0, 90.0, 400.0], [30.0, 25.0, 29.0])


def flatness(transport: str, _: Any) -> Flatness:
    only_served(transport)
    return Flatness(100.0, 120.0)


def resumable_costs(transport: str, _: Any) -> Resumable:
    only_served(transport)
    return Resumable([80.0, 90.0, 70.0], [100.0, 105.0, 99.0])


def token_costs(*_: Any) -> Streams:
    runs = [Run(9.0, 2, [500.0], 0.8), Run(9.0, 0, [500.0], 0.9), Run(9.0, 0, [500.0], 0.1)]
    return Streams(runs, [Run(7.5, 0, [100.0], 0.6)])


@pytest.fixture
def _measured(monkeypatch: pytest.MonkeyPatch) -> None:
    for measure in (record, turn_costs, resumable_costs, flatness, token_costs):
        monkeypatch.setattr(limits, measure.__name__, measure)
    monkeypatch.setattr(limits, "product", lambda *_, **__: nullcontext(Server(0, {})))


@pytest.fixture
def names(_measured: None) -> list[str]:
    return []


def test_each_served_transport_has_its_bars_and_the_others_are_named(names: list[str]) -> None:
    result = limits.Limits(say=names.append).run()
    bars = {each.name: each for each in result.bars}
    assert bars["turn.websocket"].value == pytest.approx(90 / 29, abs=0.001)
    assert not bars["turn.websocket"].met
    assert (bars["flatness.grpc"].value, bars["flatness.grpc"].met) == (1.2, False)
    assert (bars["tokens.grpc"].value, bars["tokens.grpc"].met) == (1.2, True)
    assert (bars["tokens.grpc.lost"].value, bars["tokens.grpc.lost"].met) == (2, False)
    assert (bars["tokens.grpc.added_p50_ms"].value, bars["tokens.grpc.added_p50_ms"].met) == (
        0.4,
        True,
    )
    added = bars["resumable.grpc.added_us"]
    assert (added.value, added.target, added.met) == (20.0, 20.0, True)
    for name, why in (
        ("turn.sse", "it has no such transport"),
        ("tokens.sse", "it answered no turn"),
    ):
        assert (bars[name].value, bars[name].met) == (None, False)
        assert bars[name].note == f"not served: {why}"
    assert names == [
        *(
            f"{what}.{each}"
            for each in ("grpc", "websocket", "sse")
            for what in ("turn", "resumable")
        ),
        *(f"flatness.{each}" for each in SERVED),
        *(f"tokens.{each}" for each in ("grpc", "websocket", "sse")),
    ]


def test_the_cost_of_each_bare_server_is_beside_the_known_one(names: list[str]) -> None:
    result = limits.Limits(say=names.append).run()
    rows = {row.name: (row.us, row.known_us) for row in result.bare}
    assert rows["turn.grpc"] == (29.0, 66.0)
    assert rows["tokens.websocket"] == (7.5, 7.6)


@pytest.mark.usefixtures("_measured")
def test_everything_is_measured_on_one_cpu_which_is_among_the_figures() -> None:
    allowed = os.sched_getaffinity(0)
    seen: list[set[int]] = []
    result = limits.Limits(say=lambda _: seen.append(os.sched_getaffinity(0))).run()
    assert seen == [{result.figures["pinned_to_cpu"]}] * len(seen)
    assert len(seen) == 11
    assert os.sched_getaffinity(0) == allowed


def test_how_busy_the_cpu_was_is_the_median_of_the_rounds(names: list[str]) -> None:
    figures = limits.Limits(say=names.append).run().figures
    assert figures["tokens.grpc.product_busy"] == 0.8
    assert figures["tokens.grpc.bare_busy"] == 0.6


def test_the_machine_and_the_versions_are_among_the_figures() -> None:
    figures = limits.machine()
    assert figures["cpus"] > 0
    assert "h2 4." in figures["versions"]
