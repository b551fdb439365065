"""Turns that can be found by their response's id while they run and for a while after."""

import asyncio

import msgspec
import pytest

from tests.support.core import append_of, output
from tests.support.runtime import (
    Failing,
    Stage,
    hello,
    looker,
    loop_turns,
    silent,
    until,
)
from tieline import events
from tieline.requests import Cancel
from tieline_server.core.budget import Budget
from tieline_server.core.limits import Limits
from tieline_server.runtime import ended


async def close(stage: Stage) -> None:
    """Ends the line and the process."""
    await stage.line.close()
    await stage.services.running.close()
    assert len(stage.services.running.kept) == 0
    assert stage.services.running.kept.size == 0


class TestReplayLogs:
    async def test_a_response_is_looked_at_as_it_stands_and_as_it_ended(self) -> None:
        stage = Stage(looker)
        stage.create(resumable=True, append=True)
        done = await stage.until(events.ResponseDone)
        kept = stage.kept(done.response.id)
        standing = kept.look()
        assert standing is not None
        assert (standing.status, len(standing.output)) == ("in_progress", 1)
        assert standing.usage is not None
        assert standing.usage.input_tokens == 3
        call = msgspec.json.decode(done.response.output[0])
        stage.line.receive(append_of(output(call["call_id"])), size=1)
        last = await stage.until(events.ResponseCompleted)
        assert kept.look() == last.response
        await close(stage)

    async def test_before_its_first_event_there_is_nothing_to_look_at(self) -> None:
        stage = Stage(silent)
        stage.create(resumable=True)
        (turn,) = stage.line.connection._lanes.turns()
        kept = stage.kept(turn.id)
        assert kept.look() is None
        await close(stage)

    async def test_one_whose_events_had_to_make_room_is_not_looked_at_here(self) -> None:
        stage = Stage(hello)
        stage.create(resumable=True)
        last = await stage.until(events.ResponseCompleted)
        kept = stage.kept(last.response.id)
        kept.drop()
        assert kept.look() is None
        await close(stage)

    async def test_what_has_ended_stays_for_the_window_and_then_goes_by_itself(self) -> None:
        stage = Stage(hello, limits=Limits(resume_window=0.02))
        gone = []
        for _ in range(3):
            stage.create(resumable=True)
            last = await stage.until(events.ResponseCompleted)
            kept = stage.kept(last.response.id)
            assert kept.whole
            gone.append(asyncio.Event())
            kept.listen(gone[-1].set)
        for event in gone:
            await asyncio.wait_for(event.wait(), 10)
        assert len(stage.services.running.kept) == 0
        assert stage.services.running.kept.size == 0
        await close(stage)

    async def test_only_what_has_ended_is_forgotten_and_only_by_its_owner(self) -> None:
        stage = Stage(looker)
        stage.create(resumable=True, append=True)
        done = await stage.until(events.ResponseDone)
        running = stage.services.running
        running.forget("local", done.response.id)
        assert running.kept.find("local", done.response.id) is not None
        assert running.kept.find("other", done.response.id) is None
        stage.line.receive(Cancel(), size=1)
        await stage.until(events.ResponseIncomplete)
        running.forget("other", done.response.id)
        assert running.kept.find("local", done.response.id) is not None
        running.forget("local", done.response.id)
        assert running.kept.find("local", done.response.id) is None
        await close(stage)

    async def test_a_response_runs_until_its_end_is_durable(self) -> None:
        store = Failing()
        stage = Stage(hello, store=store)
        stage.create(resumable=True, store=True)
        made = (await stage.until(events.ResponseCreated)).response
        store.gate.clear()
        done = await stage.until(events.OutputItemDone)
        await until(lambda: stage.engine.finished == 1)
        kept = stage.kept(made.id)
        standing = kept.look()
        assert standing is not None
        assert (standing.status, standing.completed_at) == ("in_progress", None)
        assert standing.output == [done.item]
        assert standing.usage is not None
        assert standing.usage.input_tokens == 3
        waiting = asyncio.create_task(ended(kept))
        await loop_turns()
        assert not waiting.done()
        store.gate.set()
        last = (await stage.until(events.ResponseCompleted)).response
        assert kept.look() == last
        await waiting
        await ended(kept)
        found = kept.find()
        assert found is not None
        assert found.input_from is None
        await stage.line.close()
        await stage.services.running.close()


class TestChains:
    async def test_a_chain_that_waits_to_be_resumed_counts_and_goes_when_room_is_needed(
        self,
    ) -> None:
        stage = Stage(hello)
        stage.services = msgspec.structs.replace(stage.services, budget=Budget(total=5000))
        await stage.line.close()
        stage.line = stage.open()
        kept = stage.services.running.kept
        ids = []
        for _ in range(8):
            peer = stage.peer()
            peer.create("x" * 1000, resumable=True)
            ids.append((await peer.until(events.ResponseCompleted)).response.id)
            assert stage.services.budget.size <= 5000
            await peer.line.close()
        found = [kept.find("local", each) for each in ids]
        tips = [each.tip for each in found if each is not None]
        assert len(tips) == len(ids)
        assert tips[0] is None
        assert tips[-1] is not None
        assert stage.services.budget.size > 1000
        await close(stage)
        assert stage.services.budget.size == 0

    async def test_one_that_goes_from_line_to_line_counts_once_and_stays_until_its_window_ends(
        self,
    ) -> None:
        stage = Stage(hello)
        peer = stage.peer()
        peer.create("x" * 1000, resumable=True)
        last = (await peer.until(events.ResponseCompleted)).response
        await peer.line.close()
        budget = stage.services.budget
        size = budget.size
        assert size > 1000
        for _ in range(2):
            peer = stage.peer()
            peer.resume(last.id, stream_id="a")
            await peer.until(events.ResponseCompleted)
            await loop_turns()
            assert peer.line.connection.memory.find(last.id) is not None
            assert budget.size == size
            await peer.line.close()
            assert budget.size == size
        kept = stage.kept(last.id)
        assert kept.tip is not None
        stage.services.running.kept.forget("local", last.id)
        assert budget.size == 0
        await close(stage)

    @pytest.mark.parametrize("when", ["before its line goes", "after its line went"])
    async def test_nothing_is_left_of_a_chain_whose_turn_cannot_be_resumed_any_more(
        self, when: str
    ) -> None:
        stage = Stage(hello)
        peer = stage.peer()
        peer.create("x" * 1000, resumable=True)
        last = (await peer.until(events.ResponseCompleted)).response
        kept = stage.kept(last.id)
        if when == "after its line went":
            await peer.line.close()
            assert stage.services.budget.size > 1000
        kept.drop()
        await peer.line.close()
        assert kept.tip is None
        assert stage.services.budget.size == 0
        await close(stage)

    async def test_one_that_its_lane_has_as_well_makes_room_all_the_same(self) -> None:
        stage = Stage(hello)
        stage.services = msgspec.structs.replace(stage.services, budget=Budget(total=5000))
        await stage.line.close()
        stage.line = stage.open()
        for number in range(8):
            stage.create("x" * 1000, resumable=True, stream_id=f"lane-{number}")
            await stage.until(events.ResponseCompleted)
        assert stage.services.budget.size <= 5000
        await close(stage)
        assert stage.services.budget.size == 0
