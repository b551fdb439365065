"""What samples: a module or folder for each engine, and what several of them share.

A new engine is a module or folder here and a line in :data:`ENGINES`. Its settings are fields of
the configuration, which its :class:`~tieline_server.engines.base.EngineKind` alone reads.
"""

import importlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Final, NamedTuple

from tieline.errors import TielineError, how_to_install
from tieline_server.engines.base import Engine, EngineKind, Opening


class Entry(NamedTuple):
    """Where the kind of an engine is, and which extra brings the packages that it imports."""

    path: str
    extra: str = "server"


ENGINES: Final[dict[str, Entry]] = {
    "llama": Entry("tieline_server.engines.llama:LlamaKind", extra="llama"),
    "scripted": Entry("tieline_server.engines.scripted:ScriptedKind"),
    "upstream": Entry("tieline_server.engines.upstream:UpstreamKind"),
}
"""The name of an engine in the settings -> its kind. Nothing is imported before it is asked for."""


class EngineMissing(TielineError):
    """An engine cannot be had; the message is one line, for who starts the server."""


def kind_of(name: str) -> EngineKind:
    """The kind of this name; raises :class:`EngineMissing` where there is no such engine.

    It does so as well where a package that the engine needs is not installed.
    """
    if name not in ENGINES:
        raise EngineMissing(f"no engine '{name}'; known are: {', '.join(sorted(ENGINES))}")
    module, _, kind = ENGINES[name].path.partition(":")
    with _packages_of(name):
        found: EngineKind = getattr(importlib.import_module(module), kind)()
    return found


def load(name: str, opening: Opening) -> Engine:
    """Opens an engine of this kind; raises as :func:`kind_of` does, and what opening it raises."""
    kind = kind_of(name)
    with _packages_of(name):
        return kind.open(opening)


def prepare(name: str) -> None:
    """Imports what an engine needs and reads what it shares; what is missing, ``load`` says."""
    with suppress(EngineMissing, ModuleNotFoundError):
        kind_of(name).prepare()


@contextmanager
def _packages_of(name: str) -> Iterator[None]:
    """Says of a package that is missing which engine needs it, and how it is installed."""
    try:
        yield
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package in ("tieline", "tieline_server"):
            raise
        install = how_to_install(ENGINES[name].extra)
        raise EngineMissing(f"the {name} engine needs the package '{package}': {install}") from None
