"""Every case takes ``wire`` and so runs over each transport."""

import pytest

from tests.conformance.wire import WIRES, Wire


@pytest.fixture(params=WIRES)
def wire(request: pytest.FixtureRequest) -> Wire:
    """One transport of the table."""
    return WIRES[request.param]
