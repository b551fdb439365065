"""One request to one replica, and the stream that it answers with."""

import asyncio
import email.utils
import logging
import time
from contextlib import suppress
from datetime import UTC, datetime
from typing import Final

from msgspec import Struct, structs

from tieline_server.engines.upstream.faults import (
    Failure,
    cut,
    malformed,
    refused,
    said_in,
    silent,
    unreachable,
)
from tieline_server.engines.upstream.http import Connection, Late, Pool
from tieline_server.engines.upstream.replicas import Replica
from tieline_server.engines.upstream.sse import EventStream, EventTooLarge

logger: Final = logging.getLogger("tieline.upstream")

LARGEST_ERROR: Final = 64 * 1024
"""Bytes of an error's body that are read."""

CLOSING: Final = 1.0
"""Seconds that an answer has to end its HTTP body: after its last event, or where it refuses."""


class Patience(Struct, frozen=True, kw_only=True):
    """Seconds that an upstream may take."""

    connect: float = 5.0
    first: float = 120.0
    """Until the head of the answer, and from there until its first event."""
    between: float = 60.0
    """Between two pieces of an answer that has begun."""
    longest: float = 0.0
    """Between two where the upstream shows that it lives: the longer of both."""

    def __post_init__(self) -> None:
        structs.force_setattr(self, "longest", max(self.first, self.between))


class Exchange:
    """Open it, read it to its end, close it in every case."""

    __slots__ = (
        "_connection", "_events", "_limit", "_patience", "_placed", "_pool", "_replica",
        "_until", "heard", "waited",
    )  # fmt: skip

    def __init__(self, pool: Pool, replica: Replica, *, patience: Patience) -> None:
        self._pool = pool
        self._replica = replica
        self._patience = patience
        self._connection: Connection | None = None
        self._events = EventStream()
        self._limit = patience.first
        """Seconds that the next bytes may take, without the time that this side works on them."""
        self._until: float | None = None
        """When the next piece has to be there, whatever other bytes there are."""
        self.heard = False
        """Whether a piece of the answer came since the last wait; who reads it says so."""
        self._placed = False
        self.waited = 0
        """Nanoseconds until there was a place."""

    async def open(self, path: str, body: bytes) -> None:
        """Sends the request; returns at the head of a good answer. Raises :class:`Failure`."""
        asked = time.perf_counter_ns()
        await self._replica.places.acquire()
        self._placed = True
        self.waited = time.perf_counter_ns() - asked
        url = f"{self._replica.url}/{path}"
        try:
            connection = await self._pool.post(url, body, within=self._limit)
            self._connection = connection
            if connection.status != 200:
                raise await self._refusal(connection)
        except Late as error:
            raise self._log(silent(), error) from None
        except OSError as error:
            raise self._log(unreachable(), error) from None
        kind = connection.headers.get("content-type", "")
        if not kind.lower().startswith("text/event-stream"):
            raise malformed()

    def take(self) -> list[bytes] | None:
        """The events that are there, maybe none; None at the end. Raises :class:`Failure`."""
        assert self._connection is not None
        try:
            while piece := self._connection.take():
                if events := self._events.feed(piece):
                    return events
        except EventTooLarge:
            raise malformed() from None
        except OSError as error:
            raise self._log(silent() if isinstance(error, Late) else cut(), error) from None
        return [] if piece is None else None

    def more(self) -> "asyncio.Future[None] | None":
        """Done when something has come; None where something is there. One at a time.

        Raises :class:`Failure` where only comments have come for too long.
        """
        connection = self._connection
        assert connection is not None
        if not connection.waits:
            return None
        now = connection.time()
        if self.heard:
            self.heard = False
            self._limit = self._patience.between
            self._until = now + self._patience.longest
        deadline = now + self._limit
        if self._until is None:
            self._until = deadline
        elif deadline > self._until:
            deadline = self._until
            if deadline <= now:
                raise self._log(silent(), Late("nothing but signs of life"))
        connection.deadline = deadline
        return connection.more()

    def close(self) -> None:
        """Ends the request at once, wherever it stands."""
        self._leave(keep=False)

    def detach(self) -> "Exchange | None":
        """The last event was read: what is left of the body, where it has not ended yet.

        To be finished; this exchange is over.
        """
        assert self._connection is not None
        if self._connection.ended:
            self._leave(keep=True)
            return None
        rest = Exchange(self._pool, self._replica, patience=self._patience)
        rest._connection, self._connection = self._connection, None
        rest._placed, self._placed = self._placed, False
        return rest

    async def finish(self) -> None:
        """The connection can serve again once the body has ended."""
        connection = self._connection
        if connection is None:
            return
        connection.deadline = connection.time() + CLOSING
        try:
            while await connection.read():
                pass
        except OSError:
            self._leave(keep=False)
        finally:
            self._leave(keep=connection.ended)

    def _leave(self, *, keep: bool) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            if keep:
                connection.release()
            else:
                connection.close()
        if self._placed:
            self._placed = False
            self._replica.places.release()

    async def _refusal(self, connection: Connection) -> Failure:
        body = bytearray()
        connection.deadline = min(connection.deadline, connection.time() + CLOSING)
        # Where the body comes late or is cut, the status has said what it is.
        with suppress(OSError):
            while len(body) < LARGEST_ERROR and (piece := await connection.read()):
                body += piece
        said = said_in(bytes(body))
        after = retry_after(connection.headers.get("retry-after"), now=datetime.now(UTC))
        failure = refused(connection.status, said, retry_after=after)
        # What is wrong with a request is often said by quoting it: that is for its client alone.
        told = "" if failure.error.code == "invalid_request" else said.message[:500]
        logger.warning("upstream refused: %s %s %s", self._replica.url, connection.status, told)
        return failure

    def _log(self, failure: Failure, error: BaseException) -> Failure:
        logger.warning(
            "upstream failed: %s %s: %s", self._replica.url, failure, type(error).__name__
        )
        return failure


def retry_after(value: str | None, *, now: datetime) -> float | None:
    """Seconds that ``Retry-After`` asks for: a number, or a date (RFC 9110 10.2.3).

    >>> retry_after("7", now=datetime.now(UTC))
    7.0
    """
    if value is None:
        return None
    try:
        seconds = float(value)
    except ValueError:
        try:
            seconds = (email.utils.parsedate_to_datetime(value) - now).total_seconds()
        except (TypeError, ValueError):
            return None
    return min(max(seconds, 0.0), 3600.0) if seconds == seconds else None
