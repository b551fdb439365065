"""How the call of a tool came out, in words that a model can act on, and as a span."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import Enum
from typing import Final

from tieline_client.aio import Call

try:
    from opentelemetry import trace
except ImportError:
    # The extra `otel` is not installed: no tracer is there to be told.
    trace = None  # type: ignore[assignment]


class Outcome(Enum):
    """How a call came out."""

    COMPLETED = "completed"
    FAILED = "failed"
    """The tool raised, or could not be called like that."""
    DENIED = "denied"
    """It was not approved: it did not run, and will not."""
    NOT_STARTED = "not_started"
    """It was stopped before it began: it did not run."""
    INTERRUPTED = "interrupted_may_have_effects"
    """It was stopped while it ran: what it has done is unknown."""


TEXTS: Final[dict[Outcome, str]] = {
    Outcome.DENIED: "Error: denied: the call was not approved and did not run.",
    Outcome.NOT_STARTED: "Error: not_started: the call was stopped before it ran: no effect.",
    Outcome.INTERRUPTED: (
        "Error: interrupted_may_have_effects: the call was stopped while it ran. "
        "Find out what it has done before you repeat it."
    ),
}
"""What the model is told of a call that brought nothing."""


@contextmanager
def span(call: Call) -> Iterator[Callable[[Outcome], None]]:
    """The span of one call (OpenTelemetry's GenAI conventions); yields how to say its outcome."""
    if trace is None:
        yield lambda outcome: None
        return
    tracer = trace.get_tracer("tieline_client")
    attributes = {
        "gen_ai.operation.name": "execute_tool",
        "gen_ai.tool.name": call.name,
        "gen_ai.tool.call.id": call.call_id,
    }
    with tracer.start_as_current_span(
        f"execute_tool {call.name}", attributes=attributes, record_exception=False
    ) as current:

        def tell(outcome: Outcome) -> None:
            current.set_attribute("tieline.tool.outcome", outcome.value)
            if outcome is not Outcome.COMPLETED:
                current.set_status(trace.StatusCode.ERROR, outcome.value)

        yield tell
