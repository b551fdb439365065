"""Every case that takes ``wire`` runs over each transport that offers what the case needs.

``@pytest.mark.needs("lanes")`` names what a case is about (``wire.OFFERS`` says why a transport
may be without it); a transport without it has no such case, rather than a skipped one. A new
case is one function, a new row of a case one line. What a case hears must be the same over every
transport (``transcript``), unless ``@pytest.mark.apart("why")`` says why it cannot be. On one
road each case runs again with an upstream behind the server, in each mode (``upstream_way``), and
those that need no given words with a real model, embedded and as an upstream (``llama_way``).
"""

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from tests.conformance import llama_way
from tests.conformance.server import BEHIND, MODEL, Remote, serve
from tests.conformance.transcript import difference
from tests.conformance.upstream_way import roads_of
from tests.conformance.wire import Wire, offering
from tests.support.model_server import KEY, model_server
from tieline_server.engines.llama import LlamaEngine
from tieline_server.engines.upstream.choice import Wanted
from tieline_server.models.packaged import find

Transcripts = dict[str, tuple[Wire, list[dict[str, Any]]]]
"""Case -> the transport that it ran over first, and what it heard there."""


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """One test for each transport of the table."""
    if "wire" not in metafunc.fixturenames:
        return
    marks = metafunc.definition.iter_markers("needs")
    wires = offering(*(name for mark in marks for name in mark.args))
    if getattr(metafunc.module, "serve", None) is serve:
        for mode, road in roads_of(metafunc.definition.originalname, wires).items():
            wires[f"{road}-by-{mode}"] = wires[road]._replace(upstream=mode)
        soak = bool(metafunc.config.getoption("--soak"))
        for way, road in llama_way.roads_of(metafunc.definition.originalname, wires, soak=soak):
            wires[f"{road}-{way}"] = wires[road]._replace(real=way)
    metafunc.parametrize("wire", wires.values(), ids=wires, indirect=True)


@pytest.fixture(scope="session")
def transcripts() -> Transcripts:
    """What the cases of this run have heard."""
    return {}


@pytest.fixture(scope="session")
def embedded() -> Iterator[LlamaEngine]:
    """The packaged model."""
    engine = LlamaEngine(context=2048)
    yield engine
    asyncio.run(engine.close())


@pytest.fixture(scope="session")
def beside() -> Iterator[Remote]:
    """The packaged model behind llama.cpp's own server."""
    with model_server() as url:
        yield Remote(url, KEY, Wanted(mode="completions", tokenizer=find()))


@pytest.fixture
def wire(request: pytest.FixtureRequest, transcripts: Transcripts) -> Iterator[Wire]:
    """The transport of this test; what is heard over it is compared when the test has passed."""
    wire: Wire = request.param._replace(heard=[])
    token = BEHIND.set(wire.upstream)
    way = None if wire.real is None else llama_way.WAYS[wire.real]
    model = MODEL.set(None if way is None else request.getfixturevalue(way))
    try:
        yield wire
    finally:
        MODEL.reset(model)
        BEHIND.reset(token)
    assert wire.heard is not None
    node = request.node
    given = wire.upstream is None and wire.real is None
    if not given or node.get_closest_marker("apart") is not None:
        return
    rows = {name: value for name, value in node.callspec.params.items() if name != "wire"}
    case = f"{node.path}::{node.originalname}{rows}"
    first, heard = transcripts.setdefault(case, (wire, wire.heard))
    whole = not (wire.offers & first.offers & {"events"})
    found = difference(wire.heard, heard, whole=whole)
    assert found is None, f"not as over the transport before: {found}"
