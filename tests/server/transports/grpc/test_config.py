"""Settings of the gRPC server, the channel options that they become, and what those do to pings."""

import asyncio
import signal
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import grpc
import pytest

from tests.support.grpc_certificates import Authority
from tests.support.grpc_client import CONNECT, RawConnection, create
from tests.support.grpc_engine import (
    Step,
    gated,
    hello,
    user_text,
)
from tests.support.grpc_harness import Served, serve
from tests.support.grpc_proxy import GOAWAY, PING, FrameProxy
from tests.support.server_process import serving
from tieline.v1 import service_pb2
from tieline_server.config import Config
from tieline_server.core.effects import Prompt
from tieline_server.transports.grpc.config import HEADROOM, INT_MAX, GrpcConfig, Tls


def test_every_option_has_the_name_that_c_core_knows() -> None:
    options = dict(GrpcConfig().options(message_bytes=1024))
    assert options == {
        "grpc.max_receive_message_length": 1024 + HEADROOM,
        "grpc.max_send_message_length": -1,
        "grpc.server_handshake_timeout_ms": 20_000,
        "grpc.http2.min_ping_interval_without_data_ms": 5_000,
        "grpc.keepalive_permit_without_calls": 1,
        "grpc.keepalive_time_ms": 60_000,
        "grpc.keepalive_timeout_ms": 20_000,
        "grpc.http2.ping_timeout_ms": 20_000,
        "grpc.max_allowed_incoming_connections": 4096,
        "grpc.max_concurrent_streams": 1024,
        "grpc.so_reuseport": 0,
    }


def test_pings_that_the_network_bunches_are_not_too_early() -> None:
    options = dict(GrpcConfig(ping_interval=3.0).options(message_bytes=1024))
    assert options["grpc.http2.min_ping_interval_without_data_ms"] == 1_500


def test_the_largest_message_size_stays_a_c_int() -> None:
    options = dict(GrpcConfig().options(message_bytes=INT_MAX))
    assert options["grpc.max_receive_message_length"] == INT_MAX


@pytest.mark.parametrize("flag", ["--max-connections", "--max-calls", "--grpc-ping-interval"])
def test_a_server_starts_with_the_largest_number_that_there_is(flag: str) -> None:
    """The library would end the process without a word."""
    with serving(flag, str(2**63 - 1)) as server:
        server.signal(signal.SIGTERM)
        assert server.wait() == 0
        assert [line["event"] for line in server.lines()] == ["started", "draining", "stopped"]


def test_the_servers_settings_become_the_servers(tmp_path: Path) -> None:
    authority = Authority(tmp_path, "authority")
    server = authority.sign("server")
    config = Config.load(
        {
            "grpc": "127.0.0.1:7001",
            "engine": "scripted",
            "heartbeat": 3.0,
            "write_timeout": 4.0,
            "merge": "never",
            "reflection": True,
            "grpc_ping_interval": 2.0,
            "tls_cert": server.certificate,
            "tls_key": server.key,
            "tls_client_ca": authority.pem.certificate,
        }
    )
    assert GrpcConfig.of(config) == GrpcConfig(
        addresses=("127.0.0.1:7001",),
        tls=Tls(
            certificate=server.certificate.read_bytes(),
            key=server.key.read_bytes(),
            client_ca=authority.pem.certificate.read_bytes(),
        ),
        reflection=True,
        ping_interval=2.0,
        merge=False,
        heartbeat=3.0,
        write_timeout=4.0,
    )


def test_without_tls_settings_the_server_is_in_the_clear() -> None:
    assert GrpcConfig.of(Config.load({"engine": "scripted"})).tls is None


def test_a_tls_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    pem = Authority(tmp_path, "authority").sign("server")
    missing = tmp_path / "missing"
    for files in (
        (missing, pem.key, None),
        (pem.certificate, missing, None),
        (pem.certificate, pem.key, missing),
    ):
        with pytest.raises(FileNotFoundError) as caught:
            Tls.read(*files)
        assert caught.value.filename == str(missing)


def test_tls_files_that_are_no_pem_or_do_not_belong_together_are_named(tmp_path: Path) -> None:
    authority = Authority(tmp_path, "authority")
    one, other = authority.sign("one"), authority.sign("other")
    garbage = tmp_path / "garbage"
    garbage.write_text("garbage")
    for certificate, key, client_ca, blamed in (
        (garbage, garbage, None, garbage),
        (one.certificate, other.key, None, one.certificate),
        (one.certificate, one.key, garbage, garbage),
    ):
        with pytest.raises(OSError, match="PEM") as caught:
            Tls.read(certificate, key, client_ca)
        assert caught.value.filename == str(blamed)


PINGING = [
    ("grpc.keepalive_time_ms", 100),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
]
"""A client's keepalive at a hundredth of the usual time."""


async def test_gr_01_a_client_may_ping_through_a_long_silence_and_an_idle_line() -> None:
    strikes = 2

    async def pinged(served: Served, request: service_pb2.ConverseRequest | None) -> None:
        async with (
            FrameProxy(served.port) as proxy,
            RawConnection(proxy.port, options=PINGING) as line,
        ):
            if request is not None:
                await line.send(request)
                await line.until("response_in_progress")
            await proxy.signal.until(lambda: proxy.from_client[PING] > 2 * strikes)
            await line.turn(create("now", stream_id="other"))
            assert proxy.from_server[GOAWAY] == 0

    async def answer(prompt: Prompt) -> AsyncGenerator[Step, None]:
        quiet = gated(asyncio.Event()) if user_text(prompt) == "quiet" else hello
        async for step in quiet(prompt):
            yield step

    async with serve(answer, ping_interval=0.1) as served:
        await asyncio.gather(pinged(served, create("quiet")), pinged(served, None))


async def test_cn_19_a_client_may_ping_as_often_as_the_setting_says_and_more_often_is_cut() -> None:
    """The library's own client pings once a second, however short a keepalive it is given."""
    strikes = 2
    every_second = [*PINGING, ("grpc.keepalive_time_ms", 1_000)]

    async def at_the_floor() -> None:
        async with (
            serve(ping_interval=1.0) as served,
            FrameProxy(served.port) as proxy,
            RawConnection(proxy.port, options=every_second) as line,
        ):
            await line.turn(create("x"))
            await proxy.signal.until(lambda: proxy.from_client[PING] > 2 * strikes)
            await line.turn(create("y"))
            assert proxy.from_server[GOAWAY] == 0

    async def below_it() -> None:
        async with (
            serve(ping_interval=5.0) as served,
            FrameProxy(served.port) as proxy,
            RawConnection(proxy.port, options=every_second) as line,
        ):
            await line.turn(create("x"))
            code, error = await line.status()
            assert (code, error) == (grpc.StatusCode.UNAVAILABLE, None)
            assert await line.call.details() == "Too many pings"
            assert proxy.from_server[GOAWAY] == 1

    await asyncio.gather(at_the_floor(), below_it())


async def test_gr_01_the_misspelt_option_of_other_servers_would_end_the_same_stream() -> None:
    async def hold(request: Any, context: Any) -> None:
        await context.send_initial_metadata(())
        await asyncio.Event().wait()

    right = "grpc.http2.min_ping_interval_without_data_ms"
    wrong = "grpc.http2.min_recv_ping_interval_without_data_ms"
    options = [
        (wrong if name == right else name, value)
        for name, value in GrpcConfig(ping_interval=0.1).options(message_bytes=2048)
    ]
    server = grpc.aio.server(options=options)
    _, service, method = CONNECT.split("/")
    handler: grpc.RpcMethodHandler[Any, Any] = grpc.stream_stream_rpc_method_handler(hold)
    server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler(service, {method: handler}),)
    )
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with FrameProxy(port) as proxy, RawConnection(proxy.port, options=PINGING) as line:
        code, _ = await line.status()
        assert code is grpc.StatusCode.UNAVAILABLE
        assert proxy.from_server[GOAWAY] == 1
    await server.stop(None)
