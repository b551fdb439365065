"""The calls that make one response: whole, or as a stream of events."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator

import grpc
import pytest
from msgspec import Raw

from tests.support.garbage import none_left
from tests.support.grpc_client import create, kind, status_error
from tests.support.grpc_engine import INPUT_TOKENS, Step, gated, text
from tests.support.grpc_harness import Served, responses, run, serve
from tests.support.json_values import dumps
from tests.support.runtime import until
from tieline.codecs.proto import to_response
from tieline.responses import Response
from tieline.v1 import items_pb2, requests_pb2, service_pb2
from tieline.v1.events_pb2 import HEARTBEAT_PHASE_PREFILL
from tieline.v1.responses_pb2 import RESPONSE_STATUS_COMPLETED
from tieline_server.core.create.limits import Limits
from tieline_server.core.deltas import Accepted, TextDelta
from tieline_server.core.effects import Prompt
from tieline_server.runtime import ConnectionDriver
from tieline_server.transports.grpc.creates import receives, whole
from tieline_server.transports.grpc.stream import EventWriter
from tieline_server.transports.stream import LEAST_BYTES


def body(**members: object) -> requests_pb2.ResponseCreate:
    return requests_pb2.ResponseCreate(**{"input_text": "hi", "store": False, **members})  # type: ignore[arg-type]


async def breaks(prompt: Prompt) -> AsyncGenerator[Step, None]:
    """Fails after it has accepted."""
    yield [Accepted(input_tokens=INPUT_TOKENS)]
    raise ValueError("secret")


async def test_create_response_answers_with_the_whole_response() -> None:
    async with serve() as served, served.channel() as channel:
        request = service_pb2.CreateRequest(response_create=body())
        call = responses(channel).Create(request)
        response = (await call).response
        assert response.status == RESPONSE_STATUS_COMPLETED
        assert response.output[0].message.parts.parts[0].text.text == "Hello, world."
        assert response.usage.input_tokens == INPUT_TOKENS
        assert str(dict(await call.trailing_metadata())["x-request-id"]).startswith("req_")
        assert [record.outcome for record in served.records] == ["completed"]


async def test_a_response_that_fails_is_the_status_of_create_response() -> None:
    async with serve(breaks) as served, served.channel() as channel:
        request = service_pb2.CreateRequest(response_create=body())
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await responses(channel).Create(request)
        assert caught.value.code() is grpc.StatusCode.INTERNAL
        assert "secret" not in str(caught.value)


async def test_a_caller_that_leaves_create_response_stops_its_engine() -> None:
    async with serve(gated(asyncio.Event())) as served, served.channel() as channel:
        request = service_pb2.CreateRequest(response_create=body())
        call = responses(channel).Create(request)
        await served.until(lambda: served.engine.started == 1)
        call.cancel()
        await served.until(lambda: len(served.records) == 1, seconds=1.0)
        assert served.records[0].outcome == "disconnected"
        assert served.engine.cancelled == 1


async def test_stream_response_sends_the_events_of_one_turn() -> None:
    async with serve() as served, served.channel() as channel:
        request = service_pb2.StreamRequest(response_create=body())
        call = responses(channel).Stream(request)
        events = [event async for message in call for event in message.events]
        assert [event.sequence_number for event in events] == list(range(len(events)))
        assert kind(events[0]) == "response_created"
        assert kind(events[-1]) == "response_completed"
        assert await call.code() is grpc.StatusCode.OK


async def test_what_refuses_a_stream_response_is_its_status() -> None:
    async with serve() as served, served.channel() as channel:
        request = service_pb2.StreamRequest(response_create=body(model="nobody"))
        call = responses(channel).Stream(request)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call.read()
        assert caught.value.code() is grpc.StatusCode.NOT_FOUND
        error = status_error(caught.value.trailing_metadata())
        assert error is not None
        assert error.code == "model_not_found"


async def test_a_failure_after_created_is_the_last_event_of_stream_response() -> None:
    async with serve(breaks) as served, served.channel() as channel:
        request = service_pb2.StreamRequest(response_create=body())
        call = responses(channel).Stream(request)
        events = [event async for message in call for event in message.events]
        assert kind(events[-1]) == "response_failed"
        assert await call.code() is grpc.StatusCode.OK


async def test_a_silent_stream_response_says_that_it_lives() -> None:
    gate = asyncio.Event()
    async with serve(gated(gate), heartbeat=0.05) as served, served.channel() as channel:
        request = service_pb2.StreamRequest(response_create=body())
        seen = []
        async for message in responses(channel).Stream(request):
            for event in message.events:
                seen.append(kind(event))
                if kind(event) == "heartbeat":
                    assert event.heartbeat.phase == HEARTBEAT_PHASE_PREFILL
                    gate.set()
        assert "heartbeat" in seen
        assert seen[-1] == "response_completed"


async def test_append_shape_is_refused_where_nothing_can_be_appended() -> None:
    async with serve() as served, served.channel() as channel:
        request = service_pb2.CreateRequest(response_create=body(append=True))
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await responses(channel).Create(request)
        error = status_error(caught.value.trailing_metadata())
        assert error is not None
        assert (error.code, error.param) == ("unsupported_parameter", "append")


async def test_a_call_continues_what_was_stored() -> None:
    async with serve() as served, served.channel() as channel:
        stub = responses(channel)
        first = await stub.Create(service_pb2.CreateRequest(response_create=body(store=True)))
        second = await stub.Create(
            service_pb2.CreateRequest(response_create=body(previous_response_id=first.response.id))
        )
        assert second.response.previous_response_id == first.response.id


async def test_a_call_belongs_to_the_trace_of_its_metadata() -> None:
    parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"

    async with serve() as served, served.channel() as channel:
        request = service_pb2.CreateRequest(response_create=body())
        metadata = (("traceparent", parent), ("tracestate", "a=b"))
        await responses(channel).Create(request, metadata=metadata)
        trace = {"traceparent": parent, "tracestate": "a=b"}
        assert served.records[0].trace_context == trace


async def test_a_request_past_the_message_limit_is_refused() -> None:
    limits = Limits(message_bytes=1024)
    async with serve(limits=limits) as served, served.channel() as channel:
        request = service_pb2.CreateRequest(response_create=body(input_text="x" * 2048))
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await responses(channel).Create(request)
        assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        error = status_error(caught.value.trailing_metadata())
        assert error is not None
        assert error.code == "request_too_large"


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
            lines = served.services.running.connections
            await until(lambda: all(line.connection.outgoing.unsent(None) >= 8 for line in lines))
            if patience > 1:
                line.call.cancel()
            await served.until(lambda: len(served.records) == 1)
            await served.server.live.empty()
            with contextlib.suppress(grpc.aio.AioRpcError, asyncio.CancelledError):
                await line.rest()

    with none_left(ConnectionDriver, EventWriter):
        run(main())


MIB = 1024 * 1024
ROOMY = (("grpc.max_receive_message_length", 64 * MIB), ("grpc.use_local_subchannel_pool", 1))


def roomy(served: Served) -> grpc.aio.Channel:
    """A channel whose stub takes more than most do."""
    return grpc.aio.insecure_channel(f"127.0.0.1:{served.port}", options=ROOMY)


async def test_cn_17_an_answer_past_a_stubs_limit_arrives_without_the_echo_of_its_settings() -> (
    None
):
    """The turn is made and booked: what it said must be heard, and the client has its settings."""

    async with serve(max_message_bytes=8 * MIB) as served, served.channel() as channel:
        stub = responses(channel)
        large = body(instructions="i" * (4 * MIB), store=True)
        request = service_pb2.CreateRequest(response_create=large)
        made = await stub.Create(request)
        name = made.response.id
        answers = (
            made,
            await stub.Get(service_pb2.GetRequest(response_id=name)),
            await stub.Cancel(service_pb2.CancelRequest(response_id=name)),
        )
        for answer in answers:
            assert (answer.settings_omitted, answer.output_omitted) == (True, False)
            assert answer.response.id == name
            assert answer.response.usage.output_tokens == 2
            assert len(answer.response.output) == 1
            assert not answer.response.HasField("instructions")
        async with roomy(served) as wide:
            got = service_pb2.GetRequest(response_id=name, max_receive_bytes=64 * MIB)
            answer = await responses(wide).Get(got)
            assert not answer.settings_omitted
            assert len(answer.response.instructions) == 4 * MIB


async def test_cn_17_an_output_past_the_limit_is_left_out_and_got_again_under_the_same_key() -> (
    None
):
    async with serve(text(["x" * MIB] * 5)) as served, served.channel() as channel:
        asked = body(store=False, idempotency_key="k")
        request = service_pb2.CreateRequest(response_create=asked)
        answer = await responses(channel).Create(request)
        assert (answer.settings_omitted, answer.output_omitted) == (True, True)
        assert answer.response.status == RESPONSE_STATUS_COMPLETED
        assert answer.response.usage.output_tokens == 5
        async with roomy(served) as wide:
            request.max_receive_bytes = 64 * MIB
            again = await responses(wide).Create(request)
        assert again.response.id == answer.response.id
        assert not again.output_omitted
        assert len(again.response.output[0].message.parts.parts[0].text.text) == 5 * MIB
        assert served.engine.started == 1


async def test_cn_17_a_stream_of_one_turn_states_its_limit_with_its_request() -> None:
    async with serve(text(["x" * MIB] * 5)) as served, roomy(served) as channel:
        request = service_pb2.StreamRequest(response_create=body(store=False))
        for limit in (0, 64 * MIB):
            request.max_receive_bytes = limit
            call = responses(channel).Stream(request)
            events = [event async for message in call for event in message.events]
            assert events[-1].response_completed.output_omitted is not bool(limit)
            too_large = [event for event in events if kind(event) == "error"]
            assert bool(too_large) is not bool(limit)


def test_cn_17_an_answer_that_just_fits_is_whole_and_the_least_limit_always_fits() -> None:
    response = Response(
        id="resp_1",
        output=[Raw(dumps({"type": "message", "role": "assistant", "content": "x" * 30_000}))],
        instructions=Raw(dumps("i" * 1000)),
    )
    answer = service_pb2.CreateResponse
    size = answer(response=to_response(response)).ByteSize()
    assert len(whole(answer, response, size)) == size
    bare = answer.FromString(whole(answer, response, size - 1))
    assert (bare.settings_omitted, bare.output_omitted) == (True, False)
    assert len(bare.response.output) == 1
    least = whole(answer, response, LEAST_BYTES)
    assert len(least) < LEAST_BYTES
    assert answer.FromString(least).output_omitted
    assert receives(service_pb2.GetRequest(max_receive_bytes=1)) == LEAST_BYTES


async def test_in_07_what_is_ignored_is_typed_in_the_answer_and_in_the_event() -> None:
    async with serve() as served, served.channel() as channel, served.line() as line:
        hosted = items_pb2.Tool(opaque=items_pb2.OpaqueTool(type="mcp", json='{"type":"mcp"}'))
        odd = body(tools=[hosted], unknown=items_pb2.Unknown(extra_json='{"tempratur":1}'))
        stub = responses(channel)
        answer = await stub.Create(service_pb2.CreateRequest(response_create=odd))
        await line.send(service_pb2.ConverseRequest(response_create=odd, event_id="e"))
        created = (await line.until("response_created"))[-1].response_created
        assert created.event_id == "e"
        for warnings in (answer.warnings, created.warnings):
            assert [(each.code, each.param) for each in warnings] == [
                ("unknown_parameter", "tempratur"),
                ("unsupported_tool", "tools[0].type"),
            ]
        plain = await stub.Create(service_pb2.CreateRequest(response_create=body()))
        assert not plain.warnings


async def test_in_07_where_nothing_may_be_ignored_it_is_the_status() -> None:
    async with serve(limits=Limits(ignores=False)) as served, served.channel() as channel:
        odd = body(unknown=items_pb2.Unknown(extra_json='{"tempratur":1}'))
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await responses(channel).Create(service_pb2.CreateRequest(response_create=odd))
        assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        error = status_error(caught.value.trailing_metadata())
        assert error is not None
        assert (error.code, error.param) == ("unknown_parameter", "tempratur")
