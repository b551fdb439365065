"""A WebSocket endpoint on a real port of aiohttp, with the real runtime and a test's engine."""

import asyncio
import os
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import uvloop
from aiohttp import web
from msgspec import Struct

from tests.support.grpc_engine import Answer, TinyEngine, hello
from tests.support.signal import PATIENCE, Signal
from tests.support.websocket_client import RawSocket
from tieline.ids import IdSource
from tieline_server.auth.keys import Keys
from tieline_server.auth.sealing import Keyring
from tieline_server.core.create.limits import Limits
from tieline_server.core.create.profile import PROFILES
from tieline_server.core.history.holdings import Budget
from tieline_server.core.values import Resolved, TurnRecord
from tieline_server.models.catalog import ModelCatalog
from tieline_server.runtime import Running, Services
from tieline_server.storage.memory import MemoryJournal, MemoryLedger, MemoryStore
from tieline_server.transports.websocket import WebSocketConfig, WebSocketEndpoint

PATH = "/v1/responses"


class Served(Struct):
    """A mounted endpoint and all that a test looks at."""

    endpoint: WebSocketEndpoint
    services: Services
    engine: TinyEngine
    records: list[TurnRecord]
    port: int

    async def until(self, condition: Callable[[], bool], *, seconds: float = PATIENCE) -> None:
        """Waits until a condition on the engine or the records holds."""
        await self.engine.signal.until(condition, seconds=seconds)

    def socket(self, *, query: str = "", **how: Any) -> RawSocket:
        """A connection to it, not yet open."""
        return RawSocket(self.port, PATH + query, **how)

    @property
    def url(self) -> str:
        """Where it is."""
        return f"ws://127.0.0.1:{self.port}{PATH}"


def run(test: Coroutine[Any, Any, None]) -> None:
    """Runs a test's coroutine on the loop that the server runs on; leftovers are a failure."""

    async def main() -> None:
        await test
        left = asyncio.all_tasks() - {asyncio.current_task()}
        assert left == set(), f"a task outlived its connection: {left}"

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main())


def services_of(
    engine: TinyEngine,
    records: list[TurnRecord],
    *,
    api_keys: Path | None = None,
    limits: Limits | None = None,
    clock: Callable[[], float] = time.monotonic,
    profile: str = "openai",
) -> Services:
    """A process around one engine; ``clock`` is the one of the key file."""

    def observe(record: TurnRecord, transport: str) -> None:
        assert transport == "websocket"
        records.append(record)
        engine.signal.notify()

    ledger = MemoryLedger()
    journal = MemoryJournal(now=time.time)
    return Services(
        engines={engine.name: engine},
        catalog=ModelCatalog(
            Resolved(model=model.id, engine=engine.name) for model in engine.models()
        ),
        store=MemoryStore(add_usage=ledger.add, journal=journal),
        ledger=ledger,
        journal=journal,
        budget=Budget(),
        keys=Keys(api_keys, clock=clock, warn=print),
        limits=limits or Limits(),
        observe=observe,
        clock=time.monotonic,
        now=time.time,
        ids=IdSource(os.urandom),
        running=Running(),
        sealer=Keyring.random(os.urandom),
        profile=PROFILES[profile],
    )


@asynccontextmanager
async def serve(
    answer: Answer = hello,
    *,
    api_keys: Path | None = None,
    limits: Limits | None = None,
    clock: Callable[[], float] = time.monotonic,
    profile: str = "openai",
    guard: Callable[[web.Request], None] | None = None,
    handler_cancellation: bool = False,
    **settings: Any,
) -> AsyncIterator[Served]:
    """An endpoint with these settings of :class:`WebSocketConfig`, stopped at the end."""
    engine = TinyEngine(answer, Signal())
    records: list[TurnRecord] = []
    services = services_of(
        engine, records, api_keys=api_keys, limits=limits, clock=clock, profile=profile
    )
    config = WebSocketConfig(**{"merge": False, **settings})
    endpoint = WebSocketEndpoint(services, config, guard=guard)
    app = web.Application()
    app.router.add_get(PATH, endpoint.handle)
    runner = web.AppRunner(app, handler_cancellation=handler_cancellation, shutdown_timeout=1.0)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    port = runner.addresses[0][1]
    try:
        yield Served(
            endpoint=endpoint, services=services, engine=engine, records=records, port=port
        )
    finally:
        await endpoint.stop()
        await runner.cleanup()
