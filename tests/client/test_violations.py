"""CN-24: a server that sends what is none of its events, and stays open.

Over each transport: no turn waits for ever, and what it raises has a type. A line of gRPC or
WebSocket ends with it, and all its turns, because what follows cannot be paired any more; over
HTTP it ends the one turn whose answer it was.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final

import pytest
from aiohttp import web as aiohttp_web
from msgspec import Raw

from tests.client import servicer, web
from tests.client.aio.connections import ours
from tests.client.servicer import Speaker
from tieline import events, requests
from tieline.codecs import json as json_codec
from tieline.codecs import proto
from tieline.requests import Create
from tieline.v1 import service_pb2
from tieline_client import connect_session, connect_sync
from tieline_client._replay import Backoff, Policy
from tieline_client.aio import Connection, connect
from tieline_client.errors import (
    ConnectionLost,
    IncompleteStream,
    OutcomeUnknown,
    ProtocolViolation,
)
from tieline_client.transports import Options

SCHEMES: Final = ("grpc", "ws", "http")
PATIENCE: Final = 30
"""Seconds after which a turn is taken to hang."""

Play = Callable[[Create], Sequence[bytes]]
"""What is said to a create, each as the JSON of one event."""


def raw(event: events.Event) -> bytes:
    return json_codec.encode(event)


def say(**members: Any) -> bytes:
    return json.dumps(members).encode()


@asynccontextmanager
async def serving(scheme: str, play: Play) -> AsyncIterator[str]:
    """A server that answers each create by the play, and then stays open; yields its URL."""

    async def grpc_script(peer: servicer.Peer) -> None:
        while (request := await peer.receive()) is not None:
            if isinstance(request, requests.Create | requests.Resume):
                create = request if isinstance(request, Create) else Create()
                for said in play(create):
                    message = service_pb2.ConverseResponse(events=[proto.json_to_proto(said)])
                    await peer.context.write(message)

    async def socket_script(peer: web.SocketPeer) -> None:
        while (request := await peer.receive()) is not None:
            if isinstance(request, requests.Create):
                for said in play(request):
                    await peer.say(said.decode())

    async def stream_script(peer: web.StreamPeer) -> None:
        for said in play(peer.create):
            await peer.write(b"data: " + said + b"\n\n")
        await peer.gone()

    if scheme == "grpc":
        async with servicer.serving(grpc_script) as address:
            yield f"grpc://{address}"
        return
    handler = web.posting(stream_script) if scheme == "http" else web.upgrading(socket_script)
    async with web.serving(handler, handler_cancellation=True) as address:
        yield f"{scheme}://{address}"


@asynccontextmanager
async def connected(scheme: str, play: Play) -> AsyncIterator[Connection]:
    async with serving(scheme, play) as url:
        async with connect(url, options=Options(close_timeout=1)) as connection:
            yield connection
        assert ours() == []


def begun(create: Create) -> list[bytes]:
    """A response that has begun and has said something."""
    speaker = Speaker(create)
    said = [speaker.created(), *speaker.open_text(), speaker.delta("par")]
    return [raw(event) for event in said]


SNAPSHOT: Final = {"id": "r1", "status": "completed", "output": []}

ENDS: Final = {
    "no response": say(type="response.completed", sequence_number=4),
    "null response": say(type="response.completed", sequence_number=4, response=None),
    "response that is a number": say(type="response.completed", response=3),
    "response that is a list": say(type="response.incomplete", response=[]),
    "response that is text": say(type="response.failed", response="r1"),
    "held without a response": say(type="response.done", sequence_number=4),
    "progress without a response": say(type="response.in_progress"),
    "another response": say(type="response.completed", response={**SNAPSHOT, "id": "r2"}),
    "another response fails": say(type="response.failed", response={**SNAPSHOT, "id": "r2"}),
    "second beginning": say(type="response.created", response={**SNAPSHOT, "id": "r2"}),
    "no type": say(response=SNAPSHOT),
    "null type": say(type=None, response=SNAPSHOT),
    "type that is a number": say(type=7, response=SNAPSHOT),
    "list": b"[]",
    "number": b"42",
    "text": b'"response.completed"',
    "null": b"null",
}
"""What comes in the place of the end."""


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("end", list(ENDS.values()), ids=list(ENDS))
async def test_cn_24_a_malformed_event_of_the_response_ends_its_turn(
    scheme: str, end: bytes
) -> None:
    """CN-24: with all that had come before it."""

    async with connected(scheme, lambda create: [*begun(create), end]) as connection:
        stream = await connection.create(input="a")
        with pytest.raises(IncompleteStream) as caught:
            await stream.response()
        assert isinstance(caught.value.__cause__, ProtocolViolation)
        assert (caught.value.text, caught.value.response_id) == ("par", "r1")
        assert connection.alive is (scheme == "http")


UNPARSED: Final = {
    "half of an object": b'{"type":"response.completed",',
    "two objects": b"{}{}",
    "a number beyond double": b'{"type":"response.completed","response":1e999}',
    "a nesting without end": b'{"type":"response.completed","response":' + b"[" * 100_000,
}


@pytest.mark.parametrize("scheme", ["ws", "http"])
@pytest.mark.parametrize("end", list(UNPARSED.values()), ids=list(UNPARSED))
async def test_cn_24_what_is_no_json_ends_its_turn(scheme: str, end: bytes) -> None:
    async with connected(scheme, lambda create: [*begun(create), end]) as connection:
        with pytest.raises(IncompleteStream) as caught:
            await (await connection.create(input="a")).response()
        assert isinstance(caught.value.__cause__, ProtocolViolation)
        assert caught.value.text == "par"


BEGINNINGS: Final = {
    "no response": say(type="response.created"),
    "no id": say(type="response.created", response={"status": "in_progress"}),
    "null id": say(type="response.created", response={"id": None}),
    "end before the beginning": say(type="response.completed", response=SNAPSHOT),
    "text before the beginning": say(
        type="response.output_text.delta", item_id="m", output_index=0, content_index=0, delta="x"
    ),
}


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("beginning", list(BEGINNINGS.values()), ids=list(BEGINNINGS))
async def test_cn_24_a_malformed_beginning_ends_its_turn(scheme: str, beginning: bytes) -> None:
    """CN-24: what the server makes of it is not known."""

    async with connected(scheme, lambda _: [beginning]) as connection:
        with pytest.raises(OutcomeUnknown) as caught:
            await (await connection.create(input="a")).response()
        assert isinstance(caught.value.__cause__, ProtocolViolation)


ODD: Final = {
    "unknown type": say(type="acme:gauge", v=1),
    "known type without its members": say(type="response.output_text.delta"),
    "delta that is a number": say(
        type="response.output_text.delta", item_id="m", output_index=0, content_index=0, delta=5
    ),
    "item that is a number": say(type="response.output_item.added", output_index=0, item=5),
    "index out of range": say(
        type="response.output_text.delta",
        item_id="m",
        output_index=-7,
        content_index=2**31 - 1,
        delta="x",
    ),
    "number out of order": say(type="response.in_progress", sequence_number=0, response=SNAPSHOT),
    "number far ahead": say(type="acme:gauge", sequence_number=2**40),
    "number that is text": say(type="acme:gauge", sequence_number="four"),
    "timing of nothing": say(type="responsesapi.websocket_timing", timing_metrics=7),
    "steer of nothing": say(type="response.steer.accepted"),
    "session that allows a word": say(type="tieline.session.started", limits="many"),
    "lane that is a number": say(type="acme:gauge", stream_id=9),
}


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("odd", list(ODD.values()), ids=list(ODD))
async def test_cn_24_what_harms_nothing_is_carried(scheme: str, odd: bytes) -> None:
    """CN-24: the end of the response has the last word on what it was."""

    def play(create: Create) -> list[bytes]:
        said = [raw(event) for event in Speaker(create).answer("whole")]
        return [*said[:4], odd, *said[4:]]

    async with connected(scheme, play) as connection:
        result = await (await connection.create(input="a")).result()
        assert (result.text, result.response.status) == ("whole", "completed")
        assert connection.alive


@pytest.mark.parametrize("scheme", SCHEMES)
async def test_cn_24_output_that_cannot_be_read_is_never_completed(scheme: str) -> None:
    """CN-24: an end that does not repeat the output cannot mend it."""

    def play(create: Create) -> list[bytes]:
        torn = say(type="response.output_text.delta", item_id="m", output_index=0, delta="tial")
        end = say(type="response.completed", sequence_number=9, response=SNAPSHOT)
        return [*begun(create), torn, end]

    async with connected(scheme, play) as connection:
        with pytest.raises(IncompleteStream, match="cannot be read") as caught:
            await (await connection.create(input="a")).response()
        assert caught.value.text == "par"
        assert connection.alive


async def test_cn_24_a_turn_that_is_read_when_its_end_is_another_ones_is_told() -> None:
    """CN-24: the reader waits for the end as it comes, which once left it waiting."""

    async with connected(
        "ws", lambda create: [*begun(create), ENDS["another response"]]
    ) as connection:
        stream = await connection.create(input="a")
        reading = asyncio.create_task(stream.response())
        with pytest.raises(IncompleteStream):
            await reading
        # Neither is the half of an answer taken for a whole one by who reads it again.
        with pytest.raises(IncompleteStream):
            await stream.response()


@pytest.mark.parametrize("scheme", ["grpc", "ws"])
@pytest.mark.parametrize("lane", [None, "a"])
async def test_cn_24_an_event_of_a_lane_that_was_never_used_ends_the_line(
    scheme: str, lane: str | None
) -> None:
    def play(create: Create) -> list[bytes]:
        end = say(type="response.completed", stream_id="elsewhere", response=SNAPSHOT)
        return [*begun(create), end]

    async with connected(scheme, play) as connection:
        at = connection if lane is None else connection.lane(lane)
        with pytest.raises(IncompleteStream, match="never used"):
            await (await at.create(input="a")).response()


def broken_on_lane_b(create: Create) -> list[bytes]:
    """Lane b, which HTTP does not name, gets an end without a response; others are left open."""
    said = begun(create)
    if create.stream_id == "b" or create.input == Raw(b'"b"'):
        said.append(json.dumps({"type": "response.completed", "stream_id": "b"}).encode())
    return said


@pytest.mark.parametrize("scheme", SCHEMES)
async def test_cn_24_the_other_lanes_end_with_their_line_and_over_http_go_on(scheme: str) -> None:
    """CN-24: the documented fate of the others."""

    async with connected(scheme, broken_on_lane_b) as connection:
        good = await connection.lane("a").create(input="a")
        while not good.text:
            await good.batch()
        bad = await connection.lane("b").create(input="b")
        with pytest.raises(IncompleteStream, match="completed without a response"):
            await bad.response()
        if scheme == "http":
            assert not good.ended
            assert connection.alive
            return
        with pytest.raises(IncompleteStream) as caught:
            await good.response()
        assert isinstance(caught.value.__cause__, ProtocolViolation)


async def test_cn_24_a_held_response_that_is_read_over_http_is_none() -> None:
    """CN-24: it is held on another line; over HTTP a create cannot be."""

    async def handle(request: aiohttp_web.Request) -> aiohttp_web.StreamResponse:
        peer = web.StreamPeer(request, await request.read())
        speaker = Speaker(Create())
        held = [speaker.created(), *speaker.call("add", "{}", "c1"), speaker.done()]
        await peer.send(*held, *speaker.text("three"), speaker.completed())
        return peer.response

    async with web.serving(handle) as address, connect(f"http://{address}") as connection:
        stream = await connection.resume("r1")
        assert [call.call_id for call in (await stream.result()).calls] == ["c1"]
        assert (await stream.result()).text == "three"
        with pytest.raises(IncompleteStream) as caught:
            await (await connection.create(input="a")).result()
        assert isinstance(caught.value.__cause__, ProtocolViolation)


@pytest.mark.parametrize("scheme", SCHEMES)
async def test_cn_24_a_session_does_not_ask_such_a_server_for_ever(scheme: str) -> None:
    policy = Policy(backoff=Backoff(max_retries=1, first=0.01))

    async with (
        serving(scheme, lambda create: [*begun(create), ENDS["no response"]]) as url,
        asyncio.timeout(PATIENCE),
        connect_session(url, policy=policy, options=Options(connect_timeout=1)) as session,
    ):
        with pytest.raises(ConnectionLost):
            await (await session.conversation().create(input="a")).result()


async def test_cn_24_the_blocking_face_is_told_as_well() -> None:
    async with serving("ws", lambda create: [*begun(create), ENDS["no response"]]) as url:

        def blocking() -> None:
            with connect_sync(url) as connection, pytest.raises(IncompleteStream):
                connection.create(input="a").response()

        async with asyncio.timeout(PATIENCE):
            await asyncio.to_thread(blocking)


async def test_cn_24_an_event_of_a_newer_schema_is_passed_over() -> None:
    """CN-24: on gRPC a type that is not known has no name either, only a number."""
    newer = bytes([0xFA, 0x3F, 0x02, 0x08, 0x01])

    async def script(peer: servicer.Peer) -> None:
        said = Speaker(await peer.create()).answer("whole")
        await peer.send(*said[:3])
        message = service_pb2.ConverseResponse()
        message.events.add().MergeFromString(newer)
        await peer.context.write(message)
        await peer.send(*said[3:])
        await peer.gone()

    async with (
        servicer.serving(script) as address,
        asyncio.timeout(PATIENCE),
        connect(f"grpc://{address}") as connection,
    ):
        assert (await (await connection.create(input="a")).result()).text == "whole"


async def test_cn_24_an_event_of_no_type_at_all_ends_a_grpc_line() -> None:
    async def script(peer: servicer.Peer) -> None:
        await peer.create()
        message = service_pb2.ConverseResponse()
        message.events.add()
        await peer.context.write(message)
        await peer.gone()

    async with (
        servicer.serving(script) as address,
        asyncio.timeout(PATIENCE),
        connect(f"grpc://{address}") as connection,
    ):
        with pytest.raises(OutcomeUnknown) as caught:
            await (await connection.create(input="a")).result()
        assert isinstance(caught.value.__cause__, ProtocolViolation)


async def test_cn_24_capabilities_that_are_rubbish_are_none() -> None:
    async def handle(_: aiohttp_web.Request) -> aiohttp_web.StreamResponse:
        return aiohttp_web.Response(body=b'{"extensions":' + b"[" * 100_000)

    async with web.serving(handle) as address, connect(f"http://{address}") as connection:
        assert await connection.extensions() == frozenset()
