"""Identifiers and lane names."""

import os
import re

import pytest

from tieline.ids import RESPONSE, IdSource, is_stream_id


def test_an_id_is_a_prefix_and_32_hex_digits() -> None:
    assert re.fullmatch(r"resp_[0-9a-f]{32}", IdSource(os.urandom).new(RESPONSE))


def test_the_tag_of_the_process_takes_the_first_digits() -> None:
    made = IdSource(lambda size: b"\xff" * size, tag=b"\x01\xab").new(RESPONSE)
    assert made == "resp_01ab" + "f" * 28


def test_ids_differ() -> None:
    source = IdSource(os.urandom)
    assert len({source.new(RESPONSE) for _ in range(1000)}) == 1000


@pytest.mark.parametrize("name", ["a", "lane.2", "A-b_c.9", "x" * 256])
def test_lane_names_of_legal_characters_and_length(name: str) -> None:
    assert is_stream_id(name)


@pytest.mark.parametrize("name", ["", "x" * 257, "a b", "lane\n", "é", "a/b", "\n"])
def test_other_lane_names_are_refused(name: str) -> None:
    assert not is_stream_id(name)
