"""What one response used, as the ledger keeps it."""

from msgspec import Struct
from msgspec.structs import replace

from tieline_server.core.effects import TurnRecord


class Booking(Struct, frozen=True, kw_only=True, gc=False):
    """One row of the ledger. Never content; times are Unix seconds, phases microseconds."""

    response_id: str
    owner: str
    model: str
    """The public name; empty for one that was cancelled before its turn on the lane came."""
    transport: str
    outcome: str
    kind: str
    """``turn``, ``prewarm`` where nothing was to be sampled, or ``compaction`` of a window."""
    reason: str | None
    error_code: str | None
    input_tokens: int
    cached_tokens: int
    output_tokens: int
    reasoning_tokens: int
    phases: dict[str, int] = {}
    started_at: float
    ended_at: float
    stored: bool


def is_response(record: TurnRecord) -> bool:
    """Whether a turn became a response, and so has a row.

    What was refused never did, nor did what still waited behind others when its connection went: no
    client ever saw its id.
    """
    waited = record.outcome == "disconnected" and not record.settled
    return record.outcome != "refused" and not waited


def booking_of(
    record: TurnRecord, transport: str, *, ended_at: float, phases: bool = True
) -> Booking:
    """The row of a turn that ended at ``ended_at`` (Unix seconds), with its phases or without."""
    usage, times = record.usage, record.times
    row = Booking(
        response_id=record.response_id,
        owner=record.owner,
        model=record.public_model,
        transport=transport,
        outcome=record.outcome,
        kind=record.kind,
        reason=record.reason,
        error_code=record.error_code,
        input_tokens=usage.input_tokens,
        cached_tokens=usage.input_tokens_details.cached_tokens,
        output_tokens=usage.output_tokens,
        reasoning_tokens=usage.output_tokens_details.reasoning_tokens,
        started_at=ended_at - (times.ended_at - times.started_at),
        ended_at=ended_at,
        stored=record.store,
    )
    return replace(row, phases=times.phases()) if phases else row
