"""What an upstream states of the tokens that it used, under any of their names."""

from collections.abc import Mapping
from typing import Any, Final

from msgspec import Struct


class _Details(Struct, frozen=True, gc=False):
    cached_tokens: int | None = None
    cache_write_tokens: int | None = None
    reasoning_tokens: int | None = None


class CompletionUsage(Struct, frozen=True, gc=False):
    """Of a completion, a chat's or another; None for what was not said."""

    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: _Details | None = None
    completion_tokens_details: _Details | None = None
    prompt_cache_hit_tokens: int | None = None
    """DeepSeek's name for what was cached."""
    cache_creation_input_tokens: int | None = None
    """Anthropic's name for what was written to the cache, as proxies in front of it give it."""

    @property
    def cached(self) -> int | None:
        """Of the prompt, what came from the cache."""
        details = self.prompt_tokens_details
        return self.prompt_cache_hit_tokens if details is None else details.cached_tokens

    @property
    def written(self) -> int | None:
        """Of the prompt, what was written to the cache."""
        details = self.prompt_tokens_details
        stated = None if details is None else details.cache_write_tokens
        return self.cache_creation_input_tokens if stated is None else stated


class ResponseUsage(Struct, frozen=True, gc=False):
    """Of a response; None for what was not said."""

    input_tokens: int | None = None
    output_tokens: int | None = None
    input_tokens_details: _Details | None = None
    output_tokens_details: _Details | None = None


_DETAILS: Final = (
    "prompt_tokens_details", "completion_tokens_details",
    "input_tokens_details", "output_tokens_details",
)  # fmt: skip


def readable(usage: object) -> dict[str, Any] | None:
    """Usage of the wrong types as far as it can be read.

    An answer is as good as it was where its numbers are none: what is no number was not said.
    """
    if not isinstance(usage, dict):
        return None
    numbers = {name: each for name, each in _numbers(usage).items() if name not in _DETAILS}
    details = {name: _numbers(usage.get(name)) for name in _DETAILS}
    return {**numbers, **{name: each for name, each in details.items() if each}}


def _numbers(members: object) -> Mapping[str, int]:
    if not isinstance(members, dict):
        return {}
    numbers = {name: _number(value) for name, value in members.items()}
    return {name: each for name, each in numbers.items() if each is not None}


def _number(value: object) -> int | None:
    """A number of tokens; some servers write it as text, or 7.0.

    >>> _number("7")
    7
    """
    if type(value) is int:
        return value
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 20:
        return int(value)
    return None
