"""The stream of events on the wire: framing to the byte, silence, slow readers."""

import asyncio
import json
from collections.abc import AsyncGenerator
from typing import Any

import pytest

from tests.support.garbage import none_left
from tests.support.grpc_engine import INPUT_TOKENS, Step, endless, gated, text
from tests.support.grpc_harness import run
from tests.support.http_client import Connection, read_events
from tests.support.http_harness import Served, serve
from tests.support.quiet_proxy import QuietProxy
from tests.support.runtime import until
from tieline_server.core.create.limits import Limits
from tieline_server.core.deltas import Accepted, Finish, TextDelta
from tieline_server.core.effects import Prompt
from tieline_server.runtime import ConnectionDriver
from tieline_server.transports import http
from tieline_server.transports.http.sse import WRITE_BYTES, EventStream, comment, frame
from tieline_server.transports.http.tcp_connection import UNSENT_BYTES

PATH = "/v1/responses"
STREAM = {"model": "tiny", "input": "hi", "stream": True, "store": False}


async def stream(served: Served, **members: object) -> bytes:
    """A whole stream, as its bytes."""
    async with served.connection() as client:
        client.request("POST", PATH, {**STREAM, **members})
        assert (await client.head()).status == 200
        return b"".join([chunk async for chunk in client.chunks()])


def test_a_frame_is_the_event_its_data_and_a_blank_line() -> None:
    assert frame(b'{"type":"response.created","n":1}') == (
        b'event: response.created\ndata: {"type":"response.created","n":1}\n\n'
    )
    assert comment("queued") == b": queued\n\n"


def test_line_breaks_between_tokens_of_echoed_json_do_not_end_a_frame() -> None:
    data = b'{"type":"x",\r\n"tools":[\n{"a":"b\\n"}]}'
    framed = frame(data)
    assert framed.count(b"\n") == 3
    assert json.loads(framed.split(b"\n")[1][6:]) == json.loads(data)


async def test_tools_that_came_with_line_breaks_are_echoed_within_one_line() -> None:
    async with serve() as served, served.connection() as client:
        body = json.dumps(
            {**STREAM, "tools": [{"type": "function", "name": "f", "parameters": {"a": 1}}]},
            indent=2,
        )
        client.request("POST", PATH, body.encode())
        await client.head()
        events = await client.events()
        assert events[0]["response"]["tools"][0]["name"] == "f"


@pytest.mark.parametrize(
    ("members", "kind"), [({}, "completed"), ({"max_output_tokens": 1}, "incomplete")]
)
async def test_ev_07_a_stream_ends_with_done_after_its_terminal_event(
    members: dict[str, object], kind: str
) -> None:
    async def counted(prompt: Prompt) -> AsyncGenerator[Step, None]:
        yield [Accepted(input_tokens=INPUT_TOKENS), TextDelta("x")]
        yield [Finish(reason="length" if prompt.max_output_tokens else "stop")]

    async with serve(counted) as served:
        raw = await stream(served, **members)
        assert raw.endswith(b"}\n\ndata: [DONE]\n\n")
        assert raw.count(b"[DONE]") == 1
        assert b"\nid:" not in raw
        assert read_events(raw)[-1]["type"] == f"response.{kind}"


async def test_ev_07_a_failed_response_ends_with_done_too() -> None:
    async def breaks(prompt: Prompt) -> AsyncGenerator[Step, None]:
        yield [Accepted(input_tokens=INPUT_TOKENS), TextDelta("x")]
        raise RuntimeError("a secret")

    async with serve(breaks) as served:
        raw = await stream(served)
        assert raw.endswith(b"}\n\ndata: [DONE]\n\n")
        assert read_events(raw)[-1]["type"] == "response.failed"
        assert b"secret" not in raw


async def test_separators_of_unicode_and_split_characters_arrive_unharmed() -> None:
    pieces = ["a\u2028b", "\u0085", "\U0001f468\u200d\U0001f469", "\r", "\n", "\n\n"]

    async with serve(text(pieces)) as served:
        events = read_events(await stream(served))
        deltas = [event["delta"] for event in events if event["type"].endswith("text.delta")]
        assert "".join(deltas) == "".join(pieces)


async def test_a_write_holds_whole_events_up_to_its_bound_and_a_larger_one_alone() -> None:
    sizes = [10, WRITE_BYTES * 2, 10, WRITE_BYTES // 2, WRITE_BYTES // 2, 10]

    async def burst(prompt: Prompt) -> AsyncGenerator[Step, None]:
        yield [
            Accepted(input_tokens=INPUT_TOKENS),
            *(TextDelta("x" * size) for size in sizes),
            Finish(),
        ]

    async with serve(burst) as served, served.connection() as client:
        client.request("POST", PATH, STREAM)
        await client.head()
        writes = [chunk async for chunk in client.chunks()]
        for write in writes:
            assert write.endswith(b"\n\n")
            assert len(write) <= WRITE_BYTES + 16 or write.count(b"event: ") == 1
        assert any(write.count(b"event: ") > 1 for write in writes)
        deltas = [e for e in read_events(b"".join(writes)) if e["type"].endswith("text.delta")]
        assert [len(event["delta"]) for event in deltas] == sizes


class Counted:
    """A transport that notes what is written to it."""

    def __init__(self, transport: Any, writes: list[bytes]) -> None:
        self._transport = transport
        self._writes = writes

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        self._writes.append(bytes(data))
        self._transport.write(data)


async def test_a_short_turn_leaves_in_one_write_with_its_head_and_its_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A write of its own for the head, and one for the last chunk, would cost as much again."""
    writes: list[bytes] = []
    made: Any = http.tcp_connection.TcpConnection.connection_made

    def counted(connection: http.tcp_connection.TcpConnection, transport: Any) -> None:
        made(connection, Counted(transport, writes))

    monkeypatch.setattr(http.tcp_connection.TcpConnection, "connection_made", counted)

    async with serve() as served:
        body = await stream(served)
        (only,) = writes
        assert only.startswith(b"HTTP/1.1 200 ")
        assert body in only
        assert only.endswith(b"\r\n0\r\n\r\n")


async def test_silence_is_broken_by_a_comment_with_the_phase() -> None:
    gate = asyncio.Event()
    async with serve(gated(gate), heartbeat=0.02) as served, served.connection() as client:
        client.request("POST", PATH, STREAM)
        await client.head()
        seen = b""
        async for chunk in client.chunks():
            seen += chunk
            if seen.count(b": prefill\n\n") == 2:
                gate.set()
        assert read_events(seen)[-1]["type"] == "response.completed"


async def test_gr_05_comments_keep_a_quiet_stream_open_through_a_proxy_that_wants_bytes() -> None:
    """GR-05: as on gRPC, for a balancer that cuts a response on which nothing passes."""

    async def silent_turn(heartbeat: float) -> tuple[str, int]:
        gate = asyncio.Event()
        async with (
            serve(gated(gate), heartbeat=heartbeat) as served,
            QuietProxy(served.port, limit=0.5) as proxy,
        ):
            client = await Connection.open(proxy.port)
            asyncio.get_running_loop().call_later(1.1, gate.set)
            client.request("POST", PATH, STREAM)
            await client.head()
            try:
                return (await client.events())[-1]["type"], proxy.cuts
            except (ConnectionError, asyncio.IncompleteReadError):
                return "cut", proxy.cuts
            finally:
                await client.close()

    assert await silent_turn(heartbeat=0.05) == ("response.completed", 0)
    assert await silent_turn(heartbeat=60.0) == ("cut", 1)


async def test_the_first_event_waits_for_nothing_but_the_engines_acceptance() -> None:
    gate = asyncio.Event()
    async with serve(gated(gate)) as served, served.connection() as client:
        client.request("POST", PATH, STREAM)
        await client.head()
        first = await anext(client.chunks())
        assert first.startswith(b"event: response.created\n")
        gate.set()


@pytest.mark.parametrize("version", ["1.1", "1.0"])
async def test_tokens_that_come_one_by_one_leave_one_by_one_in_the_framing_of_the_version(
    version: str,
) -> None:
    """RFC 9112, 7.1: HTTP/1.0 knows no chunks, and its body ends with the connection."""
    taken = asyncio.Event()
    words = ["a", "b", "c"]

    async def paced(prompt: Prompt) -> AsyncGenerator[Step, None]:
        yield [Accepted(input_tokens=INPUT_TOKENS)]
        for word in words:
            yield [TextDelta(word)]
            await taken.wait()
            taken.clear()
        yield [Finish()]

    async with serve(paced) as served, served.connection() as client:
        body = json.dumps(STREAM).encode()
        client.send(
            b"POST %b HTTP/%b\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            b"Content-Length: %d\r\n\r\n%b" % (PATH.encode(), version.encode(), len(body), body)
        )
        head = await client.head()
        assert head.status == 200
        assert ("transfer-encoding" in head.headers) is (version > "1.0")
        seen = b""
        for word in words:
            piece = await client.reader.readuntil(b'"delta":"%b"' % word.encode())
            assert piece.count(b'"delta":') == 1
            seen += piece
            taken.set()
        seen += await client.reader.readuntil(b"data: [DONE]\n\n")
        others = {line[:6] for line in seen.split(b"\n")} - {b"event:", b"data: ", b""}
        assert bool(others) is (version > "1.0"), "sizes of chunks are lines of their own"
        end = b"\r\n0\r\n\r\n" if version > "1.0" else b""
        assert await client.reader.readexactly(len(end)) == end


async def test_a_reader_that_stops_stops_the_engine_and_loses_nothing() -> None:
    total = 3000

    pieces = [f"{number:06}" + "x" * 1018 for number in range(total)]
    async with (
        serve(text(pieces), limits=Limits(outbox=64)) as served,
        served.connection(receive_buffer=4096) as client,
    ):
        client.request("POST", PATH, STREAM)
        await client.head()
        await served.until(lambda: served.engine.started == 1)
        connection = next(iter(served.server.connections.open))
        transport = connection.transport
        assert transport is not None
        await until(lambda: connection.writing_paused)
        # A write of up to 16 KiB may come on top of a buffer that is just not full.
        assert transport.get_write_buffer_size() <= UNSENT_BYTES + WRITE_BYTES + 64
        async with served.connection() as other:
            assert (await other.ask("GET", "/healthz")).status == 200
        assert not served.records
        events = await client.events()
        deltas = [event["delta"] for event in events if event["type"].endswith("text.delta")]
        assert deltas == pieces


async def test_a_reader_that_takes_nothing_for_too_long_loses_its_stream() -> None:
    async with (
        serve(endless, write_timeout=0.05) as served,
        served.connection(receive_buffer=4096) as client,
    ):
        client.request("POST", PATH, STREAM)
        await client.head()
        await served.until(lambda: len(served.records) == 1)
        assert served.records[0].outcome == "disconnected"
        assert served.engine.cancelled == 1


@pytest.mark.parametrize("patience", [0.05, 30.0], ids=["thrown out", "leaves"])
def test_a_reader_that_stopped_leaves_nothing_for_the_garbage_collector(patience: float) -> None:
    async def main() -> None:
        async with (
            serve(endless, write_timeout=patience) as served,
            served.connection(receive_buffer=4096) as client,
        ):
            client.request("POST", PATH, STREAM)
            await client.head()
            await until(lambda: all(each.writing_paused for each in served.server.connections.open))
            if patience > 1:
                client.reset()
            await served.until(lambda: len(served.records) == 1)

    with none_left(ConnectionDriver, EventStream, http.tcp_connection.TcpConnection):
        run(main())


async def test_merging_joins_only_what_a_slow_reader_has_not_taken() -> None:
    async def burst(prompt: Prompt) -> AsyncGenerator[Step, None]:
        yield [Accepted(input_tokens=INPUT_TOKENS)]
        yield [TextDelta("x") for _ in range(100)]
        yield [Finish()]

    async def deltas(merge: bool) -> int:
        async with serve(burst, merge=merge) as served:
            events = read_events(await stream(served))
            found = [event["delta"] for event in events if event["type"].endswith("text.delta")]
            assert "".join(found) == "x" * 100
            return len(found)

    assert await deltas(False) == 100
    assert await deltas(True) < 100
