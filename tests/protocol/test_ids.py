"""Identifiers and lane names."""

import os
import re

import pytest

from tieline.ids import RESPONSE, IdSource, is_stream_id, tag_of


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


def test_the_tag_is_read_from_an_id_that_has_one() -> None:
    made = IdSource(os.urandom, tag=b"\x01\xab").new(RESPONSE)
    assert tag_of(made) == b"\x01\xab"


@pytest.mark.parametrize(
    "other",
    [
        "",
        "resp_01ab",
        "resp_../..",
        "msg_" + "0" * 32,
        "resp_" + "0" * 31,
        "resp_" + "0" * 33,
        "resp_" + "G" * 32,
        "resp_" + "0" * 32 + "\n",
    ],
)
def test_what_is_no_id_of_a_response_has_no_tag(other: str) -> None:
    assert tag_of(other) is None
