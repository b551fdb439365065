"""An answer on its way out, past a guard that has to be asked: whole sentences are held back.

While a sentence is being read the engine is listened to, so what gathers meanwhile is asked about
together. A sentence without an end is cut after :data:`LONGEST` characters.
"""

import asyncio
import re
from collections import deque
from collections.abc import AsyncGenerator, Sequence
from contextlib import nullcontext
from typing import Any, Final

from msgspec.structs import replace

from tieline_server.core.deltas import Accepted, CallDelta, CallStart, Delta, Finish, TextDelta
from tieline_server.guards.base import Counts, Guard, Piece, Spent, Unchecked, unchecked
from tieline_server.guards.escapes import Unescaper, unescaped
from tieline_server.guards.held import JSON, TEXTS, Asked, Held, Text, bare_mark, counts_of
from tieline_server.guards.verdicts import ask

LONGEST: Final = 400
"""Characters of a sentence that has no end."""

MOST: Final = 8000
"""Characters that wait for a verdict; then the engine waits as well."""

_END: Final = re.compile(
    r"[.!?\u2026][\"'\u201d\u2019)\]]*\s|[\u3002\uff01\uff1f]|\n"  # and those of East Asia
)

Steps = AsyncGenerator[Sequence[Delta], None]


class _Part:
    """A part that grows, and how far it has been read."""

    __slots__ = ("escaped", "held", "kind", "last", "read", "text")

    def __init__(self, kind: type, *, escaped: bool) -> None:
        self.kind = kind
        self.escaped = escaped
        self.held = Held()
        self.text = ""
        """What has come and was not read yet."""
        self.read = 0
        self.last = False
        """Whether nothing more will come."""

    def due(self) -> str:
        """What is to be read next; nothing where a sentence has no end yet."""
        if self.last:
            return self.text
        end = max((match.end() for match in _END.finditer(self.text)), default=0)
        if not end and len(self.text) >= LONGEST:
            end = self.text.rfind(" ") + 1 or len(self.text)
        if self.escaped:
            # Sentences are of what is meant, and an escape is never cut.
            end = 0 if len(self.text) < LONGEST else _whole(self.text)
        return self.text[:end]


def _whole(text: str) -> int:
    """How much of JSON text can be read by itself: all but an escape that is not whole yet."""
    unescaper = Unescaper()
    unescaper.feed(text)
    return unescaper.at


class Sentences:
    """Lets through what ``guard`` lets through, and closes the engine at a hit."""

    def __init__(
        self,
        guard: Guard,
        counts: Counts,
        spent: Spent,
        *,
        asked: Asked = Asked(),  # noqa: B008  # it is frozen
    ) -> None:
        self._guard = guard
        self._client = asked
        self._counts = counts
        self._spent = spent
        self._label = (guard.name, "output")
        self._queue: deque[_Part | Delta] = deque()
        """Parts, and what stands between them."""
        self._open: _Part | None = None
        self._escaped = False
        self._waiting = 0
        """Characters that have not left."""
        self._asked = ""
        self._finish: Finish | None = None
        self._over = False
        """Whether the engine says nothing more."""
        self._out: list[Delta] = []
        self._verdict: asyncio.Task[int | None] | None = None
        self._step: asyncio.Task[Sequence[Delta] | None] | None = None

    async def run(self, steps: Steps) -> AsyncGenerator[list[Delta], None]:
        """What may leave, in order; raises :class:`EngineError` without a verdict."""
        try:
            while True:
                self._advance()
                if self._out:
                    out, self._out = self._out, []
                    yield out
                    if type(out[-1]) is Finish:
                        return
                if self._step is None and self._verdict is None:
                    if self._over:
                        return
                    # Nothing else to wait for: without a task, which costs as much as a token.
                    self._hear(await anext(steps, None))
                    continue
                if self._step is None and not self._over and self._waiting < MOST:
                    self._step = asyncio.ensure_future(next_of(steps))
                await self._wait()
        finally:
            await self._end()
            await steps.aclose()

    async def _wait(self) -> None:
        """Until the engine has said something or the guard has."""
        tasks = [task for task in (self._step, self._verdict) if task is not None]
        # While the engine is listened to, no task waits for the guard alone.
        with nullcontext() if self._step is not None else self._spent.waiting():
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        if (step := self._step) is not None and step.done():
            self._step = None
            self._hear(step.result())
        if (verdict := self._verdict) is not None and verdict.done():
            self._verdict = None
            self._judge(verdict)

    def _judge(self, verdict: "asyncio.Task[int | None]") -> None:
        """The guard has read what was asked about."""
        try:
            flagged = verdict.result() is not None
        except Unchecked:
            raise unchecked() from None
        part = self._queue[0]
        assert isinstance(part, _Part)
        if flagged:
            part.held.cut(part.read, self._out)
            end = self._finish or Finish()
            self._out.append(replace(end, reason="content_filter"))
            self._queue.clear()
            return
        size = len(self._asked)
        part.text = part.text[size:]
        part.read += size
        self._waiting -= size
        part.held.release(part.read, self._out)

    def _hear(self, step: Sequence[Delta] | None) -> None:
        """The engine said this, or has nothing more to say."""
        if step is None:
            self._over = True
            return
        self._out += [delta for delta in step if type(delta) is Accepted]
        self._out += counts_of(step)
        for delta in step:
            kind = type(delta)
            if kind in TEXTS:
                if delta.text:  # type: ignore[union-attr]  # they have
                    self._grow(delta)  # type: ignore[arg-type]
            elif kind is Finish:
                self._end_part()
                self._finish = delta  # type: ignore[assignment]
                self._over = True
            elif kind is not Accepted:
                self._end_part()
                if type(delta) is CallStart:
                    self._escaped = delta.kind != "custom_tool_call"
                self._begin_mark(delta)
                self._queue.append(bare_mark(delta))

    def _begin_mark(self, mark: Delta) -> None:
        if text := self._client.read_of(mark):
            kind = type(mark)
            part = _Part(kind, escaped=kind in JSON)
            part.text, part.last = text, True
            self._waiting += len(text)
            self._queue.append(part)

    def _grow(self, delta: Text) -> None:
        part, kind = self._open, type(delta)
        if part is None or part.kind is not kind:
            self._end_part()
            escaped = self._client.json if kind is TextDelta else self._escaped
            escaped = escaped and kind in (TextDelta, CallDelta)
            part = self._open = _Part(kind, escaped=escaped)
            self._queue.append(part)
        part.held.add(delta)
        part.text += delta.text
        self._waiting += len(delta.text)

    def _end_part(self) -> None:
        if self._open is not None:
            self._open.last = True
            self._open = None

    def _advance(self) -> None:
        """Lets go what stands first and may leave, and asks about what stands then."""
        if self._verdict is not None or (self._out and type(self._out[-1]) is Finish):
            return
        queue = self._queue
        while queue:
            part = queue[0]
            if not isinstance(part, _Part):
                self._out.append(part)
            elif not (part.last and not part.text):
                break
            queue.popleft()
        if queue:
            part = queue[0]
            assert isinstance(part, _Part)
            if asked := part.due():
                self._asked = asked
                piece = Piece(unescaped(asked) if part.escaped else asked)
                work = ask(self._guard, [piece], self._counts, self._label)
                self._verdict = asyncio.ensure_future(work)
        elif self._finish is not None:
            self._out.append(self._finish)

    async def _end(self) -> None:
        """The turn does not listen any more."""
        tasks: list[asyncio.Future[Any]] = [
            task for task in (self._step, self._verdict) if task is not None
        ]
        await ended(tasks)


async def ended(tasks: Sequence["asyncio.Future[Any]"]) -> None:
    """Ends tasks that the turn does not wait for any more, whatever their results."""
    for task in tasks:
        task.cancel()
    if tasks:
        await asyncio.wait(tasks)
    for task in tasks:
        if not task.cancelled():
            task.exception()


async def next_of(steps: Steps) -> Sequence[Delta] | None:
    """The next step, or None at the end."""
    return await anext(steps, None)
