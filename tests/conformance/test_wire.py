"""The table of transports itself: what may be needed, and who has it."""

import pytest

from tests.conformance.server import serve
from tests.conformance.wire import OFFERS, WIRES, Json, Wire, ask, offering, response


def test_each_offer_is_one_that_some_transport_has_and_some_lacks() -> None:
    assert {name for wire in WIRES.values() for name in wire.offers} == OFFERS.keys()
    for name in OFFERS:
        assert 0 < len(offering(name)) < len(WIRES)


def test_a_need_that_nobody_has_heard_of_is_an_error_and_not_a_case_less() -> None:
    with pytest.raises(AssertionError, match="lane'"):
        offering("lane")


def test_a_case_without_needs_runs_over_every_transport() -> None:
    assert offering() == WIRES


CUSTOM_TOOL = {"type": "custom", "name": "c"}

ASKED: list[tuple[str, Json, str]] = [
    ("append", {"append": True}, "append"),
    ("warm_up", {"generate": False}, "generate"),
    ("deadline", {"timeout_ms": 60_000}, "timeout_ms"),
    ("lanes", {"stream_id": "a"}, "stream_id"),
    ("custom_tools", {"tools": [CUSTOM_TOOL]}, "tools"),
]
"""What uses an offer, and how the refusal names it."""


@pytest.mark.apart("what is not offered is the point")
@pytest.mark.parametrize(("offer", "members", "param"), ASKED, ids=[offer for offer, *_ in ASKED])
async def test_what_a_transport_does_not_offer_is_refused_by_name(
    wire: Wire, offer: str, members: Json, param: str
) -> None:
    async with serve() as served, wire(served) as peer:
        create = {"type": "response.create", "model": "scripted", "input": "hi"}
        await peer.send({**create, "store": True, **members})
        first = await peer.receive()
        if offer in wire.offers:
            assert first["type"] == "response.created" or "events" not in wire.offers
            return
        assert (first["type"], first["status"]) == ("error", 400)
        assert first["error"]["code"] == "unsupported_parameter"
        assert first["error"]["param"].partition("[")[0] == param


@pytest.mark.apart("what is not offered is the point")
@pytest.mark.needs("messages")
async def test_an_event_that_a_line_does_not_offer_is_one_that_it_does_not_know(wire: Wire) -> None:
    async with serve() as served, wire(served) as peer:
        done = response(await ask(peer, input="hi"))["id"]
        for offer, message in (
            ("cancel", {"type": "response.cancel"}),
            ("steer", {"type": "response.steer", "previous_response_id": done, "input": "x"}),
            ("append", {"type": "response.append", "input": []}),
        ):
            if offer not in wire.offers:
                await peer.send(message)
                refused = await peer.receive()
                assert (refused["type"], refused["status"]) == ("error", 400), refused
                assert refused["error"]["code"] in ("invalid_event", "unsupported_parameter")
        assert (await ask(peer, input="still?"))[-1]["type"] == "response.completed"
