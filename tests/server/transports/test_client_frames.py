"""What a client's frames must be, whatever pieces they come in."""

import os
import random

import pytest

from tests.support.websocket_client import BINARY, CLOSE, PING, PONG, TEXT, frame
from tieline_server.transports.client_frames import FORBIDDEN, TOO_LARGE, ClientFrames

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


class Gate:
    """Lets so many bytes be kept, and notes what it is told."""

    def __init__(self, room: int = 1 << 30, *, most: int = 1 << 20, deflate: bool = False) -> None:
        self.room = room
        self.most = most
        self.deflate = deflate
        self.kept = 0
        """Bytes of the message that comes."""
        self.whole: list[tuple[int, int]] = []
        """Number and bytes of each message that was kept until it was whole."""
        self.waits = False

    def take(self, size: int) -> bool:
        if self.kept + size > self.room:
            self.kept = 0
            return False
        self.kept += size
        return True

    def complete(self, number: int) -> None:
        self.whole.append((number, self.kept))
        self.kept = 0

    def wait(self) -> None:
        self.waits = True

    def rest(self) -> None:
        self.kept = 0
        self.waits = False


def fed(frames: ClientFrames, data: bytes, sizes: list[int]) -> None:
    for size in [*sizes, len(data)]:
        frames.feed_data(data[:size])
        data = data[size:]


def shown(data: bytes, sizes: list[int]) -> bytes:
    """What the reader has seen of ``data`` that came in pieces of these sizes, then the rest."""
    reader = Reader()
    fed(ClientFrames(reader, Gate()), data, sizes)
    return reader.seen


OVERTAKEN = SOUND.replace(MESSAGE, MESSAGE.replace(frame(b"", opcode=PING), b""), 1)
"""``SOUND`` without the control frame between the fragments of a message."""


def test_sound_frames_go_through_unchanged_in_any_pieces() -> None:
    """But a control frame between fragments does not wait for the message to be whole."""
    ping = frame(b"", opcode=PING)
    assert OVERTAKEN != SOUND
    chance = random.Random(6455)
    pieces = [[], [1] * len(SOUND)]
    pieces += [[chance.randint(1, 90) for _ in range(900)] for _ in range(200)]
    for sizes in pieces:
        seen = shown(SOUND, sizes)
        assert seen.count(ping) == 1
        assert seen.replace(ping, b"") == OVERTAKEN


def test_cn_21_nothing_of_a_message_reaches_the_reader_before_it_is_whole() -> None:
    reader, gate = Reader(), Gate()
    frames = ClientFrames(reader, gate)
    first, *rest = (
        frame(b"one", fin=False),
        frame(b"two", opcode=0, fin=False),
        frame(b"", opcode=0),
    )
    frames.feed_data(first)
    frames.feed_data(rest[0] + frame(b"", opcode=PING) + rest[1][:-1])
    assert reader.seen == frame(b"", opcode=PING)
    assert gate.waits
    assert gate.kept == len(first + rest[0] + rest[1][:-1])
    frames.feed_data(rest[1][-1:] + frame(b"{}"))
    assert reader.seen == frame(b"", opcode=PING) + first + rest[0] + rest[1] + frame(b"{}")
    assert gate.whole == [(1, len(first + rest[0] + rest[1]))]
    assert not gate.waits


@pytest.mark.parametrize("piece", [1, 5, 64, 1000])
def test_cn_21_a_message_that_finds_no_room_is_skipped_and_the_next_one_is_read(
    piece: int,
) -> None:
    reader, gate = Reader(), Gate(room=500)
    frames = ClientFrames(reader, gate)
    large = frame(b"x" * 400, fin=False) + frame(b"y" * 4000, opcode=0)
    fed(frames, large[:-1], [piece] * (len(large) // piece))
    assert reader.seen == b""
    assert gate.kept == 0
    assert not gate.waits, "a message that is skipped is not waited for"
    frames.feed_data(large[-1:] + frame(b"{}"))
    assert reader.seen == frame(b"{}")
    fed(frames, frame(b"z" * 300), [10] * 20)
    assert reader.seen == frame(b"{}") + frame(b"z" * 300)
    assert gate.whole == [(2, len(frame(b"z" * 300)))]


@pytest.mark.parametrize("piece", [1, 7, 1 << 20])
@pytest.mark.parametrize("fragments", [1, 3])
def test_cn_12_a_message_may_have_as_many_bytes_as_the_gate_says_and_no_more(
    fragments: int, piece: int
) -> None:
    def message(size: int) -> bytes:
        return b"".join(
            frame(
                b"x" * (size // fragments),
                opcode=TEXT if index == 0 else 0,
                fin=index == fragments - 1,
            )
            for index in range(fragments)
        )

    for size, passes in ((3000, True), (3003, False)):
        data = message(size)
        reader, gate = Reader(), Gate(most=3000)
        fed(ClientFrames(reader, gate), data, [piece] * (len(data) // piece))
        assert (reader.seen == data) is passes
        assert reader.seen.startswith(TOO_LARGE) is not passes
        assert gate.kept == 0


def test_cn_21_a_header_that_has_begun_is_waited_for() -> None:
    reader, gate = Reader(), Gate()
    frames = ClientFrames(reader, gate)
    for part in (b"\x81", b"\x82", b"mask"):
        frames.feed_data(part)
        assert gate.waits
        assert reader.seen == b""
    frames.feed_data(b"{}")
    assert not gate.waits
    frames.feed_data(b"\x89")
    assert gate.waits
    frames.feed_data(b"\x80mask")
    assert not gate.waits


def test_messages_are_numbered_as_the_reader_meets_them() -> None:
    gate = Gate()
    frames = ClientFrames(Reader(), gate)
    cut = frame(b"x" * 100)
    frames.feed_data(frame(b"{}") + frame(b"", opcode=PING) + frame(b"{}") + cut[:50])
    frames.feed_data(cut[50:] + frame(b"{}") + cut[:1])
    frames.feed_data(cut[1:])
    assert gate.whole == [(3, len(cut))]


def test_a_compressed_message_is_forbidden_where_nothing_was_agreed_on() -> None:
    data = frame(b"x", bits=0x40)
    for deflate, forbidden in ((False, True), (True, False)):
        reader = Reader()
        ClientFrames(reader, Gate(deflate=deflate)).feed_data(data)
        assert (reader.seen == FORBIDDEN) is forbidden


@pytest.mark.parametrize(
    "bad",
    [
        frame(b"{}", masked=False),
        frame(b"", masked=False),
        frame(b"x" * 300, masked=False),
        frame(b"x" * 70_000, masked=False),
        frame(b"", opcode=PING, masked=False),
        frame(b"", opcode=CLOSE, masked=False),
        frame(b"{}", opcode=3),
        frame(b"", opcode=11),
        frame(b"{}", bits=0x20),
        frame(b"{}", bits=0x10),
        frame(b"", opcode=PING, fin=False),
        frame(b"x" * 126, opcode=PING),
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
    seen = shown(data, [piece] * (len(data) // piece)).replace(frame(b"", opcode=PING), b"")
    assert seen.startswith(OVERTAKEN)
    before, _, _ = seen[len(OVERTAKEN) :].partition(FORBIDDEN)
    assert FORBIDDEN in seen[len(OVERTAKEN) :]
    assert bad.startswith(before)
    assert len(before) < len(bad)


@pytest.mark.parametrize("size", [2**63 - 1, 2**63, 2**64 - 1])
def test_a_frame_of_the_largest_length_is_refused_by_its_header(size: int) -> None:
    reader = Reader()
    frames = ClientFrames(reader, Gate())
    frames.feed_data(frame(b"{}") + b"\x82\xff" + size.to_bytes(8, "big") + b"mask")
    assert reader.seen == frame(b"{}") + TOO_LARGE


def test_the_end_is_passed_on() -> None:
    reader = Reader()
    ClientFrames(reader, Gate()).feed_eof()
    assert reader.eof


def test_random_payloads_are_never_taken_for_headers() -> None:
    chance = random.Random(5)
    for _ in range(100):
        payload = os.urandom(chance.randint(0, 300))
        data = b"".join(frame(payload, opcode=TEXT) for _ in range(3))
        assert shown(data, [chance.randint(1, 40) for _ in range(60)]) == data
