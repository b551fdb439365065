"""Turns that change their connection: one that outlives its own, one that is resumed on another.

A turn never knows: its host is another connection from one event to the next.
"""

from msgspec import UNSET

from tieline import events
from tieline.errors import ApiError
from tieline_server.core.lane import Lane
from tieline_server.core.turn import Host, Turn


def part(turn: Turn, lane: Lane) -> None:
    """The turn runs on without its connection, until another connection takes it."""
    host = turn.host
    lane.handle("end")
    if turn in host.waiting:
        host.waiting.remove(turn)
    if turn.placed:
        host.admission.leave()
    turn.standing.let_go()


def say_elsewhere(turn: Turn) -> None:
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


def join(host: Host, turn: Turn, lane: Lane) -> None:
    """The turn runs on a lane of this host from here on."""
    turn.host = host
    turn.lane = lane.name
    turn.recall = lane.recall
    turn.work_before = host.work.copy()
    turn.standing.move_to(host)
    turn.outbox.move_to(host.outgoing, lane.name)
    if turn.placed:
        host.admission.enter()
    if turn.state == "waiting":
        host.waiting.append(turn)
    reader = lane.current
    lane.handle("seat", turn)
    if reader is not None:
        reader.handle("read")


def told(turn: Turn, after: int | None) -> list[events.Event]:
    """What a reader that has seen the events up to ``after`` has missed so far."""
    return [] if turn.log is None else turn.log.after(after)
