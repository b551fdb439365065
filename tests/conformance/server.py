"""One real server with the scripted engine, for cases that run over every transport."""

import asyncio
import json
import os
import time
from collections.abc import AsyncGenerator, AsyncIterator, Coroutine, Sequence
from contextlib import aclosing, asynccontextmanager
from typing import Any

import uvloop
from msgspec import Struct

from tests.support.signal import Signal
from tieline.ids import IdSource
from tieline_server.core.deltas import Delta
from tieline_server.core.effects import Prompt, Resolved, TurnRecord
from tieline_server.core.limits import Limits
from tieline_server.engines.scripted import ScriptedEngine
from tieline_server.engines.scripted.script import Script, parse
from tieline_server.keys import Keys
from tieline_server.ledger.memory import MemoryLedger
from tieline_server.routing import ModelCatalog
from tieline_server.runtime import Running, Services
from tieline_server.sealing import Keyring
from tieline_server.stores.memory import MemoryStore
from tieline_server.transports.grpc import GrpcDoor
from tieline_server.transports.grpc.config import GrpcConfig
from tieline_server.transports.http import HttpDoor
from tieline_server.transports.http.config import HttpConfig
from tieline_server.transports.websocket import WebSocketEndpoint
from tieline_server.transports.websocket.config import WebSocketConfig

ECHO_CONTEXT: dict[str, Any] = {
    "models": ["scripted"],
    "rules": [{"id": "context", "emit": {"type": "message", "text": "{context}"}}],
}
"""A script whose every answer is the exact context that the engine was given."""


class WatchedEngine(ScriptedEngine):
    """The scripted engine, telling when a sampling has begun and when it is over."""

    def __init__(self, script: Script | None, signal: Signal) -> None:
        super().__init__(script)
        self._signal = signal

    async def sample(self, prompt: Prompt) -> AsyncGenerator[Sequence[Delta], None]:
        """As the engine's own."""
        try:
            async with aclosing(super().sample(prompt)) as steps:
                async for step in steps:
                    self._signal.notify()
                    yield step
        finally:
            self._signal.notify()


class Served(Struct):
    """What runs, and what a case looks at."""

    port: int
    """Of the gRPC door."""
    http_port: int
    """Of HTTP, SSE and WebSocket."""
    engine: ScriptedEngine
    services: Services
    records: list[TurnRecord]
    signal: Signal


@asynccontextmanager
async def serve(
    script: dict[str, Any] | None = None, *, limits: Limits | None = None, **settings: Any
) -> AsyncIterator[Served]:
    """A server for this script (None: the engine's own sensible answers).

    ``settings`` are further members of :class:`Services`.
    """
    signal = Signal()
    engine = WatchedEngine(parse(json.dumps(script).encode()) if script else None, signal)
    records: list[TurnRecord] = []
    ledger = MemoryLedger()
    services = Services(
        engines={engine.name: engine},
        catalog=ModelCatalog(
            Resolved(model=m.id, engine=engine.name, steering=m.steering) for m in engine.models()
        ),
        store=MemoryStore(book=ledger.book),
        ledger=ledger,
        keys=Keys(None, clock=time.monotonic, warn=print),
        limits=limits or Limits(),
        observe=lambda record, transport: records.append(record),
        clock=time.monotonic,
        now=time.time,
        ids=IdSource(os.urandom),
        running=Running(),
        sealer=Keyring.random(os.urandom),
        **settings,
    )
    grpc = GrpcDoor(services, GrpcConfig(addresses=("127.0.0.1:0",), stop_grace=0.05))
    bridge = WebSocketEndpoint(services, WebSocketConfig(merge=False))
    http = HttpDoor(
        services, HttpConfig(address="127.0.0.1:0", merge=False, stop_grace=0.05), bridge
    )
    try:
        yield Served(
            port=_port(await grpc.start()),
            http_port=_port(await http.start()),
            engine=engine,
            services=services,
            records=records,
            signal=signal,
        )
    finally:
        await bridge.stop()
        await http.stop()
        await grpc.stop()
        await engine.close()


def _port(bound: list[str]) -> int:
    return int(bound[0].rpartition(":")[2])


def run(case: Coroutine[Any, Any, None]) -> None:
    """Runs a case on the loop that servers run on; a hang fails after a minute."""

    async def bounded() -> None:
        async with asyncio.timeout(60):
            await case

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(bounded())
