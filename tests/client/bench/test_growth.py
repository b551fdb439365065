"""Chains through the product, and the bare client behind each turn."""

from pathlib import Path

import pytest

from tests.client.bench.servers import pair
from tieline_client.bench import growth
from tieline_client.bench.growth import Ends
from tieline_client.bench.workload import GRPC


def test_the_bare_client_posts_what_the_product_posted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(growth, "EARLY", range(1, 3))
    monkeypatch.setattr(growth, "LATE", range(4, 6))
    posted = tmp_path / "posted"
    posted.mkdir()
    with pair(tmp_path) as servers:
        found = growth.growth(GRPC, servers.product, servers.model, posted, chains=1)
        alone = growth.flatness(GRPC, servers.product, chains=1)
    assert sorted(path.name for path in posted.iterdir()) == [f"{n}.json" for n in range(1, 6)]
    assert found.late_bytes == len((posted / "5.json").read_bytes()) > 20_000
    for ends in (found.product, found.bare, alone):
        assert ends.early > 0
        assert ends.late > 0


def test_growth_is_what_the_later_turn_costs_more() -> None:
    assert Ends(100.0, 350.0).growth == 250.0
