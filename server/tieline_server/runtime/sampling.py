"""What samples, and under which names: the engines of the settings, their guards, the models.

An engine that asks other servers may be away as the process starts: its models come with it.
"""

import asyncio
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, NamedTuple

from tieline_server import engines, guards
from tieline_server.config import UPSTREAM, Config, ConfigError, urls_of
from tieline_server.config.toml_tables import Mode, ModelSettings
from tieline_server.core.values import Defaults, Resolved
from tieline_server.engines.base import Engine, EngineAway, Probing
from tieline_server.engines.presence import Presence
from tieline_server.guards.base import Counts, Guard
from tieline_server.guards.guarded import GuardedEngine
from tieline_server.models.catalog import ALL, ModelCatalog

Salt = Callable[[str], str]
"""A name for an owner that says nothing of who that is."""

Told = Callable[[str, str | None, bool], None]
"""Hears of an engine why it is away, or None; and whether no engine is there now."""


class Sampling(NamedTuple):
    """What samples, and under which names."""

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
    for name, upstream in _wanted(config).items():
        options: dict[str, dict[str, Any]] = {
            "llama": {
                "path": config.model,
                "longest_string": config.longest_string,
                "longest_list": config.longest_list,
            },
            "scripted": {"script": config.script},
        }
        if upstream is None:
            engine = engines.load(name, **options.get(name, {}))
        else:
            engine = engines.load(UPSTREAM, **_upstream_options(config, name, upstream, salt))
        stack.push_async_callback(engine.close)
        if isinstance(engine, Probing):
            try:
                await engine.probe()
            except EngineAway as error:
                missing[name] = error
        by_name[name] = engine
    return by_name, missing


class Upstream(NamedTuple):
    """An upstream as one engine asks it."""

    urls: str
    mode: Mode
    state: bool
    tokenizer: Path | None


def _wanted(config: Config) -> dict[str, Upstream | None]:
    """Name of each engine that is used -> what it asks, where it is an upstream."""
    upstreams = {name: upstream for upstream, name in _upstreams(config).items()}
    named = [_engine_name(config, table) for table in config.models.values()] or [config.engine]
    return {name: upstreams.get(name) for name in named}


def _upstreams(config: Config) -> dict[Upstream, str]:
    """Upstreams -> the name of their engine. Clients see it, and no address."""
    names: dict[Upstream, str] = {}
    shared = [ModelSettings.model_validate({})] if config.upstream else []
    for table in (*shared, *config.models.values()):
        upstream = _upstream_of(config, table)
        if upstream is not None:
            names.setdefault(upstream, f"{UPSTREAM}-{len(names) + 1}" if names else UPSTREAM)
    return names


def _upstream_of(config: Config, table: ModelSettings) -> Upstream | None:
    """What a model's engine asks, where that is an upstream."""
    urls = table.upstream or config.upstream
    if urls is None or (config.models and config.engine_of(table) != UPSTREAM):
        return None
    return Upstream(
        urls=urls,
        mode=table.upstream_mode or "auto",
        state=bool(table.upstream_state),
        tokenizer=table.upstream_tokenizer,
    )


def _engine_name(config: Config, table: ModelSettings) -> str:
    upstream = _upstream_of(config, table)
    if config.engine_of(table) == UPSTREAM and upstream is not None:
        return _upstreams(config)[upstream]
    return config.engine_of(table)


def _upstream_options(
    config: Config, name: str, upstream: Upstream, salt: Salt | None
) -> dict[str, Any]:
    from tieline_server.engines.upstream.choice import Wanted
    from tieline_server.engines.upstream.exchange import Patience

    return {
        "urls": urls_of(upstream.urls),
        "name": name,
        "key": config.key_of_upstream(),
        "model": config.upstream_model if upstream.urls == config.upstream else None,
        "how": Wanted(
            mode=upstream.mode, state=upstream.state, tokenizer=upstream.tokenizer, salt=salt
        ),
        "patience": Patience(first=config.upstream_timeout, between=config.upstream_stall_timeout),
        "places": config.upstream_requests,
    }


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
