"""What an upstream states at the end: the tokens that it used, under any of their names.

An answer is as good as it was where its numbers are none: what cannot be read was not said.
"""

from collections.abc import Mapping
from typing import Any

from msgspec import Struct


class Stated(Struct, frozen=True, kw_only=True, gc=False):
    """Tokens; None for what was not said."""

    input: int | None = None
    output: int | None = None
    cached: int | None = None
    reasoning: int | None = None


NOTHING = Stated()


def stated_in(usage: object) -> Stated:
    """Reads ``usage``, whichever API it is of."""
    if not isinstance(usage, dict):
        return NOTHING
    inputs = _mapping(usage.get("prompt_tokens_details") or usage.get("input_tokens_details"))
    outputs = _mapping(usage.get("completion_tokens_details") or usage.get("output_tokens_details"))
    # The second one is DeepSeek's name.
    cached = _first(inputs.get("cached_tokens"), usage.get("prompt_cache_hit_tokens"))
    return Stated(
        input=_first(usage.get("prompt_tokens"), usage.get("input_tokens")),
        output=_first(usage.get("completion_tokens"), usage.get("output_tokens")),
        cached=cached,
        reasoning=_first(outputs.get("reasoning_tokens")),
    )


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _first(*values: object) -> int | None:
    """The first of them that is a number of tokens; some servers write it as text, or 7.0.

    >>> _first(None, "7")
    7
    """
    for value in values:
        if type(value) is int:
            return value
        if isinstance(value, float) and value.is_integer():
            return int(value)
        if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 20:
            return int(value)
    return None
