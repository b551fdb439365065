"""When a history is folded, what the model is asked, and what a turn does with that."""

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from tests.support.core import user, word
from tests.support.runtime import Stage, Step, until
from tieline import events
from tieline.items import decode_input
from tieline_server.compaction.summaries import (
    INSTRUCTION,
    LONGEST,
    longest_of,
    summarise,
    threshold_of,
)
from tieline_server.core.create.settings import Compacting
from tieline_server.core.deltas import Accepted, Finish, TextDelta
from tieline_server.core.effects import Prompt
from tieline_server.core.history.compaction import Plan
from tieline_server.engines.base import EngineError, Model
from tieline_server.runtime import ConnectionDriver

AT_1000 = [{"type": "compaction", "compact_threshold": 1000}]
HISTORY = [user("a" * 800), {**user("b" * 800), "role": "assistant"}, user("go on")]
"""More than 1,000 of the bytes that the engine of these tests counts as tokens."""

BROKEN = EngineError("server_is_overloaded", "Later.")
TOO_LONG = EngineError("context_length_exceeded", "Too long.")


class Teller:
    """Answers summaries and turns apart; ``fails`` is what a summary ends with."""

    def __init__(self, fails: EngineError | None = None, *, text: str = "in short") -> None:
        self.fails = fails
        self.text = text

    async def __call__(self, prompt: Prompt) -> AsyncGenerator[Step, None]:
        yield [Accepted(input_tokens=7)]
        if word(prompt.chain.items[-1]) != f"user: {INSTRUCTION}":
            yield [TextDelta("hello"), Finish()]
            return
        yield [TextDelta(self.text, 4)]
        if self.fails is not None:
            raise self.fails
        yield [Finish(output_tokens=5)]


@asynccontextmanager
async def staged(answer: Any = None, *, mode: str = "summary") -> AsyncIterator[Stage]:
    stage = Stage(answer or Teller())
    await stage.driver.close()
    stage.services = replace(stage.services, compaction=mode)
    stage.driver = stage.open()
    try:
        yield stage
    finally:
        await stage.driver.close()


def shown(prompt: Prompt) -> list[str]:
    return [word(item)[:20] for item in prompt.chain.context()]


async def test_the_model_is_asked_once_and_samples_from_what_is_left() -> None:
    async with staged() as stage:
        stage.create(HISTORY, context_management=AT_1000)
        end = await stage.until(events.ResponseCompleted)
        asked, sampled = stage.engine.prompts
        assert asked.chain.parent is not None, "what the engine has cached of the chain is used"
        folded = sum(len(item.raw) for item in asked.chain.context()[:2])
        assert asked.max_output_tokens == folded // 8 < 250
        assert shown(sampled) == ["assistant: Summary o", "user: go on"]
        assert [msgspec.json.decode(raw)["type"] for raw in end.response.output] == [
            "compaction", "message",
        ]  # fmt: skip
        assert end.response.usage.input_tokens == 7 + 7
        assert end.response.usage.output_tokens == 5 + 1


async def test_below_the_threshold_nothing_is_asked() -> None:
    async with staged() as stage:
        stage.create("short", context_management=AT_1000)
        await stage.until(events.ResponseCompleted)
        assert len(stage.engine.prompts) == 1


async def test_the_tail_is_kept_without_asking() -> None:
    async with staged(mode="keep-tail") as stage:
        stage.create(HISTORY, context_management=AT_1000)
        await stage.until(events.ResponseCompleted)
        assert [shown(prompt) for prompt in stage.engine.prompts] == [["user: go on"]]


async def test_a_warm_up_folds_nothing() -> None:
    async with staged() as stage:
        stage.create(HISTORY, context_management=AT_1000, generate=False)
        end = await stage.until(events.ResponseCompleted)
        assert (end.response.output, stage.engine.prompts) == ([], [])


@pytest.mark.parametrize(
    "answer", [Teller(text=" "), Teller(text="x" * 5000), Teller(TOO_LONG, text="")]
)
async def test_a_model_that_says_nothing_of_use_leaves_what_must_stay(answer: Teller) -> None:
    async with staged(answer) as stage:
        stage.create(HISTORY, context_management=AT_1000)
        end = await stage.until(events.ResponseCompleted)
        assert shown(stage.engine.prompts[-1]) == ["user: go on"]
        assert end.response.usage.output_tokens > 1, "it was used all the same"


async def test_an_engine_that_breaks_over_a_summary_refuses_the_create() -> None:
    async with staged(Teller(BROKEN)) as stage:
        stage.create(HISTORY, context_management=AT_1000)
        error = await stage.until(events.ErrorEvent)
        assert error.error.code == "server_is_overloaded"
        ((record, _),) = stage.records
        assert (record.outcome, record.usage.output_tokens) == ("refused", 4)
        stage.create("short")
        await stage.until(events.ResponseCompleted)


async def test_a_cancel_stops_the_summary_and_books_what_it_used() -> None:
    async def answer(prompt: Prompt) -> AsyncGenerator[Step, None]:
        yield [Accepted(input_tokens=7)]
        while True:
            yield [TextDelta("x", 3)]
            await until(lambda: bool(stopped))

    stopped: list[bool] = []

    async with staged(answer) as stage:
        stage.create(HISTORY, context_management=AT_1000)
        await until(lambda: stage.engine.steps == 2)
        stage.driver.drop()
        await until(lambda: bool(stage.engine.stopped))
        stopped.append(True)
        ((record, _),) = stage.records
        assert (record.usage.input_tokens, record.usage.output_tokens) == (7, 3)


def test_a_summary_may_be_as_long_as_half_of_what_it_stands_for_within_bounds() -> None:
    for size, longest in ((1, 64), (4000, 500), (10**6, LONGEST)):
        (long,) = decode_input(msgspec.json.encode("x" * (size - 42)))
        assert longest_of(Plan(kept=(), folded=(long,))) == pytest.approx(longest, abs=4)


class TestThreshold:
    class Windowed:
        """Only what is asked for."""

        def models(self) -> tuple[Model, ...]:
            return (Model(id="m", context_window=8000), Model(id="n"))

    def test_it_is_the_clients_or_a_part_of_the_models_window(self) -> None:
        engine: Any = self.Windowed()
        assert threshold_of(None, engine, "m") is None
        assert threshold_of(Compacting(1234), engine, "m") == 1234
        assert threshold_of(Compacting(None), engine, "m") == 6000
        assert threshold_of(Compacting(None), engine, "n") is None


async def test_a_summary_has_none_of_the_turns_shape() -> None:
    async with staged() as stage:
        stage.create(
            "hi",
            tools=[{"type": "function", "name": "f"}],
            tool_choice="required",
            text={"format": {"type": "json_object"}},
        )
        await stage.until(events.ResponseCompleted)
        (prompt,) = stage.engine.prompts
        heard: list[Any] = []
        text, finish = await summarise(stage.engine, prompt, most=LONGEST, listen=heard.extend)
        assert (text, finish) == ("in short", Finish(output_tokens=5))
        assert heard[-1] == finish
        settings = stage.engine.prompts[-1].settings
        assert (settings.tool_choice.mode, settings.format.type) == ("none", "text")
        assert settings.tools is prompt.settings.tools, "the prompt begins as the turn's did"


async def test_line_runtimes_fold_by_the_setting() -> None:
    stage = Stage(Teller())
    assert isinstance(stage.driver, ConnectionDriver)
    assert stage.services.compaction == "keep-tail"
    await stage.driver.close()
