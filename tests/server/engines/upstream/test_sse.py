"""Events are the same however their bytes are cut."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tieline_server.engines.upstream.sse import MAX_EVENT, EventStream, EventTooLarge

STREAM = (
    b": a comment\n\ndata: one\n\nevent: x\r\nid: 7\r\ndata:two\r\n\r\n"
    b"data: three\ndata: four\n\ndata: [DONE]\n\n"
)
EVENTS = [b"one", b"two", b"three\nfour", b"[DONE]"]


@pytest.mark.parametrize("size", range(1, len(STREAM) + 1))
def test_a_stream_cut_anywhere_gives_the_same_events(size: int) -> None:
    stream = EventStream()
    pieces = [STREAM[at : at + size] for at in range(0, len(STREAM), size)]
    assert [event for piece in pieces for event in stream.feed(piece)] == EVENTS


LINES = (b"data: one", b"data:two ", b"data:", b"event: x", b"data: three\r", b"\r", b"", b"")


@given(st.lists(st.sampled_from(LINES), max_size=12))
def test_lines_of_every_kind_give_the_same_events_at_once_and_byte_by_byte(
    lines: list[bytes],
) -> None:
    piece = b"".join(line + b"\n" for line in lines)
    stream = EventStream()
    bytewise = [event for byte in piece for event in stream.feed(bytes([byte]))]
    assert EventStream().feed(piece) == bytewise


def test_an_event_that_never_ends_is_refused() -> None:
    for line in (b"x" * 100_000, b"data: " + b"x" * 100_000 + b"\n"):
        stream = EventStream()
        for _ in range(MAX_EVENT // 100_006):
            stream.feed(line)
        with pytest.raises(EventTooLarge):
            stream.feed(line * 2)
