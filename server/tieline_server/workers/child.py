"""A worker as its supervisor sees it: a process, and what it says."""

import asyncio
import contextlib
import os
import signal
import socket

from tieline_server.workers.control import FROM_WORKER, Drain, Failed, Serve, Serving
from tieline_server.workers.framing import BrokenMessage, pack


class NotServing(Exception):
    """A worker ended before it served; the message says why in one line."""


async def either(*events: asyncio.Event) -> None:
    """Waits until one of the events is set."""
    waits = [asyncio.create_task(event.wait()) for event in events]
    try:
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for wait in waits:
            wait.cancel()


class Child:
    """The process of a worker; ``process`` is a descriptor of it, ``control`` our end."""

    def __init__(self, pid: int, process: int, control: socket.socket) -> None:
        self._loop = asyncio.get_running_loop()
        self.pid = pid
        self.status: int | None = None
        """Its exit status, where that is known; a signal's number below zero."""
        self._reaped = asyncio.Event()
        self.order: Serve | None = None
        self.asked = False
        """Whether the supervisor wants it to end."""
        self.ended = asyncio.Event()
        self._serving = asyncio.Event()
        self._served_at: float | None = None
        self._ended_at: float | None = None
        self._reason = ""
        self._process = process
        self._control = control
        control.setblocking(False)
        self._loop.add_reader(process, self._exited)
        self._listening = self._loop.create_task(self._listen())

    @property
    def serves(self) -> bool:
        """Whether it serves, or did until its end."""
        return self._served_at is not None

    @property
    def served(self) -> float:
        """How many seconds it has served, or had at its end."""
        if self._served_at is None:
            return 0.0
        return (self._ended_at or self._loop.time()) - self._served_at

    async def serve(self, order: Serve) -> None:
        """Tells it to serve, and returns when it does; raises :class:`NotServing`."""
        self.order = order
        self._tell(order)
        await either(self._serving, self.ended)
        if self.ended.is_set():
            # What it said last may still be on its way.
            await asyncio.wait([self._listening])
            raise NotServing(self._reason or "a worker ended before it was ready")
        self._served_at = self._loop.time()

    def drain(self, *, insist: bool = False) -> None:
        """Tells it to end in order; ``insist``: without waiting for what runs."""
        self.asked = True
        self._tell(Drain(insist))

    def kill(self) -> None:
        """Kills it."""
        self.asked = True
        if not self.ended.is_set():
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._process, signal.SIGKILL)

    def reaped(self, status: int | None) -> None:
        """Takes the exit status from its parent; None where the parent is gone too."""
        self.status = status
        self._reaped.set()

    async def close(self) -> None:
        """Closes what belonged to it, once it has ended."""
        await self.ended.wait()
        await asyncio.wait([self._listening])
        await self._reaped.wait()
        self._control.close()

    def _tell(self, message: Serve | Drain) -> None:
        """Sends some kilobytes at most, which a socket takes at once; the worker may be gone."""
        with contextlib.suppress(OSError):
            self._control.send(pack(message))

    async def _listen(self) -> None:
        reader, writer = await asyncio.open_connection(sock=self._control.dup())
        with contextlib.suppress(BrokenMessage):
            while (said := await FROM_WORKER.read(reader)) is not None:
                if isinstance(said, Failed):
                    self._reason = said.reason
                elif isinstance(said, Serving):
                    self._serving.set()
        writer.close()

    def _exited(self) -> None:
        self._loop.remove_reader(self._process)
        os.close(self._process)
        # Its parent is the fork server, and when that is gone the first process of all: maybe we.
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self.pid, os.WNOHANG)
        self._ended_at = self._loop.time()
        self.ended.set()
