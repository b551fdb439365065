"""A gRPC server on a real port, with the real runtime and an engine of the test's making."""

import asyncio
import os
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import uvloop
from msgspec import Struct

from tests.support.grpc_client import RawConnection
from tests.support.grpc_engine import Answer, TinyEngine, hello
from tests.support.signal import PATIENCE, Signal
from tieline.ids import IdSource
from tieline.v1 import models_pb2_grpc, service_pb2_grpc
from tieline_server.auth.keys import Keys
from tieline_server.auth.sealing import Keyring
from tieline_server.core.create.limits import Limits
from tieline_server.core.history.holdings import Budget
from tieline_server.core.values import Resolved, TurnRecord
from tieline_server.models.catalog import ModelCatalog
from tieline_server.runtime import Running, Services
from tieline_server.storage.memory import MemoryJournal, MemoryLedger, MemoryStore
from tieline_server.transports.grpc import GrpcServer
from tieline_server.transports.grpc.config import GrpcConfig


class Served(Struct):
    """A running server and all that a test looks at."""

    server: GrpcServer
    services: Services
    engine: TinyEngine
    records: list[TurnRecord]
    port: int

    async def until(self, condition: Callable[[], bool], *, seconds: float = PATIENCE) -> None:
        """Waits until a condition on the engine or the records holds."""
        await self.engine.signal.until(condition, seconds=seconds)

    def line(self, **how: Any) -> RawConnection:
        """A Converse stream to it."""
        return RawConnection(self.port, **how)

    def channel(self) -> grpc.aio.Channel:
        """A channel to it, in the clear."""
        return grpc.aio.insecure_channel(
            f"127.0.0.1:{self.port}", options=[("grpc.use_local_subchannel_pool", 1)]
        )


def run(test: Coroutine[Any, Any, None]) -> None:
    """Runs a test's coroutine on the loop that the server runs on."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(test)


@asynccontextmanager
async def serve(
    answer: Answer = hello,
    *,
    api_keys: Path | None = None,
    limits: Limits | None = None,
    clock: Callable[[], float] = time.monotonic,
    **settings: Any,
) -> AsyncIterator[Served]:
    """A server with these settings of :class:`GrpcConfig`, stopped at the end.

    ``clock`` is the one by which the key file is looked at again.
    """
    signal = Signal()
    engine = TinyEngine(answer, signal)
    records: list[TurnRecord] = []

    def observe(record: TurnRecord, _transport: str) -> None:
        records.append(record)
        signal.notify()

    ledger = MemoryLedger()
    journal = MemoryJournal(now=time.time)
    services = Services(
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
    )
    config = GrpcConfig(**{"addresses": ("127.0.0.1:0",), "stop_grace": 0.05, **settings})
    server = GrpcServer(services, config)
    bound = await server.start()
    port = int(bound[0].rpartition(":")[2])
    try:
        yield Served(server=server, services=services, engine=engine, records=records, port=port)
    finally:
        await server.stop()
        await services.running.close()


def responses(channel: grpc.aio.Channel) -> "service_pb2_grpc.ResponsesServiceAsyncStub":
    """The typed stub of the Responses service."""
    return service_pb2_grpc.ResponsesServiceStub(channel)


def models(channel: grpc.aio.Channel) -> "models_pb2_grpc.ModelsServiceAsyncStub":
    """The typed stub of the Models service."""
    return models_pb2_grpc.ModelsServiceStub(channel)
