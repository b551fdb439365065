"""A response's events over gRPC once more, and responses that run with nobody connected."""

import asyncio

import grpc
import pytest

from tests.support.grpc_client import kind, status_error
from tests.support.grpc_engine import INPUT_TOKENS, gated
from tests.support.grpc_harness import Served, responses, serve
from tieline.v1 import events_pb2, requests_pb2, responses_pb2, service_pb2
from tieline.v1.responses_pb2 import (
    RESPONSE_STATUS_CANCELLED,
    RESPONSE_STATUS_COMPLETED,
    RESPONSE_STATUS_IN_PROGRESS,
    RESPONSE_STATUS_QUEUED,
)


def body(**members: object) -> requests_pb2.ResponseCreate:
    return requests_pb2.ResponseCreate(**{"input_text": "hi", **members})  # type: ignore[arg-type]


async def begun(channel: grpc.aio.Channel, **members: object) -> str:
    """A response in the background; its id."""
    request = service_pb2.CreateRequest(response_create=body(background=True, **members))
    response = (await responses(channel).Create(request)).response
    assert response.status == RESPONSE_STATUS_QUEUED
    return response.id


async def read(
    channel: grpc.aio.Channel, response_id: str, after: int | None = None
) -> list[events_pb2.ServerEvent]:
    """The events of a response."""
    request = service_pb2.ResumeRequest(response_id=response_id, after=after)
    call = responses(channel).Resume(request)
    return [event async for message in call for event in message.events]


async def standing(channel: grpc.aio.Channel, response_id: str) -> responses_pb2.Response:
    """What ``Get`` says."""
    request = service_pb2.GetRequest(response_id=response_id)
    return (await responses(channel).Get(request)).response


async def test_rc_09_a_reader_gets_the_events_behind_one_with_the_same_numbers() -> None:
    gate = asyncio.Event()
    async with serve(gated(gate)) as served, served.channel() as channel:
        made = await begun(channel)
        reading = asyncio.create_task(read(channel, made, 3))
        await served.until(lambda: served.engine.started == 1)
        gate.set()
        rest = await reading
        whole = await read(channel, made)
        assert [event.sequence_number for event in whole] == list(range(len(whole)))
        assert whole[4:] == rest
        assert [kind(event) for event in whole[:3]] == [
            "response_created",
            "response_queued",
            "response_in_progress",
        ]
        assert kind(whole[-1]) == "response_completed"
        for beyond in (len(whole), 2**31 - 1):
            assert await read(channel, made, beyond) == whole[-1:]
        assert served.engine.started == 1


@pytest.mark.parametrize(
    ("plain", "code", "name"),
    [
        (True, grpc.StatusCode.INVALID_ARGUMENT, "not_resumable"),
        (False, grpc.StatusCode.NOT_FOUND, "response_not_found"),
    ],
)
async def test_what_cannot_be_read_is_the_calls_status(
    plain: bool, code: grpc.StatusCode, name: str
) -> None:
    async with serve() as served, served.channel() as channel:
        made = "resp_no"
        if plain:
            request = service_pb2.CreateRequest(response_create=body())
            made = (await responses(channel).Create(request)).response.id
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await read(channel, made)
        assert caught.value.code() is code
        error = status_error(caught.value.trailing_metadata())
        assert error is not None
        assert error.code == name


async def test_a_background_response_is_polled_and_cancelled_by_its_id() -> None:
    async with serve(gated(asyncio.Event())) as served:
        async with served.channel() as channel:
            made = await begun(channel)
        async with served.channel() as channel:
            await served.until(lambda: served.engine.started == 1)
            now = await standing(channel, made)
            assert (now.status, now.usage.input_tokens) == (
                RESPONSE_STATUS_IN_PROGRESS,
                INPUT_TOKENS,
            )
            request = service_pb2.CancelRequest(response_id=made)
            cut = (await responses(channel).Cancel(request)).response
            assert cut.status == RESPONSE_STATUS_CANCELLED
            assert await standing(channel, made) == cut
            assert (await responses(channel).Cancel(request)).response == cut
        assert [record.outcome for record in served.records] == ["cancelled"]


async def test_leaving_the_stream_of_a_background_response_does_not_end_it() -> None:
    gate = asyncio.Event()
    async with serve(gated(gate)) as served, served.channel() as channel:
        request = service_pb2.StreamRequest(response_create=body(background=True))
        call = responses(channel).Stream(request)
        message = await call.read()
        assert isinstance(message, service_pb2.StreamResponse)
        made = message.events[0].response.id
        call.cancel()
        await left(served)
        gate.set()
        await served.until(lambda: len(served.records) == 1)
        assert (await standing(channel, made)).status == RESPONSE_STATUS_COMPLETED


async def left(served: Served) -> None:
    """Returns when the server has let the call go."""
    await served.server.live.empty()


async def test_a_line_and_what_is_not_stored_cannot_be_in_the_background() -> None:
    async with serve() as served, served.channel() as channel, served.line() as line:
        await line.send(service_pb2.ConverseRequest(response_create=body(background=True)))
        refused = await line.next()
        assert refused is not None
        assert refused.error.error.code == "unsupported_parameter"
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await begun(channel, store=False)
        assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert served.engine.started == 0


async def test_a_key_replays_the_response_of_whichever_call_made_it() -> None:
    async with serve() as served, served.channel() as channel:
        create = body(idempotency_key="k")
        stream = service_pb2.StreamRequest(response_create=create)
        call = responses(channel).Stream(stream)
        first = [event async for message in call for event in message.events]
        call = responses(channel).Stream(stream)
        again = [event async for message in call for event in message.events]
        assert first == again
        whole = service_pb2.CreateRequest(response_create=create)
        response = (await responses(channel).Create(whole)).response
        assert response == first[-1].response
        other = service_pb2.CreateRequest(
            response_create=body(idempotency_key="k", input_text="other")
        )
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await responses(channel).Create(other)
        assert caught.value.code() is grpc.StatusCode.ABORTED
        assert served.engine.started == 1


async def test_a_number_below_zero_is_refused() -> None:
    async with serve() as served, served.channel() as channel:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await read(channel, await begun(channel), -1)
        error = status_error(caught.value.trailing_metadata())
        assert error is not None
        assert (error.code, error.param) == ("integer_below_min_value", "after")
