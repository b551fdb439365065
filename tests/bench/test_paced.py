"""Streams of words through the product, on lines of their own and on lanes."""

from collections.abc import Iterator

import pytest

from tests.bench.servers import TOKENS, Pair, pair
from tieline_bench.clients import LoadError
from tieline_bench.model.answers import APART
from tieline_bench.paced import Way, token_cost
from tieline_bench.workload import GRPC, WEBSOCKET


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    with pair(tmp_path_factory.mktemp("paced")) as both:
        yield both


@pytest.mark.parametrize(
    "way",
    [Way(WEBSOCKET), Way(GRPC), Way(GRPC, connections=4), Way(WEBSOCKET, model=APART)],
    ids=["websocket", "grpc", "lanes", "apart"],
)
def test_every_token_comes_as_an_event_of_its_own(servers: Pair, way: Way) -> None:
    assert token_cost(way, servers.product, tokens=TOKENS, greet=True) > 0


def test_a_token_that_does_not_come_is_an_error(servers: Pair) -> None:
    with pytest.raises(LoadError, match="tokens were lost"):
        token_cost(Way(WEBSOCKET), servers.product, tokens=TOKENS + 1, greet=True)
