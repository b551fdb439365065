"""Tools at work: side by side, and those with side effects at most once a call."""

import asyncio
import inspect
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import msgspec
from msgspec import Struct

from tieline.errors import TielineError
from tieline_client.agent.outcomes import TEXTS, Outcome, span
from tieline_client.agent.tools import ArgumentsError, Tool
from tieline_client.aio import Call

Approve = Callable[[Call, bool], object]
"""Whether a call may run; the second value says that it repeats one that may have run."""


class Execution(Struct, frozen=True):
    """A call, how it came out, and what the model is told."""

    call: Call
    outcome: Outcome
    output: str


class RepeatedCall(TielineError):
    """A model asks again, under a new id, for a side effect of a turn that was lost.

    Whether that is one effect or two, only the caller knows: ``call`` was not run, ``of`` is the
    earlier one, and ``ran`` says whether that one did.
    """

    def __init__(self, call: Call, of: Call, *, ran: bool) -> None:
        state = "ran" if ran else "was seen"
        super().__init__(f"{call.name} was asked for again after a lost turn in which it {state}")
        self.call = call
        self.of = of
        self.ran = ran


class Executions:
    """Runs calls for an agent and remembers those that must not happen twice.

    A call is what its ``call_id`` names. One that comes again, because a response was resumed or
    replayed, gets the output of the first time. A call under another id that is otherwise equal
    to one of a lost turn may be the same wish, sampled anew: it is never run unasked.
    """

    def __init__(
        self,
        tools: Sequence[Tool],
        *,
        concurrency: int,
        approve: Approve | None,
        on_output: Callable[[Call, str], object] | None,
    ) -> None:
        self._tools = {tool.name: tool for tool in tools}
        self._concurrency = concurrency
        self._approve = approve
        self._on_output = on_output
        self._kept: dict[str, Execution] = {}
        """call_id -> what became of a side effect."""
        self._turn: dict[str, Execution] = {}
        """call_id -> what became of a call of this turn."""
        self._doubtful: list[Call] = []
        """Side effects of turns that were lost."""
        self._tasks: set[asyncio.Task[Execution]] = set()
        self._stopping = False

    async def run(self, calls: Sequence[Call], executor: ThreadPoolExecutor) -> list[Execution]:
        """Runs the calls side by side; the results are in their order.

        Raises :class:`RepeatedCall` before any of them runs, and what a hook raises.
        """
        self._turn = {}
        approved = [await self._approval(call) for call in calls]
        places = asyncio.Semaphore(self._concurrency)
        tasks = [
            asyncio.create_task(self._one(call, places, executor, approved=yes))
            for call, yes in zip(calls, approved, strict=True)
        ]
        self._tasks.update(tasks)
        try:
            return list(await asyncio.gather(*tasks))
        finally:
            # Ours to end: after a cancel of the run, or a hook that raised.
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
            self._tasks.difference_update(tasks)
            self._stopping = False

    def stop(self) -> None:
        """Stops what runs now; the model is told of each call whether it may have had effects."""
        self._stopping = bool(self._tasks)
        for task in self._tasks:
            task.cancel()

    def outcome(self, call: Call) -> Execution:
        """What became of a call whose run was given up."""
        kept = self._turn.get(call.call_id) or self._kept.get(call.call_id)
        return kept or Execution(call, Outcome.NOT_STARTED, TEXTS[Outcome.NOT_STARTED])

    def lost(self, calls: Sequence[Call]) -> None:
        """The turn of these calls was lost: the model may ask for the same again."""
        self._doubtful += [call for call in calls if self._has_effects(call)]

    def settled(self) -> None:
        """The model has gone on knowingly: what it asks for from here on is new."""
        self._doubtful.clear()

    def _has_effects(self, call: Call) -> bool:
        tool = self._tools.get(call.name)
        return tool is not None and tool.side_effect

    async def _approval(self, call: Call) -> bool:
        if not self._has_effects(call) or call.call_id in self._kept:
            return True
        of = next((each for each in self._doubtful if _same(each, call)), None)
        if self._approve is not None:
            return bool(await _answer(self._approve(call, of is not None)))
        if of is not None:
            raise RepeatedCall(call, of, ran=of.call_id in self._kept)
        return True

    async def _one(
        self,
        call: Call,
        places: asyncio.Semaphore,
        executor: ThreadPoolExecutor,
        *,
        approved: bool,
    ) -> Execution:
        if (kept := self._kept.get(call.call_id)) is not None:
            return kept
        started = False
        with span(call) as tell:
            try:
                async with places:
                    started = approved
                    done = await self._work(call, executor, approved=approved)
            except asyncio.CancelledError:
                outcome = Outcome.INTERRUPTED if started else Outcome.NOT_STARTED
                done = Execution(call, outcome, TEXTS[outcome])
                if self._given_up():
                    self._keep(done)
                    tell(outcome)
                    raise
            self._keep(done)
            tell(done.outcome)
        if self._on_output is not None:
            await _answer(self._on_output(call, done.output))
        return done

    async def _work(self, call: Call, executor: ThreadPoolExecutor, *, approved: bool) -> Execution:
        if not approved:
            return Execution(call, Outcome.DENIED, TEXTS[Outcome.DENIED])
        tool = self._tools.get(call.name)
        try:
            if tool is None or call.type != "function_call" or call.namespace is not None:
                raise ArgumentsError(f"there is no tool {call.name!r}")
            output = await tool.call(call.arguments, executor=executor)
        except ArgumentsError as error:
            return Execution(call, Outcome.FAILED, f"Error: {error}")
        except Exception as error:
            # One tool's failure is news for the model, and no reason to lose the others.
            said = f"Error: {call.name} raised {type(error).__name__}: {error}"
            return Execution(call, Outcome.FAILED, said)
        return Execution(call, Outcome.COMPLETED, output)

    def _keep(self, done: Execution) -> None:
        self._turn[done.call.call_id] = done
        if self._has_effects(done.call) or done.outcome is Outcome.INTERRUPTED:
            self._kept[done.call.call_id] = done

    def _given_up(self) -> bool:
        """Whether the run itself was cancelled, and not this tool, by us or by itself."""
        task = asyncio.current_task()
        return task is not None and task.cancelling() > 0 and not self._stopping


async def _answer(said: object) -> Any:
    return await said if inspect.isawaitable(said) else said


def _same(one: Call, other: Call) -> bool:
    """Whether two calls ask for the same; equal JSON is the same arguments."""
    if (one.name, one.namespace, one.type) != (other.name, other.namespace, other.type):
        return False
    if one.arguments == other.arguments:
        return True
    try:
        return bool(msgspec.json.decode(one.arguments) == msgspec.json.decode(other.arguments))
    except (msgspec.MsgspecError, RecursionError):
        return False
