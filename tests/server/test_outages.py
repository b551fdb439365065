"""What an operator sees of a server whose database or upstream is away, over every transport."""

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from tests.support.postgres import Cluster
from tests.support.server_process import ServerProcess, run, serving
from tests.support.switched_proxy import switched
from tests.support.upstream_server import UpstreamServer, upstream, upstream_beside
from tieline.errors import ApiError
from tieline_client import connect
from tieline_server.transports.grpc.server import SERVICES

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


class Answer:
    """What HTTP said."""

    def __init__(
        self, server: ServerProcess, path: str, body: dict[str, Any] | None = None
    ) -> None:
        data = None if body is None else json.dumps(body).encode()
        request = Request(f"http://{server.http}{path}", data, {"Content-Type": "application/json"})
        try:
            answer = urlopen(request, timeout=60)
        except HTTPError as error:
            answer = error
        with answer:
            self.status, self.headers = answer.status, answer.headers
            self.json = json.loads(answer.read())


async def ask(server: ServerProcess, path: str, body: dict[str, Any] | None = None) -> Answer:
    return await asyncio.to_thread(Answer, server, path, body)


async def until(server: ServerProcess, status: int) -> None:
    """Returns once ``/readyz`` says so."""
    async with asyncio.timeout(60):
        while (await ask(server, "/readyz")).status != status:  # noqa: ASYNC110  # as balancers do
            await asyncio.sleep(0.02)


def health(server: ServerProcess) -> dict[str, Any]:
    """What the gRPC health service says, by the name that it is asked for."""
    with grpc.insecure_channel(server.address) as channel:
        # Its type stubs lack this method.
        check = health_pb2_grpc.HealthStub(channel).Check  # type: ignore[attr-defined]
        names = ("", *SERVICES)
        return {name: check(health_pb2.HealthCheckRequest(service=name)).status for name in names}


async def readiness(server: ServerProcess) -> tuple[int, int, set[int]]:
    """The status of /healthz and /readyz; the services' of the health service."""
    told = await asyncio.to_thread(health, server)
    assert told.pop("") == SERVING
    live, ready = await ask(server, "/healthz"), await ask(server, "/readyz")
    return live.status, ready.status, set(told.values())


async def refused_everywhere(server: ServerProcess, **create: Any) -> set[tuple[str, int, bool]]:
    """What a create meets over each transport: code, status, whether it says when to come again."""
    met = set()
    for url in (f"grpc://{server.address}", f"ws://{server.http}", f"http://{server.http}"):
        async with connect(url) as line:
            with pytest.raises(ApiError) as caught:
                await (await line.create(input="hi", **create)).result()
            error = caught.value
            met.add((error.code, error.status, bool(error.retry_after)))
    return met


async def answered_everywhere(server: ServerProcess, **create: Any) -> None:
    for url in (f"grpc://{server.address}", f"ws://{server.http}", f"http://{server.http}"):
        async with connect(url) as line:
            result = await (await line.create(input="hi", **create)).result()
            assert result.response.status == "completed"


async def outage(
    server: ServerProcess, *, begin: Callable[[], object], end: Callable[[], object]
) -> None:
    """The database goes away past the patience, and comes back."""
    await answered_everywhere(server)
    assert await readiness(server) == (200, 200, {SERVING})
    sampled = len(server.lines("turn"))
    begin()
    await until(server, 503)
    assert await readiness(server) == (200, 503, {NOT_SERVING})
    assert (await ask(server, "/readyz")).json == {
        "status": "not_ready",
        "lacking": {"database": "the database does not answer"},
    }
    # This one is made while nobody knows yet how long it will take.
    late = await ask(server, "/v1/responses", {"input": "hi"})
    assert (late.status, late.json["error"]["code"]) == (503, "storage_unavailable")
    assert late.headers["Retry-After"]
    assert await refused_everywhere(server) == {("storage_unavailable", 503, True)}
    await answered_everywhere(server, store=False)
    found = await ask(server, "/v1/responses/resp_1")
    assert (found.status, bool(found.headers["Retry-After"])) == (503, True)
    turns = server.lines("turn")[sampled:]
    assert [turn["outcome"] for turn in turns].count("refused") == 3
    assert [turn["output_tokens"] for turn in turns if turn["outcome"] == "refused"] == [0] * 3
    end()
    await until(server, 200)
    assert await readiness(server) == (200, 200, {SERVING})
    await answered_everywhere(server)
    others = [line["event"] for line in server.lines() if line["event"] != "turn"]
    assert others[others.index("started") + 1 :] == ["database_away", "database_back"]
    told = ("started", "database_away", "database_back")
    assert len({line["pid"] for line in server.lines() if line["event"] in told}) == 1
    assert "Traceback" not in server.log()


def test_op_02_a_sqlite_file_that_is_gone_is_told_and_comes_back(tmp_path: Path) -> None:
    here, elsewhere = tmp_path / "data", tmp_path / "elsewhere"
    here.mkdir()
    flags = ("--store", f"sqlite:///{here}/tieline.db", "--store-patience", "2")
    with serving(*flags) as server:
        moved = outage(
            server,
            begin=lambda: here.rename(elsewhere),
            end=lambda: elsewhere.rename(here),
        )
        asyncio.run(moved)


async def test_op_02_a_postgresql_server_that_stalls_is_told_and_comes_back(
    cluster: Cluster,
) -> None:
    name = urlsplit(cluster.new_database()).path
    async with switched(cluster.socket) as proxy:
        store = f"postgresql://tieline@127.0.0.1:{proxy.port}{name}"
        server = serving("--store", store, "--store-patience", "2")
        # What starts it waits for its first words, and the proxy must not stand still for it.
        running = await asyncio.to_thread(server.__enter__)
        try:
            await outage(running, begin=proxy.stall, end=proxy.mend)
        finally:
            await asyncio.to_thread(server.__exit__, None, None, None)


async def test_op_02_what_began_before_a_short_stall_is_stored_when_it_is_over(
    tmp_path: Path,
) -> None:
    here, elsewhere = tmp_path / "data", tmp_path / "elsewhere"
    here.mkdir()

    def move(what: Path, where: Path) -> None:
        what.rename(where)

    store = ("--store", f"sqlite:///{here}/tieline.db", "--store-patience", "600")
    with serving(*store) as server:
        move(here, elsewhere)
        asking = asyncio.create_task(ask(server, "/v1/responses", {"input": "hi"}))
        await until(server, 503)
        assert not asking.done()
        move(elsewhere, here)
        made = await asking
        assert made.json["status"] == "completed"
        assert (await ask(server, f"/v1/responses/{made.json['id']}")).status == 200


async def test_op_03_a_server_starts_without_its_upstream_and_becomes_ready_when_that_comes() -> (
    None
):
    """It comes, goes, and comes again: no restart is needed."""

    async with upstream(models=("large",)) as model:
        await model.stop()
        flags = ("--engine", "upstream", "--upstream", model.url)
        server = serving(*flags)
        running = await asyncio.to_thread(server.__enter__)
        try:
            await upstream_comes_and_goes(running, model)
        finally:
            await asyncio.to_thread(server.__exit__, None, None, None)


async def upstream_comes_and_goes(server: ServerProcess, model: UpstreamServer) -> None:
    assert await readiness(server) == (200, 503, {NOT_SERVING})
    assert (await ask(server, "/readyz")).json["lacking"] == {"engine": "no engine can be reached"}
    assert await refused_everywhere(server) == {("engine_unavailable", 503, True)}
    assert await refused_everywhere(server, model="large") == {("engine_unavailable", 503, True)}
    assert (await ask(server, "/v1/models")).json["data"] == []
    await model.start()
    await until(server, 200)
    assert await readiness(server) == (200, 200, {SERVING})
    assert [each["id"] for each in (await ask(server, "/v1/models")).json["data"]] == ["large"]
    await answered_everywhere(server)
    assert await refused_everywhere(server, model="none") == {("model_not_found", 404, False)}
    await model.stop()
    while (await ask(server, "/readyz")).status == 200:
        refused = await ask(server, "/v1/responses", {"input": "hi"})
        assert refused.json["error"]["code"] == "engine_unavailable"
    await model.start()
    await until(server, 200)
    await answered_everywhere(server)
    lines = [line for line in server.lines() if line["event"].startswith("engine_")]
    assert [line["event"] for line in lines] == [
        "engine_away",
        "engine_back",
        "engine_away",
        "engine_back",
    ]
    assert lines[0]["reason"] == f"no upstream answers at {model.url}/models"


def test_op_03_an_upstream_that_refuses_the_key_is_no_outage(tmp_path: Path) -> None:
    """Nothing that comes by itself would mend it."""
    with upstream_beside(key="right") as model:
        done = run("--engine", "upstream", "--upstream", model.url, TIELINE_UPSTREAM_KEY="wrong")
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert line.endswith("answers with status 401: it wants another key")


async def test_op_03_one_of_two_engines_serves_while_the_other_is_awaited(tmp_path: Path) -> None:
    config = tmp_path / "tieline.toml"

    def write(text: str) -> None:
        config.write_text(text)

    async with upstream(models=("large",)) as model:
        await model.stop()
        write(
            '[models.small]\nengine = "scripted"\n'
            f'[models.big]\nupstream = "{model.url}"\naliases = ["huge"]\n'
        )
        server = serving("--config", str(config))
        running = await asyncio.to_thread(server.__enter__)
        try:
            assert await readiness(running) == (200, 200, {SERVING})
            await answered_everywhere(running)
            for name in ("big", "huge"):
                met = await refused_everywhere(running, model=name)
                assert met == {("engine_unavailable", 503, True)}
            met = await refused_everywhere(running, model="none")
            assert met == {("model_not_found", 404, False)}
            await model.start()
            async with asyncio.timeout(60):
                while not running.lines("engine_back"):  # noqa: ASYNC110  # another process's
                    await asyncio.sleep(0.02)
            await answered_everywhere(running, model="huge")
        finally:
            await asyncio.to_thread(server.__exit__, None, None, None)
