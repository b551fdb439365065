"""The embedded engine as the engine of a conformance case: a real model, on a leash.

A model this small rambles: an answer of text ends by itself after a few tokens, or, where the
script would take its time, after so many that the case can do what it does meanwhile.
"""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Final, Protocol

from msgspec.structs import replace

from tests.support.signal import Signal
from tieline_server.core.create.settings import Settings
from tieline_server.core.deltas import Delta, Finish
from tieline_server.core.effects import Prompt
from tieline_server.engines.base import Engine, Model

BRIEF: Final = 8
LONG: Final = 150
"""Tokens of an answer that nobody has bounded, and of one that is to take its time."""
FORCED: Final = 300
"""Tokens of a call or of JSON, which cannot end before they are whole."""


class Watcher(Protocol):
    """What a case looks at (``tests.conformance.server.WatchedEngine``)."""

    said: int
    samplings: int
    pause_after: int | None
    go: asyncio.Event

    def models(self) -> Sequence[Model]:
        """The models that the case names."""
        ...


class BriefModel:
    """``model`` under the names of a case's script, telling ``watcher`` what it does."""

    name = "llama"

    def __init__(
        self, model: Engine, watcher: Watcher, signal: Signal, *, slow: bool = False
    ) -> None:
        self._model = model
        self._brief = LONG if slow else BRIEF
        self._watcher = watcher
        self._signal = signal

    def models(self) -> Sequence[Model]:
        """As the script has them."""
        return self._watcher.models()

    async def count(self, prompt: Prompt) -> int:
        """As the model counts."""
        return await self._model.count(prompt)

    async def sample(self, prompt: Prompt) -> AsyncGenerator[Sequence[Delta], None]:
        """As the model answers, briefly."""
        watcher, given, leash = self._watcher, prompt.max_output_tokens, self._leash(prompt)
        limit = leash if given is None else min(given, leash)
        watcher.samplings += 1
        try:
            asked = replace(prompt, max_output_tokens=limit, settings=_certain(prompt.settings))
            async with aclosing(self._model.sample(asked)) as steps:
                async for step in steps:
                    watcher.said += sum(getattr(delta, "tokens", 0) for delta in step)
                    self._signal.notify()
                    yield [_ended(each) if limit != given else each for each in step]
                    if watcher.pause_after is not None and watcher.said >= watcher.pause_after:
                        await watcher.go.wait()
        finally:
            self._signal.notify()

    async def close(self) -> None:
        """The model outlives the case."""

    def _leash(self, prompt: Prompt) -> int:
        settings = prompt.settings
        forced = settings.format.type != "text" or settings.tool_choice.mode == "required"
        return FORCED if forced else self._brief


def _certain(settings: Settings) -> Settings:
    """Where a case leaves it open, the likeliest token: else an answer may be one word long."""
    return settings if settings.temperature is not None else replace(settings, temperature=0.0)


def _ended(delta: Delta) -> Delta:
    """An answer that the leash cut has ended by itself."""
    if isinstance(delta, Finish) and delta.reason == "length":
        return replace(delta, reason="stop")
    return delta
