"""The table of stores."""

from importlib import import_module

import pytest

from tieline_server.storage import STORES
from tieline_server.storage.base import ResponseStore

METHODS = {name for name in vars(ResponseStore) if not name.startswith("_")}


@pytest.mark.parametrize("name", STORES)
def test_every_store_in_the_table_exists_and_has_the_whole_interface(name: str) -> None:
    module, _, kind = STORES[name].partition(":")
    store = getattr(import_module(module), kind)
    assert {"put", "get", "delete", "item", "close"} <= METHODS
    assert [method for method in METHODS if not callable(getattr(store, method, None))] == []


def test_the_memory_store_is_the_default_of_the_settings() -> None:
    from tieline_server.config import Config

    assert Config.model_fields["store"].default in STORES
