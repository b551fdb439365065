"""Safety classifiers: what goes in is read once, what comes out is read before it leaves.

A new guard is a file in this folder and a line in :data:`GUARDS`. Neither the core nor an engine
nor a transport knows of guards: :class:`~tieline_server.guards.guarded.GuardedEngine` is an
engine around another one.
"""

import importlib
from typing import Final

from tieline_server.config.toml_tables import GuardSettings
from tieline_server.guards.base import Guard

GUARDS: Final[dict[str, str]] = {
    "pattern": "tieline_server.guards.pattern:PatternGuard",
    "remote": "tieline_server.guards.remote:RemoteGuard",
}
"""Kind of guard -> import path of its class."""


def load(name: str, settings: GuardSettings, *, key: str | None = None) -> Guard:
    """Builds the guard of a table; ``key`` is what a remote one shows.

    Nothing of a guard is imported before. Raises :class:`~tieline_server.guards.base.GuardError`
    of one line.
    """
    module, _, kind = GUARDS[settings.kind].partition(":")
    guard: Guard = getattr(importlib.import_module(module), kind).of(name, settings, key=key)
    return guard
