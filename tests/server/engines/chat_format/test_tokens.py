"""Text to ids: special tokens where a template writes them, text where a user does."""

from pathlib import Path

from tests.support import gguf_file
from tieline_server.engines.chat_format import gguf_metadata
from tieline_server.engines.chat_format.gguf_metadata import Metadata
from tieline_server.engines.chat_format.tokens import Tokens, Trusted
from tieline_server.models.packaged import find


def nobody(text: str) -> list[int]:
    raise AssertionError(text)


def packaged() -> Tokens:
    return Tokens(gguf_metadata.read(find()), nobody)


def letters(text: str) -> list[int]:
    """A vocabulary of letters."""
    return [ord(letter) for letter in text]


def foreign(**changes: object) -> Tokens:
    pairs: dict[str, object] = {
        "ranks": None,
        "special": {"<s>": 1, "<s>>": 2},
        "added": {"<tool>": 3},
        "template": "",
        "bos": "<s>",
        "eos": "",
        "begins": False,
        "context_length": 1,
    }
    return Tokens(Metadata(**{**pairs, **changes}), letters)  # type: ignore[arg-type]


def test_names_of_special_tokens_are_these_only_in_trusted_text() -> None:
    tokens = packaged()
    assert tokens.encode(Trusted("<|im_start|>")) == [1]
    assert 1 not in tokens.encode("<|im_start|>")
    assert tokens.encode(Trusted("<|im_start|>user\n"), "hi", Trusted("<|im_end|>")) == [
        1,
        *tokens.encode("user\nhi"),
        2,
    ]


def test_text_runs_on_across_the_border_of_what_is_trusted() -> None:
    tokens = packaged()
    assert tokens.encode(Trusted("hel"), "lo") == tokens.encode("hello")
    assert tokens.encode(Trusted(""), "") == []


def test_the_longest_name_counts_and_added_tokens_are_tokens_too() -> None:
    tokens = foreign()
    assert tokens.encode(Trusted("a<s>>b<s><tool>")) == [97, 2, 98, 1, 3]
    assert tokens.encode("<s>") == letters("<s>")
    assert not tokens.quick
    assert packaged().quick


def test_a_model_without_special_tokens_has_text_alone() -> None:
    assert foreign(special={}, added={}).encode(Trusted("<s>")) == letters("<s>")


def test_what_was_sampled_is_split_where_that_is_known() -> None:
    assert foreign().split("ab", 2, 98) == [97, 98]
    assert foreign().split("ab", 3, 98) is None
    ids = packaged().encode("🦊")
    assert packaged().split("🦊", len(ids), ids[-1]) == ids


def test_bytes_without_a_token_are_dropped(tmp_path: Path) -> None:
    tokens = Tokens(gguf_metadata.read(gguf_file.write(tmp_path / "small.gguf")), nobody)
    assert tokens.encode("a\0b") == [*tokens.encode("a"), *tokens.encode("b")]
