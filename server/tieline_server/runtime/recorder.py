"""Writes down the events of a stored response as it runs.

So that it can be found by another process, and outlasts this one.
"""

import asyncio
import logging
from typing import Final

from tieline.codecs import json
from tieline.errors import ApiError
from tieline_server.core.stream.replay_log import Replayed, ReplayLog
from tieline_server.core.turn.follow import relaned
from tieline_server.storage.base import Entry, Journal, RunningResponse

logger: Final = logging.getLogger("tieline.runtime")

FLUSH: Final = 0.1
"""Seconds until events of a turn that runs are written down."""


class Recorder:
    """Writes down the events of one turn. Made as its log begins."""

    __slots__ = ("_flushed", "_journal", "_log", "_loop", "_model", "_started_at", "_timer",
                 "_transport", "_turn", "begun")  # fmt: skip

    def __init__(
        self,
        log: ReplayLog,
        journal: Journal,
        *,
        turn: Replayed,
        model: str,
        transport: str,
        started_at: float,
    ) -> None:
        self._log = log
        self._turn: Replayed | None = turn
        """While it runs: afterwards nothing keeps it or its connection in a reference cycle."""
        self._journal = journal
        self._model = model
        self._transport = transport
        self._started_at = started_at
        self._flushed = 0
        self._timer: asyncio.TimerHandle | None = None
        self._loop = asyncio.get_running_loop()
        self.begun = self._loop.create_task(self._begin(self._begun(turn)))
        """Done when it is durable that the response runs: whether it is."""
        log.recorder = self
        log.listen(self._more)

    async def _begin(self, running: RunningResponse) -> bool:
        try:
            await self._journal.begin(running)
        except ApiError:
            return False  # The part that found out what is away has logged it.
        except Exception:
            logger.exception("journal.begin failed", extra={"response_id": running.response.id})
            return False
        return True

    def _begun(self, turn: Replayed) -> RunningResponse:
        return RunningResponse(
            response=turn.so_far(),
            owner=self._log.owner,
            model=self._model,
            transport=self._transport,
            started_at=self._started_at,
        )

    def _more(self) -> None:
        if self._timer is None:
            self._timer = self._loop.call_later(FLUSH, self.flush)

    def flush(self) -> None:
        """Hands over what has come since; the terminal event is made of the response itself."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        turn, log = self._turn, self._log
        if turn is None or not log.whole:
            return
        said = log.after(self._flushed - 1)
        if said and said[-1].TERMINAL:
            said.pop()
        # The lane is its reader's, and every reader has another one.
        fresh = [json.encode(event) for event in relaned(said, None)]
        if not fresh:
            return
        entry = Entry(
            response_id=log.response_id,
            owner=log.owner,
            first=self._flushed,
            events=tuple(fresh),
            standing=self._begun(turn),
        )
        self._flushed += len(fresh)
        self._journal.log(entry)

    async def settle(self) -> None:
        """Everything but the end is handed over, in order: the response may be stored now."""
        await self.begun
        self.flush()

    def stop(self, *, stored: bool) -> None:
        """The turn has ended. Where it will never be stored, what was written down of it goes."""
        if self._turn is None:
            return
        self._turn = None
        if not stored:
            owner, response_id = self._log.owner, self._log.response_id
            self.begun.add_done_callback(lambda _: self._journal.end(owner, response_id))
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._log.unlisten(self._more)


async def lasts(log: ReplayLog) -> bool:
    """Returns once it is durable that a turn runs which will be stored: whether it is."""
    # The task that waits may be cancelled; what is being written is written.
    return log.recorder is None or await asyncio.shield(log.recorder.begun)
