"""The bytes of a server's frames."""

import pytest

from tieline_server.transports.websocket.server_frames import PING, close_frame, text_header


@pytest.mark.parametrize(
    ("size", "header"),
    [
        (0, "8100"),
        (125, "817d"),
        (126, "817e007e"),
        (65535, "817effff"),
        (65536, "817f0000000000010000"),
    ],
)
def test_a_texts_length_takes_the_shortest_form(size: int, header: str) -> None:
    assert text_header(size).hex() == header


def test_a_ping_is_final_and_empty() -> None:
    assert PING.hex() == "8900"


def test_a_close_frame_has_its_code_and_reason() -> None:
    assert close_frame(1001, "bye").hex() == "880503e9" + b"bye".hex()


def test_a_long_reason_is_cut_between_characters() -> None:
    frame = close_frame(1008, "a" + "é" * 200)
    assert len(frame) <= 2 + 125
    assert frame[4:].decode() == "a" + "é" * 61
