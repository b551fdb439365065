"""Connections that come and go, in every way that they can: nothing of them stays.

The server is a process of its own, which tells its tasks and lines; descriptors and memory are
read from /proc.
"""

import resource
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final, NamedTuple

import pytest

from tests.conformance.raw_connections import TERMINAL, WIRES, Wire, drop
from tests.support.counted_server import CountedServer, counting
from tests.support.http_client import request_bytes
from tests.support.process_state import until
from tests.support.server_process import write_script
from tieline_bench.clients.base import Connection, LoadError, dial, some_bytes

MORE: Final = 2 * 1024 * 1024
"""Bytes that as many connections again may add."""

WAVES: Final = 5
"""How often a thousand come at once; what the process then keeps, it needs for a thousand."""

PATH: Final = "/v1/responses"
TURN: Final = {"model": "scripted", "store": False, "input": "hi"}
ENDLESS: Final = {**TURN, "input": "slowly"}

PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
SETTINGS: Final = b"\x00\x00\x00\x04\x00\x00\x00\x00\x00"
"""An empty SETTINGS frame (RFC 9113 6.5)."""

HEADERS: Final = b"\x00\x01\x00\x01\x04\x00\x00\x00\x01"
"""The head of a HEADERS frame whose 256 bytes never come."""

UPGRADE: Final = request_bytes(
    "GET",
    PATH,
    headers={
        "Upgrade": "websocket",
        "Connection": "Upgrade",
        "Sec-WebSocket-Version": "13",
        "Sec-WebSocket-Key": "AAAAAAAAAAAAAAAAAAAAAA==",
    },
)


@contextmanager
def serving(folder: Path, *, arenas: int | None = None) -> Iterator[CountedServer]:
    """A server that answers at once, or a word a minute; more files may be open than usual."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    slow = {"tokens_per_second": 1 / 60}
    rules = [
        {
            "id": "slow",
            "when": {"user_contains": "slowly"},
            "emit": {"type": "message", "text": "one two"},
            "pace": slow,
        },
        {"id": "hello", "emit": {"type": "message", "text": "Hello, world."}},
    ]
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 8192), hard))
    try:
        with counting(arenas=arenas, script=write_script(folder, rules=rules)) as server:
            yield server
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


class Held(NamedTuple):
    """What a server has of its connections."""

    lines: int
    tasks: int
    descriptors: int


def held(server: CountedServer) -> Held:
    """Counted beside one request for metrics, which is the same each time."""
    return Held(server.open_connections(), server.tasks(), server.state.descriptors)


def let_go(server: CountedServer, before: Held) -> None:
    """All that has come since ``before`` goes."""
    until(lambda: all(now <= then for now, then in zip(held(server), before, strict=True)))


# One short connection each: a turn, then it closes or is dropped.


def _turn(wire: Wire, server: CountedServer, says: str = "hi") -> Connection:
    line = wire.connect(server.address if wire.grpc else server.http)
    line.send(wire.create(says))
    return line


def _whole(wire: Wire, server: CountedServer) -> Connection:
    line = _turn(wire, server)
    while not any(seen.kind in TERMINAL for seen in line.receive()):
        pass
    return line


def _closed(wire: Wire, server: CountedServer) -> None:
    _whole(wire, server).close()


def _dropped(wire: Wire, server: CountedServer) -> None:
    drop(_whole(wire, server))


def _dropped_mid_turn(wire: Wire, server: CountedServer) -> None:
    line = _turn(wire, server, "slowly")
    while not line.receive():
        pass
    drop(line)


def _json(_wire: Wire, server: CountedServer) -> None:
    with dial(server.http) as connection:
        connection.sendall(request_bytes("POST", PATH, TURN, headers={"Connection": "close"}))
        answer = b""
        with suppress(LoadError):
            while True:
                answer += some_bytes(connection)
    assert answer.startswith(b"HTTP/1.1 200 ")
    assert b"Hello, world." in answer


HOW: Final[dict[str, tuple[str, Callable[[Wire, CountedServer], None]]]] = {
    "grpc, closed": ("grpc", _closed),
    "grpc, dropped mid-turn": ("grpc", _dropped_mid_turn),
    "websocket, closed": ("websocket", _closed),
    "websocket, dropped": ("websocket", _dropped),
    "websocket, dropped mid-turn": ("websocket", _dropped_mid_turn),
    "sse, closed": ("sse", _closed),
    "sse, dropped mid-turn": ("sse", _dropped_mid_turn),
    "json": ("sse", _json),
}


@pytest.mark.parametrize("how", HOW)
def test_short_connections_leave_nothing_and_as_many_again_add_no_memory(
    how: str, tmp_path: Path, repeats: Callable[[int], int]
) -> None:
    name, connect = HOW[how]
    wire = WIRES[name]
    with serving(tmp_path) as server:
        connect(wire, server)
        let_go(server, held(server)._replace(lines=0))
        server.state.rest()
        before = held(server)
        memory = [server.state.memory]
        for _ in range(2):
            for _ in range(repeats(10_000)):
                connect(wire, server)
            let_go(server, before)
            server.state.rest()
            memory.append(server.state.memory)
        assert memory[2] - memory[1] < MORE, memory
        assert server.log() == ""


# Many at once, each cut somewhere.

HTTP_CUTS: Final = (
    b"",
    b"POST /v1/resp",
    request_bytes("POST", PATH, TURN)[:-40],
    request_bytes("POST", PATH, ENDLESS),
    request_bytes("POST", PATH, {**ENDLESS, "stream": True}),
    UPGRADE[:-30],
    UPGRADE,
    UPGRADE + b"\x81\xfe\x10",
)
GRPC_CUTS: Final = (
    b"",
    PREFACE[:10],
    PREFACE,
    PREFACE + SETTINGS[:5],
    PREFACE + SETTINGS,
    PREFACE + SETTINGS + HEADERS,
)


def opened_at_once(address: str, cuts: tuple[bytes, ...], count: int) -> list[socket.socket]:
    """So many connections, all open at the same time, each with a part of what it would say."""
    connections = [dial(address) for _ in range(count)]
    for number, connection in enumerate(connections):
        connection.sendall(cuts[number % len(cuts)])
    return connections


def dropped_at_once(connections: list[socket.socket]) -> None:
    """Every other one is reset, the others just close."""
    for number, connection in enumerate(connections):
        if number % 2:
            reset = b"\x01\x00\x00\x00\x00\x00\x00\x00"
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, reset)
        connection.close()


@pytest.mark.parametrize(("name", "cuts"), [("sse", HTTP_CUTS), ("grpc", GRPC_CUTS)])
def test_a_thousand_connections_opened_at_once_and_dropped_half_way_leave_nothing(
    name: str, cuts: tuple[bytes, ...], tmp_path: Path, repeats: Callable[[int], int]
) -> None:
    # The gRPC library's threads fill an arena each with what a thousand leave free.
    count = repeats(1000)
    with serving(tmp_path, arenas=1) as server:
        address = server.address if WIRES[name].grpc else server.http
        new_calls_are_served(server)
        let_go(server, held(server)._replace(lines=0))
        before = held(server)
        memory = []
        for _ in range(WAVES):
            connections = opened_at_once(address, cuts, count)
            until(lambda: server.state.descriptors >= before.descriptors + count)
            new_calls_are_served(server)
            dropped_at_once(connections)
            let_go(server, before)
            new_calls_are_served(server)
            let_go(server, before)
            server.state.rest()
            memory.append(server.state.memory)
        assert memory[-1] - memory[-2] < MORE, memory
        assert server.log() == ""


def new_calls_are_served(server: CountedServer) -> None:
    for wire in WIRES.values():
        _closed(wire, server)
