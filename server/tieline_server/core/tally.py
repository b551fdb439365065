"""What one sampling has used: counted from its deltas, replaced by what the engine states."""

from collections.abc import Sequence

from tieline.responses import Usage
from tieline_server.core.deltas import Accepted, Delta, Finish, ReasoningDelta


class Tally:
    """The tokens of one sampling. A turn has one for each time that it samples."""

    __slots__ = ("_input", "_output", "_reasoning")

    def __init__(self) -> None:
        self._input = Accepted()
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

        >>> Tally().usage(Finish(output_tokens=3)).total_tokens
        3
        """
        end = finish or Finish()
        return Usage.of(
            input=_first(end.input_tokens, self._input.input_tokens),
            cached=_first(end.cached_tokens, self._input.cached_tokens),
            output=_first(end.output_tokens, self._output),
            reasoning=_first(end.reasoning_tokens, self._reasoning),
        )


def _first(stated: int | None, counted: int) -> int:
    return counted if stated is None else stated
