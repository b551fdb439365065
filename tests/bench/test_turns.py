"""Turns on the real server and on the bare one: the same bytes, and costs that are costs."""

from collections.abc import Iterator
from pathlib import Path
from statistics import NormalDist

import pytest

from tests.support.server_process import run
from tieline_bench import turns, workload
from tieline_bench.clients import LoadError, take_turn
from tieline_bench.processes import Server, bare, product


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    files = workload.write(tmp_path_factory.mktemp("bench"), tokens=8)
    with product(files, merge="never") as running:
        yield running


@pytest.fixture(params=workload.TRANSPORTS)
def transport(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def served(transport: str) -> bool:
    return transport == workload.GRPC or "--http" in run("--help").stdout


def test_the_bare_server_sends_what_the_product_sent(
    server: Server, transport: str, tmp_path: Path
) -> None:
    if not served(transport):
        with pytest.raises(LoadError):
            turns.connected(transport, server)
        return
    turns.record(transport, server, tmp_path)
    request = workload.create(transport, workload.ANSWER)
    with bare(transport, tmp_path, mode="turns", tokens=1, rate=1) as other:
        connection = turns.connected(transport, other)
        connection.recorded = bytearray()
        for _ in range(2):
            turn = take_turn(connection, request)
            assert (turn.events, turn.text) == (28, " go" * 20)
        connection.close()
    assert connection.recorded == (tmp_path / "turn.bin").read_bytes() * 2


def test_a_turn_costs_something_on_both(server: Server, tmp_path: Path) -> None:
    turns.record(workload.GRPC, server, tmp_path)
    costs = turns.turn_costs(workload.GRPC, server, tmp_path, rounds=1)
    assert len(costs.product) == len(costs.bare) == 1
    assert costs.product[0] > costs.bare[0] > 0


def test_a_turn_that_can_be_resumed_is_measured_beside_one_that_cannot(server: Server) -> None:
    found = turns.resumable_costs(workload.GRPC, server, rounds=1)
    (plain,), (resumable,) = found.plain, found.resumable
    assert plain > 0
    assert found.added == resumable - plain


def test_its_error_shrinks_with_the_root_of_the_rounds_and_is_that_of_a_median() -> None:
    differences = NormalDist(20, 10).samples(2000, seed=7)
    some, all_of_them = (
        turns.Resumable([0.0] * count, differences[:count]) for count in (500, 2000)
    )
    assert abs(all_of_them.added - 20) < 3 * all_of_them.error
    assert all_of_them.error == pytest.approx(1.2533 * 10 / 2000**0.5, rel=0.15)
    assert some.error == pytest.approx(2 * all_of_them.error, rel=0.15)


def test_a_chain_is_long_enough_to_compare_its_ends(server: Server) -> None:
    found = turns.flatness(workload.GRPC, server, chains=1)
    assert found.early > 0
    assert found.late > 0


def test_a_turn_that_is_not_the_right_one_is_not_measured(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workload, "EVENTS", 27)
    with pytest.raises(LoadError, match="28 events, not 27"):
        turns.record(workload.GRPC, server, tmp_path)
