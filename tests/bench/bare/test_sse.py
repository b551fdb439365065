"""The bare SSE server, which writes HTTP by hand, as a client reads it that is not ours."""

from collections.abc import Iterator
from contextlib import closing, contextmanager
from http.client import HTTPConnection
from pathlib import Path

import pytest

from tests.bench.bare.floor import turns
from tieline import events
from tieline.codecs import json
from tieline_bench import workload
from tieline_bench.bare.base import DELTA_FILE, END_FILE, TOKENS, TURN_FILE, TURNS
from tieline_bench.clients import SseConnection
from tieline_bench.processes import bare

TURN, DELTA, END = b"data: turn\n\n" * 28, b"data: go\n\n", b"data: go\n\ndata: [DONE]\n\n"
TOKENS_A_STREAM = 30
WAIT = 30.0
BODY = b'{"input":"' + b"x" * 300_000 + b'"}'
"""More than one read of the server's."""


@contextmanager
def serving(folder: Path, mode: str) -> Iterator[str]:
    for name, content in ((TURN_FILE, TURN), (DELTA_FILE, DELTA), (END_FILE, END)):
        (folder / name).write_bytes(content)
    with bare(workload.SSE, folder, mode=mode, tokens=TOKENS_A_STREAM, rate=1000) as server:
        address = server.address(workload.SSE)
        assert address is not None
        yield address


def connection_to(address: str) -> closing[HTTPConnection]:
    connection = HTTPConnection(address, timeout=WAIT)
    connection.connect()
    return closing(connection)


@pytest.mark.parametrize(
    ("mode", "body"), [(TURNS, TURN), (TOKENS, DELTA * (TOKENS_A_STREAM - 1) + END)]
)
def test_each_response_is_whole_and_the_connection_stays_usable(
    mode: str, body: bytes, tmp_path: Path
) -> None:
    with serving(tmp_path, mode) as address, connection_to(address) as connection:
        opened = connection.sock
        for request in (b"{}", BODY, b"{}"):
            connection.request("POST", "/v1/responses", request)
            response = connection.getresponse()
            assert (response.status, response.version) == (200, 11)
            assert response.headers.get_content_type() == "text/event-stream"
            assert response.read() == body
            # http.client dials anew where a response said that it was the last one.
            assert connection.sock is opened


def test_a_request_is_read_to_its_end_before_it_is_answered(tmp_path: Path) -> None:
    with serving(tmp_path, TURNS) as address, connection_to(address) as connection:
        connection.putrequest("POST", "/v1/responses")
        connection.putheader("Content-Length", "4")
        connection.endheaders(b"{}")
        # The half came first: were it answered, its answer would be here with the other's.
        with connection_to(address) as other:
            other.request("POST", "/v1/responses", b"{}")
            other.getresponse().read()
        connection.sock.setblocking(False)
        with pytest.raises(BlockingIOError):
            connection.sock.recv(1)
        connection.sock.settimeout(WAIT)
        connection.send(b"{}")
        assert connection.getresponse().read() == TURN


def encode(event: events.Event) -> bytes:
    """A frame of a stream of events."""
    return b"event: %b\ndata: %b\n\n" % (event.type.encode(), json.encode(event))


def test_each_request_is_answered_by_the_whole_turn(tmp_path: Path) -> None:
    taken = turns("sse", tmp_path, connect=SseConnection, encode=encode, mode=TURNS, count=3)
    assert [(turn.events, turn.response_id, turn.text) for turn in taken] == [
        (3, "resp_1", "go ")
    ] * 3


@pytest.mark.parametrize("tokens", [1, 2, 50])
def test_a_stream_has_all_its_tokens_and_one_end(tmp_path: Path, tokens: int) -> None:
    taken = turns(
        "sse", tmp_path, connect=SseConnection, encode=encode, mode=TOKENS, count=2, tokens=tokens
    )
    assert [(turn.events, turn.text) for turn in taken] == [(tokens + 1, "go " * tokens)] * 2
