"""Messages on a stream: whole, in order, and nothing of one that was cut."""

import asyncio
import socket
from contextlib import suppress
from pathlib import Path

import pytest
from msgspec import Struct

from tieline_server.workers.framing import LENGTH, LONGEST, BrokenMessage, Decoder, pack, send


class One(Struct, tag=True):
    """A message."""

    text: str


class Two(Struct, tag=True):
    """Another."""

    number: int


DECODER = Decoder(One | Two)
MESSAGES = [One("a" * 1000), Two(7), One("")]
STREAM = b"".join(map(pack, MESSAGES))


def read(stream: bytes) -> list[object]:
    """All messages of a stream that ends."""

    async def main() -> list[object]:
        reader = asyncio.StreamReader()
        reader.feed_data(stream)
        reader.feed_eof()
        found = []
        while (message := await DECODER.read(reader)) is not None:
            found.append(message)
        return found

    return asyncio.run(main())


def test_messages_come_as_they_went() -> None:
    assert read(STREAM) == MESSAGES


def test_a_stream_that_is_cut_inside_a_message_is_torn_wherever_that_is() -> None:
    ends = {0, *(len(b"".join(map(pack, MESSAGES[:n]))) for n in (1, 2, 3))}
    for cut in range(len(STREAM) + 1):
        if cut in ends:
            read(STREAM[:cut])
            continue
        with pytest.raises(BrokenMessage):
            read(STREAM[:cut])


@pytest.mark.parametrize(
    "stream", [LENGTH.pack(LONGEST + 1), LENGTH.pack(1) + b"\xc1", LENGTH.pack(1) + b"\x07"]
)
def test_what_is_no_message_is_torn(stream: bytes) -> None:
    with pytest.raises(BrokenMessage):
        read(stream)


def test_a_blocking_socket_gives_one_message_and_keeps_the_next() -> None:
    here, there = socket.socketpair()
    with here, there:
        there.sendall(STREAM)
        there.close()
        assert [DECODER.receive(here) for _ in range(4)] == [*MESSAGES, None]


def test_a_packet_is_exactly_one_message() -> None:
    assert DECODER.unpack(pack(Two(1))) == Two(1)
    for packet in (pack(Two(1)) + b"x", pack(Two(1))[:-1], b"", b"\0"):
        with pytest.raises(BrokenMessage):
            DECODER.unpack(packet)


async def test_a_message_for_a_connection_that_is_gone_is_a_lost_connection(tmp_path: Path) -> None:
    """On the loop of the workers, which has an error of its own for that."""

    async def accept(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()

    server = await asyncio.start_unix_server(accept, tmp_path / "s.sock")
    _, writer = await asyncio.open_unix_connection(tmp_path / "s.sock")
    writer.transport.abort()
    with suppress(ConnectionError):
        await writer.wait_closed()
    with pytest.raises(ConnectionError):
        send(writer, Two(7))
    server.close()
