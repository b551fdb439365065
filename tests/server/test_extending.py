"""What a new engine and a new transport take: a module each, and a line in a table."""

import asyncio
import io
import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.support.grpc_engine import TinyEngine, hello
from tests.support.signal import Signal
from tieline import responses
from tieline.codecs.json import RequestDecoder
from tieline.errors import how_to_install
from tieline_client import connect
from tieline_server.app import open_peer, open_servers, opened
from tieline_server.config import Config
from tieline_server.engines import ENGINES, EngineMissing, Entry
from tieline_server.engines.base import EngineKind, Opening
from tieline_server.observability import telemetry
from tieline_server.runtime import ConnectionDriver, Services
from tieline_server.transports import TRANSPORTS, base
from tieline_server.transports.live_calls import LiveCalls, final_answer
from tieline_server.workers.worker_context import ProcessContext


class TinyKind(EngineKind):
    """An engine of another package's making."""

    def open(self, opening: Opening) -> TinyEngine:
        """Needs no setting."""
        return TinyEngine(hello, Signal())


class PlainServer:
    """A transport that takes a body of JSON in one line, and answers with one."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._calls = LiveCalls(8)

    async def start(self) -> list[str]:
        """Listens on a free port."""
        self._listener = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        return [f"127.0.0.1:{self._listener.sockets[0].getsockname()[1]}"]

    async def drain(self, seconds: float) -> None:
        """Lets what runs end."""
        await self._calls.drain(seconds)

    async def stop(self) -> None:
        """Closes the listener."""
        self._listener.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        body = await reader.readline()
        services = self._services
        connection = ConnectionDriver(
            services, transport="plain", authenticate=services.keys.caller(None)
        )
        with self._calls.place("local"):
            async with self._calls.opened(connection) as live:
                connection.receive(RequestDecoder().create(body))
                connection.half_close()
                answer = await final_answer(live)
        writer.write(responses.encode(answer.response) + b"\n")
        writer.close()


def open_plain(opening: base.Opening) -> PlainServer:
    """What a line of the table names."""
    return PlainServer(opening.services)


@asynccontextmanager
async def served(**settings: object) -> AsyncIterator[dict[str, str]]:
    """The addresses of all that the settings open, by the names of the transports."""
    free = {"grpc": "127.0.0.1:0", "http": "127.0.0.1:0"}
    config = Config.load({**free, **settings})
    log = telemetry.make_logger("json", "info", io.BytesIO())
    async with opened(config, log, ProcessContext()) as (services, numbers):
        peer = open_peer(services, numbers, ProcessContext())
        servers = open_servers(services, config, peer, ProcessContext())
        try:
            yield {name: (await server.start())[0] for name, server in servers.items()}
        finally:
            for server in servers.values():
                await server.stop()


async def test_an_engine_takes_a_module_and_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ENGINES, "tiny", Entry(f"{__name__}:TinyKind"))
    async with (
        served(engine="tiny") as addresses,
        connect(f"grpc://{addresses['grpc']}") as connection,
    ):
        stream = await connection.create(input="hi")
        async for _ in stream:
            pass
        assert stream.text == "Hello, world."


async def test_models_of_several_engines_are_served_side_by_side(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(ENGINES, "tiny", Entry(f"{__name__}:TinyKind"))
    file = tmp_path / "tieline.toml"
    file.write_text('[models.mine]\nengine = "tiny"\n[models.scripted]\nengine = "scripted"\n')
    async with (
        served(config=file) as addresses,
        connect(f"http://{addresses['http']}") as connection,
    ):
        stream = await connection.create(input="hi", model="mine")
        async for _ in stream:
            pass
        assert stream.text == "Hello, world."


async def test_an_engine_without_a_package_says_which_extra_brings_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(ENGINES, "tiny", Entry("no_such_package:TinyKind", extra="tiny"))
    install = re.escape(how_to_install("tiny"))
    with pytest.raises(EngineMissing, match=f"the tiny engine .* 'no_such_package': {install}"):
        async with served(engine="tiny"):
            pass


async def test_a_transport_takes_a_module_and_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(TRANSPORTS, "plain", f"{__name__}:open_plain")
    async with served(engine="scripted") as addresses:
        assert addresses.keys() == {"grpc", "http", "plain"}
        host, _, port = addresses["plain"].rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(b'{"model": "scripted", "input": "hi"}\n')
        response = json.loads(await reader.readline())
        writer.close()
        assert (response["status"], response["model"]) == ("completed", "scripted")
