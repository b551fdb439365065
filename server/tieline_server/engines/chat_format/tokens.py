"""Text to token ids, in the vocabulary of one model.

A template writes special tokens by their names; in what a user writes the same letters are text.
So text comes in two kinds (``Trusted``, plain ``str``), and only the first is searched. Text runs
on across the border of the two: ids are those of the whole.
"""

import re
from collections.abc import Callable, Iterable, Sequence
from typing import Final, Protocol

from tieline_server.engines.bpe import Vocabulary
from tieline_server.engines.chat_format.gguf_metadata import Metadata


class Trusted(str):
    """Text of a template, in which the names of special tokens are special tokens."""

    __slots__ = ()


class Words(Protocol):
    """The model's ordinary tokens."""

    def encode(self, text: str) -> list[int]:
        """The ids of ``text``, none of them special."""
        ...

    def split(self, text: str, count: int, last: int) -> list[int] | None:
        """The ids of text that was sampled as so many, of which the last one is known."""
        ...


Split = Callable[[str, int, int], Sequence[int] | None]
"""``split(text, count, last)``: the ids of text of ``count`` tokens, of which one is known."""


class OwnWords:
    """A vocabulary that ``engines.bpe`` knows: exact, and ten times as fast as the runtime's."""

    quick: Final = True

    def __init__(self, ranks: dict[bytes, int], size: int) -> None:
        self._size = size
        self._vocabulary = Vocabulary(_all_bytes(ranks, size))

    def encode(self, text: str) -> list[int]:
        """The ids of ``text``."""
        ids = self._vocabulary.encode(text)
        # A few control characters have no token. The model's own tokeniser drops them too.
        if ids and max(ids) >= self._size:
            return [each for each in ids if each < self._size]
        return ids

    def split(self, text: str, count: int, last: int) -> list[int] | None:
        """The ids of text that was sampled as so many, of which the last one is known."""
        return self._vocabulary.split(text, count, last)


class RuntimeWords:
    """Any other vocabulary, by the runtime's own tokeniser."""

    quick: Final = False

    def __init__(self, tokenise: Callable[[str], list[int]]) -> None:
        self.encode = tokenise

    def split(self, text: str, count: int, last: int) -> list[int] | None:
        """The ids of text that was sampled as so many, of which the last one is known."""
        ids = self.encode(text)
        return ids if len(ids) == count and ids[-1] == last else None


class Tokens:
    """The whole vocabulary of a model.

    ``tokenise`` is asked where the vocabulary is not one that we know, a millisecond each time:
    ``quick`` says that it is not.
    """

    def __init__(self, metadata: Metadata, tokenise: Callable[[str], list[int]]) -> None:
        self.special: Final = metadata.special
        named = {**metadata.added, **metadata.special}
        self._named = named
        self._words: OwnWords | RuntimeWords = RuntimeWords(tokenise)
        if metadata.ranks is not None:
            size = 1 + max([*metadata.ranks.values(), *named.values()])
            self._words = OwnWords(metadata.ranks, size)
        self.quick: Final = self._words.quick
        # Longer names first: one may begin with another.
        names = sorted(map(re.escape, named), key=len, reverse=True)
        self._names = re.compile("(" + "|".join(names) + ")") if names else None

    def split(self, text: str, count: int, last: int) -> list[int] | None:
        """The ids of text that was sampled as so many, of which the last one is known."""
        return self._words.split(text, count, last)

    def encode(self, *texts: str) -> list[int]:
        """The ids of ``texts`` one after the other, those that are no :class:`Trusted` as text."""
        ids: list[int] = []
        run: list[str] = []
        for part, special in self._parts(texts):
            if special is None:
                run.append(part)
                continue
            ids += self._encoded(run)
            run.clear()
            ids.append(special)
        return ids + self._encoded(run)

    def _encoded(self, run: list[str]) -> list[int]:
        text = "".join(run)
        return self._words.encode(text) if text else []

    def _parts(self, texts: Iterable[str]) -> Iterable[tuple[str, int | None]]:
        for text in texts:
            if self._names is None or not isinstance(text, Trusted):
                yield text, None
                continue
            for part in self._names.split(text):
                yield part, self._named.get(part)


def _all_bytes(ranks: dict[bytes, int], size: int) -> dict[bytes, int]:
    """``ranks`` with an id beyond the vocabulary for each byte that has no token."""
    missing = [byte for byte in range(256) if bytes([byte]) not in ranks]
    return ranks | {bytes([byte]): size + index for index, byte in enumerate(missing)}
