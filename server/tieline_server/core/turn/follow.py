"""Turns that have no response of their own: they read another one's events.

That response may run on another connection, in another process, or have ended. Its events keep
their numbers; only the lane that they name is the reader's.
"""

from collections.abc import Sequence
from contextlib import suppress
from typing import Final

from msgspec import UNSET
from msgspec.structs import replace

from tieline.errors import RESUMED_ELSEWHERE, ApiError
from tieline.events import ErrorDetail, ErrorEvent, Event, RequestRefused, ResponseCreated
from tieline_server.core.effects import CancelSource, Follow, Stop
from tieline_server.core.history.chain import ChainHead
from tieline_server.core.turn.finish import CANCELLED
from tieline_server.core.turn.turn import Reading, Turn

GONE: Final = "The server stopped reading this response."

ABSENT: Final = "The response of this idempotency key does not answer; try again."

CLAIMS: Final = 3
"""How often a turn claims its key: whose it was may be freed while it is asked for."""


def begin(turn: Turn, reading: Reading) -> None:
    """Asks the driver for the events."""
    turn.reading = reading
    turn.id = reading.response_id
    # The deadline is the response's own; a reader of it has none.
    turn.expires_at = None
    turn.host.effects.append(Follow(turn.own_id, reading.response_id, reading.after, reading.moves))


def relay(turn: Turn, taken: Sequence[Event]) -> None:
    """Passes events on; they have their numbers, so that none may join another."""
    turn.host.outgoing.extend(turn.lane, relaned(taken, turn.lane))
    for each in taken:
        if isinstance(each, ResponseCreated):
            # A steered response goes on in a successor, which counts from zero.
            turn.id, turn.outbox.count = each.response.id, 0
        # An error of the reader's own gets the number behind them.
        if each.sequence_number is not UNSET:
            turn.outbox.count = max(turn.outbox.count, each.sequence_number + 1)


def relaned(taken: Sequence[Event], lane: str | None) -> list[Event]:
    """The events as a reader on this lane sees them."""
    name = UNSET if lane is None else lane
    return [each if each.stream_id == name else replace(each, stream_id=name) for each in taken]


def part(turn: Turn, head: ChainHead | None = None) -> None:
    """It was read to its end, and is the lane's latest if it moved here; or no reader is left."""
    if head is not None:
        turn.holdings.rest(turn.lane, head)
        with suppress(ApiError):
            # What is remembered unused makes room for it, or it goes itself.
            turn.host.memory.admit(head.owner)
    turn.holdings.leave()
    turn.host.effects.append(Stop(turn.own_id))


def lose(turn: Turn, error: ApiError) -> None:
    """It cannot be read (any further)."""
    if turn.request.idempotency_key is not None and error.code == "response_not_found":
        # A create asked for no response by its id. It may come again: its key ends with its time.
        error = ApiError.of("server_error", ABSENT)
    turn.push_error(error, turn.request.event_id, kind=RequestRefused)
    turn.failure = error.bare()
    turn.holdings.leave()
    turn.host.effects.append(Stop(turn.own_id))


def gone(turn: Turn, error: ApiError) -> bool:
    """Whether the response of a turn's key came to nothing: the turn then needs one of its own."""
    key = turn.request.idempotency_key
    unheard = turn.outbox.count == 0 and error.code == "response_not_found"
    return key is not None and unheard and turn.claims < CLAIMS


def again(turn: Turn) -> None:
    """The turn reads no other response any more, and has its own id again."""
    if turn.reading is not None:
        turn.id, turn.reading = turn.own_id, None
        if turn.request.timeout_ms is not None:
            turn.expires_at = turn.timestamps.received + turn.request.timeout_ms / 1000


def cut(turn: Turn, reason: str) -> None:
    """Passes a cancel on to the response that is read; any other reason ends only this reader."""
    if reason == CANCELLED:
        turn.host.effects.append(CancelSource(turn.id, turn.principal.owner))
    else:
        turn.handle("fail", ApiError.of("server_draining", GONE, retry_after=1.0))


def say_elsewhere(turn: Turn) -> None:
    """Tells the lane's reader why no more comes."""
    error = ApiError.of(RESUMED_ELSEWHERE, "This response was resumed on another connection.")
    told = ErrorEvent(
        # It is no event of the response, which others read with the same numbers.
        sequence_number=turn.outbox.count,
        stream_id=UNSET if turn.lane is None else turn.lane,
        status=error.status,
        error=ErrorDetail.of(error),
    )
    turn.host.outgoing.put(turn.lane, told)


def missed(turn: Turn, after: int | None) -> list[Event]:
    """What a reader that has seen the events up to ``after`` has missed so far."""
    return [] if turn.log is None else turn.log.after(after)
