"""The tool loop, through the product and a model."""

from collections.abc import Iterator

import pytest

from tests.bench.servers import Pair, pair
from tieline_bench import tool_loop
from tieline_bench.clients import LoadError
from tieline_bench.cpu import CpuMeter
from tieline_bench.model.asked import last_asked
from tieline_bench.tool_loop import Loop, first_turns, last_turns
from tieline_bench.turns import connected
from tieline_bench.workload import GRPC, WEBSOCKET


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    with pair(tmp_path_factory.mktemp("loop")) as both:
        yield both


@pytest.mark.parametrize("transport", [WEBSOCKET, GRPC])
def test_each_turn_answers_the_call_of_the_one_before(servers: Pair, transport: str) -> None:
    connection = connected(transport, servers.product, greet=True)
    loop = Loop(connection, transport, tools=[])
    turns = []
    for number in range(3):
        turns.append(loop.take(loop.request()))
        assert last_asked(servers.model).calls == number
    assert len({turn.call_id for turn in turns}) == 3
    assert len({(turn.events, turn.text, turn.deltas) for turn in turns}) == 1
    connection.close()


def test_both_ends_of_a_conversation_cost_something(servers: Pair) -> None:
    connection = connected(WEBSOCKET, servers.product)
    meter = CpuMeter(servers.product.pid)
    assert first_turns(connection, WEBSOCKET, meter, count=2) > 0
    assert last_turns(connection, WEBSOCKET, meter, servers.model, turns=range(3, 5)) > 0
    connection.close()


def test_an_answer_that_is_not_the_models_is_not_measured(
    servers: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tool_loop, "ARGUMENTS", ("{}",))
    connection = connected(WEBSOCKET, servers.product)
    loop = Loop(connection, WEBSOCKET, tools=[])
    with pytest.raises(LoadError, match="the model called its tool"):
        loop.take(loop.request())
    connection.close()
