"""Events of a response for whoever asks: resumes on other lines, and further readers."""

import asyncio
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing

import msgspec
import pytest
from msgspec import structs

from tests.support.core import LOCAL, append_of, output, user, words
from tests.support.runtime import Stage, Step, endless, hello, looker, loop_turns, mute, until
from tieline import events
from tieline.codecs.json import encode
from tieline.errors import ApiError
from tieline.requests import Cancel
from tieline_server.core.create.limits import Limits
from tieline_server.core.deltas import Accepted, TextDelta
from tieline_server.core.effects import Prompt
from tieline_server.core.stream.replay_log import ReplayLogs
from tieline_server.core.turn.follow import relaned
from tieline_server.core.values import Principal
from tieline_server.engines.base import EngineError
from tieline_server.peers import Peer
from tieline_server.runtime import LocalPeer, Running, events_of, reading
from tieline_server.storage.base import RunningResponse
from tieline_server.storage.memory import MemoryJournal


@pytest.fixture(autouse=True)
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every reader reads in several batches."""
    monkeypatch.setattr(reading, "BATCH", 3)


class Over(MemoryJournal):
    """The journal of a process in which nothing runs any more."""

    async def running(self, owner: str, response_id: str) -> RunningResponse | None:
        """Nothing."""
        return None


class Forgetful(MemoryJournal):
    """Whatever has begun has ended."""

    async def running(self, owner: str, response_id: str) -> RunningResponse | None:
        """Nothing runs."""
        return None


class TestOwners:
    async def test_a_connection_that_begins_with_a_resume_has_the_owner_of_its_key(self) -> None:
        stage = Stage(mute, authenticate=lambda: Principal(owner="ann"))
        stage.create(resumable=True)
        response_id = (await stage.until(events.ResponseCreated)).response.id
        await stage.driver.close()
        client = stage.client()
        client.resume(response_id)
        assert (await client.until(events.ResponseCreated)).response.id == response_id
        await client.driver.close()
        await stage.services.running.close()

    async def test_anothers_response_is_exactly_like_one_that_is_not_there(self) -> None:
        owners = iter(["ann", "bob", "bob"])

        stage = Stage(mute, authenticate=lambda: Principal(owner=next(owners)))
        stage.create(resumable=True)
        response_id = (await stage.until(events.ResponseCreated)).response.id
        client = stage.client()
        told = []
        for named in (response_id, "resp_unknown"):
            client.resume(named, event_id="e")
            error = (await client.until(events.ErrorEvent)).error
            told.append((error.code, error.event_id, error.message.replace(named, "")))
        assert told[0] == told[1]
        assert told[0][:2] == ("response_not_found", "e")
        await client.driver.close()
        await stage.driver.close()
        await stage.services.running.close()

    async def test_au_02_a_key_that_is_revoked_resumes_nothing(self) -> None:
        stage = Stage(hello)

        def revoked() -> Principal:
            raise ApiError.of("invalid_api_key", "Incorrect API key provided.")

        stage.authenticate = revoked
        client = stage.client()
        client.resume("resp_x", event_id="e")
        refused = await client.until(events.ErrorEvent)
        assert (refused.status, refused.error.event_id) == (401, "e")
        assert client.driver.closed
        await client.driver.close()
        await stage.driver.close()


class TestResumes:
    async def test_a_turn_whose_connection_is_gone_goes_on_where_it_was_left(self) -> None:
        gate = asyncio.Event()

        async def answer(prompt: Prompt) -> AsyncGenerator[Step, None]:
            async with aclosing(hello(prompt)) as steps:
                async for step in steps:
                    yield step
                    await gate.wait()

        stage = Stage(answer)
        stage.create(resumable=True, stream_id="a")
        await stage.until(events.ResponseInProgress)
        response_id = stage.engine.prompts[0].response_id
        await stage.driver.close()
        client = stage.client()
        client.resume(response_id, 0, stream_id="b")
        gate.set()
        await client.until(events.ResponseCompleted)
        assert client.numbers == list(range(1, len(client.seen) + 1))
        assert {event.stream_id for event in client.seen} == {"b"}
        client.create(previous_response_id=response_id, stream_id="b")
        await client.until(events.ResponseCompleted)
        assert words(stage.engine.prompts[-1].chain) == [
            "user: hi",
            "assistant: Hello, world.",
            "user: hi",
        ]
        assert (stage.engine.stopped, len(stage.records)) == (0, 2)
        await client.driver.close()
        await stage.services.running.close()
        assert stage.services.budget.size == 0

    async def test_the_earlier_reader_is_told_and_its_lane_has_no_latest(self) -> None:
        stage = Stage(looker)
        stage.create(resumable=True, append=True)
        done = await stage.until(events.ResponseDone)
        client = stage.client()
        client.resume(done.response.id, stream_id="x")
        await client.until(events.ResponseDone)
        told = await stage.until(events.ErrorEvent)
        assert (told.status, told.error.code) == (409, "resumed_elsewhere")
        assert told.sequence_number == done.sequence_number + 1
        stage.driver.receive(append_of(user("more")))
        refused = await stage.until(events.ErrorEvent)
        assert refused.error.code == "nothing_to_append"
        call = msgspec.json.decode(done.response.output[0])
        client.driver.receive(append_of(output(call["call_id"]), stream_id="x"))
        last = await client.until(events.ResponseCompleted)
        assert last.response.id == done.response.id
        assert client.numbers == list(range(len(client.seen)))
        await client.driver.close()
        await stage.driver.close()
        await stage.services.running.close()

    async def test_a_turn_moves_to_another_lane_of_its_own_line(self) -> None:
        stage = Stage(looker)
        stage.create(resumable=True, append=True, stream_id="a")
        done = await stage.until(events.ResponseDone)
        stage.create("next", stream_id="a2")
        await stage.until(events.ResponseCreated)
        stage.resume(done.response.id, done.sequence_number, stream_id="b")
        assert (await stage.until(events.ErrorEvent)).stream_id == "a"
        call = msgspec.json.decode(done.response.output[0])
        stage.driver.receive(append_of(output(call["call_id"]), stream_id="b"))
        last = await stage.until(events.ResponseCompleted)
        assert (last.response.id, last.stream_id) == (done.response.id, "b")
        await stage.driver.close()
        await stage.services.running.close()

    async def test_one_that_has_ended_is_read_again_and_its_chain_comes_along(self) -> None:
        stage = Stage(hello)
        stage.create(resumable=True)
        last = await stage.until(events.ResponseCompleted)
        await stage.driver.close()
        client = stage.client()
        client.resume(last.response.id, 1)
        assert await client.until(events.ResponseCompleted) == last
        assert client.seen == stage.seen[2:]
        client.create("more", previous_response_id=last.response.id)
        await client.until(events.ResponseCompleted)
        client.resume(last.response.id, 10_000, stream_id="x")
        again = await client.until(events.ResponseCompleted)
        assert again == msgspec.structs.replace(last, stream_id="x")
        await client.driver.close()
        await stage.services.running.close()

    async def test_the_chain_of_one_that_has_ended_comes_from_the_connection_that_had_it_last(
        self,
    ) -> None:
        stage = Stage(hello)
        stage.create(resumable=True)
        last = (await stage.until(events.ResponseCompleted)).response.id
        second, third = stage.client(), stage.client()
        second.resume(last, 10_000)
        await second.until(events.ResponseCompleted)
        # The line where it ran remembers the next one instead.
        stage.create("more", previous_response_id=last)
        await stage.until(events.ResponseCompleted)
        third.resume(last, 10_000)
        await third.until(events.ResponseCompleted)
        third.create("other", previous_response_id=last)
        await third.until(events.ResponseCompleted)
        for each in (second, third, stage):
            await each.driver.close()
        await stage.services.running.close()
        assert stage.services.budget.size == 0

    @pytest.mark.parametrize("store", [False, True])
    async def test_what_was_not_kept_cannot_be_resumed(self, store: bool) -> None:
        stage = Stage(hello)
        stage.create(store=store)
        last = await stage.until(events.ResponseCompleted)
        stage.resume(last.response.id, stream_id="x", event_id="e")
        refused = await stage.until(events.ErrorEvent)
        code = "not_resumable" if store else "response_not_found"
        assert (refused.error.code, refused.error.event_id) == (code, "e")
        assert refused.stream_id == "x"
        assert ("created with 'resumable'" in refused.error.message) is store
        stage.create(stream_id="x")
        await stage.until(events.ResponseCompleted)
        await stage.driver.close()

    async def test_a_running_turn_whose_events_outgrew_their_log_stays_where_it_is(self) -> None:
        stage = Stage(mute)
        stage.create(resumable=True)
        created = await stage.until(events.ResponseInProgress)
        (turn,) = stage.driver.connection._lanes.turns()
        assert turn.log is not None
        turn.log.drop()
        client = stage.client()
        client.resume(created.response.id)
        assert (await client.until(events.ErrorEvent)).error.code == "not_resumable"
        stage.driver.receive(Cancel())
        await stage.until(events.ResponseIncomplete)
        await client.driver.close()
        await stage.driver.close()
        await stage.services.running.close()


class TestRoom:
    async def test_what_was_missed_comes_again_only_when_the_connection_has_sent_what_it_had(
        self,
    ) -> None:
        async def long(prompt: Prompt) -> AsyncGenerator[Step, None]:
            yield [Accepted(input_tokens=3), *[TextDelta("x")] * 100]
            await asyncio.get_running_loop().create_future()

        stage = Stage(long, limits=Limits(outbox=32))
        stage.create(resumable=True)
        response_id = (await stage.until(events.ResponseCreated)).response.id
        await stage.driver.close()
        client = stage.client()
        client.resume(response_id, stream_id="a")
        await loop_turns()
        waiting = client.driver.connection.outgoing.waiting
        assert waiting > 100
        # A client that takes nothing may ask as often as it likes.
        client.resume(response_id, stream_id="b")
        await loop_turns()
        assert client.driver.connection.outgoing.waiting == waiting
        while (await client.until(events.ResponseCreated)).stream_id != "b":
            pass
        assert [event.stream_id for event in client.seen[:waiting]] == ["a"] * waiting
        await client.driver.close()
        await stage.services.running.close()


class TestReaders:
    async def test_a_further_reader_moves_nothing_and_sees_no_lane(self) -> None:
        stage = Stage(hello)
        stage.create(resumable=True, stream_id="a")
        last = await stage.until(events.ResponseCompleted)
        read = await read_all(stage, last.response.id, 0)
        assert relaned(read, "a") == stage.seen[1:]
        assert all(not event.stream_id for event in read)
        assert stage.driver.connection.memory.latest("a") is not None
        await stage.driver.close()
        await stage.services.running.close()

    async def test_one_who_reads_slowly_gets_the_rest_from_the_store(self) -> None:
        stage = Stage(hello, journal=Over(now=time.time))
        stage.create(store=True, resumable=True)
        last = await stage.until(events.ResponseCompleted)
        read = await read_all(stage, last.response.id, None, drop_behind=1)
        assert [encode(event) for event in read] == [encode(event) for event in stage.seen]
        await stage.driver.close()
        await stage.services.running.close()

    async def test_one_who_reads_too_slowly_what_is_nowhere_else_is_told(self) -> None:
        stage = Stage(hello)
        stage.create(resumable=True)
        last = await stage.until(events.ResponseCompleted)
        with pytest.raises(ApiError) as refused:
            await read_all(stage, last.response.id, None, drop_behind=1)
        assert refused.value.code == "not_resumable"
        await stage.driver.close()
        await stage.services.running.close()

    async def test_a_stored_response_is_read_from_the_store_when_its_process_has_let_go(
        self,
    ) -> None:
        stage = Stage(hello, journal=Over(now=time.time))
        stage.create(store=True, resumable=True, stream_id="a")
        last = await stage.until(events.ResponseCompleted)
        stage.services.running.logs.clear()
        for after in (None, 0, 3, len(stage.seen) - 1, 10_000):
            read = await read_all(stage, last.response.id, after)
            begin = 0 if after is None else after + 1
            expected = stage.seen[begin:] or stage.seen[-1:]
            assert [encode(each) for each in relaned(read, "a")] == [
                encode(each) for each in expected
            ]
        await stage.driver.close()


async def read_all(
    stage: Stage, response_id: str, after: int | None, *, drop_behind: int | None = None
) -> list[events.Event]:
    """What a further reader gets, its log dropped behind so many events."""
    read: list[events.Event] = []
    async with aclosing(events_of(stage.services, "local", response_id, after)) as batches:
        async for batch in batches:
            read += batch
            kept = stage.services.running.logs.find("local", response_id)
            if drop_behind is not None and kept is not None:
                kept.drop()
    return read


async def test_two_creates_of_a_key_of_which_the_first_is_refused_are_both_answered() -> None:
    gate = asyncio.Event()

    async def answer(prompt: Prompt) -> AsyncGenerator[Step, None]:
        if not gate.is_set():
            await gate.wait()
            raise EngineError.of("rate_limit_exceeded", "Not now.")
        async with aclosing(hello(prompt)) as steps:
            async for step in steps:
                yield step

    stage = Stage(answer)
    stage.create(idempotency_key="k")
    await until(lambda: len(stage.engine.prompts) == 1)
    client = stage.client()
    client.create(idempotency_key="k")
    await loop_turns()
    gate.set()
    assert (await stage.until(events.ErrorEvent)).error.code == "rate_limit_exceeded"
    last = await client.until(events.ResponseCompleted)
    assert client.types[0] == "created"
    outcomes = {record.response_id: record.outcome for record, _ in stage.records}
    assert sorted(outcomes.values()) == ["completed", "refused"]
    assert outcomes[last.response.id] == "completed"
    await client.driver.close()
    await stage.driver.close()
    await stage.services.running.close()


async def read(stage: Stage, response_id: str, after: int | None = None) -> list[events.Event]:
    """All events behind one."""
    batches = events_of(stage.services, LOCAL.owner, response_id, after)
    return [event async for batch in batches for event in batch]


async def test_a_number_behind_any_event_is_the_end() -> None:
    stage = Stage(hello)
    stage.create(resumable=True)
    ended = await stage.until(events.ResponseCompleted)
    assert await read(stage, ended.response.id, 2**80) == [ended]
    assert await read(stage, ended.response.id, 0) == stage.seen[1:]
    await stage.driver.close()
    await stage.services.running.close()


async def test_events_that_had_to_go_for_want_of_room_are_not_read_in_part() -> None:
    stage = Stage(hello)
    stage.create(resumable=True)
    made = (await stage.until(events.ResponseCompleted)).response
    kept = stage.kept(made.id)
    batches = events_of(stage.services, LOCAL.owner, made.id, None)
    kept.drop()
    assert kept.look() is None
    with pytest.raises(ApiError) as caught:
        await anext(batches)
    assert caught.value.code == "not_resumable"
    await stage.driver.close()
    await stage.services.running.close()


async def test_a_response_that_outgrows_its_room_runs_on_and_its_readers_are_told() -> None:
    stage = Stage(endless)
    kept_turns = ReplayLogs(each=64 * 1024)
    stage.replace(running=Running(kept_turns), journal=Forgetful(now=lambda: 0.0))
    stage.create(resumable=True, store=True)
    made = (await stage.until(events.ResponseCreated)).response
    kept = stage.kept(made.id)
    batches = events_of(stage.services, LOCAL.owner, made.id, None)
    await anext(batches)
    while kept.whole:
        await stage.until(events.OutputTextDelta)
    with pytest.raises(ApiError) as caught:
        await anext(batches)
    assert caught.value.code == "not_resumable"
    stage.services.running.cancel(LOCAL.owner, made.id)
    await stage.until(events.ResponseIncomplete)
    # What was written down of it ends before its end.
    stage.services.running.logs.forget(LOCAL.owner, made.id)
    with pytest.raises(ApiError) as caught:
        await read(stage, made.id)
    assert caught.value.code == "not_resumable"
    last = await read(stage, made.id, 2**31)
    assert [type(event) for event in last] == [events.ResponseIncomplete]
    await stage.driver.close()
    await stage.services.running.close()


class Dying(LocalPeer):
    """A peer that dies once it has said something."""

    async def follow(
        self, owner: str, response_id: str, *, after: int | None
    ) -> AsyncGenerator[Sequence[events.Event], None]:
        """The first batch, and no more."""
        async with aclosing(super().follow(owner, response_id, after=after)) as batches:
            async for batch in batches:
                yield batch[:2]
                raise ApiError.of("server_error", "gone")


class OnePeer:
    """One peer, which any id may name."""

    def __init__(self, peer: Peer) -> None:
        self._peer = peer

    def peer_of(self, response_id: str) -> Peer | None:
        """The peer."""
        return self._peer

    def others(self) -> Sequence[Peer]:
        """The peer."""
        return (self._peer,)


@pytest.mark.parametrize("store", [True, False])
async def test_where_a_peer_dies_what_was_written_down_is_read_on(store: bool) -> None:
    stage = Stage(hello)
    stage.create(resumable=True, store=store)
    made = (await stage.until(events.ResponseCompleted)).response
    peers = OnePeer(Dying(stage.services))
    services = structs.replace(stage.services, running=Running(), peers=peers)
    seen: list[events.Event] = []
    code = None
    try:
        async for batch in events_of(services, LOCAL.owner, made.id, None):
            seen += batch
    except ApiError as error:
        code = error.code
    assert (code, seen) == (None, stage.seen) if store else ("server_error", stage.seen[:2])
    with pytest.raises(ApiError) as unknown:
        await anext(events_of(services, LOCAL.owner, "resp_no", None))
    assert unknown.value.code == "response_not_found"
    await stage.driver.close()
    await stage.services.running.close()
