"""A response as clients see it at one moment of its turn."""

from typing import TYPE_CHECKING

from msgspec.structs import replace

from tieline.responses import IncompleteDetails, Response, ResponseError

if TYPE_CHECKING:
    from tieline_server.core.turn import Turn


def snapshot(turn: "Turn", status: str) -> Response:
    """The response as it stands, with this status."""
    blank = turn.settings.blank if turn.settings else Response(model=turn.request.model or "")
    failure = turn.failure if status == "failed" else None
    reason = turn.reason if status == "incomplete" else None
    started = turn.usage.total_tokens or status not in ("queued", "in_progress")
    return replace(
        blank,
        id=turn.id,
        previous_response_id=turn.follows,
        created_at=turn.created_at,
        completed_at=turn.completed_at,
        status=status,
        output=list(turn.output.raws),
        error=ResponseError(code=failure.code, message=failure.message) if failure else None,
        incomplete_details=IncompleteDetails(reason=reason) if reason else None,
        usage=turn.usage if started else None,
    )


def so_far(turn: "Turn") -> Response:
    """The response of a turn that runs, with what it has used until now.

    It runs until its end is durable: who has read of an end can continue the response.
    """
    standing = snapshot(turn, "in_progress" if turn.running else "queued")
    usage = turn.usage.plus(turn.tally.usage(None)) if turn.placed else turn.usage
    told = usage if usage.total_tokens else None
    return replace(standing, completed_at=None, usage=told)
