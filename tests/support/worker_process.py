"""A process that plays a worker: it hears orders and says what a test has it say."""

import asyncio
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from tests.support.process_state import PATIENCE
from tieline_server.workers.child import Child
from tieline_server.workers.control import Serve

PREAMBLE = """
import os, signal, socket, sys
from tieline_server.workers.control import TO_WORKER, Drain, Failed, Serve, Serving
from tieline_server.workers.framing import pack

control = socket.socket(fileno=int(sys.argv[1]))

def hear():
    return TO_WORKER.receive(control)

def say(message):
    control.sendall(pack(message))
"""

SERVES = "order = hear(); say(Serving())\n"
"""Serves what it is told first, and has that as ``order``."""

UNTIL_DRAINED = SERVES + "hear()\n"
"""Serves until the next order, whatever that is."""

ORDER = Serve(config={"workers": 2}, tag=b"\1\2", folder="/nowhere", row=3)


class WorkerProcess:
    """A process that was started, and what is known of it before it is anybody's child."""

    def __init__(self, does: str) -> None:
        self.control, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-c", PREAMBLE + does, str(theirs.fileno())],
                pass_fds=(theirs.fileno(),),
                stdout=subprocess.PIPE,
            )
        self.pid = self._process.pid

    def child(self) -> Child:
        """It as its supervisor sees it."""
        return Child(self.pid, os.pidfd_open(self.pid), self.control)

    def printed(self) -> str:
        """All that it printed; waits for its end."""
        return self._process.communicate(timeout=PATIENCE)[0].decode().strip()

    def end(self) -> None:
        """Ends it, if it still runs, and lets go of it."""
        self._process.kill()
        self._process.communicate(timeout=PATIENCE)
        self.control.close()


@contextmanager
def worker_process(does: str) -> Iterator[WorkerProcess]:
    """One that does this, behind :data:`PREAMBLE`."""
    process = WorkerProcess(does)
    try:
        yield process
    finally:
        process.end()


async def gone(child: Child, status: int | None = 0) -> None:
    """Waits for the end of one that no other process reaps."""
    async with asyncio.timeout(PATIENCE):
        await child.ended.wait()
        child.reaped(status)
        await child.close()
