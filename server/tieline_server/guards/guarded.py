"""An engine with guards around it: what goes in is read before anything is said of an answer.

The engine is started at once, so that it queues while a guard is being asked; its acceptance, and
all after it, waits for the verdicts. A hit closes it.
"""

import asyncio
from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from contextlib import aclosing
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from tieline_server.core.deltas import Accepted, Delta, Finish
from tieline_server.core.effects import Prompt
from tieline_server.engines.base import Engine, EngineError, Model
from tieline_server.guards.base import (
    Counts,
    Guard,
    Piece,
    Spent,
    Unchecked,
    Watching,
    refused,
    unchecked,
)
from tieline_server.guards.held import Asked
from tieline_server.guards.output import Gate, Watcher
from tieline_server.guards.sentences import Sentences, Steps, ended, next_of
from tieline_server.guards.verdicts import Verdicts, ask

SAID: Final = "invalid_request"
"""The code of errors whose message is not of our making."""

UNTOLD: Final = "The engine refuses the request; what it says was held back by a content filter."


class Chosen(Struct, frozen=True, kw_only=True):
    """The guards of one model, by what they do."""

    swift: tuple[tuple[Guard, Verdicts], ...] = ()
    """Read input at once."""
    asked: tuple[tuple[Guard, Verdicts], ...] = ()
    """Have to be asked about input."""
    watchers: tuple[Watcher, ...] = ()
    listeners: tuple[Guard, ...] = ()
    """Have to be asked about output."""


class GuardedEngine:
    """``engine`` with the guards of each model: ``by_model`` is by public name.

    A model without guards is sampled as if this class were not there.
    """

    def __init__(
        self, engine: Engine, by_model: Mapping[str, Sequence[Guard]], counts: Counts
    ) -> None:
        self.name = engine.name
        self._engine = engine
        self._counts = counts
        every = {guard.name: guard for guards in by_model.values() for guard in guards}
        verdicts = {
            name: Verdicts(guard, counts)
            for name, guard in every.items()
            if "input" in guard.applies
        }
        self._by_model = {
            model: _chosen(guards, verdicts) for model, guards in by_model.items() if guards
        }

    def models(self) -> Sequence[Model]:
        """The engine's own."""
        return self._engine.models()

    def sample(self, prompt: Prompt) -> AsyncGenerator[Sequence[Delta], None]:
        """Samples one answer (:meth:`tieline_server.engines.base.Engine.sample`)."""
        chosen = self._by_model.get(prompt.settings.model)
        if chosen is None:
            return self._engine.sample(prompt)
        return self._sample(prompt, chosen)

    async def count(self, prompt: Prompt) -> int:
        """The engine's own count, of input that is read first: a warm-up is sampled from later."""
        chosen = self._by_model.get(prompt.settings.model)
        if chosen is not None:
            await _check(chosen.swift, prompt)
            await _check(chosen.asked, prompt)
        return await self._engine.count(prompt)

    async def close(self) -> None:
        """Closes the engine; its guards have an owner of their own."""
        await self._engine.close()

    async def _sample(self, prompt: Prompt, chosen: Chosen) -> Steps:
        spent = Spent()
        try:
            with spent.waiting():
                await _check(chosen.swift, prompt)
            async with aclosing(self._engine.sample(prompt)) as steps:
                first: Sequence[Delta] = ()
                async with aclosing(_first(steps, chosen, prompt, spent)) as before:
                    async for first in before:
                        if first and type(first[0]) is Accepted and first[0].held:
                            yield first
                asked = Asked(prompt.settings.tools.offered, prompt.settings.format.type != "text")
                async with aclosing(self._through(first, steps, chosen, spent, asked)) as answer:
                    async for step in answer:
                        if step and type(step[-1]) is Finish:
                            # The engine has ended before the client hears so.
                            await answer.aclose()
                            await steps.aclose()
                            yield _timed(step, spent)
                            return
                        yield step
        except EngineError as error:
            told = await self._fit_to_tell(error, chosen)
            told.phases = spent.phases
            raise told from None

    async def _fit_to_tell(self, error: EngineError, chosen: Chosen) -> EngineError:
        """The error, without what is flagged of it: an engine may pass on what others said."""
        if error.code != SAID:
            return error
        text = f"{error.message}\n{error.param or ''}"
        untold = EngineError(SAID, UNTOLD)
        for watcher in chosen.watchers:
            watch = watcher.guard.watch(escaped=False)
            watch.read(text, last=True)
            self._counts.checks[watcher.label] += 1
            if watch.flagged is not None:
                self._counts.hits[watcher.label] += 1
                return untold
        try:
            for guard in chosen.listeners:
                label = (guard.name, "output")
                if await ask(guard, [Piece(text)], self._counts, label) is not None:
                    return untold
        except Unchecked:
            return untold
        return error

    def _through(
        self, first: Sequence[Delta], steps: Steps, chosen: Chosen, spent: Spent, asked: Asked
    ) -> Steps:
        """What the guards of output let through."""
        if chosen.watchers:
            answer = _gated(first, steps, Gate(chosen.watchers, self._counts, spent, asked=asked))
        else:
            answer = _joined(first, steps)
        for guard in chosen.listeners:
            answer = Sentences(guard, self._counts, spent, asked=asked).run(answer)
        return answer


def _chosen(guards: Iterable[Guard], verdicts: Mapping[str, Verdicts]) -> Chosen:
    swift: list[tuple[Guard, Verdicts]] = []
    asked: list[tuple[Guard, Verdicts]] = []
    watchers: list[Watcher] = []
    listeners: list[Guard] = []
    for guard in guards:
        watches = isinstance(guard, Watching)
        if guard.name in verdicts:
            (swift if watches else asked).append((guard, verdicts[guard.name]))
        if "output" in guard.applies:
            if isinstance(guard, Watching):
                watchers.append(Watcher(guard, guard.name))
            else:
                listeners.append(guard)
    return Chosen(
        swift=tuple(swift),
        asked=tuple(asked),
        watchers=tuple(watchers),
        listeners=tuple(listeners),
    )


async def _check(guards: Iterable[tuple[Guard, Verdicts]], prompt: Prompt) -> None:
    """Has input read; raises :class:`EngineError` where it may not be sampled from."""
    for guard, verdicts in guards:
        try:
            param = await verdicts.flagged(prompt)
        except Unchecked:
            raise unchecked() from None
        if param is not None:
            raise refused(guard, param)


async def _first(steps: Steps, chosen: Chosen, prompt: Prompt, spent: Spent) -> Steps:
    """The first step of an engine, once it is known that it may be told.

    What it took before that comes first and is not told: it is used, whatever the verdict is.
    """
    if not chosen.asked:
        yield await next_of(steps) or ()
        return
    verdict = asyncio.ensure_future(_check(chosen.asked, prompt))
    step = asyncio.ensure_future(next_of(steps))
    try:
        await asyncio.wait((verdict, step), return_when=asyncio.FIRST_COMPLETED)
        if not verdict.done():
            # A refusal of the engine's needs no verdict.
            if taken := [delta for delta in step.result() or () if type(delta) is Accepted]:
                yield [replace(taken[0], held=True)]
            with spent.waiting():
                await verdict
        verdict.result()
        yield await step or ()
    finally:
        await ended((verdict, step))


async def _joined(first: Sequence[Delta], steps: Steps) -> Steps:
    yield first
    async for step in steps:
        yield step


async def _gated(first: Sequence[Delta], steps: Steps, gate: Gate) -> Steps:
    """What passes the gate, to its first hit."""
    yield gate.take(first)
    if gate.hit:
        return
    async for step in steps:
        if out := gate.take(step):
            yield out
        if gate.hit:
            return


def _timed(step: Sequence[Delta], spent: Spent) -> list[Delta]:
    """The last step, with the time that guards took."""
    *before, end = step
    assert isinstance(end, Finish)
    return [*before, replace(end, phases={**(end.phases or {}), **spent.phases})]
