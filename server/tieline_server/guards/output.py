"""An answer on its way out, past guards that read each token at once.

Each part is read by itself, from its first character to its last: a text, a refusal, a thought, a
summary, the arguments of a call. So what is held is let go where a part ends, and a match never
spans two of them. Tokens are counted as they come, ahead of the text that is held: what a cut
turn has used is told whole.
"""

import sys
import time
from collections.abc import Sequence
from itertools import groupby

from msgspec.structs import replace

from tieline_server.core.deltas import (
    Accepted,
    CallDelta,
    CallStart,
    Delta,
    Finish,
    TextDelta,
)
from tieline_server.guards.base import Counts, Spent, Watch, Watching
from tieline_server.guards.held import JSON, TEXTS, Asked, Held, Text, bare_mark, counts_of


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

    def __init__(
        self,
        watchers: Sequence[Watcher],
        counts: Counts,
        spent: Spent,
        *,
        asked: Asked = Asked(),  # noqa: B008  # it is frozen
    ) -> None:
        self._watchers = watchers
        self._asked = asked
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
        out = self._take_token(step) if len(step) == 1 else None
        if out is None:
            out = self._take(step)
        self._spent.nanoseconds += time.perf_counter_ns() - began
        return out

    def _take_token(self, step: Sequence[Delta]) -> list[Delta] | None:
        """What nearly every step is, one delta more of a part: the same as ``_take``, sooner."""
        delta = step[0]
        kind = type(delta)
        if kind is not self._kind:
            return None
        out: list[Delta] = []
        if delta.text:  # type: ignore[union-attr]  # a kind of part is one of text
            self._held.add(delta)  # type: ignore[arg-type]
            self._watch(delta.text, out, last=False)  # type: ignore[union-attr]
        _count(delta.tokens, kind, out)  # type: ignore[union-attr]
        if self.hit:
            out.append(Finish(reason="content_filter"))
        return out

    def _take(self, step: Sequence[Delta]) -> list[Delta]:
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
        return out

    def _between(self, delta: Delta, out: list[Delta]) -> None:
        self._end_part(out)
        if not self.hit and type(delta) is CallStart:
            self._escaped = delta.kind != "custom_tool_call"
        if not self.hit and (text := self._asked.read_of(delta)):
            self._begin_part(type(delta))
            self._watch(text, out, last=True)
            self._kind = None
        if not self.hit:
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
            self._held.add(delta)
        self._watch("".join([delta.text for delta in texts]), out, last=False)

    def _begin_part(self, kind: type) -> None:
        self._kind = kind
        escaped = self._asked.json if kind is TextDelta else kind in JSON
        escaped = escaped or (kind is CallDelta and self._escaped)
        self._watches = [each.guard.watch(escaped=escaped) for each in self._watchers]
        for each in self._watchers:
            self._counts.checks[each.label] += 1

    def _end_part(self, out: list[Delta]) -> None:
        if self._kind is not None:
            self._watch("", out, last=True)
            self._kind = None
            self._held = Held()

    def _watch(self, text: str, out: list[Delta], *, last: bool) -> None:
        cleared = flagged = sys.maxsize
        began = time.perf_counter()
        for watcher, watch in zip(self._watchers, self._watches, strict=True):
            watch.read(text, last=last)
            cleared = min(cleared, watch.cleared)
            if watch.flagged is not None:
                self._counts.hits[watcher.label] += 1
                flagged = min(flagged, watch.flagged)
            ended = time.perf_counter()
            self._counts.seconds[watcher.label] += ended - began
            began = ended
        if flagged < sys.maxsize:
            self.hit = True
            self._held.cut(flagged, out)
        else:
            self._held.release(cleared, out)


def _count(tokens: int, kind: type, out: list[Delta]) -> None:
    """Tells the tokens that have come with the first text that leaves, or alone."""
    if not tokens:
        return
    if not out:
        out.append(kind("", tokens))
    elif kind is TextDelta:
        first: TextDelta = out[0]  # type: ignore[assignment]  # what leaves is of the part
        out[0] = TextDelta(first.text, tokens, first.logprobs)
    else:
        out[0] = kind(out[0].text, tokens)  # type: ignore[union-attr]
