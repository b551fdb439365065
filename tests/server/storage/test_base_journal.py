"""The table of journals."""

from importlib import import_module

import pytest

from tieline_server.storage import JOURNALS, STORES
from tieline_server.storage.base import Journal

METHODS = {name for name in vars(Journal) if not name.startswith("_")}


@pytest.mark.parametrize("name", JOURNALS)
def test_every_journal_in_the_table_exists_and_has_the_whole_interface(name: str) -> None:
    module, _, kind = JOURNALS[name].partition(":")
    journal = getattr(import_module(module), kind)
    assert {"begin", "log", "end", "running", "events", "claim", "asked_cancels"} <= METHODS
    assert [method for method in METHODS if not callable(getattr(journal, method, None))] == []


def test_every_store_has_a_journal() -> None:
    assert JOURNALS.keys() == STORES.keys()
