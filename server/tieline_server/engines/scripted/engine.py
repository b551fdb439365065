"""The scripted engine: deterministic answers by rules, at a pace, with faults on demand.

It is the test bed, the clock of the transport benchmarks, and a stand-in for a model while a
client is being written. What it counts and how it cuts text is real (:mod:`.bpe`); what it says
is decided by a script (docs/scripted-engine.md) or, without one, by the request itself.
"""

import asyncio
import time
from collections import OrderedDict, deque
from collections.abc import AsyncGenerator, Callable, Sequence
from pathlib import Path
from typing import Final

from tieline_server.core.deltas import Accepted, Delta, Finish, FinishReason, ItemEnd
from tieline_server.core.effects import Prompt
from tieline_server.core.settings import Settings, Tool
from tieline_server.engines import bpe
from tieline_server.engines.base import EngineError, Model
from tieline_server.engines.scripted.answers import Act, Author, Context, Plan
from tieline_server.engines.scripted.facts import Head, facts_of, head_of, size_to_learn
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
    """Hands out the acts of a plan: a few tokens at a time, up to a budget or a planned break."""

    __slots__ = ("_acts", "_break_at", "_budget", "_next", "_plan", "broken", "ended", "sent")

    def __init__(self, plan: Plan, budget: int | None) -> None:
        self._plan = plan
        self._acts = plan.acts
        self._budget = budget
        self._break_at = plan.error.after_tokens if plan.error else None
        self._next: Act | None = next(self._acts, None)
        self.sent = 0
        """Tokens so far."""
        self.ended = False
        """Whether the last delta is out."""
        self.broken = self._break_at == 0
        """Whether the place of the planned error is reached."""

    def pause(self) -> float | None:
        """Seconds to wait before what comes next, told once; None where nothing is to wait for."""
        act = self._next
        if not isinstance(act, Stall) or self.broken:
            return None
        self._next = next(self._acts, None)
        return act.seconds

    def take(self, tokens: int) -> list[Delta]:
        """The next deltas, of at most so many ``tokens``; up to a pause, a break, or the end."""
        step: list[Delta] = []
        until = self.sent + tokens
        while not self.broken and len(step) < 2 * STEP:
            act = self._next
            if act is None:
                step.append(self._finish("stop"))
                break
            if isinstance(act, Stall):
                break
            cost = 0 if isinstance(act, ItemEnd) else act.tokens
            if cost and self.sent == self._budget:
                step.append(self._finish("length"))
                break
            if cost and self.sent == until:
                break
            step.append(act)
            self.sent += cost
            self._next = next(self._acts, None)
            self.broken = self.sent == self._break_at
        return step

    def _finish(self, reason: FinishReason) -> Finish:
        self.ended = True
        stated = self._plan.usage
        return Finish(
            reason=reason,
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
        start = self._ticker.clock()
        self.started += 1
        self.running += 1
        ended = False
        try:
            self._check_open()
            context = await self._context(prompt)
            plan = self._author.plan(context)
            await self._accept(plan)
            yield [self._accepted(context, plan)]
            if not prompt.settings.generate:
                ended = True
                yield [Finish()]
                return
            answer = Answer(plan, prompt.max_output_tokens)
            pacer = Pacer(plan.pace, self._ticker, start=start)
            while not ended:
                step = await self._step(answer, pacer)
                ended = answer.ended
                if step:
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

    async def _step(self, answer: Answer, pacer: Pacer) -> list[Delta]:
        """Waits until something is due, and takes it."""
        while (seconds := answer.pause()) is not None:
            await pacer.stall(seconds)
            self._check_open()
        if answer.broken:
            return []
        allowed = await pacer.allowance()
        self._check_open()
        before = answer.sent
        step = answer.take(allowed)
        pacer.sent(answer.sent - before)
        return step

    async def _context(self, prompt: Prompt) -> Context:
        """Reads what is new in the prompt; what is large is counted beside the loop."""
        count = self._vocabulary.count
        head = await self._head(prompt)
        if size_to_learn(prompt.tip) > LARGE:
            facts, rendered = await asyncio.to_thread(facts_of, prompt.tip, count)
        else:
            facts, rendered = facts_of(prompt.tip, count)
        prompt.work.render += rendered
        return Context(prompt, facts, head)

    async def _head(self, prompt: Prompt) -> Head:
        settings = prompt.settings
        key = _key(settings)
        head = self._heads.get(key)
        if head is not None:
            self._heads.move_to_end(key)
            return head
        size = len(settings.instructions or "") + len(bytes(settings.tools.echo))
        if size > LARGE:
            head = await asyncio.to_thread(head_of, settings, self._vocabulary.count)
        else:
            head = head_of(settings, self._vocabulary.count)
        return self._remember(prompt, head)

    def _remember(self, prompt: Prompt, head: Head) -> Head:
        prompt.work.render += head.rendered
        self._heads[_key(prompt.settings)] = head
        if len(self._heads) > HEADS:
            self._heads.popitem(last=False)
        return head

    async def _accept(self, plan: Plan) -> None:
        """Raises the planned refusal, where there is one, after its pauses."""
        if plan.error is None or plan.error.after_tokens is not None:
            return
        if plan.delay:
            await self._ticker.until(self._ticker.clock() + plan.delay)
            self._check_open()
        raise _broken(plan)

    def _accepted(self, context: Context, plan: Plan) -> Accepted:
        """What is inherited, all links before the newest one, counts as cached."""
        stated = plan.usage
        inherited, _ = facts_of(context.prompt.tip.base, self._vocabulary.count)
        total = context.head.tokens + context.facts.tokens
        return Accepted(
            input_tokens=total if stated.input_tokens is None else stated.input_tokens,
            cached_tokens=(
                inherited.tokens if stated.cached_tokens is None else stated.cached_tokens
            ),
        )


def _key(settings: Settings) -> tuple[str | None, tuple[Tool, ...]]:
    return settings.instructions, settings.tools.offered


def _broken(plan: Plan) -> EngineError:
    assert plan.error is not None
    return EngineError(plan.error.code, plan.error.message, status=plan.error.status)
