"""The calls that make one response: whole, or as a stream of events."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator

import grpc
import pytest

from tests.support.garbage import none_left
from tests.support.grpc_client import create, kind, status_error
from tests.support.grpc_engine import INPUT_TOKENS, Step, gated
from tests.support.grpc_harness import responses, run, serve
from tests.support.runtime import until
from tieline.v1 import line_pb2, requests_pb2
from tieline_server.core.deltas import Accepted, TextDelta
from tieline_server.core.effects import Prompt
from tieline_server.core.limits import Limits
from tieline_server.runtime import LineRuntime
from tieline_server.transports.grpc.stream import EventWriter


def body(**members: object) -> requests_pb2.ResponseCreate:
    return requests_pb2.ResponseCreate(**{"input_text": "hi", "store": False, **members})  # type: ignore[arg-type]


async def breaks(prompt: Prompt) -> AsyncGenerator[Step, None]:
    """Fails after it has accepted."""
    yield [Accepted(input_tokens=INPUT_TOKENS)]
    raise ValueError("secret")


def test_create_response_answers_with_the_whole_response() -> None:
    async def main() -> None:
        async with serve() as served, served.channel() as channel:
            request = line_pb2.CreateResponseRequest(response_create=body())
            call = responses(channel).CreateResponse(request)
            response = (await call).response
            assert response.status == "completed"
            assert response.output[0].message.parts.parts[0].text.text == "Hello, world."
            assert response.usage.input_tokens == INPUT_TOKENS
            assert str(dict(await call.trailing_metadata())["x-request-id"]).startswith("req_")
            assert [record.outcome for record in served.records] == ["completed"]

    run(main())


def test_a_response_that_fails_is_the_status_of_create_response() -> None:
    async def main() -> None:
        async with serve(breaks) as served, served.channel() as channel:
            request = line_pb2.CreateResponseRequest(response_create=body())
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await responses(channel).CreateResponse(request)
            assert caught.value.code() is grpc.StatusCode.INTERNAL
            assert "secret" not in str(caught.value)

    run(main())


def test_a_caller_that_leaves_create_response_stops_its_engine() -> None:
    async def main() -> None:
        async with serve(gated(asyncio.Event())) as served, served.channel() as channel:
            request = line_pb2.CreateResponseRequest(response_create=body())
            call = responses(channel).CreateResponse(request)
            await served.until(lambda: served.engine.started == 1)
            call.cancel()
            await served.until(lambda: len(served.records) == 1, seconds=1.0)
            assert served.records[0].outcome == "disconnected"
            assert served.engine.cancelled == 1

    run(main())


def test_stream_response_sends_the_events_of_one_turn() -> None:
    async def main() -> None:
        async with serve() as served, served.channel() as channel:
            request = line_pb2.StreamResponseRequest(response_create=body())
            call = responses(channel).StreamResponse(request)
            events = [event async for message in call for event in message.events]
            assert [event.sequence_number for event in events] == list(range(len(events)))
            assert kind(events[0]) == "response_created"
            assert kind(events[-1]) == "response_completed"
            assert await call.code() is grpc.StatusCode.OK

    run(main())


def test_what_refuses_a_stream_response_is_its_status() -> None:
    async def main() -> None:
        async with serve() as served, served.channel() as channel:
            request = line_pb2.StreamResponseRequest(response_create=body(model="nobody"))
            call = responses(channel).StreamResponse(request)
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await call.read()
            assert caught.value.code() is grpc.StatusCode.NOT_FOUND
            error = status_error(caught.value.trailing_metadata())
            assert error is not None
            assert error.code == "model_not_found"

    run(main())


def test_a_failure_after_created_is_the_last_event_of_stream_response() -> None:
    async def main() -> None:
        async with serve(breaks) as served, served.channel() as channel:
            request = line_pb2.StreamResponseRequest(response_create=body())
            call = responses(channel).StreamResponse(request)
            events = [event async for message in call for event in message.events]
            assert kind(events[-1]) == "response_failed"
            assert await call.code() is grpc.StatusCode.OK

    run(main())


def test_a_silent_stream_response_says_that_it_lives() -> None:
    async def main() -> None:
        gate = asyncio.Event()
        async with serve(gated(gate), heartbeat=0.05) as served, served.channel() as channel:
            request = line_pb2.StreamResponseRequest(response_create=body())
            seen = []
            async for message in responses(channel).StreamResponse(request):
                for event in message.events:
                    seen.append(kind(event))
                    if kind(event) == "heartbeat":
                        assert event.heartbeat.phase == "prefill"
                        gate.set()
            assert "heartbeat" in seen
            assert seen[-1] == "response_completed"

    run(main())


def test_append_shape_is_refused_where_nothing_can_be_appended() -> None:
    async def main() -> None:
        async with serve() as served, served.channel() as channel:
            request = line_pb2.CreateResponseRequest(response_create=body(append=True))
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await responses(channel).CreateResponse(request)
            error = status_error(caught.value.trailing_metadata())
            assert error is not None
            assert (error.code, error.param) == ("unsupported_parameter", "append")

    run(main())


def test_a_call_continues_what_was_stored() -> None:
    async def main() -> None:
        async with serve() as served, served.channel() as channel:
            stub = responses(channel)
            first = await stub.CreateResponse(
                line_pb2.CreateResponseRequest(response_create=body(store=True))
            )
            second = await stub.CreateResponse(
                line_pb2.CreateResponseRequest(
                    response_create=body(previous_response_id=first.response.id)
                )
            )
            assert second.response.previous_response_id == first.response.id

    run(main())


def test_a_call_belongs_to_the_trace_of_its_metadata() -> None:
    parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"

    async def main() -> None:
        async with serve() as served, served.channel() as channel:
            request = line_pb2.CreateResponseRequest(response_create=body())
            metadata = (("traceparent", parent), ("tracestate", "a=b"))
            await responses(channel).CreateResponse(request, metadata=metadata)
            trace = {"traceparent": parent, "tracestate": "a=b"}
            assert served.records[0].trace_context == trace

    run(main())


def test_a_request_past_the_message_limit_is_refused() -> None:
    async def main() -> None:
        limits = Limits(message_bytes=1024)
        async with serve(limits=limits) as served, served.channel() as channel:
            request = line_pb2.CreateResponseRequest(response_create=body(input_text="x" * 2048))
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await responses(channel).CreateResponse(request)
            assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
            error = status_error(caught.value.trailing_metadata())
            assert error is not None
            assert error.code == "request_too_large"

    run(main())


@pytest.mark.parametrize("patience", [0.2, 30.0], ids=["is thrown out", "leaves"])
def test_a_reader_that_stopped_leaves_nothing_for_the_garbage_collector(patience: float) -> None:
    async def flood(prompt: Prompt) -> AsyncGenerator[Step, None]:
        yield [Accepted(input_tokens=INPUT_TOKENS)]
        while True:
            yield [TextDelta("x" * 1024 * 1024)]

    async def main() -> None:
        few = Limits(outbox=8)
        async with (
            serve(flood, limits=few, write_timeout=patience, merge=False) as served,
            served.line(options=[("grpc.http2.bdp_probe", 0)]) as line,
        ):
            await line.send(create())
            await served.until(lambda: served.engine.started == 1)
            lines = served.services.running.lines
            await until(lambda: all(line.line.outgoing.unsent(None) >= 8 for line in lines))
            if patience > 1:
                line.call.cancel()
            await served.until(lambda: len(served.records) == 1)
            await served.door.live.empty()
            with contextlib.suppress(grpc.aio.AioRpcError, asyncio.CancelledError):
                await line.rest()

    with none_left(LineRuntime, EventWriter):
        run(main())
