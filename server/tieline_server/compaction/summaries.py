"""Folding a history away on the engine's side: is it too long, and what should be remembered?

Counting and summarising wait for an engine; what stays is decided in ``core.history.compaction``.
"""

from collections.abc import Callable, Sequence
from contextlib import aclosing
from typing import Final

from msgspec.structs import replace

from tieline import items
from tieline.errors import ApiError
from tieline.items import Message
from tieline_server.core.create.settings import Compacting, Format
from tieline_server.core.create.tools import ToolChoice
from tieline_server.core.deltas import Delta, Finish, TextDelta
from tieline_server.core.effects import Prompt
from tieline_server.core.history.compaction import Fold, Plan, plan_within
from tieline_server.engines.base import Engine

SUMMARY: Final = "summary"
"""The setting that has a model say what to remember."""

INSTRUCTION: Final = (
    "Summarize the conversation so far for yourself: it will be removed, and you go on from your "
    "summary alone. State the task, what was decided and done, facts and names that matter, and "
    "what is left to do. Be brief. Answer with the summary only."
)

LONGEST: Final = 1024
SHORTEST: Final = 64
"""Tokens that a summary may have, at most: for much history, and for little."""

FULL: Final = 0.75
"""Part of a model's context at which compaction sets in where the client names no threshold."""

Listen = Callable[[Sequence[Delta]], None]


async def fold(engine: Engine, prompt: Prompt, *, mode: str, listen: Listen) -> Fold | None:
    """What is left of a prompt that has passed the client's threshold; None where it need not go.

    ``listen`` hears what the engine says for a summary, so that it can be counted.
    """
    threshold = threshold_of(prompt.settings.compaction, engine, prompt.model)
    if threshold is None:
        return None
    tokens = await engine.count(prompt)
    if tokens <= threshold:
        return None
    context = prompt.chain.context()
    if mode == SUMMARY:
        lean = plan_within(context, tokens=tokens, threshold=threshold, tail=False)
        if lean is None:
            return None
        most = min(threshold // 4, longest_of(lean))
        text, finish = await summarise(engine, prompt, most=most, listen=listen)
        kept = lean.with_summary(text) if lean.gains_by(text) else lean.kept
        return Fold(items=kept, finish=finish)
    chosen = plan_within(context, tokens=tokens, threshold=threshold, tail=True)
    return Fold(items=chosen.kept) if chosen is not None else None


def longest_of(plan: Plan) -> int:
    """Tokens that a summary may have: about half of those that it stands for."""
    return min(LONGEST, max(SHORTEST, plan.folded_size // 8))


def threshold_of(asked: Compacting | None, engine: Engine, model: str) -> int | None:
    """Tokens of input past which history is folded away, or None for never."""
    if asked is None or asked.threshold is not None:
        return asked.threshold if asked is not None else None
    windows = (each.context_window for each in engine.models() if each.id == model)
    window = next(windows, None)
    return None if window is None else int(window * FULL)


async def summarise(
    engine: Engine, prompt: Prompt, *, most: int, listen: Listen
) -> tuple[str, Finish | None]:
    """What the model says about its own context; no text where it says nothing of use.

    A context that the model cannot take even in part has no summary; any other refusal of the
    engine is raised.
    """
    ask = items.encode(Message(role="user", content=INSTRUCTION))
    settings = replace(
        prompt.settings,
        tool_choice=ToolChoice(mode="none"),
        format=Format(),
        include=frozenset(),
        truncation="auto",
        generate=True,
    )
    asked = replace(
        prompt,
        chain=prompt.chain.aside(ask),
        settings=settings,
        session=f"{prompt.session}/compaction",
        max_output_tokens=most,
    )
    texts: list[str] = []
    finish: Finish | None = None
    try:
        async with aclosing(engine.sample(asked)) as steps:
            async for step in steps:
                listen(step)
                texts += [delta.text for delta in step if isinstance(delta, TextDelta)]
                finish = next((each for each in step if isinstance(each, Finish)), finish)
    except ApiError as error:
        if error.code != "context_length_exceeded":
            raise
    return "".join(texts).strip(), finish
