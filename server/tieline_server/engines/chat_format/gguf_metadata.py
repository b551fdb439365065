"""What the head of a GGUF file says of its model: vocabulary, chat template, context length.

Only the key-value pairs before the tensors are read (GGUF v3 specification, "File Structure"),
straight from a memory map: a tenth of a second for 49,152 tokens, where the ``gguf`` package,
which also describes every tensor, takes three.
"""

import mmap
import struct
from pathlib import Path
from typing import Any, Final

from msgspec import Struct

from tieline_server.models.packaged import ModelError

MAGIC: Final = b"GGUF"
VERSIONS: Final = (2, 3)
"""Versions whose key-value pairs look the same; 1 had 32-bit lengths."""

STRING: Final = 8
ARRAY: Final = 9
SCALARS: Final = {
    0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d",
}  # fmt: skip
"""Type of a value -> its ``struct`` format, little-endian."""

NORMAL: Final = 1
CONTROL: Final = 3
ADDED: Final = 4
"""Token types: ordinary, special (``LLAMA_TOKEN_TYPE_CONTROL``), added by who made the model."""

BYTE_PAIRS: Final = "gpt2"
PRETOKENIZERS: Final = ("smollm",)
"""Values of ``tokenizer.ggml.pre`` whose text is cut as ``engines.bpe`` does."""


class Metadata(Struct, frozen=True, kw_only=True):
    """What the engine needs to know of a model."""

    ranks: dict[bytes, int] | None
    """Bytes of each normal token -> its id; None where ``engines.bpe`` cuts text otherwise."""
    special: dict[str, int]
    """Text of each special token -> its id."""
    added: dict[str, int]
    """Text of each token that is one wherever a template writes it, without being special."""
    template: str
    """The chat template, in Jinja."""
    bos: str
    eos: str
    """Text of the tokens that begin and end everything; empty where there is none."""
    begins: bool
    """Whether the model wants the first of them before everything."""
    context_length: int
    """Tokens of context that the model was trained with."""


def read(path: Path) -> Metadata:
    """Reads the head of the GGUF file at ``path``.

    Raises :class:`ModelError` for a file that is no GGUF or has no chat template.
    """
    try:
        pairs = _pairs(path)
        return _metadata(pairs)
    except (struct.error, KeyError, ValueError, IndexError, OSError) as error:
        raise ModelError(f"{path} is not a GGUF model that can be read") from error


def _metadata(pairs: dict[str, Any]) -> Metadata:
    if "tokenizer.chat_template" not in pairs:
        raise ModelError("the model has no chat template: it was not made to follow instructions")
    tokens, types = pairs["tokenizer.ggml.tokens"], pairs["tokenizer.ggml.token_type"]
    kinds: dict[int, dict[str, int]] = {NORMAL: {}, CONTROL: {}, ADDED: {}}
    for token_id, (token, kind) in enumerate(zip(tokens, types, strict=True)):
        if kind in kinds:
            kinds[kind][token] = token_id
    kind_of_words = pairs["tokenizer.ggml.model"], pairs.get("tokenizer.ggml.pre", "default")
    known = kind_of_words[0] == BYTE_PAIRS and kind_of_words[1] in PRETOKENIZERS
    return Metadata(
        ranks=_ranks(kinds[NORMAL]) if known else None,
        special=kinds[CONTROL],
        added=kinds[ADDED],
        template=pairs["tokenizer.chat_template"],
        bos=_token(pairs, "bos"),
        eos=_token(pairs, "eos"),
        begins=bool(pairs.get("tokenizer.ggml.add_bos_token", False)),
        context_length=int(pairs[f"{pairs['general.architecture']}.context_length"]),
    )


def _ranks(tokens: dict[str, int]) -> dict[bytes, int]:
    letters = _letters()
    return {bytes(map(letters.__getitem__, token)): rank for token, rank in tokens.items()}


def _token(pairs: dict[str, Any], name: str) -> str:
    token_id = pairs.get(f"tokenizer.ggml.{name}_token_id")
    tokens: list[str] = pairs["tokenizer.ggml.tokens"]
    return tokens[token_id] if token_id is not None else ""


def _letters() -> dict[str, int]:
    """The printable letter that stands for each byte in a GPT-2 vocabulary -> the byte."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    letters = {chr(byte): byte for byte in printable}
    return letters | {chr(256 + index): byte for index, byte in enumerate(others)}


def _pairs(path: Path) -> dict[str, Any]:
    with (
        path.open("rb") as file,
        mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data,
    ):
        magic, version, _, count = struct.unpack_from("<4sIQQ", data, 0)
        if magic != MAGIC or version not in VERSIONS:
            raise ValueError("not a GGUF file")
        return _Reader(data, 24).pairs(count)


class _Reader:
    """A place in the file, and the values from there on."""

    __slots__ = ("_at", "_data")

    def __init__(self, data: mmap.mmap, at: int) -> None:
        self._data = data
        self._at = at

    def pairs(self, count: int) -> dict[str, Any]:
        return {self._string(): self._value(self._scalar("I")) for _ in range(count)}

    def _value(self, kind: int) -> Any:
        if kind == STRING:
            return self._string()
        if kind != ARRAY:
            return self._scalar(SCALARS[kind])
        element, count = self._scalar("I"), self._scalar("Q")
        if element in (STRING, ARRAY):
            return [self._value(element) for _ in range(count)]
        form = f"<{count}{SCALARS[element]}"
        values = struct.unpack_from(form, self._data, self._at)
        self._at += struct.calcsize(form)
        return values

    def _scalar(self, form: str) -> Any:
        (value,) = struct.unpack_from("<" + form, self._data, self._at)
        self._at += struct.calcsize("<" + form)
        return value

    def _string(self) -> str:
        start = self._at + 8
        self._at = start + struct.unpack_from("<Q", self._data, self._at)[0]
        if self._at > len(self._data):
            raise ValueError("a string runs past the end of the file")
        return self._data[start : self._at].decode("utf-8", errors="surrogateescape")
