"""Small GGUF files: a head of key-value pairs, no tensors."""

import struct
from pathlib import Path
from typing import Any

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
