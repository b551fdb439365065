"""Whether a text is one that a grammar admits, by the library that the runtime samples by."""

import re
from collections.abc import Sequence

import llguidance
from llguidance import LLMatcher, LLTokenizer
from msgspec.structs import replace

from tests.support.engine_contract import prompt
from tieline_server.core.create.settings import Settings
from tieline_server.engines.chat_format.constrain import Speech, constraint_of

END = 256


class ByteTokens:
    """A token for each byte, and for each special token."""

    eos_token_id = END
    bos_token_id = END

    def __init__(self, special: Sequence[str]) -> None:
        self.ids = {name: END + 1 + at for at, name in enumerate(special)}
        self.tokens = [bytes([byte]) for byte in range(END)]
        self.tokens += [b"\xff<end>", *(b"\xff" + name.encode() for name in special)]
        self.special_token_ids = [END, *self.ids.values()]

    def __call__(self, text: bytes | str) -> list[int]:
        return list(text.encode() if isinstance(text, str) else text)

    def encode(self, text: str, told: Sequence[str]) -> list[int]:
        """The ids of text in which ``told`` are special tokens."""
        names = sorted(map(re.escape, told), key=len, reverse=True)
        parts = re.split("(" + "|".join(names) + ")", text) if names else [text]
        ids: list[int] = []
        for part in parts:
            ids += [self.ids[part]] if part in told else self(part)
        return ids


class Grammar:
    """The grammar of a create for a model that writes like this."""

    def __init__(self, speech: Speech, settings: Settings | None = None) -> None:
        self._tokens = ByteTokens([*speech.special])
        self._speech = speech = replace(speech, special=self._tokens.ids)
        settings = settings or prompt().settings
        found = constraint_of(settings.tools.offered, settings, speech).grammar
        assert found is not None
        self._grammar = found
        self._tokenizer = LLTokenizer(llguidance.TokenizerWrapper(self._tokens))

    def admits(self, text: str, *, ends: str | None = None) -> bool:
        """Whether all of ``text`` may be sampled, and the token ``ends`` behind it."""
        ids = self._tokens.encode(text, self._speech.told)
        ids.append(self._tokens.ids[ends or self._speech.end])
        matcher = LLMatcher(self._tokenizer, self._grammar)
        return matcher.try_consume_tokens(ids) == len(ids) and not matcher.get_error()
