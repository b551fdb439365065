"""What a turn waits for, also while it moves: its key, the store, the engine, its reader."""

import asyncio
import time
from collections.abc import AsyncGenerator, Sequence
from typing import Any, ClassVar

import pytest
from msgspec import structs

from tests.support.garbage import none_left
from tests.support.runtime import (
    SECRET,
    Failing,
    Stage,
    endless,
    hello,
    loop_turns,
    mute,
    until,
)
from tieline import events
from tieline.codecs.json import encode
from tieline_server.core.create.limits import Limits
from tieline_server.core.deltas import Delta
from tieline_server.core.effects import Prompt
from tieline_server.core.turn.turn import Turn
from tieline_server.engines.base import EngineError
from tieline_server.runtime import SERVER_ERROR, jobs
from tieline_server.storage.base import Claim
from tieline_server.storage.memory import MemoryJournal


class Slow(MemoryJournal):
    """A journal whose claims wait at a gate, or fail."""

    def __init__(self, *, fails: bool = False) -> None:
        super().__init__(now=time.time)
        self.gate = asyncio.Event()
        self.fails = fails

    async def claim(self, claim: Claim) -> Claim:
        """Claims it when the gate is open."""
        await self.gate.wait()
        if self.fails:
            raise OSError(SECRET)
        return await super().claim(claim)


class TestClaims:
    async def test_a_key_that_cannot_be_claimed_lets_nothing_run(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        journal = Slow(fails=True)
        journal.gate.set()
        stage = Stage(hello, journal=journal)
        stage.create(idempotency_key="k")
        refused = await stage.until(events.ErrorEvent)
        assert (refused.status, refused.error.message) == (500, SERVER_ERROR)
        assert SECRET.encode() not in encode(refused)
        assert stage.engine.prompts == []
        await stage.driver.close()
        await stage.services.running.close()
        assert any(record.exc_info for record in caplog.records)

    async def test_a_connection_that_goes_while_a_key_is_claimed_frees_it(self) -> None:
        journal = Slow()
        stage = Stage(hello, journal=journal)
        stage.create(idempotency_key="k")
        await loop_turns()
        closing = asyncio.create_task(stage.driver.close())
        await loop_turns()
        journal.gate.set()
        await closing
        assert [record.outcome for record, _ in stage.records] == ["disconnected"]
        client = stage.client()
        client.create(idempotency_key="k")
        await client.until(events.ResponseCompleted)
        await client.driver.close()
        await stage.services.running.close()
        assert len(stage.records) == 2

    async def test_a_key_whose_response_is_not_found_is_claimed_again_after_a_while(self) -> None:
        class Elsewhere(MemoryJournal):
            """The key is another process's, which has nothing to show yet."""

            claims: ClassVar[list[float]] = []

            async def claim(self, claim: Claim) -> Claim:
                self.claims.append(time.monotonic())
                return structs.replace(claim, response_id="resp_x")

        stage = Stage(hello, journal=Elsewhere(now=time.time))
        stage.create(idempotency_key="k")
        assert (await stage.until(events.ErrorEvent)).error.code == "server_error"
        first, second, third = Elsewhere.claims
        assert min(second - first, third - second) >= jobs.PAUSE * 0.9
        await stage.driver.close()


class TestMoves:
    async def test_a_turn_that_is_being_stored_ends_where_it_was_resumed(self) -> None:
        store = Failing()
        store.gate.clear()
        stage = Stage(hello, store=store)
        stage.create(store=True, resumable=True)
        await until(lambda: stage.engine.finished == 1)
        client = stage.client()
        client.resume(stage.engine.prompts[0].response_id)
        await client.until(events.OutputItemDone)
        await stage.driver.close()
        assert stage.records == []
        store.gate.set()
        await client.until(events.ResponseCompleted)
        assert client.numbers == list(range(len(client.seen)))
        await client.driver.close()
        await stage.services.running.close()
        assert len(store) == 1

    async def test_a_turn_whose_parent_is_being_looked_up_runs_on_without_its_connection(
        self,
    ) -> None:
        store = Failing()
        stage = Stage(hello, store=store)
        stage.create(store=True)
        parent = (await stage.until(events.ResponseCompleted)).response.id
        await stage.driver.close()
        stage.driver = stage.open()
        store.gate.clear()
        stage.create(resumable=True, previous_response_id=parent)
        (turn,) = stage.driver.connection._lanes.turns()
        await loop_turns()
        await stage.driver.close()
        client = stage.client()
        client.resume(turn.id)
        await until(lambda: turn.host is client.driver.connection)
        store.gate.set()
        last = await client.until(events.ResponseCompleted)
        assert last.response.previous_response_id == parent
        await client.driver.close()
        await stage.services.running.close()

    async def test_an_engine_that_waited_for_a_slow_reader_goes_on_with_the_next_one(self) -> None:
        stage = Stage(endless, limits=Limits(outbox=8))
        stage.create(resumable=True)
        await until(lambda: stage.driver.connection.outgoing.unsent(None) >= 8)
        await loop_turns()
        paused_at = stage.engine.steps
        await loop_turns()
        assert stage.engine.steps == paused_at
        client = stage.client()
        client.resume(stage.engine.prompts[0].response_id)
        for _ in range(50):
            await client.until(events.OutputTextDelta)
        assert client.numbers == list(range(len(client.seen)))
        assert stage.engine.steps > paused_at
        await client.driver.close()
        await stage.driver.close()
        await stage.services.running.close()
        assert stage.engine.stopped == 1

    async def test_a_further_reader_that_is_slow_holds_up_no_other(self) -> None:
        stage = Stage(endless, limits=Limits(outbox=8))
        stage.create(idempotency_key="k")
        await stage.until(events.ResponseInProgress)
        reader = stage.client()
        reader.create(idempotency_key="k")
        for _ in range(600):
            await stage.until(events.OutputTextDelta)
        assert reader.driver.connection.outgoing.unsent(None) <= 8 + 256
        for _ in range(300):
            await reader.until(events.OutputTextDelta)
        assert reader.numbers == list(range(len(reader.seen)))
        await reader.driver.close()
        await stage.driver.close()
        await stage.services.running.close()

    async def test_two_resumes_at_once_leave_one_reader(self) -> None:
        stage = Stage(mute)
        stage.create(resumable=True)
        response_id = (await stage.until(events.ResponseInProgress)).response.id
        await stage.driver.close()
        one, two = stage.client(), stage.client()
        one.resume(response_id)
        two.resume(response_id)
        assert (await one.until(events.ErrorEvent)).error.code == "resumed_elsewhere"
        await two.until(events.ResponseInProgress)
        assert two.types == ["created", "in_progress"]
        await one.driver.close()
        two.driver.drop()
        await two.driver.close()
        assert stage.records == []
        await stage.services.running.close()
        assert len(stage.records) == 1

    @pytest.mark.parametrize("first", [True, False])
    async def test_a_connection_that_goes_at_its_resume_takes_nothing_with_it(
        self, first: bool
    ) -> None:
        stage = Stage(mute)
        stage.create(resumable=True)
        response_id = (await stage.until(events.ResponseInProgress)).response.id
        await stage.driver.close()
        one = stage.client()
        one.resume(response_id)
        if not first:
            await one.until(events.ResponseInProgress)
        await one.driver.close()
        two = stage.client()
        two.resume(response_id)
        await two.until(events.ResponseInProgress)
        assert stage.engine.stopped == 0
        await two.driver.close()
        await stage.services.running.close()
        assert len(stage.records) == 1
        assert stage.services.budget.size == 0


class TestReplayLogs:
    @pytest.mark.parametrize(
        "members",
        [
            {"previous_response_id": "resp_unknown"},
            {"input": [{"type": "function_call_output", "call_id": "nowhere", "output": "x"}]},
            {},
            {"generate": False},
        ],
        ids=["no parent", "no call", "no engine", "no engine to warm"],
    )
    async def test_what_was_refused_leaves_nothing_on_its_connection(
        self, members: dict[str, Any]
    ) -> None:
        """Megabytes where many items were sent: garbage is looked for after 10,000 objects."""

        async def broken(prompt: Prompt) -> AsyncGenerator[Sequence[Delta], None]:
            raise EngineError("server_error", "It is not there.")
            yield

        async def uncountable(prompt: Prompt) -> int:
            raise EngineError("server_error", "It is not there.")

        stage = Stage(broken)
        stage.engine.count = uncountable  # type: ignore[method-assign]
        with none_left(Turn):
            stage.create(**members)
            await stage.until(events.ErrorEvent)
            await until(lambda: not stage.driver._jobs)
        await stage.driver.close()
