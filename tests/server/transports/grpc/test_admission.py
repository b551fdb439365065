"""Who may have a call, before a message of it is gathered."""

import asyncio
import hashlib
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from tests.support.grpc_client import create, status_error
from tests.support.grpc_engine import gated
from tests.support.grpc_harness import responses, serve
from tieline.errors import ApiError
from tieline.v1 import requests_pb2, service_pb2
from tieline.v1.responses_pb2 import RESPONSE_STATUS_COMPLETED
from tieline_server.transports.grpc.admission import KEYLESS_OF_ADDRESS

SERVICE = "/tieline.v1.ResponsesService"
ONE_MESSAGE = (
    "Create",
    "Stream",
    "Resume",
    "Get",
    "Delete",
    "Cancel",
    "ListInputItems",
    "CountInputTokens",
    "Compact",
)
HEALTH = "/grpc.health.v1.Health/"


def begun(channel: grpc.aio.Channel, method: str, *, key: str | None = None) -> Any:
    """A call whose first message does not come."""

    async def nothing() -> AsyncIterator[bytes]:
        await asyncio.Event().wait()
        yield b""

    metadata = None if key is None else (("authorization", f"Bearer {key}"),)
    call: Any = channel.stream_stream(method)
    return call(nothing(), metadata=metadata)


async def ended(call: Any) -> tuple[grpc.StatusCode, ApiError | None]:
    """How a call ends, whoever ends it."""
    return await call.code(), status_error(await call.trailing_metadata())


def keys(folder: Path, **owners: str) -> Path:
    """A file in which each key has its owner."""
    rows = [
        f'[[keys]]\nhash = "sha256:{hashlib.sha256(key.encode()).hexdigest()}"\nowner = "{owner}"\n'
        for key, owner in owners.items()
    ]
    path = folder / "keys.toml"
    path.write_text("\n".join(rows))
    return path


@pytest.mark.parametrize("method", [*ONE_MESSAGE, "Converse"])
async def test_cn_21_a_wrong_key_is_refused_by_the_headers(method: str, tmp_path: Path) -> None:
    async with (
        serve(api_keys=keys(tmp_path, good="a")) as served,
        served.channel() as channel,
    ):
        code, error = await ended(begun(channel, f"{SERVICE}/{method}", key="bad"))
        assert code is grpc.StatusCode.UNAUTHENTICATED
        assert error is not None
        assert error.code == "invalid_api_key"


@pytest.mark.parametrize("method", [*ONE_MESSAGE, "Converse"])
async def test_cn_21_a_first_message_is_due_in_time(method: str) -> None:
    async with serve(first_message_timeout=0.05) as served, served.channel() as channel:
        code, error = await ended(begun(channel, f"{SERVICE}/{method}"))
        assert code is grpc.StatusCode.ABORTED
        assert error is not None
        assert error.code == "idle_timeout"
        assert "within 0.05 seconds" in error.message
        await served.server.live.empty()
        assert len(served.server.live) == 0
        # A second message need not come in time.
        async with served.line() as line:
            await line.turn(create("x"))
            await asyncio.sleep(0.1)
            await line.turn(create("x"))


@pytest.mark.parametrize("method", ["Create", "Converse", "Get"])
async def test_cn_21_calls_of_one_owner_have_a_bound_and_others_are_served(
    method: str, tmp_path: Path
) -> None:
    path = keys(tmp_path, one="a", two="a", other="b")

    async with (
        serve(api_keys=path, max_owner_calls=2, max_calls=3) as served,
        served.channel() as channel,
    ):
        held = [begun(channel, f"{SERVICE}/{method}", key=key) for key in ("one", "two")]
        while len(served.server.live) < 2:  # noqa: ASYNC110
            await asyncio.sleep(0)
        for refused, said in (("one", "owner already has 2"), ("other", "")):
            held.append(begun(channel, f"{SERVICE}/{method}", key=refused))
            if said:
                code, error = await ended(held[-1])
                assert code is grpc.StatusCode.RESOURCE_EXHAUSTED
                assert error is not None
                assert (error.code, error.retry_after) == ("too_many_connections", 1.0)
                assert said in error.message
        while len(served.server.live) < 3:  # noqa: ASYNC110
            await asyncio.sleep(0)
        code, error = await ended(begun(channel, f"{SERVICE}/{method}", key="other"))
        assert error is not None
        assert "server already has 3 calls" in error.message
        for call in held:
            call.cancel()
        while len(served.server.live):  # noqa: ASYNC110
            await asyncio.sleep(0)


@pytest.mark.parametrize("method", ONE_MESSAGE)
async def test_a_call_that_ends_without_a_message_says_so(method: str) -> None:
    async with serve() as served, served.channel() as channel:
        silent: Any = channel.stream_stream(f"{SERVICE}/{method}")
        code, error = await ended(silent(iter(())))
        assert code is grpc.StatusCode.INVALID_ARGUMENT
        assert error is not None
        assert error.code == "invalid_request"


async def test_a_server_that_drains_still_tells_of_what_it_has() -> None:
    gate = asyncio.Event()
    async with serve(gated(gate)) as served, served.channel() as channel:
        stub = responses(channel)
        body = requests_pb2.ResponseCreate(input_text="hi", store=True)
        asked = service_pb2.CreateRequest(response_create=body)
        running = asyncio.ensure_future(stub.Create(asked))
        while not served.engine.started:  # noqa: ASYNC110
            await asyncio.sleep(0)
        draining = asyncio.create_task(served.server.live.drain(30.0))
        await asyncio.sleep(0)
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await stub.Create(asked)
        assert refused.value.code() is grpc.StatusCode.UNAVAILABLE
        with pytest.raises(grpc.aio.AioRpcError) as unknown:
            await stub.Get(service_pb2.GetRequest(response_id="resp_1"))
        assert unknown.value.code() is grpc.StatusCode.NOT_FOUND
        gate.set()
        await draining
        assert (await running).response.status == RESPONSE_STATUS_COMPLETED


async def test_cn_21_health_without_a_message_has_few_places_and_a_time() -> None:
    """And those that wait are bounded by address; who has asked and watches is not counted."""

    async with serve(first_message_timeout=0.3) as served, served.channel() as channel:
        stub: Any = health_pb2_grpc.HealthStub(channel)
        watches = [stub.Watch(health_pb2.HealthCheckRequest()) for _ in range(20)]
        for watch in watches:
            assert (await watch.read()).status == health_pb2.HealthCheckResponse.SERVING
        waiting = [begun(channel, f"{HEALTH}Check") for _ in range(KEYLESS_OF_ADDRESS)]
        waiting += [begun(channel, f"{HEALTH}Watch") for _ in range(3)]
        codes = Counter([await call.code() for call in waiting])
        assert codes == {
            grpc.StatusCode.ABORTED: KEYLESS_OF_ADDRESS,
            grpc.StatusCode.RESOURCE_EXHAUSTED: 3,
        }
        answer = await stub.Check(health_pb2.HealthCheckRequest())
        assert answer.status == health_pb2.HealthCheckResponse.SERVING
        for watch in watches:
            watch.cancel()


async def test_cn_21_connections_without_calls_have_a_bound_too() -> None:
    async with serve(max_connections=2) as served:
        held = [served.channel() for _ in range(2)]
        for channel in held:
            async with asyncio.timeout(10.0):
                await channel.channel_ready()
        reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
        async with asyncio.timeout(10.0):
            assert await reader.read() == b""
        writer.close()
        for channel in held:
            await channel.close()
