"""One turn as an iterator: the two shapes, failures, steer and cancel."""

import asyncio

import pytest
from msgspec import Raw
from msgspec.structs import replace

from tests.client.aio.connections import collect, connected
from tests.client.servicer import Peer, Speaker, refusal
from tieline import events, requests
from tieline.errors import ApiError, BadRequest, ServerError
from tieline_client.aio import tool_output
from tieline_client.errors import TurnState


async def test_a_held_turn_pauses_the_iteration_until_it_is_answered() -> None:
    async def script(peer: Peer) -> None:
        create = await peer.create()
        assert create.append is True
        speaker = Speaker(create)
        call = speaker.call("add", '{"a":1}', "c1")
        await peer.send(speaker.created(), *call, speaker.done())
        append = await peer.read(requests.Append)
        assert append.response_id == "r1"
        assert append.input == Raw(b'[{"type":"function_call_output","call_id":"c1","output":"2"}]')
        await peer.send(*speaker.text("two"), speaker.completed())

    async with connected(script) as connection:
        stream = await connection.create(input="a", append=True)
        held = await stream.result()
        assert (stream.held, stream.ended, held.response.status) == (True, False, "in_progress")
        assert [(call.call_id, call.name, call.arguments) for call in held.calls] == [
            ("c1", "add", '{"a":1}')
        ]
        assert [event async for event in stream] == []
        await stream.append([tool_output(held.calls[0], "2")])
        result = await stream.result()
        assert (result.text, result.calls, stream.ended) == ("two", (), True)
        assert result.usage is not None
        assert result.usage.total_tokens == 5


async def test_in_07_what_the_server_ignores_is_an_attribute_of_the_stream() -> None:
    warning = events.RequestWarning(code="unknown_parameter", message="No.", param="tempratur")

    async def script(peer: Peer) -> None:
        speaker = Speaker(await peer.create())
        created = replace(speaker.created(), warnings=(warning,))
        await peer.send(created, *speaker.text("one"), speaker.completed())
        speaker = Speaker(await peer.create(), response_id="r2")
        await peer.send(speaker.created(), *speaker.text("two"), speaker.completed())

    async with connected(script) as connection:
        stream = await connection.create(input="a")
        assert not stream.warnings
        await stream.result()
        assert stream.warnings == (warning,)
        plain = await connection.create(input="b")
        await plain.result()
        assert not plain.warnings


async def test_an_append_in_the_middle_of_the_loop_carries_the_loop_on() -> None:
    async def script(peer: Peer) -> None:
        speaker = Speaker(await peer.create())
        await peer.send(speaker.created(), *speaker.call("f", "{}", "c1"), speaker.done())
        await peer.read(requests.Append)
        await peer.send(*speaker.text("two"), speaker.completed())

    async with connected(script) as connection:
        stream = await connection.create(input="a", append=True)
        types = []
        async for event in stream:
            types.append(event.type)
            if isinstance(event, events.ResponseDone):
                await stream.append([tool_output(stream.calls[0], "2")])
        assert types[-1] == "response.completed"


async def test_a_held_turn_that_was_cancelled_is_read_to_its_end() -> None:
    async def script(peer: Peer) -> None:
        speaker = Speaker(await peer.create())
        await peer.send(speaker.created(), *speaker.call("f", "{}", "c1"), speaker.done())
        await peer.read(requests.Cancel)
        await peer.send(speaker.completed())

    async with connected(script) as connection:
        stream = await connection.create(input="a", append=True)
        await stream.result()
        assert stream.held
        await stream.cancel()
        assert [event.type async for event in stream] == ["response.completed"]
        assert stream.ended


async def test_a_refused_append_is_raised_once_and_the_turn_is_still_held() -> None:
    async def script(peer: Peer) -> None:
        speaker = Speaker(await peer.create())
        await peer.send(speaker.created(), *speaker.call("f", "{}", "c1"), speaker.done())
        append = await peer.read(requests.Append)
        error = ApiError.of("tool_output_missing", "No output for c1.", param="input")
        await peer.send(refusal(error, append.event_id))
        await peer.read(requests.Append)
        await peer.send(*speaker.text("two"), speaker.completed())

    async with connected(script) as connection:
        stream = await connection.create(input="a", append=True)
        (call,) = (await stream.result()).calls
        await stream.append([tool_output(call, "2")])
        assert not stream.calls
        with pytest.raises(BadRequest, match="No output"):
            await stream.response()
        assert stream.held
        assert stream.calls == (call,)
        await stream.append([tool_output(call, "2")])
        assert (await stream.result()).text == "two"


async def test_only_a_held_turn_takes_an_append_and_only_a_running_one_a_steer() -> None:
    async def script(peer: Peer) -> None:
        await peer.send(*Speaker(await peer.create()).answer("x"))

    async with connected(script) as connection:
        stream = await connection.create(input="a")
        with pytest.raises(TurnState, match="waiting"):
            await stream.append([])
        await stream.response()
        with pytest.raises(TurnState, match="ended"):
            await stream.append([])
        with pytest.raises(TurnState, match="ended"):
            await stream.steer("b")
        await stream.cancel()


async def test_a_lane_that_holds_a_turn_is_continued_by_its_stream() -> None:
    async def script(peer: Peer) -> None:
        speaker = Speaker(await peer.create())
        await peer.send(speaker.created(), *speaker.call("f", "{}", "c1"), speaker.done())
        await peer.gone()

    async with connected(script) as connection:
        stream = await connection.create(input="a", append=True)
        await stream.response()
        with pytest.raises(TurnState, match="holds"):
            await connection.append("more")


async def test_a_failed_turn_shows_its_events_and_then_raises() -> None:
    async def script(peer: Peer) -> None:
        speaker = Speaker(await peer.create())
        await peer.send(speaker.created(), *speaker.open_text(), speaker.delta("par"))
        await peer.send(speaker.failed("server_error", "It broke."))
        await peer.gone()

    async with connected(script) as connection:
        stream = await connection.create(input="a")
        types: list[str] = []
        with pytest.raises(ServerError, match="It broke") as caught:
            await collect(stream, types)
        assert types[-1] == "response.failed"
        assert caught.value.status == 500
        assert stream.text == "par"
        with pytest.raises(ServerError):
            await stream.result()


async def test_an_error_event_before_the_failure_says_more_about_it() -> None:
    async def script(peer: Peer) -> None:
        speaker = Speaker(await peer.create())
        created = speaker.created()
        detail = events.ErrorDetail(type="x_error", code="acme_7", message="Seven.", param="p")
        error = speaker.event(events.ErrorEvent, status=503, error=detail)
        await peer.send(created, error, speaker.failed("acme_7", "Seven."))

    async with connected(script) as connection:
        with pytest.raises(ApiError, match="Seven") as caught:
            await (await connection.create(input="a")).response()
        assert (caught.value.status, caught.value.type, caught.value.param) == (
            503,
            "x_error",
            "p",
        )


async def test_a_cut_turn_is_returned_with_its_partial_output() -> None:
    async def script(peer: Peer) -> None:
        speaker = Speaker(await peer.create())
        await peer.send(speaker.created(), *speaker.open_text(), speaker.delta("par"))
        cancel = await peer.read(requests.Cancel)
        assert cancel.response_id == "r1"
        await peer.send(*speaker.close_text("par"), speaker.incomplete("cancelled"))

    async with connected(script) as connection:
        stream = await connection.create(input="a")
        async for event in stream:
            if isinstance(event, events.OutputTextDelta):
                await stream.cancel()
        assert (await stream.response()).status == "cancelled"
        assert stream.text == "par"


async def test_a_create_that_waits_is_cancelled_by_its_event_id() -> None:
    async def script(peer: Peer) -> None:
        create = await peer.create()
        cancel = await peer.read(requests.Cancel)
        assert (cancel.event_id, cancel.response_id) == (create.event_id, None)
        speaker = Speaker(create)
        await peer.send(speaker.created(), speaker.incomplete("cancelled"))

    async with connected(script) as connection:
        stream = await connection.create(input="a")
        await stream.cancel()
        assert (await stream.response()).status == "cancelled"


async def test_a_steered_turn_goes_on_in_its_successor() -> None:
    async def script(peer: Peer) -> None:
        speaker = Speaker(await peer.create())
        await peer.send(speaker.created(), *speaker.open_text(), speaker.delta("par"))
        steer = await peer.read(requests.Steer)
        assert steer.previous_response_id == "r1"
        ref = events.SteerRef(previous_response_id="r1", id="steer_1")
        await peer.send(
            speaker.event(events.SteerAccepted, steer=ref),
            *speaker.close_text("par"),
            speaker.incomplete(),
        )
        successor = Speaker(requests.Create(), "r2")
        await peer.send(*successor.answer("other"))

    async with connected(script) as connection:
        stream = await connection.create(input="a")
        types = []
        async for event in stream:
            types.append(event.type)
            if isinstance(event, events.OutputTextDelta) and event.delta == "par":
                await stream.steer("rather this")
        assert types.count("response.created") == 2
        assert "response.steer.accepted" in types
        assert (stream.response_id, stream.text) == ("r2", "other")
        assert (await stream.response()).id == "r2"


async def test_a_refused_steer_is_an_event_and_harms_nothing() -> None:
    async def script(peer: Peer) -> None:
        speaker = Speaker(await peer.create())
        await peer.send(speaker.created())
        await peer.read(requests.Steer)
        ref = events.SteerRef(previous_response_id="r1")
        detail = events.ErrorDetail(code="steering_not_supported", message="no")
        failed = events.SteerFailed(sequence_number=0, error=detail, steer=ref)
        await peer.send(failed, *speaker.text("x"), speaker.completed())

    async with connected(script) as connection:
        stream = await connection.create(input="a")
        types = []
        async for event in stream:
            types.append(event.type)
            if isinstance(event, events.ResponseCreated):
                await stream.steer("b")
        assert "response.steer.failed" in types
        assert (await stream.result()).text == "x"


async def test_unknown_events_and_odd_items_kill_no_stream() -> None:
    """EV-09: a vendor's event is handed over; no number and a null item are tolerated."""

    async def script(peer: Peer) -> None:
        speaker = Speaker(await peer.create())
        vendor = events.Opaque(
            name="acme:gauge", raw=Raw(b'{"type":"acme:gauge","sequence_number":4,"v":1}')
        )
        bare = events.OutputTextDelta(item_id="m", output_index=1, content_index=0, delta="x")
        null = events.OutputItemAdded(output_index=0, item=Raw(b"null"))
        await peer.send(speaker.created(), vendor, null, bare, speaker.completed())

    async with connected(script) as connection:
        stream = await connection.create(input="a")
        types = [event.type async for event in stream]
        assert types[1] == "acme:gauge"
        result = await stream.result()
        assert (result.text, result.calls) == ("x", ())


async def test_timing_is_kept_and_is_no_event() -> None:
    async def script(peer: Peer) -> None:
        speaker = Speaker(await peer.create())
        timing = events.Timing(response_id="r1", phases={"overhead": 120, "decode": 900})
        await peer.send(speaker.created(), timing, speaker.completed())

    async with connected(script) as connection:
        stream = await connection.create(input="a")
        assert stream.wall is None
        assert "tieline.timing" not in [event.type async for event in stream]
        assert stream.timing == {"overhead": 120, "decode": 900}
        assert stream.wall is not None
        assert stream.wall > 0


async def test_a_batch_is_all_that_is_there() -> None:
    async def script(peer: Peer) -> None:
        await peer.send(*Speaker(await peer.create()).answer("a", "b"))

    async with connected(script) as connection:
        stream = await connection.create(input="a")
        batch = await stream.batch()
        assert len(batch) == 9
        assert await stream.batch() == []


async def test_two_readers_of_one_turn_share_its_events() -> None:
    async def script(peer: Peer) -> None:
        speaker = Speaker(await peer.create())
        await peer.send(speaker.created())
        await peer.send(*speaker.text("a", "b"), speaker.completed())

    async with connected(script) as connection:
        stream = await connection.create(input="a")

        async def read() -> list[str]:
            return [event.type async for event in stream]

        first, second = await asyncio.gather(read(), read())
        assert len(first) + len(second) == 9


async def test_leaving_the_block_cancels_a_turn_that_runs() -> None:
    cancelled = asyncio.Event()

    async def script(peer: Peer) -> None:
        speaker = Speaker(await peer.create())
        await peer.send(speaker.created())
        await peer.read(requests.Cancel)
        cancelled.set()
        await peer.send(speaker.incomplete("cancelled"))
        await peer.gone()

    async with connected(script) as connection:
        async with await connection.create(input="a") as stream:
            async for _ in stream:
                break
        await cancelled.wait()
