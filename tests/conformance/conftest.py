"""Every case that takes ``wire`` runs over each transport that offers what the case needs.

``@pytest.mark.needs("lanes")`` names what a case is about (``wire.OFFERS`` says why a transport
may be without it); a transport without it has no such case, rather than a skipped one. A new
case is one function, a new row of a case one line.
"""

import pytest

from tests.conformance.wire import offering


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """One test for each transport of the table."""
    if "wire" not in metafunc.fixturenames:
        return
    marks = metafunc.definition.iter_markers("needs")
    wires = offering(*(name for mark in marks for name in mark.args))
    metafunc.parametrize("wire", wires.values(), ids=wires)
