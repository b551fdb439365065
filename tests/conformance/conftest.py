"""Every case that takes ``wire`` runs over each transport that offers what the case needs.

``@pytest.mark.needs("lanes")`` names what a case is about; a transport without it has no such
case, rather than a skipped one.
"""

import pytest

from tests.conformance.wire import WIRES


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """One test for each transport of the table."""
    if "wire" not in metafunc.fixturenames:
        return
    marks = metafunc.definition.iter_markers("needs")
    needed = {name for mark in marks for name in mark.args}
    fitting = [name for name, wire in WIRES.items() if needed <= wire.offers]
    metafunc.parametrize("wire", [WIRES[name] for name in fitting], ids=fitting)
