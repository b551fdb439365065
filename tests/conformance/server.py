"""One real server with the scripted engine, for cases that run over every transport."""

import asyncio
import itertools
import json
import os
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Sequence
from contextlib import (
    AbstractAsyncContextManager,
    AsyncExitStack,
    aclosing,
    asynccontextmanager,
)
from contextvars import ContextVar
from typing import Any, NamedTuple

import uvloop
from msgspec import Struct, structs

from tests.support.brief_model import BriefModel
from tests.support.scripted_chat import scripted_chat
from tests.support.signal import Signal
from tieline.ids import IdSource
from tieline_server.auth.keys import Keys
from tieline_server.auth.sealing import Keyring
from tieline_server.core.create.limits import Limits
from tieline_server.core.create.profile import PROFILES, Profile
from tieline_server.core.deltas import Delta
from tieline_server.core.effects import Prompt
from tieline_server.core.history.holdings import Budget
from tieline_server.core.values import Resolved, TurnRecord, UsageRecord
from tieline_server.engines.base import Engine
from tieline_server.engines.scripted import ScriptedEngine
from tieline_server.engines.scripted.script import Script, parse
from tieline_server.engines.upstream import UpstreamEngine
from tieline_server.engines.upstream.choice import Wanted
from tieline_server.guards.base import Counts, Guard
from tieline_server.guards.guarded import GuardedEngine
from tieline_server.models.catalog import ModelCatalog
from tieline_server.runtime import Running, Services
from tieline_server.storage.memory import MemoryJournal, MemoryLedger, MemoryStore
from tieline_server.transports.grpc import GrpcServer
from tieline_server.transports.grpc.config import GrpcConfig
from tieline_server.transports.http import HttpServer
from tieline_server.transports.http.config import HttpConfig
from tieline_server.transports.websocket import WebSocketEndpoint
from tieline_server.transports.websocket.config import WebSocketConfig

ECHO_CONTEXT: dict[str, Any] = {
    "models": ["scripted"],
    "rules": [{"id": "context", "emit": {"type": "message", "text": "{context}"}}],
}
"""A script whose every answer is the exact context that the engine was given."""


BEHIND: ContextVar[str | None] = ContextVar("BEHIND", default=None)
"""The mode in which the servers of this case have an upstream (``upstream_way``), if any."""


class Remote(NamedTuple):
    """A real upstream, and how it is asked."""

    url: str
    key: str
    how: Wanted


MODEL: ContextVar[Engine | Remote | None] = ContextVar("MODEL", default=None)
"""The model that answers in this case instead of a script (``llama_way``)."""


class Numbered:
    """Entropy whose hex is a count in decimal digits: each id has as many tokens as any other."""

    def __init__(self) -> None:
        self._count = itertools.count(1)

    def __call__(self, size: int) -> bytes:
        """The next number, in ``size`` bytes."""
        return bytes.fromhex(f"{next(self._count):0{2 * size}}")


class WatchedEngine(ScriptedEngine):
    """The scripted engine, telling when a sampling has begun and when it is over."""

    def __init__(self, script: Script | None, signal: Signal) -> None:
        super().__init__(script)
        self._signal = signal
        self.said = 0
        """Output tokens that left the engine."""
        self.samplings = 0
        self.pause_after: int | None = None
        """Output tokens after which it waits for ``go``."""
        self.go = asyncio.Event()

    async def sample(self, prompt: Prompt) -> AsyncGenerator[Sequence[Delta], None]:
        """As the engine's own."""
        self.samplings += 1
        try:
            async with aclosing(super().sample(prompt)) as steps:
                async for step in steps:
                    self.said += sum(getattr(delta, "tokens", 0) for delta in step)
                    self._signal.notify()
                    yield step
                    if self.pause_after is not None and self.said >= self.pause_after:
                        await self.go.wait()
        finally:
            self._signal.notify()


class Served(Struct):
    """What runs, and what a case looks at."""

    port: int
    """Of the gRPC server."""
    http_ports: dict[str, int]
    """Profile -> the port of HTTP, SSE and WebSocket."""
    engine: WatchedEngine
    services: Services
    records: list[TurnRecord]
    ledger: MemoryLedger
    signal: Signal
    counts: Counts
    """What its guards did."""
    key: str | None = None
    """The API key that peers send."""

    @property
    def headers(self) -> dict[str, str]:
        """What peers send with it, over HTTP and as metadata of gRPC."""
        return {} if self.key is None else {"authorization": f"Bearer {self.key}"}

    @property
    def rows(self) -> list[UsageRecord]:
        """What is in the ledger, the first booked first."""
        return list(self.ledger)


@asynccontextmanager
async def serve(
    script: dict[str, Any] | None = None,
    *,
    limits: Limits | None = None,
    upstream: tuple[str, str] | None = None,
    model: Engine | None = None,
    guards: Sequence[Guard] = (),
    how: Wanted | None = None,
    **settings: Any,
) -> AsyncIterator[Served]:
    """A server for this script (None: the engine's own sensible answers).

    ``upstream`` is the URL and the key of one that answers instead, ``how`` it is asked; ``model``
    is a real one that does. Every model has the ``guards``. ``settings`` are further members of
    :class:`Services`.
    """
    signal = Signal()
    engine = WatchedEngine(parse(json.dumps(script).encode()) if script else None, signal)
    records: list[TurnRecord] = []
    ledger = MemoryLedger()
    journal = MemoryJournal(now=time.time)

    def observe(record: TurnRecord, _transport: str) -> None:
        records.append(record)
        signal.notify()

    stack = AsyncExitStack()
    if model is None and (shared := MODEL.get()) is not None:
        if isinstance(shared, Remote):
            url, key, asked = shared
            shared = await stack.enter_async_context(upstream_at(url, key, how=asked))
        model = BriefModel(shared, engine, signal, slow='"pace"' in json.dumps(script))
    served = await stack.enter_async_context(_behind(engine, model, upstream, how))
    counts = Counts()
    if guards:
        served = GuardedEngine(served, {m.id: guards for m in served.models()}, counts)
    services = _services(
        served,
        ledger,
        MemoryStore(add_usage=ledger.add, journal=journal),
        journal,
        limits=limits or Limits(),
        observe=observe,
        **settings,
    )
    grpc = GrpcServer(services, GrpcConfig(addresses=("127.0.0.1:0",), stop_grace=0.05))
    try:
        async with AsyncExitStack() as servers:
            # A server has one profile; here each has servers of its own to the same core.
            http_ports = {
                name: await servers.enter_async_context(_http_server(services, profile))
                for name, profile in PROFILES.items()
            }
            yield Served(
                port=_port(await grpc.start()),
                http_ports=http_ports,
                engine=engine,
                services=services,
                records=records,
                ledger=ledger,
                signal=signal,
                counts=counts,
            )
    finally:
        await grpc.stop()
        await services.running.close()
        await stack.aclose()
        await engine.close()


def _services(
    engine: Engine,
    ledger: MemoryLedger,
    store: MemoryStore,
    journal: MemoryJournal,
    **settings: Any,
) -> Services:
    """What lines need, with this engine."""
    members: dict[str, Any] = {
        "limits": Limits(),
        "observe": lambda record, transport: None,
        "keys": Keys(None, clock=time.monotonic, warn=print),
        **settings,
    }
    return Services(
        engines={engine.name: engine},
        catalog=ModelCatalog(
            Resolved(
                model=m.id,
                engine=engine.name,
                steering=m.steering,
            )
            for m in engine.models()
        ),
        store=store,
        ledger=ledger,
        journal=journal,
        budget=Budget(),
        clock=time.monotonic,
        now=time.time,
        ids=IdSource(Numbered(), ahead=1),
        running=Running(),
        sealer=Keyring.random(os.urandom),
        **members,
    )


@asynccontextmanager
async def _behind(
    engine: WatchedEngine,
    model: Engine | None,
    upstream: tuple[str, str] | None,
    how: Wanted | None,
) -> AsyncIterator[Engine]:
    """What serves: the engine, a model, an upstream engine in front of it, or of another."""
    if upstream is not None:
        async with upstream_at(*upstream, how=how) as other:
            yield other
        return
    if model is not None:
        yield model
        return
    mode = BEHIND.get()
    if mode is None:
        yield engine
        return
    wanted, behind = UPSTREAMS[mode]
    async with behind(engine) as url, upstream_at(url, how=wanted) as other:
        yield other


@asynccontextmanager
async def _itself(engine: Engine) -> AsyncIterator[str]:
    """The base URL of a server of ours, which has the Responses API."""
    ledger, journal = MemoryLedger(), MemoryJournal(now=time.time)
    services = _services(
        engine, ledger, MemoryStore(add_usage=ledger.add, journal=journal), journal
    )
    try:
        async with _http_server(services, PROFILES["openai"]) as port:
            yield f"http://127.0.0.1:{port}/v1"
    finally:
        await services.running.close()


UPSTREAMS: dict[str, tuple[Wanted, Callable[[Any], AbstractAsyncContextManager[str]]]] = {
    "chat": (Wanted(mode="chat"), scripted_chat),
    "responses": (Wanted(mode="responses"), _itself),
    "state": (Wanted(mode="responses", state=True), _itself),
}
"""Mode -> how it is asked for, and what makes a server of an engine."""


@asynccontextmanager
async def upstream_at(
    url: str, key: str | None = None, *, how: Wanted | None = None
) -> AsyncIterator[Engine]:
    """An upstream engine that has asked what is served there; replicas have commas between."""
    engine = UpstreamEngine(url.split(","), key=key or None, how=how)
    try:
        await engine.probe()
        yield engine
    finally:
        await engine.close()


@asynccontextmanager
async def _http_server(services: Services, profile: Profile) -> AsyncIterator[int]:
    services = structs.replace(services, profile=profile)
    bridge = WebSocketEndpoint(services, WebSocketConfig(merge=False))
    config = HttpConfig(address="127.0.0.1:0", merge=False, stop_grace=0.05)
    server = HttpServer(services, config, bridge)
    try:
        yield _port(await server.start())
    finally:
        await bridge.stop()
        await server.stop()


def _port(bound: list[str]) -> int:
    return int(bound[0].rpartition(":")[2])


def run(case: Coroutine[Any, Any, None]) -> None:
    """Runs a case on the loop that servers run on; a hang fails after a minute."""

    async def bounded() -> None:
        async with asyncio.timeout(60):
            await case

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(bounded())
