"""The pattern guard: what it finds, what it holds back, what it refuses, how much it reads."""

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from tieline_server.config.toml_tables import GuardSettings
from tieline_server.guards.base import GuardError, Piece
from tieline_server.guards.pattern import LARGE, PatternGuard


def guard(*patterns: str) -> PatternGuard:
    return PatternGuard("g", patterns)


def first(guard: PatternGuard, *texts: str) -> int | None:
    return asyncio.run(guard.first_flagged([Piece(text) for text in texts]))


def read(guard: PatternGuard, pieces: Sequence[str], *, escaped: bool = False) -> tuple[int, str]:
    """Where a part is flagged (-1: nowhere), and what had been cleared before the last piece."""
    watch = guard.watch(escaped=escaped)
    text = before = ""
    for piece in pieces:
        before = text[: watch.cleared]
        text += piece
        watch.read(piece, last=False)
        if watch.flagged is not None:
            return watch.flagged, before
    watch.read("", last=True)
    if watch.flagged is not None:
        return watch.flagged, text[: watch.cleared]
    assert watch.cleared == len(text)
    return -1, before


def test_the_first_piece_with_a_match_is_named() -> None:
    found = guard("bad", "w[oö]rse{1,3}")
    assert first(found, "fine", "so wörsee", "bad") == 1
    assert first(found, "fine", "good") is None
    assert first(found) is None


def test_what_is_large_is_read_beside_the_loop_and_found_as_well() -> None:
    found = guard("bad")
    assert first(found, "x" * LARGE, "bad") == 1


@pytest.mark.parametrize(
    ("pattern", "span"),
    [("bad", 3), ("b.{0,10}d|x", 12), (r"\bbad\b", 4), ("^bad", 4), ("(?i:bäd)", 3)],
)
def test_the_span_is_the_longest_match_and_one_more_where_context_decides(
    pattern: str, span: int
) -> None:
    assert guard("x", pattern).max_span == span


@pytest.mark.parametrize(
    ("pattern", "text", "at"),
    [
        ("bad", "so bad it is", 3),
        ("b.?d", "abd", 1),
        (r"\bbad\b", "a bad b", 2),
        (r"\bbad\b", "xbad badx", -1),
        (r"\bbad\b", "xbad bad", 5),
        ("bad$", "bad bad", 4),
        ("bad$", "bad bad ", -1),
        ("^bad", "xbad", -1),
        ("(?m)^bad", "x\nbad", 2),
        (r"bad\B", "bad bade", 4),
        ("ö{3}", "aöböööb", 3),
    ],
)
def test_a_match_is_found_wherever_a_text_is_cut_and_nothing_of_it_was_cleared(
    pattern: str, text: str, at: int
) -> None:
    for cut in range(len(text) + 1):
        assert read(guard(pattern), [text[:cut], text[cut:]])[0] == at
    found, before = read(guard(pattern), list(text))
    assert found == at
    if at >= 0:
        assert text[:at].startswith(before)


def test_what_no_match_can_begin_in_any_more_is_cleared_at_once() -> None:
    watch = guard("abc").watch(escaped=False)
    for count, char in enumerate("xxxxxx", start=1):
        watch.read(char, last=False)
        assert watch.cleared == max(0, count - 2)


@pytest.mark.parametrize("phrase", ["bad", "ba😀d", 'b"d', "b\nd"])
def test_a_phrase_with_escapes_in_json_text_is_found_where_it_begins(phrase: str) -> None:
    escaped = "".join(
        f"\\u{unit:04x}"
        for char in phrase
        for unit in ([ord(char)] if ord(char) < 65536 else [0xD83D, 0xDE00])
    )
    text = f'{{"q":"so {escaped}, \\n"}}'
    assert phrase in json.loads(text)["q"]
    at = text.index(escaped)
    found = guard(phrase)
    for cut in range(len(text) + 1):
        place, before = read(found, [text[:cut], text[cut:]], escaped=True)
        assert place == at
        assert text[:at].startswith(before)
    place, before = read(found, list(text), escaped=True)
    assert place == at
    assert text[:at].startswith(before)
    assert read(found, [text])[0] == -1


def test_json_text_is_read_as_it_stands_as_well() -> None:
    text = r'{"a":"\n","key": "value"}'
    assert read(guard('"key":'), list(text), escaped=True)[0] == text.index('"key"')
    assert read(guard("absent"), list(text), escaped=True)[0] == -1


@pytest.mark.parametrize(
    ("patterns", "said"),
    [
        (["ok", "(bad"], "guards.g: '(bad': RE2 refuses it: missing )"),
        (["(?=x)y"], "RE2 refuses it"),
        (["a*"], "it matches the empty text"),
        (["a+"], "has no longest match"),
        (["a.*b"], "has no longest match"),
        ([r"a\Cb"], "cannot tell how long its matches are"),
        (["a{1000}b{1000}c{1000}d{1000}e{1000}"], "a match may have 5000 characters"),
        (["\ud800"], "it is no text"),
        ([r"\pL{1000}", r"x\pL{1000}"], "too large"),
    ],
)
def test_a_pattern_that_cannot_be_had_is_one_line(patterns: list[str], said: str) -> None:
    with pytest.raises(GuardError) as caught:
        guard(*patterns)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_what_reads_input_alone_needs_no_longest_match() -> None:
    found = PatternGuard("g", ["a.*b"], applies=("input",))
    assert first(found, "xa-------b") == 0


def test_the_patterns_of_a_file_join_those_of_the_table(tmp_path: Path) -> None:
    path = tmp_path / "patterns"
    path.write_text("# a comment\n\nfrom file\n")
    settings = GuardSettings(kind="pattern", patterns=("from table",), file=path)
    found = PatternGuard.of("g", settings)
    assert first(found, "a comment", "from table") == 1
    assert first(found, "from file") == 0
    for missing in (tmp_path / "none", tmp_path):
        with pytest.raises(GuardError, match="cannot read"):
            PatternGuard.of("g", GuardSettings(kind="pattern", file=missing))
    path.write_bytes(b"\xef\xbb\xbffrom editor\r\n# a comment\r\n")
    assert first(PatternGuard.of("g", settings), "a comment", "from editor") == 1
    path.write_text("# nothing\n")
    with pytest.raises(GuardError, match="there is no pattern"):
        PatternGuard.of("g", GuardSettings(kind="pattern", file=path))


HOSTILE = ("(?:(?:a?){20}){20}b", "(?:a|aa|aaa){1,40}b", "(?:x{0,9}x{0,9}){0,9}y")


def test_the_work_of_hostile_patterns_on_hostile_text_grows_with_the_text_alone() -> None:
    found = guard(*HOSTILE)
    # What RE2 does for a character is bounded by the size of its program; what we hand it counts.
    work = []
    for size in (10_000, 20_000, 40_000):
        before = found.finder.characters
        assert first(found, "a" * size) is None
        work.append(found.finder.characters - before)
    assert work == [10_000, 20_000, 40_000]
    streamed = []
    for count in (100, 200, 400):
        before = found.finder.characters
        assert read(found, ["aaaaaaaaaa"] * count)[0] == -1
        streamed.append(found.finder.characters - before)
    # Each piece is read with what is held before it, whatever came earlier.
    assert streamed[2] - streamed[1] == 2 * (streamed[1] - streamed[0])
    assert streamed[2] <= 400 * (10 + found.max_span)
