"""What an engine says while it samples: small frozen pieces, in order; and what they add up to.

An engine yields steps, a step being a list of deltas that became known together. Text of one
kind may follow text of another; a change of kind closes the item before it. ``tokens`` on a
delta is how many tokens it stands for, so that a turn that is cut knows what was really used.
"""

from collections.abc import Sequence
from typing import Final, Literal

from msgspec import Raw, Struct

from tieline.items import Item
from tieline.responses import Usage

CallKind = Literal["function_call", "custom_tool_call", "tool_search_call"]

TOOL_SEARCH: Final = "tool_search"
"""The type of the tool that finds others, and its name where the client runs it."""

CALL_KINDS: Final[dict[str, CallKind]] = {
    "function": "function_call",
    "custom": "custom_tool_call",
    TOOL_SEARCH: "tool_search_call",
}
"""Type of a tool that a client may run -> type of its calls."""

FinishReason = Literal["stop", "length", "content_filter"]


class Accepted(Struct, frozen=True, kw_only=True, gc=False):
    """The engine took the prompt: its size in tokens, and how many it did not have to compute."""

    input_tokens: int = 0
    cached_tokens: int = 0
    held: bool = False
    """The client is not to hear of it yet; it counts for a turn that ends before that."""


class TextDelta(Struct, frozen=True, gc=False):
    """Visible text. Whole code points only: an engine holds back a partial one (RFC 3629)."""

    text: str
    tokens: int = 1
    logprobs: tuple[Raw, ...] = ()


class RefusalDelta(Struct, frozen=True, gc=False):
    """Text of a refusal."""

    text: str
    tokens: int = 1


class ReasoningDelta(Struct, frozen=True, gc=False):
    """Raw reasoning text."""

    text: str
    tokens: int = 1


class SummaryDelta(Struct, frozen=True, gc=False):
    """Text of a reasoning summary."""

    text: str
    tokens: int = 0


class CallStart(Struct, frozen=True, kw_only=True, gc=False):
    """A tool call begins; its arguments or input follow as :class:`CallDelta`."""

    kind: CallKind
    name: str
    namespace: str | None = None
    tokens: int = 0


class CallDelta(Struct, frozen=True, gc=False):
    """The next piece of a call's arguments (JSON text) or input (free text)."""

    text: str
    tokens: int = 1


class Phase(Struct, frozen=True, gc=False):
    """What the open message is for, or the next one: ``commentary`` or ``final_answer``."""

    name: str
    tokens: int = 0


class Annotation(Struct, frozen=True, gc=False):
    """A note on the text of the open message, as it is on the wire."""

    raw: Raw
    tokens: int = 0


class WholeItem(Struct, frozen=True, gc=False):
    """An item that is whole from the start, such as the call of a tool that ran upstream."""

    item: Item
    tokens: int = 0


class ItemEnd(Struct, frozen=True, gc=False):
    """The open item is whole; the next delta begins another, even of the same kind."""

    tokens: int = 0
    incomplete: bool = False
    """Whether something of it was cut or lost all the same: it says so, and stays in the chain."""


class Finish(Struct, frozen=True, kw_only=True, gc=False):
    """Sampling ended by itself. Counts that are given replace what the deltas added up to."""

    reason: FinishReason = "stop"
    input_tokens: int | None = None
    cached_tokens: int | None = None
    written_tokens: int | None = None
    """Of the input, what the engine states that it wrote to its cache."""
    output_tokens: int | None = None
    reasoning_tokens: int | None = None
    phases: dict[str, int] | None = None
    """Engine phases in microseconds: render, queue, prefill, decode."""


Delta = (
    Accepted
    | TextDelta
    | RefusalDelta
    | ReasoningDelta
    | SummaryDelta
    | CallStart
    | CallDelta
    | Phase
    | Annotation
    | WholeItem
    | ItemEnd
    | Finish
)


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
        # Counted as they come: of a sampling that is cut there is no other number.
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
