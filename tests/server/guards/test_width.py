"""How long a match of a pattern can be."""

import string

import pytest
import re2
from hypothesis import given
from hypothesis import strategies as st

from tieline_server.guards.width import UnknownWidth, Width, width_of

ATOMS = (
    "a",
    "b",
    ".",
    r"\d",
    r"[^a]",
    "[]a]",
    r"[[:alpha:]-]",
    r"\x41",
    r"\x{10FFFF}",
    r"\pL",
    "é",
)
ZERO = ("^", "$", r"\b", r"\B", r"\A", r"\z", "(?i)")


@pytest.mark.parametrize(
    ("pattern", "width"),
    [
        ("bad", Width(3, 3)),
        ("colou?r|[a-z]{2,4}", Width(2, 6)),
        (r"\bbad\b", Width(3, 3, asserts=True)),
        ("a+", Width(1, None)),
        ("(ab)*", Width(0, None)),
        ("(?:ab){3}", Width(6, 6)),
        ("(?P<name>ab){2,}", Width(4, None)),
        ("(?<name>ab){2,5}?", Width(4, 10)),
        ("(?i-s:ab)c", Width(3, 3)),
        ("(?i)ab", Width(2, 2)),
        ("(?:^)*a", Width(1, 1, asserts=True)),
        (r"\Qa+b\E{2}", Width(4, 4)),
        (r"\Q\Ea", Width(1, 1)),
        (r"\p{Greek}\PN[[:^alpha:]\]]", Width(3, 3)),
        (r"\101\.\_", Width(3, 3)),
        ("a{,2}", Width(5, 5)),
        ("a{2", Width(3, 3)),
        ("", Width(0, 0)),
        ("a||bc", Width(0, 2)),
    ],
)
def test_the_width_of_a_pattern_is_that_of_its_shortest_and_longest_match(
    pattern: str, width: Width
) -> None:
    re2.compile(pattern)
    assert width_of(pattern) == width


@pytest.mark.parametrize("pattern", [r"\C", r"\Qab", "(?#x)", "(a", "a)", "[a", "(" * 5000])
def test_what_is_not_known_is_refused(pattern: str) -> None:
    with pytest.raises(UnknownWidth):
        width_of(pattern)


def patterns() -> st.SearchStrategy[str]:
    atoms = st.sampled_from(ATOMS) | st.sampled_from(ZERO)
    return st.recursive(
        atoms,
        lambda inner: (
            st.lists(inner, min_size=1, max_size=3).map("".join)
            | st.lists(inner, min_size=2, max_size=3).map("|".join).map("(?:{})".format)
            | st.tuples(inner, st.sampled_from(["?", "{2}", "{1,3}", "*", "+?"])).map(
                lambda both: f"({both[0]}){both[1]}"
            )
        ),
        max_leaves=8,
    )


@given(patterns(), st.text("abcé A1" + string.punctuation, max_size=30))
def test_no_match_is_shorter_or_longer_than_its_pattern_says(pattern: str, text: str) -> None:
    width = width_of(pattern)
    for found in re2.compile(pattern).finditer(text):
        size = found.end() - found.start()
        assert width.shortest <= size
        assert width.longest is None or size <= width.longest
