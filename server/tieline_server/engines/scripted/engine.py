"""The scripted engine: deterministic answers by rules, at a pace, with faults on demand.

It is the test bed, the clock of the transport benchmarks, and a stand-in for a model while a
client is being written. What it counts and how it cuts text is real (:mod:`.bpe`); what it says
is decided by a script (docs/scripted-engine.md) or, without one, by the request itself.
"""

import asyncio
import sys
import time
from collections import OrderedDict, deque
from collections.abc import AsyncGenerator, Callable, Sequence
from pathlib import Path
from typing import Final, NoReturn

from tieline_server.core.create.tools import Tool
from tieline_server.core.deltas import Accepted, Delta, Finish, FinishReason
from tieline_server.core.effects import Prompt
from tieline_server.engines import bpe
from tieline_server.engines.base import EngineError, EngineKind, Model, Opening
from tieline_server.engines.scripted.answers import Author, Context, Plan, Run
from tieline_server.engines.scripted.facts import (
    Head,
    Reader,
    head_of,
    size_of_head,
    size_to_learn,
)
from tieline_server.engines.scripted.pace import STEP, Pacer, Ticker
from tieline_server.engines.scripted.script import Script, Stall
from tieline_server.engines.scripted.script import load as load_script

LARGE: Final = 256 * 1024
"""Bytes that are not tokenised on the loop: a megabyte takes a tenth of a second or more."""

HEADS: Final = 256
"""Different sets of instructions and tools whose size is remembered."""

REMEMBERED: Final = 1024
"""Cancelled samplings that are remembered by name."""


class Answer:
    """Hands out the runs of a plan: a few tokens at a time, up to a budget or a planned break."""

    __slots__ = ("_at", "_breaks", "_most", "_plan", "_run", "_runs", "broken", "ended", "sent")

    def __init__(self, plan: Plan, budget: int | None) -> None:
        self._plan = plan
        self._runs = plan.runs
        break_at = plan.error.after_tokens if plan.error else None
        bounds = [bound for bound in (budget, break_at) if bound is not None]
        self._most = min(bounds) if bounds else sys.maxsize
        self._breaks = self._most == break_at
        self._run: Run | Stall | None = next(self._runs, None)
        self._at = 0
        """How much of the run is out."""
        self.sent = 0
        """Tokens so far."""
        self.ended = False
        """Whether the last delta is out."""
        self.broken = self._breaks and self._most == 0
        """Whether the place of the planned error is reached."""

    def pause(self) -> float | None:
        """Seconds to wait before what comes next, told once; None where nothing is to wait for."""
        run = self._run
        if type(run) is not Stall or self.broken:
            return None
        self._run = next(self._runs, None)
        return run.seconds

    def take(self, tokens: int) -> list[Delta]:
        """The next deltas, of at most so many ``tokens``; up to a pause, a break, or the end."""
        step: list[Delta] = []
        until = self.sent + tokens
        if until > self._most:
            until = self._most
        while not self.broken and (room := 2 * STEP - len(step)):
            run = self._run
            if type(run) is not tuple:
                if run is None:
                    step.append(self._finish("stop"))
                break
            costs = run[0].tokens
            if costs and until - self.sent < room:
                room = until - self.sent
            if not room:
                if self.sent == self._most:
                    step.append(self._finish("length"))
                break
            taken = run[self._at : self._at + room]
            step += taken
            self._at += len(taken)
            if self._at == len(run):
                self._run, self._at = next(self._runs, None), 0
            if costs:
                self.sent += len(taken)
                self.broken = self._breaks and self.sent == self._most
        return step

    def _finish(self, reason: FinishReason) -> Finish:
        self.ended = True
        stated = self._plan.usage
        return Finish(
            reason=reason,
            written_tokens=stated.cache_write_tokens,
            output_tokens=stated.output_tokens,
            reasoning_tokens=stated.reasoning_tokens,
        )


class ScriptedEngine:
    """Answers by ``script``: a file, a script that was read, or None for the defaults.

    Raises :class:`~tieline_server.engines.scripted.script.ScriptError` when the file is wrong.
    ``clock`` tells seconds, monotonic.
    """

    name = "scripted"

    def __init__(
        self,
        script: Path | Script | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._script = load_script(script) if isinstance(script, Path) else script or Script()
        self._vocabulary = bpe.shipped()
        self._author = Author(self._script, self._vocabulary)
        self._ticker = Ticker(clock)
        self._heads: OrderedDict[tuple[str | None, tuple[Tool, ...]], Head] = OrderedDict()
        self._closed = False
        self.started = 0
        """Samplings that have begun."""
        self.running = 0
        """Samplings that have begun and not ended."""
        self.aborted: deque[str] = deque(maxlen=REMEMBERED)
        """Response ids of samplings that were cancelled before their end, the newest last."""

    def models(self) -> Sequence[Model]:
        """The script's models, the default one first."""
        return self._script.models

    async def count(self, prompt: Prompt) -> int:
        """How many tokens instructions, tools and items have."""
        context = await self._context(prompt)
        return context.head.tokens + context.facts.tokens

    async def sample(self, prompt: Prompt) -> AsyncGenerator[Sequence[Delta], None]:
        """Samples one answer (:class:`~tieline_server.engines.base.Engine`)."""
        start = now = self._ticker.clock()
        self.started += 1
        self.running += 1
        ended = False
        try:
            self._check_open()
            context = await self._context(prompt)
            plan = self._author.plan(context)
            if plan.error is not None and plan.error.after_tokens is None:
                await self._refuse(plan)
            yield [_accepted(context, plan)]
            if not prompt.settings.generate:
                ended = True
                yield [Finish()]
                return
            answer = Answer(plan, prompt.max_output_tokens)
            pacer = Pacer(plan.pace, self._ticker, start=start)
            while not (ended or answer.broken):
                while (seconds := answer.pause()) is not None:
                    await pacer.stall(seconds)
                    self._check_open()
                if (due := pacer.due(answer.sent)) is not None:
                    now = await self._ticker.until(due)
                    self._check_open()
                step = answer.take(pacer.allowance(answer.sent, now))
                ended = answer.ended
                yield step
            if answer.broken:
                raise _broken(plan)
        except (GeneratorExit, asyncio.CancelledError):
            if not ended:
                self.aborted.append(prompt.response_id)
            raise
        finally:
            self.running -= 1

    async def close(self) -> None:
        """Ends what runs: every sampling fails with ``engine_unavailable``."""
        self._closed = True
        self._ticker.wake_all()

    def _check_open(self) -> None:
        if self._closed:
            raise EngineError("engine_unavailable", "The engine is shutting down.")

    async def _context(self, prompt: Prompt) -> Context:
        """Reads what is new in the prompt; what is large is counted beside the loop."""
        last_node, settings = prompt.chain, prompt.settings
        key = settings.instructions, settings.tools.offered
        head = self._heads.get(key)
        size = (
            size_to_learn(last_node) if head else size_to_learn(last_node) + size_of_head(settings)
        )
        if size > LARGE:
            context, rendered = await asyncio.to_thread(self._read, prompt, head)
        else:
            context, rendered = self._read(prompt, head)
        prompt.work.render += rendered
        if head is None:
            self._heads[key] = context.head
            if len(self._heads) > HEADS:
                self._heads.popitem(last=False)
        else:
            self._heads.move_to_end(key)
        return context

    def _read(self, prompt: Prompt, head: Head | None) -> tuple[Context, int]:
        """The context and the bytes of text that were counted for it."""
        count = self._vocabulary.count
        reader = Reader(count)
        facts, rendered = reader.facts_of(prompt.chain), reader.rendered
        if head is None:
            head = head_of(prompt.settings, count)
            rendered += head.rendered
        return Context(prompt, facts, head, reader.said), rendered

    async def _refuse(self, plan: Plan) -> NoReturn:
        """Raises the planned refusal after its pauses."""
        if plan.delay:
            await self._ticker.until(self._ticker.clock() + plan.delay)
            self._check_open()
        raise _broken(plan)


class ScriptedKind(EngineKind):
    """Opens the engine with the script that the settings name, or with the usual one."""

    def open(self, opening: Opening) -> ScriptedEngine:
        """Reads the script."""
        return ScriptedEngine(opening.config.script)

    def prepare(self) -> None:
        """Reads the vocabulary."""
        bpe.shipped()


def _accepted(context: Context, plan: Plan) -> Accepted:
    """What is inherited, all links before the newest one, counts as cached."""
    facts, stated = context.facts, plan.usage
    total = context.head.tokens + facts.tokens
    return Accepted(
        input_tokens=total if stated.input_tokens is None else stated.input_tokens,
        cached_tokens=facts.inherited if stated.cached_tokens is None else stated.cached_tokens,
    )


def _broken(plan: Plan) -> EngineError:
    assert plan.error is not None
    return EngineError(plan.error.code, plan.error.message, status=plan.error.status)
