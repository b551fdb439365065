"""The interface of servers: what each line of the table opens has it, word for word."""

import inspect
from types import NoneType
from typing import get_args, get_type_hints

import pytest

from tieline_server.config import Config
from tieline_server.transports import TRANSPORTS, opener
from tieline_server.transports.base import Opening, TransportServer

METHODS = {name: each for name, each in vars(TransportServer).items() if not name.startswith("_")}


@pytest.mark.parametrize("name", TRANSPORTS)
def test_every_transport_of_the_table_has_the_whole_interface(name: str) -> None:
    hints = get_type_hints(opener(name))
    opened = hints.pop("return")
    assert hints == {"opening": Opening}
    (server,) = {*(get_args(opened) or (opened,))} - {NoneType}
    assert METHODS.keys() == {"start", "drain", "stop"}
    for method, declared in METHODS.items():
        made = getattr(server, method)
        assert inspect.iscoroutinefunction(made)
        assert inspect.signature(made) == inspect.signature(declared)


def test_every_transport_of_the_table_has_an_address_among_the_settings() -> None:
    assert Config.load({}).addresses.keys() == TRANSPORTS.keys()
