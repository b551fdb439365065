"""What the load clients share: a turn, a connection, and what makes them worthless."""

import socket
from collections.abc import Sequence

import pytest

from tieline_bench.clients.base import LoadError, Seen, dial, some_bytes, take_turn


class Recorded:
    """A line that has received these events, in these portions."""

    recorded: bytearray | None = None

    def __init__(self, *portions: Sequence[Seen]) -> None:
        self._portions = list(portions)
        self.sent: list[bytes] = []

    def send(self, request: bytes) -> None:
        self.sent.append(request)

    def receive(self) -> Sequence[Seen]:
        return self._portions.pop(0)

    def split(self, recorded: bytes) -> list[bytes]:
        return [recorded]

    def fileno(self) -> int:
        return -1

    def close(self) -> None:
        self._portions.clear()


CREATED = Seen("response.created", response_id="resp_1")
COMPLETED = Seen("response.completed", response_id="resp_1")


def delta(text: str) -> Seen:
    return Seen("response.output_text.delta", text)


def test_a_turn_counts_its_events_and_ends_with_its_terminal_one() -> None:
    connection = Recorded([CREATED, delta("a")], [], [delta("b"), COMPLETED])
    turn = take_turn(connection, b"{}")
    assert (turn.events, turn.response_id, turn.text) == (4, "resp_1", "ab")
    assert connection.sent == [b"{}"]


@pytest.mark.parametrize("kind", ["response.incomplete", "response.failed", "error"])
def test_a_turn_that_does_not_complete_is_no_measurement(kind: str) -> None:
    with pytest.raises(LoadError, match=f"ended with {kind}"):
        take_turn(Recorded([CREATED, Seen(kind)]), b"{}")


def test_dialling_reaches_the_server_and_holds_no_small_packet_back() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        opened = dial(f"127.0.0.1:{listening.getsockname()[1]}")
        peer, _ = listening.accept()
        with opened, peer:
            assert opened.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
            peer.sendall(b"some")
            assert some_bytes(opened) == b"some"


def test_a_server_that_closes_is_an_error_and_not_silence() -> None:
    ours, theirs = socket.socketpair()
    with ours:
        theirs.close()
        with pytest.raises(LoadError, match="closed the connection"):
            some_bytes(ours)
