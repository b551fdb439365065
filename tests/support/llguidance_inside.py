"""What the llguidance inside xllamacpp says of a grammar: by its C interface, without a model."""

import ctypes
import importlib.util
from functools import lru_cache
from pathlib import Path

EOS = 256
ROOM = 4_096
"""Bytes of a message."""

_TOKENISE = ctypes.CFUNCTYPE(
    ctypes.c_size_t,
    ctypes.c_void_p,
    ctypes.c_void_p,
    ctypes.c_size_t,
    ctypes.c_void_p,
    ctypes.c_size_t,
)


class _Limits(ctypes.Structure):
    _fields_ = [
        ("max_items_in_row", ctypes.c_size_t),
        ("initial_lexer_fuel", ctypes.c_uint64),
        ("step_lexer_fuel", ctypes.c_uint64),
        ("step_max_items", ctypes.c_size_t),
        ("max_lexer_states", ctypes.c_size_t),
        ("max_grammar_size", ctypes.c_size_t),
        ("precompute_large_lexemes", ctypes.c_bool),
    ]


class _Constraint(ctypes.Structure):
    _fields_ = [
        ("tokenizer", ctypes.c_void_p),
        ("log_buffer_level", ctypes.c_uint32),
        ("log_stderr_level", ctypes.c_uint32),
        ("ff_tokens_ok", ctypes.c_bool),
        ("backtrack_ok", ctypes.c_bool),
        ("limits", _Limits),
    ]


class _Tokenizer(ctypes.Structure):
    _fields_ = [
        ("vocab_size", ctypes.c_uint32),
        ("tok_eos", ctypes.c_uint32),
        ("token_lens", ctypes.c_void_p),
        ("token_bytes", ctypes.c_void_p),
        ("tokenizer_json", ctypes.c_char_p),
        ("tokenize_assumes_string", ctypes.c_bool),
        ("tokenize_fn", _TOKENISE),
        ("use_approximate_greedy_tokenize_fn", ctypes.c_bool),
        ("tokenize_user_data", ctypes.c_void_p),
        ("slices", ctypes.c_void_p),
    ]


@lru_cache(1)
def _opened() -> tuple[ctypes.CDLL, _Constraint]:
    spec = importlib.util.find_spec("xllamacpp")
    assert spec is not None
    assert spec.origin is not None
    [path] = Path(spec.origin).parent.glob("xllamacpp*.so")
    library = ctypes.CDLL(str(path))
    library.llg_new_tokenizer.restype = ctypes.c_void_p
    lengths = (ctypes.c_uint32 * 257)(*[1] * 256, 4)
    pieces = bytes(range(256)) + b"</s>"
    asked = _Tokenizer(
        vocab_size=257,
        tok_eos=EOS,
        token_lens=ctypes.cast(lengths, ctypes.c_void_p),
        token_bytes=ctypes.cast(ctypes.c_char_p(pieces), ctypes.c_void_p),
        use_approximate_greedy_tokenize_fn=True,
    )
    message = ctypes.create_string_buffer(ROOM)
    tokenizer = library.llg_new_tokenizer(ctypes.byref(asked), message, ctypes.c_size_t(ROOM))
    assert tokenizer, message.value
    constraint = _Constraint()
    library.llg_constraint_init_set_defaults(ctypes.byref(constraint), ctypes.c_void_p(tokenizer))
    return library, constraint


def verdict(lark: str) -> tuple[int, str]:
    """0 for a grammar that is right, 1 for a warning, -1 for an error; and what it says."""
    library, constraint = _opened()
    message = ctypes.create_string_buffer(ROOM)
    code = library.llg_validate_grammar(
        ctypes.byref(constraint), b"lark", lark.encode(), message, ctypes.c_size_t(ROOM)
    )
    return code, message.value.decode()
