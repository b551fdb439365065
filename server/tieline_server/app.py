"""Composition: from settings to a server that runs, and its orderly end.

The only module that knows which classes play the parts of engine, store and door.
"""

import asyncio
import gc
import logging
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from importlib import import_module
from typing import Final

from structlog.typing import FilteringBoundLogger

from tieline.ids import IdSource
from tieline_server import engines, telemetry
from tieline_server.config import MEMORY, OFF, Config, ConfigError
from tieline_server.core.budget import Budget
from tieline_server.core.effects import Resolved
from tieline_server.core.event_log import EventLogs
from tieline_server.core.limits import Limits
from tieline_server.core.profile import PROFILES
from tieline_server.engines.base import Engine
from tieline_server.journals.memory import MemoryJournal
from tieline_server.keys import Keys
from tieline_server.ledger import LEDGERS
from tieline_server.ledger.base import Ledger
from tieline_server.ledger.memory import MemoryLedger
from tieline_server.metrics import Numbers
from tieline_server.routing import ModelCatalog
from tieline_server.runtime import Running, Services
from tieline_server.sealing import Keyring
from tieline_server.stores import STORES
from tieline_server.stores.base import ResponseStore
from tieline_server.telemetry import LibraryHandler, Telemetry
from tieline_server.transports.base import Door
from tieline_server.transports.grpc import GrpcDoor
from tieline_server.transports.grpc.config import GrpcConfig
from tieline_server.transports.http import HttpConfig, HttpDoor
from tieline_server.transports.websocket import WebSocketConfig, WebSocketEndpoint

FLUSH_TIMEOUT: Final = 3.0
"""Seconds that the last spans and metrics have to leave."""


Drain = Callable[[float], Awaitable[None]]
"""Lets what runs end within some seconds."""


async def serve(config: Config, *, announce: Callable[[str], None]) -> None:
    """Serves until SIGTERM or SIGINT, then drains and returns.

    ``announce`` gets one line for each address once the server is ready. Raises
    :class:`TielineError` with a message of one line when it cannot start.
    """
    signals = Signals(asyncio.get_running_loop())
    log = open_log(config)
    async with opened(config, log) as (services, numbers):
        doors = open_doors(services, config, numbers)
        # A full collection would walk through all modules each time, which stops every turn and
        # every write for 50 ms and more.
        gc.collect()
        gc.freeze()
        try:
            for name, door in doors.items():
                for address in await _start(door):
                    announce(f"{name} listening on {address}")
            log.info(telemetry.STARTED, engine=config.engine, pid=os.getpid())
            await signals.asked.wait()
            drains = [*(door.drain for door in doors.values()), services.running.drain]
            await _drain(drains, signals, seconds=config.drain_timeout, log=log)
        finally:
            for door in doors.values():
                await door.stop()
    log.info(telemetry.STOPPED)


class Signals:
    """SIGTERM and SIGINT: the first asks for an end, a further one does not wait for it."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.asked = asyncio.Event()
        self.insist: Callable[[], object] | None = None
        """Called when a signal comes after the first one."""
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._receive)

    def _receive(self) -> None:
        if self.asked.is_set() and self.insist is not None:
            self.insist()
        self.asked.set()


async def _drain(
    drains: Collection[Drain], signals: Signals, *, seconds: float, log: FilteringBoundLogger
) -> None:
    """Drains, until ``seconds`` have passed or a second signal comes."""
    log.info(telemetry.DRAINING, seconds=seconds)
    try:
        async with asyncio.timeout(None) as patience:
            signals.insist = lambda: patience.reschedule(0.0)
            await asyncio.gather(*(drain(seconds) for drain in drains))
    except TimeoutError:
        log.info(telemetry.INTERRUPTED)
    finally:
        signals.insist = None


@asynccontextmanager
async def opened(
    config: Config, log: FilteringBoundLogger
) -> AsyncIterator[tuple[Services, Numbers]]:
    """What lines need and what ``/metrics`` says, opened in order and closed in reverse.

    Raises :class:`TielineError`.
    """
    async with AsyncExitStack() as stack:
        running = Running()
        signals = telemetry.signals_from_environment(log, lines=lambda: len(running.lines))
        observer = Telemetry(log, clock=time.monotonic, now=time.time, signals=signals)
        stack.push_async_callback(asyncio.to_thread, observer.close, FLUSH_TIMEOUT)
        keys = Keys(
            config.api_keys,
            clock=time.monotonic,
            warn=lambda line: log.warning(telemetry.KEYS_KEPT, reason=line),
        )
        store, ledger = await open_store(config, stack)
        engine = open_engine(config)
        stack.push_async_callback(engine.close)
        by_name = {engine.name: engine}
        services = Services(
            engines=by_name,
            catalog=ModelCatalog(routes(by_name)),
            store=store,
            ledger=ledger,
            journal=MemoryJournal(now=time.time),
            budget=Budget(owner=config.max_owner_bytes, total=config.max_total_bytes),
            limits=limits_of(config),
            logs=EventLogs(each=config.max_resume_bytes, most=config.max_total_resume_bytes),
            observe=observer.observe,
            clock=time.monotonic,
            now=time.time,
            ids=IdSource(os.urandom),
            running=running,
            sealer=open_sealer(config),
            profile=PROFILES[config.profile],
            compaction=config.compaction,
            keys=keys,
        )
        # Before what it uses is closed.
        stack.push_async_callback(running.close)
        yield services, observer.numbers


def open_log(config: Config) -> FilteringBoundLogger:
    """The process's log on stderr; what libraries log by the standard module goes there too."""
    form = config.log_format
    if form == "auto":
        form = "console" if sys.stderr.isatty() else "json"
    log = telemetry.make_logger(form, config.log_level, sys.stderr.buffer)
    logging.basicConfig(level=config.log_level.upper(), handlers=[LibraryHandler(log)], force=True)
    # At info it tells of its own plug-ins; which schema a database gets is in our own line.
    logging.getLogger("alembic").setLevel(logging.WARNING)
    return log


def open_engine(config: Config) -> Engine:
    """The engine that the settings ask for, with its model loaded; blocks for that long."""
    options = {"llama": {"path": config.model}, "scripted": {"script": config.script}}
    return engines.load(config.engine, **options.get(config.engine, {}))


async def open_store(config: Config, stack: AsyncExitStack) -> tuple[ResponseStore, Ledger]:
    """The store that the settings ask for and its ledger, empty or as they were left.

    ``stack`` closes them. Raises :class:`ConfigError`.
    """
    module, _, kind = STORES[config.store.partition(":")[0]].partition(":")
    store_class = getattr(import_module(module), kind)
    store: ResponseStore
    ledger: Ledger
    if config.store == MEMORY:
        ledger = memory = MemoryLedger()
        store = store_class.of(config, book=memory.book, clock=time.monotonic)
    else:
        # Only who uses a database waits for the import of what it needs.
        from tieline_server.database.connection import connect
        from tieline_server.database.writer import Writer
        from tieline_server.ledger.sql import SqlLedger

        database = await connect(config.store, full=config.durability == "full")
        stack.push_async_callback(database.close)
        writer = Writer(database)
        stack.push_async_callback(writer.close)
        ledger = SqlLedger(database, writer)
        store = store_class.of(config, database, writer, now=time.time, clock=time.monotonic)
    stack.push_async_callback(ledger.close)
    stack.push_async_callback(store.close)
    return store, ledger


async def open_ledger(config: Config, stack: AsyncExitStack) -> Ledger:
    """The ledger that goes with the store of the settings, as it was left; ``stack`` closes it."""
    module, _, kind = LEDGERS[config.store.partition(":")[0]].partition(":")
    ledger: Ledger = await getattr(import_module(module), kind).open(config, stack)
    return ledger


def open_sealer(config: Config) -> Keyring:
    """The keys that the settings name, or one that lives as long as the process."""
    if config.seal_key is None:
        return Keyring.random(os.urandom)
    try:
        return Keyring.parse(config.seal_key.read_text(encoding="ascii"), entropy=os.urandom)
    except ConfigError as error:
        raise ConfigError(f"{config.seal_key}: {error}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{config.seal_key}: it is not base64") from None
    except OSError as error:
        raise ConfigError(f"cannot read {config.seal_key}: {error.strerror}") from None


def routes(by_name: Mapping[str, Engine]) -> list[Resolved]:
    """Every model of every engine, in order."""
    return [
        Resolved(model=model.id, engine=name, steering=model.steering)
        for name, engine in by_name.items()
        for model in engine.models()
    ]


def limits_of(config: Config) -> Limits:
    """The part of the settings that the rules use."""
    return Limits(
        active=config.max_active,
        lanes=config.max_lanes,
        queue=config.max_queue,
        held_timeout=config.held_timeout,
        resume_window=config.resume_window,
        message_bytes=config.max_message_bytes,
        line_bytes=config.max_line_bytes,
    )


def open_doors(services: Services, config: Config, numbers: Numbers) -> dict[str, Door]:
    """The doors by name, not yet listening; reads the TLS files."""
    try:
        doors: dict[str, Door] = {"grpc": GrpcDoor(services, GrpcConfig.of(config))}
        if config.http != OFF:
            doors["http"] = _open_http(services, config, numbers)
    except OSError as error:
        raise ConfigError(f"cannot read {error.filename}: {error.strerror}") from error
    return doors


def _open_http(services: Services, config: Config, numbers: Numbers) -> Door:
    """HTTP, with WebSocket on the same port where that is on."""
    lines, budget = services.running.lines, services.budget
    endpoint = WebSocketEndpoint(services, WebSocketConfig.of(config)) if config.websocket else None
    return HttpDoor(
        services,
        HttpConfig.of(config),
        endpoint,
        metrics=lambda: numbers.text(
            lines=len(lines), history_bytes=budget.size, evicted=budget.evicted
        ),
    )


async def _start(door: Door) -> list[str]:
    try:
        return await door.start()
    except OSError as error:
        raise ConfigError(error.strerror or "cannot listen") from error
