"""The load client of gRPC beside the real library: the same bytes out, the same events back."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any, cast

import grpc
import pytest

from tests.bench.clients.http_server import looping
from tests.support.event_samples import NUMBERED
from tests.support.server_process import serving
from tieline.codecs import proto
from tieline.v1 import service_pb2
from tieline_bench import workload
from tieline_bench.clients import GrpcConnection, LoadError, take_turn
from tieline_bench.clients.grpc import SERVICE

Behaviour = Callable[[Any], Awaitable[None]]


@contextmanager
def library(behaviour: Behaviour) -> Iterator[str]:
    """grpc.aio serving one behaviour, on a loop of its own; yields the address."""

    async def handle(_: Any, context: Any) -> None:
        await behaviour(context)

    async def start() -> tuple[grpc.aio.Server, int]:
        server = grpc.aio.server()
        handler: grpc.RpcMethodHandler[Any, Any] = grpc.stream_stream_rpc_method_handler(handle)
        generic = grpc.method_handlers_generic_handler(SERVICE, {"Converse": handler})
        server.add_generic_rpc_handlers((generic,))
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        return server, port

    with looping() as run:
        server, port = run(start())
        try:
            yield f"127.0.0.1:{port}"
        finally:
            run(server.stop(None))


@pytest.mark.parametrize("size", [0, 1, 65_536, 1_000_000])
def test_the_library_receives_the_bytes_that_were_sent_and_they_come_back(size: int) -> None:
    async def echo(context: Any) -> None:
        while (data := await context.read()) is not grpc.aio.EOF:
            await context.write(data)

    with library(echo) as address:
        connection = GrpcConnection(address)
        for fill in (b"a", b"b"):
            connection.send(fill * size)
            found: list[bytes] = []
            while not found:
                found = connection.messages()
            assert found == [fill * size]
        connection.close()


def test_the_library_sees_the_key_and_both_see_the_same_events() -> None:
    seen: list[tuple[str, str]] = []
    whole = b"".join(map(proto.encode_event, NUMBERED))

    async def send(context: Any) -> None:
        seen.extend(context.invocation_metadata())
        await context.read()
        await context.write(whole)
        await context.read()

    with library(send) as address:
        connection = GrpcConnection(address, api_key="k")
        connection.recorded = bytearray()
        connection.send(b"")
        found: list[Any] = []
        while len(found) < len(NUMBERED):
            found += connection.receive()
        connection.close()
    assert ("authorization", "Bearer k") in seen
    assert [event.kind for event in found] == [event.type for event in NUMBERED]
    assert connection.recorded == whole
    cut = connection.split(whole)
    assert len(cut) == len(NUMBERED)
    assert service_pb2.ConverseResponse.FromString(b"".join(cut)) == (
        service_pb2.ConverseResponse.FromString(whole)
    )


def test_the_real_client_and_the_load_client_take_the_same_turn() -> None:
    request = workload.create(workload.GRPC, workload.ANSWER)

    async def by_library(address: str) -> list[str]:
        async with grpc.aio.insecure_channel(address) as channel:
            call = channel.stream_stream(f"/{SERVICE}/Converse")()  # type: ignore[var-annotated]
            await call.write(request)
            kinds: list[str] = []
            while not kinds or kinds[-1] != "response.completed":
                message = service_pb2.ConverseResponse.FromString(cast(bytes, await call.read()))
                kinds += [proto.decode_event(event).type for event in message.events]
            return kinds

    with serving() as server:
        kinds = asyncio.run(by_library(server.address))
        connection = GrpcConnection(server.address)
        turn = take_turn(connection, request)
        connection.close()
    assert turn.events == len(kinds)
    assert turn.response_id.startswith("resp_")


def test_a_refused_call_says_its_status() -> None:
    async def refuse(context: Any) -> None:
        await context.abort(grpc.StatusCode.UNAUTHENTICATED, "who are you")

    with library(refuse) as address:
        connection = GrpcConnection(address)
        with pytest.raises(LoadError, match="16 who are you"):
            take_turn(connection, b"")
        connection.close()
