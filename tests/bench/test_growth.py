"""Chains through the product, and the bare client behind each turn."""

from functools import partial
from pathlib import Path

import pytest

from tests.bench.servers import pair
from tieline_bench import growth, workload
from tieline_bench.clients import LoadError
from tieline_bench.growth import Ends
from tieline_bench.model.answers import CALLS
from tieline_bench.workload import GRPC


def test_the_bare_client_posts_what_the_product_posted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(growth, "LATE", 6)
    posted = tmp_path / "posted"
    posted.mkdir()
    with pair(tmp_path) as servers:
        found = growth.growth(GRPC, servers.product, servers.model, posted, chains=1)
    assert sorted(path.name for path in posted.iterdir()) == [f"{n}.json" for n in range(1, 7)]
    assert found.late_bytes == len((posted / "6.json").read_bytes()) > 20_000
    for found_ends in (found.product, found.bare):
        assert found_ends.early != found_ends.late


def test_a_model_that_keeps_its_state_must_have_been_told_only_what_is_new(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # All of such a chain would be more than may be new.
    monkeypatch.setattr(growth, "LATE", 10)
    with pair(tmp_path, *workload.keeps_state(tmp_path, CALLS)) as servers:
        chains = partial(growth.flatness, GRPC, servers.product, servers.model, chains=1)
        assert len(chains()) == 2
        monkeypatch.setattr(growth, "MOST_NEW", 1000)
        with pytest.raises(LoadError, match="keeps its state, and was sent"):
            chains()


def test_growth_is_what_the_later_turn_costs_more() -> None:
    assert Ends(100.0, 350.0).growth == 250.0


def test_one_disturbed_chain_and_the_first_turn_mean_nothing() -> None:
    straight = [9000.0, *(100.0 + turn for turn in range(2, 201))]
    disturbed = [cost * 7 for cost in straight]
    assert growth.ends([straight, disturbed, straight]) == pytest.approx((105.0, 300.0))
