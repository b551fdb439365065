"""The table of stores: each kind opens as a whole storage."""

from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from tests.support import postgres
from tieline_server.app import Outages
from tieline_server.config import Config
from tieline_server.config.toml_tables import STORES
from tieline_server.observability.telemetry import open_log
from tieline_server.runtime.readiness import Readiness
from tieline_server.storage import open_storage
from tieline_server.storage.base import Journal, Ledger, ResponseStore


@pytest.fixture(params=STORES)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """What ``--store`` says of an empty one of each kind."""
    if request.param == "postgresql":
        cluster: postgres.Cluster = request.getfixturevalue("cluster")
        return cluster.new_database()
    return STORES[request.param].example.replace("PATH", str(tmp_path / "tieline.db"))


async def missing(store: str, part: str, interface: type) -> list[str]:
    """The methods of an interface that a part of the storage lacks."""
    outages = Outages(open_log("json", "info"), Readiness())
    async with AsyncExitStack() as stack:
        storage = await open_storage(Config.load({"store": store}), stack, outages=outages)
        there = getattr(storage, part)
        methods = [name for name in vars(interface) if not name.startswith("_")]
        assert methods
        return [name for name in methods if not callable(getattr(there, name, None))]


async def test_every_store_in_the_table_exists_and_has_the_whole_interface(store: str) -> None:
    assert await missing(store, "store", ResponseStore) == []


async def test_every_journal_in_the_table_exists_and_has_the_whole_interface(store: str) -> None:
    assert await missing(store, "journal", Journal) == []


async def test_every_ledger_in_the_table_exists_and_has_the_whole_interface(store: str) -> None:
    assert await missing(store, "ledger", Ledger) == []


def test_the_memory_store_is_the_default_of_the_settings() -> None:
    assert Config.model_fields["store"].default in STORES


@pytest.mark.parametrize("name", STORES)
def test_the_example_of_a_kind_is_an_address_of_it(name: str) -> None:
    example = STORES[name].example
    assert Config.load({"store": example}).store == example
    assert example.partition(":")[0] == name
