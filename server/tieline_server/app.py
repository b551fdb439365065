"""Composition: from settings to a server that runs, and its orderly end.

The only module that brings together engines, stores and transports; it knows none by its name.
"""

import asyncio
import os
import time
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Collection,
    Iterable,
)
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from functools import partial
from importlib import import_module
from typing import Final

from structlog.typing import FilteringBoundLogger

from tieline.ids import IdSource
from tieline_server import engines, garbage_collection, guards, transports
from tieline_server.auth.keys import Keys, Refusals
from tieline_server.auth.sealing import Keyring
from tieline_server.config import Config, ConfigError, flag
from tieline_server.config.toml_tables import store_kind
from tieline_server.core.create.limits import Limits, Share
from tieline_server.core.create.profile import PROFILES
from tieline_server.core.history.holdings import Budget
from tieline_server.core.stream.replay_log import ReplayLogs
from tieline_server.observability import telemetry
from tieline_server.observability.metrics import Numbers
from tieline_server.observability.telemetry import Telemetry
from tieline_server.peers import Peer
from tieline_server.runtime import LocalPeer, Running, Services, heed_cancels
from tieline_server.runtime.readiness import DATABASE, DRAINING, ENGINE, Readiness
from tieline_server.runtime.sampling import open_sampling
from tieline_server.storage import open_storage
from tieline_server.transports.base import Opening, TransportServer
from tieline_server.workers.worker_context import ENDS, ProcessContext

FLUSH_TIMEOUT: Final = 3.0
"""Seconds that the last spans and metrics have to leave."""

Drain = Callable[[float], Awaitable[None]]
"""Lets what runs end within some seconds."""


async def serve(
    config: Config, *, announce: Callable[[str], None], context: ProcessContext | None = None
) -> None:
    """Serves until SIGTERM or SIGINT, then drains and returns; so does each of several workers.

    ``announce`` gets one line for each address once the server is ready. ``context`` is what a
    worker has of the others. Raises :class:`TielineError` of one line when it cannot start.
    """
    context = context or ProcessContext()
    signals = Signals(asyncio.get_running_loop(), context.signals)
    log = telemetry.open_log(config.log_format, config.log_level)
    context.check(config)
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(context.directed(signals))
        services, numbers = await stack.enter_async_context(opened(config, log, context))
        peer = open_peer(services, numbers, context)
        await stack.enter_async_context(context.reachable(peer))
        servers = open_servers(services, config, peer, context)
        garbage_collection.freeze()
        garbage_collection.look_seldom()
        try:
            bound = {name: await _start(name, server) for name, server in servers.items()}
            context.caution(config, log)
            # Not before all listen: what is announced is there.
            for name, addresses in bound.items():
                for address in addresses:
                    announce(f"{name} listening on {address}")
            log.info(telemetry.STARTED, engine=config.engine, pid=os.getpid())
            context.ready()
            await signals.asked.wait()
            services.readiness.lack(DRAINING, "the server is shutting down")
            drains = [
                *(server.drain for server in servers.values()),
                services.running.drain,
                context.drain,
            ]
            await _drain(drains, signals, seconds=config.drain_timeout, log=log)
        finally:
            for server in servers.values():
                await server.stop()
    log.info(telemetry.STOPPED, pid=os.getpid())


class Signals:
    """SIGTERM and SIGINT: the first asks for an end, a further one does not wait for it."""

    def __init__(self, loop: asyncio.AbstractEventLoop, numbers: Iterable[int] = ENDS) -> None:
        self.asked = asyncio.Event()
        self.insist: Callable[[], object] | None = None
        """Called when a signal comes after the first one."""
        for number in numbers:
            loop.add_signal_handler(number, self._receive)

    def _receive(self) -> None:
        if self.asked.is_set():
            self.press()
        self.ask()

    def ask(self) -> None:
        """Asks for an end."""
        self.asked.set()

    def press(self) -> None:
        """Does not wait for it."""
        if self.insist is not None:
            self.insist()


async def _drain(
    drains: Collection[Drain], signals: Signals, *, seconds: float, log: FilteringBoundLogger
) -> None:
    """Drains, until ``seconds`` have passed or a second signal comes."""
    log.info(telemetry.DRAINING, seconds=seconds, pid=os.getpid())
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
    config: Config, log: FilteringBoundLogger, context: ProcessContext
) -> AsyncIterator[tuple[Services, Numbers]]:
    """What connections need and what ``/metrics`` says, opened in order and closed in reverse.

    Raises :class:`TielineError`.
    """
    async with AsyncExitStack() as stack:
        running = Running(
            ReplayLogs(each=config.max_resume_bytes, most=config.max_total_resume_bytes)
        )
        signals = telemetry.signals_from_environment(
            log, connections=lambda: len(running.connections)
        )
        observer = Telemetry(log, clock=time.monotonic, now=time.time, signals=signals)
        stack.push_async_callback(asyncio.to_thread, observer.close, FLUSH_TIMEOUT)
        keys = _keys(config, log)
        refusals = Refusals(
            clock=time.monotonic, count=observer.key_refused, say=observer.say_refused
        )
        readiness = Readiness()
        outages = Outages(log, readiness)
        storage = await open_storage(config, stack, outages=outages)
        sealer = Keyring.read(config.seal_key, otherwise=context.seal_key)
        sampling = await open_sampling(
            config, stack, salt=sealer.alias, counts=observer.numbers.guards, told=outages.engine
        )
        services = Services(
            engines=sampling.engines,
            catalog=sampling.catalog,
            store=storage.store,
            ledger=storage.ledger,
            journal=storage.journal,
            check_storage=storage.check,
            readiness=readiness,
            budget=Budget(owner=config.max_owner_bytes, total=config.max_total_bytes),
            limits=limits_of(config),
            incoming=Share(
                each=config.max_owner_incoming_bytes, total=config.max_total_incoming_bytes
            ),
            queued=Share(each=config.max_owner_queue_bytes, total=config.max_total_queue_bytes),
            observe=observer.observe,
            clock=time.monotonic,
            now=time.time,
            ids=IdSource(os.urandom, context.tag),
            running=running,
            sealer=sealer,
            profile=PROFILES[config.profile],
            compaction=config.compaction,
            keys=keys,
            refused=refusals.answer,
            peers=context.peers,
        )
        running.always(heed_cancels(services))
        # Before what it uses is closed.
        stack.push_async_callback(running.close)
        yield services, observer.numbers


def _keys(config: Config, log: FilteringBoundLogger) -> Keys:
    return Keys(
        config.api_keys,
        clock=time.monotonic,
        warn=lambda reason: log.warning(telemetry.KEYS_KEPT, reason=reason),
    )


def prepare(config: Config) -> None:
    """Imports what these settings will need and opens nothing: most of a start, ahead of time."""
    store = store_kind(config.store)
    for engine in config.engines:
        engines.prepare(engine)
    for name in config.addresses:
        transports.opener(name)
    telemetries = ("opentelemetry.metrics", "opentelemetry.trace")
    kinds = (guards.GUARDS[table.kind] for table in config.guards.values())
    for name in (store.module, *store.imports, *telemetries, *kinds):
        with suppress(ModuleNotFoundError):  # A server that needs it says that it is missing.
            import_module(name.partition(":")[0])


class Outages:
    """Has a database's silence said: once in the log, and by the readiness of the process."""

    def __init__(self, log: FilteringBoundLogger, readiness: Readiness) -> None:
        # Each worker finds out for itself, and says so for itself.
        self._log = log.bind(pid=os.getpid())
        self._readiness = readiness

    def silent(self, reason: str) -> None:
        """It does not answer."""
        self._readiness.lack(DATABASE, "the database does not answer")
        self._log.warning(telemetry.DATABASE_AWAY, reason=reason)

    def answers(self, seconds: float) -> None:
        """It answers again."""
        self._readiness.have(DATABASE)
        self._log.info(telemetry.DATABASE_BACK, seconds=round(seconds, 3))

    def engine(self, name: str, reason: str | None, none: bool) -> None:
        """An engine is away, or there again; ``none``: no engine is there now."""
        if none:
            self._readiness.lack(ENGINE, "no engine can be reached")
        else:
            self._readiness.have(ENGINE)
        if reason is None:
            self._log.info(telemetry.ENGINE_BACK, engine=name)
        else:
            self._log.warning(telemetry.ENGINE_AWAY, engine=name, reason=reason)

    def full(self) -> None:
        """There is no room."""
        self._log.error(telemetry.DATABASE_FULL)


def limits_of(config: Config) -> Limits:
    """The part of the settings that the rules use."""
    return Limits(
        active=config.max_active,
        lanes=config.max_lanes,
        queue=config.max_queue,
        held_timeout=config.held_timeout,
        resume_window=config.resume_window,
        message_bytes=config.max_message_bytes,
        websocket_message_bytes=config.websocket_message_bytes,
        grpc_message_bytes=config.grpc_message_bytes,
        connection_bytes=config.max_connection_bytes,
        ignores=config.ignored == "warn",
    )


def open_peer(services: Services, numbers: Numbers, context: ProcessContext) -> LocalPeer:
    """This process as the others ask it."""
    connections, budget = services.running.connections, services.budget

    def metrics() -> bytes:
        return numbers.text(
            connections=len(connections), history_bytes=budget.size, evicted=budget.evicted
        )

    return LocalPeer(services, metrics=context.recorded(metrics))


def open_servers(
    services: Services, config: Config, peer: Peer, context: ProcessContext
) -> dict[str, TransportServer]:
    """The servers of all transports that are on, by name, not yet listening; reads TLS files."""
    opening = Opening(
        services,
        config,
        capacity=context.capacity,
        metrics=partial(context.metrics, peer),
        reuse_port=context.shares_ports,
    )
    try:
        opened = {name: transports.opener(name)(opening) for name in transports.TRANSPORTS}
    except OSError as error:
        raise ConfigError(f"cannot read {error.filename}: {error.strerror}") from error
    return {name: server for name, server in opened.items() if server is not None}


async def _start(name: str, server: TransportServer) -> list[str]:
    try:
        return await server.start()
    except OSError as error:
        raise ConfigError(f"{flag(name)}: {error.strerror or 'cannot listen'}") from error
