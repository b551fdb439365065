"""The live connections of a process, and the shelters of turns that have outlived theirs."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing

import pytest
from msgspec.structs import replace

from tests.support.core import LOCAL, create_of
from tests.support.runtime import (
    PATIENCE,
    Stage,
    Step,
    endless,
    hello,
    loop_turns,
    mute,
    until,
)
from tieline import events
from tieline.errors import ApiError
from tieline.requests import Cancel, Resume
from tieline_server.core.create.limits import Limits
from tieline_server.core.effects import Prompt
from tieline_server.core.values import Principal


async def sheltered(stage: Stage, **members: object) -> str:
    """A resumable turn whose connection is gone; returns its response's id."""
    stage.create(resumable=True, **members)
    created = await stage.until(events.ResponseInProgress)
    await stage.driver.close()
    response_id: str = created.response.id
    return response_id


class TestCancels:
    async def test_one_who_only_reads_a_response_is_not_taken_for_it(self) -> None:
        """The connections are asked in no order."""

        stage = Stage(mute)
        body = {"model": "m", "store": False, "input": "hi", "idempotency_key": "k"}
        stage.driver.receive(create_of(**body))
        created = await stage.until(events.ResponseCreated)
        readers = [stage.client() for _ in range(8)]
        for reader in readers:
            reader.driver.receive(create_of(**body))
            again = await reader.until(events.ResponseCreated)
            assert again.response.id == created.response.id
            assert reader.driver.cancel("local", created.response.id) is None
        cut = stage.services.running.cancel("local", created.response.id)
        assert cut is not None
        assert (cut.id, cut.status) == (created.response.id, "cancelled")
        for client in (stage, *readers):
            last = await client.until(events.ResponseIncomplete)
            assert last.response.status == "cancelled"
            await client.driver.close()
        assert len(stage.records) == 1
        await stage.services.running.close()

    async def test_one_who_reads_cancels_the_response_and_hears_its_end(self) -> None:
        stage = Stage(mute)
        stage.create(idempotency_key="k")
        await stage.until(events.ResponseInProgress)
        reader = stage.client()
        reader.create(idempotency_key="k")
        await reader.until(events.ResponseInProgress)
        reader.driver.receive(Cancel())
        assert (await reader.until(events.ResponseIncomplete)).response.status == "cancelled"
        assert (await stage.until(events.ResponseIncomplete)).response.status == "cancelled"
        await reader.driver.close()
        await stage.driver.close()
        await stage.services.running.close()

    async def test_a_sheltered_turn_is_cancelled_by_its_owner_alone(self) -> None:
        stage = Stage(mute)
        response_id = await sheltered(stage)
        running = stage.services.running
        assert running.cancel("other", response_id) is None
        assert stage.records == []
        cut = running.cancel("local", response_id)
        assert cut is not None
        assert cut.status == "cancelled"
        ((record, transport),) = stage.records
        assert (record.outcome, transport) == ("cancelled", "test")
        await running.close()
        assert running.connections == set()


class TestShelters:
    async def test_a_turn_whose_connection_is_gone_samples_to_its_end_and_is_booked_once(
        self,
    ) -> None:
        gate = asyncio.Event()

        async def answer(prompt: Prompt) -> AsyncGenerator[Step, None]:
            async with aclosing(hello(prompt)) as steps:
                async for step in steps:
                    yield step
                    await gate.wait()

        stage = Stage(answer)
        response_id = await sheltered(stage)
        assert stage.records == []
        gate.set()
        await until(lambda: len(stage.records) == 1)
        assert stage.records[0][0].outcome == "completed"
        await until(lambda: stage.services.running.connections == set())
        kept = stage.kept(response_id)
        assert kept.ended
        await stage.services.running.close()
        assert stage.services.running.logs.size == 0

    async def test_what_no_client_resumes_in_time_is_cancelled_and_booked(self) -> None:
        stage = Stage(mute, limits=Limits(resume_window=0.01))
        response_id = await sheltered(stage)
        await asyncio.wait_for(stage.booked.wait(), PATIENCE)
        ((record, _),) = stage.records
        assert (record.response_id, record.outcome) == (response_id, "cancelled")
        assert stage.engine.stopped == 1
        await stage.services.running.close()

    async def test_a_background_turn_has_no_window(self) -> None:
        """It is on no connection's profile, so the turn is made one here."""

        stage = Stage(mute, limits=Limits(resume_window=0.0))
        stage.create(resumable=True)
        await stage.until(events.ResponseInProgress)
        (turn,) = stage.driver.connection._lanes.turns()
        assert turn.settings is not None
        turn.settings = replace(turn.settings, background=True)
        await stage.driver.close()
        await loop_turns()
        assert stage.records == []
        (shelter,) = stage.services.running.connections
        assert shelter.connection.next_deadline() is None
        await stage.services.running.close()
        assert len(stage.records) == 1

    async def test_a_drain_gives_what_is_sheltered_its_time_and_then_ends_it(self) -> None:
        stage = Stage(endless)
        await sheltered(stage)
        await stage.services.running.drain(0.01)
        ((record, _),) = stage.records
        assert (record.outcome, record.reason) == ("incomplete", "server_draining")
        assert stage.services.running.connections == set()
        await stage.services.running.close()

    async def test_a_close_ends_everything_at_once_and_twice_is_no_more(self) -> None:
        stage = Stage(mute)
        for _ in range(3):
            await sheltered(stage)
            stage.driver = stage.open()
        await stage.driver.close()
        await stage.services.running.close()
        await stage.services.running.close()
        assert [record.outcome for record, _ in stage.records] == ["incomplete"] * 3
        assert stage.engine.stopped == 3
        assert stage.services.budget.size == 0
        assert stage.services.running.logs.size == 0
        assert len(stage.services.running.logs) == 0


@pytest.mark.parametrize("resumable", [False, True])
async def test_a_turn_outlives_its_connection_only_where_that_was_asked(resumable: bool) -> None:
    stage = Stage(mute)
    stage.create(resumable=resumable)
    await stage.until(events.ResponseInProgress)
    await stage.driver.close()
    assert [record.outcome for record, _ in stage.records] == ["disconnected"] * (not resumable)
    await stage.services.running.close()


async def test_au_02_nothing_outlives_a_connection_whose_key_was_revoked() -> None:
    refusal = ApiError.of("invalid_api_key", "Incorrect API key provided.")
    answers: list[Principal | ApiError] = [Principal(), refusal]

    def authenticate() -> Principal:
        answer = answers.pop(0)
        if isinstance(answer, ApiError):
            raise answer
        return answer

    stage = Stage(mute, authenticate=authenticate)
    stage.create(resumable=True, idempotency_key="k")
    await stage.until(events.ResponseInProgress)
    stage.create()
    await stage.driver.close()
    assert [record.outcome for record, _ in stage.records] == ["disconnected"]
    assert stage.engine.stopped == 1
    assert stage.services.running.connections == set()
    await stage.services.running.close()


class TestReaders:
    """Those that read a response of elsewhere."""

    async def test_a_further_reader_moves_nothing(self) -> None:
        stage = Stage(endless)
        stage.create(resumable=True)
        made = (await stage.until(events.ResponseCreated)).response
        other = stage.open()
        other.read(Resume(response_id=made.id, after=0))
        other.half_close()
        await other.wait()
        first = other.next_event()
        assert isinstance(first, events.ResponseInProgress)
        assert not other.runs(made.id)
        assert stage.driver.runs(made.id)
        await other.close()
        assert stage.driver.runs(made.id)
        await stage.driver.close()
        await stage.services.running.close()

    async def test_a_cancel_by_id_means_the_response_and_not_who_reads_it(self) -> None:
        stage = Stage(endless)
        stage.create(resumable=True)
        made = (await stage.until(events.ResponseCreated)).response
        readers = [stage.open() for _ in range(8)]
        for reader in readers:
            reader.read(Resume(response_id=made.id))
            reader.half_close()
        cut = await stage.services.running.end(LOCAL.owner, made.id)
        assert cut is not None
        assert cut.status == "cancelled"
        heard = (await stage.until(events.ResponseIncomplete)).response
        assert heard == cut
        for reader in readers:
            while not reader.closed:
                reader.take(1000)
                await reader.wait()
            assert reader.error is None
            await reader.close()
        await stage.driver.close()
        await stage.services.running.close()
