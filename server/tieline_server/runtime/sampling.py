"""The engines that sample, by the settings: their guards, and the names of their models.

An engine that asks other servers may be away as the process starts: its models come with it.
"""

import asyncio
from collections.abc import Callable, Hashable, Mapping
from contextlib import AsyncExitStack
from typing import Final, NamedTuple

from tieline_server import engines, guards
from tieline_server.config import Config, ConfigError
from tieline_server.config.toml_tables import ModelSettings
from tieline_server.core.values import Defaults, Resolved
from tieline_server.engines.base import Engine, EngineAway, Opening, Probing
from tieline_server.engines.presence import Presence
from tieline_server.guards.base import Counts, Guard
from tieline_server.guards.guarded import GuardedEngine
from tieline_server.models.catalog import ALL, ModelCatalog

Salt = Callable[[str], str]
"""A name for an owner that says nothing of who that is."""

Told = Callable[[str, str | None, bool], None]
"""Hears of an engine why it is away, or None; and whether no engine is there now."""


DEFAULT: Final = ModelSettings.model_validate({})
"""A model without a table."""


class Sampling(NamedTuple):
    """The engines that sample, and the names of their models."""

    engines: dict[str, Engine]
    catalog: ModelCatalog


async def open_sampling(
    config: Config, stack: AsyncExitStack, *, salt: Salt, counts: Counts, told: Told
) -> Sampling:
    """The engines with their guards, and the models; those that are not there yet come later.

    ``stack`` closes them. Raises :class:`TielineError`.
    """
    by_name, missing = await open_engines(config, stack, salt)
    opened_guards = open_guards(config, stack)
    catalog = catalog_of(config, by_name)
    sampling = Sampling(guarded(config, by_name, catalog, opened_guards, counts), catalog)

    def arrived() -> None:
        now = catalog_of(config, by_name)
        sampling.engines.update(guarded(config, by_name, now, opened_guards, counts))
        catalog.become(now)

    def changed(name: str, reason: str | None) -> None:
        told(name, reason, presence.all_away)

    presence = Presence(by_name, arrived=arrived, changed=changed)
    for name, error in missing.items():
        presence.missing(name, error)
    stack.push_async_callback(_ended, asyncio.create_task(presence.watch()))
    return sampling


async def open_engines(
    config: Config, stack: AsyncExitStack, salt: Salt | None = None
) -> tuple[dict[str, Engine], dict[str, EngineAway]]:
    """The engines that the settings ask for, by name, their models loaded; ``stack`` closes them.

    Of those that ask others, the second says which do not answer yet. ``salt`` names owners to
    others without saying who they are. Blocks for as long as that takes. Raises
    :class:`TielineError`.
    """
    by_name: dict[str, Engine] = {}
    missing: dict[str, EngineAway] = {}
    for name, table in _wanted(config).items():
        opening = Opening(config, name, table, salt)
        by_name[name] = engine = engines.load(config.engine_of(table), opening)
        stack.push_async_callback(engine.close)
        if isinstance(engine, Probing):
            try:
                await engine.probe()
            except EngineAway as error:
                missing[name] = error
    return by_name, missing


def _wanted(config: Config) -> dict[str, ModelSettings]:
    """Name of each engine that is used -> the first model that it samples."""
    tables: dict[str, ModelSettings] = {}
    for table in config.models.values() or [DEFAULT]:
        tables.setdefault(_engine_name(config, table), table)
    return tables


def _engine_name(config: Config, table: ModelSettings) -> str:
    kind = config.engine_of(table)
    return _names(config)[kind, engines.kind_of(kind).settings_of(config, table)]


def _names(config: Config) -> dict[tuple[str, Hashable], str]:
    """Kind and settings of each engine -> its name. Clients see it, and none of its settings."""
    names: dict[tuple[str, Hashable], str] = {}
    shared = [DEFAULT] if config.engine in config.engines else []
    for table in (*shared, *config.models.values()):
        kind = config.engine_of(table)
        settings = engines.kind_of(kind).settings_of(config, table)
        if settings is not None:
            number = 1 + sum(named == kind for named, _ in names)
            names.setdefault((kind, settings), f"{kind}-{number}" if number > 1 else kind)
    return names


def open_guards(config: Config, stack: AsyncExitStack) -> dict[str, Guard]:
    """The guards of the settings by name; ``stack`` closes them. Raises :class:`TielineError`."""
    by_name: dict[str, Guard] = {}
    for name, table in config.guards.items():
        key = config.key_of_guard(table) if table.kind == "remote" else None
        by_name[name] = guard = guards.load(name, table, key=key)
        stack.push_async_callback(guard.close)
    return by_name


def guarded(
    config: Config,
    by_name: Mapping[str, Engine],
    catalog: ModelCatalog,
    opened_guards: Mapping[str, Guard],
    counts: Counts,
) -> dict[str, Engine]:
    """The engines with guards around those whose models have any, the others as they are."""
    everything = tuple(opened_guards)
    chosen: dict[str, dict[str, list[Guard]]] = {name: {} for name in by_name}
    for entry in catalog.entries():
        table = config.models.get(entry.model)
        names = everything if table is None else config.guards_of(table)
        if names:
            chosen[entry.engine][entry.model] = [opened_guards[name] for name in names]
    return {
        name: GuardedEngine(engine, chosen[name], counts) if chosen[name] else engine
        for name, engine in by_name.items()
    }


def catalog_of(config: Config, by_name: Mapping[str, Engine]) -> ModelCatalog:
    """The models of the settings, or every model of every engine; in order.

    Raises :class:`TielineError`.
    """
    waiting = {
        name for name, each in by_name.items() if isinstance(each, Probing) and not each.probed
    }
    if config.models:
        tables = config.models.items()
        aliases = [(alias, name) for name, table in tables for alias in table.aliases]
        late = [name for name, table in tables if _engine_name(config, table) in waiting]
        there = [(name, table) for name, table in tables if name not in late]
        entries = [_entry(config, name, table, by_name) for name, table in there]
        awaited = {*late, *(alias for alias, name in aliases if name in late)}
        # The first one is the default, whether it is there or not.
        default = {None} if next(iter(config.models)) in late else set()
        return ModelCatalog(entries, aliases, awaited=awaited | default)
    entries = [
        Resolved(
            model=model.id,
            engine=name,
            steering=model.steering,
        )
        for name, engine in by_name.items()
        for model in engine.models()
    ]
    return ModelCatalog(entries, awaited=ALL if waiting else ())


def _entry(
    config: Config, name: str, table: ModelSettings, by_name: Mapping[str, Engine]
) -> Resolved:
    engine = _engine_name(config, table)
    models = by_name[engine].models()
    served = next((each for each in models if table.model in (None, each.id)), None)
    if served is None:
        known = ", ".join(each.id for each in models[:8])
        raise ConfigError(f"models.{name}: the engine serves no '{table.model}'; it has: {known}")
    return Resolved(
        model=name,
        engine=engine,
        steering=served.steering,
        target=served.id,
        price=None if table.price is None else table.price.model_dump(exclude_none=True),
        defaults=Defaults(
            reasoning_effort=table.reasoning_effort, max_output_tokens=table.max_output_tokens
        ),
    )


async def _ended(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.wait([task])
