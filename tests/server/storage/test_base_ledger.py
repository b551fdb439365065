"""The table of ledgers."""

from importlib import import_module

import pytest

from tieline_server.storage import LEDGERS, STORES
from tieline_server.storage.base import Ledger

METHODS = {name for name in vars(Ledger) if not name.startswith("_")}


@pytest.mark.parametrize("name", LEDGERS)
def test_every_ledger_in_the_table_exists_and_has_the_whole_interface(name: str) -> None:
    module, _, kind = LEDGERS[name].partition(":")
    ledger = getattr(import_module(module), kind)
    assert {"book", "usage", "close"} <= METHODS
    asked = METHODS | {"open"}
    assert [method for method in asked if not callable(getattr(ledger, method, None))] == []


def test_every_store_has_a_ledger() -> None:
    assert LEDGERS.keys() == STORES.keys()
