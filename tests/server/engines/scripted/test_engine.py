"""The scripted engine as a whole: order, pace, limits, faults, cancelling, counting."""

import asyncio
import threading
import time
from contextlib import aclosing
from typing import Any

import msgspec
import pytest

from tests.support.engine_contract import (
    WEATHER,
    EngineContract,
    deltas_of,
    finish_of,
    link,
    prompt,
    steps_of,
    text_in,
    tokens_in,
)
from tieline_server.core.create.settings import SettingsCache
from tieline_server.core.deltas import Accepted, Delta, Finish, ReasoningDelta, TextDelta
from tieline_server.core.history.chain import ChainNode
from tieline_server.core.values import Work
from tieline_server.engines import bpe
from tieline_server.engines.base import EngineError
from tieline_server.engines.scripted import script
from tieline_server.engines.scripted.engine import LARGE, ScriptedEngine
from tieline_server.engines.scripted.pace import STEP

LONG = "one two three four five six seven eight nine ten " * 40


def scripted(*rules: dict[str, Any], **members: Any) -> ScriptedEngine:
    data = msgspec.json.encode({"rules": list(rules), **members})
    return ScriptedEngine(script.parse(data))


def says(text: str, **members: Any) -> dict[str, Any]:
    return {"emit": {"type": "message", "text": text}, **members}


class TestScriptedKeepsTheContract(EngineContract):
    def make(self) -> ScriptedEngine:
        return ScriptedEngine()


class TestScriptedAtAPaceKeepsTheContract(EngineContract):
    def make(self) -> ScriptedEngine:
        return scripted(pace={"ttft_ms": 2, "tokens_per_second": 20_000})


def test_the_script_names_the_models() -> None:
    engine = scripted(models=["a", {"name": "b", "steering": False}])
    assert [(model.id, model.steering) for model in engine.models()] == [("a", True), ("b", False)]


async def test_the_same_prompt_gets_the_same_answer() -> None:
    engine = scripted(says(LONG))
    one, two = await deltas_of(engine, prompt()), await deltas_of(engine, prompt())
    assert one == two
    assert text_in(one) == LONG


def test_each_delta_is_one_token_of_the_vocabulary() -> None:
    deltas = asyncio.run(deltas_of(scripted(says("naïve 😀 text")), prompt()))
    pieces = [delta for delta in deltas if isinstance(delta, TextDelta)]
    assert all(piece.tokens == 1 for piece in pieces)
    assert len(pieces) == bpe.shipped().count("naïve 😀 text")
    assert "".join(piece.text for piece in pieces) == "naïve 😀 text"


def test_an_unlimited_pace_lets_the_loop_run_between_its_steps() -> None:
    async def main() -> tuple[int, int]:
        laps = 0

        async def lap() -> None:
            nonlocal laps
            while True:
                laps += 1
                await asyncio.sleep(0)

        other = asyncio.create_task(lap())
        steps = await steps_of(scripted(says(LONG)), prompt())
        other.cancel()
        return laps, sum(any(isinstance(delta, TextDelta) for delta in step) for step in steps)

    laps, steps = asyncio.run(main())
    assert steps > 5
    assert laps >= steps - 1


# Pace.


class Clock:
    """A clock that the test moves. The loop's own timers run on, so that waits stay short."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def paced(clock: Clock, *rules: dict[str, Any], **pace: Any) -> ScriptedEngine:
    data = msgspec.json.encode({"rules": list(rules), "pace": pace})
    return ScriptedEngine(script.parse(data), clock=clock)


async def settled() -> None:
    """Long enough for every callback that is ready."""
    for _ in range(20):
        await asyncio.sleep(0)


async def test_tokens_come_when_they_are_due_and_a_late_wake_loses_none() -> None:
    clock = Clock()
    engine = paced(clock, says(LONG), ttft_ms=1000, tokens_per_second=10)
    counts = []
    async with aclosing(engine.sample(prompt())) as sampling:
        await anext(sampling)
        for now in (101.0, 101.1, 101.65, 101.7, 103.0):
            clock.now = now
            counts.append(tokens_in(await anext(sampling)))
    assert counts == [1, 1, 5, 1, 13]


def test_a_rule_has_its_own_pace() -> None:
    async def main() -> list[int]:
        clock = Clock()
        rule = says(LONG, pace={"tokens_per_second": None})
        engine = paced(clock, rule, ttft_ms=0, tokens_per_second=1)
        return [tokens_in(step) for step in await steps_of(engine, prompt())]

    assert max(asyncio.run(main())) == 32


def test_real_time_keeps_the_rate_without_drift() -> None:
    async def main() -> tuple[float, list[float]]:
        engine = scripted(says("word " * 400), pace={"ttft_ms": 20, "tokens_per_second": 2000})
        start, lates, sent = time.monotonic(), [], 0
        async for step in engine.sample(prompt(max_output_tokens=300)):
            now = time.monotonic()
            for _ in range(tokens_in(step)):
                lates.append(now - (start + 0.02 + sent / 2000))
                sent += 1
        return time.monotonic() - start, lates

    took, lates = asyncio.run(main())
    assert min(lates) > -1e-6
    assert took >= 0.02 + 299 / 2000 - 1e-6


async def test_a_stall_pauses_the_answer_and_moves_what_follows() -> None:
    rule = {
        "emit": [
            {"type": "message", "text": "before"},
            {"type": "stall", "seconds": 0.005},
            {"type": "message", "text": "after"},
        ]
    }

    clock = Clock()
    engine = paced(clock, rule, tokens_per_second=None, ttft_ms=0)
    async with aclosing(engine.sample(prompt())) as sampling:
        await anext(sampling)
        texts = [text_in(await anext(sampling))]
        following = asyncio.ensure_future(anext(sampling))
        await settled()
        waiting = not following.done()
        clock.now += 0.005
        texts.append(text_in(await following))
    assert (texts, waiting) == (["before", "after"], True)


# Limits and faults.


@pytest.mark.parametrize("budget", [0, 1, 5])
def test_a_budget_cuts_in_the_middle_of_the_text(budget: int) -> None:
    deltas = asyncio.run(deltas_of(scripted(says("1234567")), prompt(budget=budget)))
    assert text_in(deltas) == "1234567"[:budget]
    assert finish_of(deltas).reason == "length"


def test_a_budget_that_the_answer_just_fits_cuts_nothing() -> None:
    deltas = asyncio.run(deltas_of(scripted(says("1234567")), prompt(budget=7)))
    assert text_in(deltas) == "1234567"
    assert finish_of(deltas).reason == "stop"


async def failure_of(engine: ScriptedEngine) -> tuple[list[Delta], EngineError]:
    """What came before the error, and the error."""
    deltas: list[Delta] = []
    try:
        async for step in engine.sample(prompt("x")):
            deltas += step
    except EngineError as error:
        return deltas, error
    pytest.fail("it ended by itself")


ERROR = {"type": "error", "status": 503, "code": "slow_down", "message": "Not {user} again."}


def test_an_error_refuses_before_anything_is_accepted() -> None:
    deltas, error = asyncio.run(failure_of(scripted({"emit": ERROR})))
    assert deltas == []
    assert (error.status, error.code, error.message) == (503, "slow_down", "Not x again.")


@pytest.mark.parametrize(("after", "text"), [(0, ""), (3, "123"), (7, "1234567")])
def test_an_error_after_tokens_breaks_the_answer_there(after: int, text: str) -> None:
    emit = [{"type": "message", "text": "1234567"}, {**ERROR, "after_tokens": after}]
    deltas, error = asyncio.run(failure_of(scripted({"emit": emit})))
    assert type(deltas[0]) is Accepted
    assert text_in(deltas) == text
    assert error.code == "slow_down"


def test_an_error_after_more_tokens_than_there_are_fills_up_to_them() -> None:
    deltas, _ = asyncio.run(failure_of(scripted({"emit": {**ERROR, "after_tokens": 9}})))
    assert tokens_in(deltas) == 9


def test_a_budget_below_the_break_cuts_before_it() -> None:
    engine = scripted({"emit": {**ERROR, "after_tokens": 9}})
    deltas = asyncio.run(deltas_of(engine, prompt(budget=4)))
    assert finish_of(deltas).reason == "length"


async def test_a_break_at_the_very_budget_breaks() -> None:
    emit = [{"type": "message", "text": "1234567"}, {**ERROR, "after_tokens": 4}]

    with pytest.raises(EngineError):
        await deltas_of(scripted({"emit": emit}), prompt(budget=4))


def test_a_long_summary_comes_in_bounded_steps() -> None:
    """It costs no tokens, so that no pace and no budget bounds it."""
    rule = {"emit": {"type": "reasoning", "text": "1", "summary": "2" * 1000}}
    steps = asyncio.run(steps_of(scripted(rule), prompt()))
    assert max(len(step) for step in steps) == 2 * STEP


async def test_a_stall_before_a_refusal_delays_it() -> None:
    clock = Clock()
    engine = paced(clock, {"emit": [{"type": "stall", "seconds": 0.005}, ERROR]})
    first = asyncio.ensure_future(anext(engine.sample(prompt())))
    await settled()
    waiting = not first.done()
    clock.now += 0.005
    with pytest.raises(EngineError) as caught:
        await first
    assert (waiting, caught.value.code) == (True, "slow_down")


# Cancelling.

SLOW = {"ttft_ms": 3_600_000, "tokens_per_second": 1}


async def test_cancelling_before_the_first_token_is_counted_once_and_frees_at_once() -> None:
    engine = scripted(says(LONG), pace=SLOW)

    async def read() -> None:
        async with aclosing(engine.sample(prompt(response_id="resp_a"))) as sampling:
            async for _ in sampling:
                pass

    reader = asyncio.create_task(read())
    await settled()
    running = engine.running
    reader.cancel()
    await asyncio.wait({reader}, timeout=1)
    assert (running, engine.running, list(engine.aborted)) == (1, 0, ["resp_a"])


async def test_closing_between_steps_is_counted_once() -> None:
    engine = scripted(says(LONG))
    sampling = engine.sample(prompt(response_id="resp_b"))
    for _ in range(3):
        await anext(sampling)
    await sampling.aclose()
    await sampling.aclose()
    assert (engine.running, list(engine.aborted)) == (0, ["resp_b"])


async def test_closing_after_the_end_counts_nothing() -> None:
    engine = scripted(says("hi"))
    async with aclosing(engine.sample(prompt())) as sampling:
        async for step in sampling:
            if isinstance(step[-1], Finish):
                break
    assert (engine.started, engine.running, len(engine.aborted)) == (1, 0, 0)


def test_a_refusal_or_a_break_counts_as_no_abort() -> None:
    engine = scripted({"emit": ERROR})
    asyncio.run(failure_of(engine))
    assert (engine.running, len(engine.aborted)) == (0, 0)


async def test_closing_the_engine_ends_what_runs_and_refuses_what_comes() -> None:
    engine = scripted(says(LONG), pace=SLOW)
    running = asyncio.create_task(deltas_of(engine, prompt()))
    await settled()
    await engine.close()
    codes = []
    for work in (running, deltas_of(engine, prompt())):
        with pytest.raises(EngineError) as caught:
            await asyncio.wait_for(work, 1)
        codes.append(caught.value.code)
    assert codes == ["engine_unavailable", "engine_unavailable"]


# Counting.


def accepted_by(engine: ScriptedEngine, given: Any) -> Accepted:
    accepted = asyncio.run(deltas_of(engine, given))[0]
    assert isinstance(accepted, Accepted)
    return accepted


def test_a_first_turn_has_nothing_cached() -> None:
    assert accepted_by(ScriptedEngine(), prompt(LONG)).cached_tokens == 0


def test_all_links_before_the_newest_one_are_cached() -> None:
    engine = ScriptedEngine()
    first = link("hello")
    alone = accepted_by(engine, prompt(tip=first)).input_tokens
    answer = link([{"role": "assistant", "content": "hi"}], first, output=True)
    second = accepted_by(engine, prompt("more", after=answer))
    assert alone < second.cached_tokens < second.input_tokens
    # The same rule in the append shape, where the turn's number does not change.
    appended = link([{"role": "user", "content": "more"}], answer, output=True)
    assert accepted_by(engine, prompt(tip=appended)) == second


def test_instructions_and_tools_count_as_input_and_are_not_cached() -> None:
    engine = ScriptedEngine()
    bare = accepted_by(engine, prompt("hi")).input_tokens
    told = accepted_by(engine, prompt("hi", instructions="Be brief.", tools=[WEATHER]))
    assert told.input_tokens > bare + 20
    assert told.cached_tokens == 0


def test_a_turn_renders_only_what_is_new() -> None:
    work = Work()
    recall = SettingsCache(work)
    engine = ScriptedEngine()
    head: dict[str, Any] = {
        "tools": [{**WEATHER, "name": f"look_{at}"} for at in range(20)],
        "instructions": "Be brief. " * 500,
    }
    tip: ChainNode | None = None
    rendered: list[int] = []
    for _ in range(20):
        before = work.render
        given = prompt("next please", after=tip, work=work, recall=recall, **head)
        accepted_by(engine, given)
        rendered.append(work.render - before)
        tip = link([{"role": "assistant", "content": "ok"}], given.chain, output=True)
    assert rendered[0] > 5000
    assert set(rendered[2:]) == {rendered[1]}
    assert rendered[1] < 100


def test_sampling_twice_from_one_link_renders_nothing_the_second_time() -> None:
    work, tip, engine = Work(), link("hello"), ScriptedEngine()
    accepted_by(engine, prompt(tip=tip, work=work))
    before = work.render
    accepted_by(engine, prompt(tip=tip, work=work))
    assert work.render == before


def test_a_rule_can_state_its_usage() -> None:
    usage = {
        "input_tokens": 1000,
        "cached_tokens": 900,
        "output_tokens": 50,
        "reasoning_tokens": 40,
    }
    deltas = asyncio.run(deltas_of(scripted(says("hi", usage=usage)), prompt()))
    assert deltas[0] == Accepted(input_tokens=1000, cached_tokens=900)
    finish = finish_of(deltas)
    assert (finish.output_tokens, finish.reasoning_tokens) == (50, 40)


def test_without_a_stated_usage_the_deltas_are_what_counts() -> None:
    emit = [{"type": "reasoning", "text": "1234"}, {"type": "message", "text": "123"}]
    deltas = asyncio.run(deltas_of(scripted({"emit": emit}), prompt()))
    thought = [delta for delta in deltas if isinstance(delta, ReasoningDelta)]
    assert (len(thought), tokens_in(deltas)) == (4, 7)
    assert finish_of(deltas) == Finish(reason="stop")


async def test_generate_false_is_refused_where_its_rule_refuses() -> None:
    with pytest.raises(EngineError):
        await deltas_of(scripted({"emit": ERROR}), prompt(generate=False))


def test_large_input_is_counted_in_a_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    threads = set()
    count = bpe.Vocabulary.count

    def spy(self: bpe.Vocabulary, text: str) -> int:
        threads.add(threading.current_thread() is threading.main_thread())
        return count(self, text)

    monkeypatch.setattr(bpe.Vocabulary, "count", spy)
    engine = scripted(says("ok"))
    accepted_by(engine, prompt("word " * (LARGE // 5 + 1), instructions="word " * (LARGE // 5 + 1)))
    assert threads == {False}
    accepted_by(engine, prompt("small"))
    assert threads == {False, True}


def test_counting_large_input_does_not_hold_the_loop_up(monkeypatch: pytest.MonkeyPatch) -> None:
    threads = set()
    count = bpe.Vocabulary.count

    def spy(self: bpe.Vocabulary, text: str) -> int:
        threads.add(threading.current_thread() is threading.main_thread())
        return count(self, text)

    monkeypatch.setattr(bpe.Vocabulary, "count", spy)
    large = "word " * (LARGE // 5 + 1)
    assert asyncio.run(scripted().count(prompt(large, instructions=large))) > LARGE // 5
    assert threads == {False}
