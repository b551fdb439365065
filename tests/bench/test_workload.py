"""What the servers are asked, and that it is what the benchmark says it is."""

import json
from pathlib import Path

import msgspec

from tests.support.server_process import run
from tieline.codecs import json as json_codec
from tieline.codecs import proto
from tieline.requests import Create
from tieline.v1 import service_pb2
from tieline_bench import workload


def asked(transport: str, **members: str | bool) -> Create:
    raw = workload.create(transport, workload.ANSWER, **members)  # type: ignore[arg-type]
    if transport == workload.GRPC:
        request = proto.decode_request(service_pb2.ConverseRequest.FromString(raw))
    else:
        event = {"type": "response.create", **json.loads(raw)}
        request = json_codec.RequestDecoder().decode(msgspec.json.encode(event))
    assert isinstance(request, Create)
    return request


def test_every_transport_asks_the_same() -> None:
    grpc, websocket, sse = map(asked, workload.TRANSPORTS)
    assert websocket == msgspec.structs.replace(sse, stream=None)
    assert json.loads(bytes(grpc.input)) == json.loads(bytes(websocket.input))  # type: ignore[arg-type]
    assert (grpc.model, grpc.store) == (websocket.model, websocket.store) == ("scripted", False)
    assert sse.stream is True


def test_a_turn_of_a_chain_sends_its_tools_in_full_and_a_kilobyte_of_input() -> None:
    create = asked(workload.GRPC, previous="resp_1", tools=True)
    assert create.previous_response_id == "resp_1"
    assert 20_000 <= len(bytes(create.tools)) < 22_000
    assert 1000 <= len(bytes(create.input)) < 1200  # type: ignore[arg-type]


def test_the_server_takes_the_script_and_the_keys(tmp_path: Path) -> None:
    files = workload.write(tmp_path, tokens=3)
    done = run("--script", str(files.script), "--api-keys", str(files.keys), "--help")
    assert done.returncode == 0
    script = json.loads(files.script.read_text())
    assert script["rules"][0]["emit"]["text"] == " go go go"
    assert workload.KEY not in files.keys.read_text()
