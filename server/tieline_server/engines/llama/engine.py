"""The embedded engine: a real model in this process, by llama.cpp (``xllamacpp``).

A turn renders its new links to token ids, waits for one of the slots, and samples in a thread of
the engine's own. What the thread reports goes to the event loop in one wake for all that has
gathered. A lane goes back to its own slot, whose KV cache has its past (``engines.llama.slots``),
and what was sampled stays the very ids, so that a turn computes what is new in it and no more:
the token that ended the last answer (llama.cpp never computes the last one sampled), what ends a
message, the new items, and what asks for an answer.

``tool_choice`` required, a named tool, or ``allowed_tools`` in that mode always give calls, valid
by their schemas: one where a tool is named or ``parallel_tool_calls`` is false, else up to four.
With ``auto`` the model decides between calls and text, and a model this small mostly picks text;
``text.format`` always gives JSON of its shape (``engines.chat_format.constrain``). Grammars of
custom tools are not enforced.
"""

import asyncio
import logging
import re
import time
from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from threading import Lock
from typing import Final, TypeAlias, TypeVar

from msgspec.structs import replace

from tieline_server.core.deltas import Accepted, Delta, Finish, FinishReason
from tieline_server.core.effects import Prompt
from tieline_server.engines.base import EngineError, EngineKind, Model, Opening
from tieline_server.engines.chat_format import gguf_metadata
from tieline_server.engines.chat_format.chat_template import ChatTemplate
from tieline_server.engines.chat_format.constrain import Rules
from tieline_server.engines.chat_format.json_schema import Bounds
from tieline_server.engines.chat_format.prompt import PromptBuilder
from tieline_server.engines.chat_format.sampled_ids import Sampled
from tieline_server.engines.chat_format.sampled_text import Piece, Reader
from tieline_server.engines.chat_format.tokens import Split
from tieline_server.engines.llama.runtime import (
    Completion,
    End,
    Failure,
    Progress,
    Report,
    Runtime,
    Text,
)
from tieline_server.engines.llama.sampling import completion_of
from tieline_server.engines.llama.slots import Seat, Slots, Want
from tieline_server.models.packaged import ModelError, find

logger: Final = logging.getLogger("tieline.llama")

T = TypeVar("T")

_Seated: TypeAlias = "tuple[_Job, Seat, Future[None]]"

SLOTS: Final = 4
"""Answers that are sampled side by side; further ones wait for a slot."""

MAX_CONTEXT: Final = 8192
"""Tokens of prompt and answer together, unless the model has fewer."""

RENDER_THREADS: Final = 4

RAMBLING: Final = Bounds(string=256, items=8)
"""For the packaged model, which does not stop inside a string or a list that may go on."""

QUANTISATION: Final = re.compile(r"[.\-_](i?q\d\w*|b?f16|f32)$")

FAILED: Final = "The model failed while it was sampling."


class LlamaEngine:
    """Serves the model in the GGUF file at ``path``, or the packaged one.

    Loading blocks for about a second. Raises :class:`~tieline_server.models.packaged.ModelError`,
    one line that says what to do, when the library or the model is missing or cannot be used.
    ``slots`` answers run side by side, each with up to ``context`` tokens. Strings and lists that
    a schema leaves open end at ``longest_string`` and ``longest_list``: 0 for nowhere, and None
    for what the model needs (the packaged one alone does not stop by itself).
    """

    name = "llama"

    def __init__(
        self,
        path: Path | None = None,
        *,
        slots: int = SLOTS,
        context: int = MAX_CONTEXT,
        longest_string: int | None = None,
        longest_list: int | None = None,
    ) -> None:
        bounds = _bounds(longest_string, longest_list, packaged=path is None)
        path = find(path)
        metadata = gguf_metadata.read(path)
        context = min(context, metadata.context_length)
        self._runtime = Runtime(path, slots=slots, context=context)
        try:
            template = ChatTemplate(metadata, self._runtime.tokenise)
        except ModelError:
            self._runtime.close()
            raise
        self._builder = PromptBuilder(template, context=context, rules=Rules(bounds=bounds))
        self._sampling = ThreadPoolExecutor(slots, "tieline-llama")
        self._slots = Slots(slots)
        self._waiting: dict[Want, _Job] = {}
        self._seating = Lock()
        """Held to ask for a slot and to free one: by the loop, and by the threads that sample."""
        self._rendering = ThreadPoolExecutor(RENDER_THREADS, "tieline-render")
        self._jobs: set[_Job] = set()
        self._closed = False
        self._model = Model(
            id=QUANTISATION.sub("", path.stem.lower()), context_window=context, created=0
        )

    def models(self) -> Sequence[Model]:
        """The one model."""
        return (self._model,)

    async def count(self, prompt: Prompt) -> int:
        """How many input tokens the prompt has."""
        return await self._beside(self._builder.count, prompt)

    async def sample(self, prompt: Prompt) -> AsyncGenerator[Sequence[Delta], None]:
        """Samples one answer (:meth:`tieline_server.engines.base.Engine.sample`)."""
        begun = time.perf_counter_ns()
        ready = await self._beside(self._builder.build, prompt)
        completion, render = completion_of(ready, prompt.settings), _microseconds(begun)
        if prompt.settings.generate:
            said = self._builder.template.begin(prompt.chain, ready.constraint)
            answer: _Prefill = _Answer(ready.constraint.reader(), said, render=render)
        else:
            # What the lane's next turn begins with is then in a slot's cache.
            completion = replace(completion, max_tokens=0, grammar=None, logprobs=None)
            answer = _Prefill(render=render)
        job = self._start(prompt, completion)
        try:
            step: list[Delta] = []
            while not job.drained:
                reports = await job.take()
                answer.queue = job.waited
                step += [delta for report in reports for delta in answer.read(report)]
                # The end is told when the slot is free: the lane's next turn is to find it so.
                if step and (job.drained or not answer.finished):
                    yield step
                    step = []
            if not answer.finished:
                raise _unavailable()
        finally:
            self._jobs.discard(job)
            self._withdraw(job)
            await job.stop()

    async def close(self) -> None:
        """Stops what runs, ends the threads and frees the model."""
        self._closed = True
        for job in list(self._jobs):
            job.cancelled = True
            self._withdraw(job)
        await asyncio.to_thread(self._free)

    def _free(self) -> None:
        self._rendering.shutdown(cancel_futures=True)
        self._sampling.shutdown(cancel_futures=True)
        self._runtime.close()

    def _start(self, prompt: Prompt, completion: Completion) -> "_Job":
        if self._closed:
            raise _unavailable()
        want = Want(lane=prompt.session, owner=prompt.owner, ids=completion.ids)
        job = _Job(want, self._runtime, completion, split=self._builder.template.tokens.split)
        self._jobs.add(job)
        with self._seating:
            self._waiting[want] = job
            self._slots.wait(want)
            seated = self._seat()
        self._watch(seated)
        return job

    def _withdraw(self, job: "_Job") -> None:
        """A job that still waits for a slot will never run."""
        with self._seating:
            if self._slots.leave(job.want):
                del self._waiting[job.want]
                job.over()

    def _seat(self) -> list[_Seated]:
        """The next job gets a free slot, as long as there are both."""
        seated: list[_Seated] = []
        while (next_in_line := self._slots.seat()) is not None:
            want, seat = next_in_line
            job = self._waiting.pop(want)
            seated.append((job, seat, self._sampling.submit(job.run, seat)))
        return seated

    def _watch(self, seated: Iterable[_Seated]) -> None:
        """Not while seats are given: of a job that is over already, this thread hears at once."""
        for job, seat, future in seated:
            future.add_done_callback(partial(self._leave, job, seat))

    def _leave(self, job: "_Job", seat: Seat, _: "Future[None]") -> None:
        with self._seating:
            self._slots.free(seat.number, job.kept)
            seated = [] if self._closed else self._seat()
        self._watch(seated)
        job.over()

    async def _beside(self, render: Callable[[Prompt], T], prompt: Prompt) -> T:
        """``render(prompt)``, in a thread where it may take long."""
        if self._closed:
            raise _unavailable()
        builder = self._builder
        if builder.template.quick and not builder.heavy(prompt):
            return render(prompt)
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._rendering, render, prompt)


class LlamaKind(EngineKind):
    """Opens the one model that the settings name, or the packaged one."""

    def open(self, opening: Opening) -> LlamaEngine:
        """Loads the model."""
        config = opening.config
        return LlamaEngine(
            config.model, longest_string=config.longest_string, longest_list=config.longest_list
        )


class _Job:
    """One answer on its way from the thread that samples it to the loop that asked."""

    def __init__(
        self, want: Want, runtime: Runtime, completion: Completion, *, split: Split
    ) -> None:
        self.want = want
        self.cancelled = False
        """Set by the loop; the thread sees it at its next report."""
        self.waited = 0
        """Microseconds until the thread began."""
        self.kept: list[int] = []
        """What its slot's cache holds of it."""
        self.drained = False
        """Whether the thread is done and all that it said was taken."""
        self._runtime = runtime
        self._completion = completion
        self._split = split
        self._loop = asyncio.get_running_loop()
        self._reports: deque[Report] = deque()
        self._woken = False
        self._ready = asyncio.Event()
        self._over = asyncio.Event()
        self._asked = time.perf_counter_ns()
        self._sampled = 0
        self._newest: tuple[int, ...] = ()

    async def take(self) -> list[Report]:
        """What the thread has said since the last time; waits until there is something."""
        await self._ready.wait()
        self._ready.clear()
        # Before the queue is emptied: what is said after this line wakes again.
        self._woken = False
        self.drained = self._over.is_set()
        return [self._reports.popleft() for _ in range(len(self._reports))]

    async def stop(self) -> None:
        """Cancels what still runs; returns when its slot is free again."""
        self.cancelled = True
        await self._over.wait()

    def over(self) -> None:
        """Nothing more will be said; called from any thread."""
        self._wake(self._over, self._ready)

    # In the thread.

    def run(self, seat: Seat) -> None:
        """Samples in this slot."""
        if self.cancelled:
            return
        self.waited = _microseconds(self._asked)
        completion = replace(self._completion, slot=seat.number, fresh=seat.fresh)
        try:
            self._runtime.complete(completion, self._report)
        except Exception as error:
            logger.exception("llama.cpp failed")
            self._report(Failure(type(error).__name__))

    def _report(self, report: Report) -> bool:
        if isinstance(report, Progress):
            self.kept = self._completion.ids[: report.done]
        elif isinstance(report, Text):
            report = self._whole(report)
        self._reports.append(report)
        if not self._woken:
            self._woken = True
            self._wake(self._ready)
        return self.cancelled

    def _whole(self, report: Text) -> Text:
        """The same with all its ids, and keeps book of what is in the cache."""
        count, self._sampled = report.sampled - self._sampled, report.sampled
        if count != 1 and report.ids:
            ids = self._split(report.text, count, report.ids[-1])
            report = replace(report, ids=None if ids is None else tuple(ids))
        if report.ids:
            # The newest token was sampled, not computed.
            self.kept += [*self._newest, *report.ids[:-1]]
            self._newest = report.ids[-1:]
        return report

    def _wake(self, *wakened: asyncio.Event) -> None:
        try:
            for event in wakened:
                self._loop.call_soon_threadsafe(event.set)
        except RuntimeError:
            # The loop is closed: no turn waits any more.
            self.cancelled = True


class _Prefill:
    """Turns the reports of a prompt that is only computed into deltas: nothing is said."""

    def __init__(self, *, render: int) -> None:
        self._accepted = False
        self._render = render
        self.queue = 0
        self.finished = False

    def read(self, report: Report) -> list[Delta]:
        """The deltas of one report; raises :class:`EngineError` for a failure."""
        if isinstance(report, Text):
            return self._text(report)
        if isinstance(report, Progress):
            # The first one, when the prompt has a slot and is compared with what the slot keeps.
            if self._accepted:
                return []
            self._accepted = True
            return [Accepted(input_tokens=report.total, cached_tokens=report.cached)]
        if isinstance(report, End):
            self.finished = True
            return self._end(report)
        logger.error("llama.cpp failed: %s", report.kind)
        if report.kind == "exceed_context_size_error":
            raise EngineError("context_length_exceeded", "The input is too long for the model.")
        raise EngineError("server_error", FAILED)

    def _text(self, _report: Text) -> list[Delta]:
        # The library samples a first token whatever it is asked for; it is in no cache yet.
        return []

    def _end(self, end: End) -> list[Delta]:
        return [self._finish(end, "stop", 0)]

    def _finish(self, end: End, reason: FinishReason, output_tokens: int) -> Finish:
        return Finish(
            reason=reason,
            input_tokens=end.input_tokens,
            cached_tokens=end.input_tokens - end.prefilled_tokens,
            output_tokens=output_tokens,
            phases={
                "render": self._render,
                "queue": self.queue,
                "prefill": round(end.prefill_ms * 1000),
                "decode": round(end.decode_ms * 1000),
            },
        )


class _Answer(_Prefill):
    """Turns the reports of one answer into deltas."""

    def __init__(self, reader: Reader, said: Sampled, *, render: int) -> None:
        super().__init__(render=render)
        self._reader = reader
        self._said = said
        self._sampled = 0

    def _text(self, report: Text) -> list[Delta]:
        piece = Piece(report.text, report.sampled - self._sampled, report.logprobs)
        self._sampled = report.sampled
        deltas = self._reader.feed(piece) if report.text else []
        self._said.add(report.ids, deltas)
        return deltas

    def _end(self, end: End) -> list[Delta]:
        rest, reason = self._reader.end("stop" if end.reason == "stop" else "length")
        self._said.add((), rest)
        return [*rest, self._finish(end, reason, end.output_tokens)]


def _bounds(string: int | None, items: int | None, *, packaged: bool) -> Bounds:
    """The bounds of the settings, else of the model."""
    needed = RAMBLING if packaged else Bounds()
    return Bounds(
        string=needed.string if string is None else string or None,
        items=needed.items if items is None else items or None,
    )


def _microseconds(since: int) -> int:
    return (time.perf_counter_ns() - since) // 1000


def _unavailable() -> EngineError:
    return EngineError("engine_unavailable", "The engine is shutting down.")
