"""A real byte-pair vocabulary that ships with the package (data/NOTICE), for ``tiktoken``.

Counts and pieces are those of a real model, so that what tests and benchmarks see on the wire
has the shape of real output: about four characters a token, code points cut by token borders.
"""

import codecs
import gzip
import re
from collections.abc import Callable, Iterator
from functools import cache
from importlib import resources
from itertools import chain
from typing import Final

FIRST_RANK: Final = 17
"""The ids before it are the model's special tokens, which text never becomes."""

PATTERN: Final = (
    r"\p{N}|'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?[^\s\p{L}\p{N}]+|\s+(?=\p{N})|\s+(?!\S)|\s+"
)
"""How text is cut into words before the merges: digits one by one, then as GPT-2 does."""

WORD: Final = re.compile(
    r" ?[a-zA-Z]+|[0-9]|'(?:[stmd]|re|ve|ll)| ?[^\sa-zA-Z0-9]+|\s+(?=[0-9])|\s+(?!\S)|\s+", re.ASCII
)
"""The same words, in ASCII text; the kind that most of them are is tried first."""

KNOWN: Final = 10_000
"""Words whose size in tokens is remembered, of at most ``SHORT`` characters each."""

SHORT: Final = 32

SLICE: Final = 50_000
"""Characters encoded at once: the regex engine gives up on a million spaces in a row.

It is also what :meth:`Vocabulary.pieces` does in one go, on the loop: some 20 ms.
"""


SPLIT: Final = 8
"""Tokens of a sampled text that are told apart: a code point has no more than four."""


class Sizes(dict[str, int]):
    """Word -> how many tokens it is, encoded when it is first asked for: words come again."""

    def __init__(self, encode: Callable[[str], list[int]]) -> None:
        super().__init__()
        self._encode = encode

    def __missing__(self, word: str) -> int:
        size = len(self._encode(word))
        if len(word) <= SHORT:
            if len(self) >= KNOWN:
                self.clear()
            self[word] = size
        return size


class Vocabulary:
    """Text to tokens and back.

    ``ranks`` holds the bytes of each token by its id; all 256 single bytes must be in it.
    """

    __slots__ = ("_bytes", "_encoding", "_ids", "_sizes", "_texts")

    def __init__(self, ranks: dict[bytes, int]) -> None:
        # Here, not above: the client's half of an installation does without it.
        import tiktoken

        self._encoding: tiktoken.Encoding = tiktoken.Encoding(
            "tieline", pat_str=PATTERN, mergeable_ranks=ranks, special_tokens={}
        )
        self._ids = ranks
        self._bytes = {rank: token for token, rank in ranks.items()}
        self._texts = {rank: _whole(token) for token, rank in ranks.items()}
        self._sizes = Sizes(self._encoding.encode_ordinary)

    def encode(self, text: str) -> list[int]:
        """The ids of the tokens of ``text``; what looks like a special token is plain text."""
        if len(text) <= SLICE:
            return self._encoding.encode_ordinary(text)
        return list(self._ranks(text))

    def count(self, text: str) -> int:
        """How many tokens ``text`` has."""
        if text.isascii() and len(text) <= SLICE:
            return sum(map(self._sizes.__getitem__, WORD.findall(text)))
        return len(self.encode(text))

    def pieces(self, text: str) -> Iterator[str]:
        """``text`` in pieces, one a token; empty where a token ends inside a code point.

        >>> list(shipped().pieces("hello world"))
        ['hello', ' world']
        """
        # Nothing is left in the decoder at the end: the tokens of a text are all of its bytes.
        decoder = codecs.getincrementaldecoder("utf-8")()
        whole = True
        for rank in self._ranks(text):
            piece = self._texts[rank] if whole else None
            if piece is None:
                piece = decoder.decode(self._bytes[rank])
                whole = not decoder.getstate()[0]
            yield piece

    def split(self, text: str, count: int, last: int) -> list[int] | None:
        """The ids of a text of ``count`` tokens whose last one is known; None where it has none.

        For a text that was sampled, not encoded: its tokens need not be those of ``encode``.
        """
        ids = self.encode(text)
        if len(ids) == count and ids[-1] == last:
            return ids
        data, end = text.encode(), self._bytes.get(last, b"")
        if count > SPLIT or not end or not data.endswith(end):
            return None
        found = self._cut(data[: -len(end)], count - 1)
        return None if found is None else [*found, last]

    def _cut(self, data: bytes, count: int) -> list[int] | None:
        if count == 0 or not data:
            return None if data or count else []
        for size in range(len(data) - count + 1, 0, -1):
            first = self._ids.get(data[:size])
            rest = None if first is None else self._cut(data[size:], count - 1)
            if first is not None and rest is not None:
                return [first, *rest]
        return None

    def _ranks(self, text: str) -> Iterator[int]:
        """The ids of ``text``, made as they are taken: a long answer costs nothing beforehand."""
        return chain.from_iterable(map(self._encoding.encode_ordinary, _slices(text)))


def _slices(text: str) -> Iterator[str]:
    return (text[at : at + SLICE] for at in range(0, len(text), SLICE))


def _whole(token: bytes) -> str | None:
    """The token as text, or None when it holds part of a code point."""
    try:
        return token.decode()
    except UnicodeDecodeError:
        return None


@cache
def shipped() -> Vocabulary:
    """The vocabulary of the package; takes a tenth of a second the first time."""
    data = resources.files("tieline_server.engines") / "data" / "smollm2.bpe.gz"
    return Vocabulary(read_ranks(gzip.decompress(data.read_bytes())))


def read_ranks(data: bytes) -> dict[bytes, int]:
    """Reads tokens in order of their ids, each behind a byte that tells its length.

    Bytes that the model has no token for get one behind its last, so that any text can be
    encoded: the model's own tokeniser drops them, ``tiktoken`` would panic.
    """
    ranks: dict[bytes, int] = {}
    at = 0
    while at < len(data):
        end = at + 1 + data[at]
        ranks[data[at + 1 : end]] = FIRST_RANK + len(ranks)
        at = end
    for byte in range(256):
        ranks.setdefault(bytes([byte]), FIRST_RANK + len(ranks))
    return ranks
