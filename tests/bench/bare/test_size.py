"""A bare server is small, and says why it cannot be faster."""

from importlib import import_module
from inspect import getsource

import pytest

from tieline_bench import workload


@pytest.mark.parametrize("transport", workload.TRANSPORTS)
def test_a_bare_server_is_short_and_says_why_it_is_the_floor(transport: str) -> None:
    module = import_module(f"tieline_bench.bare.{transport}")
    assert len(getsource(module).splitlines()) <= 200
    assert "It cannot be faster on this stack." in (module.__doc__ or "")
