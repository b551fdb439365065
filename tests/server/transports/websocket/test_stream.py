"""Frames in and out of a line: what is read, what is refused, what leaves, and how."""

import asyncio
import contextlib
import json
import os
from collections.abc import AsyncGenerator
from typing import Any

import pytest
import websockets

from tests.support.grpc_engine import Step, endless, gated, hello, text, tool_call, user_text
from tests.support.quiet_proxy import QuietProxy
from tests.support.websocket_client import (
    BINARY,
    CLOSE,
    PING,
    PONG,
    TERMINAL,
    TEXT,
    RawSocket,
    frame,
)
from tests.support.websocket_harness import PATH, Served, serve
from tieline_server.core.create.limits import Limits
from tieline_server.core.deltas import Accepted, CallStart, Finish, TextDelta
from tieline_server.core.effects import Prompt
from tieline_server.transports.stream import LEAST_BYTES, TransportWriter
from tieline_server.transports.websocket import stream

NO_CLOSE_CODES = (0, 999, 1004, 1005, 1006, 1015, 1016, 2999, 5000, 65535)
"""What no peer may say in a close frame (RFC 6455 7.4)."""

ERROR_MEMBERS = {"type", "status", "error", "sequence_number"}


def is_error(event: dict[str, Any], code: str, status: int = 400) -> bool:
    """Whether it is an error of the exact shape (ER-02), outside any response."""
    assert set(event) - {"stream_id"} == ERROR_MEMBERS, event
    assert set(event["error"]) - {"event_id"} == {"type", "code", "message", "param"}, event
    assert event["sequence_number"] == 0
    return (event["type"], event["status"], event["error"]["code"]) == ("error", status, code)


async def echo(prompt: Prompt) -> AsyncGenerator[Step, None]:
    """Says what the user said."""
    yield [Accepted(input_tokens=1), TextDelta(user_text(prompt)), Finish()]


def said(events: list[dict[str, Any]]) -> str:
    """The text of a finished turn."""
    (item,) = events[-1]["response"]["output"]
    spoken: str = item["content"][0]["text"]
    return spoken


# What is read.


async def test_er_09_bad_messages_are_answered_and_the_line_keeps_its_state() -> None:
    deep = '{"type":"response.create","input":' + "[" * 300 + "]" * 300 + "}"
    bad: list[tuple[str, str]] = [
        ("{not json", "invalid_json"),
        ("", "invalid_json"),
        ("[]", "invalid_event"),
        ('"text"', "invalid_event"),
        (deep, "invalid_json"),
        ('{"type":"response.create","input":"' + "\\ud800" + '"}', "invalid_json"),
        ('{"type":"response.create","top_p":1e999}', "invalid_json"),
        ('{"type":"response.frobnicate"}', "invalid_event"),
        ('{"input":"x"}', "invalid_event"),
        ('{"type":7}', "invalid_event"),
        ('{"type":"response.create","temperature":9}', "decimal_above_max_value"),
        ('{"type":"response.create","model":["tiny"]}', "invalid_type"),
        ('{"type":"response.create","input":"x","stream_id":"a b"}', "invalid_stream_id"),
    ]

    async with serve() as served, served.socket() as socket:
        first = (await socket.turn("one"))[-1]["response"]["id"]
        for message, code in bad:
            await socket.send(message)
            event = await socket.event()
            assert is_error(event, code), (message[:60], event)
            assert "stream_id" not in event
        await socket.send(b"\x00\xff", opcode=BINARY)
        assert is_error(await socket.event(), "invalid_event")
        second = (await socket.turn("two", previous_response_id=first))[-1]["response"]
        assert second["previous_response_id"] == first


async def test_er_02_an_unknown_model_is_an_error_of_exactly_these_members() -> None:
    async with serve() as served, served.socket() as socket:
        await socket.send({"type": "response.create", "model": "no-such-model", "input": "x"})
        event = await socket.event()
        assert is_error(event, "model_not_found", 404)
        assert event["error"]["param"] == "model"
        assert "stream_id" not in event
        await socket.create("x", model="no-such-model", stream_id="a")
        assert (await socket.event())["stream_id"] == "a"


async def test_a_bad_message_beside_a_running_turn_takes_no_number_of_it() -> None:
    gate = asyncio.Event()

    async with serve(gated(gate)) as served, served.socket() as socket:
        await socket.create()
        before = await socket.until("response.in_progress")
        await socket.send("{")
        assert is_error(await socket.event(), "invalid_json")
        gate.set()
        events = before + await socket.until("response.completed")
        assert [event["sequence_number"] for event in events] == list(range(len(events)))


async def test_a_refused_message_gets_its_own_ids_back() -> None:
    async with serve() as served, served.socket() as socket:
        ids = {"event_id": "mine", "stream_id": "lane"}
        for bad in (
            {"type": "response.create", "top_p": 7, **ids},
            {"type": "response.frobnicate", **ids},
            {"type": "response.create", "model": "nope", "input": "x", **ids},
        ):
            await socket.send(bad)
            event = await socket.event()
            assert event["error"]["event_id"] == "mine"
            assert event["stream_id"] == "lane"


async def test_a_message_may_come_in_fragments_with_pings_between_them() -> None:
    async with serve(echo) as served, served.socket() as socket:
        body = {"type": "response.create", "model": "tiny", "store": False, "input": "é" * 50}
        payload = json.dumps(body, ensure_ascii=False).encode()
        cut = payload.index("é".encode()) + 1  # In the middle of a character.
        await socket.send(payload[:cut], fin=False)
        await socket.send(b"one", opcode=PING)
        await socket.send(b"", opcode=0, fin=False)
        await socket.send(b"two", opcode=PING)
        await socket.send(payload[cut:], opcode=0)
        pongs = [await socket.frame(), await socket.frame()]
        assert [(each.opcode, each.payload) for each in pongs] == [
            (PONG, b"one"),
            (PONG, b"two"),
        ]
        assert said(await socket.until(*TERMINAL)) == "é" * 50


async def test_a_message_may_come_byte_by_byte() -> None:
    async with serve(echo) as served, served.socket() as socket:
        body = {"type": "response.create", "model": "tiny", "store": False, "input": "slow"}
        for byte in frame(json.dumps(body).encode()):
            await socket.raw(bytes((byte,)))
            await asyncio.sleep(0)
        assert said(await socket.until(*TERMINAL)) == "slow"


async def test_two_messages_may_come_in_one_segment() -> None:
    async with serve(echo) as served, served.socket() as socket:
        bodies = [
            {"type": "response.create", "model": "tiny", "store": False, "input": each}
            for each in ("one", "two")
        ]
        await socket.raw(b"".join(frame(json.dumps(body).encode()) for body in bodies))
        assert said(await socket.until(*TERMINAL)) == "one"
        assert said(await socket.until(*TERMINAL)) == "two"


async def test_a_ping_is_answered_while_something_samples() -> None:
    async with serve(gated(asyncio.Event())) as served, served.socket() as socket:
        await socket.create()
        await socket.until("response.in_progress")
        await socket.send(b"there?", opcode=PING)
        pong = await socket.frame()
        assert (pong.opcode, pong.payload) == (PONG, b"there?")


async def test_a_pong_that_nobody_asked_for_is_ignored() -> None:
    async with serve() as served, served.socket() as socket:
        await socket.send(b"hello", opcode=PONG)
        assert (await socket.turn())[-1]["type"] == "response.completed"


@pytest.mark.parametrize("size", [125, 126, 65535, 65536, 300_000])
async def test_messages_of_every_length_form_pass_both_ways(size: int) -> None:
    async with serve(echo) as served, served.socket() as socket:
        assert said(await socket.turn("x" * size)) == "x" * size


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (frame(b"{}", bits=0x40), 1002),  # RSV1 without an extension
        (frame(b"{}", bits=0x10), 1002),
        (frame(b"{}", opcode=0x3), 1002),  # an opcode that is reserved
        (frame(b"", opcode=0xB), 1002),
        (frame(b"x" * 126, opcode=PING), 1002),  # RFC 6455 5.5: at most 125 bytes
        (frame(b"x", opcode=PING, fin=False), 1002),
        (frame(b"{}", opcode=0), 1002),  # a continuation of nothing
        (frame(b"{", fin=False) + frame(b"{}"), 1002),  # a message inside a message
        (frame(b"\x03", opcode=CLOSE), 1002),
        *((frame(code.to_bytes(2, "big"), opcode=CLOSE), 1002) for code in NO_CLOSE_CODES),
        (frame(b"\x03\xe8\xff", opcode=CLOSE), 1007),
        (frame(b"\xff\xfe"), 1007),
        (frame(b'"\xc3', fin=False) + frame(b'"', opcode=0), 1007),
    ],
)
async def test_what_breaks_the_protocol_closes_with_its_code_and_stops_what_runs(
    data: bytes, code: int
) -> None:
    async with serve(gated(asyncio.Event())) as served, served.socket() as socket:
        await socket.create()
        await socket.until("response.in_progress")
        await socket.raw(data)
        assert (await socket.closed())[0] == code
        await served.until(lambda: len(served.records) == 1)
        assert served.records[0].outcome == "disconnected"
        assert served.engine.cancelled == 1


@pytest.mark.parametrize("fragments", [1, 4])
async def test_cn_12_a_message_of_the_limit_passes_and_one_byte_more_closes_with_1009(
    fragments: int,
) -> None:
    """And the client is told the number, by an event and by the reason."""
    limit = 8192

    async with serve(max_message_bytes=limit) as served, served.socket() as socket:
        most = json.dumps({"type": "response.create", "model": "tiny", "input": ""})
        await socket.send(most.replace('""', json.dumps("x" * (limit - len(most)))))
        assert (await socket.until(*TERMINAL))[-1]["type"] == "response.completed"
        for index in range(fragments):
            last = index == fragments - 1
            await socket.send(
                b" " * (limit // fragments + last),
                opcode=TEXT if index == 0 else 0,
                fin=last,
            )
        error = (await socket.event())["error"]
        assert error["code"] == "request_too_large"
        assert "8192" in error["message"]
        assert await socket.closed() == (1009, "request_too_large: at most 8192 bytes")


async def test_a_library_that_sends_too_much_at_once_learns_why_it_was_closed() -> None:
    """A close with unread bytes would reset the connection, and the code would be lost."""

    async with (
        serve(close_timeout=1.0) as served,
        websockets.connect(served.url, compression=None) as client,
    ):
        with contextlib.suppress(websockets.ConnectionClosed):
            await client.send("x" * (17 * 1024 * 1024))
        assert json.loads(await client.recv())["error"]["code"] == "request_too_large"
        with pytest.raises(websockets.ConnectionClosed) as caught:
            await client.recv()
        assert caught.value.rcvd is not None
        assert caught.value.rcvd.code == 1009


async def test_sixteen_mebibytes_less_one_are_a_message_like_any_other() -> None:
    async with serve(hello) as served, served.socket() as socket:
        shell = json.dumps(
            {"type": "response.create", "model": "tiny", "store": False, "input": ""}
        )
        filled = shell.replace('""', json.dumps("x" * (16 * 1024 * 1024 - 1 - len(shell))))
        await socket.send(filled)
        assert (await socket.until(*TERMINAL))[-1]["type"] == "response.completed"


# What leaves.


async def test_every_event_is_a_final_unmasked_text_frame() -> None:
    async with serve() as served, served.socket() as socket:
        await socket.create()
        heads = set()
        while True:
            got = await socket.frame()
            heads.add(got.head)
            if json.loads(got.payload)["type"] in TERMINAL:
                break
        assert heads == {0x80 | TEXT}


async def test_events_that_gathered_leave_in_one_write(monkeypatch: pytest.MonkeyPatch) -> None:
    writes: list[int] = []
    put = TransportWriter.put

    def counted(writer: TransportWriter, frames: bytes) -> bool:
        writes.append(len(frames))
        return put(writer, frames)

    monkeypatch.setattr(TransportWriter, "put", counted)

    async def burst(prompt: Prompt) -> AsyncGenerator[Step, None]:
        yield [Accepted(input_tokens=1), *(TextDelta(f"{n} ") for n in range(20)), Finish()]

    async with serve(burst) as served, served.socket() as socket:
        assert len(await socket.turn()) == 28
        assert len(writes) == 1
        assert writes[0] < stream.WRITE_BYTES


async def test_lanes_are_named_on_their_events_and_only_there() -> None:
    async with serve(echo) as served, served.socket() as socket:
        await socket.create("default")
        await socket.create("a", stream_id="a")
        await socket.create("b", stream_id="b")
        events: list[dict[str, Any]] = []
        while sum(event["type"] in TERMINAL for event in events) < 3:
            events.append(await socket.event())
        by_lane: dict[str | None, list[dict[str, Any]]] = {}
        for event in events:
            by_lane.setdefault(event.get("stream_id"), []).append(event)
        assert {lane: said(each) for lane, each in by_lane.items()} == {
            None: "default",
            "a": "a",
            "b": "b",
        }
        for each in by_lane.values():
            assert [event["sequence_number"] for event in each] == list(range(len(each)))


async def test_mx_03_one_lane_is_first_in_first_out_and_what_waits_can_be_cancelled() -> None:
    gate = asyncio.Event()

    async with serve(gated(gate)) as served, served.socket() as socket:
        await socket.create("1")
        await socket.create("2", event_id="second")
        await socket.create("3")
        first = (await socket.until("response.in_progress"))[0]["response"]["id"]
        await socket.send({"type": "response.cancel", "event_id": "second"})
        gate.set()
        one = await socket.until(*TERMINAL)
        two = await socket.until(*TERMINAL)
        three = await socket.until(*TERMINAL)
        assert one[-1]["response"]["id"] == first
        assert {event["response"]["id"] for event in one if "response" in event} == {first}
        assert two[-1]["response"]["status"] == "cancelled"
        assert three[-1]["type"] == "response.completed"


async def test_mx_03_different_lanes_overlap_and_the_seventeenth_waits() -> None:
    gate = asyncio.Event()

    async with serve(gated(gate)) as served, served.socket() as socket:
        for lane in range(17):
            await socket.create(stream_id=f"lane{lane}")
        await served.until(lambda: served.engine.started == 16)
        seen: list[dict[str, Any]] = []
        while sum(event["type"] == "response.in_progress" for event in seen) < 16 or not any(
            event["type"] == "response.queued" for event in seen
        ):
            seen.append(await socket.event())
        (queued,) = [event for event in seen if event["type"] == "response.queued"]
        assert queued["stream_id"] == "lane16"
        gate.set()
        while sum(event["type"] in TERMINAL for event in seen) < 17:
            seen.append(await socket.event())
        last = [event["type"] for event in seen if event["stream_id"] == "lane16"]
        assert last[:3] == ["response.created", "response.queued", "response.in_progress"]
        assert last[-1] == "response.completed"


async def test_mx_03_past_its_bound_a_queue_answers_429() -> None:
    limits = Limits(queue=2)
    async with (
        serve(gated(asyncio.Event()), limits=limits) as served,
        served.socket() as socket,
    ):
        for _ in range(4):
            await socket.create()
        event = (await socket.until("error"))[-1]
        assert (event["status"], event["error"]["code"]) == (429, "queue_full")
        assert event["headers"] == {"retry-after": "1"}


async def test_cn_04_a_steer_is_taken_and_the_response_goes_on_in_a_successor() -> None:
    gate = asyncio.Event()

    async def steered(prompt: Prompt) -> AsyncGenerator[Step, None]:
        yield [Accepted(input_tokens=1), TextDelta("one ")]
        if user_text(prompt) == "first":
            await gate.wait()
            yield [CallStart(kind="function_call", name="look")]
        yield [Finish()]

    async with serve(steered) as served, served.socket() as socket:
        await socket.create("first")
        events = await socket.until("response.output_text.delta")
        first = events[0]["response"]["id"]
        steer = {"type": "response.steer", "previous_response_id": first, "input": "shorter"}
        await socket.send(steer)
        accepted = (await socket.until("response.steer.accepted"))[-1]
        assert accepted["steer"]["previous_response_id"] == first
        gate.set()
        ended = (await socket.until(*TERMINAL))[-1]["response"]
        assert ended["incomplete_details"] == {"reason": "steered"}
        successor = (await socket.until(*TERMINAL))[-1]["response"]
        assert successor["previous_response_id"] == first


async def test_cn_05_a_steer_of_an_unknown_response_fails_and_echoes_its_input() -> None:
    async with serve() as served, served.socket() as socket:
        await socket.send(
            {"type": "response.steer", "previous_response_id": "resp_unknown", "input": "x"}
        )
        event = await socket.event()
        assert event["type"] == "response.steer.failed"
        assert event["error"]["code"] == "response_not_found"
        assert event["steer"] == {"previous_response_id": "resp_unknown", "input": "x"}
        assert (await socket.turn())[-1]["type"] == "response.completed"


async def test_a_warm_up_answers_without_sampling_and_can_be_continued() -> None:
    async with serve() as served, served.socket() as socket:
        warm = await socket.turn([], generate=False, stream=True, instructions="Be brief.")
        assert [event["type"] for event in warm][-1] == "response.completed"
        assert warm[-1]["response"]["output"] == []
        assert served.engine.started == 0
        first = warm[-1]["response"]["id"]
        assert (await socket.turn(previous_response_id=first))[-1]["type"] == TERMINAL[0]


async def test_an_append_goes_on_in_the_same_response() -> None:
    async with serve(tool_call) as served, served.socket() as socket:
        await socket.create(append=True)
        held = (await socket.until("response.done"))[-1]["response"]
        output = {
            "type": "function_call_output",
            "call_id": held["output"][0]["call_id"],
            "output": "42",
        }
        append = {"type": "response.append", "response_id": held["id"], "input": [output]}
        await socket.send(append)
        assert (await socket.until(*TERMINAL))[-1]["response"]["id"] == held["id"]
        assert len(served.records) == 1


async def test_a_silent_line_pings_and_says_what_it_does_only_to_who_asked() -> None:
    async with serve(gated(asyncio.Event()), heartbeat=0.05) as served:
        async with served.socket() as socket:
            await socket.create()
            await socket.until("response.in_progress")
            ping = await socket.frame()
            assert (ping.opcode, ping.payload) == (PING, b"")
        async with served.socket(headers={"x-tieline-extensions": "heartbeat"}) as socket:
            idle = await socket.frame()
            assert idle.opcode == PING, "an idle line has nothing to say"
            await socket.create()
            beat = (await socket.until("tieline.heartbeat"))[-1]
            assert beat == {"type": "tieline.heartbeat", "phase": "prefill"}


async def test_gr_05_pings_keep_a_quiet_line_open_through_a_proxy_that_wants_bytes() -> None:
    """GR-05: as on gRPC, for a balancer that cuts a WebSocket on which nothing passes."""

    async def silent_turn(heartbeat: float) -> tuple[bool, int]:
        gate = asyncio.Event()
        async with (
            serve(gated(gate), heartbeat=heartbeat) as served,
            QuietProxy(served.port, limit=0.5) as proxy,
            RawSocket(proxy.port, PATH) as socket,
        ):
            asyncio.get_running_loop().call_later(1.1, gate.set)
            await socket.create()
            try:
                end = (await socket.until(*TERMINAL))[-1]
                return end["type"] == "response.completed", proxy.cuts
            except (ConnectionError, asyncio.IncompleteReadError):
                return False, proxy.cuts

    assert await silent_turn(heartbeat=0.05) == (True, 0)
    assert await silent_turn(heartbeat=60.0) == (False, 1)


async def test_a_session_start_is_answered_and_asks_for_extensions() -> None:
    async with serve(max_message_bytes=65536) as served, served.socket() as socket:
        await socket.send({"type": "tieline.session.start", "extensions": ["timing"]})
        started = await socket.event()
        assert started["type"] == "tieline.session.started"
        assert started["limits"]["max_message_bytes"] == 65536
        await socket.create()
        await socket.until("responsesapi.websocket_timing")


@pytest.mark.parametrize("query", ["", "?x-tieline-extensions=warnings"])
async def test_in_07_what_is_ignored_is_told_to_a_client_that_asks(query: str) -> None:
    async with serve() as served, served.socket(query=query) as socket:
        created, *others = await socket.turn(tempratur=1, tools=[{"type": "mcp"}])
        told = [each["param"] for each in created.get("warnings", [])]
        assert told == (["tempratur", "tools[0].type"] if query else [])
        assert not any("warnings" in event for event in others)
        assert "warnings" not in (await socket.turn())[0]


async def test_cn_16_a_session_start_that_is_not_first_asks_for_nothing() -> None:
    async with serve() as served, served.socket() as socket:
        await socket.turn()
        await socket.send({"type": "tieline.session.start", "extensions": ["timing"]})
        assert is_error(await socket.event(), "invalid_event")
        kinds = {event["type"] for event in await socket.turn()}
        assert "responsesapi.websocket_timing" not in kinds


async def test_a_profile_without_extensions_knows_no_event_of_ours() -> None:
    async with serve(profile="open-responses") as served, served.socket() as socket:
        for kind in ("tieline.session.start", "tieline.session.end", "response.cancel"):
            await socket.send({"type": kind})
            assert is_error(await socket.event(), "invalid_event")
        assert (await socket.turn())[-1]["type"] == "response.completed"


async def test_an_event_past_what_the_client_receives_goes_without_its_output() -> None:
    size = 20_000

    pieces = ["x" * 9000, "y" * (size - 9000)]
    async with serve(text(pieces)) as served, served.socket() as socket:
        start = {"type": "tieline.session.start", "max_receive_bytes": LEAST_BYTES}
        await socket.send(start)
        await socket.event()
        await socket.create()
        events = await socket.until(*TERMINAL)
        assert events[-1]["type"] == "response.completed"
        assert events[-1]["response"]["output"] == []
        assert events[-1]["response"]["usage"]["output_tokens"] > 0
        errors = [event for event in events if event["type"] == "error"]
        # The whole text, the whole part and the whole item: three events too large.
        assert {event["error"]["code"] for event in errors} == {"event_too_large"}
        assert len(errors) == 3
        numbers = [event["sequence_number"] for event in events]
        assert numbers == list(range(len(events)))


async def test_deflated_frames_carry_the_same_events() -> None:
    async with (
        serve(text(["abc "] * 50), deflate=True) as served,
        websockets.connect(served.url, compression="deflate") as client,
    ):
        assert client.protocol.extensions
        body = {"type": "response.create", "model": "tiny", "store": False}
        filler = "x" * 100_000
        await client.send(json.dumps({**body, "input": "hi", "instructions": filler}))
        events: list[dict[str, Any]] = []
        while not events or events[-1]["type"] not in TERMINAL:
            events.append(json.loads(await client.recv()))
        assert said(events) == "abc " * 50
        assert events[-1]["response"]["instructions"] == filler


# A peer that stops reading.

SMALL = 4096


async def stalled(served: Served, socket: RawSocket) -> None:
    await socket.create()
    await served.until(lambda: served.engine.started == 1)


async def test_a_reader_that_stops_ends_its_line_and_disturbs_no_other() -> None:
    async with (
        serve(endless, write_timeout=0.3, close_timeout=0.05) as served,
        served.socket(receive_buffer=SMALL) as socket,
        served.socket() as bystander,
    ):
        await stalled(served, socket)
        await served.until(lambda: served.engine.ended == 1)
        assert [record.outcome for record in served.records] == ["disconnected"]
        served.engine.answer = hello
        while len(served.endpoint.live) > 1:
            assert (await bystander.turn())[-1]["type"] == "response.completed"
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while (await socket.frame()).opcode != CLOSE:
                pass
            pytest.fail("it was closed as if the peer had read")


async def test_a_stuck_reader_that_wakes_in_time_learns_why_its_line_ended() -> None:
    async with (
        serve(endless, write_timeout=0.3, close_timeout=20.0) as served,
        served.socket(receive_buffer=SMALL) as socket,
    ):
        await stalled(served, socket)
        await served.until(lambda: len(served.records) == 1)
        error = (await socket.until("error"))[-1]
        assert (error["status"], error["error"]["code"]) == (429, "slow_consumer")
        assert await socket.closed() == (1008, "slow_consumer")


async def test_a_slow_reader_gets_every_byte_in_order() -> None:
    pieces = [f"{number} " + "x" * 2000 for number in range(300)]

    async with (
        serve(text(pieces)) as served,
        served.socket(receive_buffer=SMALL) as socket,
    ):
        await stalled(served, socket)
        await served.until(lambda: served.engine.ended == 1)
        events = await socket.until(*TERMINAL)
        assert said(events) == "".join(pieces)
        assert [event["sequence_number"] for event in events] == list(range(len(events)))


async def test_what_a_client_sends_while_it_takes_nothing_is_read_up_to_a_bound() -> None:
    total = 4000

    async with serve() as served, served.socket(receive_buffer=SMALL) as socket:

        async def flood() -> None:
            for _ in range(total):
                await socket.send("{" + " " * 16_384)

        flooding = asyncio.create_task(flood())
        # A server that reads on and on has all of it by then.
        done, _ = await asyncio.wait({flooding}, timeout=1.0)
        assert not done
        for _ in range(total):
            assert (await socket.event())["error"]["code"] == "invalid_json"
        await flooding


async def test_masking_is_undone_for_random_payloads() -> None:
    async with serve(echo) as served, served.socket() as socket:
        for size in (1, 2, 3, 5, 131, 4099):
            words = os.urandom(size).hex()
            assert said(await socket.turn(words)) == words
