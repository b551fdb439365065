"""A nursery's process whose workers do what a test has them do, and a fleet of such."""

import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tieline_server.workers.board import Board
from tieline_server.workers.child import Child
from tieline_server.workers.control import Serve
from tieline_server.workers.nursery import Nursery
from tieline_server.workers.post import BOARD

CODE = """
import os, signal, sys, threading
from pathlib import Path
from tieline.errors import TielineError
from tieline_server.workers.control import TO_WORKER
from tieline_server.workers.nurse import nurse
from tieline_server.workers.process import work

def prepare(config):
{prepare}

def serve(config, post):
{serve}

def command(descriptor):
    return [sys.executable, "-c", CODE, "worker", str(descriptor)]

word, descriptor = sys.argv[-2], int(sys.argv[-1])
if word == "worker":
    sys.exit(work(descriptor, serve))
sys.exit(nurse(descriptor, prepare=prepare, serve=serve, command=command))
"""

SERVES = "post.ready(); order = TO_WORKER.receive(post._control)"
"""Serves until the next order, which is then ``order``."""

SIGNS = f"(post.folder / post.mark.hex()).write_text(str(os.getpid())); {SERVES}"
"""The same, and writes down which process has which mark."""

THREADED = "threading.Thread(target=signal.pause, daemon=True).start()"
"""Prepares by starting a thread, as what instruments an interpreter does."""


def command(*, prepare: str = "pass", serve: str = SERVES) -> list[str]:
    """What starts a nursery, but for the number of its descriptor."""
    code = CODE.format(
        prepare=textwrap.indent(prepare, "    "), serve=textwrap.indent(serve, "    ")
    )
    return [sys.executable, "-c", f"CODE = {code!r}\n{code}", "nursery"]


def nursery(*, attend: Callable[[Child], object] = lambda child: None, **does: str) -> Nursery:
    """A nursery as its supervisor sees it; what it prepares and serves by is in ``does``."""

    def attended(child: Child) -> None:
        attend(child)

    return Nursery(command(**does), {}, attend=attended)


class Orders:
    """Orders for workers that share a folder, each with a mark of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._given = 0
        Board.make(folder / BOARD, rows=16).close()

    def new(self, **settings: Any) -> Serve:
        """The next one."""
        self._given += 1
        mark = self._given.to_bytes(2)
        return Serve(config=settings, mark=mark, folder=str(self.folder), row=self._given - 1)
