"""Usage is read under every name, and what is no number of tokens was not said."""

from typing import Any

import pytest

from tieline_server.engines.upstream.stated import NOTHING, Stated, stated_in


@pytest.mark.parametrize(
    ("usage", "stated"),
    [
        ({"prompt_tokens": 7, "completion_tokens": 1}, Stated(input=7, output=1)),
        ({"input_tokens": 7, "output_tokens": 1}, Stated(input=7, output=1)),
        (
            {
                "prompt_tokens_details": {"cached_tokens": 3},
                "completion_tokens_details": {"reasoning_tokens": 2},
            },
            Stated(cached=3, reasoning=2),
        ),
        (
            {
                "input_tokens_details": {"cached_tokens": 3},
                "output_tokens_details": {"reasoning_tokens": 2},
            },
            Stated(cached=3, reasoning=2),
        ),
        ({"prompt_cache_hit_tokens": 3}, Stated(cached=3)),
        ({"prompt_tokens_details": {}, "prompt_cache_hit_tokens": 3}, Stated(cached=3)),
        ({"prompt_tokens": 0, "input_tokens": 7}, Stated(input=0)),
    ],
)
def test_each_api_has_names_of_its_own(usage: Any, stated: Stated) -> None:
    assert stated_in(usage) == stated


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
    assert stated_in({"prompt_tokens": value}) == Stated(input=tokens)


@pytest.mark.parametrize("usage", [None, [], "7", 7, {}])
def test_usage_of_no_known_shape_says_nothing(usage: Any) -> None:
    assert stated_in(usage) == NOTHING


@pytest.mark.parametrize("details", [5, "x", [1], None])
def test_details_of_no_known_shape_leave_the_rest(details: Any) -> None:
    usage = {"prompt_tokens": 7, "prompt_tokens_details": details}
    assert stated_in(usage) == Stated(input=7)
