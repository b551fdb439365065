"""The log line of a turn is joined with what its caller and its proxies have (OP-10)."""

import asyncio
import json
from typing import Any
from urllib.request import Request, urlopen

import aiohttp
import grpc
import pytest

from tests.support.server_process import ServerProcess, serving
from tieline.v1 import requests_pb2, service_pb2, service_pb2_grpc

TRACE = "0af7651916cd43dd8448eb211c80319c"
PARENT = f"00-{TRACE}-b7ad6b7169203331-01"
OTHER_TRACE = "1bf7651916cd43dd8448eb211c80319c"

Ids = dict[str, str]


def over_http(server: ServerProcess, headers: Ids, *, stream: bool = False) -> str:
    body = json.dumps({"input": "hi", "stream": stream}).encode()
    head = {"Content-Type": "application/json", **headers}
    request = Request(f"http://{server.http}/v1/responses", body, head)
    with urlopen(request, timeout=60) as answer:
        answer.read()
        return str(answer.headers["x-request-id"])


def over_sse(server: ServerProcess, headers: Ids) -> str:
    return over_http(server, headers, stream=True)


def over_websocket(server: ServerProcess, headers: Ids) -> str:
    async def main() -> str:
        async with (
            aiohttp.ClientSession() as session,
            session.ws_connect(f"http://{server.http}/v1/responses", headers=headers) as socket,
        ):
            await socket.send_json({"type": "response.create", "input": "hi"})
            while (await socket.receive_json())["type"] != "response.completed":
                pass
            return str(socket._response.headers["x-request-id"])

    return asyncio.run(main())


def over_grpc(server: ServerProcess, headers: Ids) -> str:
    asked = service_pb2.CreateRequest(response_create=requests_pb2.ResponseCreate(input_text="hi"))
    with grpc.insecure_channel(server.address) as channel:
        create = service_pb2_grpc.ResponsesServiceStub(channel).Create
        metadata = tuple((name.lower(), value) for name, value in headers.items())
        _, call = create.with_call(asked, metadata=metadata)
        return str(dict(call.trailing_metadata())["x-request-id"])


WAYS = {
    "http": over_http,
    "sse": over_sse,
    "websocket": over_websocket,
    "grpc": over_grpc,
}


@pytest.fixture(scope="module")
def server() -> Any:
    with serving() as running:
        yield running


def line_of(server: ServerProcess, request_id: str) -> dict[str, Any]:
    (line,) = [each for each in server.lines("turn") if each["request_id"] == request_id]
    return line


@pytest.mark.parametrize("transport", WAYS)
def test_op_10_a_turn_has_the_id_that_its_answer_had_and_who_asked(
    transport: str, server: ServerProcess
) -> None:
    line = line_of(server, WAYS[transport](server, {}))
    assert line["request_id"].startswith("req_")
    assert (line["transport"], line["address"]) == (transport, "127.0.0.1")
    assert not line.keys() & {"trace_id", "client_request_id"}


@pytest.mark.parametrize("transport", WAYS)
def test_op_10_what_client_and_proxies_call_it_is_kept(
    transport: str, server: ServerProcess
) -> None:
    given = {
        "X-Request-Id": f"proxy-{transport}",
        "X-Client-Request-Id": "mine/1",
        "traceparent": PARENT,
    }
    assert WAYS[transport](server, given) == f"proxy-{transport}"
    line = line_of(server, f"proxy-{transport}")
    assert (line["client_request_id"], line["trace_id"]) == ("mine/1", TRACE)


@pytest.mark.parametrize("given", ["a b", "a=b", 'a"b', "x" * 257, "caf\u00e9", ""])
@pytest.mark.parametrize("transport", ["http", "sse", "websocket"])
def test_op_10_what_could_forge_a_line_is_no_id(
    given: str, transport: str, server: ServerProcess
) -> None:
    headers = {
        "X-Request-Id": given.encode().decode("latin-1"),
        "X-Client-Request-Id": given.encode().decode("latin-1"),
        "traceparent": f"00-{TRACE}\N{NO-BREAK SPACE}-01",
    }
    line = line_of(server, WAYS[transport](server, headers))
    assert line["request_id"].startswith("req_")
    assert not line.keys() & {"trace_id", "client_request_id"}


def test_op_10_a_message_with_a_trace_of_its_own_has_that_one(server: ServerProcess) -> None:
    """Two turns of one gRPC stream: their request is the same, their traces are not."""
    other = f"00-{OTHER_TRACE}-b7ad6b7169203331-01"
    create = requests_pb2.ResponseCreate(input_text="hi")
    asked = [
        service_pb2.ConverseRequest(response_create=create),
        service_pb2.ConverseRequest(response_create=create, trace_context={"traceparent": other}),
    ]
    with grpc.insecure_channel(server.address) as channel:
        line = service_pb2_grpc.ResponsesServiceStub(channel).Converse(
            iter(asked),
            metadata=(("x-request-id", "stream-1"), ("traceparent", PARENT)),
        )
        assert list(line)
    turns = [each for each in server.lines("turn") if each["request_id"] == "stream-1"]
    assert [turn["trace_id"] for turn in turns] == [TRACE, OTHER_TRACE]
