"""Usage is read under every name, and what is no number of tokens was not said."""

from typing import Any

import msgspec
import pytest
from msgspec import Struct

from tieline_server.engines.upstream.stated import CompletionUsage, ResponseUsage, readable

KNOWN = {
    "prompt_tokens": 7,
    "completion_tokens": 1,
    "prompt_tokens_details": {"cached_tokens": 3, "cache_write_tokens": 2},
    "completion_tokens_details": {"reasoning_tokens": 1},
    "prompt_cache_hit_tokens": 3,
    "cache_creation_input_tokens": 2,
    "input_tokens": 7,
    "output_tokens": 1,
    "input_tokens_details": {"cached_tokens": 3},
    "output_tokens_details": {"reasoning_tokens": 1},
}


@pytest.mark.parametrize("kind", [CompletionUsage, ResponseUsage])
def test_every_member_that_is_read_is_one_that_can_be_mended(kind: type[Struct]) -> None:
    assert set(kind.__struct_fields__) <= KNOWN.keys()
    assert readable(KNOWN) == KNOWN
    msgspec.convert(readable(KNOWN), kind)


@pytest.mark.parametrize(
    ("value", "tokens"),
    [
        (7.0, 7),
        ("7", 7),
        (7.5, None),
        (float("inf"), None),
        ("7.0", None),
        ("\u0667", None),
        ("9" * 5000, None),
        ("", None),
        (True, None),
        ([7], None),
        ({"n": 7}, None),
        (None, None),
    ],
)
def test_what_is_no_number_of_tokens_was_not_said(value: Any, tokens: int | None) -> None:
    usage = {"prompt_tokens": value, "prompt_tokens_details": {"cached_tokens": value}}
    read = msgspec.convert(readable(usage), CompletionUsage)
    assert read.prompt_tokens == tokens
    details = read.prompt_tokens_details
    assert (details.cached_tokens if details is not None else None) == tokens


@pytest.mark.parametrize("usage", [None, [], "7", 7])
def test_usage_of_no_known_shape_says_nothing(usage: Any) -> None:
    assert readable(usage) is None


@pytest.mark.parametrize("details", [5, "x", [1], None])
def test_details_of_no_known_shape_leave_the_rest(details: Any) -> None:
    usage = {"prompt_tokens": 7, "prompt_tokens_details": details}
    assert readable(usage) == {"prompt_tokens": 7}
