"""One timer for a coroutine that writes: stuck in a write, or silent for too long."""

import asyncio
from collections.abc import Callable
from typing import Any, Final

PACE: Final = 16 * 1024
"""Bytes that a peer takes of a write within the write timeout, or is stuck: a usual write has no
more, and a larger one, of one large event, is given as much time as so many of them."""


class Stuck(Exception):
    """A write took longer than the write timeout."""


class WriterTimer:
    """One timer that interrupts a writer: stuck in a write, or silent for too long.

    It moves lazily: a write costs two stores here, where two timers of their own would cost a
    fifth of the write. It interrupts by a cancellation of the task that made it, and that task
    asks ``fired`` whose cancellation it was. ``unsent`` says how many bytes wait for the peer,
    where that can be known.
    """

    __slots__ = ("_fired", "_handle", "_heartbeat", "_left", "_loop", "_quiet_since", "_task",
                 "_timeout", "_unsent", "_writing_since")  # fmt: skip

    def __init__(
        self,
        *,
        heartbeat: float,
        write_timeout: float,
        unsent: Callable[[], int] | None = None,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        task = asyncio.current_task()
        assert task is not None, "made by the coroutine that writes"
        self._task: asyncio.Task[Any] | None = task
        self._heartbeat = heartbeat
        self._timeout = write_timeout
        self._quiet_since = self._loop.time()
        self._writing_since: float | None = None
        self._unsent = unsent
        self._left = 0
        self._fired = False
        self._handle: asyncio.TimerHandle | None = None
        self._arm(self._quiet_since + heartbeat)

    @property
    def writing(self) -> bool:
        """Whether a write is in flight."""
        return self._writing_since is not None

    def begin(self, left: int = 0) -> None:
        """A write begins, of so many bytes, where progress of it can be seen."""
        self._writing_since = self._loop.time()
        self._left = left

    def end(self) -> None:
        """A write is done."""
        self._writing_since = None
        self._quiet_since = self._loop.time()

    def interrupt(self) -> None:
        """Interrupts the writer now."""
        if self._task is not None:
            self._fired = True
            self._task.cancel()

    def fired(self) -> bool:
        """Whether the cancellation that just arrived is this timer's; takes it back if so.

        False as well when the call itself was cancelled in the same moment.
        """
        if not self._fired or self._task is None:
            return False
        self._fired = False
        self._arm(self._loop.time() + self._heartbeat)
        return self._task.uncancel() == 0

    def interruption(self) -> BaseException:
        """What a cancellation that arrived in a write means: :class:`Stuck` where it is ours."""
        return Stuck() if self.fired() else asyncio.CancelledError()

    def stop(self) -> None:
        """Interrupts nothing any more, and keeps no task alive that ended by an exception."""
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None
        self._task = None

    def _arm(self, due: float) -> None:
        # Never further ahead than the shorter of the two, so that neither is noticed late.
        soon = self._loop.time() + min(self._heartbeat, self._timeout)
        self._handle = self._loop.call_at(min(due, soon), self._tick)

    def _tick(self) -> None:
        since = self._writing_since
        due = self._quiet_since + self._heartbeat if since is None else since + self._timeout
        if self._loop.time() < due:
            self._arm(due)
        elif since is not None and self._moves():
            self._writing_since = self._loop.time()
            self._arm(self._writing_since + self._timeout)
        else:
            self._handle = None
            self.interrupt()

    def _moves(self) -> bool:
        """Whether the peer, late as it is, has taken enough since this was asked last."""
        if self._unsent is None:
            return False
        before, self._left = self._left, self._unsent()
        return before - self._left >= PACE
