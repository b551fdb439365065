"""What is flagged never leaves, and what is not leaves as it came, however an answer is cut."""

import asyncio
import re
from collections.abc import AsyncGenerator, Sequence
from itertools import pairwise
from typing import NamedTuple

from hypothesis import given
from hypothesis import strategies as st

from tests.support.engine_contract import deltas_of, prompt
from tests.support.runtime import Speaker
from tieline_server.core.deltas import (
    Accepted,
    Annotation,
    CallDelta,
    CallStart,
    Delta,
    Finish,
    ItemEnd,
    Phase,
    ReasoningDelta,
    RefusalDelta,
    SummaryDelta,
    TextDelta,
    UsageCounter,
    WholeItem,
)
from tieline_server.core.effects import Prompt
from tieline_server.guards.base import Counts, Guard, Piece, Stage
from tieline_server.guards.escapes import Unescaper, unescaped
from tieline_server.guards.guarded import GuardedEngine
from tieline_server.guards.pattern import PatternGuard

Kind = type[TextDelta] | type[RefusalDelta] | type[ReasoningDelta] | type[SummaryDelta]
KINDS: tuple[Kind | type[CallDelta], ...] = (
    TextDelta,
    RefusalDelta,
    ReasoningDelta,
    SummaryDelta,
    CallDelta,
)

phrases = st.text("abé😀", min_size=1, max_size=4)
texts = st.lists(st.sampled_from([*'abé😀. \\"u', "\\u0061", "\\u0062", "\\ud83d\\ude00"])).map(
    "".join
)


class Part(NamedTuple):
    """One item with one part."""

    start: CallStart | None
    text: str
    deltas: list[Delta]

    @property
    def views(self) -> tuple[str, ...]:
        """What a client can read in it."""
        escaped = self.start is not None and self.start.kind == "function_call"
        return (self.text, unescaped(self.text)) if escaped else (self.text,)


@st.composite
def parts(draw: st.DrawFn) -> Part:
    """A part, cut into deltas anywhere."""
    text, kind = draw(texts), draw(st.sampled_from(KINDS))
    cuts = sorted(draw(st.lists(st.integers(0, len(text)), max_size=12)))
    pieces = [text[a:b] for a, b in pairwise([0, *cuts, len(text)])]
    deltas: list[Delta] = [kind(piece, draw(st.integers(0, 3))) for piece in pieces]
    if kind is not CallDelta:
        return Part(None, text, deltas)
    start = CallStart(kind=draw(st.sampled_from(["function_call", "custom_tool_call"])), name="f")
    return Part(start, text, [start, *deltas])


def steps_of(said: Sequence[Part], cuts: Sequence[bool]) -> list[list[Delta]]:
    """An answer in steps; ``cuts`` say after which deltas one ends."""
    deltas = [delta for part in said for delta in (*part.deltas, ItemEnd())]
    steps: list[list[Delta]] = [[Accepted(input_tokens=1)]]
    for at, delta in enumerate([*deltas, Finish()]):
        if cuts[at % len(cuts)]:
            steps.append([])
        steps[-1].append(delta)
    return [step for step in steps if step]


def guarded(steps: Sequence[Sequence[Delta]], *guards: Guard) -> list[Delta]:
    """What leaves of an answer."""

    async def answer(_prompt: Prompt) -> AsyncGenerator[Sequence[Delta], None]:
        for step in steps:
            yield step

    async def main() -> list[Delta]:
        engine = GuardedEngine(Speaker(answer), {"m": guards}, Counts())
        return await deltas_of(engine, prompt("hello", model="m"))

    return asyncio.run(main())


def left(deltas: Sequence[Delta]) -> list[str]:
    """The text of each part that left, the last one as far as it did."""
    found = [""]
    for delta in deltas:
        if isinstance(delta, ItemEnd):
            found.append("")
        elif not isinstance(delta, Accepted | Finish | CallStart | Annotation | Phase | WholeItem):
            found[-1] += delta.text
    return found


def used(deltas: Sequence[Delta]) -> tuple[int, int]:
    """Output and reasoning tokens as a turn counts them."""
    tally = UsageCounter()
    tally.count([each for each in deltas if not isinstance(each, Accepted | Finish)])
    usage = tally.usage(None)
    return usage.output_tokens, usage.output_tokens_details.reasoning_tokens


answers = st.lists(parts(), max_size=4)
cuts = st.lists(st.booleans(), min_size=1)


@given(answers, cuts, st.lists(phrases, min_size=1, max_size=3))
def test_a_phrase_never_leaves_and_all_before_it_does(
    said: list[Part], cut: list[bool], wanted: list[str]
) -> None:
    """Output is the unguarded one up to the hit, and all of it where there is none."""
    steps = steps_of(said, cut)
    out = guarded(steps, PatternGuard("g", [re.escape(each) for each in wanted]))
    sampled = [delta for step in steps for delta in step]
    hit = next(
        (
            at
            for at, part in enumerate(said)
            if any(phrase in view for phrase in wanted for view in part.views)
        ),
        None,
    )
    found = left(out)
    if hit is None:
        assert found == [*(part.text for part in said), ""]
        assert out[-1].reason == "stop"  # type: ignore[union-attr]  # the last one is Finish
        assert used(out) == used(sampled)
        return
    assert out[-1].reason == "content_filter"  # type: ignore[union-attr]
    *before, last = found
    part = said[hit]
    assert before == [each.text for each in said[:hit]]
    assert part.text.startswith(last)
    for view in part._replace(text=last).views:
        assert not any(phrase in view for phrase in wanted)
    begins = starts_of(part, wanted)
    assert len(last) in begins
    if len(part.views) == 1:
        assert len(last) == min(begins)
    assert used(out) == used([each for step in until_hit(steps, hit, out) for each in step])


def starts_of(part: Part, wanted: Sequence[str]) -> set[int]:
    """Where in the text of a part each phrase begins that a client could read there."""
    _, places = Unescaper().feed(part.text, last=True)
    every = (range(len(part.text)), places)[: len(part.views)]
    return {
        where[view.find(phrase)]
        for view, where in zip(part.views, every, strict=True)
        for phrase in wanted
        if phrase in view
    }


def until_hit(
    steps: Sequence[Sequence[Delta]], hit: int, out: Sequence[Delta]
) -> Sequence[Sequence[Delta]]:
    """The steps that the engine was asked for: those whose tokens are all counted."""
    total, counted = used(out), (0, 0)
    for at in range(len(steps) + 1):
        counted = used([each for step in steps[:at] for each in step])
        ends = sum(isinstance(each, ItemEnd) for step in steps[:at] for each in step)
        if counted == total and ends >= hit:
            return steps[:at]
    raise AssertionError(f"tokens of half a step: {total}, {counted}")


class Asking:
    """A guard that has to be asked, and flags what has a phrase in it."""

    name = "asking"
    applies: frozenset[Stage] = frozenset({"output"})
    message: str | None = None
    lenient = False

    def __init__(self, phrase: str) -> None:
        self._phrase = phrase

    async def first_flagged(self, pieces: Sequence[Piece]) -> int | None:
        await asyncio.sleep(0)
        found = (at for at, piece in enumerate(pieces) if self._phrase in piece.text)
        return next(found, None)

    async def close(self) -> None:
        """Nothing to free."""


@given(answers, cuts, phrases)
def test_what_a_guard_that_is_asked_flags_never_leaves_and_the_rest_is_as_it_was(
    said: list[Part], cut: list[bool], phrase: str
) -> None:
    steps = steps_of(said, cut)
    out = guarded(steps, Asking(phrase))
    found = left(out)
    whole = [part.text for part in said]
    if out[-1].reason == "stop":  # type: ignore[union-attr]
        assert found == [*whole, ""]
        assert used(out) == used([delta for step in steps for delta in step])
        return
    *before, last = found
    assert before == whole[: len(before)]
    assert whole[len(before)].startswith(last)
    assert phrase not in last
