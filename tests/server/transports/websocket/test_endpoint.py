"""The life of a connection: how many there may be, how each ends, and that nothing is left."""

import asyncio
import gc
import hashlib
import json
import os
from collections.abc import AsyncGenerator, Awaitable, Callable
from pathlib import Path

import pytest
import websockets

from tests.support.garbage import none_left
from tests.support.grpc_engine import INPUT_TOKENS, Step, gated, hello, text, tool_call
from tests.support.websocket_client import CLOSE, PING, TERMINAL, RawSocket, Refused, frame
from tests.support.websocket_harness import Served, run, serve
from tieline.events import ResponseCreated
from tieline_server.core.deltas import Accepted, TextDelta
from tieline_server.core.effects import Prompt
from tieline_server.runtime import ConnectionDriver
from tieline_server.transports.websocket.stream import HIGH_WATER, ConnectionSocket

KEY = "sk-test"


def write_keys(path: Path, *keys: str) -> Path:
    rows = [
        f'[[keys]]\nhash = "sha256:{hashlib.sha256(key.encode()).hexdigest()}"\nowner = "a"\n'
        for key in keys
    ]
    path.write_text("\n".join(rows) or "keys = []\n")
    return path


def close(code: int | None, reason: bytes = b"") -> bytes:
    return frame(b"" if code is None else code.to_bytes(2, "big") + reason, opcode=CLOSE)


async def settled(condition: Callable[[], bool], *, seconds: float = 10.0) -> None:
    """Lets the loop run until this holds: the kernel tells of a lost peer by no event of ours."""
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0)


# The peer ends it.


@pytest.mark.parametrize(("sent", "back"), [(1000, 1000), (1001, 1001), (4321, 4321), (None, 1000)])
async def test_a_close_is_answered_with_its_own_code(sent: int | None, back: int) -> None:
    async with serve() as served, served.socket() as socket:
        await socket.turn()
        await socket.raw(close(sent))
        assert (await socket.closed())[0] == back
        await socket.gone()


async def test_frames_after_a_close_are_ignored() -> None:
    async with serve() as served, served.socket() as socket:
        create = b'{"type":"response.create","model":"tiny","store":false,"input":"x"}'
        await socket.raw(close(1000) + frame(create) + frame(b"{") + frame(b"", opcode=PING))
        assert await socket.closed() == (1000, "")
        await socket.gone()
        assert served.engine.started == 0
        assert served.records == []


Leave = Callable[[RawSocket], Awaitable[None]]


async def by_close(socket: RawSocket) -> None:
    await socket.raw(close(1000))


async def by_end(socket: RawSocket) -> None:
    socket.writer.close()


async def by_reset(socket: RawSocket) -> None:
    socket.abort()


@pytest.mark.parametrize("cancels", [False, True], ids=["", "handlers are cancelled"])
@pytest.mark.parametrize("deltas", [0, 3], ids=["before the first token", "after three deltas"])
@pytest.mark.parametrize("leave", [by_close, by_end, by_reset])
async def test_cn_01_a_peer_that_leaves_stops_its_engine_once_and_within_a_second(
    leave: Leave, deltas: int, cancels: bool
) -> None:
    async def some(prompt: Prompt) -> AsyncGenerator[Step, None]:
        yield [Accepted(input_tokens=INPUT_TOKENS)]
        for _ in range(deltas):
            yield [TextDelta("tok ")]
        await asyncio.Event().wait()

    async with serve(some, handler_cancellation=cancels) as served, served.socket() as socket:
        await socket.create()
        await socket.until("response.in_progress")
        for _ in range(deltas):
            await socket.until("response.output_text.delta")
        await leave(socket)
        await served.until(lambda: len(served.records) == 1, seconds=1.0)
        assert (served.engine.ended, served.engine.cancelled) == (1, 1)
        (record,) = served.records
        assert record.outcome == "disconnected"
        assert record.usage.input_tokens == INPUT_TOKENS
        assert record.usage.output_tokens == deltas


async def test_a_held_turn_ends_with_its_connection() -> None:
    async with serve(tool_call) as served, served.socket() as socket:
        await socket.create(append=True)
        await socket.until("response.done")
        await socket.raw(close(1000))
        await served.until(lambda: len(served.records) == 1)
        assert served.records[0].outcome == "disconnected"


async def test_state_without_storage_ends_with_its_connection() -> None:
    async with serve() as served:
        async with served.socket() as socket:
            first = (await socket.turn())[-1]["response"]["id"]
        async with served.socket() as socket:
            event = (await socket.turn(previous_response_id=first))[-1]
            assert event["error"]["code"] == "previous_response_not_found"
            assert event["error"]["param"] == "previous_response_id"


# We end it.


async def test_a_session_end_closes_with_1000_after_the_running_turn() -> None:
    gate = asyncio.Event()

    async with serve(gated(gate)) as served, served.socket() as socket:
        await socket.create()
        await socket.until("response.in_progress")
        await socket.send({"type": "tieline.session.end"})
        gate.set()
        assert (await socket.until(*TERMINAL))[-1]["type"] == "response.completed"
        assert await socket.closed() == (1000, "")


async def test_rc_01_an_old_connection_ends_what_runs_then_says_why_and_closes() -> None:
    gate = asyncio.Event()

    async with serve(gated(gate)) as served, served.socket() as socket:
        await socket.create("runs")
        await socket.until("response.in_progress")
        (line,) = served.services.running.connections
        assert isinstance(line, ConnectionDriver)
        line.age()
        await socket.create("late")
        late = await socket.event()
        assert late["error"]["code"] == "websocket_connection_limit_reached"
        assert late["status"] == 400
        gate.set()
        assert (await socket.until(*TERMINAL))[-1]["type"] == "response.completed"
        last = (await socket.until("error"))[-1]
        assert last["error"]["code"] == "websocket_connection_limit_reached"
        assert await socket.closed() == (1000, "")
        await socket.raw(close(1000))
        await socket.gone()


async def test_rc_01_an_old_and_idle_connection_closes_at_once() -> None:
    async with serve(max_age=0.01) as served, served.socket() as socket:
        event = await socket.event()
        assert event["error"]["code"] == "websocket_connection_limit_reached"
        assert event["error"]["type"] == "invalid_request_error"
        assert await socket.closed() == (1000, "")


async def test_a_peer_that_does_not_answer_a_close_is_cut_off() -> None:
    async with (
        serve(max_age=0.01, close_timeout=0.05) as served,
        served.socket() as socket,
    ):
        await socket.event()
        await socket.closed()
        await socket.gone()


async def test_a_draining_server_lets_turns_end_and_goes_away_with_1001() -> None:
    gate = asyncio.Event()

    async with (
        serve(gated(gate)) as served,
        served.socket() as busy,
        served.socket() as idle,
        served.socket(headers={"x-tieline-extensions": "session"}) as told,
    ):
        await busy.create()
        await busy.until("response.in_progress")
        draining = asyncio.create_task(served.endpoint.drain(10.0))
        assert await idle.closed() == (1001, "server_draining")
        assert (await told.event())["type"] == "tieline.session.going_away"
        assert await told.closed() == (1001, "server_draining")
        await busy.create("more")
        refused = await busy.event()
        assert (refused["status"], refused["error"]["code"]) == (503, "server_draining")
        assert not draining.done()
        gate.set()
        assert (await busy.until(*TERMINAL))[-1]["type"] == "response.completed"
        assert await busy.closed() == (1001, "server_draining")
        for socket in (busy, idle, told):
            await socket.raw(close(1001))
        await draining
        assert len(served.endpoint.live) == 0


async def test_a_turn_that_outlives_the_drain_ends_with_what_it_has() -> None:
    async with serve(gated(asyncio.Event())) as served, served.socket() as socket:
        await socket.create()
        await socket.until("response.in_progress")
        draining = asyncio.create_task(served.endpoint.drain(0.05))
        ended = (await socket.until(*TERMINAL))[-1]
        assert ended["type"] == "response.incomplete"
        assert (await socket.closed())[0] == 1001
        await socket.raw(close(1001))
        await draining


async def test_a_stop_cuts_what_is_left() -> None:
    async with serve(gated(asyncio.Event())) as served, served.socket() as socket:
        await socket.create()
        await socket.until("response.in_progress")
        await served.endpoint.stop()
        assert len(served.endpoint.live) == 0
        assert [record.outcome for record in served.records] == ["disconnected"]
        await served.endpoint.stop()


async def test_a_revoked_key_gets_401_and_is_closed_with_1008(tmp_path: Path) -> None:
    keys = write_keys(tmp_path / "keys.toml", KEY)
    now = [0.0]

    headers = {"Authorization": f"Bearer {KEY}"}
    async with (
        serve(api_keys=keys, clock=lambda: now[0]) as served,
        served.socket(headers=headers) as socket,
    ):
        assert (await socket.turn())[-1]["type"] == "response.completed"
        write_keys(keys)
        now[0] += 10.0
        await socket.create(event_id="late", stream_id="a")
        event = await socket.event()
        assert (event["status"], event["error"]["code"]) == (401, "invalid_api_key")
        assert event["error"]["event_id"] == "late"
        assert event["stream_id"] == "a"
        assert await socket.closed() == (1008, "invalid_api_key")


async def test_a_fault_of_ours_closes_with_1011_and_tells_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with serve() as served, served.socket() as socket:
        await socket.turn()
        (connection,) = served.endpoint._open

        def broken(event: object) -> bytes:
            raise RuntimeError("secret")

        connection._encoder.encoders[ResponseCreated] = broken
        await socket.create()
        error = await socket.event()
        assert (error["status"], error["error"]["code"]) == (500, "server_error")
        assert "secret" not in str(error)
        assert await socket.closed() == (1011, "server_error")
    assert "secret" in caplog.text


# How many.


async def test_lb_05_one_connection_too_many_is_refused_and_resets_free_their_places() -> None:
    async with serve(max_connections=4) as served:
        four = [served.socket() for _ in range(4)]
        for socket in four:
            await socket.__aenter__()
        with pytest.raises(Refused) as caught:
            async with served.socket():
                pass
        assert caught.value.status in (429, 503)
        assert caught.value.headers["retry-after"] == "1"
        assert caught.value.error["code"] == "too_many_connections"
        four[0].abort()
        four[1].abort()
        await settled(lambda: len(served.endpoint.live) == 2, seconds=1.0)
        async with served.socket() as one, served.socket() as two:
            assert (await one.turn())[-1]["type"] == "response.completed"
            assert (await two.turn())[-1]["type"] == "response.completed"
        for socket in four[2:]:
            await socket.__aexit__(None, None, None)


async def test_a_limit_may_be_shared_with_another_server() -> None:
    async with serve(max_connections=1) as served:
        with served.endpoint.live.place("local"):
            with pytest.raises(Refused) as caught:
                async with served.socket():
                    pass
            assert caught.value.status == 429
        async with served.socket() as socket:
            assert (await socket.turn())[-1]["type"] == "response.completed"


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


async def test_connections_that_come_and_go_leave_nothing(repeats: Callable[[int], int]) -> None:
    async def one(served: Served, index: int) -> None:
        socket = served.socket()
        async with socket:
            if index % 3:
                await socket.create()
            if index % 3 == 2:
                await socket.until(*TERMINAL)
            if index % 2:
                socket.abort()

    async with serve(hello) as served:
        await one(served, 2)
        await served.endpoint.live.empty()
        before = descriptors()
        for start in range(0, repeats(1000), 20):
            await asyncio.gather(*(one(served, start + each) for each in range(20)))
        await settled(lambda: len(served.endpoint.live) == 0)
        await served.endpoint.live.empty()
        gc.collect()
        assert len(served.services.running.connections) == 0
        assert served.endpoint._open == set()
        await settled(lambda: descriptors() <= before)


async def breaks_off(served: Served, socket: RawSocket) -> None:
    """A message of which a half has come, and then no frame at all."""
    await socket.raw(frame(b"x" * 60_000, fin=False) + b"\xff" * 4)
    await socket.closed()


async def leaves_paused(served: Served, socket: RawSocket) -> None:
    """Gone while a write waits for it."""
    await socket.create()
    (connection,) = served.endpoint._open
    await settled(lambda: connection._transport.get_write_buffer_size() > HIGH_WATER)
    socket.abort()


@pytest.mark.parametrize("deflate", [False, True])
@pytest.mark.parametrize("leave", [breaks_off, leaves_paused])
def test_who_ends_badly_leaves_nothing_for_the_garbage_collector(
    leave: Callable[[Served, RawSocket], Awaitable[None]], deflate: bool
) -> None:
    offer = {"Sec-WebSocket-Extensions": "permessage-deflate"}

    async def noise(prompt: Prompt) -> AsyncGenerator[Step, None]:
        yield [Accepted(input_tokens=INPUT_TOKENS)]
        while True:
            yield [TextDelta(os.urandom(1024).hex())]
            await asyncio.sleep(0)

    async def main() -> None:
        async with serve(noise, deflate=deflate) as served:
            async with served.socket(headers=offer, receive_buffer=4096) as socket:
                await leave(served, socket)
            await settled(lambda: not served.endpoint._open)

    with none_left(ConnectionDriver, ConnectionSocket):
        run(main())


# Libraries.


CREATE = {"type": "response.create", "model": "tiny", "store": False}


async def test_lb_06_an_impatient_library_keeps_its_connection_while_the_engine_is_slow() -> None:
    """Its pings come every 0.1 s and must be answered within 0.5 s; ten of them are."""
    gate = asyncio.Event()

    async with (
        serve(gated(gate)) as served,
        websockets.connect(
            served.url, compression=None, ping_interval=0.1, ping_timeout=0.5
        ) as client,
    ):
        await client.send(json.dumps({**CREATE, "input": "x"}))
        asyncio.get_running_loop().call_later(1.0, gate.set)
        while '"response.completed"' not in str(await client.recv()):
            pass
        assert client.close_code is None


async def test_lb_06_a_huge_message_in_flight_holds_nobodys_pings_up() -> None:
    async with (
        serve(text(["x" * 1_000_000] * 8)) as served,
        websockets.connect(
            served.url, max_size=None, compression=None, ping_interval=0.1, ping_timeout=2.0
        ) as client,
    ):
        await client.send(json.dumps({**CREATE, "input": "y" * (12 * 1024 * 1024)}))
        while '"response.completed"' not in str(await client.recv())[:60]:
            pass
        assert client.close_code is None
