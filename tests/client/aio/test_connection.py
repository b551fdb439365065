"""Connections and lanes over a real gRPC stream: pairing, back-pressure, and every way to end."""

import asyncio
import gc

import pytest

from tests.client.aio.connections import collect, connected, ours
from tests.client.relay import Relay
from tests.client.servicer import Peer, Script, Speaker, echoing, forever, refusal, serving
from tieline import events, requests
from tieline.errors import (
    ApiError,
    AuthenticationError,
    BadRequest,
    NotFound,
    RequestTooLarge,
    TielineError,
    Unavailable,
)
from tieline_client import aio
from tieline_client._asks import Ask
from tieline_client.aio import Connection, ResponseStream, connect
from tieline_client.aio.stream import FULL
from tieline_client.errors import (
    ConnectionClosed,
    ConnectionLost,
    IncompleteStream,
    NotSent,
    OutcomeUnknown,
    ProtocolViolation,
    UnsupportedUrl,
)
from tieline_client.transports import Options


async def test_a_turn_is_created_and_read() -> None:
    async with connected(echoing) as connection:
        stream = await connection.create(input="hello", model="m")
        types = [event.type async for event in stream]
        assert types[0] == "response.created"
        assert types[-1] == "response.completed"
        assert stream.text == "hello"
        assert (await stream.response()).status == "completed"


async def test_lanes_run_side_by_side_and_each_gets_its_own_events() -> None:
    async def script(peer: Peer) -> None:
        speakers = [Speaker(await peer.create(), f"r{number}") for number in range(3)]
        scripts = [speaker.answer(speaker.id, "!") for speaker in speakers]
        # One event of each lane in turn, several lanes in one message.
        for step in zip(*scripts, strict=True):
            await peer.send(*reversed(step))

    async with connected(script) as connection:
        streams = [
            await connection.lane("a").create(input="1"),
            await connection.lane("b").create(input="2"),
            await connection.create(input="3"),
        ]
        results = await asyncio.gather(*(stream.result() for stream in streams))
        assert [result.text for result in results] == ["r0!", "r1!", "r2!"]
        assert [stream.lane for stream in streams] == ["a", "b", None]


async def test_creates_of_one_lane_are_answered_one_after_the_other() -> None:
    async with connected(echoing) as connection:
        streams = [await connection.create(input=str(number)) for number in range(5)]
        texts = [(await stream.result()).text for stream in reversed(streams)]
        assert texts == ["4", "3", "2", "1", "0"]


@pytest.mark.parametrize("name", ["", "a b", "x" * 257, "ü"])
async def test_a_name_that_is_no_lane_is_refused_here(name: str) -> None:
    async with connected(echoing) as connection:
        with pytest.raises(ValueError, match="lane"):
            connection.lane(name)


async def test_a_refused_create_raises_its_error_and_the_line_lives_on() -> None:
    """GR-07: an in-band error is the class of its status."""

    async def script(peer: Peer) -> None:
        create = await peer.create()
        error = ApiError.of("model_not_found", "No model 'x'.", param="model")
        await peer.send(refusal(error, create.event_id))
        await echoing(peer)

    async with connected(script) as connection:
        stream = await connection.create(input="a", model="x")
        with pytest.raises(NotFound, match="No model") as caught:
            await stream.response()
        assert (caught.value.code, caught.value.param) == ("model_not_found", "model")
        with pytest.raises(NotFound):
            await stream.response()
        assert [event async for event in stream] == []
        assert (await (await connection.create(input="b")).result()).text == "b"


async def test_session_and_heartbeat_events_are_hidden_from_turns() -> None:
    """GR-05: proof of life is no event of a response."""

    async def script(peer: Peer) -> None:
        speaker = Speaker(await peer.create())
        started = events.SessionStarted(
            session_id="s", revision="1", extensions=[], limits={"max_message_bytes": 500}
        )
        await peer.send(started, events.Heartbeat(phase="prefill"))
        away = events.SessionGoingAway(reason="server_draining", seconds=5.0)
        await peer.send(speaker.created(), away, events.Heartbeat(phase="idle"))
        await peer.send(*speaker.text("x"), speaker.completed())
        await peer.gone()

    async with connected(script) as connection:
        stream = await connection.create(input="a")
        types = {event.type async for event in stream}
        assert not types & events.EXTENSIONS
        assert connection.session is not None
        assert connection.session.session_id == "s"
        assert connection.going_away is not None
        assert connection.going_away.seconds == 5.0
        with pytest.raises(RequestTooLarge, match="500"):
            await connection.create(input="x" * 1000)


async def test_a_request_that_could_not_be_sent_leaves_nothing_behind() -> None:
    async with connected(echoing) as connection:
        with pytest.raises(TypeError):
            await connection.create(input="a", text=object())  # type: ignore[arg-type]
        with pytest.raises(RequestTooLarge):
            await connection.create(input="x" * 40_000_000)
        assert (await (await connection.create(input="b")).result()).text == "b"


async def test_a_lane_goes_on_with_the_settings_of_its_latest_response() -> None:
    async def script(peer: Peer) -> None:
        create = await peer.create()
        await peer.send(*Speaker(create).answer("one"))
        append = await peer.read(requests.Append)
        assert append.response_id is None
        await peer.send(*Speaker(append, "r2").answer("two"))

    async with connected(script) as connection:
        lane = connection.lane("a")
        assert (await (await lane.create(input="x")).result()).text == "one"
        assert (await (await lane.append("more")).result()).text == "two"


async def test_a_slow_reader_gets_every_event_while_the_server_waits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Back-pressure: the buffer is bounded, and what does not fit stays in the connection."""
    count, size = 1000, 40_000
    sent = 0

    async def script(peer: Peer) -> None:
        nonlocal sent
        speaker = Speaker(await peer.create())
        await peer.send(speaker.created(), *speaker.open_text())
        for _ in range(count):
            await peer.send(speaker.delta("x" * size))
            sent += 1
        await peer.send(*Speaker(await peer.create(), "r2").answer("other"))
        await peer.send(speaker.incomplete())

    async with connected(script, merge="never") as connection:
        full = asyncio.Event()
        hold_back = connection._hold_back

        def hold_back_and_tell(ask: Ask) -> None:
            hold_back(ask)
            full.set()

        monkeypatch.setattr(connection, "_hold_back", hold_back_and_tell)
        # This lane is not read, so the other one cannot be: they share one flow of bytes.
        stream = await connection.lane("a").create(input="a")
        other = asyncio.create_task((await connection.lane("b").create(input="b")).response())
        await full.wait()
        await asyncio.wait((other,), timeout=0.1)
        assert not other.done()
        assert len(stream._buffer) == FULL
        assert sent < count
        deltas = [e.delta async for e in stream if isinstance(e, events.OutputTextDelta)]
        assert "".join(deltas) == "x" * size * count
        assert (await other).id == "r2"


async def test_a_turn_that_nobody_reads_does_not_hold_up_another_lane() -> None:
    """Deltas of an unread turn join, so that it stays small."""

    async def script(peer: Peer) -> None:
        first, second = Speaker(await peer.create(), "r1"), Speaker(await peer.create(), "r2")
        await peer.send(first.created(), *first.open_text())
        for _ in range(20 * FULL):
            await peer.send(first.delta("x"))
        await peer.send(*second.answer("second"))
        await peer.send(*first.close_text("x" * 20 * FULL), first.completed())

    async with connected(script) as connection:
        unread = await connection.lane("a").create(input="1")
        other = await connection.lane("b").create(input="2")
        assert (await other.result()).text == "second"
        assert len(unread._buffer) < FULL
        deltas = [e.delta async for e in unread if isinstance(e, events.OutputTextDelta)]
        assert "".join(deltas) == "x" * 20 * FULL


@pytest.mark.parametrize("how", ["dropped", "closed"])
async def test_a_turn_that_was_given_up_does_not_hold_up_its_line(how: str) -> None:
    async def script(peer: Peer) -> None:
        speaker = Speaker(await peer.create())
        await peer.send(speaker.created(), *speaker.open_text())
        for _ in range(3 * FULL):
            await peer.send(speaker.delta("x"))
        await peer.send(*speaker.close_text("x" * 3 * FULL), speaker.completed())
        while not isinstance(request := await peer.receive(), requests.Create):
            pass
        await peer.send(*Speaker(request, "r2").answer("second"))

    async with connected(script, merge="never") as connection:
        stream = await connection.create(input="a")
        async for _ in stream:
            break
        if how == "closed":
            await stream.aclose()
            assert [event async for event in stream] == []
        del stream
        gc.collect()
        assert (await (await connection.create(input="b")).result()).text == "second"


def cut(kind: str) -> Script:
    async def script(peer: Peer) -> None:
        speaker = Speaker(await peer.create())
        await peer.send(speaker.created(), *speaker.open_text(), speaker.delta("par"))
        await peer.send(speaker.delta("tial"))
        if kind == "status":
            await peer.abort(ApiError.of("server_draining", "stopping"))

    return script


@pytest.mark.parametrize("kind", ["ok", "status"])
async def test_rc_10_a_cut_stream_is_never_a_result(kind: str) -> None:
    """RC-10 (d): gRPC OK, or any status, without a terminal event is IncompleteStream."""

    async with connected(cut(kind)) as connection:
        stream = await connection.create(input="a")
        seen: list[str] = []
        with pytest.raises(IncompleteStream) as caught:
            await collect(stream, seen)
        assert seen.count("response.output_text.delta") == 2
        assert (caught.value.text, caught.value.response_id) == ("partial", "r1")
        assert caught.value.sequence_number == 4
        assert isinstance(caught.value.__cause__, Unavailable if kind == "status" else type(None))
        with pytest.raises(IncompleteStream):
            await stream.response()


async def pending(connection: Connection) -> list[ResponseStream]:
    """Turns in every state in which something is waited for."""
    streams = [await connection.create(input="a"), await connection.create(input="b")]
    streams.append(await connection.lane("x").create(input="c"))
    async for event in streams[0]:
        if isinstance(event, events.OutputTextDelta):
            break
    return streams


async def hanging(peer: Peer) -> None:
    speaker = Speaker(await peer.create())
    await peer.send(speaker.created(), *speaker.open_text(), speaker.delta("par"))
    await forever(peer)


@pytest.mark.parametrize("way", ["reset", "half-open", "reader cancelled", "transport error"])
async def test_rc_06_everything_pending_ends_when_the_line_does(way: str) -> None:
    """RC-06: every iterator and awaitable ends with an exception, and no task is left."""
    half_open = way == "half-open"
    options = Options(keepalive=0.1, keepalive_timeout=0.1) if half_open else Options()

    async with serving(hanging) as address, Relay(address) as relay:
        async with connect(f"grpc://{relay.address}", options=options) as connection:
            streams = await pending(connection)
            waiting = [asyncio.create_task(stream.response()) for stream in streams]
            await asyncio.sleep(0)
            if way == "reset":
                relay.reset()
            elif way == "half-open":
                relay.forget()
            elif way == "reader cancelled":
                connection._reader.cancel()
            else:
                # As when the library gives the stream up by itself.
                connection._transport._call.cancel()  # type: ignore[attr-defined]
            async with asyncio.timeout(5):
                results = await asyncio.gather(*waiting, return_exceptions=True)
            assert [type(result) for result in results] == [
                IncompleteStream,
                OutcomeUnknown,
                OutcomeUnknown,
            ]
            assert not connection.alive
            with pytest.raises(ConnectionLost):
                await connection.create(input="d")
        assert ours() == []


async def test_rc_06_closing_ends_everything_within_close_timeout() -> None:
    """RC-06: also against a peer that does not answer any more."""
    options = Options(close_timeout=0.2)

    async with serving(hanging) as address, Relay(address) as relay:
        async with connect(f"grpc://{relay.address}", options=options) as connection:
            streams = await pending(connection)
            waiting = [asyncio.create_task(stream.response()) for stream in streams]
            relay.forget()
            async with asyncio.timeout(5):
                await connection.close()
                results = await asyncio.gather(*waiting, return_exceptions=True)
            assert all(isinstance(result, ConnectionLost) for result in results)
            with pytest.raises(ConnectionClosed):
                await connection.create(input="d")
        assert ours() == []


async def test_an_idle_line_that_closes_against_a_silent_peer_waits_close_timeout_at_most() -> None:
    async with connected(forever, close_timeout=0.1) as connection:
        async with asyncio.timeout(5):
            await connection.close()
            await connection.close()


async def test_an_idle_line_says_goodbye() -> None:
    got: list[requests.Request | None] = []

    async def script(peer: Peer) -> None:
        while (request := await peer.receive()) is not None:
            got.append(request)

    async with connected(script):
        pass
    assert got[-1] == requests.SessionEnd()


async def test_a_status_before_the_response_is_the_error_that_it_states() -> None:
    """GR-07: the caller sees the server's error, not a connection that was lost."""

    async def script(peer: Peer) -> None:
        await peer.create()
        await peer.abort(ApiError.of("invalid_api_key", "no"))

    async with connected(script) as connection:
        streams = [await connection.create(input="a"), await connection.create(input="b")]
        for stream in streams:
            with pytest.raises(AuthenticationError):
                await stream.response()


async def test_an_error_of_the_line_is_why_it_ended() -> None:
    async def script(peer: Peer) -> None:
        await peer.create()
        error = ApiError.of("websocket_connection_limit_reached", "60 minutes")
        await peer.send(events.Heartbeat(phase="idle"), refusal(error, None))

    async with connected(script) as connection:
        stream = await connection.create(input="a")
        with pytest.raises(BadRequest, match="60 minutes"):
            await stream.response()


async def test_an_event_that_cannot_come_there_ends_the_line() -> None:
    async def script(peer: Peer) -> None:
        speaker = Speaker(await peer.create())
        await peer.send(speaker.completed())
        await forever(peer)

    async with connected(script) as connection:
        stream = await connection.create(input="a")
        with pytest.raises(ConnectionLost) as caught:
            await stream.response()
        assert isinstance(caught.value.__cause__, ProtocolViolation)


@pytest.mark.parametrize(
    "url",
    ["ftp://h", "h:1", "grpc://", "grpc://h:99999", "grpc://h/path", "grpc://h?x", "grpc://u@h"],
)
async def test_a_url_that_names_no_line_is_refused(url: str) -> None:
    with pytest.raises(UnsupportedUrl):
        await aio.Connection.open(url)


def test_every_error_of_the_client_is_a_tieline_error() -> None:
    from tieline_client import errors

    classes = [each for each in vars(errors).values() if isinstance(each, type)]
    assert all(issubclass(each, TielineError) for each in classes)


async def test_a_line_on_which_nothing_can_be_sent_is_over_before_its_reader_knows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def lost(_request: requests.Request) -> bool:
        return False

    async with connected(forever) as connection:
        monkeypatch.setattr(connection._transport, "send", lost)
        with pytest.raises(NotSent):
            await connection.create(input="hello", model="m")
        assert not connection.alive


async def test_a_line_that_is_closed_before_its_reader_has_begun_leaves_nothing() -> None:
    async with serving(forever) as address:
        connection = await Connection.open(f"grpc://{address}")
        connection._core.create(None)  # Something is under way: it does not wait for a goodbye.
        await connection.close()
        assert ours() == []
