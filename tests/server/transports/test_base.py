"""The interface of doors: each door of the table has it, word for word."""

import inspect
from importlib import import_module

import pytest

from tieline_server.transports import DOORS
from tieline_server.transports.base import TransportServer

METHODS = {name: each for name, each in vars(TransportServer).items() if not name.startswith("_")}


@pytest.mark.parametrize("name", DOORS)
def test_every_door_of_the_table_has_the_whole_interface(name: str) -> None:
    module, _, kind = DOORS[name].partition(":")
    door = getattr(import_module(module), kind)
    assert METHODS.keys() == {"start", "drain", "stop"}
    for method, declared in METHODS.items():
        made = getattr(door, method)
        assert inspect.iscoroutinefunction(made)
        assert inspect.signature(made) == inspect.signature(declared)
