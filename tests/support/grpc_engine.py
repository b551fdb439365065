"""An engine whose answers are async generators of the test, and that notes how each one ended."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence

from tests.support.signal import Signal
from tieline.items import Message, text_of
from tieline_server.core.deltas import Accepted, CallDelta, CallStart, Delta, Finish, TextDelta
from tieline_server.core.effects import Prompt
from tieline_server.engines.base import Model

Step = Sequence[Delta]
Answer = Callable[[Prompt], AsyncGenerator[Step, None]]

MODEL = "tiny"
INPUT_TOKENS = 7


class TinyEngine:
    """Samples what ``answer`` yields."""

    name = "tiny"

    def __init__(self, answer: Answer, signal: Signal) -> None:
        self.answer = answer
        self.started = 0
        self.ended = 0
        """Samplings that are over, cancelled ones included."""
        self.cancelled = 0
        self.signal = signal

    def models(self) -> Sequence[Model]:
        """Two models, so that a key can be kept from one."""
        return (Model(id=MODEL), Model(id="other"))

    async def sample(self, prompt: Prompt) -> AsyncGenerator[Step, None]:
        """The test's answer; a generator that is closed early counts as cancelled."""
        if not prompt.settings.generate:
            yield [Accepted(input_tokens=INPUT_TOKENS), Finish(output_tokens=0)]
            return
        self.started += 1
        self.signal.notify()
        answer = self.answer(prompt)
        finished = False
        try:
            async for step in answer:
                yield step
            finished = True
        finally:
            self.ended += 1
            self.cancelled += not finished
            await answer.aclose()
            self.signal.notify()

    async def count(self, prompt: Prompt) -> int:
        """Always the same."""
        return INPUT_TOKENS

    async def close(self) -> None:
        """Nothing to free."""


def user_text(prompt: Prompt) -> str:
    """The text of the newest item, which must be a message."""
    view = prompt.chain.items[-1].view
    assert isinstance(view, Message)
    return text_of(view.content)


async def hello(prompt: Prompt) -> AsyncGenerator[Step, None]:
    """Two deltas of text."""
    yield [Accepted(input_tokens=INPUT_TOKENS)]
    yield [TextDelta("Hello, ")]
    yield [TextDelta("world.")]
    yield [Finish()]


def text(pieces: Sequence[str]) -> Answer:
    """An answer of these pieces of text, a step each."""

    async def answer(prompt: Prompt) -> AsyncGenerator[Step, None]:
        yield [Accepted(input_tokens=INPUT_TOKENS)]
        for piece in pieces:
            yield [TextDelta(piece)]
            await asyncio.sleep(0)
        yield [Finish()]

    return answer


def gated(gate: asyncio.Event, *, accept: bool = True) -> Answer:
    """An answer that says nothing until the gate is open; ``accept`` comes before it."""

    async def answer(prompt: Prompt) -> AsyncGenerator[Step, None]:
        if accept:
            yield [Accepted(input_tokens=INPUT_TOKENS)]
        await gate.wait()
        yield [] if accept else [Accepted(input_tokens=INPUT_TOKENS)]
        yield [TextDelta("late")]
        yield [Finish()]

    return answer


async def endless(prompt: Prompt) -> AsyncGenerator[Step, None]:
    """A kilobyte of text a step, for ever."""
    yield [Accepted(input_tokens=INPUT_TOKENS)]
    while True:
        yield [TextDelta("x" * 1024)]
        await asyncio.sleep(0)


async def tool_call(prompt: Prompt) -> AsyncGenerator[Step, None]:
    """A call of the tool ``look`` until its output is there, then text."""
    yield [Accepted(input_tokens=INPUT_TOKENS)]
    last = prompt.chain.items[-1]
    if last.answers is not None:
        yield [TextDelta("seen")]
    else:
        yield [CallStart(kind="function_call", name="look")]
        yield [CallDelta("{}")]
    yield [Finish()]
