"""What one sampling has used: counted from its deltas, replaced by what the engine states."""

from collections.abc import Sequence
from typing import Final

from tieline.responses import Usage
from tieline_server.core.deltas import Accepted, Delta, Finish, ReasoningDelta

MOST: Final = 1 << 31
"""Tokens that one sampling may say it used. An engine far away may state anything; what is no
such number is passed over, as ledgers and wires have no room for it."""

_NOTHING: Final = Accepted()
_CUT: Final = Finish()


class UsageCounter:
    """The tokens of one sampling. A turn has one for each time that it samples."""

    __slots__ = ("_input", "_output", "_reasoning")

    def __init__(self) -> None:
        self._input = _NOTHING
        self._output = 0
        self._reasoning = 0

    def accept(self, accepted: Accepted) -> None:
        """The engine said how large the prompt is."""
        self._input = accepted

    def count(self, run: Sequence[Delta]) -> None:
        """Adds the tokens of some output."""
        for delta in run:
            tokens = delta.tokens  # type: ignore[union-attr]  # Accepted and Finish are no output
            self._output += tokens
            if type(delta) is ReasoningDelta:
                self._reasoning += tokens

    def usage(self, finish: Finish | None) -> Usage:
        """What was used; of a sampling that was cut, what its deltas added up to.

        >>> UsageCounter().usage(Finish(output_tokens=3)).total_tokens
        3
        """
        end, took = _CUT if finish is None else finish, self._input
        input = took.input_tokens if end.input_tokens is None else end.input_tokens
        cached = took.cached_tokens if end.cached_tokens is None else end.cached_tokens
        output = self._output if end.output_tokens is None else end.output_tokens
        reasoning = self._reasoning if end.reasoning_tokens is None else end.reasoning_tokens
        if not (0 <= cached <= input <= MOST and 0 <= reasoning <= output <= MOST):
            input, output = _stated(input, took.input_tokens), _stated(output, self._output)
            cached = min(input, _stated(cached, took.cached_tokens))
            reasoning = min(output, _stated(reasoning, self._reasoning))
        written = _stated(end.written_tokens or 0, 0)
        return Usage.of(
            input=input, cached=cached, output=output, reasoning=reasoning, written=written
        )


def _stated(tokens: int, counted: int) -> int:
    return tokens if 0 <= tokens <= MOST else counted
