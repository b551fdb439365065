"""CN-11: no credential is in any log, whichever library writes it, nor in what others are told."""

import asyncio
import hashlib
import json
import socket
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import grpc
import pytest

from tests.support.counted_server import CountedServer, counting
from tests.support.http_client import request_bytes
from tests.support.websocket_client import frame

SECRET: Final = "sk-tieline-s3cr3t"
PATH: Final = "/v1/responses"
CREATE: Final = {"model": "scripted", "store": False, "input": "hi"}
UPGRADE: Final = {
    "Upgrade": "websocket",
    "Connection": "Upgrade",
    "Sec-WebSocket-Version": "13",
    "Sec-WebSocket-Key": "AAAAAAAAAAAAAAAAAAAAAA==",
}

AUTHORIZATIONS: Final = (
    f"Bearer {SECRET}",
    f"bearer {SECRET}\x80\xff",
    f"Basic {SECRET}",
    f"Digest username={SECRET}",
    SECRET,
    f"Bearer {SECRET} {SECRET}",
    f"Bearer {SECRET}\x01",
)
SUBPROTOCOLS: Final = (
    f"responses, openai-insecure-api-key.{SECRET}",
    f"openai-insecure-api-key.{SECRET}",
    f"realtime,openai-insecure-api-key.{SECRET},openai-beta.realtime-v1",
    f"openai-insecure-api-key.{SECRET}\x80",
    f'"{SECRET}"',
)


def http_requests() -> list[bytes]:
    """Sound and broken ones, with the secret wherever it can be."""
    heads = [{"Authorization": each} for each in AUTHORIZATIONS]
    heads += [
        {"Cookie": SECRET},
        {"X-Api-Key": SECRET},
        {"Proxy-Authorization": f"Bearer {SECRET}"},
    ]
    heads += [{"Host": f"{SECRET}@localhost"}, {"Origin": f"https://{SECRET}.example"}]
    close = {"Connection": "close"}
    found = [request_bytes("POST", PATH, CREATE, headers={**close, **head}) for head in heads]
    found += [request_bytes("GET", PATH, headers={**UPGRADE, **head}) for head in heads]
    for offer in SUBPROTOCOLS:
        found.append(
            request_bytes("GET", PATH, headers={**UPGRADE, "Sec-WebSocket-Protocol": offer})
        )
    queries = (f"?api_key={SECRET}", f"?key={SECRET}%ff", f"?x-tieline-extensions={SECRET}")
    for query in queries:
        found += [
            request_bytes("POST", PATH + query, CREATE, headers=close),
            request_bytes("GET", PATH + query, headers=UPGRADE),
            request_bytes("GET", f"/v1/responses/resp_1{query}", headers=close),
            request_bytes("GET", f"/nowhere{query}", headers=close),
        ]
    broken = request_bytes(
        "POST", PATH, CREATE, headers={**close, "Authorization": f"Bearer {SECRET}"}
    )
    found += [
        broken.replace(b"HTTP/1.1", b"HTTP/9.9"),
        broken.replace(b"HTTP/1.1", f"HTTP/{SECRET}".encode()),
        broken.replace(b"Authorization:", b"Authorization :"),
        broken.replace(b"Authorization:", b"Authorization"),
        broken.replace(b"Bearer ", b"Bearer\r\n "),
        broken.replace(b"Bearer ", b"Bearer\n"),
        broken.replace(b"Content-Length: ", b"Content-Length: x"),
        broken.replace(b"Content-Length: ", f"Content-Length: {SECRET}".encode()),
        broken.replace(b"POST ", f"{SECRET} ".encode()),
        broken.replace(b"POST ", f"POST http://user:{SECRET}@[".encode()),
        broken[:-20],
        SECRET.encode() + b"\r\n\r\n",
        b"\x16\x03\x01" + SECRET.encode(),
    ]
    return found


def said(address: str, data: bytes) -> bytes:
    """What is answered to it; frames that are none follow an upgrade."""
    host, _, port = address.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=30.0) as connection:
        connection.sendall(data)
        answer = b""
        if b"websocket" in data:
            answer = connection.recv(65536)
            connection.sendall(frame(SECRET.encode()) + frame(b"\xff" + SECRET.encode()))
            while answer.startswith(b"HTTP/1.1 101") and b"\x88" not in answer[-128:]:
                answer += connection.recv(65536)
            return answer
        if not data.endswith((b"}", b"\r\n\r\n")) or b"Connection: " not in data:
            # The server closes once it has answered any other one.
            connection.shutdown(socket.SHUT_WR)
        while more := connection.recv(65536):
            answer += more
    return answer


async def grpc_calls(address: str, *, keys: bool) -> None:
    """With the secret in metadata, in a name, and as a message that is none."""
    kinds = [
        (("authorization", f"Bearer {SECRET}"),),
        (("authorization", f"Basic {SECRET}"),),
        (("x-key-bin", SECRET.encode()), ("cookie", SECRET)),
    ]
    async with grpc.aio.insecure_channel(address) as channel:
        for metadata in kinds:
            for method in ("ResponsesService/Create", "ResponsesService/Converse", SECRET):
                rpc: Any = channel.stream_stream(f"/tieline.v1.{method}")
                call = rpc(iter([SECRET.encode()]), metadata=metadata)
                with suppress(grpc.aio.AioRpcError):
                    async for _ in call:
                        pass
                assert await call.code() is not grpc.StatusCode.OK or not keys


@pytest.mark.parametrize("keys", [False, True])
def test_cn_11_no_credential_is_in_any_log_of_any_library(tmp_path: Path, keys: bool) -> None:
    settings: dict[str, Any] = {}
    if keys:
        digest = hashlib.sha256(b"another").hexdigest()
        path = tmp_path / "keys.toml"
        path.write_text(f'[[keys]]\nhash = "sha256:{digest}"\nowner = "a"\n')
        settings["api_keys"] = str(path)
    with counting(log_level="debug", **settings) as server:
        for request in http_requests():
            said(server.http, request)
        said(server.address, SECRET.encode())
        asyncio.run(grpc_calls(server.address, keys=keys))
        assert still_serves(server, keys)
        log = server.log()
    assert SECRET not in log
    assert SECRET.removeprefix("sk-") not in log


def still_serves(server: CountedServer, keys: bool) -> bool:
    head = {"Connection": "close", **({"Authorization": "Bearer another"} if keys else {})}
    answer = said(server.http, request_bytes("POST", PATH, CREATE, headers=head))
    body: dict[str, Any] = json.loads(answer.partition(b"\r\n\r\n")[2])
    return bool(body["status"] == "completed")
