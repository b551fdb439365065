"""The HTTP transport against real servers: aiohttp's, and raw sockets."""

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import pytest
from aiohttp import web
from msgspec import Raw

from tests.client.aio.connections import collect, ours
from tests.client.servicer import Speaker, refusal
from tests.client.web import (
    Handler,
    StreamPeer,
    StreamScript,
    endpoint,
    frame,
    posting,
    serving,
    speaking,
)
from tieline import events, requests
from tieline.errors import (
    ApiError,
    BadRequest,
    Cancelled,
    RateLimited,
    RequestTooLarge,
    ServerError,
)
from tieline_client._asks import Ask
from tieline_client.agent import Agent
from tieline_client.aio import Connection, connect
from tieline_client.aio.stream import FULL
from tieline_client.errors import (
    ConnectionLost,
    ConnectTimeout,
    IncompleteStream,
    ProtocolViolation,
    Unsupported,
)
from tieline_client.transports import Options
from tieline_client.transports.sse import open_connection

DONE = b"data: [DONE]\n\n"
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\n"


@asynccontextmanager
async def handled(handler: Handler, **options: Any) -> AsyncIterator[Connection]:
    """A connection to a server of this handler; then no task of ours may be left."""
    async with serving(handler, handler_cancellation=True) as address:
        async with connect(f"http://{address}", options=Options(**options)) as connection:
            yield connection
        assert ours() == []


def connected(script: StreamScript, **options: Any) -> AbstractAsyncContextManager[Connection]:
    """A connection to a server that plays the script for every create."""
    return handled(posting(script), **options)


@asynccontextmanager
async def answered_by(
    *answers: bytes, hold: bool = False, **options: Any
) -> AsyncIterator[Connection]:
    """A connection to a server that sends these bytes, one answer a connection."""
    async with (
        speaking(*answers, hold=hold) as address,
        connect(f"http://{address}", options=Options(**options)) as connection,
    ):
        yield connection


def text_of(create: requests.Create) -> str:
    assert isinstance(create.input, Raw)
    return str(json.loads(bytes(create.input)))


async def echo(peer: StreamPeer) -> None:
    """Answers with the create's own input."""
    text = text_of(peer.create)
    await peer.send(*Speaker(requests.Create(), f"r_{text}").answer(text))
    await peer.write(DONE)


def answer(*pieces: str) -> list[events.Event]:
    return Speaker(requests.Create()).answer(*pieces)


def beginning() -> bytes:
    """created and two deltas."""
    speaker = Speaker(requests.Create())
    said = [speaker.created(), *speaker.open_text(), speaker.delta("par"), speaker.delta("tial")]
    return b"".join(frame(event) for event in said)


async def test_a_create_is_a_post_of_its_body() -> None:
    got: list[StreamPeer] = []

    async def script(peer: StreamPeer) -> None:
        got.append(peer)
        await echo(peer)

    async with serving(posting(script)) as address:
        transport = await open_connection(endpoint("http", address, path="/base", api_key="sk-1"))
        create = requests.Create(
            event_id="create_1",
            stream_id="a",
            model="m",
            input=Raw(b'"hi"'),
            store=False,
            idempotency_key="key",
            trace_context={"traceparent": "00-1-2-01", "tracestate": "a=b"},
        )
        await transport.send(create)
        created = (await transport.receive())[0]
        assert isinstance(created, events.ResponseCreated)
        assert (created.stream_id, created.event_id) == ("a", "create_1")
        await transport.close()
    (peer,) = got
    assert peer.request.path == "/base/v1/responses"
    assert json.loads(peer.body) == {"model": "m", "input": "hi", "store": False, "stream": True}
    headers = peer.request.headers
    assert headers["Authorization"] == "Bearer sk-1"
    assert headers["Content-Type"] == "application/json"
    assert headers["Accept"] == "text/event-stream"
    assert (headers["Idempotency-Key"], headers["traceparent"]) == ("key", "00-1-2-01")
    assert headers["tracestate"] == "a=b"


@pytest.mark.parametrize("end", [DONE, b"", b": bye\n\n", b"data: [DONE]"])
async def test_ev_07_a_terminal_event_is_the_end_with_or_without_done(end: bytes) -> None:
    """EV-07: a stream that closes right behind response.completed is no loss."""

    async def script(peer: StreamPeer) -> None:
        await peer.send(*answer("hello"))
        await peer.write(end)

    async with connected(script) as connection:
        assert connection.transport == "sse"
        for _ in range(2):
            stream = await connection.create(input="a")
            types = [event.type async for event in stream]
            assert (types[0], types[-1]) == ("response.created", "response.completed")
            assert stream.text == "hello"


async def test_ev_07_a_server_that_keeps_the_stream_open_does_not_hold_up_the_lane() -> None:
    """EV-07: nor the line, when it is closed."""

    async def script(peer: StreamPeer) -> None:
        await peer.send(*answer("x"))
        await peer.gone()

    async with connected(script) as connection:
        async with asyncio.timeout(0.9):
            for _ in range(3):
                assert (await (await connection.create(input="a")).result()).text == "x"
            await connection.close()


@pytest.mark.parametrize("size", [1, 7, 1000])
@pytest.mark.parametrize("end", [b"\n", b"\r\n"])
async def test_ev_08_text_is_exact_however_the_bytes_come(size: int, end: bytes) -> None:
    """EV-08: fed in pieces, U+2028, U+0085 and a family emoji come out as they went in."""
    odd = "a\u2028b\u0085\U0001f468\u200d\U0001f469\u200d\U0001f467"
    body = b"".join(frame(event) for event in answer(*odd)).replace(b"\n", end)
    chunks = [body[start : start + size] for start in range(0, len(body), size)]
    chunked = b"".join(b"%x\r\n%s\r\n" % (len(chunk), chunk) for chunk in chunks)
    wire = HEAD + b"transfer-encoding: chunked\r\n\r\n" + chunked + b"0\r\n\r\n"

    async with answered_by(wire) as connection:
        assert (await (await connection.create(input="a")).result()).text == odd


async def test_ev_09_unknown_events_are_handed_over_and_break_nothing() -> None:
    """EV-09: nor does a missing number or a null item."""

    async def script(peer: StreamPeer) -> None:
        speaker = Speaker(requests.Create())
        await peer.send(speaker.created(), *speaker.open_text())
        await peer.write(b'event: acme:gauge\ndata: {"type":"acme:gauge","v":1}\n\n')
        await peer.write(b'data: {"type":"response.output_item.added","item":null}\n\n')
        at = {"item_id": speaker.item_id, "output_index": 0, "content_index": 0}
        delta = json.dumps({"type": "response.output_text.delta", "delta": "x", **at})
        await peer.write(f"data: {delta}\n\n".encode())
        await peer.send(*speaker.close_text("x"), speaker.completed())

    async with connected(script) as connection:
        stream = await connection.lane("a").create(input="a")
        seen = [event async for event in stream]
        assert [event.type for event in seen].count("acme:gauge") == 1
        assert {event.stream_id for event in seen} == {"a"}
        assert stream.text == "x"


async def test_lanes_run_side_by_side_and_one_lane_in_order() -> None:
    running: set[str] = set()
    seen: list[set[str]] = []
    together = asyncio.Event()

    async def script(peer: StreamPeer) -> None:
        name = text_of(peer.create)
        running.add(name)
        seen.append(set(running))
        if {"a1", "b1"} <= running:
            together.set()
        await together.wait()
        running.discard(name)
        await echo(peer)

    async with connected(script) as connection:
        a, b = connection.lane("a"), connection.lane("b")
        streams = [
            await lane.create(input=name)
            for lane, name in ((a, "a1"), (a, "a2"), (b, "b1"), (b, "b2"), (a, "a3"))
        ]
        results = await asyncio.gather(*(stream.result() for stream in streams))
        assert [result.text for result in results] == ["a1", "a2", "b1", "b2", "a3"]
        assert not [names for names in seen if len({name[0] for name in names}) < len(names)]


async def test_one_connection_carries_one_turn_after_the_other() -> None:
    ports: set[int] = set()

    async def script(peer: StreamPeer) -> None:
        assert peer.request.transport is not None
        ports.add(peer.request.transport.get_extra_info("peername")[1])
        await echo(peer)

    async with connected(script) as connection:
        for number in range(5):
            await (await connection.create(input=str(number))).result()
            # The end of the stream, behind its last event, frees the connection.
            turns = [each for each in asyncio.all_tasks() if each.get_name() == "tieline-sse-turn"]
            await asyncio.gather(*turns)
    assert len(ports) == 1


async def test_a_refused_create_is_its_own_error_and_no_one_elses() -> None:
    async def handle(request: web.Request) -> web.StreamResponse:
        peer = StreamPeer(request, await request.read())
        if text_of(peer.create) == "bad":
            error = {"message": "slow down", "code": "rate_limit_exceeded"}
            headers = {"Retry-After": "3", "x-request-id": "req_1"}
            return web.json_response({"error": error}, status=429, headers=headers)
        await echo(peer)
        return peer.response

    async with handled(handle) as connection:
        bad = await connection.create(input="bad")
        good = await connection.create(input="good")
        with pytest.raises(RateLimited, match="slow down") as caught:
            await bad.response()
        assert (caught.value.retry_after, caught.value.request_id) == (3.0, "req_1")
        assert bad.ended
        assert (await good.result()).text == "good"
        assert connection.alive


async def test_an_error_event_before_the_response_is_a_refusal() -> None:
    async def script(peer: StreamPeer) -> None:
        await peer.send(refusal(ApiError.of("invalid_value", "no", param="top_p"), None))
        await peer.gone()

    async with connected(script) as connection:
        stream = await connection.lane("a").create(input="a")
        with pytest.raises(BadRequest, match="no") as caught:
            await stream.response()
        assert caught.value.param == "top_p"


async def test_a_failed_response_is_its_error() -> None:
    async def script(peer: StreamPeer) -> None:
        speaker = Speaker(requests.Create())
        await peer.send(speaker.created(), speaker.failed("server_error", "It broke."))

    async with connected(script) as connection:
        with pytest.raises(ServerError, match="It broke"):
            await (await connection.create(input="a")).response()


@pytest.mark.parametrize("way", ["reset", "fin", "fin in a chunked body", "done"])
async def test_rc_10_a_cut_stream_is_never_a_result(way: str) -> None:
    """RC-10 (a), (b): IncompleteStream with the partial text; other turns go on."""

    async def script(peer: StreamPeer) -> None:
        if text_of(peer.create) == "good":
            await echo(peer)
            return
        if way == "fin":
            peer.response.force_close()
        await peer.write(beginning())
        transport = peer.request.transport
        assert transport is not None
        if way == "reset":
            transport.abort()
        elif way == "done":
            await peer.write(DONE)
        elif way == "fin in a chunked body":
            transport.close()

    async with connected(script) as connection:
        stream = await connection.create(input="bad")
        seen: list[str] = []
        with pytest.raises(IncompleteStream) as caught:
            await collect(stream, seen)
        assert seen.count("response.output_text.delta") == 2
        assert (caught.value.text, caught.value.response_id) == ("partial", "r1")
        with pytest.raises(IncompleteStream):
            await stream.response()
        assert (await (await connection.create(input="good")).result()).text == "good"


async def test_an_unframed_body_that_ends_is_the_end_of_the_stream() -> None:
    """RC-10 (b): a body that ends with its connection."""

    whole = b"".join(frame(event) for event in answer("x"))
    async with answered_by(HEAD + b"\r\n" + beginning(), HEAD + b"\r\n" + whole) as connection:
        with pytest.raises(IncompleteStream):
            await (await connection.create(input="a")).response()
        assert (await (await connection.create(input="b")).result()).text == "x"


@pytest.mark.parametrize(
    ("response", "says"),
    [
        (
            b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n{}",
            "json",
        ),
        (HEAD + b"content-length: 9\r\n\r\ndata: {\n\n", "cannot be read"),
        (b"HTTP/1.1 302 Found\r\nlocation: http://h/\r\ncontent-length: 0\r\n\r\n", "302"),
        (b"garbage\r\n\r\n", "does not speak HTTP there"),
        (b"", "closed the connection and said nothing"),
    ],
)
async def test_what_is_no_event_stream_is_a_loss(response: bytes, says: str) -> None:
    async with answered_by(response) as connection:
        with pytest.raises(ConnectionLost, match=says) as caught:
            await (await connection.create(input="a")).response()
        if "json" in says or "read" in says:
            assert isinstance(caught.value.__cause__, ProtocolViolation)


async def test_an_event_beyond_our_limit_is_told() -> None:
    async def script(peer: StreamPeer) -> None:
        await peer.send(*answer("x" * 50_000))

    async with connected(script, max_receive_bytes=10_000) as connection:
        with pytest.raises((RequestTooLarge, IncompleteStream), match="10000"):
            await (await connection.create(input="a")).response()


async def test_a_server_that_falls_silent_is_lost_after_the_idle_timeout() -> None:
    """RC-06: HTTP has no pings; a comment of the server is a sign of life."""

    async def script(peer: StreamPeer) -> None:
        await peer.write(beginning())
        for _ in range(4):
            await asyncio.sleep(0.1)
            await peer.write(b": heartbeat\n\n")
        await peer.gone()

    async with connected(script, idle_timeout=0.25) as connection:
        stream = await connection.create(input="a")
        async with asyncio.timeout(5):
            with pytest.raises(IncompleteStream, match="silent"):
                await stream.response()
        assert stream.wall is None or stream.wall > 0.4


async def test_a_refused_connection_is_the_turns_loss() -> None:
    async with serving(posting(echo)) as address:
        pass
    async with connect(f"http://{address}") as connection:
        stream = await connection.create(input="a")
        with pytest.raises(ConnectionLost, match=f"^cannot connect to {address}: .*refused"):
            await stream.response()


async def test_a_server_that_accepts_no_connection_is_a_connect_timeout() -> None:
    # A full backlog: the kernel answers no further handshake.
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        port = listener.getsockname()[1]
        fillers = [socket.socket() for _ in range(4)]
        for filler in fillers:
            filler.setblocking(False)
            filler.connect_ex(("127.0.0.1", port))
        options = Options(connect_timeout=0.1)
        async with connect(f"http://127.0.0.1:{port}", options=options) as connection:
            with pytest.raises(ConnectTimeout):
                await (await connection.create(input="a")).response()
        for filler in fillers:
            filler.close()


async def test_append_and_steer_are_refused_here_and_harm_nothing() -> None:
    started = asyncio.Event()
    finish = asyncio.Event()

    async def script(peer: StreamPeer) -> None:
        speaker = Speaker(requests.Create())
        await peer.send(speaker.created())
        started.set()
        await finish.wait()
        await peer.send(*speaker.text("x"), speaker.completed())

    async with connected(script) as connection:
        with pytest.raises(Unsupported, match="append"):
            await connection.create(input="a", append=True)
        with pytest.raises(Unsupported, match=r"response\.append"):
            await connection.append("a")
        stream = await connection.create(input="a")
        await anext(stream)
        with pytest.raises(Unsupported, match=r"response\.steer"):
            await stream.steer("left")
        finish.set()
        assert (await stream.result()).text == "x"


async def test_a_request_beyond_the_servers_limit_is_not_sent() -> None:
    async with connected(echo) as connection:
        with pytest.raises(RequestTooLarge):
            await connection.create(input="x" * 33 * 1024 * 1024)
        assert (await (await connection.create(input="b")).result()).text == "b"


def cancelling(*, status: int) -> tuple[Handler, list[str]]:
    """A server whose turns hang until they are cancelled, by id (200) or by a closed stream."""
    log: list[str] = []
    cancelled = asyncio.Event()

    async def handle(request: web.Request) -> web.StreamResponse:
        if request.path.endswith("/cancel"):
            log.append(request.path)
            cancelled.set()
            return web.json_response({"error": {"message": "no"}}, status=status)
        peer = StreamPeer(request, await request.read())
        if text_of(peer.create) == "next":
            await echo(peer)
            return peer.response
        speaker = Speaker(requests.Create())
        opening = [speaker.created(), *speaker.open_text(), speaker.delta("par")]
        try:
            await peer.send(*opening)
            await cancelled.wait()
            if status != 200:
                await peer.gone()
            await peer.send(speaker.incomplete("cancelled"))
        except asyncio.CancelledError:
            log.append("closed")
            raise
        return peer.response

    return handle, log


@pytest.mark.parametrize("status", [200, 400, 404])
async def test_a_cancel_goes_by_id_and_else_by_closing_the_stream(status: int) -> None:
    handler, log = cancelling(status=status)

    async with handled(handler) as connection:
        stream = await connection.create(input="a")
        following = await connection.create(input="next")
        async for _ in stream:
            if stream.text == "par":
                break
        await stream.cancel()
        await stream.cancel()
        response = await stream.response()
        assert (response.status, response.id, stream.text) == ("cancelled", "r1", "par")
        assert (await following.result()).text == "next"
    assert log[0] == "/v1/responses/r1/cancel"
    assert log[1:] == ([] if status == 200 else ["closed"])


async def test_in_05_a_cancel_that_comes_too_late_leaves_the_end_that_the_server_tells() -> None:
    """400 with this code says that the response has ended: its end is on its way."""
    asked = asyncio.Event()

    async def handle(request: web.Request) -> web.StreamResponse:
        if request.path.endswith("/cancel"):
            asked.set()
            error = {"message": "It has ended.", "code": "not_cancellable"}
            return web.json_response({"error": error}, status=400)
        peer = StreamPeer(request, await request.read())
        speaker = Speaker(requests.Create())
        opening = [speaker.created(), *speaker.open_text(), speaker.delta("whole")]
        await peer.send(*opening)
        await asked.wait()
        await peer.send(*speaker.close_text("whole"), speaker.completed())
        return peer.response

    async with handled(handle) as connection:
        stream = await connection.create(input="a")
        async for _ in stream:
            if stream.text == "whole":
                break
        await stream.cancel()
        response = await stream.response()
        assert (response.status, stream.text) == ("completed", "whole")
        # Of a response that is no turn of this line, as of one that has ended: no error.
        await connection.cancel("resp_elsewhere")


async def test_a_cancel_of_what_waits_is_told_and_frees_its_place() -> None:
    async def script(peer: StreamPeer) -> None:
        if text_of(peer.create) == "good":
            await echo(peer)
        else:
            await peer.gone()

    async with connected(script) as connection:
        sent = await connection.create(input="hang")
        waits = await connection.create(input="waits")
        good = await connection.create(input="good")
        for stream in (waits, sent):
            await stream.cancel()
            with pytest.raises(Cancelled):
                await stream.response()
        assert (await good.result()).text == "good"


async def test_closing_the_line_ends_what_runs_at_the_server_too() -> None:
    ended = asyncio.Event()

    async def script(peer: StreamPeer) -> None:
        try:
            await peer.write(beginning())
            await peer.gone()
        finally:
            ended.set()

    async with connected(script) as connection:
        stream = await connection.create(input="a")
        other = await connection.create(input="b")
        await anext(stream)
        async with asyncio.timeout(5):
            await connection.close()
            await ended.wait()
        with pytest.raises(IncompleteStream):
            await stream.response()
        with pytest.raises(ConnectionLost):
            await other.response()


async def test_a_large_request_goes_in_one_piece() -> None:
    async with connected(echo) as connection:
        text = "x" * 3_000_000
        assert (await (await connection.create(input=text)).result()).text == text


async def test_closing_does_not_wait_for_a_server_that_takes_nothing() -> None:
    # The kernel accepts, and nobody reads.
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        async with connect(f"http://127.0.0.1:{port}") as connection:
            stream = await connection.create(input="x" * 30_000_000)
            accepted, _ = await asyncio.to_thread(listener.accept)
            with accepted:
                await asyncio.to_thread(accepted.recv, 1)
                async with asyncio.timeout(5):
                    await connection.close()
            with pytest.raises(ConnectionLost):
                await stream.response()
    assert ours() == []


async def test_a_reader_that_stops_stops_the_server_and_loses_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """LB-03: what is not read fills the connection; nothing is dropped."""
    count, size = 1500, 20_000
    sent = 0

    async def script(peer: StreamPeer) -> None:
        nonlocal sent
        speaker = Speaker(requests.Create())
        await peer.send(speaker.created(), *speaker.open_text())
        for _ in range(count):
            await peer.send(speaker.delta("x" * size))
            sent += 1
        await peer.send(speaker.incomplete())

    async with connected(script, merge="never") as connection:
        full = asyncio.Event()
        hold_back = connection._hold_back

        def hold_back_and_tell(ask: Ask) -> None:
            hold_back(ask)
            full.set()

        monkeypatch.setattr(connection, "_hold_back", hold_back_and_tell)
        stream = await connection.create(input="a")
        await full.wait()
        assert sent < count
        assert len(stream._buffer) < 2 * FULL
        deltas = [e.delta async for e in stream if isinstance(e, events.OutputTextDelta)]
        assert "".join(deltas) == "x" * size * count


async def test_lb_03_a_burst_of_tiny_deltas_comes_whole_and_in_order() -> None:
    """LB-03: 5,000 deltas in one write."""
    pieces = [chr(97 + index % 26) for index in range(5000)]

    async def script(peer: StreamPeer) -> None:
        await peer.send(*answer(*pieces))

    async with connected(script, merge="never") as connection:
        stream = await connection.create(input="a")
        await anext(stream)
        deltas = [e.delta async for e in stream if isinstance(e, events.OutputTextDelta)]
        assert deltas == pieces


async def test_the_agent_loop_runs_over_http_in_create_shape() -> None:
    parents: list[str | None] = []

    async def script(peer: StreamPeer) -> None:
        create = peer.create
        parents.append(create.previous_response_id)
        speaker = Speaker(requests.Create(), f"r{len(parents)}")
        said = (
            speaker.text("five") if len(parents) > 1 else speaker.call("add", '{"a":2,"b":3}', "c1")
        )
        await peer.send(speaker.created(), *said, speaker.completed())

    def add(a: int, b: int) -> int:
        """Adds."""
        return a + b

    async with connected(script) as connection:
        done = await Agent(connection, tools=[add]).run("2 + 3?")
        assert done.text == "five"
        assert done.turns[0].outputs == ("5",)
    assert parents == [None, "r1"]
