"""What samples: a module or folder for each engine, and what several of them share.

A new engine is a module or folder here and a line in :data:`ENGINES`.
"""

import importlib
from typing import Any, Final

from tieline.errors import TielineError, how_to_install
from tieline_server.engines.base import Engine

ENGINES: Final[dict[str, str]] = {
    "llama": "tieline_server.engines.llama:LlamaEngine",
    "scripted": "tieline_server.engines.scripted:ScriptedEngine",
    "upstream": "tieline_server.engines.upstream:UpstreamEngine",
}
"""Engine name -> import path of its class."""

EXTRAS: Final[dict[str, str]] = {
    "llama": "llama",
    "scripted": "server",
    "upstream": "server",
}
"""Engine name -> the extra that brings what it imports."""


READ_ONCE: Final[dict[str, str]] = {"scripted": "tieline_server.engines.bpe:shipped"}
"""Engine name -> what reads the data that every engine of this kind shares in a process."""


class EngineMissing(TielineError):
    """An engine cannot be had; the message is one line, for who starts the server."""


def load(name: str, /, **options: Any) -> Engine:
    """Builds the engine of this name; ``options`` are its constructor's.

    Nothing of an engine is imported before. Raises :class:`EngineMissing` when there is no such
    engine or when a package that it needs is not installed, and what the constructor raises.
    """
    if name not in ENGINES:
        raise EngineMissing(f"no engine '{name}'; known are: {', '.join(sorted(ENGINES))}")
    module, _, kind = ENGINES[name].partition(":")
    try:
        engine: Engine = getattr(importlib.import_module(module), kind)(**options)
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package in ("tieline", "tieline_server"):
            raise
        raise EngineMissing(
            f"the {name} engine needs the package '{package}': {how_to_install(EXTRAS[name])}"
        ) from None
    return engine


def prepare(name: str) -> None:
    """Imports what an engine needs and reads what it shares; what is missing, ``load`` says."""
    for path in (ENGINES.get(name), READ_ONCE.get(name)):
        if path is None:
            continue
        module, _, read = path.partition(":")
        try:
            found = getattr(importlib.import_module(module), read)
        except ModuleNotFoundError:
            continue
        if path == READ_ONCE.get(name):
            found()
