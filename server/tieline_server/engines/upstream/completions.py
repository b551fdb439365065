"""Completions of token ids: the prompt is rendered and tokenised here, by the model's own GGUF.

What was said stays the very ids that it was sampled as, so that the upstream finds the whole
history in its prefix cache. Calls and formats are asked for by grammars or schemas of ours, in
the way that this upstream was found to keep to (``DIALECTS``), and read from the text. Owners'
prompts are kept apart there by ``cache_salt``, a keyed hash of the owner's name.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec
from msgspec import Struct

from tieline_server.core.create.settings import LOGPROBS, Settings
from tieline_server.core.effects import Prompt
from tieline_server.core.history.chain import ChainNode
from tieline_server.engines.chat_format import gguf_metadata
from tieline_server.engines.chat_format.chat_template import ChatTemplate
from tieline_server.engines.chat_format.constrain import Constraint, Rules
from tieline_server.engines.chat_format.prompt import PromptBuilder
from tieline_server.engines.upstream.completion_answer import CompletionAnswer
from tieline_server.engines.upstream.faults import Failure
from tieline_server.engines.upstream.items import Items
from tieline_server.engines.upstream.modes import Request, Sent
from tieline_server.engines.upstream.probe import Prober, UpstreamError
from tieline_server.engines.upstream.replicas import Replica

KEY: Final = "upstream.ids"

STREAMED: Final[Mapping[str, Any]] = {
    "stream": True,
    "stream_options": {"include_usage": True},
    # The ids of what is sampled: vLLM's and SGLang's name, then what llama.cpp wants for them.
    "return_token_ids": True,
    "return_tokens": True,
    "verbose": True,
    "timings_per_token": True,
}

Dialect = Callable[[str], dict[str, Any]]

GRAMMARS: Final[Sequence[Dialect]] = (
    lambda text: {"structured_outputs": {"grammar": text}},
    lambda text: {"guided_grammar": text},
    lambda text: {"grammar": text},
    lambda text: {"ebnf": text},
)
"""Ways to ask for a grammar: vLLM's, its older one, llama.cpp's with LLGuidance, SGLang's."""

SCHEMAS: Final[Sequence[Dialect]] = (
    lambda text: {"structured_outputs": {"json": msgspec.Raw(text.encode())}},
    lambda text: {"guided_json": msgspec.Raw(text.encode())},
    lambda text: {"json_schema": msgspec.Raw(text.encode())},
    lambda text: {"json_schema": text},
)
"""Ways to ask for JSON of a schema: vLLM's, its older one, llama.cpp's, SGLang's."""

ONLY_SEVEN: Final = '%llguidance {}\nstart: "7"\n'
SEVEN: Final = '{"const":7}'
"""What no model says by itself to what it is asked here."""

SENTENCE: Final = "Name a colour, then a town: für Übermut 123."
"""What two tokenizers that differ cut in different ways."""

_encode: Final = msgspec.json.Encoder().encode


class Ways(Struct, frozen=True, kw_only=True):
    """How this upstream is asked for a constraint; None where it is not."""

    grammar: Dialect | None = None
    schema: Dialect | None = None

    def members(self, constraint: Constraint) -> dict[str, Any] | None:
        """What a body has for a constraint; None where nothing can hold the upstream to it."""
        if self.grammar is not None and constraint.grammar is not None:
            return self.grammar(constraint.grammar)
        if self.schema is not None and constraint.schema is not None:
            return self.schema(constraint.schema)
        return None


class CompletionsRequest(Struct, frozen=True, kw_only=True):
    """A create, ready to be sent. ``tokens`` is how many the prompt has."""

    prompt: Prompt
    tokens: int
    body: bytes
    constraint: Constraint
    template: ChatTemplate
    loose: bool
    """Whether the answer may have white space, or another form than was asked for."""

    def to(self, replica: Replica) -> Sent:
        """The same for every replica."""
        settings = self.prompt.settings
        answer = CompletionAnswer(
            self.constraint,
            self.template.begin(self.prompt.chain, self.constraint),
            split=self.template.tokens.split,
            loose=self.loose,
            wanted=(settings.top_logprobs or 0) if LOGPROBS in settings.include else None,
        )
        return Sent(self.body, answer)


class CompletionsMode:
    """``tokenizer`` is the model's GGUF; ``salt`` names owners to the upstream.

    ``contexts`` are the models' contexts, where they are known. Raises :class:`ModelError` for a
    file that cannot be used.
    """

    path = "completions"
    counts: Sequence[str] = ()

    def __init__(
        self,
        contexts: Mapping[str, int | None],
        *,
        tokenizer: Path,
        salt: Callable[[str], str],
    ) -> None:
        metadata = gguf_metadata.read(tokenizer)
        self._file = tokenizer.name
        self._template = ChatTemplate(metadata)
        self._longest = metadata.context_length
        self._contexts = contexts
        self._salt = salt
        self._builders: dict[str, PromptBuilder] = {}
        self._ways = Ways()

    async def probe(self, prober: Prober) -> None:
        """Finds out whether the upstream reads our ids, and how it is held to a form.

        Raises :class:`UpstreamError`.
        """
        await _check_tokenizer(prober, self._template.tokens.encode(SENTENCE), self._file)
        ids = [*self._template.message("user", SENTENCE), *self._template.opening]
        asked = {"model": prober.model, "prompt": ids, "max_tokens": 1, "temperature": 0}
        status, body = await prober.post(self.path, _encode(asked))
        said = _completion_in(body) if status == 200 else None
        if said is None:
            raise UpstreamError(f"{prober.url}/{self.path} takes no token ids (status {status})")
        if said.usage is not None and said.usage.prompt_tokens not in (None, len(ids)):
            raise UpstreamError(
                f"{prober.url}/{self.path} reads {len(ids)} token ids as "
                f"{said.usage.prompt_tokens}: it is no completion of ids"
            )
        asked["max_tokens"] = 4
        self._ways = Ways(
            grammar=await _first(prober, asked, GRAMMARS, ONLY_SEVEN),
            schema=await _first(prober, asked, SCHEMAS, SEVEN),
        )

    def heavy(self, prompt: Prompt) -> bool:
        """Whether there is much to tokenise."""
        return self._builder(prompt).heavy(prompt)

    def build(self, prompt: Prompt) -> CompletionsRequest:
        """The request; raises :class:`EngineError` for what is no text, or does not fit."""
        builder = self._builder(prompt)
        whole = builder.whole(prompt)
        if whole is not None:
            ids = [_bare(whole.head), *self._ids_of(prompt), b"," + _bare(whole.opening)]
            return self._request(prompt, ids, whole.size, whole.max_tokens, whole.constraint)
        ready = builder.build(prompt)
        ids = [_bare(ready.ids)]
        return self._request(prompt, ids, len(ready.ids), ready.max_tokens, ready.constraint)

    def _ids_of(self, prompt: Prompt) -> "list[bytes | memoryview]":
        """The ids of a chain, each with a comma before it; those of a link are encoded once."""

        def step(before: Items, link: ChainNode) -> Items:
            ids = self._template.chain(link, prompt.work).ids
            return before.followed_by(b"," + _bare(ids) if ids else b"")

        return [*prompt.chain.derive(KEY, Items(buffer=bytearray()), step).pieces()]

    def _request(
        self,
        prompt: Prompt,
        ids: "list[bytes | memoryview]",
        tokens: int,
        most: int,
        constraint: Constraint,
    ) -> CompletionsRequest:
        members = self._ways.members(constraint)
        exact = constraint.grammar is None or (
            members is not None and self._ways.grammar is not None
        )
        options = {
            "max_tokens": most,
            **_sampling(prompt.settings),
            **(members or {}),
            **_ends(self._template),
            "cache_salt": self._salt(prompt.owner),
            **STREAMED,
        }
        if not ids[0]:
            ids = _without_comma(ids[1:])
        head = b'{"model":%b,"prompt":[' % _encode(prompt.model)
        return CompletionsRequest(
            prompt=prompt,
            tokens=tokens,
            body=b"".join((head, *ids, b"],", _encode(options)[1:])),
            constraint=constraint,
            template=self._template,
            loose=not exact,
        )

    def estimate(self, prompt: Prompt) -> int:
        """How many tokens the prompt has."""
        return self._builder(prompt).count(prompt)

    def counted(self, prompt: Prompt) -> bytes:
        """Nothing: the count is our own."""
        return b""

    def again(
        self, prompt: Prompt, request: Request, replica: Replica, failure: Failure
    ) -> Request | None:
        """None: what fits is known beforehand."""
        return None

    def _builder(self, prompt: Prompt) -> PromptBuilder:
        builder = self._builders.get(prompt.model)
        if builder is None:
            context = self._contexts.get(prompt.model) or self._longest
            # What samples by llguidance gets the schemas that it can follow, others the client's.
            rules = Rules(guided=self._ways.grammar is not None)
            builder = PromptBuilder(self._template, context=context, rules=rules)
            self._builders[prompt.model] = builder
        return builder


class _Usage(Struct, frozen=True):
    prompt_tokens: int | None = None


class _Choice(Struct, frozen=True):
    text: str = ""


class _Completion(Struct, frozen=True):
    choices: list[_Choice] = []
    usage: _Usage | None = None


class _Tokens(Struct, frozen=True):
    tokens: list[int]


_completion: Final = msgspec.json.Decoder(_Completion)
_tokens: Final = msgspec.json.Decoder(_Tokens)


def _completion_in(body: bytes) -> _Completion | None:
    try:
        return _completion.decode(body)
    except (msgspec.MsgspecError, RecursionError):
        return None


def _ends(template: ChatTemplate) -> dict[str, Any]:
    """What ends an answer, and which special tokens are to be seen in it."""
    ends: dict[str, Any] = {"stop_token_ids": sorted(template.speech.ends)}
    if told := template.speech.told:
        # llama.cpp's way, then vLLM's.
        ends |= {"preserved_tokens": list(told), "skip_special_tokens": False}
    return ends


async def _check_tokenizer(prober: Prober, ids: list[int], file: str) -> None:
    """Compares the upstream's tokenizer with ours where it shows it (vLLM, SGLang, llama.cpp).

    Raises :class:`UpstreamError` where they differ.
    """
    asked = {
        "model": prober.model,
        "prompt": SENTENCE,
        "content": SENTENCE,
        "add_special_tokens": False,
        "add_special": False,
    }
    status, body = await prober.post("tokenize", _encode(asked), root=True)
    try:
        theirs = _tokens.decode(body).tokens if status == 200 else ids
    except msgspec.MsgspecError:
        return
    if theirs != ids:
        raise UpstreamError(f"{prober.url} has another tokenizer than {file}")


async def _first(
    prober: Prober, asked: Mapping[str, Any], ways: Sequence[Dialect], only: str
) -> Dialect | None:
    """The first of these ways that holds the upstream to saying 7."""
    for way in ways:
        status, body = await prober.post("completions", _encode({**asked, **way(only)}))
        said = _completion_in(body) if status == 200 else None
        if said is not None and said.choices and said.choices[0].text.strip() == "7":
            return way
    return None


def _bare(ids: Sequence[int]) -> bytes:
    """Ids as JSON without the brackets."""
    return _encode(list(ids))[1:-1]


def _without_comma(pieces: "list[bytes | memoryview]") -> "list[bytes | memoryview]":
    first = next(at for at, piece in enumerate(pieces) if len(piece))
    return [pieces[first][1:], *pieces[first + 1 :]]


def _sampling(settings: Settings) -> dict[str, Any]:
    """How to sample. What the client left out, the upstream decides."""
    echo = settings.echo
    options = {
        "temperature": settings.temperature,
        "top_p": settings.top_p,
        "presence_penalty": echo.get("presence_penalty") or None,
        "frequency_penalty": echo.get("frequency_penalty") or None,
        "logprobs": max(1, settings.top_logprobs or 0) if LOGPROBS in settings.include else None,
    }
    return {name: value for name, value in options.items() if value is not None}
