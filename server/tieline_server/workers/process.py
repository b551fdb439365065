"""A worker's process: it serves as its supervisor says, and ends when that is gone."""

import contextlib
import shutil
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Final

from tieline.errors import TielineError
from tieline_server.config import Config
from tieline_server.workers.control import TO_WORKER, Failed, Serve
from tieline_server.workers.frames import Torn, pack
from tieline_server.workers.post import WorkerPost

NAME: Final = "tieline-worker"
"""At most 15 characters (prctl(2), PR_SET_NAME)."""

FAILED: Final = 2
"""Exit status of a worker that could not serve."""

Served = Callable[[Config, WorkerPost], None]
"""What serves to its end; raises :class:`TielineError` where it cannot."""


def work(descriptor: int, serve: Served) -> int:
    """Runs a worker to its end; returns its exit status.

    ``descriptor`` is its end of the control.
    """
    with contextlib.suppress(OSError):
        # What ps shows beside the command line, which a fork has from the nursery.
        Path("/proc/self/comm").write_text(NAME)
    with socket.socket(fileno=descriptor) as control:
        try:
            order = TO_WORKER.receive(control)
        except (Torn, OSError):
            return 0
        if not isinstance(order, Serve):
            return 0
        try:
            serve(Config.load(order.config), WorkerPost(order, control))
        except TielineError as error:
            with contextlib.suppress(OSError):
                control.send(pack(Failed(str(error))))
            return FAILED
        finally:
            _clear_up(order, control)
    return 0


def _clear_up(order: Serve, control: socket.socket) -> None:
    """What they shared is removed by whoever is left when the supervisor died first."""
    control.setblocking(False)
    try:
        while control.recv(4096):
            pass
    except BlockingIOError:
        return
    except OSError:
        pass
    shutil.rmtree(order.folder, ignore_errors=True)
