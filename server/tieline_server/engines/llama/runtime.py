"""The typed boundary to ``xllamacpp``: llama.cpp's server inside this process.

``Runtime.complete`` blocks the thread that calls it and reports through a callback; a thread for
each slot may call it, and llama.cpp batches them. The settings here were measured on two cores:

* one thread decodes, two prefill, and OpenMP does not spin (``GOMP_SPINCOUNT``): spinning made
  decoding up to five times slower next to other work;
* flash attention is off (decoding is a quarter faster without it on a CPU);
* each slot has a KV cache of its own: in a unified one every step also looks at what idle slots
  keep, which halved the speed next to two idle sessions of 1,500 tokens;
* batches of 128 tokens: a prefill can be cancelled at each.

The library also opens an HTTP port and cannot be told not to. It listens on 127.0.0.1 only and
wants a key that no client knows.
"""

import os
import secrets
import urllib.request
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any, Final, Protocol, cast

import msgspec
from msgspec import Raw, Struct

from tieline.errors import how_to_install
from tieline_server.models.packaged import ModelError

BATCH: Final = 128
"""Tokens of a prefill that are computed at once."""

TOKENISE_TIMEOUT: Final = 60.0
DECODE_THREADS: Final = 1
PREFILL_THREADS: Final = 2


class Progress(Struct, frozen=True, gc=False):
    """Of the prompt's ``total`` tokens, ``cached`` were there already and ``done`` are now."""

    total: int
    cached: int
    done: int


class Text(Struct, frozen=True, gc=False):
    """The next text, and how many tokens have been sampled so far. Whole code points only.

    ``ids`` ends with the newest token; where a code point took several, the library does not tell
    the others. None: it is not known.
    """

    text: str
    sampled: int
    ids: tuple[int, ...] | None
    logprobs: tuple[Raw, ...] = ()


class End(Struct, frozen=True, kw_only=True, gc=False):
    """The answer is over: by itself (``stop``) or by its limit (``length``). Counts are final.

    ``prefilled_tokens`` are those of the prompt that were computed: all but what was in the
    cache, and never none: llama.cpp computes the last one again even where all of them were.
    """

    reason: str
    input_tokens: int
    prefilled_tokens: int
    output_tokens: int
    prefill_ms: float
    decode_ms: float


class Failure(Struct, frozen=True, gc=False):
    """The library gave up. ``kind`` is its word for why, never text for a client."""

    kind: str


Report = Progress | Text | End | Failure


class Completion(Struct, frozen=True, kw_only=True):
    """One answer to be sampled, in slot ``slot``; ``fresh`` empties the slot's cache first."""

    ids: list[int]
    slot: int = 0
    fresh: bool = False
    max_tokens: int
    temperature: float
    top_p: float
    min_p: float = 0.0
    """Tokens less likely than this part of the likeliest one are left out."""
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    grammar: str | None = None
    """LLGuidance's form of Lark, or None for no constraint."""
    told: tuple[str, ...] = ()
    """Special tokens that are to be seen in the text; others are not."""
    logprobs: int | None = None
    """Alternatives to report with each token, or None for no probabilities at all."""

    def body(self) -> dict[str, Any]:
        """The request as the library takes it."""
        body: dict[str, Any] = {
            "prompt": self.ids,
            "n_predict": self.max_tokens,
            "temperature": self.temperature,
            "top_p": self.top_p,
            "min_p": self.min_p,
            "presence_penalty": self.presence_penalty,
            "frequency_penalty": self.frequency_penalty,
            "stream": True,
            "id_slot": self.slot,
            "cache_prompt": not self.fresh,
            "return_progress": True,
            "timings_per_token": True,
            # The ids of what is sampled, which otherwise come only with probabilities; those
            # cost a sort of the vocabulary a token.
            "verbose": True,
            "return_tokens": True,
        }
        if self.grammar is not None:
            body["grammar"] = self.grammar
        if self.told:
            body["preserved_tokens"] = list(self.told)
        if self.logprobs is not None:
            body["logprobs"] = max(1, self.logprobs)
        return body


_FIRST: Final = Completion(ids=[0], max_tokens=1, temperature=0.0, top_p=1.0)
"""The least that makes a loaded model answer."""


class _Tokens(Struct, frozen=True):
    tokens: list[int]


class _Server(Protocol):
    """What we use of ``xllamacpp.Server``, which has no type hints."""

    listening_address: str

    def handle_completions(
        self, body: dict[str, Any], callback: Callable[[dict[str, Any]], bool]
    ) -> None: ...


class Runtime:
    """A loaded model. Loading takes about a second.

    ``slots`` answers run side by side, each with ``context`` tokens of its own (22.5 KiB of
    memory a token for the packaged model). Raises :class:`ModelError` when ``xllamacpp`` is not
    installed or the file cannot be loaded.
    """

    def __init__(self, path: Path, *, slots: int, context: int) -> None:
        # Read by libgomp when the library loads, never again.
        os.environ.setdefault("GOMP_SPINCOUNT", "0")
        try:
            library = import_module("xllamacpp")
        except ImportError as error:
            raise ModelError(f"xllamacpp is not installed: {how_to_install('llama')}") from error
        parameters = _parameters(library, path, slots=slots, context=context)
        self._key: str = parameters.api_keys[0]
        try:
            self._server: _Server | None = library.Server(parameters)
        except RuntimeError as error:
            raise ModelError(f"{path} cannot be loaded by llama.cpp") from error
        # A stop that comes before the library's own thread has begun its loop is forgotten there,
        # and `close` would wait for that thread for ever: what has been answered shows that it
        # runs.
        self.complete(_FIRST, lambda report: True)

    @property
    def address(self) -> str:
        """Where the library's own HTTP port listens."""
        return self._loaded().listening_address

    def tokenise(self, text: str) -> list[int]:
        """The ids of ``text``, none of them special: what only the model's own tokeniser knows.

        By the library's HTTP port, which alone offers it; takes about a millisecond.
        """
        body = msgspec.json.encode({"content": text, "add_special": False, "parse_special": False})
        headers = {"Authorization": f"Bearer {self._key}", "Content-Type": "application/json"}
        asked = urllib.request.Request(f"{self.address}/tokenize", body, headers)
        with urllib.request.urlopen(asked, timeout=TOKENISE_TIMEOUT) as answer:
            return msgspec.json.decode(answer.read(), type=_Tokens).tokens

    def complete(self, completion: Completion, report: Callable[[Report], bool]) -> None:
        """Samples one answer; blocks until it is over.

        ``report(what)`` is called in this thread for each step and returns True to cancel. The
        last report is an :class:`End` or a :class:`Failure`, unless it was cancelled.
        """
        asked = completion.logprobs

        def callback(chunk: dict[str, Any]) -> bool:
            # The library swallows what a callback raises and samples on.
            try:
                return report(_read(chunk, asked))
            except Exception as error:
                return report(Failure(type(error).__name__)) or True

        self._loaded().handle_completions(completion.body(), callback)

    def close(self) -> None:
        """Frees the model and its threads. No :meth:`complete` may be running."""
        self._server = None

    def _loaded(self) -> _Server:
        if self._server is None:
            raise RuntimeError("the runtime is closed")
        return self._server


def _parameters(library: Any, path: Path, *, slots: int, context: int) -> Any:
    parameters = library.CommonParams()
    parameters.model.path = str(path)
    parameters.n_ctx = slots * context
    parameters.n_parallel = slots
    parameters.kv_unified = False
    parameters.n_batch = parameters.n_ubatch = BATCH
    parameters.cpuparams.n_threads = DECODE_THREADS
    parameters.cpuparams_batch.n_threads = PREFILL_THREADS
    disabled = library.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_DISABLED
    parameters.flash_attn_type = disabled
    # A slot's cache is all there is: no second copy in memory, which has no bound of use here.
    parameters.cache_ram_mib = 0
    parameters.fit_params = False
    # Prompts come as ids: the model's own template is not the library's to understand.
    parameters.use_jinja = False
    parameters.chat_template = "chatml"
    parameters.verbosity = 0
    parameters.hostnames = ["127.0.0.1"]
    parameters.port = 0
    parameters.api_keys = [secrets.token_urlsafe(32)]
    parameters.n_threads_http = 1
    parameters.ui = parameters.endpoint_slots = False
    return parameters


def _read(chunk: dict[str, Any], asked: int | None) -> Report:
    """What one of the library's dictionaries says."""
    if "error" in chunk:
        return Failure(str(chunk["error"].get("type", "unknown")))
    if progress := chunk.get("prompt_progress"):
        return Progress(progress["total"], progress["cache"], progress["processed"])
    choice = chunk["choices"][0]
    timings = chunk["timings"]
    if choice["finish_reason"]:
        usage = chunk["usage"]
        return End(
            reason=choice["finish_reason"],
            input_tokens=usage["prompt_tokens"],
            prefilled_tokens=timings["prompt_n"],
            output_tokens=usage["completion_tokens"],
            prefill_ms=timings["prompt_ms"],
            decode_ms=timings["predicted_ms"],
        )
    probabilities = choice["logprobs"] if asked is not None else None
    tokens = probabilities["content"] if probabilities else ()
    logprobs = tuple(_logprob(token, cast(int, asked)) for token in tokens)
    ids = tuple(chunk["__verbose"]["tokens"])
    return Text(choice["text"], timings["predicted_n"], ids, logprobs)


def _logprob(token: dict[str, Any], asked: int) -> Raw:
    members = ("token", "bytes", "logprob")
    top = [{name: each[name] for name in members} for each in token["top_logprobs"][:asked]]
    return Raw(
        msgspec.json.encode({**{name: token[name] for name in members}, "top_logprobs": top})
    )
