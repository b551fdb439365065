"""JSON text without its escapes, in pieces."""

import json
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tieline_server.guards.escapes import Unescaper, unescaped


@given(st.text(), st.booleans())
def test_what_a_json_string_means_is_what_a_json_reader_reads(text: str, ascii_only: bool) -> None:
    written = json.dumps(text, ensure_ascii=ascii_only)[1:-1]
    assert unescaped(written) == json.loads(f'"{written}"')


@given(st.lists(st.sampled_from([*'\\ud83dDE00nx"', "\\u0061", "\\ud83d", "\\ude00"])), st.data())
def test_pieces_mean_what_the_whole_means_and_each_character_knows_its_place(
    parts: list[str], data: st.DataObject
) -> None:
    text = "".join(parts)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=5)))
    unescaper, meant = Unescaper(), ""
    starts: list[int] = []
    for begin, end in pairwise([0, *cuts, len(text)]):
        said, places = unescaper.feed(text[begin:end])
        meant, starts = meant + said, starts + places
        assert unescaper.at <= end
    said, places = unescaper.feed("", last=True)
    meant, starts = meant + said, starts + places
    assert meant == unescaped(text)
    assert len(starts) == len(meant)
    assert unescaper.at == len(text)
    for char, begin, end in zip(meant, starts, [*starts, len(text)][1:], strict=True):
        assert unescaped(text[begin:end]) == char


@pytest.mark.parametrize(
    ("text", "means"),
    [
        (r"\ud83d", "�"),
        (r"\ude00x", "�x"),
        ("\\", "\\"),
        (r"\u00", r"\u00"),
        (r"\uzzzz", r"\uzzzz"),
    ],
)
def test_what_is_no_escape_stays_text_and_half_a_pair_is_a_replacement(
    text: str, means: str
) -> None:
    assert unescaped(text) == means
