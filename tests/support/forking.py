"""A fork server whose workers do what a test has them do."""

import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tieline_server.workers.child import Child
from tieline_server.workers.control import Serve
from tieline_server.workers.fork_server import ForkServer
from tieline_server.workers.shared_counters import SharedCounters
from tieline_server.workers.worker_context import COUNTERS

CODE = """
import os, signal, sys, threading
from pathlib import Path
from tieline.errors import TielineError
from tieline_server.workers.control import TO_WORKER
from tieline_server.workers.fork_server_process import run_fork_server
from tieline_server.workers.worker_process import run_worker

def prepare(config):
{prepare}

def serve(config, context):
{serve}

def command(descriptor):
    return [sys.executable, "-c", CODE, "worker", str(descriptor)]

word, descriptor = sys.argv[-2], int(sys.argv[-1])
if word == "worker":
    sys.exit(run_worker(descriptor, serve))
sys.exit(run_fork_server(descriptor, prepare=prepare, serve=serve, command=command))
"""

SERVES = "context.ready(); order = TO_WORKER.receive(context._control)"
"""Serves until the next order, which is then ``order``."""

SIGNS = f"(context.folder / context.tag.hex()).write_text(str(os.getpid())); {SERVES}"
"""The same, and writes down which process has which tag."""

THREADED = "threading.Thread(target=signal.pause, daemon=True).start()"
"""Prepares by starting a thread, as what instruments an interpreter does."""


def command(*, prepare: str = "pass", serve: str = SERVES) -> list[str]:
    """Returns what starts a fork server, but for the number of its descriptor."""
    code = CODE.format(
        prepare=textwrap.indent(prepare, "    "), serve=textwrap.indent(serve, "    ")
    )
    return [sys.executable, "-c", f"CODE = {code!r}\n{code}", "fork-server"]


def fork_server(
    *, attend: Callable[[Child], object] = lambda child: None, **does: str
) -> ForkServer:
    """A fork server as its supervisor sees it; ``does`` is the code of its two steps."""

    def attended(child: Child) -> None:
        attend(child)

    return ForkServer(command(**does), {}, attend=attended)


class Orders:
    """Orders for workers that share a folder, each with a tag of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._given = 0
        SharedCounters.make(folder / COUNTERS, rows=16).close()

    def new(self, **settings: Any) -> Serve:
        """The next one."""
        self._given += 1
        tag = self._given.to_bytes(2)
        return Serve(config=settings, tag=tag, folder=str(self.folder), row=self._given - 1)
