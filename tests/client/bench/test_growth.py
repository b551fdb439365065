"""Chains through the product, and the bare client behind each turn."""

from functools import partial
from pathlib import Path

import pytest

from tests.client.bench.servers import pair
from tieline_client.bench import growth
from tieline_client.bench.clients import LoadError
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
    assert sorted(path.name for path in posted.iterdir()) == [f"{n}.json" for n in range(1, 6)]
    assert found.late_bytes == len((posted / "5.json").read_bytes()) > 20_000
    for ends in (found.product, found.bare):
        assert ends.early > 0
        assert ends.late > 0


@pytest.mark.parametrize("keeps", [True, False])
def test_a_model_that_keeps_its_state_must_have_been_told_only_what_is_new(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, keeps: bool
) -> None:
    # Without state such a chain is twice as large as all tools.
    monkeypatch.setattr(growth, "EARLY", range(1, 3))
    monkeypatch.setattr(growth, "LATE", range(19, 21))
    options = ("--upstream-mode", "responses", *["--upstream-state"] * keeps)
    with pair(tmp_path, *options) as servers:
        chains = partial(growth.flatness, GRPC, servers.product, servers.model, chains=1)
        if keeps:
            assert min(chains()) > 0
        else:
            with pytest.raises(LoadError, match="keeps its state, and was sent"):
                chains()


def test_growth_is_what_the_later_turn_costs_more() -> None:
    assert Ends(100.0, 350.0).growth == 250.0
