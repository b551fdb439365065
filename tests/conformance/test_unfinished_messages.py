"""CN-21: messages that never end, as many as one key may have, on each transport.

The server is a process of its own, whose memory is read from /proc. It may grow by the bound that
docs/configuration.md states and no more; what is beyond the owner's bound is refused; others are
served. Under --soak with the defaults, else with small numbers; `make soak ARGS="-s -k unfinished"`
prints the figures.
"""

import hashlib
import resource
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

import pytest
from msgspec import Struct

from tests.conformance.raw_connections import TERMINAL, WIRES
from tests.support.counted_server import CountedServer, counting
from tests.support.process_state import until
from tests.support.unfinished import BEGINNINGS, Unfinished, UnfinishedCalls, created
from tieline_bench.clients.grpc import GrpcConnection
from tieline_bench.clients.sse import SseConnection
from tieline_bench.clients.websocket import WebSocketConnection
from tieline_server.auth.keys import WAITING
from tieline_server.config import KIB, MIB, Config
from tieline_server.transports.grpc.config import HEADROOM

GREEDY: Final = "sk-greedy"
OTHER: Final = "sk-other"

A_CONNECTION: Final = 192 * KIB
"""What a connection that is read may take beside what is counted (docs/configuration.md)."""

SLACK: Final = 5 * MIB
"""What else a process takes when it is first asked for so much: pools, arenas, caches."""

FRESH: Final = 0.75
"""How much of what comes takes memory that the process did not have before."""

AT_ONCE: Final = 8
"""Calls of gRPC that begin before the server has judged them."""

EXHAUSTED: Final = "8"
"""The gRPC status of a call that is one too many."""


class Scale(Struct, frozen=True):
    """How much is tried."""

    settings: dict[str, int]
    connections: int
    """Of HTTP and WebSocket, some of them past the owner's bound."""
    streams: int
    """Calls on one HTTP/2 connection."""


SMALL: Final = Scale(
    {
        "max_message_bytes": MIB,
        "max_owner_incoming_bytes": 8 * MIB,
        "max_total_incoming_bytes": 12 * MIB,
        "max_owner_connections": 24,
        "max_calls": 12,
        "max_owner_calls": 8,
        "max_grpc_message_bytes": MIB,
    },
    connections=32,
    streams=4,
)
WHOLE: Final = Scale({}, connections=1100, streams=32)


@pytest.fixture
def scale(pytestconfig: pytest.Config) -> Scale:
    return WHOLE if pytestconfig.getoption("--soak") else SMALL


@contextmanager
def serving(folder: Path, scale: Scale) -> Iterator[tuple[CountedServer, Config]]:
    """A server with two keys that has answered on each transport, and its settings."""
    rows = [
        f'[[keys]]\nhash = "sha256:{hashlib.sha256(key.encode()).hexdigest()}"\nowner = "{key}"\n'
        for key in (GREEDY, OTHER)
    ]
    keys = folder / "keys.toml"
    keys.write_text("\n".join(rows))
    keys.chmod(0o600)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 8192), hard))
    try:
        with counting(arenas=1, api_keys=str(keys), **scale.settings) as server:
            serves(server)
            server.state.rest()
            yield server, Config.load({"engine": "scripted", **scale.settings})
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def serves(server: CountedServer) -> None:
    """The other owner has a turn on each transport."""
    assert created(server.http, OTHER)["status"] == "completed"
    for name, connect in (
        ("grpc", GrpcConnection),
        ("websocket", WebSocketConnection),
        ("sse", SseConnection),
    ):
        line = connect(server.address if name == "grpc" else server.http, api_key=OTHER)
        line.send(WIRES[name].create("hi"))
        while not any(seen.kind in TERMINAL for seen in line.receive()):
            pass
        line.close()


def nine_tenths(size: int) -> int:
    return size * 9 // 10


@pytest.mark.parametrize("how", BEGINNINGS)
def test_cn_21_http_and_websocket_messages_that_never_end_stay_within_their_bound(
    how: str, tmp_path: Path, scale: Scale
) -> None:
    with serving(tmp_path, scale) as (server, config), ExitStack() as stack:
        before = server.state.memory
        largest = config.max_message_bytes
        if how.startswith("websocket"):
            largest = min(largest, 16 * MIB)
        size = nine_tenths(largest)
        begun: list[Unfinished] = []
        for number in range(scale.connections):
            begun.append(BEGINNINGS[how](server.http, GREEDY, size))
            stack.callback(begun[-1].close)
            if number % 16 == 0:
                for each in begun:
                    if each.code is None:
                        each.send(1)
        server.state.rest()
        for each in begun:
            each.told()
        grown = server.state.memory - before
        bound = config.max_owner_incoming_bytes + len(begun) * A_CONNECTION + SLACK
        print(f"{how}: {len(begun)} connections, {grown / MIB:.0f} of {bound / MIB:.0f} MiB")
        assert grown <= bound, (grown, bound)
        held = [each for each in begun if each.code is None]
        refused = [each.code for each in begun if each.code is not None]
        assert len(held) == config.max_owner_incoming_bytes // size
        assert grown >= len(held) * size * FRESH, "what is not refused has come"
        expected = ["memory_limit_exceeded"] * len(refused)
        if how.startswith("websocket"):
            # Those that were refused a message have their connection still.
            past = len(begun) - config.max_owner_connections
            expected[-past:] = ["too_many_connections"] * past
        assert refused == expected
        assert all(retry_is_told(each) for each in begun if each not in held)
        serves(server)
        for each in begun:
            each.close()
        server.state.rest()
        serves_the_greedy_one(server)
        assert server.log() == ""


def retry_is_told(refused: Unfinished) -> bool:
    """By HTTP's header; an event of a WebSocket has no member for it."""
    answer = refused.answer
    return answer.startswith(b"HTTP/1.1 101 ") or b"\r\nRetry-After: 1\r\n" in answer


def serves_the_greedy_one(server: CountedServer) -> None:
    """What was counted was given back."""
    assert created(server.http, GREEDY)["status"] == "completed"


@pytest.mark.parametrize("method", ["Converse", "Create"])
def test_cn_21_calls_of_grpc_whose_messages_never_end_stay_within_their_bound(
    method: str, tmp_path: Path, scale: Scale
) -> None:
    with serving(tmp_path, scale) as (server, config):
        before = server.state.memory
        size = nine_tenths(config.max_grpc_message_bytes)
        most = config.max_owner_calls
        connections = []
        for _ in range(most // scale.streams + 1):
            # Calls of two connections may be judged in any order: those before have their places.
            server.state.rest()
            connections.append(UnfinishedCalls(server.address, GREEDY))
            calls = [connections[-1].call(method, size) for _ in range(scale.streams)]
        server.state.rest()
        grown = server.state.memory - before
        assert {connections[-1].told(call) for call in calls} == {EXHAUSTED}
        assert not any(each.status for each in connections[:-1])
        # Each HTTP/2 connection has a window of its own beside those of its calls.
        bound = most * (config.max_grpc_message_bytes + HEADROOM)
        bound += len(connections) * A_CONNECTION + SLACK
        print(f"{method}: {most} calls, {grown / MIB:.0f} of {bound / MIB:.0f} MiB")
        assert most * size * FRESH <= grown <= bound, (grown, bound)
        serves(server)
        for each in connections:
            each.close()
        server.state.rest()
        serves_the_greedy_one(server)


@pytest.mark.parametrize("method", ["Create", "grpc.health.v1.Health/Check"])
def test_cn_21_a_caller_without_a_key_has_next_to_nothing_of_grpc(
    method: str, tmp_path: Path
) -> None:
    """Of wrong keys few refusals wait at once, and of health few calls of an address."""
    with serving(tmp_path, SMALL) as (server, config):
        before = server.state.memory
        size = nine_tenths(config.max_grpc_message_bytes)
        connection = UnfinishedCalls(server.address, "sk-wrong")
        held, status = (8, EXHAUSTED) if "health" in method else (WAITING, "16")
        calls = []
        for _ in range(3 * WAITING // AT_ONCE):
            calls += [connection.call(method, size) for _ in range(AT_ONCE)]
            # Until the headers of a call have been judged, its message comes.
            server.state.rest()
        grown = server.state.memory - before
        bound = (held + AT_ONCE) * (config.max_grpc_message_bytes + HEADROOM) + SLACK
        print(f"{method}: {len(calls)} calls, {grown / MIB:.0f} of {bound / MIB:.0f} MiB")
        assert grown <= bound, (grown, bound)
        refused = calls[held:] if status == EXHAUSTED else calls
        assert {connection.told(call) for call in refused} == {status}
        serves(server)
        connection.close()


@pytest.mark.parametrize("how", ["http, a body", "websocket, a frame"])
def test_cn_21_a_caller_without_a_key_has_nothing_of_http(how: str, tmp_path: Path) -> None:
    with serving(tmp_path, SMALL) as (server, config):
        before = server.state.memory
        size = nine_tenths(config.max_message_bytes)
        begun = [BEGINNINGS[how](server.http, "sk-wrong", size) for _ in range(48)]
        server.state.rest()
        grown = server.state.memory - before
        assert grown <= len(begun) * A_CONNECTION + SLACK
        # Refusals of one address come one after the other.
        until(lambda: all(each.told() and each.code for each in begun if not each.code))
        for each in begun:
            assert each.code == "invalid_api_key"
            each.close()
