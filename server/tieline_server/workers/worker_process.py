"""The process of a worker: it serves as its supervisor says, and ends when that is gone."""

import contextlib
import shutil
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Final

from tieline.errors import TielineError
from tieline_server.config import Config
from tieline_server.workers.control import TO_WORKER, Failed, Serve
from tieline_server.workers.framing import BrokenMessage, pack
from tieline_server.workers.worker_context import WorkerContext

NAME: Final = "tieline-worker"
"""At most 15 characters (prctl(2), PR_SET_NAME)."""

FAILED: Final = 2
"""Exit status of a worker that could not serve."""

Served = Callable[[Config, WorkerContext], None]
"""Serves to the end; raises :class:`TielineError` where it cannot."""


def run_worker(descriptor: int, serve: Served) -> int:
    """Runs a worker to its end; returns its exit status.

    ``descriptor`` is its end of the control.
    """
    with contextlib.suppress(OSError):
        # What ps shows beside the command line, which a fork has from the fork server.
        Path("/proc/self/comm").write_text(NAME)
    with socket.socket(fileno=descriptor) as control:
        try:
            order = TO_WORKER.receive(control)
        except (BrokenMessage, OSError):
            return 0
        if not isinstance(order, Serve):
            return 0
        try:
            serve(Config.load(order.config), WorkerContext(order, control))
        except TielineError as error:
            with contextlib.suppress(OSError):
                control.send(pack(Failed(str(error))))
            return FAILED
        finally:
            _clear_up(order, control)
    return 0


def _clear_up(order: Serve, control: socket.socket) -> None:
    """Removes the folder that the workers share, where the supervisor died first."""
    control.setblocking(False)
    try:
        while control.recv(4096):
            pass
    except BlockingIOError:
        return
    except OSError:
        pass
    shutil.rmtree(order.folder, ignore_errors=True)
