"""Text for a regular expression, without running it."""

import contextlib
import re
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tieline_server.engines.scripted.pattern import NoSample, sample


@pytest.mark.parametrize(
    "pattern",
    [
        "",
        "a|",
        r"^[A-Z]{3}-\d+$",
        r"^\d{4}-\d{2}-\d{2}$",
        r"^(foo|bar)+$",
        r"^\S+@\S+\.\S+$",
        r"[^a-z0-9]",
        r"^[\w.-]+$",
        r"^#?([a-f0-9]{6}|[a-f0-9]{3})$",
        r"^\+?[1-9]\d{1,14}$",
        r"^.{5,}$",
        r"[]a]",
        r"[a\]-]x",
        r"^\\server\/share$",
        r"(?:ab){2,3}?c",
        r"(?P<name>a)b",
        r"\u0041\x42\t",
        r"\bfoo\b",
        r"\D\W\S",
    ],
)
def test_the_text_matches(pattern: str) -> None:
    assert re.search(pattern, sample(pattern))


def test_the_text_is_as_long_as_it_must_be() -> None:
    assert sample("^[a-z]+$", shortest=5) == "aaaaa"
    assert sample("^[a-z]{2,8}$", shortest=5, longest=6) == "aaaaa"
    with pytest.raises(NoSample):
        sample("^[a-z]{2,8}$", shortest=9)


@pytest.mark.parametrize(
    "pattern",
    [
        "(",
        ")",
        "[",
        "[z-a]",
        "\\",
        "\\p{L}",
        "*",
        "a{",
        "a{x}",
        "(?=a)",
        "(?<!a)",
        "(a)\\1",
        "(" * 100_000,
        "(" * 5_000,
        "a{99999999999999999999}",
        "((((a{1000}){1000}){1000}){1000})",
        "[^\\w\\W]",
        "\\uZZZZ",
    ],
)
def test_what_is_not_understood_is_said_at_once(pattern: str) -> None:
    start = time.process_time()
    with pytest.raises(NoSample):
        sample(pattern)
    assert time.process_time() - start < 1


@given(st.text(alphabet="ab()[]{}|*+?^$\\d-,1", max_size=20))
def test_whatever_the_pattern_it_is_a_text_or_no_sample(pattern: str) -> None:
    with contextlib.suppress(NoSample):
        assert isinstance(sample(pattern), str)


parts = st.sampled_from(["a", "[b-d]", r"\d", ".", "(x|y)", r"\.", "[^a]", "(?:zz)", r"\w"])
counts = st.sampled_from(["", "*", "+", "?", "{3}", "{2,}", "{1,4}", "+?"])


@given(st.lists(st.tuples(parts, counts), max_size=8), st.integers(0, 3))
def test_any_pattern_of_what_is_understood_is_matched(
    pieces: list[tuple[str, str]], shortest: int
) -> None:
    pattern = "^" + "".join(part + count for part, count in pieces) + "$"
    try:
        text = sample(pattern, shortest=shortest)
    except NoSample:
        return  # No text of that length, or none that was tried.
    assert re.search(pattern, text)
    assert len(text) >= shortest
