"""An engine with guards around it, from the first question to the last token."""

import asyncio
import inspect
from collections.abc import AsyncGenerator, Coroutine, Sequence
from contextlib import aclosing
from typing import Any

import pytest
from msgspec.structs import replace

from tests.support.engine_contract import (
    EngineContract,
    deltas_of,
    finish_of,
    link,
    prompt,
    steps_of,
    text_in,
)
from tests.support.guards import BOTH, Reader
from tests.support.runtime import Speaker
from tieline_server.compaction.summaries import summarise
from tieline_server.core.deltas import Accepted, Delta, Finish, TextDelta
from tieline_server.core.effects import Prompt
from tieline_server.core.history.chain import ChainNode
from tieline_server.engines.base import Engine, EngineError
from tieline_server.engines.scripted import ScriptedEngine
from tieline_server.guards.base import REFUSED, Counts, Guard
from tieline_server.guards.guarded import UNTOLD, GuardedEngine
from tieline_server.guards.pattern import PatternGuard

PATTERN = PatternGuard("pattern", ["bad"])


class TestAnEngineWithPatternsKeepsTheContract(EngineContract):
    def make(self) -> Engine:
        return GuardedEngine(ScriptedEngine(), {"scripted": [PATTERN]}, Counts())


class TestAnEngineWhoseGuardsHaveToBeAskedKeepsTheContract(EngineContract):
    def make(self) -> Engine:
        guards: list[Guard] = [Reader("no such"), PATTERN, Reader("none either", name="second")]
        return GuardedEngine(ScriptedEngine(), {"scripted": guards}, Counts())


def run(main: Coroutine[Any, Any, None]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(30):
            await main

    asyncio.run(bounded())


def speaker(*steps: Sequence[Delta] | Exception) -> Speaker:
    """Says these steps, or breaks."""

    async def answer(_prompt: Prompt) -> AsyncGenerator[Sequence[Delta], None]:
        for step in steps:
            if isinstance(step, Exception):
                raise step
            yield step

    return Speaker(answer)


def hello() -> Speaker:
    return speaker(
        [Accepted(input_tokens=1)], [TextDelta("Hello.")], [Finish(phases={"decode": 5})]
    )


def ask(content: Any = "hi", **members: Any) -> Prompt:
    return prompt(content, model="m", **members)


def around(engine: Engine, *guards: Guard, counts: Counts | None = None) -> GuardedEngine:
    return GuardedEngine(engine, {"m": guards}, counts or Counts())


async def refusal(engine: Engine, given: Prompt) -> EngineError:
    with pytest.raises(EngineError) as caught:
        await deltas_of(engine, given)
    return caught.value


def test_a_model_without_guards_is_sampled_by_the_engine_itself() -> None:
    engine = hello()
    guarded = GuardedEngine(engine, {"other": [PATTERN], "m": []}, Counts())
    assert guarded.name == engine.name
    assert guarded.models() == engine.models()
    steps = guarded.sample(ask("bad"))
    assert inspect.isasyncgen(steps)
    assert steps.ag_code is Speaker.sample.__code__
    run(steps.aclose())


async def test_patterns_refuse_input_before_the_engine_hears_of_it() -> None:
    engine = hello()
    error = await refusal(around(engine, PATTERN), ask("so bad"))
    assert (error.code, error.status, error.param) == ("invalid_prompt", 400, "input")
    assert (error.message, error.retryable) == (REFUSED, False)
    assert set(error.phases or ()) == {"guard"}
    assert engine.prompts == []


async def test_the_settings_say_what_a_client_hears() -> None:
    guard = PatternGuard("g", ["bad"], message="Not here.")
    error = await refusal(around(hello(), guard), ask(instructions="be bad"))
    assert (error.message, error.param) == ("Not here.", "instructions")


async def test_the_engine_is_asked_while_the_verdict_is_out_and_nothing_is_said_before_it() -> None:
    engine, reader = hello(), Reader()
    reader.gate.clear()
    steps = around(engine, reader).sample(ask())
    # It counts, should the turn end here.
    assert await anext(steps) == [Accepted(input_tokens=1, held=True)]
    first = asyncio.ensure_future(anext(steps))
    await reader.signal.until(lambda: reader.waiting == 1)
    for _ in range(100):
        await asyncio.sleep(0)
    assert engine.steps == 1
    assert not first.done()
    reader.gate.set()
    assert await first == [Accepted(input_tokens=1)]
    rest = [delta for step in [each async for each in steps] for delta in step]
    assert text_in(rest) == "Hello."
    phases = finish_of(rest).phases or {}
    assert phases["decode"] == 5
    assert phases["guard"] > 0


async def test_a_hit_closes_the_engine_that_has_begun_meanwhile() -> None:
    engine, reader = hello(), Reader()
    reader.gate.clear()
    asked = asyncio.ensure_future(refusal(around(engine, reader), ask("bad")))
    await reader.signal.until(lambda: reader.waiting == 1 and engine.steps == 1)
    reader.gate.set()
    assert (await asked).code == "invalid_prompt"
    assert (engine.finished, engine.stopped) == (0, 1)


async def test_an_engine_that_refuses_is_heard_without_a_verdict() -> None:
    reader = Reader()
    reader.gate.clear()
    error = EngineError("context_length_exceeded", "too long")
    assert await refusal(around(speaker(error), reader), ask()) is error
    assert reader.waiting == 0


async def test_where_a_guard_cannot_be_asked_the_create_may_come_again() -> None:
    engine, reader = hello(), Reader()
    reader.fails = True
    error = await refusal(around(engine, reader), ask())
    assert (error.code, error.status, error.retry_after) == ("engine_unavailable", 503, 1.0)
    assert engine.stopped == 1
    reader.fails = False
    assert text_in(await deltas_of(around(engine, reader), ask())) == "Hello."


async def test_closing_it_while_a_verdict_is_out_ends_the_question_and_the_engine() -> None:
    engine, reader = hello(), Reader()
    reader.gate.clear()
    steps = around(engine, reader).sample(ask())
    # It counts, should the turn end here.
    assert await anext(steps) == [Accepted(input_tokens=1, held=True)]
    first = asyncio.ensure_future(anext(steps))
    await reader.signal.until(lambda: reader.waiting == 1)
    first.cancel()
    await asyncio.wait((first,))
    await steps.aclose()
    assert reader.waiting == 0
    assert engine.stopped == len(engine.prompts)


async def test_the_engine_has_ended_when_a_hit_in_its_answer_is_told() -> None:
    for guard in (PATTERN, Reader()):
        engine = speaker([Accepted()], [TextDelta("so. ")], [TextDelta("bad. ")], [Finish()])
        async with aclosing(around(engine, guard).sample(ask())) as steps:
            said: list[Delta] = []
            async for step in steps:
                said += step
                if type(step[-1]) is Finish:
                    assert engine.finished + engine.stopped == 1
        assert text_in(said) == "so. "
        assert finish_of(said).reason == "content_filter"
        assert "guard" in (finish_of(said).phases or {})


async def test_a_hit_ends_an_engine_that_is_just_being_listened_to() -> None:
    async def answer(_prompt: Prompt) -> AsyncGenerator[Sequence[Delta], None]:
        yield [Accepted()]
        yield [TextDelta("bad. ")]
        await asyncio.Event().wait()

    engine = Speaker(answer)
    out = await deltas_of(around(engine, Reader()), ask())
    assert finish_of(out).reason == "content_filter"
    assert engine.stopped == 1


async def test_patterns_and_guards_that_are_asked_read_the_same_answer() -> None:
    words = [[TextDelta(word)] for word in ("One. ", "Two", " worse. ", "b", "ad")]
    for guards, left in (
        ([PATTERN, Reader("none")], "One. Two worse. "),
        ([Reader("worse"), PATTERN], "One. "),
        ([Reader("none"), Reader("Two", name="second")], "One. "),
    ):
        engine = speaker([Accepted()], *words, [Finish()])
        assert text_in(await deltas_of(around(engine, *guards), ask())) == left
        assert engine.stopped + engine.finished == 1


async def test_what_a_guard_applies_to_is_all_that_it_reads() -> None:
    bad = speaker([Accepted()], [TextDelta("bad")], [Finish()])
    for make in (
        lambda applies: PatternGuard("g", ["bad"], applies=applies),
        lambda applies: Reader(applies=frozenset(applies)),
    ):
        inward, outward = make(["input"]), make(["output"])
        assert text_in(await deltas_of(around(bad, inward), ask("good"))) == "bad"
        assert (await refusal(around(bad, inward), ask("bad"))).code == "invalid_prompt"
        assert text_in(await deltas_of(around(bad, outward), ask("bad"))) == ""


async def test_a_chain_of_200_turns_has_each_item_read_once_going_in_or_coming_out() -> None:
    for guard in (PATTERN, Reader()):
        counts = Counts()
        engine = around(hello(), guard, counts=counts)
        tip: ChainNode | None = None
        for turn in range(200):
            tip = link(f"question {turn}", tip)
            assert text_in(await deltas_of(engine, ask(tip=tip))) == "Hello."
            tip = link([{"role": "assistant", "content": "Hello."}], tip, output=True)
        name = guard.name
        assert counts.checks == {(name, "input"): 200, (name, "output"): 200}


async def test_counting_reads_the_input_that_a_turn_then_has_no_need_to() -> None:
    for guard in (PATTERN, Reader()):
        counts = Counts()
        engine = around(hello(), guard, counts=counts)
        tip = link("question")
        assert await engine.count(ask(tip=tip)) > 0
        await deltas_of(engine, ask(tip=tip))
        assert counts.checks[guard.name, "input"] == 1
        with pytest.raises(EngineError) as caught:
            await engine.count(ask("bad"))
        assert caught.value.code == "invalid_prompt"


async def test_a_summary_is_an_answer_like_any_other() -> None:
    counts = Counts()
    engine = speaker(
        [Accepted()], [TextDelta("We agreed on "), TextDelta("bad things")], [Finish()]
    )
    guarded = around(engine, PATTERN, counts=counts)
    given = ask("a long story")
    await guarded.count(given)
    text, finish = await summarise(guarded, given, most=9, listen=lambda step: None)
    assert text == "We agreed on"
    assert finish is not None
    assert finish.reason == "content_filter"
    # The story once; the question for the summary is the server's own.
    assert counts.checks == {("pattern", "input"): 1, ("pattern", "output"): 1}


async def test_verdicts_are_of_a_guard_and_not_of_an_engine_or_a_model() -> None:
    reader, counts = Reader(), Counts()
    both = {"m": [reader], "n": [reader]}
    one, two = GuardedEngine(hello(), both, counts), GuardedEngine(hello(), both, counts)
    tip = link("question")
    await deltas_of(one, ask(tip=tip))
    await deltas_of(two, ask(tip=tip))
    other = ask(tip=tip)
    await deltas_of(two, replace(other, settings=replace(other.settings, model="n")))
    assert reader.read.count("question") == 1


async def test_deltas_still_stream_and_each_step_of_a_long_answer_lets_some_go() -> None:
    words = [[TextDelta(f"word {number} ")] for number in range(100)]
    engine = speaker([Accepted()], *words, [Finish()])
    steps = await steps_of(around(engine, PATTERN), ask())
    texts = [text_in(step) for step in steps]
    assert "".join(texts) == "".join(delta.text for word in words for delta in word)
    assert all(texts[2:])


async def test_closing_the_engine_closes_what_samples_and_no_guard() -> None:
    inner = ScriptedEngine()
    guarded = GuardedEngine(inner, {"scripted": [Reader(applies=BOTH)]}, Counts())
    await guarded.close()
    error = await refusal(guarded, prompt("hi"))
    assert error.code == "engine_unavailable"


@pytest.mark.parametrize("guard", [PATTERN, Reader("bad")], ids=["pattern", "asked"])
async def test_what_an_engine_passes_on_of_an_error_is_read_like_an_answer(guard: Guard) -> None:
    said = EngineError("invalid_request", "so bad", param="input")
    for steps in ([said], [[Accepted()], [TextDelta("Hi. ")], said]):
        error = await refusal(around(speaker(*steps), guard), ask())
        assert (error.code, error.message, error.param) == ("invalid_request", UNTOLD, None)
    fine = EngineError("invalid_request", "so be it", param="input")
    error = await refusal(around(speaker(fine), guard), ask())
    assert (error.message, error.param) == ("so be it", "input")


async def test_what_cannot_be_asked_about_of_an_error_is_not_passed_on() -> None:
    reader = Reader("none", applies=frozenset({"output"}))
    reader.fails = True
    said = EngineError("invalid_request", "so bad")
    assert (await refusal(around(speaker(said), reader), ask())).message == UNTOLD
