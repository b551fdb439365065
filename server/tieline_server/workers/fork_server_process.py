"""The process of a fork server: it has imported everything, and each worker is a fork of it.

Importing takes most of a start, on a busy machine for seconds; a fork of what has imported
everything serves at once. It is forked only while it has a single thread, and before gRPC has
begun anything (grpc/grpc#13873, #17093: what forks later hangs). Where something else has started
a thread (an agent that instruments the interpreter), workers are started by exec instead.
"""

import contextlib
import os
import selectors
import signal
import socket
import subprocess
from collections.abc import Callable, Sequence
from typing import Final

from tieline.errors import TielineError
from tieline_server import garbage_collection
from tieline_server.config import Config
from tieline_server.workers.control import (
    TO_FORK_SERVER,
    Exited,
    Failed,
    Prepare,
    Prepared,
    Spawn,
    Spawned,
)
from tieline_server.workers.framing import pack
from tieline_server.workers.worker_process import FAILED, Served, run_worker

PACKET: Final = 2**18
"""Bytes of the longest message."""


def run_fork_server(
    descriptor: int,
    *,
    prepare: Callable[[Config], None],
    serve: Served,
    command: Callable[[int], Sequence[str]],
) -> int:
    """Runs a fork server to its end, or in a fork of it a worker; returns the exit status.

    ``descriptor`` is its end of the connection to the supervisor: it ends when that does.
    ``command`` starts a worker by exec, for the descriptor of its control.
    """
    # A terminal sends them to the whole group; the supervisor says what they mean.
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    with socket.socket(fileno=descriptor) as control:
        order = TO_FORK_SERVER.unpack(control.recv(PACKET))
        assert isinstance(order, Prepare)
        try:
            prepare(Config.load(order.config))
        except TielineError as error:
            _tell(control, pack(Failed(str(error))))
            return FAILED
        _tell(control, pack(Prepared()))
        garbage_collection.freeze()
        worker = _ForkServer(control, command).run()
    return 0 if worker is None else run_worker(worker, serve)


class _ForkServer:
    def __init__(self, control: socket.socket, command: Callable[[int], Sequence[str]]) -> None:
        self._control = control
        self._command = command
        self._selector = selectors.DefaultSelector()
        self._started: dict[int, subprocess.Popen[bytes]] = {}
        """The workers that were started by exec, by process id."""

    def run(self) -> int | None:
        """Spawns and reaps to the end; in a worker, returns the descriptor of its control."""
        self._selector.register(self._control, selectors.EVENT_READ)
        while True:
            for key, _ in self._selector.select():
                if key.data is not None:
                    self._reap(key.fd, key.data)
                    continue
                packet, descriptors = _told(self._control)
                if not packet:
                    return None
                assert isinstance(TO_FORK_SERVER.unpack(packet), Spawn)
                if self._spawn(descriptors[0]):
                    return descriptors[0]

    def _spawn(self, theirs: int) -> bool:
        """Starts a worker; returns True in the worker itself."""
        pid = os.fork() if _single_threaded() else self._exec(theirs)
        if pid == 0:
            for key in list(self._selector.get_map().values()):
                if key.data is not None:
                    os.close(key.fd)
            self._selector.close()
            return True
        os.close(theirs)
        process = os.pidfd_open(pid)
        self._selector.register(process, selectors.EVENT_READ, pid)
        _tell(self._control, pack(Spawned(pid)), process)
        return False

    def _exec(self, theirs: int) -> int:
        started = subprocess.Popen(self._command(theirs), pass_fds=(theirs,))
        self._started[started.pid] = started
        return started.pid

    def _reap(self, process: int, pid: int) -> None:
        self._selector.unregister(process)
        os.close(process)
        started = self._started.pop(pid, None)
        if started is not None:
            status = started.wait()
        else:
            status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        _tell(self._control, pack(Exited(pid, status)))


def _told(control: socket.socket) -> tuple[bytes, list[int]]:
    try:
        packet, descriptors, _, _ = socket.recv_fds(control, PACKET, 1)
    except ConnectionResetError:  # A supervisor that went with something unread.
        return b"", []
    return packet, descriptors


def _tell(control: socket.socket, packet: bytes, *descriptors: int) -> None:
    # A supervisor that has closed its end wants to hear nothing more; its end is read as one.
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        socket.send_fds(control, [packet], descriptors)


def _single_threaded() -> bool:
    return len(os.listdir("/proc/self/task")) == 1
