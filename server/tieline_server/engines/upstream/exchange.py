"""One request to one replica, and the stream that it answers with."""

import asyncio
import email.utils
import logging
import time
from datetime import UTC, datetime
from typing import Final

from msgspec import Struct

from tieline_server.engines.upstream.faults import (
    Failure,
    cut,
    malformed,
    refused,
    said_in,
    silent,
    unreachable,
)
from tieline_server.engines.upstream.http import Connection, Pool
from tieline_server.engines.upstream.replicas import Replica
from tieline_server.engines.upstream.sse import EventStream, EventTooLarge

logger: Final = logging.getLogger("tieline.upstream")

LARGEST_ERROR: Final = 64 * 1024
"""Bytes of an error's body that are read."""

CLOSING: Final = 1.0
"""Seconds that an answer has to end its HTTP body after its last event."""


class Patience(Struct, frozen=True, kw_only=True):
    """Seconds that an upstream may take."""

    connect: float = 5.0
    first: float = 120.0
    """Until the head of the answer, and from there until its first event."""
    between: float = 60.0
    """Between two pieces of an answer that has begun."""


class Exchange:
    """Open it, read it to its end, close it in every case."""

    __slots__ = ("_events", "_patience", "_pool", "_replica", "_response", "_watch", "waited")

    def __init__(self, pool: Pool, replica: Replica, *, patience: Patience) -> None:
        self._pool = pool
        self._replica = replica
        self._patience = patience
        self._response: Connection | None = None
        self._events = EventStream()
        self._watch: _Watch | None = None
        self.waited = 0
        """Nanoseconds until there was a place."""

    async def open(self, path: str, body: bytes) -> None:
        """Sends the request; returns at the head of a good answer. Raises :class:`Failure`."""
        asked = time.perf_counter_ns()
        await self._replica.places.acquire()
        self.waited = time.perf_counter_ns() - asked
        try:
            self._response = await self._post(path, body)
        finally:
            if self._response is None:
                self._replica.places.release()
        self._watch = _Watch(self._response, self._patience)

    async def read(self) -> list[bytes] | None:
        """The next events, at least one; None at the end. Raises :class:`Failure`."""
        response, watch = self._response, self._watch
        assert response is not None
        assert watch is not None
        while True:
            try:
                piece = response.take()
            except OSError as error:
                raise self._broken(error) from None
            if piece is None:
                watch.since = watch.time()
                try:
                    await response.more()
                finally:
                    watch.since = None
                continue
            if not piece:
                if watch.expired:
                    raise silent()
                return None
            try:
                events = self._events.feed(piece)
            except EventTooLarge:
                raise malformed() from None
            if events:
                watch.begun = True
                return events

    def close(self) -> None:
        """Ends the request at once, wherever it stands."""
        self._leave(keep=False)

    def detach(self) -> "Exchange | None":
        """The last event was read: what is left of the body, where it has not ended yet.

        To be finished; this exchange is over.
        """
        response = self._response
        assert response is not None
        if response.ended:
            self._leave(keep=True)
            return None
        rest = Exchange(self._pool, self._replica, patience=self._patience)
        rest._response, self._response = response, None
        if self._watch is not None:
            self._watch.end()
        return rest

    async def finish(self) -> None:
        """The connection can serve again once the body has ended."""
        response = self._response
        if response is None:
            return
        try:
            async with asyncio.timeout(CLOSING):
                while await response.read():
                    pass
        except OSError:
            self._leave(keep=False)
        finally:
            self._leave(keep=response.ended)

    def _leave(self, *, keep: bool) -> None:
        if self._watch is not None:
            self._watch.end()
        response, self._response = self._response, None
        if response is None:
            return
        if keep:
            response.release()
        else:
            response.close()
        self._replica.places.release()

    async def _post(self, path: str, body: bytes) -> Connection:
        response: Connection | None = None
        good = False
        try:
            async with asyncio.timeout(self._patience.first):
                response = await self._pool.post(f"{self._replica.url}/{path}", body)
                if response.status != 200:
                    raise await self._refusal(response)
            kind = response.headers.get("content-type", "")
            if not kind.lower().startswith("text/event-stream"):
                raise malformed()
            good = True
            return response
        except TimeoutError as error:
            raise self._log(silent(), error) from None
        except OSError as error:
            raise self._log(unreachable(), error) from None
        finally:
            if response is not None and not good:
                response.close()

    async def _refusal(self, response: Connection) -> Failure:
        body = bytearray()
        while len(body) < LARGEST_ERROR and (piece := await response.read()):
            body += piece
        said = said_in(bytes(body))
        after = retry_after(response.headers.get("retry-after"), now=datetime.now(UTC))
        failure = refused(response.status, said, retry_after=after)
        # What is wrong with a request is often said by quoting it: that is for its client alone.
        told = "" if failure.error.code == "invalid_request" else said.message[:500]
        logger.warning("upstream refused: %s %s %s", self._replica.url, response.status, told)
        return failure

    def _broken(self, error: BaseException) -> Failure:
        expired = self._watch is not None and self._watch.expired
        return self._log(silent() if expired else cut(), error)

    def _log(self, failure: Failure, error: BaseException) -> Failure:
        logger.warning(
            "upstream failed: %s %s: %s", self._replica.url, failure, type(error).__name__
        )
        return failure


class _Watch:
    """Closes a response whose upstream keeps us waiting; costs a turn two assignments a read."""

    __slots__ = ("_between", "_first", "_loop", "_response", "_timer", "begun", "expired", "since",
                 "time")  # fmt: skip

    def __init__(self, response: Connection, patience: Patience) -> None:
        self._response = response
        self._first, self._between = patience.first, patience.between
        self._loop = asyncio.get_running_loop()
        self.time = self._loop.time
        self.since: float | None = None
        """Since when the upstream has to say something; what is done with it is not its time."""
        self.begun = False
        """Whether an event has come."""
        self.expired = False
        self._timer = self._loop.call_later(min(self._first, self._between), self._look)

    def end(self) -> None:
        """Nobody waits any more."""
        self._timer.cancel()

    def _look(self) -> None:
        limit = self._between if self.begun else self._first
        since = self.since
        left = limit if since is None else since + limit - self.time()
        if left > 0:
            self._timer = self._loop.call_later(min(left, self._first, self._between), self._look)
            return
        self.expired = True
        self._response.close()


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
