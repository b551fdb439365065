"""Forced calls and structured outputs with the packaged model: each parses and fits its schema.

20 of each under --soak, a tenth in CI; `make soak ARGS="-s -k forced"` prints how many fit, and
how long a cancel takes.
"""

import asyncio
import json
import random
import time
from collections.abc import Callable, Iterator
from statistics import median
from typing import Any, NamedTuple

import pytest
from jsonschema import Draft202012Validator

from tests.support.engine_contract import deltas_of, finish_of, prompt, text_in
from tieline_server.core.deltas import (
    Accepted,
    CallDelta,
    CallStart,
    Delta,
    ItemEnd,
    TextDelta,
)
from tieline_server.core.effects import Prompt
from tieline_server.engines.llama.engine import LlamaEngine
from tieline_server.engines.llama.runtime import Completion, Report

SLOTS = 2

WORDS = ("weather", "order", "invoice", "book", "flight", "hotel", "song", "route", "recipe")
NUMBER = {"type": "number", "minimum": 0, "maximum": 100, "multipleOf": 0.25}
"""Without all three a small model may write digits up to its limit of tokens."""
CITIES = ("Oslo", "Lima", "Cairo", "Hanoi", "Quito")


@pytest.fixture(scope="module")
def engine() -> Iterator[LlamaEngine]:
    engine = LlamaEngine(slots=SLOTS, context=1024)
    yield engine
    asyncio.run(engine.close())


def schema(rng: random.Random, depth: int = 0) -> dict[str, Any]:
    """An object with some members of every kind."""
    kinds: list[Callable[[], dict[str, Any]]] = [
        lambda: {"type": "string", "maxLength": rng.randint(5, 30)},
        lambda: {"type": "integer", "minimum": 0, "maximum": rng.randint(5, 500)},
        lambda: {"type": "boolean"},
        lambda: {"enum": rng.sample(CITIES, 3)},
        lambda: {"type": "array", "items": NUMBER, "maxItems": 3},
        lambda: {"type": "string", "format": "date"},
        lambda: {"type": ["string", "null"], "maxLength": 10},
    ]
    if depth < 2:
        kinds.append(lambda: schema(rng, depth + 1))
    names = rng.sample(WORDS, rng.randint(1, 4))
    return {
        "type": "object",
        "properties": {name: rng.choice(kinds)() for name in names},
        "required": names,
        "additionalProperties": False,
    }


def fits(text: str, wanted: dict[str, Any]) -> bool:
    try:
        return not list(Draft202012Validator(wanted).iter_errors(json.loads(text)))
    except ValueError:
        return False


def ask(words: Any, **members: Any) -> Prompt:
    return prompt(words, model="x", max_output_tokens=500, **members)


def test_every_forced_call_parses_and_fits_its_tools_schema(
    engine: LlamaEngine, repeats: Callable[[int], int]
) -> None:
    good, tries = 0, repeats(20)
    for seed in range(tries):
        rng = random.Random(seed)
        tools = {f"{verb}_{noun}": schema(rng) for verb, noun in (("get", "it"), ("set", "that"))}
        given = ask(
            f"Please take care of my {rng.choice(WORDS)} in {rng.choice(CITIES)}.",
            tools=[
                {"type": "function", "name": name, "parameters": wanted, "strict": True}
                for name, wanted in tools.items()
            ],
            tool_choice="required",
            parallel_tool_calls=False,
        )
        deltas = asyncio.run(deltas_of(engine, given))
        [start] = [delta for delta in deltas if isinstance(delta, CallStart)]
        arguments = "".join(delta.text for delta in deltas if isinstance(delta, CallDelta))
        good += fits(arguments, tools[start.name]) and finish_of(deltas).reason == "stop"
    print(f"\nforced calls that fit: {good} of {tries}")
    assert good == tries


def test_up_07_a_search_is_called_and_so_is_what_it_found(engine: LlamaEngine) -> None:
    parameters = {
        "type": "object",
        "properties": {"query": {"type": "string", "maxLength": 12}},
        "required": ["query"],
        "additionalProperties": False,
    }
    search = {"type": "tool_search", "execution": "client", "parameters": parameters}
    later = {"type": "function", "name": "forecast", "parameters": parameters}
    tools: list[Any] = [search, {**later, "defer_loading": True}]
    members = {"call_id": "s1", "execution": "client"}
    found = [
        {"role": "user", "content": "Look for the weather."},
        {"type": "tool_search_call", "arguments": {"query": "weather"}, **members},
        {"type": "tool_search_output", "tools": [later], **members},
    ]
    for content, choice, kind in (
        ("Look for the weather.", {"type": "tool_search"}, "tool_search_call"),
        ("Look for the weather.", "required", "tool_search_call"),
        (found, {"type": "function", "name": "forecast"}, "function_call"),
    ):
        deltas = asyncio.run(deltas_of(engine, ask(content, tools=tools, tool_choice=choice)))
        starts = [delta.kind for delta in deltas if isinstance(delta, CallStart)]
        assert starts[:1] == [kind]
        texts = "".join(delta.text for delta in deltas if isinstance(delta, CallDelta))
        assert fits(texts, parameters) or len(starts) > 1


def test_up_06_the_output_of_a_shell_is_shown_to_the_model(engine: LlamaEngine) -> None:
    call = {"type": "shell_call", "call_id": "c1", "action": {"commands": ["ls"]}}
    ran = [{"stdout": "total 7", "stderr": "", "outcome": {"type": "exit", "exit_code": 0}}]
    output = {"type": "shell_call_output", "call_id": "c1", "output": ran}
    asked = {"role": "user", "content": "go"}
    counts = [
        asyncio.run(engine.count(ask(content))) for content in ([asked], [asked, call, output])
    ]
    assert counts[1] > counts[0] + 10


def call_of(
    engine: LlamaEngine, words: str, member: str, schema: dict[str, Any]
) -> tuple[str, list[ItemEnd]]:
    """The arguments of one forced call with one member, and what ended it."""
    parameters = {"type": "object", "properties": {member: schema}, "required": [member]}
    tool = {"type": "function", "name": "set_it", "parameters": parameters}
    given = ask(
        words, tools=[tool], tool_choice="required", parallel_tool_calls=False, temperature=0
    )
    deltas = asyncio.run(deltas_of(engine, given))
    text = "".join(delta.text for delta in deltas if isinstance(delta, CallDelta))
    return text, [delta for delta in deltas if isinstance(delta, ItemEnd)]


def test_sc_01_an_integer_is_as_long_as_it_is_meant(engine: LlamaEngine) -> None:
    words = "Call set_it with unix_time 1796080367."
    text, [end] = call_of(engine, words, "unix_time", {"type": "integer"})
    assert json.loads(text) == {"unix_time": 1796080367}
    assert not end.incomplete


@pytest.mark.parametrize("longest", [8, 0])
def test_sc_16_a_string_that_reached_the_bound_is_told(longest: int) -> None:
    """The packaged model does not stop by itself: without a bound its limit ends the answer."""
    engine = LlamaEngine(slots=1, context=256, longest_string=longest)
    try:
        words = "Write a long story about a dragon who lives by the sea into the content."
        text, ends = call_of(engine, words, "content", {"type": "string"})
    finally:
        asyncio.run(engine.close())
    if longest:
        assert len(json.loads(text)["content"]) == longest
        assert [end.incomplete for end in ends] == [True]
    else:
        assert len(text) > 256
        assert not any(end.incomplete for end in ends)


def test_every_structured_output_parses_and_fits_its_schema(
    engine: LlamaEngine, repeats: Callable[[int], int]
) -> None:
    good, tries = 0, repeats(20)
    for seed in range(tries):
        rng = random.Random(1000 + seed)
        wanted = schema(rng)
        form = {"type": "json_schema", "name": "x", "schema": wanted, "strict": True}
        words = f"Describe a {rng.choice(WORDS)} in {rng.choice(CITIES)} as JSON."
        deltas = asyncio.run(deltas_of(engine, ask(words, text={"format": form})))
        good += fits(text_in(deltas), wanted) and finish_of(deltas).reason == "stop"
    print(f"\nstructured outputs that fit: {good} of {tries}")
    assert good == tries


def test_a_cancel_frees_the_slot_within_a_step_or_a_batch(
    engine: LlamaEngine, repeats: Callable[[int], int], pytestconfig: pytest.Config
) -> None:
    """Times are looked at under --soak alone, as medians."""
    decode: list[Cancelled] = []
    prefill: list[Cancelled] = []
    for at in range(repeats(20)):
        decode.append(asyncio.run(cancel(engine, f"Count to ten, {at}.", TextDelta)))
        words = f"{at} is where it begins. " + "A long story of many words. " * 110
        prefill.append(asyncio.run(cancel(engine, words, Accepted)))
    assert max(each.reports for each in prefill) <= 1
    assert all(slot.guest is None for slot in engine._slots._slots)
    late = median(each.after_report for each in prefill)
    print(
        f"\ncancel: in decode {median(each.seconds for each in decode) * 1000:.1f} ms, "
        f"in prefill {late * 1000:.1f} ms behind the batch that runs"
    )
    if pytestconfig.getoption("--soak"):
        assert median(each.seconds for each in decode) <= 0.1
        assert late <= 0.05


class Cancelled(NamedTuple):
    """A cancel, until its slot was free: how long, and what the runtime still reported."""

    seconds: float
    reports: int
    after_report: float
    """Seconds since the last of these reports, or since the cancel."""


async def cancel(engine: LlamaEngine, words: str, at: type[Delta]) -> Cancelled:
    """Cancels an answer once such a delta has come."""
    reports: list[float] = []
    complete = engine._runtime.complete

    def watched(completion: Completion, report: Callable[[Report], bool]) -> None:
        def hear(what: Report) -> bool:
            reports.append(time.perf_counter())
            return report(what)

        complete(completion, hear)

    engine._runtime.complete = watched  # type: ignore[method-assign]
    try:
        sampling = engine.sample(ask(words))
        async for step in sampling:
            if any(isinstance(delta, at) for delta in step):
                break
        begun = time.perf_counter()
        await sampling.aclose()
        end = time.perf_counter()
    finally:
        engine._runtime.complete = complete  # type: ignore[method-assign]
    late = [each for each in reports if each > begun]
    return Cancelled(end - begun, len(late), end - max([begun, *late]))
