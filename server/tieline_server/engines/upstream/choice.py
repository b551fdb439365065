"""Which mode an upstream is asked in: the one that the settings name, or what it offers."""

from collections.abc import Callable, Mapping
from typing import Final, Literal

from msgspec import Struct

from tieline_server.engines.upstream.chat import ChatMode
from tieline_server.engines.upstream.modes import Mode
from tieline_server.engines.upstream.probe import Prober, UpstreamError
from tieline_server.engines.upstream.responses import ResponsesMode

Name = Literal["auto", "chat", "responses"]


class Wanted(Struct, frozen=True, kw_only=True):
    """What the settings say of how an upstream is asked."""

    mode: Name = "auto"
    state: bool = False
    """Whether the upstream shall keep responses, so that a turn sends only what is new."""


Contexts = Mapping[str, int | None]

MODES: Final[Mapping[str, Callable[[Wanted, Contexts], Mode]]] = {
    "chat": lambda wanted, contexts: ChatMode(contexts),
    "responses": lambda wanted, contexts: ResponsesMode(contexts, state=wanted.state),
}
"""Name -> what makes it; the first one that the upstream has is taken, where none is named."""


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
    if wanted.mode != "auto":
        return [wanted.mode]
    if wanted.state:
        return ["responses"]
    return [*MODES]
