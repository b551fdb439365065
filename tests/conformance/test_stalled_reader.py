"""A client that asks for much and does not read: what it costs, and that nothing is lost.

The server is a process of its own. Its memory is read once it rests, before and after many
lines have stalled, and the first stalled line comes before: what the process needs once is no
line's cost.
"""

import asyncio
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, TypeVar

import grpc
import pytest

from tests.conformance.raw_connections import (
    READING_BUFFER,
    STALLED_BUFFER,
    TERMINAL,
    WIRES,
    Wire,
    drop,
    folded,
    read_turns,
    set_receive_buffer,
)
from tests.support.counted_server import CountedServer, counting
from tests.support.grpc_client import RawConnection, create
from tests.support.process_state import until
from tests.support.server_process import write_script
from tieline import events
from tieline.codecs.proto import decode_event
from tieline.v1 import service_pb2
from tieline_bench.clients.base import Connection

T = TypeVar("T")

MIB: Final = 1024 * 1024
WORDS: Final = " international understanding" * 250
"""Five hundred tokens."""

LONG: Final = 40
"""Messages that are more than the kernel's buffers and the server's own hold, merged or not."""

SOME: Final = 4
"""Messages that are as much on sixteen lanes together."""

LONGER: Final = 250
"""Messages that are more than the 4 MiB that the kernel takes of a gRPC connection."""

SMALL_WINDOW: Final[Sequence[tuple[str, Any]]] = (
    ("grpc.http2.bdp_probe", 0),
    ("grpc.use_local_subchannel_pool", 1),
)
"""A client whose library takes 64 KiB of a stream that nobody reads."""

STREAM_RESPONSE: Final = "/tieline.v1.ResponsesService/Stream"

LANES: Final = 16


def text_of(messages: int) -> str:
    return "".join(f"{number}:{WORDS}" for number in range(messages))


@contextmanager
def serving_long(folder: Path, **settings: Any) -> Iterator[CountedServer]:
    """A server that says so many messages as it is asked for."""
    rules = [
        {
            "id": f"{messages}",
            "when": {"user_contains": f"{messages} please"},
            "emit": [{"type": "message", "text": f"{n}:{WORDS}"} for n in range(messages)],
        }
        for messages in (LONGER, LONG, SOME)
    ]
    short = {"id": "short", "emit": {"type": "message", "text": "Hello."}}
    # Connections of a test stay stuck for as long as it takes to open them all.
    given = {"write_timeout": 600, **settings}
    with counting(script=write_script(folder, rules=[*rules, short]), **given) as server:
        yield server


def stall(server: CountedServer, wire: Wire, messages: int, *, lanes: int = 1) -> Connection:
    """A line with a long answer on each lane, none of which is read."""
    line = wire.open(server)
    set_receive_buffer(line, STALLED_BUFFER)
    for lane in range(lanes):
        name = {"stream_id": f"lane{lane}"} if lanes > 1 else {}
        line.send(wire.create(f"{messages} please", **name))
    return line


def read_on(wire: Wire, line: Connection, messages: int, *, lanes: int = 1) -> None:
    """All of a stalled line comes after all, in order, and the line lives on."""
    set_receive_buffer(line, READING_BUFFER)
    turns = read_turns(wire, line, lanes)
    assert len(turns) == lanes
    for turn in turns.values():
        assert folded(turn) == text_of(messages)
    one_more_turn(wire, line)


def one_more_turn(wire: Wire, line: Connection) -> None:
    line.recorded = bytearray()
    line.send(wire.create("hi"))
    (turn,) = read_turns(wire, line, 1).values()
    assert folded(turn) == "Hello."


def one_more_line(server: CountedServer, wire: Wire) -> Connection:
    line = wire.open(server)
    one_more_turn(wire, line)
    return line


def others_are_undisturbed(server: CountedServer) -> None:
    """On every wire a turn of a line of its own is answered whole."""
    for wire in WIRES.values():
        one_more_line(server, wire).close()


def are_stalled(server: CountedServer, lines: int, lanes: int) -> bool:
    """Whether no line got all of its answer, and of several lanes few did.

    The first lanes to come may have all of theirs before the others leave them a share only.
    """
    return server.ended() < (1 if lanes == 1 else lines)


def cost(
    server: CountedServer, stall: Callable[[], T], lines: int, *, lanes: int = 1
) -> tuple[list[T], int]:
    """So many stalled lines, and the bytes of memory that each costs."""
    opened = [stall()]
    server.state.rest()
    before = server.state.memory
    opened += [stall() for _ in range(lines)]
    server.state.rest()
    assert are_stalled(server, lines, lanes)
    return opened, (server.state.memory - before) // lines


CASES: Final = [
    ("websocket", 1, "auto"),
    ("websocket", 1, "never"),
    ("websocket", LANES, "auto"),
    ("websocket", LANES, "never"),
    ("sse", 1, "auto"),
    ("sse", 1, "never"),
]


@pytest.mark.parametrize(("name", "lanes", "merge"), CASES)
def test_a_stalled_line_costs_at_most_a_mebibyte_and_loses_nothing(
    name: str, lanes: int, merge: str, tmp_path: Path, repeats: Callable[[int], int]
) -> None:
    wire = WIRES[name]
    messages = LONG if lanes == 1 else SOME
    with serving_long(tmp_path, merge=merge) as server:
        opened, each = cost(
            server,
            lambda: stall(server, wire, messages, lanes=lanes),
            repeats(100),
            lanes=lanes,
        )
        assert each <= MIB, f"{each} bytes a line"
        others_are_undisturbed(server)
        for line in (opened[0], opened[-1]):
            read_on(wire, line, messages, lanes=lanes)
        for line in opened:
            line.close()


def test_a_grpc_line_stalled_by_its_socket_costs_at_most_eight_mebibytes_and_loses_nothing(
    tmp_path: Path, repeats: Callable[[int], int]
) -> None:
    wire = WIRES["grpc"]
    with serving_long(tmp_path, merge="never") as server:
        # Few: who does not read for 80 s misses the keepalive pings, and is dropped for that.
        opened, each = cost(server, lambda: stall(server, wire, LONGER), repeats(10))
        assert each <= 8 * MIB, f"{each} bytes a line"
        others_are_undisturbed(server)
        read_on(wire, opened[0], LONGER)
        for line in opened:
            line.close()


async def window_cost(
    server: CountedServer, stall: Callable[[], Awaitable[T]], lines: int, *, lanes: int = 1
) -> tuple[list[T], int]:
    """As ``cost``, for clients of the gRPC library."""
    opened = [await stall()]
    await asyncio.to_thread(server.state.rest)
    before = server.state.memory
    opened += [await stall() for _ in range(lines)]
    await asyncio.to_thread(server.state.rest)
    assert await asyncio.to_thread(are_stalled, server, lines, lanes)
    return opened, (server.state.memory - before) // lines


@pytest.mark.parametrize("merge", ["auto", "never"])
@pytest.mark.parametrize("lanes", [1, LANES])
async def test_a_grpc_line_stalled_by_its_window_costs_at_most_eight_mebibytes_and_loses_nothing(
    lanes: int, merge: str, tmp_path: Path, repeats: Callable[[int], int]
) -> None:
    messages = LONG if lanes == 1 else SOME

    with serving_long(tmp_path, merge=merge) as server:

        async def stall() -> RawConnection:
            line = RawConnection(int(server.address.rpartition(":")[2]), options=SMALL_WINDOW)
            for lane in range(lanes):
                await line.send(create(f"{messages} please", stream_id=f"lane{lane}"))
            return line

        opened, each = await window_cost(server, stall, repeats(50), lanes=lanes)
        assert each <= 8 * MIB, f"{each} bytes a line"
        await asyncio.to_thread(others_are_undisturbed, server)
        for line in (opened[0], opened[-1]):
            await take(line, messages, lanes)
        for line in opened:
            await line.__aexit__(None, None, None)


async def take(line: RawConnection, messages: int, lanes: int) -> None:
    """All of a stalled line comes after all, in order."""
    turns: defaultdict[str, list[events.Event]] = defaultdict(list)
    ended = 0
    while ended < lanes:
        message = await line.next()
        assert message is not None
        event = decode_event(message)
        assert isinstance(event.stream_id, str)
        turns[event.stream_id].append(event)
        ended += event.type in TERMINAL
    assert len(turns) == lanes
    for turn in turns.values():
        assert folded(turn) == text_of(messages)


async def test_a_stalled_grpc_call_of_one_turn_costs_at_most_eight_mebibytes_and_loses_nothing(
    tmp_path: Path, repeats: Callable[[int], int]
) -> None:
    create_one = service_pb2.StreamRequest(response_create=create(f"{LONG} please").response_create)

    with serving_long(tmp_path) as server:

        async def stall() -> tuple[grpc.aio.Channel, Any]:
            channel = grpc.aio.insecure_channel(server.address, options=SMALL_WINDOW)
            multi: Any = channel.unary_stream(STREAM_RESPONSE)
            call = multi(create_one.SerializeToString())
            await call.initial_metadata()
            return channel, call

        opened, each = await window_cost(server, stall, repeats(50))
        assert each <= 8 * MIB, f"{each} bytes a line"
        await asyncio.to_thread(others_are_undisturbed, server)
        turn: list[events.Event] = []
        while isinstance(data := await opened[-1][1].read(), bytes):
            turn += map(decode_event, service_pb2.ConverseResponse.FromString(data).events)
        assert folded(turn) == text_of(LONG)
        for channel, call in opened:
            call.cancel()
            await channel.close()


def test_a_stalled_websocket_that_goes_on_sending_costs_no_more_and_is_answered(
    tmp_path: Path, repeats: Callable[[int], int]
) -> None:
    wire, creates = WIRES["websocket"], 300
    request = wire.create("hi")

    with serving_long(tmp_path) as server:

        def stall_and_send() -> Connection:
            line = stall(server, wire, LONG)
            server.state.rest()
            for _ in range(creates):
                line.send(request)
            return line

        opened, each = cost(server, stall_and_send, repeats(100))
        assert each <= MIB, f"{each} bytes a line"
        others_are_undisturbed(server)
        line = opened[-1]
        set_receive_buffer(line, READING_BUFFER)
        kinds: Counter[str] = Counter()
        while kinds["response.completed"] + kinds["error"] < 1 + creates:
            kinds.update(seen.kind for seen in line.receive())
        assert kinds["response.completed"] > 64, "what waited in the queue, and the long one"
        for line in opened:
            line.close()


@pytest.mark.parametrize("name", WIRES)
def test_a_line_that_stays_stuck_ends_after_the_write_timeout(name: str, tmp_path: Path) -> None:
    wire = WIRES[name]
    with serving_long(tmp_path, merge="never", write_timeout=0.5) as server:
        for each in WIRES.values():
            drop(one_more_line(server, each))
        until(lambda: server.open_connections() == 0)
        server.state.rest()
        before = server.tasks(), server.state.descriptors
        opened = [stall(server, wire, LONGER) for _ in range(4)]
        until(lambda: server.count("tieline_server_responses_total") == 3 + len(opened))
        until(lambda: server.open_connections() == 0)
        others_are_undisturbed(server)
        for line in opened:
            line.close()
        until(lambda: (server.tasks(), server.state.descriptors) <= before)
