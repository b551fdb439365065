"""Whatever becomes of a response, the ledger gets one row of it: real counts, once."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any

import msgspec
import pytest

from tests.support.core import append_of, create_of, output, user
from tests.support.runtime import (
    SECRET,
    Answer,
    Failing,
    Stage,
    Step,
    endless,
    hello,
    looker,
    loop_turns,
    mute,
    raising,
    silent,
    until,
)
from tieline import events
from tieline.requests import Cancel, Steer
from tieline_server.core.create.limits import Limits
from tieline_server.core.deltas import Accepted, CallDelta, CallStart, Finish, TextDelta
from tieline_server.core.effects import Prompt
from tieline_server.core.values import Principal, UsageRecord
from tieline_server.runtime import count_input_tokens
from tieline_server.runtime.compact import compact
from tieline_server.storage.memory import MemoryLedger

Act = Callable[[Stage, bool], Awaitable[None]]
"""What a client does, given whether its responses are to be stored."""


class Counting(MemoryLedger):
    """A ledger that notes every usage record, also one that it need not keep."""

    def __init__(self) -> None:
        super().__init__()
        self.booked: list[UsageRecord] = []

    def add(self, usage_record: UsageRecord) -> None:
        """Takes a row."""
        self.booked.append(usage_record)
        super().add(usage_record)


async def too_long(prompt: Prompt) -> AsyncGenerator[Step, None]:
    """Ends at its budget."""
    yield [Accepted(input_tokens=3), TextDelta("half"), Finish(reason="length")]


async def caller(prompt: Prompt) -> AsyncGenerator[Step, None]:
    """Calls for ever."""
    yield [Accepted(input_tokens=3)]
    while True:
        yield [CallStart(kind="function_call", name="look"), CallDelta("{}")]


async def completes(stage: Stage, store: bool) -> None:
    stage.create(store=store)
    await stage.until(events.ResponseCompleted)


async def is_incomplete(stage: Stage, store: bool) -> None:
    stage.create(store=store, max_tool_calls=2, timeout_ms=3_600_000)
    await stage.until(events.ResponseIncomplete)


async def expires(stage: Stage, store: bool) -> None:
    stage.create(store=store, timeout_ms=500)
    await stage.until(events.ResponseIncomplete)


async def is_held_too_long(stage: Stage, store: bool) -> None:
    stage.create(store=store, append=True)
    await stage.until(events.ResponseIncomplete)


async def drains(stage: Stage, store: bool) -> None:
    stage.create(store=store)
    await stage.until(events.ResponseInProgress)
    stage.driver.drain(0.005)
    await stage.until(events.ResponseIncomplete)


async def cancels(stage: Stage, store: bool) -> None:
    stage.create(store=store)
    await stage.until(events.OutputTextDelta)
    stage.driver.receive(Cancel())
    stage.driver.receive(Cancel())
    await stage.until(events.ResponseIncomplete)


async def cancels_by_id(stage: Stage, store: bool) -> None:
    stage.create(store=store)
    await stage.until(events.OutputTextDelta)
    stage.services.running.cancel("local", stage.engine.prompts[0].response_id)
    await stage.until(events.ResponseIncomplete)


async def fails(stage: Stage, store: bool) -> None:
    stage.create(store=store)
    await stage.until(events.ResponseFailed)


async def warms_up(stage: Stage, store: bool) -> None:
    stage.create(store=store, generate=False)
    await stage.until(events.ResponseCompleted)


async def leaves_before_any_answer(stage: Stage, store: bool) -> None:
    stage.create(store=store)
    await until(lambda: len(stage.engine.prompts) == 1)
    stage.driver.drop()


async def leaves_before_the_first_token(stage: Stage, store: bool) -> None:
    stage.create(store=store)
    await stage.until(events.ResponseInProgress)
    stage.driver.drop()


async def leaves_in_the_middle(stage: Stage, store: bool) -> None:
    stage.create(store=store)
    await stage.until(events.OutputTextDelta)
    stage.driver.drop()
    stage.driver.drop()


async def leaves_while_held(stage: Stage, store: bool) -> None:
    stage.create(store=store, append=True)
    await stage.until(events.ResponseDone)
    stage.driver.drop()


Ending = tuple[str, str | None, str | None]
"""Outcome, reason, error code."""

ENDS: dict[str, tuple[Answer, Act, Ending]] = {
    "completed": (hello, completes, ("completed", None, None)),
    "length": (too_long, is_incomplete, ("incomplete", "max_output_tokens", None)),
    "max_tool_calls": (caller, is_incomplete, ("incomplete", "max_tool_calls", None)),
    "deadline": (mute, expires, ("incomplete", "deadline", None)),
    "held_timeout": (looker, is_held_too_long, ("incomplete", "held_timeout", None)),
    "drain": (mute, drains, ("incomplete", "server_draining", None)),
    "cancelled": (endless, cancels, ("cancelled", None, None)),
    "cancelled by id": (endless, cancels_by_id, ("cancelled", None, None)),
    "failed": (raising(OSError(SECRET), accepted=True), fails, ("failed", None, "server_error")),
    "prewarm": (hello, warms_up, ("completed", None, None)),
    "gone before any answer": (silent, leaves_before_any_answer, ("disconnected", None, None)),
    "gone before a token": (mute, leaves_before_the_first_token, ("disconnected", None, None)),
    "gone in the middle": (endless, leaves_in_the_middle, ("disconnected", None, None)),
    "gone while held": (looker, leaves_while_held, ("disconnected", None, None)),
}


def staged(answer: Answer, *, put_fails: bool = False, **members: Any) -> Stage:
    """A stage whose ledger counts."""
    ledger = Counting()
    store = Failing(put=put_fails, add_usage=ledger.add)
    return Stage(answer, store=store, ledger=ledger, **members)


def booked(stage: Stage) -> list[UsageRecord]:
    """Every usage record so far, in order."""
    assert isinstance(stage.ledger, Counting)
    return stage.ledger.booked


def endings(stage: Stage) -> list[Ending]:
    return [(row.outcome, row.reason, row.error_code) for row in booked(stage)]


@pytest.mark.parametrize("store", [False, True], ids=["not stored", "stored"])
@pytest.mark.parametrize("end", ENDS)
async def test_a_response_is_booked_once_however_it_ends(end: str, store: bool) -> None:
    answer, act, ending = ENDS[end]

    stage = staged(answer, limits=Limits(held_timeout=0.005 if end == "held_timeout" else 900))
    await act(stage, store)
    await stage.driver.close()
    assert endings(stage) == [ending]
    (row,) = booked(stage)
    ((record, _),) = stage.records
    assert (row.response_id, row.kind) == (record.response_id, record.kind)
    assert row.kind == ("prewarm" if end == "prewarm" else "turn")
    assert (row.owner, row.model, row.transport, row.stored) == ("local", "m", "test", store)
    assert row.input_tokens == record.usage.input_tokens
    assert row.output_tokens == record.usage.output_tokens
    assert (row.input_tokens > 0) is (end != "gone before any answer")


async def test_what_is_held_is_booked_once_for_the_whole_rollout() -> None:
    stage = staged(looker)
    stage.create(append=True)
    done = await stage.until(events.ResponseDone)
    await loop_turns()
    assert booked(stage) == [], "it has not ended"
    call = msgspec.json.decode(done.response.output[0])
    stage.driver.receive(append_of(output("unknown")))
    stage.driver.receive(append_of(output(call["call_id"])))
    completed = await stage.until(events.ResponseCompleted)
    await stage.driver.close()
    (row,) = booked(stage)
    assert row.input_tokens == completed.response.usage.input_tokens == 2 * 3
    assert row.output_tokens == completed.response.usage.output_tokens


async def test_a_held_turn_that_is_superseded_has_its_row_before_the_next_one() -> None:
    stage = staged(looker)
    stage.create(append=True)
    await stage.until(events.ResponseDone)
    stage.create()
    await stage.until(events.ResponseCompleted)
    await stage.driver.close()
    assert endings(stage) == [
        ("incomplete", "superseded", None),
        ("completed", None, None),
    ]


async def test_a_steered_response_and_its_successor_have_a_row_each() -> None:
    async def answer(prompt: Prompt) -> AsyncGenerator[Step, None]:
        yield [Accepted(input_tokens=3)]
        if len(list(prompt.chain.items_of_chain())) == 1:
            yield [TextDelta("long")]
            await steered.wait()
            yield [CallStart(kind="function_call", name="look"), CallDelta("{}")]
        yield [TextDelta("short"), Finish()]

    steered = asyncio.Event()

    stage = staged(answer)
    stage.create()
    created = await stage.until(events.ResponseCreated)
    await stage.until(events.OutputTextDelta)
    text = create_of(input="shorter").input
    steer = Steer(previous_response_id=created.response.id, input=text)
    stage.driver.receive(steer)
    steered.set()
    await stage.until(events.ResponseCompleted)
    await stage.driver.close()
    assert endings(stage) == [("incomplete", "steered", None), ("completed", None, None)]
    assert len({row.response_id for row in booked(stage)}) == 2


class TestWaiting:
    async def test_what_is_cancelled_while_it_waits_is_a_response_and_has_a_row(self) -> None:
        stage = staged(mute)
        stage.create()
        await stage.until(events.ResponseInProgress)
        stage.create(event_id="second", model="any word of the client's")
        stage.driver.receive(Cancel(event_id="second"))
        stage.driver.receive(Cancel())
        await stage.until(events.ResponseIncomplete)
        await stage.until(events.ResponseIncomplete)
        await stage.driver.close()
        assert endings(stage) == [("cancelled", None, None)] * 2
        first, second = booked(stage)
        assert (first.model, second.model) == ("m", "")
        assert (second.input_tokens, second.output_tokens) == (0, 0)

    @pytest.mark.parametrize("doomed", [False, True])
    async def test_what_waits_behind_another_when_the_line_goes_never_was_one(
        self, doomed: bool
    ) -> None:
        stage = staged(mute)
        stage.create()
        await stage.until(events.ResponseInProgress)
        stage.create(event_id="second")
        if doomed:
            stage.driver.receive(Cancel(event_id="second"))
        stage.driver.drop()
        await stage.driver.close()
        assert len(stage.records) == 2, "it is observed"
        assert endings(stage) == [("disconnected", None, None)]

    async def test_what_waits_for_a_place_when_the_line_goes_has_a_row(self) -> None:
        stage = staged(mute, limits=Limits(active=1))
        stage.create()
        await stage.until(events.ResponseInProgress)
        stage.create(stream_id="side")
        await stage.until(events.ResponseQueued)
        stage.driver.drop()
        await stage.driver.close()
        assert endings(stage) == [("disconnected", None, None)] * 2
        assert [row.input_tokens for row in booked(stage)] == [3, 0]


class TestRefusals:
    @pytest.mark.parametrize(
        "members",
        [
            {"model": "nobody"},
            {"previous_response_id": "resp_unknown"},
            {"input": [output("nope")]},
            {"prompt": {"id": "p"}},
            {"input": [{"type": "item_reference", "id": "msg_x"}], "store": True},
        ],
    )
    async def test_what_was_refused_never_was_a_response(self, members: dict[str, Any]) -> None:
        stage = staged(hello)
        stage.create(**members)
        await stage.until(events.ErrorEvent)
        await stage.driver.close()
        assert [record.outcome for record, _ in stage.records] == ["refused"]
        assert booked(stage) == []

    async def test_nor_what_the_engine_refused_before_it_began(self) -> None:
        stage = staged(raising(OSError(SECRET), accepted=False))
        stage.create(store=True)
        await stage.until(events.ErrorEvent)
        await stage.driver.close()
        assert booked(stage) == []

    async def test_a_refusal_beside_a_response_leaves_its_row_alone(self) -> None:
        stage = staged(hello)
        stage.create(model="nobody")
        stage.create()
        stage.create(model="nobody")
        await stage.until(events.ResponseCompleted)
        await stage.until(events.ErrorEvent)
        await stage.driver.close()
        assert endings(stage) == [("completed", None, None)]


class TestStored:
    async def test_the_row_of_a_stored_response_comes_with_the_response(self) -> None:
        stage = staged(hello)
        store = stage.services.store
        assert isinstance(store, Failing)
        store.gate.clear()
        stage.create(store=True)
        await stage.until(events.OutputItemDone)
        await loop_turns()
        assert booked(stage) == [], "nothing is booked before the commit"
        store.gate.set()
        await stage.until(events.ResponseCompleted)
        (row,) = booked(stage)
        assert (row.outcome, row.stored) == ("completed", True)
        await stage.driver.close()
        assert len(booked(stage)) == 1

    async def test_a_commit_that_fails_books_the_failure(self) -> None:
        stage = staged(hello, put_fails=True)
        stage.create(store=True)
        failed = await stage.until(events.ResponseFailed)
        await stage.driver.close()
        assert endings(stage) == [("failed", None, "server_error")]
        (row,) = booked(stage)
        assert row.response_id == failed.response.id
        assert row.output_tokens == failed.response.usage.output_tokens > 0

    @pytest.mark.parametrize("put_fails", [False, True])
    async def test_a_peer_that_leaves_during_the_commit_changes_nothing(
        self, put_fails: bool
    ) -> None:
        stage = staged(hello, put_fails=put_fails)
        store = stage.services.store
        assert isinstance(store, Failing)
        store.gate.clear()
        stage.create(store=True)
        await stage.until(events.OutputItemDone)
        stage.driver.drop()
        store.gate.set()
        await stage.driver.close()
        outcome = ("failed", None, "server_error") if put_fails else ("completed", None, None)
        assert endings(stage) == [outcome]


@pytest.mark.parametrize("store", [False, True], ids=["not stored", "stored"])
async def test_a_row_has_the_wall_clocks_end_and_the_real_duration(store: bool) -> None:
    stage = staged(mute)
    clock, wall = [100.0], [1_000_000.0]
    stage.services = msgspec.structs.replace(
        stage.services, clock=lambda: clock[0], now=lambda: wall[0]
    )
    await stage.driver.close()
    stage.driver = stage.open()
    stage.create(store=store)
    await stage.until(events.ResponseInProgress)
    clock[0] += 7.0
    # The wall clock is set back by an hour meanwhile.
    wall[0] -= 3_600.0
    stage.driver.receive(Cancel())
    await stage.until(events.ResponseIncomplete)
    await stage.driver.close()
    (row,) = booked(stage)
    assert (row.started_at, row.ended_at) == (996_393.0, 996_400.0)


async def test_counting_books_nothing_and_a_window_one_row_of_its_own_kind() -> None:
    stage = staged(hello)
    create = create_of(model="m", input=[user("one"), user("two")])
    await count_input_tokens(stage.services, Principal(), create)
    assert (booked(stage), stage.records) == ([], [])
    await compact(stage.services, Principal(), create, transport="http")
    await stage.driver.close()
    (row,) = booked(stage)
    assert (row.kind, row.outcome, row.transport) == ("compaction", "completed", "http")


async def test_a_row_is_its_owners() -> None:
    stage = staged(hello, authenticate=lambda: Principal(owner="ann"))
    stage.create()
    await stage.until(events.ResponseCompleted)
    await stage.driver.close()
    assert [row.owner for row in booked(stage)] == ["ann"]
