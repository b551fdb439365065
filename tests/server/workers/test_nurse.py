"""A nursery's process: what it prepared is in each worker, and it goes with its supervisor."""

import asyncio
import os
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.nursery_process import SERVES, THREADED, Orders, command, nursery
from tests.support.process_state import PATIENCE, until
from tests.support.several import parent_of
from tests.support.worker_process import gone
from tieline_server.workers.child import Child, NotServing
from tieline_server.workers.control import FROM_NURSERY, Bear, Born, Failed, Prepare, Prepared
from tieline_server.workers.frames import pack
from tieline_server.workers.nurse import PACKET

PREPARED = "global there; there = os.getpid()"
ONLY_IF_PREPARED = f"""
if globals().get("there") != os.getppid():
    raise TielineError("not prepared")
{SERVES}
"""


@contextmanager
def nurse(**does: str) -> Iterator[tuple[subprocess.Popen[bytes], socket.socket]]:
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
    return FROM_NURSERY.unpack(control.recv(PACKET))


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


def borne(
    tmp_path: Path, *, prepare: str = "pass", serve: str = SERVES
) -> tuple[int, int, bytes, int | None]:
    """The nursery, and of a worker its parent, its command line, and how it ended."""

    async def main() -> tuple[int, int, bytes, int | None]:
        home = nursery(prepare=prepare, serve=serve)
        child: Child = await home.bear()
        try:
            await child.serve(Orders(tmp_path).new())
            parent, line = parent_of(child.pid), command_line_of(child.pid)
            child.kill()
            await child.close()
        finally:
            child.kill()
            home.close()
            await gone(child, child.status)
        return home.pid, parent, line, child.status

    return asyncio.run(asyncio.wait_for(main(), PATIENCE))


def test_a_worker_is_a_fork_of_what_is_prepared(tmp_path: Path) -> None:
    nursing, parent, line, status = borne(tmp_path, prepare=PREPARED, serve=ONLY_IF_PREPARED)
    assert parent == nursing
    assert line.split(b"\0")[-3] == b"nursery"
    assert status == -signal.SIGKILL


def test_where_a_thread_was_started_a_worker_is_started_by_exec(tmp_path: Path) -> None:
    nursing, parent, line, status = borne(tmp_path, prepare=THREADED)
    assert parent == nursing
    assert line.split(b"\0")[-3] == b"worker"
    assert status == -signal.SIGKILL


def test_by_exec_nothing_is_there_that_was_prepared(tmp_path: Path) -> None:
    with pytest.raises(NotServing, match="not prepared"):
        borne(tmp_path, prepare=f"{PREPARED}; {THREADED}", serve=ONLY_IF_PREPARED)


def test_what_cannot_be_prepared_is_said_and_ends_it() -> None:
    with nurse(prepare="raise TielineError('no such thing')") as (process, control):
        assert told(control) == Failed("no such thing")
        assert process.wait(PATIENCE) == 2


def test_settings_that_are_none_are_said_and_end_it() -> None:
    with nurse() as (process, control):
        control.send(pack(Prepare({"engine": 7})))
        said = hears(control)
        assert isinstance(said, Failed)
        assert "engine" in said.reason
        assert process.wait(PATIENCE) == 2


def test_it_ends_when_its_supervisor_is_gone() -> None:
    with nurse() as (process, control):
        assert told(control) == Prepared()
        control.close()
        assert process.wait(PATIENCE) == 0


def test_signals_that_a_terminal_sends_to_all_are_nothing_to_it() -> None:
    with nurse() as (process, control):
        assert told(control) == Prepared()
        process.send_signal(signal.SIGINT)
        process.send_signal(signal.SIGHUP)
        here, there = socket.socketpair()
        with here, there:
            socket.send_fds(control, [pack(Bear())], [there.fileno()])
            there.close()
            assert isinstance(hears(control), Born)


def test_a_worker_that_dies_as_the_supervisor_goes_is_no_error(
    capfd: pytest.CaptureFixture[str],
) -> None:
    with nurse() as (process, control):
        assert told(control) == Prepared()
        here, there = socket.socketpair()
        with here, there:
            socket.send_fds(control, [pack(Bear())], [there.fileno()])
            born = hears(control)
            assert isinstance(born, Born)
            # Both ends are seen in one look, the worker's first, as in a fleet that is closed.
            process.send_signal(signal.SIGSTOP)
            os.kill(born.pid, signal.SIGKILL)
            until(lambda: is_zombie(born.pid))
            control.close()
            process.send_signal(signal.SIGCONT)
        assert process.wait(PATIENCE) == 0
    assert "Traceback" not in capfd.readouterr().err
