"""What to do when a turn was not answered, without I/O: replay, resume, or say so.

Theory of operation. What may be done follows from how far the request had come, and from nothing
else (RFC 9110 9.2.2 for requests in general). One that never left may go again. One that left
and was not answered may be running: it goes again only under a key by which the server finds the
first one, or when the caller takes the risk. One whose response had begun is never sent again:
its rest is fetched by id and number, or what came of it is raised as the part that it is. A
refusal before the response began is an answer: nothing runs, and the request may go again when
its code says that this can help.

``MOVES`` lists for every fault what can be done, best first; each move needs what ``NEEDS`` says,
and the last of a row needs nothing.
"""

from collections.abc import Callable
from enum import Enum
from typing import Final

from msgspec import Struct

from tieline.errors import ApiError
from tieline_client.errors import (
    ConnectionClosed,
    IncompleteStream,
    NotSent,
    OutcomeUnknown,
)


class Fault(Enum):
    """Why a turn stopped."""

    UNSENT = "unsent"
    """The request never left this side."""
    LOST = "lost"
    """It left, and nothing was heard."""
    CUT = "cut"
    """Its response had begun."""
    BUSY = "busy"
    """Refused before the response began, by an error that may pass."""
    LEAVING = "leaving"
    """Refused because this connection takes no new work."""
    FORGOTTEN = "forgotten"
    """Refused because the server does not know the previous response."""
    TOO_LARGE = "too large"
    """Beyond what one message of this transport may have."""
    FINAL = "final"
    """All else: the same request would fail again."""


class Move(Enum):
    """What to do about it."""

    AGAIN = "again"
    """The same request, after a while."""
    ELSEWHERE = "elsewhere"
    """The same turn on a new connection, with as much of its history as that connection needs."""
    ATTACH = "attach"
    """The very same request under its key: it attaches to the first one, if there was one."""
    WHOLE = "whole"
    """The turn with its full history and no previous response."""
    RESUME = "resume"
    """The rest of the response, from the last number on."""
    OTHER_TRANSPORT = "other transport"
    """The turn over HTTP, which takes larger requests."""
    UNKNOWN = "unknown"
    """Raise that it is unknown whether it ran."""
    RAISE = "raise"
    """Raise what happened."""


class Means(Struct, frozen=True, kw_only=True):
    """What a turn has at hand when it stops."""

    attempts: bool
    """Whether it may be tried once more."""
    keyed: bool
    """Whether the request has a key by which the server finds the first one."""
    unsafe: bool
    """Whether the caller takes the risk that everything happens twice."""
    resumable: bool
    """Whether the server keeps the response for a while."""
    whole: bool
    """Whether a full history can be sent, and was not sent yet."""
    other_transport: bool
    """Whether there is HTTP beside this transport."""


MOVES: Final[dict[Fault, tuple[Move, ...]]] = {
    Fault.UNSENT: (Move.ELSEWHERE, Move.RAISE),
    Fault.LOST: (Move.ATTACH, Move.ELSEWHERE, Move.UNKNOWN),
    Fault.CUT: (Move.RESUME, Move.RAISE),
    Fault.BUSY: (Move.AGAIN, Move.RAISE),
    Fault.LEAVING: (Move.ELSEWHERE, Move.RAISE),
    Fault.FORGOTTEN: (Move.WHOLE, Move.RAISE),
    Fault.TOO_LARGE: (Move.OTHER_TRANSPORT, Move.RAISE),
    Fault.FINAL: (Move.RAISE,),
}

NEEDS: Final[dict[tuple[Fault, Move], Callable[[Means], bool]]] = {
    (Fault.UNSENT, Move.ELSEWHERE): lambda means: means.attempts,
    (Fault.LOST, Move.ATTACH): lambda means: means.keyed and means.attempts,
    (Fault.LOST, Move.ELSEWHERE): lambda means: means.unsafe and means.attempts,
    (Fault.CUT, Move.RESUME): lambda means: means.resumable and means.attempts,
    (Fault.BUSY, Move.AGAIN): lambda means: means.attempts,
    (Fault.LEAVING, Move.ELSEWHERE): lambda means: means.attempts,
    (Fault.FORGOTTEN, Move.WHOLE): lambda means: means.whole,
    (Fault.TOO_LARGE, Move.OTHER_TRANSPORT): lambda means: means.other_transport,
}
"""What a move needs; one that is not here needs nothing."""

_CODES: Final[dict[str, Fault]] = {
    "previous_response_not_found": Fault.FORGOTTEN,
    "websocket_connection_limit_reached": Fault.LEAVING,
    "server_draining": Fault.LEAVING,
    "request_too_large": Fault.TOO_LARGE,
}
_ENDS: Final = frozenset({"request_too_large", "websocket_connection_limit_reached"})
"""Codes of a connection's end which say that what was just sent has not been taken (RFC 6455
7.4.1)."""


def fault(error: Exception, *, begun: bool, refused: bool) -> Fault:
    """What an exception says of a turn.

    ``begun``: its response had begun. ``refused``: the server has answered this request with it;
    else it is why the connection ended.
    """
    match error:
        case IncompleteStream():
            return Fault.CUT
        case OutcomeUnknown():
            return Fault.LOST
        case NotSent():
            return Fault.UNSENT
        case ApiError() if begun:
            return Fault.FINAL
        case ApiError() if refused or error.code in _ENDS:
            busy = Fault.BUSY if error.retryable else Fault.FINAL
            return _CODES.get(error.code, busy)
        case ApiError() if error.retryable or error.status >= _SERVER:
            # The connection broke with a word of why; whether the request was taken is not said.
            return Fault.LOST
        case ConnectionClosed() | _:
            return Fault.FINAL


_SERVER: Final = 500


def choose(what: Fault, means: Means) -> Move:
    """The first move of the fault's row that can be made."""
    for move in MOVES[what]:
        needs = NEEDS.get((what, move))
        if needs is None or needs(means):
            return move
    raise AssertionError(what)


MAX_AGE: Final = 55 * 60.0
"""Seconds after which a connection gets no new work: OpenAI closes a WebSocket after 60 minutes."""


class Backoff(Struct, frozen=True, kw_only=True):
    """How often to try again, and when. Times are seconds.

    ``max_retries``: tries of one request without any progress. ``first``: the longest first
    wait; each further one may be twice as long, up to ``longest``. A server that names a longer
    wait than ``patience`` is not waited for.
    """

    max_retries: int = 4
    first: float = 0.5
    longest: float = 8.0
    patience: float = 60.0

    def wait(self, attempt: int, *, asked: float | None, chance: float) -> float:
        """Seconds before this attempt, from 1; ``chance`` is uniform in [0, 1).

        Half of a wait is by chance, so that clients who lost the same server do not come back
        as one. ``asked`` is what the server said.

        >>> Backoff().wait(3, asked=None, chance=0.5)
        1.5
        """
        if asked is not None:
            return asked + self.first * chance
        full = min(self.longest, self.first * 2.0 ** min(attempt - 1, 30))
        return float(full * (1 + chance) / 2)


class Policy(Struct, frozen=True, kw_only=True):
    """What a session does about failures. Times are seconds.

    ``idempotent``: each create gets a key, so that a server with the extension
    ``idempotency_key`` can be asked again without making anything twice, and keeps the response
    for a resume. ``replay_unsafe``: a create that was sent and not answered goes again even
    without such a server; it may then run twice. ``max_age``: older connections get no new work.
    """

    idempotent: bool = True
    replay_unsafe: bool = False
    max_age: float = MAX_AGE
    backoff: Backoff = Backoff()
