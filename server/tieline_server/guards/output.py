"""An answer on its way out, past guards that read each token at once.

Each part is read by itself, from its first character to its last: a text, a refusal, a thought, a
summary, the arguments of a call. So what is held is let go where a part ends, and a match never
spans two of them. Tokens are counted as they come, ahead of the text that is held: what a cut
turn has used is told whole.
"""

import time
from collections.abc import Sequence
from itertools import groupby

from msgspec.structs import replace

from tieline_server.core.deltas import Accepted, CallDelta, CallStart, Delta, Finish
from tieline_server.guards.base import Counts, Spent, Watch, Watching
from tieline_server.guards.held import TEXTS, Held, Text, bare, bare_mark, counts_of


class Watcher:
    """A guard that reads each token, and where it is counted."""

    __slots__ = ("guard", "label")

    def __init__(self, guard: Watching, name: str) -> None:
        self.guard = guard
        self.label = (name, "output")


class Gate:
    """Takes the steps of an engine; lets through what every guard lets through.

    After a hit it has said :class:`Finish`, and takes nothing more.
    """

    def __init__(self, watchers: Sequence[Watcher], counts: Counts, spent: Spent) -> None:
        self._watchers = watchers
        self._counts = counts
        self._spent = spent
        self._kind: type | None = None
        self._escaped = False
        self._watches: list[Watch] = []
        self._held = Held()
        self.hit = False

    def take(self, step: Sequence[Delta]) -> list[Delta]:
        """What may leave now that the engine said this."""
        began = time.perf_counter_ns()
        out: list[Delta] = [delta for delta in step if type(delta) is Accepted]
        out += counts_of(step)
        for kind, run in groupby(step, type):
            if kind in TEXTS:
                texts = [delta for delta in run if delta.text]  # type: ignore[union-attr]
                self._read(kind, texts, out)  # type: ignore[arg-type]
            elif kind is not Accepted:
                for delta in run:
                    self._between(delta, out)
            if self.hit:
                end = next((delta for delta in step if type(delta) is Finish), Finish())
                out.append(replace(end, reason="content_filter"))
                break
        self._spent.nanoseconds += time.perf_counter_ns() - began
        return out

    def _between(self, delta: Delta, out: list[Delta]) -> None:
        self._end_part(out)
        if not self.hit:
            if type(delta) is CallStart:
                self._escaped = delta.kind == "function_call"
            out.append(bare_mark(delta))

    def _read(self, kind: type, texts: Sequence[Text], out: list[Delta]) -> None:
        if not texts:
            return
        if kind is not self._kind:
            self._end_part(out)
            if self.hit:
                return
            self._begin_part(kind)
        for delta in texts:
            self._held.add(bare(delta))
        self._watch("".join([delta.text for delta in texts]), out, last=False)

    def _begin_part(self, kind: type) -> None:
        self._kind = kind
        escaped = kind is CallDelta and self._escaped
        self._watches = [each.guard.watch(escaped=escaped) for each in self._watchers]
        for each in self._watchers:
            self._counts.checks[each.label] += 1

    def _end_part(self, out: list[Delta]) -> None:
        if self._kind is not None:
            self._watch("", out, last=True)
            self._kind = None
            self._held = Held()

    def _watch(self, text: str, out: list[Delta], *, last: bool) -> None:
        cleared: int | None = None
        flagged: int | None = None
        for watcher, watch in zip(self._watchers, self._watches, strict=True):
            began = time.perf_counter()
            watch.read(text, last=last)
            self._counts.seconds[watcher.label] += time.perf_counter() - began
            if cleared is None or watch.cleared < cleared:
                cleared = watch.cleared
            if watch.flagged is not None:
                self._counts.hits[watcher.label] += 1
                flagged = watch.flagged if flagged is None else min(flagged, watch.flagged)
        if flagged is not None:
            self.hit = True
            self._held.cut(flagged, out)
        elif cleared is not None:
            self._held.release(cleared, out)
