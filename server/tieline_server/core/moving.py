"""Turns that change their line: one that outlives its own, one that is resumed on another.

A turn never knows: its host is another line from one event to the next.
"""

from typing import TYPE_CHECKING

from msgspec import UNSET

from tieline import events
from tieline.errors import ApiError

if TYPE_CHECKING:
    from tieline_server.core.lane import Lane
    from tieline_server.core.line import Line
    from tieline_server.core.turn import Turn


def part(turn: "Turn", lane: "Lane") -> None:
    """The turn runs on without its line, until another line takes it."""
    host = turn.host
    lane.current = None
    lane.handle("end")
    if turn in host.waiting:
        host.waiting.remove(turn)
    if turn.placed:
        host.admission.leave()
    turn.standing.let_go()


def say_elsewhere(turn: "Turn") -> None:
    """Tells the lane's reader why no more comes."""
    error = ApiError.of("resumed_elsewhere", "This response was resumed on another connection.")
    told = events.ErrorEvent(
        # It is no event of the response, which others read with the same numbers.
        sequence_number=turn.outbox.count,
        stream_id=UNSET if turn.lane is None else turn.lane,
        status=error.status,
        error=events.ErrorDetail.of(error),
    )
    turn.host.outgoing.put(turn.lane, told)


def join(line: "Line", turn: "Turn", lane: "Lane") -> None:
    """The turn runs on a lane of this line from here on."""
    turn.host = line
    turn.lane = lane.name
    turn.recall = lane.recall
    turn.work_before = line.work.copy()
    turn.standing.move_to(line)
    turn.outbox.move_to(line.outgoing, lane.name)
    if turn.placed:
        line.admission.enter()
    if turn.state == "waiting":
        line.waiting.append(turn)
    reader = lane.current
    lane.handle("seat", turn)
    if reader is not None:
        reader.handle("read")


def told(turn: "Turn", after: int | None) -> list[events.Event]:
    """What a reader that has seen the events up to ``after`` has missed so far."""
    return [] if turn.log is None else turn.log.after(after)
