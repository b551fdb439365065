"""How many calls a server takes, and its goodbye to them."""

import asyncio
import time

import grpc
import pytest

from tests.support.grpc_client import create, kind, output
from tests.support.grpc_engine import endless, gated, tool_call
from tests.support.grpc_harness import responses, serve
from tieline.v1 import requests_pb2, service_pb2
from tieline.v1.responses_pb2 import RESPONSE_STATUS_COMPLETED


def asking() -> service_pb2.CreateRequest:
    body = requests_pb2.ResponseCreate(input_text="hi", store=False)
    return service_pb2.CreateRequest(response_create=body)


async def test_a_call_past_the_bound_is_resource_exhausted_and_says_when_to_retry() -> None:
    async with serve(max_calls=1) as served, served.channel() as channel:
        async with served.line() as line:
            await line.call.initial_metadata()
            async with served.line() as other:
                code, error = await other.status()
                assert code is grpc.StatusCode.RESOURCE_EXHAUSTED
                assert error is not None
                assert (error.code, error.retry_after) == ("too_many_connections", 1.0)
            with pytest.raises(grpc.aio.AioRpcError):
                await responses(channel).Create(asking())
            await line.half_close()
            await line.rest()
        await served.server.live.empty()
        assert (await responses(channel).Create(asking())).response.id


async def test_a_peer_that_vanished_gives_its_place_back() -> None:
    async with serve(max_calls=1) as served:
        for _ in range(3):
            async with served.line() as line:
                await line.turn(create("x"))
            await served.server.live.empty()


async def test_a_drain_tells_idle_lines_and_ends_them_at_once() -> None:
    async with serve() as served, served.line() as line:
        await line.turn(create("x"))
        await served.server.drain(30.0)
        (event,) = await line.rest()
        assert kind(event) == "session_going_away"
        assert event.session_going_away.remaining.seconds == 30
        assert await line.status() == (grpc.StatusCode.OK, None)


async def test_a_drain_lets_the_running_turn_end_and_refuses_the_next() -> None:
    gate = asyncio.Event()
    async with serve(gated(gate)) as served, served.line() as line:
        await line.send(create("x"))
        await line.until("response_in_progress")
        draining = asyncio.create_task(served.server.drain(30.0))
        await line.until("session_going_away")
        await line.send(create("y"))
        (refusal,) = await line.until("error")
        assert refusal.error.error.code == "server_draining"
        async with served.line() as other:
            code, error = await other.status()
            assert code is grpc.StatusCode.UNAVAILABLE
            assert error is not None
            assert (error.code, error.retry_after) == ("server_draining", 1.0)
        gate.set()
        assert kind((await line.rest())[-1]) == "response_completed"
        assert await line.status() == (grpc.StatusCode.OK, None)
        await draining


async def test_a_drain_lets_a_unary_call_end() -> None:
    gate = asyncio.Event()
    async with serve(gated(gate)) as served, served.channel() as channel:
        call = responses(channel).Create(asking())
        await served.until(lambda: served.engine.started == 1)
        draining = asyncio.create_task(served.server.drain(30.0))
        await asyncio.sleep(0)
        gate.set()
        assert (await call).response.status == RESPONSE_STATUS_COMPLETED
        await draining


async def test_a_drain_gives_a_held_turn_its_time() -> None:
    async with serve(tool_call) as served, served.line() as line:
        await line.send(create("look", append=True))
        held = (await line.until("response_done"))[-1].response
        draining = asyncio.create_task(served.server.drain(30.0))
        await line.until("session_going_away")
        call_id = held.output[-1].function_call.call_id
        answer = requests_pb2.ResponseAppend(input_items=output(call_id, "a cat"))
        await line.send(service_pb2.ConverseRequest(response_append=answer))
        assert kind((await line.rest())[-1]) == "response_completed"
        await draining


async def test_what_runs_past_the_drains_time_ends_with_what_it_has() -> None:
    async with (
        serve(gated(asyncio.Event())) as served,
        served.line() as line,
        served.channel() as channel,
    ):
        await line.send(create("x"))
        await line.until("response_in_progress")
        unary = responses(channel).Create(asking())
        await served.until(lambda: served.engine.started == 2)
        await served.server.drain(0.2)
        events = await line.rest()
        assert kind(events[0]) == "session_going_away"
        last = events[-1].response
        assert last.incomplete_details.reason == "server_draining"
        answer = (await unary).response
        assert answer.incomplete_details.reason == "server_draining"
        assert served.engine.ended == 2


async def test_a_drain_does_not_wait_for_a_client_that_takes_nothing() -> None:
    window = [("grpc.http2.bdp_probe", 0)]
    async with serve(endless) as served, served.line(options=window) as line:
        await line.send(create("x"))
        await line.until("response_in_progress")
        started = time.monotonic()
        await served.server.drain(0.2)
        assert time.monotonic() - started < 5.0
        assert served.engine.ended == 1
