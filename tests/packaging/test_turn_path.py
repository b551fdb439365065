"""How many files a reader opens to follow one turn, from its bytes in to its bytes out.

Counted is the second turn of a chain, of ten events, with the memory store: which of the product's
files it enters, which functions, and how often it goes on in another file than before. As a command
it prints the table, and with the name of a wire the files in the order in which they are entered::

    .venv/bin/python -m tests.packaging.test_turn_path [websocket | grpc | sse]
"""

import sys
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, Final, NamedTuple

import msgspec
import pytest
from aiohttp import ClientSession

import tieline
import tieline_server
from tests.support import grpc_harness, http_harness, websocket_harness
from tests.support.grpc_client import RawConnection, create

EVENTS: Final = 10


class Count(NamedTuple):
    """How far a turn goes."""

    files: int
    functions: int
    moves: int


BARS: Final = {
    "websocket": Count(files=36, functions=240, moves=193),
    "grpc": Count(files=44, functions=292, moves=252),
    "sse": Count(files=45, functions=360, moves=338),
}
GOAL: Final = {
    "websocket": Count(files=32, functions=225, moves=170),
    "grpc": Count(files=38, functions=273, moves=235),
    "sse": Count(files=37, functions=327, moves=300),
}

_ROOTS: Final = tuple(Path(str(package.__file__)).parent for package in (tieline, tieline_server))

Calls = list[CodeType]
"""The product's functions, in the order in which they were entered or gone on with."""


@contextmanager
def recording() -> Iterator[Calls]:
    """Records the calls of this thread; stubs are generated, and not read by anybody."""
    calls: Calls = []
    roots = tuple(f"{root}/" for root in _ROOTS)

    def enter(frame: FrameType, event: str, _argument: object) -> None:
        name = frame.f_code.co_filename
        if event == "call" and name.startswith(roots) and "_pb2" not in name:
            calls.append(frame.f_code)

    sys.setprofile(enter)
    try:
        yield calls
    finally:
        sys.setprofile(None)


def files_of(calls: Calls) -> list[str]:
    """The files that were entered, in order of first entry."""
    return list(dict.fromkeys(code.co_filename for code in calls))


def count(calls: Calls) -> Count:
    """How far these calls went."""
    moves = sum(one.co_filename != other.co_filename for one, other in pairwise(calls))
    # Code is equal to code of the same text in another file.
    functions = {(code.co_filename, code.co_qualname, code.co_firstlineno) for code in calls}
    return Count(files=len(files_of(calls)), functions=len(functions), moves=moves)


async def websocket() -> Calls:
    """A turn that is not stored: the connection remembers it."""
    async with websocket_harness.serve() as served, served.socket() as socket:
        first = await socket.turn(store=False)
        chain = first[-1]["response"]["id"]
        await served.until(lambda: len(served.records) == 1)
        with recording() as calls:
            events = await socket.turn(store=False, previous_response_id=chain)
            await served.until(lambda: len(served.records) == 2)
    assert len(events) == EVENTS
    return calls


async def grpc() -> Calls:
    """A turn that is stored."""
    async with grpc_harness.serve() as served, RawConnection(served.port) as connection:
        first = await connection.turn(create(store=True))
        chain = first[-1].response.id
        await served.until(lambda: len(served.records) == 1)
        with recording() as calls:
            events = await connection.turn(create(store=True, previous_response_id=chain))
            await served.until(lambda: len(served.records) == 2)
    assert len(events) == EVENTS
    return calls


async def sse() -> Calls:
    """A turn that is stored: nothing else remembers it."""
    async with http_harness.serve() as served, ClientSession() as session:
        first = await _streamed(session, served.url)
        await served.until(lambda: len(served.records) == 1)
        with recording() as calls:
            chain = first[-1]["response"]["id"]
            events = await _streamed(session, served.url, previous_response_id=chain)
            await served.until(lambda: len(served.records) == 2)
    assert len(events) == EVENTS
    return calls


async def _streamed(session: ClientSession, url: str, **members: Any) -> list[dict[str, Any]]:
    body = {"model": "tiny", "input": "hi", "stream": True, **members}
    async with session.post(f"{url}/responses", json=body) as answer:
        lines = (await answer.read()).splitlines()
    return [msgspec.json.decode(line[6:]) for line in lines if line.startswith(b"data: {")]


def second_turn(wire: str) -> Calls:
    """What the second turn over this wire called."""

    async def main() -> None:
        calls.extend(await WIRES[wire]())

    calls: Calls = []
    grpc_harness.run(main())
    return calls


def shortest(wire: str) -> Calls:
    """What the shortest of three second turns called.

    Where a write has to wait or a timer fires, a turn goes a way of its own: on a busy machine.
    """
    return min((second_turn(wire) for _ in range(3)), key=count)


WIRES: Final[dict[str, Callable[[], Awaitable[Calls]]]] = {
    "websocket": websocket,
    "grpc": grpc,
    "sse": sse,
}


@pytest.mark.parametrize("wire", WIRES)
def test_a_turn_enters_no_more_than_its_bar(wire: str) -> None:
    found = count(shortest(wire))

    over = {
        name: (value, bar)
        for name, value, bar in zip(Count._fields, found, BARS[wire], strict=True)
        if value > bar
    }
    assert not over, f"more than the bar: {over}; python -m tests.packaging.test_turn_path {wire}"


@pytest.mark.parametrize("wire", WIRES)
def test_a_turn_is_followed_from_the_transport_to_the_core_and_the_vocabulary(wire: str) -> None:
    entered = files_of(second_turn(wire))

    for part in ("/tieline_server/transports/", "/tieline_server/core/", "/tieline/"):
        assert any(part in file for file in entered), part
    assert not [file for file in entered if "_pb2" in file or "/tests/" in file]


def test_files_functions_and_moves_are_counted_by_the_order_of_the_calls() -> None:
    def code(file: str, name: str) -> CodeType:
        return count.__code__.replace(co_filename=file, co_name=name, co_qualname=name)

    one, two, other = code("a.py", "one"), code("a.py", "two"), code("b.py", "one")

    assert count([one, two, one]) == Count(files=1, functions=2, moves=0)
    assert count([one, other, one, other]) == Count(files=2, functions=2, moves=3)
    assert files_of([other, one, other]) == ["b.py", "a.py"]


def main(wires: Sequence[str]) -> None:
    """Prints the table, or the way of a turn over these wires."""
    for wire in wires:
        for number, file in enumerate(files_of(shortest(wire)), start=1):
            root = next(root for root in _ROOTS if Path(file).is_relative_to(root))
            print(f"{wire} {number:2} {Path(file).relative_to(root.parent)}")
    if wires:
        return
    print(f"{'':10}" + "".join(f"{name:>12}" for name in Count._fields))
    for wire in WIRES:
        for title, row in (
            (wire, count(shortest(wire))),
            ("  bar", BARS[wire]),
            ("  goal", GOAL[wire]),
        ):
            print(f"{title:10}" + "".join(f"{value:12}" for value in row))


if __name__ == "__main__":
    main(sys.argv[1:])
