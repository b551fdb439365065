"""The Converse stream over real sockets: framing, bad input, silence, slow and vanished peers."""

import asyncio
from collections.abc import AsyncGenerator
from itertools import pairwise
from types import SimpleNamespace
from typing import Any, cast

import grpc
import pytest

from tests.support.grpc_client import RawConnection, create, kind, output
from tests.support.grpc_engine import (
    INPUT_TOKENS,
    Step,
    endless,
    gated,
    hello,
    text,
    tool_call,
    user_text,
)
from tests.support.grpc_harness import Served, serve
from tests.support.grpc_proxy import DATA, FrameProxy
from tieline.codecs.proto import RequestDecoder
from tieline.requests import Request
from tieline.v1 import events_pb2, items_pb2, requests_pb2, service_pb2
from tieline.v1.events_pb2 import (
    ENDING_REFUSED,
    ENDING_UNSPECIFIED,
    HEARTBEAT_PHASE_IDLE,
    HEARTBEAT_PHASE_PREFILL,
)
from tieline_server.core.create.limits import Limits
from tieline_server.core.deltas import Accepted, Finish, ItemEnd, TextDelta
from tieline_server.core.effects import Prompt
from tieline_server.transports.grpc.config import HEADROOM
from tieline_server.transports.grpc.status import Context
from tieline_server.transports.grpc.stream import EVENT_BYTES, WRITE_BYTES, EventWriter

SMALL_WINDOW = [("grpc.http2.bdp_probe", 0)]
"""A client that takes 64 KiB and no more while it does not read."""


def error_codes(events: list[events_pb2.ServerEvent]) -> list[str]:
    return [event.error.error.code for event in events if kind(event) == "error"]


async def test_a_turn_arrives_as_numbered_events() -> None:
    async with serve() as served, served.line() as line:
        events = await line.turn(create("hi", event_id="e1"))
        assert [event.sequence_number for event in events] == list(range(len(events)))
        assert [kind(event) for event in events] == [
            "response_created",
            "response_in_progress",
            "output_item_added",
            "content_part_added",
            "output_text_delta",
            "output_text_delta",
            "output_text_done",
            "content_part_done",
            "output_item_done",
            "response_completed",
        ]
        assert events[0].response_created.event_id == "e1"
        usage = events[-1].response.usage
        assert (usage.input_tokens, usage.output_tokens) == (INPUT_TOKENS, 2)


async def test_er_09_bad_messages_are_answered_and_the_line_keeps_its_state() -> None:
    bad: list[tuple[service_pb2.ConverseRequest | bytes, str]] = [
        (b"\xff\xff\xff not a proto", "invalid_proto"),
        (b"\x82\x01\x02\xff\xfe", "invalid_proto"),  # event_id that is no UTF-8
        (b"", "invalid_event"),
        (b"\xa2\x06\x02hi", "invalid_event"),  # field 100: an arm of a newer schema
        (
            service_pb2.ConverseRequest(
                opaque=requests_pb2.OpaqueRequest(
                    type="response.frobnicate", json='{"type":"response.frobnicate"}'
                )
            ),
            "invalid_event",
        ),
        (create("x", text_json="{not json"), "invalid_json"),
        (create("x", temperature=9.0), "decimal_above_max_value"),
        (create("x", stream_id="no spaces allowed"), "invalid_stream_id"),
    ]

    async with serve() as served, served.line() as line:
        first = (await line.turn(create("one")))[-1].response
        for message, code in bad:
            await line.send(message)
            (event,) = await line.until("error")
            assert event.error.error.code == code
            assert event.error.status == 400
            assert event.sequence_number == 0
        events = await line.turn(create("two", previous_response_id=first.id))
        assert events[-1].response.previous_response_id == first.id


async def test_the_event_id_of_a_refused_message_comes_back() -> None:
    async with serve() as served, served.line() as line:
        await line.send(create("x", top_p=7.0, event_id="mine", stream_id="lane"))
        (event,) = await line.until("error")
        assert event.error.error.event_id == "mine"
        assert event.stream_id == "lane"


@pytest.mark.parametrize("kind_", ["response.create", "response.resume"])
async def test_a_begin_in_json_is_refused_as_a_typed_one_is(kind_: str) -> None:
    wrong = '{"type":"' + kind_ + '","event_id":"mine","stream_id":"lane","top_p":7,"after":-1}'
    broken = '{"type":'
    async with serve() as served, served.line() as line:
        for said, type_, event_id, lane in ((wrong, "", "mine", "lane"), (broken, kind_, "", "")):
            opaque = requests_pb2.OpaqueRequest(type=type_, json=said)
            await line.send(service_pb2.ConverseRequest(opaque=opaque))
            (event,) = await line.until("error")
            assert (event.error.error.event_id, event.stream_id) == (event_id, lane)
            # A client that waits for the end of its turn waits no longer.
            assert event.ending == ENDING_REFUSED


async def test_an_append_in_json_that_is_refused_ends_no_turn() -> None:
    async with serve() as served, served.line() as line:
        said = '{"type":"response.append","event_id":"mine","response_id":7}'
        opaque = requests_pb2.OpaqueRequest(json=said)
        await line.send(service_pb2.ConverseRequest(opaque=opaque, event_id="other"))
        (event,) = await line.until("error")
        assert (event.error.error.event_id, event.ending) == ("other", ENDING_UNSPECIFIED)


async def test_an_append_that_goes_on_from_nothing_held_and_is_refused_ends_no_turn() -> None:
    async with serve() as served, served.line() as line:
        await line.turn(create("one"))
        call = items_pb2.FunctionCallOutput(call_id="call_no", text="late")
        items = items_pb2.ItemList(items=[items_pb2.Item(function_call_output=call)])
        append = requests_pb2.ResponseAppend(input_items=items)
        await line.send(service_pb2.ConverseRequest(response_append=append, event_id="mine"))
        (event,) = await line.until("error")
        assert (event.error.error.event_id, event.ending) == ("mine", ENDING_UNSPECIFIED)


async def test_an_event_id_that_is_too_long_is_refused_and_not_echoed() -> None:
    async with serve() as served, served.line() as line:
        await line.send(create("x", event_id="e" * 3_000_000))
        (event,) = await line.until("error")
        assert event.error.error.code == "string_above_max_length"
        assert event.error.error.param == "event_id"
        assert not event.error.error.event_id
        assert kind((await line.turn(create("y", event_id="e" * 512)))[-1]) == "response_completed"


async def test_an_unknown_previous_response_is_an_event_and_the_line_lives() -> None:
    async with serve() as served, served.line() as line:
        await line.send(create("x", previous_response_id="resp_unknown"))
        assert error_codes(await line.until("error")) == ["previous_response_not_found"]
        assert kind((await line.turn(create("y")))[-1]) == "response_completed"


async def test_a_tool_output_without_its_call_is_an_event_and_the_line_lives() -> None:
    async with serve() as served, served.line() as line:
        stray = create("x")
        stray.response_create.input_items.CopyFrom(output("call_nowhere", "42"))
        await line.send(stray)
        assert error_codes(await line.until("error")) == ["tool_call_not_found"]
        assert kind((await line.turn(create("y")))[-1]) == "response_completed"


async def test_a_message_past_the_limit_is_refused_in_band() -> None:
    async with serve(limits=Limits(message_bytes=2048)) as served, served.line() as line:
        await line.send(create("x" * 4096))
        (event,) = await line.until("error")
        assert (event.error.error.code, event.error.status) == ("request_too_large", 413)
        assert kind((await line.turn(create("y")))[-1]) == "response_completed"


async def test_a_message_past_the_librarys_limit_ends_the_stream_with_resource_exhausted() -> None:
    async with serve(limits=Limits(message_bytes=2048)) as served, served.line() as line:
        await line.send(b"x" * (2048 + HEADROOM + 1))
        code, _ = await line.status()
        assert code is grpc.StatusCode.RESOURCE_EXHAUSTED
        async with served.line() as other:
            assert kind((await other.turn(create("y")))[-1]) == "response_completed"


async def test_after_a_half_close_the_running_turn_ends_and_then_the_stream() -> None:
    gate = asyncio.Event()
    async with serve(gated(gate)) as served, served.line() as line:
        await line.send(create("x"))
        await line.until("response_in_progress")
        await line.half_close()
        gate.set()
        assert kind((await line.rest())[-1]) == "response_completed"
        assert await line.status() == (grpc.StatusCode.OK, None)
        assert [record.outcome for record in served.records] == ["completed"]


async def test_a_half_close_of_an_idle_line_ends_the_stream() -> None:
    async with serve() as served, served.line() as line:
        await line.turn(create("x"))
        await line.half_close()
        assert await line.rest() == []
        assert await line.status() == (grpc.StatusCode.OK, None)


async def test_session_end_lets_the_running_turn_end_and_then_closes() -> None:
    gate = asyncio.Event()
    async with serve(gated(gate)) as served, served.line() as line:
        await line.send(create("x"))
        await line.until("response_in_progress")
        await line.send(service_pb2.ConverseRequest(session_end=requests_pb2.SessionEnd()))
        gate.set()
        assert kind((await line.rest())[-1]) == "response_completed"
        assert await line.status() == (grpc.StatusCode.OK, None)


async def leaves_early(served: Served, leave: Any) -> None:
    await served.until(lambda: served.engine.started == 1)
    await leave()
    await served.until(lambda: len(served.records) == 1, seconds=1.0)
    assert (served.engine.ended, served.engine.cancelled) == (1, 1)
    assert [record.outcome for record in served.records] == ["disconnected"]
    assert served.records[0].usage.input_tokens == INPUT_TOKENS


@pytest.mark.parametrize("deltas", [0, 3], ids=["before the first token", "after three deltas"])
async def test_cn_01_a_cancelled_stream_stops_its_engine_once_and_within_a_second(
    deltas: int,
) -> None:
    async def some(prompt: Prompt) -> AsyncGenerator[Step, None]:
        yield [Accepted(input_tokens=INPUT_TOKENS)]
        for _ in range(deltas):
            yield [TextDelta("tok ")]
        await asyncio.Event().wait()

    async with serve(some) as served, served.line() as line:
        await line.send(create("x"))
        await line.until("response_in_progress")
        for _ in range(deltas):
            await line.until("output_text_delta")

        async def leave() -> None:
            line.call.cancel()

        await leaves_early(served, leave)
        assert served.records[0].usage.output_tokens == deltas


async def test_cn_01_a_reset_connection_stops_its_engine_once_and_within_a_second() -> None:
    async with (
        serve(gated(asyncio.Event())) as served,
        FrameProxy(served.port) as proxy,
        RawConnection(proxy.port) as line,
    ):
        await line.send(create("x"))
        await line.until("response_in_progress")

        async def leave() -> None:
            proxy.abort()

        await leaves_early(served, leave)


@pytest.mark.parametrize("how", ["half-closed", "cancelled", "reset"])
async def test_a_held_turn_is_cancelled_by_a_goodbye_and_abandoned_with_a_lost_peer(
    how: str,
) -> None:
    # A heartbeat interrupts the writer too, and must not be taken for a lost peer.
    async with (
        serve(tool_call, heartbeat=0.001) as served,
        FrameProxy(served.port) as proxy,
        RawConnection(proxy.port) as line,
    ):
        await line.send(create("look", append=True, store=True))
        held = (await line.until("response_done"))[-1].response
        if how == "half-closed":
            await line.half_close()
            await line.until("response_incomplete")
        elif how == "cancelled":
            line.call.cancel()
        else:
            proxy.abort()
        await served.until(lambda: len(served.records) == 1)
        said_goodbye = how == "half-closed"
        assert served.records[0].outcome == ("cancelled" if said_goodbye else "disconnected")
        await served.server.live.empty()
        saved = await served.services.store.get("local", held.id)
        assert (saved is not None) is said_goodbye


async def test_the_lines_of_vanished_peers_are_forgotten() -> None:
    async with serve(gated(asyncio.Event())) as served:
        for _ in range(20):
            async with served.line() as line:
                await line.send(create("x"))
                await line.until("response_in_progress")
        await served.server.live.empty()
        await asyncio.gather(*served.server.creates.readers)
        assert served.engine.ended == 20


async def test_a_reader_that_stops_ends_its_line_with_a_typed_error_and_costs_bounded_memory() -> (
    None
):
    async with (
        serve(endless, write_timeout=0.3) as served,
        served.line(options=SMALL_WINDOW) as line,
        served.line() as bystander,
    ):
        await line.send(create("x"))
        await line.until("response_in_progress")
        await served.until(lambda: served.engine.ended == 1)
        assert [record.outcome for record in served.records] == ["disconnected"]
        served.engine.answer = hello
        assert kind((await bystander.turn(create("y")))[-1]) == "response_completed"
        with pytest.raises(grpc.aio.AioRpcError):
            await line.rest()
        code, error = await line.status()
        assert code is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert error is not None
        assert error.code == "slow_consumer"


async def test_what_a_client_sends_while_it_takes_nothing_is_read_up_to_a_bound() -> None:
    total = 4000

    async def flood(line: RawConnection) -> None:
        for _ in range(total):
            await line.send(b"\xff" * 16_384)

    async with serve() as served, served.line(options=SMALL_WINDOW) as line:
        flooding = asyncio.create_task(flood(line))
        # A server that reads on and on has all of it by then.
        done, _ = await asyncio.wait({flooding}, timeout=1.5)
        assert not done
        refused = 0
        while refused < total:
            refused += len(error_codes(await line.until("error")))
        await flooding


async def test_a_silent_line_says_that_it_lives_and_what_it_does() -> None:
    gate = asyncio.Event()
    async with serve(gated(gate), heartbeat=0.05) as served, served.line() as line:
        assert (await line.until("heartbeat"))[-1].heartbeat.phase == HEARTBEAT_PHASE_IDLE
        await line.send(create("x"))
        await line.until("response_in_progress")
        beat = (await line.until("heartbeat"))[-1]
        assert beat.heartbeat.phase == HEARTBEAT_PHASE_PREFILL
        assert not beat.HasField("sequence_number")
        gate.set()
        await line.until("response_completed")
        assert (await line.until("heartbeat"))[-1].heartbeat.phase == HEARTBEAT_PHASE_IDLE


async def test_gr_05_heartbeats_keep_a_quiet_stream_open_through_a_proxy_that_wants_data() -> None:
    async def silent_turn(heartbeat: float) -> tuple[str, int]:
        gate = asyncio.Event()
        async with (
            serve(gated(gate), heartbeat=heartbeat) as served,
            FrameProxy(served.port, quiet_limit=1.0) as proxy,
            RawConnection(proxy.port) as line,
        ):
            asyncio.get_running_loop().call_later(2.2, gate.set)
            await line.send(create("x"))
            try:
                await line.until("response_completed")
            except grpc.aio.AioRpcError as error:
                return error.code().name, proxy.cuts
            return "OK", proxy.cuts

    assert await silent_turn(heartbeat=0.1) == ("OK", 0)
    assert await silent_turn(heartbeat=60.0) == ("UNAVAILABLE", 1)


async def test_events_that_gathered_leave_together_and_a_message_closes_at_its_bound() -> None:
    async def burst(prompt: Prompt) -> AsyncGenerator[Step, None]:
        yield [Accepted(input_tokens=INPUT_TOKENS)]
        yield [TextDelta("x" * 1000) for _ in range(1000)]
        yield [Finish()]

    async with serve(burst, merge=False) as served, served.line() as line:
        events = await line.turn(create("x"))
        deltas = [event for event in events if kind(event) == "output_text_delta"]
        assert len(deltas) == 1000
        assert line.messages < 30
        assert line.largest > WRITE_BYTES // 2


async def test_tokens_that_come_one_by_one_leave_one_by_one() -> None:
    taken = asyncio.Event()

    async def paced(prompt: Prompt) -> AsyncGenerator[Step, None]:
        yield [Accepted(input_tokens=INPUT_TOKENS)]
        for word in "abcd":
            yield [TextDelta(word)]
            await taken.wait()
            taken.clear()
        yield [Finish()]

    async with serve(paced) as served, served.line() as line:
        await line.send(create("x"))
        for word in "abcd":
            event = (await line.until("output_text_delta"))[-1]
            assert event.output_text_delta.delta == word
            taken.set()
        before = line.messages
        assert len(await line.until("response_completed")) == 4
        assert line.messages == before + 1


@pytest.mark.parametrize("at_once", [True, False])
async def test_a_write_that_the_library_fails_stops_the_engine(
    monkeypatch: pytest.MonkeyPatch, at_once: bool
) -> None:
    class Failing(EventWriter):
        def __init__(self, context: Context, *args: Any, **members: Any) -> None:
            async def write(message: bytes) -> None:
                lost = b"output_text" in message
                if not (lost and at_once):
                    await context.write(message)
                if lost:
                    raise grpc.aio.InternalError

            super().__init__(cast(Context, SimpleNamespace(write=write)), *args, **members)

    monkeypatch.setattr("tieline_server.transports.grpc.creates.EventWriter", Failing)

    async with serve(endless) as served, served.line() as line:
        await line.send(create("x"))
        await served.until(lambda: served.engine.cancelled == 1)


async def test_a_burst_of_deltas_never_makes_a_message_past_its_bound() -> None:
    async def burst(prompt: Prompt) -> AsyncGenerator[Step, None]:
        yield [Accepted(input_tokens=INPUT_TOKENS)]
        for _ in range(8):
            yield [*(TextDelta("x" * 7000) for _ in range(32)), ItemEnd()]
        yield [Finish()]

    async with serve(burst, merge=False) as served, served.line() as line:
        await line.send(create("x"))
        await line.until(lambda event: event.output_text_done.output_index == 7)
        # Past it go only single events that are larger themselves.
        assert line.largest <= WRITE_BYTES


async def four_large_items(prompt: Prompt) -> AsyncGenerator[Step, None]:
    """One response of 4 MiB whose events are 1 MiB each."""
    yield [Accepted(input_tokens=INPUT_TOKENS)]
    for _ in range(4):
        yield [TextDelta("x" * 1024 * 1024), ItemEnd()]
    yield [Finish()]


async def test_a_terminal_event_past_3_mib_goes_without_its_output() -> None:
    async with serve(four_large_items) as served, served.line() as line:
        last = (await line.turn(create("x")))[-1]
        assert last.response_completed.output_omitted
        assert len(last.response.output) == 0
        assert last.response.usage.output_tokens == 4
        assert line.largest < EVENT_BYTES
        assert kind((await line.turn(create("again")))[-1]) == "response_completed"


async def test_a_client_that_says_it_can_receive_more_gets_the_whole_terminal_event() -> None:
    limit = 16 * 1024 * 1024
    options = [("grpc.max_receive_message_length", limit)]
    async with serve(four_large_items) as served, served.line(options=options) as line:
        start = requests_pb2.SessionStart(max_receive_bytes=limit)
        await line.send(service_pb2.ConverseRequest(session_start=start))
        last = (await line.turn(create("x")))[-1]
        assert not last.response_completed.output_omitted
        assert len(last.response.output) == 4


async def test_a_client_that_says_it_can_receive_less_gets_smaller_messages() -> None:
    async def burst(prompt: Prompt) -> AsyncGenerator[Step, None]:
        yield [Accepted(input_tokens=INPUT_TOKENS)]
        yield [TextDelta("x" * 1000) for _ in range(200)]
        yield [Finish()]

    async with serve(burst, merge=False) as served, served.line() as line:
        start = requests_pb2.SessionStart(max_receive_bytes=20_000)
        await line.send(service_pb2.ConverseRequest(session_start=start))
        events = await line.turn(create("x"))
        assert line.largest <= 20_000
        # The text as a whole is past what the client takes: those events say so.
        assert set(error_codes(events)) == {"event_too_large"}
        assert events[-1].response_completed.output_omitted


async def test_settings_past_what_the_client_receives_are_left_out_of_the_echo() -> None:
    """The client wrote them itself; when the response begins and how it ends must be heard."""

    async with serve() as served, served.line() as line:
        large = create("x", instructions="i" * EVENT_BYTES, store=False, append=True)
        events = await line.turn(large)
        assert error_codes(events) == []
        assert line.largest < EVENT_BYTES
        for event in (events[0], events[-1]):
            assert event.response.id.startswith("resp_")
            assert not event.response.HasField("instructions")
            assert not event.response.store
        assert events[-1].response.usage.output_tokens == 2
        assert kind((await line.turn(create("y")))[-1]) == "response_completed"


async def test_another_event_past_3_mib_becomes_an_error_with_its_number() -> None:
    huge = text(["x" * (EVENT_BYTES + 1)])
    async with serve(huge) as served, served.line() as line:
        events = await line.turn(create("x"))
        assert [event.sequence_number for event in events] == list(range(len(events)))
        assert set(error_codes(events)) == {"event_too_large"}
        assert events[-1].response_completed.output_omitted


async def test_session_start_is_answered_with_what_the_server_allows() -> None:
    async with serve() as served, served.line() as line:
        start = service_pb2.ConverseRequest(session_start=requests_pb2.SessionStart())
        await line.send(start)
        started = (await line.until("session_started"))[-1].session_started
        assert started.session_id
        assert started.limits


async def test_in_08_a_text_part_without_a_type_is_what_the_user_said() -> None:
    heard = []

    async def answer(prompt: Prompt) -> AsyncGenerator[Step, None]:
        heard.append(user_text(prompt))
        async for step in hello(prompt):
            yield step

    async with serve(answer) as served, served.line() as line:
        part = items_pb2.ContentPart(text=items_pb2.TextPart(text="aloud"))
        said = items_pb2.Message(role="user", parts=items_pb2.ContentList(parts=[part]))
        items = items_pb2.ItemList(items=[items_pb2.Item(message=said)])
        body = requests_pb2.ResponseCreate(input_items=items)
        await line.turn(service_pb2.ConverseRequest(response_create=body))
    assert heard == ["aloud"]


async def test_cn_16_a_session_start_that_is_not_first_changes_nothing() -> None:
    async with serve(text(["x" * 40_000])) as served, served.line() as line:
        await line.turn(create("x"))
        late = requests_pb2.SessionStart(max_receive_bytes=20_000)
        await line.send(service_pb2.ConverseRequest(session_start=late, event_id="e"))
        (refused,) = await line.until("error")
        assert (refused.error.status, refused.error.error.code) == (400, "invalid_event")
        assert refused.error.error.event_id == "e"
        done = (await line.turn(create("x")))[-1].response_completed
        assert not done.output_omitted


async def test_initial_metadata_with_the_request_id_comes_before_anything_is_sent() -> None:
    async with serve() as served, served.line() as line:
        metadata = dict(await line.call.initial_metadata())
        assert metadata["x-request-id"].startswith("req_")
        await line.half_close()
        await line.rest()
        assert dict(await line.call.trailing_metadata()) == {
            "x-request-id": metadata["x-request-id"]
        }


async def test_a_turn_belongs_to_the_trace_of_its_message_else_of_its_stream() -> None:
    stream = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    message = "00-0af7651916cd43dd8448eb211c80319c-00f067aa0ba902b7-01"

    async with (
        serve() as served,
        served.line(metadata=[("traceparent", stream)]) as line,
    ):
        await line.turn(create("x"))
        await line.turn(create("y", trace_context={"traceparent": message}))
        traces = [record.trace_context for record in served.records]
        assert traces == [{"traceparent": stream}, {"traceparent": message}]


async def test_work_counts_bytes_read_and_built_and_not_what_comes_again() -> None:
    async with serve() as served, served.line() as line:
        totals = [(0, 0)]
        for _ in range(3):
            await line.turn(create("x", instructions="i" * 20_000))
            (runtime,) = served.services.running.connections
            totals.append((runtime.connection.work.decode, runtime.connection.work.encode))
        decoded, encoded = (
            [after - before for before, after in pairwise(counts)]
            for counts in zip(*totals, strict=True)
        )
        assert decoded[0] > 20_000
        assert encoded[0] > 20_000
        assert 0 < decoded[1] == decoded[2] < 1000
        assert 0 < encoded[1] == encoded[2] < 5000


async def test_append_shape_holds_the_turn_until_its_tool_output_comes() -> None:
    async with serve(tool_call) as served, served.line() as line:
        await line.send(create("x", append=True))
        held = (await line.until("response_done"))[-1].response
        call_id = held.output[-1].function_call.call_id
        answer = requests_pb2.ResponseAppend(input_items=output(call_id, "a cat"))
        await line.send(service_pb2.ConverseRequest(response_append=answer))
        last = (await line.until("response_completed"))[-1].response
        assert last.id == held.id
        assert last.output[-1].message.parts.parts[0].text.text == "seen"


async def test_mx_03_one_lane_is_first_in_first_out_and_lanes_run_side_by_side() -> None:
    gates = {name: asyncio.Event() for name in ("one", "two", "a", "b")}

    async def answer(prompt: Prompt) -> AsyncGenerator[Step, None]:
        name = user_text(prompt)
        yield [Accepted(input_tokens=INPUT_TOKENS)]
        await gates[name].wait()
        yield [TextDelta(name), Finish()]

    async with serve(answer) as served, served.line() as line:
        await line.send(create("one"))
        await line.send(create("two"))
        await line.send(create("a", stream_id="a"))
        await line.send(create("b", stream_id="b"))
        await served.until(lambda: served.engine.started == 3)
        for name in ("b", "two", "a", "one"):
            gates[name].set()
        done: list[events_pb2.ServerEvent] = []
        while len(done) < 4:
            done.append((await line.until("response_completed"))[-1])
        texts = [each.response.output[0].message.parts.parts[0].text.text for each in done]
        assert [text for text in texts if text in ("one", "two")] == ["one", "two"]
        assert {each.stream_id for each in done} == {"", "a", "b"}


async def test_mx_03_the_seventeenth_lane_waits_for_a_place_and_then_runs() -> None:
    gate = asyncio.Event()
    async with serve(gated(gate)) as served, served.line() as line:
        for number in range(17):
            await line.send(create("x", stream_id=f"lane{number}"))
        queued = (await line.until("response_queued"))[-1]
        assert queued.stream_id == "lane16"
        assert served.engine.started == 16
        gate.set()
        done = 0
        while done < 17:
            await line.until("response_completed")
            done += 1


async def test_what_an_engine_raises_by_mistake_never_reaches_the_client() -> None:
    async def broken(prompt: Prompt) -> AsyncGenerator[Step, None]:
        yield [Accepted(input_tokens=INPUT_TOKENS)]
        raise ValueError("/etc/secret")

    async with serve(broken) as served, served.line() as line:
        await line.send(create("x"))
        events = await line.until("response_failed")
        assert all(b"secret" not in event.SerializeToString() for event in events)
        assert events[-1].response.error.code == "server_error"
        served.engine.answer = hello
        assert kind((await line.turn(create("y")))[-1]) == "response_completed"


async def test_a_fault_while_a_message_is_read_is_a_fixed_error_and_the_line_lives(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(self: RequestDecoder, message: service_pb2.ConverseRequest) -> Request:
        raise RuntimeError("/etc/secret")

    async with serve() as served, served.line() as line:
        with monkeypatch.context() as patch:
            patch.setattr(RequestDecoder, "decode", broken)
            await line.send(create("x", event_id="mine"))
            (event,) = await line.until("error")
        assert b"secret" not in event.SerializeToString()
        assert (event.error.error.code, event.error.error.event_id) == ("server_error", "mine")
        assert kind((await line.turn(create("y")))[-1]) == "response_completed"
        assert "/etc/secret" in caplog.text


async def test_a_clients_heartbeat_is_taken_in_silence() -> None:
    async with serve() as served, served.line() as line:
        beat = service_pb2.ConverseRequest(heartbeat=events_pb2.Heartbeat())
        await line.send(beat)
        assert kind((await line.turn(create("x")))[0]) == "response_created"


async def test_no_heartbeat_comes_while_events_flow() -> None:
    async def steady(prompt: Prompt) -> AsyncGenerator[Step, None]:
        yield [Accepted(input_tokens=INPUT_TOKENS)]
        for _ in range(20):
            yield [TextDelta("tick ")]
            await asyncio.sleep(0.02)
        yield [Finish()]

    async with serve(steady, heartbeat=1.0) as served, served.line() as line:
        events = await line.turn(create("x"))
        assert "heartbeat" not in [kind(event) for event in events]


async def test_data_frames_are_what_the_proxy_of_these_tests_counts() -> None:
    async with (
        serve() as served,
        FrameProxy(served.port) as proxy,
        RawConnection(proxy.port) as line,
    ):
        await line.turn(create("x"))
        assert proxy.from_client[DATA] == 1
        assert proxy.from_server[DATA] == line.messages
