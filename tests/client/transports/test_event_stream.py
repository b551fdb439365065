"""Server-sent events taken apart."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tieline.errors import RequestTooLarge
from tieline_client.transports.event_stream import EventStream

ODD = "a\u2028b\u2029c\u0085d\x0b\x0c\x1c e \U0001f468\u200d\U0001f469\u200d\U0001f467 \u4f60\u597d"


def read(*chunks: bytes, limit: int = 1000) -> list[bytes]:
    stream = EventStream(limit)
    return [data for chunk in chunks for data in stream.feed(chunk)]


def test_an_event_is_its_data_once_a_blank_line_ends_it() -> None:
    assert read(b"event: x\ndata: 1\n\ndata:2\n\ndata: 3\n") == [b"1", b"2"]


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"])
def test_lines_end_in_three_ways(end: bytes) -> None:
    assert read(end.join([b"data: 1", b"data: 2", b"", b"data: 3", b"", b""])) == [b"1\n2", b"3"]


def test_comments_and_other_fields_are_passed_over() -> None:
    text = b": heartbeat prefill\nid: 1\nretry: 5\ndata\ndatax: 9\n\n:\n\ndata: 1\n\n"
    assert read(text) == [b"1"]


def test_a_byte_order_mark_at_the_start_is_no_text() -> None:
    assert read(b"\xef\xbb", b"\xbfdata: 1\n\n") == [b"1"]


def test_one_space_after_the_colon_is_no_data() -> None:
    assert read(b"data:  x\n\n") == [b" x"]


def test_ev_08_only_cr_and_lf_end_lines_whatever_the_chunks() -> None:
    """EV-08: fed a byte at a time, no character is cut and no separator of text ends a line."""
    raw = f"data: {ODD}\r\n\r\n".encode()
    (data,) = read(*(raw[index : index + 1] for index in range(len(raw))))
    assert data.decode() == ODD


@given(
    st.lists(st.sampled_from([b"data: a\xe2\x80\xa8", b"\r", b"\n", b"\r\n", b":", b"x"])),
    st.data(),
)
def test_the_events_do_not_depend_on_the_chunks(parts: list[bytes], data: st.DataObject) -> None:
    raw = b"".join(parts)
    cuts = data.draw(st.lists(st.integers(0, len(raw)), max_size=5).map(sorted))
    edges = [0, *cuts, len(raw)]
    chunks = [raw[start:end] for start, end in pairwise(edges)]
    assert read(*chunks) == read(raw)


@pytest.mark.parametrize(
    "chunks",
    [
        [b"data: " + b"x" * 200 + b"\n\n"],
        [b"data: ", *[b"x" * 10] * 20],
        [b"data: 0123456789\n"] * 20,
        [b"event: " + b"x" * 200],
    ],
)
def test_an_event_beyond_the_limit_is_refused_as_it_grows(chunks: list[bytes]) -> None:
    with pytest.raises(RequestTooLarge, match="100"):
        read(*chunks, limit=100)


def test_many_small_events_are_no_large_one() -> None:
    assert read(*[b"data: 0123456789\n\n"] * 100, limit=20) == [b"0123456789"] * 100
