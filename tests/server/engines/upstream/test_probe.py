"""What is asked of an upstream at the start; what it cannot be used for is in test_engine.py."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from tests.support.engine_contract import prompt
from tieline_server.engines.base import Model
from tieline_server.engines.upstream import UpstreamEngine, probe
from tieline_server.engines.upstream.probe import UpstreamError
from tieline_server.engines.upstream.replicas import Replica


@asynccontextmanager
async def serving(routes: dict[str, Any]) -> AsyncIterator[str]:
    """A server that answers each path with this JSON."""
    app = web.Application()

    def answer(body: Any) -> Any:
        async def handle(_request: web.Request) -> web.Response:
            return web.json_response(body)

        return handle

    for path, body in {"/v1/chat/completions": {}, **routes}.items():
        app.router.add_route("*", path, answer(body))
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


def probed(routes: dict[str, Any], *, counting: bool = False) -> tuple[list[Model], int]:
    """The models found, and a count."""

    async def main() -> tuple[list[Model], int]:
        async with serving(routes) as url:
            engine = UpstreamEngine([url])
            try:
                await engine.probe()
                count = await engine.count(prompt("hello")) if counting else 0
                return list(engine.models()), count
            finally:
                await engine.close()

    return asyncio.run(main())


@pytest.mark.parametrize(
    ("entry", "window"),
    [
        ({"max_model_len": 4096}, 4096),
        ({"context_length": 4096}, 4096),
        ({"meta": {"n_ctx_train": 8192}}, 8192),
        ({"meta": {"n_ctx": 2048, "n_ctx_train": 8192}}, 2048),
        ({}, None),
    ],
    ids=["vllm", "openrouter", "llama.cpp", "llama.cpp with n_ctx", "others"],
)
def test_a_model_has_its_context_where_the_server_says_it(entry: Any, window: int | None) -> None:
    listed = [{"id": "a", **entry}, {"id": "b"}, {"id": "a"}]
    models, _ = probed({"/v1/models": {"data": listed}})
    assert [(model.id, model.owned_by) for model in models] == [
        ("a", "upstream"),
        ("b", "upstream"),
    ]
    assert models[0].context_window == window


@pytest.mark.parametrize(
    ("routes", "count"),
    [
        ({"/tokenize": {"count": 5, "tokens": [1]}}, 5),
        ({"/tokenize": {"count": 1 << 70}}, None),
        ({"/tokenize": {"count": -1}}, None),
        ({"/apply-template": {"prompt": "x"}, "/tokenize": {"tokens": [1, 2, 3]}}, 3),
        ({"/apply-template": {"prompt": "x"}, "/tokenize": {"tokens": []}}, None),
        ({"/tokenize": {"tokens": []}}, None),
    ],
    ids=[
        "vllm",
        "more than there can be",
        "less than none",
        "llama.cpp",
        "llama.cpp that finds none",
        "one that reads no messages",
    ],
)
def test_tokens_are_counted_in_the_way_that_the_server_has(routes: Any, count: int | None) -> None:
    models = {"/v1/models": {"data": [{"id": "scripted"}]}}
    _, found = probed(models | routes, counting=True)
    _, estimate = probed(models, counting=True)
    assert found == (estimate if count is None else count)


@pytest.mark.parametrize("answer", [{"data": [{"no": "id"}]}, ["a"], {"data": None}])
def test_a_list_that_is_none_is_said_in_one_line(answer: Any) -> None:
    with pytest.raises(UpstreamError, match="no list of models"):
        probed({"/v1/models": answer})


async def test_a_replica_that_takes_connections_and_stands_still_is_not_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(probe, "PROMPT", 0.01)

    never = asyncio.Event()

    async def still(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await never.wait()
        writer.close()

    async with await asyncio.start_server(still, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        replica = Replica(f"http://127.0.0.1:{port}/v1", places=1)
        async with aiohttp.ClientSession() as session:
            assert not await probe.answers(session, replica)
        never.set()
