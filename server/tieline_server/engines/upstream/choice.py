"""Which mode an upstream is asked in: the one that the settings name, or what it offers."""

import hashlib
from collections.abc import Callable, Mapping
from pathlib import Path
from secrets import token_bytes
from typing import Final, Literal

from msgspec import Struct

from tieline_server.engines.upstream.chat import ChatMode
from tieline_server.engines.upstream.modes import Mode
from tieline_server.engines.upstream.probe import Prober, UpstreamError
from tieline_server.engines.upstream.responses import ResponsesMode

Name = Literal["auto", "chat", "completions", "responses"]


class Wanted(Struct, frozen=True, kw_only=True):
    """What the settings say of how an upstream is asked."""

    mode: Name = "auto"
    state: bool = False
    """Whether the upstream shall keep responses, so that a turn sends only what is new."""
    tokenizer: Path | None = None
    """The GGUF of the upstream's model, for completions of token ids."""
    salt: Callable[[str], str] | None = None
    """A name of an owner that says nothing of who that is."""


Contexts = Mapping[str, int | None]


def _completions(wanted: Wanted, contexts: Contexts) -> Mode:
    # Only who renders prompts waits for the import of what it needs.
    from tieline_server.engines.upstream.completions import CompletionsMode

    if wanted.tokenizer is None:
        raise UpstreamError("completions of token ids need the model's GGUF: upstream_tokenizer")
    return CompletionsMode(
        contexts, tokenizer=wanted.tokenizer, salt=wanted.salt or _salt(token_bytes(32))
    )


def _salt(key: bytes) -> Callable[[str], str]:
    """Names owners by a keyed hash."""
    return lambda owner: hashlib.blake2b(owner.encode(), key=key, digest_size=16).hexdigest()


MODES: Final[Mapping[str, Callable[[Wanted, Contexts], Mode]]] = {
    "chat": lambda wanted, contexts: ChatMode(contexts),
    "completions": _completions,
    "responses": lambda wanted, contexts: ResponsesMode(contexts, state=wanted.state),
}
"""Name -> what makes it."""

OFFERED: Final = ("chat", "responses")
"""Where none is named, the first of these that the upstream has."""


async def chosen(wanted: Wanted, prober: Prober, contexts: Contexts) -> Mode:
    """The mode, ready to be used; raises :class:`UpstreamError` of one line."""
    names = _names(wanted)
    missing: str | None = None
    for name in names:
        mode = MODES[name](wanted, contexts)
        reason = await prober.missing(mode.path)
        if reason is None:
            await mode.probe(prober)
            return mode
        missing = missing or reason
    raise UpstreamError(missing or "the upstream has no mode")


def _names(wanted: Wanted) -> list[str]:
    if wanted.state:
        if wanted.mode not in ("auto", "responses"):
            raise UpstreamError(f"upstream_state is of the mode responses, not of {wanted.mode}")
        return ["responses"]
    if wanted.mode != "auto":
        return [wanted.mode]
    return ["completions"] if wanted.tokenizer is not None else [*OFFERED]
