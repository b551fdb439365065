"""How a turn ends: output made whole, the store asked, the terminal event."""

from typing import Final

from msgspec import UNSET, UnsetType
from msgspec.structs import replace

from tieline import events
from tieline.errors import ApiError
from tieline.events import ErrorEvent, RequestRefused
from tieline.responses import Response
from tieline_server.core.effects import Record, Save
from tieline_server.core.history.chain import NO_CALLS, Saved
from tieline_server.core.turn.turn import Turn
from tieline_server.core.values import Outcome, TurnRecord

CANCELLED: Final = "cancelled"
"""The cut reason whose response has status cancelled and no incomplete_details."""

DRAINED: Final = "server_draining"
"""The cut reason of a turn that a drain's deadline met."""

_TERMINAL: Final[dict[str, type[events.LifecycleEvent]]] = {
    "completed": events.ResponseCompleted,
    "incomplete": events.ResponseIncomplete,
    # A cancelled response ends as response.incomplete with status cancelled (wire.md 2.4.2).
    CANCELLED: events.ResponseIncomplete,
    "failed": events.ResponseFailed,
}


def terminal_event(
    response: Response, number: int, *, stream_id: str | UnsetType = UNSET
) -> events.LifecycleEvent:
    """The event that says how a response ended, with its number."""
    kind = _TERMINAL[response.status or ""]
    return kind(sequence_number=number, stream_id=stream_id, response=response)


def conclude_cut(turn: Turn, reason: str) -> None:
    """Ends early, for this reason."""
    if reason == CANCELLED:
        conclude(turn, CANCELLED)
    else:
        conclude(turn, "incomplete", reason)


def conclude(turn: Turn, status: str, reason: str | None = None) -> None:
    """Output is whole: closes what is open, then has it saved."""
    # Also one that was cut before its engine accepted has a beginning.
    turn.announce()
    if status == "completed":
        turn.output.close(status)
    else:
        turn.output.cut()
    turn.extend_chain()
    turn.status, turn.reason = status, reason
    turn.completed_at = turn.host.unix_time if status == "completed" else None
    turn.timestamps.concluded(turn.host.now)
    head = turn.head()
    # The terminal event follows the commit: what a client has read it can continue anywhere.
    if not turn.stores or head is None:
        turn.handle("saved")
        return
    saved = Saved(
        response=turn.snapshot(status),
        head=head,
        owner=turn.principal.owner,
        input_from=turn.parent,
        terminal=None if turn.log is None else turn.outbox.count,
    )
    turn.booked = True
    turn.host.effects.append(Save(turn.own_id, saved, record_of(turn, outcome_of(turn))))


def finish(turn: Turn) -> None:
    """The store has it, or need not: the terminal event goes out."""
    turn.timestamps.saved(turn.host.now)
    # A response that failed cannot be continued, and is no lane's latest.
    if turn.status == "failed":
        _evict_parent(turn)
    elif (head := turn.head()) is not None:
        turn.holdings.rest(turn.lane, head)
    turn.holdings.leave()
    push_timing(turn)
    response = turn.snapshot(turn.status)
    box = turn.outbox
    # The own reader of a quiet one took response.done for the end.
    box.end(terminal_event(response, box.count, stream_id=box.stream_id), quiet=turn.quiet)
    record(turn, outcome_of(turn))
    goes_on = turn.node is not None and turn.status in ("completed", "incomplete")
    # Past a drain's deadline nothing begins.
    goes_on = goes_on and turn.reason != DRAINED
    calls = turn.node.open_calls if turn.node is not None else NO_CALLS
    turn.steers.conclude(goes_on=goes_on, open_calls=calls)


def refuse(turn: Turn, error: ApiError) -> None:
    """It cannot run: one error event, no response."""
    turn.failure = error.bare()
    turn.status = "refused"
    # An append is told by its event_id; it asked for no turn of its own.
    kind = ErrorEvent if turn.follows_latest else RequestRefused
    turn.push_error(error, turn.request.event_id, kind=kind)
    _evict_parent(turn)
    turn.usage = turn.usage.plus(turn.usage_counter.usage(None))
    turn.leave()
    forsake(turn)
    record(turn, "refused")


def _evict_parent(turn: Turn) -> None:
    """A failed continuation drops its parent if that is this lane's (wire.md 4.4.1).

    A refusal of what was said is no fault of the chain that it was said to.
    """
    said = turn.failure is not None and turn.failure.code == "invalid_prompt"
    if turn.follows is not None and not said:
        turn.host.memory.evict(turn.lane, turn.follows)


def forsake(turn: Turn) -> None:
    """There will be no response: nothing of it stays, and its key is free."""
    turn.holdings.discard()
    turn.holdings.leave()
    turn.steers.drop()
    # A reader of it hears that it is gone, and may claim its key.
    if turn.log is not None:
        turn.log.drop()
    turn.release_key(at_once=True)


def record(turn: Turn, outcome: Outcome) -> None:
    """Has it written down how the turn ended; events that were kept stay for a while."""
    host, log = turn.host, turn.log
    if log is not None:
        goes_at = host.now + host.limits.resume_window
        host.logs.over(log, outcome, memory=host.memory, goes_at=goes_at)
    host.effects.append(Record(record_of(turn, outcome), booked=turn.booked, log=log))


def push_timing(turn: Turn) -> None:
    """Where the time went so far, for a client that asked for it."""
    host = turn.host
    if "timing" in host.extensions:
        stream_id = UNSET if turn.lane is None else turn.lane
        phases = turn.timestamps.phases(host.now)
        timing = events.Timing(stream_id=stream_id, response_id=turn.id, phases=phases)
        host.outgoing.put(turn.lane, timing)


def outcome_of(turn: Turn) -> Outcome:
    """How it ended, for the record."""
    return turn.status  # type: ignore[return-value]  # by now it is one of them


def record_of(turn: Turn, outcome: Outcome) -> TurnRecord:
    """What ``turn`` was, as it ends now."""
    host = turn.host
    settings = turn.settings
    record = TurnRecord(
        response_id=turn.id,
        previous_response_id=turn.follows,
        owner=turn.principal.owner,
        model=settings.model if settings else turn.request.model or "",
        lane=turn.lane,
        outcome=outcome,
        kind="prewarm" if settings and not settings.generate else "turn",
        reason=turn.reason,
        error_code=turn.failure.code if turn.failure else None,
        usage=turn.usage,
        times=turn.timestamps.times(host.now),
        trace_context=turn.request.trace_context,
        work=host.work.since(turn.work_before),
        store=settings.store if settings else False,
        events=turn.outbox.count,
        caller=turn.principal.caller,
    )
    return record if settings is not None else replace(record, settled=False)
