"""What every engine promises (``engines/base.py``), as tests that each engine's test file runs.

An engine's test file subclasses :class:`EngineContract` and says how to make the engine.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing, asynccontextmanager
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from tieline.items import Item, Opened, decode_input
from tieline.requests import Create
from tieline_server.core.create.settings import SettingsCache, settle
from tieline_server.core.deltas import (
    Accepted,
    CallDelta,
    CallStart,
    Delta,
    Finish,
    ItemEnd,
    TextDelta,
)
from tieline_server.core.effects import Prompt
from tieline_server.core.history.chain import ChainNode
from tieline_server.core.values import Work
from tieline_server.engines.base import Engine

WEATHER: dict[str, Any] = {
    "type": "function",
    "name": "get_weather",
    "description": "The weather in a city.",
    "parameters": {
        "type": "object",
        "properties": {
            "city": {"type": "string", "maxLength": 12},
            "unit": {"type": "string", "enum": ["celsius", "fahrenheit"]},
        },
        "required": ["city", "unit"],
        "additionalProperties": False,
    },
    "strict": True,
}
"""A function tool whose arguments have a schema."""


def link(content: Any, parent: ChainNode | None = None, *, output: bool = False) -> ChainNode:
    """A link of history: ``content`` is text or items; ``output`` belongs to the parent's turn."""
    turn = 1 if parent is None else parent.turn + (0 if output else 1)
    items: Sequence[Item] = decode_input(msgspec.json.encode(content))
    return ChainNode(parent, tuple(items), turn=turn)


def prompt(
    content: Any = "hello",
    *,
    after: ChainNode | None = None,
    model: str = "scripted",
    work: Work | None = None,
    budget: int | None = None,
    response_id: str = "resp_1",
    recall: SettingsCache | None = None,
    tip: ChainNode | None = None,
    **members: Any,
) -> Prompt:
    """What an engine is given for a create with these ``members`` and ``content`` as input.

    ``budget`` is what is left of max_output_tokens, where that is less than the member says.
    """
    work = work or Work()
    create = msgspec.json.decode(
        msgspec.json.encode({"type": "response.create", "input": "", **members}), type=Create
    )
    settings = settle(create, recall or SettingsCache(work), model=model)
    return Prompt(
        response_id=response_id,
        model=model,
        chain=tip or link(content, after),
        settings=settings,
        session="line/",
        owner="local",
        max_output_tokens=settings.max_output_tokens if budget is None else budget,
        work=work,
    )


async def steps_of(engine: Engine, given: Prompt) -> list[list[Delta]]:
    """All steps of one answer."""
    return [list(step) async for step in engine.sample(given)]


async def deltas_of(engine: Engine, given: Prompt) -> list[Delta]:
    """All deltas of one answer, in order."""
    return [delta for step in await steps_of(engine, given) for delta in step]


def tokens_in(deltas: Sequence[Delta]) -> int:
    """How many tokens the deltas stand for."""
    return sum(
        0 if isinstance(delta, Accepted | Finish | ItemEnd) else delta.tokens for delta in deltas
    )


def text_in(deltas: Sequence[Delta]) -> str:
    """The visible text."""
    return "".join(delta.text for delta in deltas if isinstance(delta, TextDelta))


def finish_of(deltas: Sequence[Delta]) -> Finish:
    """How it ended."""
    last = deltas[-1]
    assert isinstance(last, Finish)
    return last


class EngineContract:
    """Subclass it, override :meth:`make`, and where need be the prompts."""

    model = "scripted"

    def make(self) -> Engine:
        """A new engine, on the running loop."""
        raise NotImplementedError

    def ask(self, content: Any = "Say hello.", **members: Any) -> Prompt:
        """A prompt that any model answers with a few words."""
        return prompt(content, model=self.model, **{"max_output_tokens": 24, **members})

    def ask_long(self, **members: Any) -> Prompt:
        """A prompt whose answer takes far more than one step."""
        return prompt("Tell me a long story. " * 50, model=self.model, **members)

    @asynccontextmanager
    async def engine(self) -> AsyncIterator[Engine]:
        """An engine that is closed at the end."""
        engine = self.make()
        try:
            yield engine
        finally:
            await engine.close()

    def test_it_offers_models_with_different_names(self) -> None:
        async def main() -> list[str]:
            async with self.engine() as engine:
                return [model.id for model in engine.models()]

        names = asyncio.run(main())
        assert self.model in names
        assert len(set(names)) == len(names)

    def test_it_accepts_first_and_finishes_last_and_does_each_once(self) -> None:
        async def main() -> list[list[Delta]]:
            async with self.engine() as engine:
                return await steps_of(engine, self.ask())

        steps = asyncio.run(main())
        kinds = [type(delta) for step in steps for delta in step]
        assert kinds[0] is Accepted
        assert kinds[-1] is Finish
        assert kinds.count(Accepted) == kinds.count(Finish) == 1
        assert all(steps)

    def test_what_it_says_has_text_and_tokens(self) -> None:
        async def main() -> list[Delta]:
            async with self.engine() as engine:
                return await deltas_of(engine, self.ask())

        deltas = asyncio.run(main())
        assert text_in(deltas)
        assert 1 <= tokens_in(deltas) <= 24

    def test_it_counts_without_sampling_what_it_says_when_it_accepts(self) -> None:
        async def main() -> tuple[int, Delta]:
            async with self.engine() as engine:
                counted = await engine.count(self.ask(instructions="Be brief."))
                deltas = await deltas_of(engine, self.ask(instructions="Be brief."))
                return counted, deltas[0]

        counted, accepted = asyncio.run(main())
        assert isinstance(accepted, Accepted)
        assert accepted.input_tokens == counted > 0

    def test_a_budget_cuts_the_answer(self) -> None:
        async def main() -> list[Delta]:
            async with self.engine() as engine:
                return await deltas_of(engine, self.ask_long(max_output_tokens=3))

        deltas = asyncio.run(main())
        assert finish_of(deltas).reason == "length"
        assert tokens_in(deltas) == 3

    def test_generate_false_says_how_long_the_prompt_is_and_nothing_else(self) -> None:
        async def main() -> list[Delta]:
            async with self.engine() as engine:
                return await deltas_of(engine, self.ask(generate=False))

        deltas = asyncio.run(main())
        assert [type(delta) for delta in deltas] == [Accepted, Finish]
        assert isinstance(deltas[0], Accepted)
        assert deltas[0].input_tokens
        assert finish_of(deltas).reason == "stop"
        assert not finish_of(deltas).output_tokens

    def test_a_required_tool_is_called_with_arguments_that_fit_its_schema(self) -> None:
        async def main() -> list[Delta]:
            async with self.engine() as engine:
                given = self.ask(
                    "Weather in Oslo?",
                    tools=[WEATHER],
                    tool_choice="required",
                    parallel_tool_calls=False,
                    max_output_tokens=128,
                )
                return await deltas_of(engine, given)

        deltas = asyncio.run(main())
        calls = [delta for delta in deltas if isinstance(delta, CallStart)]
        assert [(call.kind, call.name) for call in calls] == [("function_call", "get_weather")]
        text = "".join(delta.text for delta in deltas if isinstance(delta, CallDelta))
        arguments = json.loads(text)
        assert arguments.keys() == {"city", "unit"}
        assert arguments["unit"] in ("celsius", "fahrenheit")
        assert len(arguments["city"]) <= 12
        assert finish_of(deltas).reason == "stop"

    def test_closing_it_after_any_step_stops_it_and_it_can_be_asked_again(self) -> None:
        async def main() -> str:
            async with self.engine() as engine:
                for wanted in (1, 2, 3):
                    sampling = engine.sample(self.ask_long())
                    for _ in range(wanted):
                        await anext(sampling)
                    await asyncio.wait_for(sampling.aclose(), 10)
                    with pytest.raises(StopAsyncIteration):
                        await anext(sampling)
                return text_in(await deltas_of(engine, self.ask()))

        assert asyncio.run(main())

    def test_cancelling_who_reads_stops_it_and_it_can_be_asked_again(self) -> None:
        async def main() -> str:
            async with self.engine() as engine:
                begun = asyncio.Event()

                async def read() -> None:
                    async with aclosing(engine.sample(self.ask_long())) as sampling:
                        async for _ in sampling:
                            begun.set()
                            await asyncio.sleep(0)

                reader = asyncio.create_task(read())
                await begun.wait()
                reader.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await asyncio.wait_for(reader, 10)
                return text_in(await deltas_of(engine, self.ask()))

        assert asyncio.run(main())

    def test_a_folded_history_is_read_as_what_it_holds_and_nothing_else(self) -> None:
        held = link([{"role": "user", "content": "We use port 9."}])
        sealed = decode_input(b'[{"type":"compaction","encrypted_content":"abcdefghijklmnop"}]')[0]
        stands = replace(sealed, opened=Opened(items=held.items, whole=True))
        long = link("A long story. " * 20)
        question = {"role": "user", "content": "Which port?"}
        plain, folded = link([question], held), link([question], ChainNode(long, (stands,), turn=2))
        there = link([question], ChainNode(None, (stands,), turn=1))

        async def main() -> list[int]:
            async with self.engine() as engine:
                accepted = await deltas_of(engine, self.ask(tip=folded))
                assert isinstance(accepted[0], Accepted)
                counts = [await engine.count(self.ask(tip=tip)) for tip in (plain, folded, there)]
                return [accepted[0].input_tokens, *counts]

        assert len(set(asyncio.run(main()))) == 1

    def test_several_answers_side_by_side_are_each_whole(self) -> None:
        async def main() -> list[list[Delta]]:
            async with self.engine() as engine:
                asked = (self.ask(response_id=f"resp_{at}") for at in range(3))
                return await asyncio.gather(*(deltas_of(engine, each) for each in asked))

        for deltas in asyncio.run(main()):
            assert type(deltas[0]) is Accepted
            assert type(deltas[-1]) is Finish
            assert text_in(deltas)
