"""A fork server's process: each worker has what it prepared, and it ends with its supervisor."""

import asyncio
import os
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.forking import SERVES, THREADED, Orders, command, fork_server
from tests.support.process_state import PATIENCE, until
from tests.support.several import parent_of
from tests.support.worker_process import gone
from tieline_server.workers.child import Child, NotServing
from tieline_server.workers.control import (
    FROM_FORK_SERVER,
    Failed,
    Prepare,
    Prepared,
    Spawn,
    Spawned,
)
from tieline_server.workers.fork_server_process import PACKET
from tieline_server.workers.framing import pack

PREPARED = "global there; there = os.getpid()"
ONLY_IF_PREPARED = f"""
if globals().get("there") != os.getppid():
    raise TielineError("not prepared")
{SERVES}
"""


@contextmanager
def run_fork_server(**does: str) -> Iterator[tuple[subprocess.Popen[bytes], socket.socket]]:
    """The process, and the supervisor's end of its connection."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.settimeout(PATIENCE)
    with ours, theirs:
        words = [*command(**does), str(theirs.fileno())]
        with subprocess.Popen(words, pass_fds=(theirs.fileno(),)) as process:
            theirs.close()
            try:
                yield process, ours
            finally:
                process.kill()


def hears(control: socket.socket) -> object:
    """The next message."""
    return FROM_FORK_SERVER.unpack(control.recv(PACKET))


def told(control: socket.socket) -> object:
    """What is heard of one that is told to prepare."""
    control.send(pack(Prepare({})))
    return hears(control)


def command_line_of(pid: int) -> bytes:
    """The words that started a process, a NUL behind each."""
    return Path(f"/proc/{pid}/cmdline").read_bytes()


def is_zombie(pid: int) -> bool:
    """Whether a process has died and its parent has not taken its status yet."""
    return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[0] == b"Z"


def spawned(
    tmp_path: Path, *, prepare: str = "pass", serve: str = SERVES
) -> tuple[int, int, bytes, int | None]:
    """The fork server, and of a worker its parent, its command command_line, and how it ended."""

    async def main() -> tuple[int, int, bytes, int | None]:
        server = fork_server(prepare=prepare, serve=serve)
        child: Child = await server.spawn()
        try:
            await child.serve(Orders(tmp_path).new())
            parent, command_line = parent_of(child.pid), command_line_of(child.pid)
            child.kill()
            await child.close()
        finally:
            child.kill()
            server.close()
            await gone(child, child.status)
        return server.pid, parent, command_line, child.status

    return asyncio.run(asyncio.wait_for(main(), PATIENCE))


def test_a_worker_is_a_fork_of_what_is_prepared(tmp_path: Path) -> None:
    server, parent, command_line, status = spawned(
        tmp_path, prepare=PREPARED, serve=ONLY_IF_PREPARED
    )
    assert parent == server
    assert command_line.split(b"\0")[-3] == b"fork-server"
    assert status == -signal.SIGKILL


def test_where_a_thread_was_started_a_worker_is_started_by_exec(tmp_path: Path) -> None:
    server, parent, command_line, status = spawned(tmp_path, prepare=THREADED)
    assert parent == server
    assert command_line.split(b"\0")[-3] == b"worker"
    assert status == -signal.SIGKILL


def test_by_exec_nothing_is_there_that_was_prepared(tmp_path: Path) -> None:
    with pytest.raises(NotServing, match="not prepared"):
        spawned(tmp_path, prepare=f"{PREPARED}; {THREADED}", serve=ONLY_IF_PREPARED)


def test_what_cannot_be_prepared_is_said_and_ends_it() -> None:
    with run_fork_server(prepare="raise TielineError('no such thing')") as (process, control):
        assert told(control) == Failed("no such thing")
        assert process.wait(PATIENCE) == 2


def test_settings_that_are_none_are_said_and_end_it() -> None:
    with run_fork_server() as (process, control):
        control.send(pack(Prepare({"engine": 7})))
        said = hears(control)
        assert isinstance(said, Failed)
        assert "engine" in said.reason
        assert process.wait(PATIENCE) == 2


def test_it_ends_when_its_supervisor_is_gone() -> None:
    with run_fork_server() as (process, control):
        assert told(control) == Prepared()
        control.close()
        assert process.wait(PATIENCE) == 0


def test_signals_that_a_terminal_sends_to_all_are_nothing_to_it() -> None:
    with run_fork_server() as (process, control):
        assert told(control) == Prepared()
        process.send_signal(signal.SIGINT)
        process.send_signal(signal.SIGHUP)
        here, there = socket.socketpair()
        with here, there:
            socket.send_fds(control, [pack(Spawn())], [there.fileno()])
            there.close()
            assert isinstance(hears(control), Spawned)


def test_a_worker_that_dies_as_the_supervisor_goes_is_no_error(
    capfd: pytest.CaptureFixture[str],
) -> None:
    with run_fork_server() as (process, control):
        assert told(control) == Prepared()
        here, there = socket.socketpair()
        with here, there:
            socket.send_fds(control, [pack(Spawn())], [there.fileno()])
            spawned = hears(control)
            assert isinstance(spawned, Spawned)
            # Both ends are seen in one look, the worker's first, as in a fleet that is closed.
            process.send_signal(signal.SIGSTOP)
            os.kill(spawned.pid, signal.SIGKILL)
            until(lambda: is_zombie(spawned.pid))
            control.close()
            process.send_signal(signal.SIGCONT)
        assert process.wait(PATIENCE) == 0
    assert "Traceback" not in capfd.readouterr().err
