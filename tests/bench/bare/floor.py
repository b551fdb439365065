"""A bare server as a process, and turns taken from it by the load client of its transport."""

from collections.abc import Callable
from pathlib import Path

from tieline import events
from tieline.responses import Response
from tieline_bench.bare.base import DELTA_FILE, END_FILE, TURN_FILE
from tieline_bench.clients import Connection, Turn, take_turn
from tieline_bench.processes import bare

FIRST = events.ResponseCreated(sequence_number=0, response=Response(id="resp_1"))
DELTA = events.OutputTextDelta(
    sequence_number=1, item_id="msg_1", output_index=0, content_index=0, delta="go "
)
LAST = events.ResponseCompleted(sequence_number=2, response=Response(id="resp_1"))


def turns(
    transport: str,
    folder: Path,
    *,
    connect: Callable[[str], Connection],
    encode: Callable[[events.Event], bytes],
    mode: str,
    count: int,
    tokens: int = 1,
) -> list[Turn]:
    """Turns taken one after the other on one line; what came is what the server was given."""
    first, delta, last = map(encode, (FIRST, DELTA, LAST))
    whole = first + delta + last
    (folder / TURN_FILE).write_bytes(whole)
    (folder / DELTA_FILE).write_bytes(delta)
    (folder / END_FILE).write_bytes(delta + last)
    with bare(transport, folder, mode=mode, tokens=tokens, rate=1000) as server:
        address = server.address(transport)
        assert address is not None
        connection = connect(address)
        connection.recorded = bytearray()
        taken = [take_turn(connection, b"{}") for _ in range(count)]
        connection.close()
    expected = whole if mode == "turns" else delta * tokens + last
    assert connection.recorded.replace(b": tokens\n\n", b"") == expected * count
    return taken
