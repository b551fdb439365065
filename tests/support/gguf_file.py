"""GGUF files: small ones, a head of key-value pairs without tensors, and copies of real ones."""

import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

ALIGNMENT = 32
"""Of a file's tensors, where it does not say otherwise."""

LETTERS = [chr(code) for code in range(33, 127)]

CHATML = (
    "{% for m in messages %}{{'<|im_start|>' + m['role'] + '\\n' + m['content'] + '<|im_end|>\\n'}}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)

PAIRS: dict[str, Any] = {
    "general.architecture": "llama",
    "llama.context_length": 512,
    "llama.rope": 0.5,
    "tokenizer.ggml.model": "gpt2",
    "tokenizer.ggml.pre": "smollm",
    "tokenizer.ggml.tokens": ["<|im_start|>", "<|im_end|>", *LETTERS, "Ġ", "Ġthe"],
    "tokenizer.ggml.token_type": [3, 3, *[1] * (len(LETTERS) + 2)],
    "tokenizer.ggml.nested": [["a"], ["b"]],
    "tokenizer.chat_template": CHATML,
    "tokenizer.ggml.flag": True,
}


def write(path: Path, *, version: int = 3, **changes: Any) -> Path:
    """Writes a file with ``PAIRS``; ``changes`` names pairs with ``__`` for dots, None drops."""
    renamed = {name.replace("__", "."): value for name, value in changes.items()}
    pairs = {name: value for name, value in {**PAIRS, **renamed}.items() if value is not None}
    body = b"".join(_string(name) + _typed(value) for name, value in pairs.items())
    path.write_bytes(struct.pack("<4sIQQ", b"GGUF", version, 0, len(pairs)) + body)
    return path


def retold(source: Path, path: Path, *, template: str, renamed: Mapping[str, str]) -> Path:
    """Copies a model with another chat template, and some special tokens by other names."""
    whole = source.read_bytes()
    (count,) = struct.unpack_from("<Q", whole, 16)
    reader = Reader(memoryview(whole))
    pairs = []
    for _ in range(count):
        name, value = reader.pair()
        if name == "tokenizer.chat_template":
            value = _typed(template)
        elif name == "tokenizer.ggml.tokens":
            value = _renamed(value, renamed)
        pairs.append(_string(name) + value)
    tensors = reader.at
    for _ in range(struct.unpack_from("<Q", whole, 8)[0]):
        reader.tensor()
    data = _aligned(reader.at)
    head = whole[:24] + b"".join(pairs) + whole[tensors : reader.at]
    path.write_bytes(head.ljust(_aligned(len(head)), b"\0") + whole[data:])
    return path


def _aligned(at: int) -> int:
    return -(-at // ALIGNMENT) * ALIGNMENT


def _renamed(value: bytes, renamed: Mapping[str, str]) -> bytes:
    """An array of strings with some of them replaced."""
    for old, new in renamed.items():
        assert value.count(_string(old)) == 1
        value = value.replace(_string(old), _string(new))
    return value


class Reader:
    """A place in a GGUF file, behind its 24 bytes of counts."""

    SIZES: ClassVar = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}

    def __init__(self, data: memoryview) -> None:
        self._data = data
        self.at = 24

    def pair(self) -> tuple[str, bytes]:
        """A name, and its value as it is written, with its type."""
        name = self._text().decode()
        begin = self.at
        self._value(self._number("<I"))
        return name, bytes(self._data[begin : self.at])

    def tensor(self) -> None:
        """What is said of one tensor."""
        self._text()
        dimensions = self._number("<I")
        self.at += 8 * dimensions + 4 + 8

    def _value(self, kind: int) -> None:
        if kind == 8:
            self._text()
        elif kind == 9:
            element, count = self._number("<I"), self._number("<Q")
            if element in self.SIZES:
                self.at += count * self.SIZES[element]
            else:
                for _ in range(count):
                    self._value(element)
        else:
            self.at += self.SIZES[kind]

    def _text(self) -> bytes:
        size = self._number("<Q")
        self.at += size
        return bytes(self._data[self.at - size : self.at])

    def _number(self, form: str) -> int:
        (number,) = struct.unpack_from(form, self._data, self.at)
        self.at += struct.calcsize(form)
        return int(number)


def _string(text: str) -> bytes:
    data = text.encode()
    return struct.pack("<Q", len(data)) + data


def _typed(value: Any) -> bytes:
    kind, data = _value(value)
    return struct.pack("<I", kind) + data


def _value(value: Any) -> tuple[int, bytes]:
    match value:
        case bool():
            return 7, struct.pack("<?", value)
        case str():
            return 8, _string(value)
        case int():
            return 4, struct.pack("<I", value)
        case float():
            return 6, struct.pack("<f", value)
        case list():
            elements = [_value(each) for each in value]
            head = struct.pack("<IQ", elements[0][0], len(value))
            return 9, head + b"".join(data for _, data in elements)
    raise TypeError(type(value))
