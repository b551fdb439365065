"""``reasoning.effort`` in the words of a chat template.

Templates have words of their own for how much a model is to think: a switch, an effort by name,
a number of tokens. Each is tried: one that changes nothing of what the template writes, or that
it refuses, is none of its words.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final

from tieline_server.engines.chat_format.jinja_template import FAULTS

SWITCHES: Final = ("enable_thinking", "thinking")
"""Words for whether to think at all."""
OFF: Final = ("none", "minimal")
"""Efforts for which a model that can only think or not does not."""

NAMED: Final = ("reasoning_effort", "thinking_effort")
"""Words for an effort by its name."""
NAMES: Final[Mapping[str, tuple[str, ...]]] = {
    "none": ("none", "no_think", "low"),
    "minimal": ("minimal", "low"),
    "low": ("low",),
    "medium": ("medium",),
    "high": ("high",),
    "xhigh": ("xhigh", "max", "high"),
}
"""An effort -> what a template may call it, the nearest first."""
TRAINED: Final = ("low", "medium", "high")
"""Names that a template may pass on to the model without knowing them."""

BUDGET: Final = "thinking_budget"
BUDGETS: Final[Mapping[str, int]] = {
    "none": 0, "minimal": 512, "low": 1024, "medium": 4096, "high": 8192, "xhigh": 16384,
}  # fmt: skip
"""An effort -> tokens of thought, for a template that counts them."""


def words_for(effort: str | None, render: Callable[..., str]) -> dict[str, Any]:
    """What a template is given for this effort; ``render(**members)`` asks it for an answer."""
    if effort is None:
        return {}
    plain = render()
    candidates: dict[str, tuple[Any, ...]] = {
        **dict.fromkeys(SWITCHES, (effort not in OFF,)),
        **dict.fromkeys(NAMED, NAMES.get(effort, (effort,))),
        BUDGET: (BUDGETS.get(effort, BUDGETS["medium"]),),
    }
    words: dict[str, Any] = {}
    for word, values in candidates.items():
        for value in values:
            text = _written(render, {**words, word: value})
            told = isinstance(value, str) and text and text.count(value) > plain.count(value)
            if text is None or (told and value not in TRAINED):
                continue
            if text != plain or _written(render, {**words, word: "qzWord"}) != plain:
                words[word], plain = value, text
                break
    return words


def _written(render: Callable[..., str], words: Mapping[str, Any]) -> str | None:
    """What the template writes with these words; None where it refuses them."""
    try:
        return render(**words)
    except FAULTS:
        return None
