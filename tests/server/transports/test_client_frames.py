"""What a client's frames must be, whatever pieces they come in."""

import os
import random

import pytest

from tests.support.websocket_client import BINARY, CLOSE, PING, PONG, TEXT, frame
from tieline_server.transports.client_frames import FORBIDDEN, ClientFrames

MESSAGE = (
    frame(b"one", fin=False)
    + frame(b"", opcode=PING)
    + frame(b"x" * 200, opcode=0, fin=False)
    + frame(b"", opcode=0)
)
SOUND = (
    frame(b"")
    + frame(b"{}")
    + MESSAGE
    + frame(b"y" * 125)
    + frame(b"y" * 126, opcode=BINARY)
    + frame(b"z" * 70_000)
    + frame(b"", opcode=PONG)
    + frame(b"\x03\xe8", opcode=CLOSE)
)


class Reader:
    """Keeps what it is shown."""

    def __init__(self) -> None:
        self.seen = b""
        self.eof = False

    def feed_data(self, data: bytes) -> tuple[bool, bytes]:
        self.seen += data
        return FORBIDDEN in data, b""

    def feed_eof(self) -> None:
        self.eof = True


def shown(data: bytes, sizes: list[int]) -> bytes:
    """What the reader has seen of ``data`` that came in pieces of these sizes, then the rest."""
    reader = Reader()
    frames = ClientFrames(reader)
    for size in [*sizes, len(data)]:
        frames.feed_data(data[:size])
        data = data[size:]
    return reader.seen


def test_sound_frames_go_through_unchanged_in_any_pieces() -> None:
    assert shown(SOUND, []) == SOUND
    assert shown(SOUND, [1] * len(SOUND)) == SOUND
    chance = random.Random(6455)
    for _ in range(200):
        assert shown(SOUND, [chance.randint(1, 90) for _ in range(900)]) == SOUND


@pytest.mark.parametrize(
    "bad",
    [
        frame(b"{}", masked=False),
        frame(b"", masked=False),
        frame(b"x" * 300, masked=False),
        frame(b"x" * 70_000, masked=False),
        frame(b"", opcode=PING, masked=False),
        frame(b"", opcode=CLOSE, masked=False),
        frame(b"", opcode=0),
        frame(b"", opcode=0, fin=False),
        frame(b"", fin=False) + frame(b"{}"),
        frame(b"", fin=False, opcode=BINARY) + frame(b"", opcode=PING) + frame(b"{}", fin=False),
    ],
)
@pytest.mark.parametrize("piece", [1, 2, 3, 1 << 20])
def test_a_bad_header_is_shown_as_one_that_the_reader_refuses_and_nothing_of_it_follows(
    bad: bytes, piece: int
) -> None:
    data = SOUND + bad
    seen = shown(data, [piece] * (len(data) // piece))
    assert seen.startswith(SOUND)
    assert FORBIDDEN in seen[len(SOUND) :]
    before, _, _ = seen[len(SOUND) :].partition(FORBIDDEN)
    assert bad.startswith(before)
    assert len(before) < len(bad)


def test_a_frame_of_the_largest_length_is_waited_for_without_keeping_it() -> None:
    reader = Reader()
    frames = ClientFrames(reader)
    head = b"\x82\xff" + (2**63 - 1).to_bytes(8, "big") + b"mask"
    frames.feed_data(head)
    for _ in range(3):
        # What looks like a header without a mask is payload here.
        frames.feed_data(b"\x81\x00" * 100)
    assert reader.seen == head + b"\x81\x00" * 300


def test_the_end_is_passed_on() -> None:
    reader = Reader()
    ClientFrames(reader).feed_eof()
    assert reader.eof


def test_random_payloads_are_never_taken_for_headers() -> None:
    chance = random.Random(5)
    for _ in range(100):
        payload = os.urandom(chance.randint(0, 300))
        data = b"".join(frame(payload, opcode=TEXT) for _ in range(3))
        assert shown(data, [chance.randint(1, 40) for _ in range(60)]) == data
