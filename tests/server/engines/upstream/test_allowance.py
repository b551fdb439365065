"""An upstream that goes on past max_output_tokens is ended; one that keeps to it never is."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.engine_contract import WEATHER, deltas_of, finish_of, prompt, text_in
from tests.support.upstream_server import MODEL, Hang, call, chunk, event, streamed, upstream, usage
from tests.support.upstream_shapes import CHAT, COMPLETIONS, SHAPES, Shape, ended, opened
from tieline_server.core.deltas import CallDelta, CallStart, Delta, ItemEnd, TextDelta
from tieline_server.core.effects import Prompt
from tieline_server.engines.bpe import shipped
from tieline_server.engines.upstream.allowance import LONGEST, Least, within

T = TypeVar("T")

in_each_mode = pytest.mark.parametrize("shape", SHAPES, ids=str)


def run(main: Coroutine[Any, Any, T]) -> T:
    async def bounded() -> T:
        async with asyncio.timeout(30):
            return await main

    return asyncio.run(bounded())


def ask(content: Any = "hello", **members: Any) -> Prompt:
    return prompt(content, model=MODEL, **members)


async def ends_at(shape: Shape, parts: list[Any], most: int, **members: Any) -> list[Delta]:
    """What there is of an answer that goes on for ever; its request is closed."""
    async with upstream() as server, opened(shape, server) as engine:
        server.plans.append(streamed(*parts, Hang()))
        deltas = await deltas_of(engine, ask(max_output_tokens=most, **members))
        await server.signal.until(lambda: server.gone == 1)
        assert text_in(await deltas_of(engine, ask()))
        return deltas


@in_each_mode
def test_an_upstream_that_goes_on_past_the_limit_is_ended_there_and_closed(shape: Shape) -> None:
    words = [f" word{at}" for at in range(40)]
    # The ids of what we make up are known: one piece is several tokens there.
    if shape is COMPLETIONS:
        words = [" word"] * 40
    deltas = run(ends_at(shape, [shape.text(each) for each in words], 16))
    assert text_in(deltas) == "".join(words[:16])
    end = finish_of(deltas)
    assert end.reason == "length"
    # Ids are known one by one: there was one too many.
    assert end.output_tokens == (17 if shape is COMPLETIONS else None)
    assert sum(each.tokens for each in deltas if isinstance(each, TextDelta)) == 16


@pytest.mark.parametrize(
    ("text", "left"),
    [
        (" one two  three", " one two  "),
        ("one, two - three", "one, two - "),
        ("x" * 1000, "x" * 2 * LONGEST),
        ("- - -" * 100, ("- - -" * 100)[: 2 * LONGEST]),
    ],
)
def test_a_piece_that_is_too_long_by_itself_is_cut_behind_its_last_word(
    text: str, left: str
) -> None:
    assert text_in(run(ends_at(CHAT, [chunk(content=text)], 2))) == left


@in_each_mode
def test_so_are_the_arguments_of_a_call(shape: Shape) -> None:
    parts = shape.call("get_weather", '{"city":"O', "o o " * 9)[:3]
    deltas = run(ends_at(shape, parts, 6, tools=[WEATHER], tool_choice="required"))
    assert finish_of(deltas).reason == "length"
    assert any(isinstance(each, CallStart) for each in deltas)
    assert not any(isinstance(each, ItemEnd) for each in deltas)
    said = "".join(each.text for each in deltas if isinstance(each, CallDelta))
    # The name is one, what is before the first space another; or as many as they have ids.
    assert said == ('{"city":"O' if shape is COMPLETIONS else '{"city":"Oo o o o o ')


def test_calls_without_end_are_ended_too() -> None:
    calls = [call(at, "{}", id=f"call_{at}", name="get_weather") for at in range(9)]
    deltas = run(ends_at(CHAT, calls, 4, tools=[WEATHER]))
    assert sum(isinstance(each, CallStart) for each in deltas) == 4
    assert finish_of(deltas).reason == "length"


STATED = {
    "usage in each chunk": lambda at: event(
        {
            "choices": [{"index": 0, "delta": {"content": "x"}}],
            "usage": {"completion_tokens": at + 1},
        }
    ),
    "log probabilities": lambda at: event(
        {
            "choices": [
                {
                    "index": 0,
                    "delta": {"content": "x"},
                    "logprobs": {"content": [{"token": "x", "logprob": -1.0}]},
                }
            ]
        }
    ),
}


@pytest.mark.parametrize("stated", STATED.values(), ids=STATED)
def test_what_the_upstream_states_while_it_goes_on_counts(stated: Any) -> None:
    wanted = {"include": ["message.output_text.logprobs"]}
    deltas = run(ends_at(CHAT, [stated(at) for at in range(9)], 5, **wanted))
    assert text_in(deltas) == "xxxxx"
    assert finish_of(deltas).reason == "length"


def test_ids_count_one_by_one() -> None:
    deltas = run(ends_at(COMPLETIONS, [COMPLETIONS.text("a")] * 9, 5))
    assert text_in(deltas) == "aaaaa"


ENDS = {
    "chat": [chunk("stop"), usage(7, 40)],
    "completions": [*COMPLETIONS.stop[:1], usage(7, 40)],
    "responses": [ended(used=(7, 40))],
}


@in_each_mode
@pytest.mark.parametrize(("most", "reason"), [(39, "length"), (40, "stop")])
def test_a_whole_answer_whose_usage_is_beyond_the_limit_has_reached_it(
    shape: Shape, most: int, reason: str
) -> None:
    async def main() -> list[Delta]:
        async with upstream() as server, opened(shape, server) as engine:
            server.plans.append(streamed(shape.text("fine"), *ENDS[shape.name]))
            return await deltas_of(engine, ask(max_output_tokens=most))

    deltas = run(main())
    end = finish_of(deltas)
    assert text_in(deltas) == "fine"
    assert (end.reason, end.input_tokens, end.output_tokens) == (reason, 7, 40)


@pytest.mark.parametrize("used", [-5, 1 << 40])
def test_usage_that_is_no_number_of_tokens_ends_nothing(used: int) -> None:
    async def main() -> list[Delta]:
        async with upstream() as server, opened(CHAT, server) as engine:
            server.plans.append(streamed(chunk(content="fine"), usage(7, used), chunk("stop")))
            return await deltas_of(engine, ask(max_output_tokens=16))

    assert finish_of(run(main())).reason == "stop"


texts = st.text(st.sampled_from('ab1 ,.-"{}[]\n\tüß漢字 🙂') | st.characters(codec="utf-8"))


@given(text=texts, cuts=st.lists(st.integers(1, 5), min_size=1))
def test_text_never_counts_as_more_than_the_tokens_it_is_however_it_is_cut(
    text: str, cuts: list[int]
) -> None:
    least, at = Least(), 0
    for turn in range(len(text)):
        size = cuts[turn % len(cuts)]
        least.add(text[at : at + size])
        at += size
    assert least.tokens <= len(shipped().encode(text))


@given(text=texts, tokens=st.integers(0, 9))
def test_what_is_within_a_number_of_tokens_is_the_beginning_that_counts_as_no_more(
    text: str, tokens: int
) -> None:
    part = within(text, Least().add(text), tokens)
    assert text.startswith(part)
    least = Least()
    least.add(part)
    assert least.tokens <= tokens
