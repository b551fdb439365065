"""An HTTP server on a real port, with the real runtime and an engine of the test's making."""

import asyncio
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from msgspec import Struct

from tests.support.grpc_engine import Answer, TinyEngine, hello
from tests.support.http_client import Connection
from tests.support.signal import PATIENCE, Signal
from tieline.ids import IdSource
from tieline_server.auth.keys import Keys
from tieline_server.auth.sealing import Keyring
from tieline_server.core.create.limits import Limits
from tieline_server.core.create.profile import OPENAI, Profile
from tieline_server.core.history.holdings import Budget
from tieline_server.core.values import Resolved, TurnRecord
from tieline_server.models.catalog import ModelCatalog
from tieline_server.runtime import Running, Services
from tieline_server.storage.memory import MemoryJournal, MemoryLedger, MemoryStore
from tieline_server.transports.http import HttpConfig, HttpServer, Upgrade


class Served(Struct):
    """A running server and all that a test looks at."""

    server: HttpServer
    services: Services
    engine: TinyEngine
    records: list[TurnRecord]
    transports: list[str]
    port: int

    @property
    def url(self) -> str:
        """What clients call the base URL."""
        return f"http://127.0.0.1:{self.port}/v1"

    async def until(self, condition: Callable[[], bool], *, seconds: float = PATIENCE) -> None:
        """Waits until a condition on the engine or the records holds."""
        await self.engine.signal.until(condition, seconds=seconds)

    @asynccontextmanager
    async def connection(self, **how: Any) -> AsyncIterator[Connection]:
        """A TCP connection to it."""
        connection = await Connection.open(self.port, **how)
        try:
            yield connection
        finally:
            await connection.close()


@asynccontextmanager
async def serve(
    answer: Answer = hello,
    *,
    api_keys: Path | None = None,
    limits: Limits | None = None,
    profile: Profile = OPENAI,
    store: MemoryStore | None = None,
    ledger: MemoryLedger | None = None,
    journal: MemoryJournal | None = None,
    upgrade: Callable[[Services], Upgrade] | None = None,
    metrics: Callable[[], Awaitable[bytes]] | None = None,
    **settings: Any,
) -> AsyncIterator[Served]:
    """A server with these settings of :class:`HttpConfig`, stopped at the end."""
    signal = Signal()
    engine = TinyEngine(answer, signal)
    records: list[TurnRecord] = []
    transports: list[str] = []

    def observe(record: TurnRecord, transport: str) -> None:
        records.append(record)
        transports.append(transport)
        signal.notify()

    services = _services(
        engine,
        observe,
        api_keys=api_keys,
        limits=limits or Limits(),
        profile=profile,
        store=store,
        ledger=MemoryLedger() if ledger is None else ledger,
        journal=journal or MemoryJournal(now=time.time),
    )
    config = HttpConfig(
        **{
            "address": "127.0.0.1:0",
            "stop_grace": 0.05,
            "keyless": api_keys is None,
            "merge": False,
            **settings,
        }
    )
    upgraded = None if upgrade is None else upgrade(services)
    server = HttpServer(services, config, upgraded, metrics=metrics)
    bound = await server.start()
    port = int(bound[0].rpartition(":")[2])
    try:
        yield Served(
            server=server,
            services=services,
            engine=engine,
            records=records,
            transports=transports,
            port=port,
        )
    finally:
        await server.stop()
        await services.running.close()
        left = asyncio.all_tasks() - {asyncio.current_task()}
        assert not [task for task in left if "RequestHandler" in repr(task)], "a request lives on"


def _services(
    engine: TinyEngine,
    observe: Callable[[TurnRecord, str], None],
    *,
    api_keys: Path | None,
    limits: Limits,
    profile: Profile,
    store: MemoryStore | None,
    ledger: MemoryLedger,
    journal: MemoryJournal,
) -> Services:
    models = (Resolved(model=model.id, engine=engine.name) for model in engine.models())
    return Services(
        engines={engine.name: engine},
        catalog=ModelCatalog(models),
        store=MemoryStore(add_usage=ledger.add, journal=journal) if store is None else store,
        ledger=ledger,
        journal=journal,
        budget=Budget(),
        keys=Keys(api_keys, clock=time.monotonic, warn=print),
        limits=limits,
        observe=observe,
        clock=time.monotonic,
        now=time.time,
        ids=IdSource(os.urandom),
        running=Running(),
        sealer=Keyring.random(os.urandom),
        profile=profile,
    )
