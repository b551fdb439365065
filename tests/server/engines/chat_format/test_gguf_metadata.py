"""The head of a GGUF file."""

from pathlib import Path

import pytest

from tests.support import gguf_file
from tieline_server.engines.chat_format.gguf_metadata import read
from tieline_server.models.packaged import ModelError, find


def test_the_packaged_model_has_its_vocabulary_template_and_context() -> None:
    metadata = read(find())
    assert metadata.ranks is not None
    assert len(metadata.ranks) + len(metadata.special) == 49_152
    assert metadata.special["<|im_end|>"] == 2
    assert metadata.ranks[b" the"] > metadata.ranks[b"t"]
    assert "<|im_start|>" in metadata.template
    assert metadata.context_length == 8192


def test_it_is_what_the_reference_reader_says() -> None:
    from gguf import GGUFReader

    fields = GGUFReader(find()).fields
    tokens = fields["tokenizer.ggml.tokens"].contents()
    metadata = read(find())
    by_id = {token_id: token for token, token_id in metadata.special.items()}
    assert [by_id[each] for each in sorted(by_id)] == tokens[: len(by_id)]
    assert metadata.template == fields["tokenizer.chat_template"].contents()
    # Letters that stand for bytes are one for one: the lengths say that each is in its place.
    assert metadata.ranks is not None
    lengths = {token_id: len(token) for token, token_id in metadata.ranks.items()}
    assert all(lengths[index] == len(tokens[index]) for index in lengths)


def test_every_kind_of_value_is_read(tmp_path: Path) -> None:
    metadata = read(gguf_file.write(tmp_path / "small.gguf"))
    assert metadata.special == {"<|im_start|>": 0, "<|im_end|>": 1}
    assert metadata.ranks is not None
    assert metadata.ranks[b" the"] == len(gguf_file.LETTERS) + 3
    assert metadata.context_length == 512


@pytest.mark.parametrize(
    "content", [b"", b"hello", b"GGUF", b"GGUF\x03\0\0\0" + b"\xff" * 40], ids=len
)
def test_what_is_no_gguf_is_refused_in_one_line(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "bad.gguf"
    path.write_bytes(content)
    with pytest.raises(ModelError, match="is not a GGUF model that can be read") as caught:
        read(path)
    assert "\n" not in str(caught.value)


def test_a_file_cut_anywhere_in_its_head_is_refused(tmp_path: Path) -> None:
    whole = gguf_file.write(tmp_path / "whole.gguf").read_bytes()
    path = tmp_path / "cut.gguf"
    for size in range(0, len(whole), 37):
        path.write_bytes(whole[:size])
        with pytest.raises(ModelError):
            read(path)


def test_a_version_that_is_not_known_and_a_model_without_a_template_are_refused(
    tmp_path: Path,
) -> None:
    path = tmp_path / "other.gguf"
    with pytest.raises(ModelError, match="not a GGUF model"):
        read(gguf_file.write(path, version=1))
    with pytest.raises(ModelError, match="the model has no chat template"):
        read(gguf_file.write(path, tokenizer__chat_template=None))


def test_a_vocabulary_of_another_kind_is_left_to_the_runtime(tmp_path: Path) -> None:
    path = tmp_path / "other.gguf"
    tokens = gguf_file.PAIRS["tokenizer.ggml.tokens"]
    types = [3, 3, 4, *[1] * (len(tokens) - 3)]
    metadata = read(
        gguf_file.write(
            path,
            tokenizer__ggml__model="llama",
            tokenizer__ggml__pre=None,
            tokenizer__ggml__token_type=types,
            tokenizer__ggml__bos_token_id=0,
            tokenizer__ggml__add_bos_token=True,
        )
    )
    assert metadata.ranks is None
    assert metadata.added == {tokens[2]: 2}
    assert (metadata.bos, metadata.eos, metadata.begins) == ("<|im_start|>", "", True)
    assert read(gguf_file.write(path, tokenizer__ggml__pre="qwen2")).ranks is None
