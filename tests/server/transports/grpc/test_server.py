"""The gRPC server as a server: addresses, TLS, keys, health, reflection, its end."""

import asyncio
import hashlib
import json
import os
import ssl
import subprocess
import sys
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2

from tests.support.grpc_certificates import Authority
from tests.support.grpc_client import RawConnection, create, kind
from tests.support.grpc_engine import tool_call
from tests.support.grpc_harness import serve
from tests.support.signal import PATIENCE
from tieline_server.transports.grpc.config import GrpcConfig, Tls
from tieline_server.transports.grpc.server import HEALTH, MODELS, REFLECTION, RESPONSES, GrpcServer

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING
NAMES = ("", RESPONSES, MODELS)


async def test_port_0_binds_a_free_port_and_the_address_says_which() -> None:
    async with serve() as served:
        assert served.port > 0
        async with served.line() as line:
            await line.turn(create("x"))


async def test_every_address_is_served() -> None:
    async with serve() as served:
        config = GrpcConfig(addresses=("127.0.0.1:0", "127.0.0.1:0"), stop_grace=0.05)
        server = GrpcServer(served.services, config)
        bound = await server.start()
        assert len(set(bound)) == 2
        for address in bound:
            async with RawConnection(int(address.rpartition(":")[2])) as line:
                await line.turn(create("x"))
        await server.stop()


async def test_an_address_in_use_is_an_os_error_that_names_it() -> None:
    async with serve() as served:
        taken = f"127.0.0.1:{served.port}"
        server = GrpcServer(served.services, GrpcConfig(addresses=(taken,)))
        with pytest.raises(OSError, match=taken):
            await server.start()
        await server.stop()


async def test_stop_is_idempotent_and_needs_no_start() -> None:
    async with serve() as served:
        await served.server.stop()
        await served.server.stop()
        await GrpcServer(served.services, GrpcConfig()).stop()


async def test_stop_ends_lines_that_are_open() -> None:
    async with serve() as served, served.line() as line:
        await line.turn(create("x"))
        await served.server.stop()
        code, _ = await line.status()
        assert code is grpc.StatusCode.UNAVAILABLE
        assert not served.server.creates.readers


async def test_tls_serves_a_client_that_trusts_the_authority(tmp_path: Path) -> None:
    authority = Authority(tmp_path, "authority")
    server = authority.sign("server")
    roots = authority.pem.certificate.read_bytes()

    tls = Tls.read(server.certificate, server.key)
    async with serve(tls=tls) as served:
        trusting = grpc.ssl_channel_credentials(roots)
        async with served.line(credentials=trusting, host="localhost") as line:
            assert kind((await line.turn(create("x")))[-1]) == "response_completed"
        async with served.line() as clear:
            code, _ = await clear.status()
            assert code is grpc.StatusCode.UNAVAILABLE


async def test_mtls_serves_only_clients_with_a_certificate_of_its_authority(tmp_path: Path) -> None:
    authority = Authority(tmp_path, "authority")
    stranger = Authority(tmp_path, "stranger")
    server, client, foreign = authority.sign("server"), authority.sign("client"), stranger.sign("x")
    roots = authority.pem.certificate.read_bytes()

    tls = Tls.read(server.certificate, server.key, authority.pem.certificate)
    async with serve(tls=tls) as served:
        known = grpc.ssl_channel_credentials(
            roots, client.key.read_bytes(), client.certificate.read_bytes()
        )
        async with served.line(credentials=known, host="localhost") as line:
            assert kind((await line.turn(create("x")))[-1]) == "response_completed"
        for refused in (
            grpc.ssl_channel_credentials(roots),
            grpc.ssl_channel_credentials(
                roots, foreign.key.read_bytes(), foreign.certificate.read_bytes()
            ),
        ):
            async with served.line(credentials=refused, host="localhost") as line:
                code, _ = await line.status()
                assert code is grpc.StatusCode.UNAVAILABLE


STALLED = {
    "in the clear, silent": b"",
    "in the clear, half a preface": b"PRI * HTTP/2.0\r\n",
    "in the clear, a preface and no settings": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "TLS, silent": b"",
    "TLS, half a hello": b"\x16\x03\x01\x20\x00\x01",
    "TLS, done, and no settings": None,
}
"""How a connection begins that then says no more; None: with a handshake that is right."""


@pytest.mark.parametrize("said", STALLED)
async def test_cn_22_a_connection_that_stalls_before_it_speaks_http2_is_ended(
    said: str, tmp_path: Path
) -> None:
    authority = Authority(tmp_path, "authority")
    server = authority.sign("server")
    tls = Tls.read(server.certificate, server.key) if said.startswith("TLS") else None
    roots = authority.pem.certificate
    trusting = grpc.ssl_channel_credentials(roots.read_bytes()) if tls else None
    context = ssl.create_default_context(cafile=roots)
    context.set_alpn_protocols(["h2"])

    async with (
        serve(tls=tls, handshake_timeout=0.5) as served,
        served.line(credentials=trusting, host="localhost") as line,
    ):
        await line.turn(create("x"))
        begun = STALLED[said]
        reader, writer = await asyncio.open_connection(
            "localhost", served.port, ssl=context if begun is None else None
        )
        writer.write(begun or b"")
        # What it is told is of HTTP/2; that it ends is what counts.
        await asyncio.wait_for(reader.read(), PATIENCE)
        writer.transport.abort()
        # The time is that of the handshake: one that speaks is not ended by it.
        await line.turn(create("y"))


def write_key(path: Path, key: str) -> None:
    digest = hashlib.sha256(key.encode()).hexdigest()
    path.write_text(f'[[keys]]\nhash = "sha256:{digest}"\nowner = "ann"\n')


async def test_a_line_without_a_known_key_ends_before_any_event(tmp_path: Path) -> None:
    keys = tmp_path / "keys.toml"
    write_key(keys, "right")

    async with serve(api_keys=keys) as served:
        for metadata in ([], [("authorization", "Bearer wrong")]):
            async with served.line(metadata=metadata) as line:
                code, error = await line.status()
                assert code is grpc.StatusCode.UNAUTHENTICATED
                assert error is not None
                assert error.code == "invalid_api_key"
        async with served.line(metadata=[("authorization", "Bearer right")]) as line:
            await line.turn(create("x"))


async def test_a_key_that_is_revoked_ends_its_line_at_the_next_create(tmp_path: Path) -> None:
    keys = tmp_path / "keys.toml"
    write_key(keys, "right")
    now = [0.0]

    async with (
        serve(api_keys=keys, clock=lambda: now[0]) as served,
        served.line(metadata=[("authorization", "Bearer right")]) as line,
    ):
        await line.turn(create("x"))
        write_key(keys, "another one")
        now[0] += 2.0
        await line.send(create("y"))
        (event,) = await line.until("error")
        assert (event.error.error.code, event.error.status) == ("invalid_api_key", 401)
        code, error = await line.status()
        assert code is grpc.StatusCode.UNAUTHENTICATED
        assert error is not None
        assert error.code == "invalid_api_key"


async def test_health_answers_for_the_server_and_each_service() -> None:
    assert (RESPONSES, MODELS) == ("tieline.v1.ResponsesService", "tieline.v1.ModelsService")
    async with serve() as served, served.channel() as channel:
        stub: Any = health_pb2_grpc.HealthStub(channel)
        for name in ("", RESPONSES, MODELS):
            answer = await stub.Check(health_pb2.HealthCheckRequest(service=name))
            assert answer.status == SERVING
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stub.Check(health_pb2.HealthCheckRequest(service="nobody"))
        assert caught.value.code() is grpc.StatusCode.NOT_FOUND


async def test_a_health_watch_stays_open_and_sees_the_drain_begin() -> None:
    async with serve() as served, served.channel() as channel, served.line() as line:
        await line.call.initial_metadata()
        stub: Any = health_pb2_grpc.HealthStub(channel)
        watch = stub.Watch(health_pb2.HealthCheckRequest(service=RESPONSES))
        assert (await watch.read()).status == SERVING
        draining = asyncio.create_task(served.server.drain(30.0))
        assert (await watch.read()).status == NOT_SERVING
        await draining


ALPHA = "grpc.reflection.v1alpha.ServerReflection"


async def test_op_02_the_health_of_the_services_follows_the_readiness() -> None:
    """That of the server as a whole does not: it lives."""

    async with serve() as served, served.channel() as channel:
        stub: Any = health_pb2_grpc.HealthStub(channel)
        readiness = served.services.readiness
        watch = stub.Watch(health_pb2.HealthCheckRequest(service=RESPONSES))
        assert (await watch.read()).status == SERVING
        readiness.lack("database", "it is away")
        assert (await watch.read()).status == NOT_SERVING
        told = [await stub.Check(health_pb2.HealthCheckRequest(service=name)) for name in NAMES]
        assert [answer.status for answer in told] == [SERVING, NOT_SERVING, NOT_SERVING]
        readiness.have("database")
        assert (await watch.read()).status == SERVING
        told = [await stub.Check(health_pb2.HealthCheckRequest(service=name)) for name in NAMES]
        assert [answer.status for answer in told] == [SERVING] * 3


@pytest.mark.parametrize("name", [REFLECTION, ALPHA])
async def test_cn_18_reflection_answers_under_both_of_its_names(name: str) -> None:
    """Each lists the services, and has the schema of each that it lists."""

    async with serve(reflection=True) as served, served.channel() as channel:
        asked: Any = channel.stream_stream(
            f"/{name}/ServerReflectionInfo",
            request_serializer=reflection_pb2.ServerReflectionRequest.SerializeToString,
            response_deserializer=reflection_pb2.ServerReflectionResponse.FromString,
        )()
        await asked.write(reflection_pb2.ServerReflectionRequest(list_services=""))
        services = [each.name for each in (await asked.read()).list_services_response.service]
        assert services == sorted((RESPONSES, MODELS, HEALTH, REFLECTION, ALPHA))
        for service in services:
            await asked.write(
                reflection_pb2.ServerReflectionRequest(file_containing_symbol=service)
            )
            answer = await asked.read()
            assert answer.file_descriptor_response.file_descriptor_proto, service
        await asked.write(reflection_pb2.ServerReflectionRequest(file_containing_symbol="no"))
        missing = (await asked.read()).error_response.error_code
        assert missing == grpc.StatusCode.NOT_FOUND.value[0]
        await asked.done_writing()
        assert await asked.code() is grpc.StatusCode.OK


@pytest.mark.parametrize("protocol", ["grpc-v1", "grpc-v1alpha"])
async def test_cn_18_buf_lists_every_method_by_either_protocol(protocol: str) -> None:
    async with serve(reflection=True) as served:
        process = await asyncio.create_subprocess_exec(
            Path(sys.executable).with_name("buf"), "curl", "--http2-prior-knowledge",
            "--protocol", "grpc", "--reflect-protocol", protocol, "--list-methods",
            f"http://127.0.0.1:{served.port}",
            stdout=subprocess.PIPE, env={**os.environ, "NO_COLOR": "1"},
        )  # fmt: skip
        said, _ = await asyncio.wait_for(process.communicate(), PATIENCE)
        assert process.returncode == 0
        assert {f"{RESPONSES}/Converse", f"{REFLECTION}/ServerReflectionInfo"} <= {
            *said.decode().split()
        }


async def test_reflection_is_unknown_where_it_is_off() -> None:
    async with serve() as served, served.channel() as channel:
        for name in (REFLECTION, ALPHA):
            # Nothing is written: a write that meets the refusal would be an error of its own.
            asked: Any = channel.stream_stream(f"/{name}/ServerReflectionInfo")()
            assert await asked.code() is grpc.StatusCode.UNIMPLEMENTED


class Buf:
    """``buf curl`` on one Converse stream: JSON in by its stdin, JSON out as it comes."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self._text = ""

    @classmethod
    async def connect(cls, port: int) -> "Buf":
        command = Path(sys.executable).with_name("buf")
        process = await asyncio.create_subprocess_exec(
            command, "curl", "--http2-prior-knowledge", "--protocol", "grpc", "--data", "@-",
            f"http://127.0.0.1:{port}/{RESPONSES}/Converse",
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, env={**os.environ, "NO_COLOR": "1"},
        )  # fmt: skip
        return cls(process)

    async def send(self, message: dict[str, Any]) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(message).encode() + b"\n")
        await self._process.stdin.drain()

    async def until(self, arm: str) -> dict[str, Any]:
        """The first event with this arm, whole."""
        assert self._process.stdout is not None
        while True:
            while (message := self._whole()) is not None:
                for event in message["events"]:
                    if arm in event:
                        found: dict[str, Any] = event
                        return found
            data = await asyncio.wait_for(self._process.stdout.read(65536), PATIENCE)
            assert data, f"buf curl ended before {arm}"
            self._text += data.decode()

    def _whole(self) -> dict[str, Any] | None:
        try:
            message, end = json.JSONDecoder().raw_decode(self._text)
        except json.JSONDecodeError:
            return None
        self._text = self._text[end:].lstrip()
        assert isinstance(message, dict)
        return message

    async def close(self) -> int:
        """Closes its stdin, which half-closes the stream; returns the exit status."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        return await asyncio.wait_for(self._process.wait(), PATIENCE)


async def test_buf_curl_with_reflection_drives_a_turn_in_create_shape() -> None:
    async with serve(tool_call, reflection=True) as served:
        buf = await Buf.connect(served.port)
        await buf.send({"responseCreate": {"inputText": "look"}})
        first = (await buf.until("responseCompleted"))["response"]
        call_id = first["output"][0]["functionCall"]["callId"]
        result = {"functionCallOutput": {"callId": call_id, "text": "a cat"}}
        await buf.send(
            {
                "responseCreate": {
                    "previousResponseId": first["id"],
                    "inputItems": {"items": [result]},
                }
            }
        )
        second = (await buf.until("responseCompleted"))["response"]
        assert second["previousResponseId"] == first["id"]
        assert second["output"][0]["message"]["parts"]["parts"][0]["text"]["text"] == "seen"
        assert await buf.close() == 0


async def test_buf_curl_with_reflection_drives_a_turn_in_append_shape() -> None:
    async with serve(tool_call, reflection=True) as served:
        buf = await Buf.connect(served.port)
        await buf.send({"responseCreate": {"inputText": "look", "append": True}})
        held = (await buf.until("responseDone"))["response"]
        call_id = held["output"][0]["functionCall"]["callId"]
        result = {"functionCallOutput": {"callId": call_id, "text": "a cat"}}
        await buf.send({"responseAppend": {"inputItems": {"items": [result]}}})
        done = (await buf.until("responseCompleted"))["response"]
        assert done["id"] == held["id"]
        assert len(done["output"]) == 2
        assert await buf.close() == 0
