"""A worker's process: it serves as it is told, and its exit status says how that went."""

import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.forking import SERVES, Orders, command
from tests.support.process_state import PATIENCE
from tieline_server.workers.control import FROM_WORKER, Drain, Failed, Serving
from tieline_server.workers.framing import pack


@contextmanager
def working(serve: str = SERVES) -> Iterator[tuple[subprocess.Popen[bytes], socket.socket]]:
    """A worker's process, and the supervisor's end of its control."""
    ours, theirs = socket.socketpair()
    ours.settimeout(PATIENCE)
    words = [*command(serve=serve)[:-1], "worker", str(theirs.fileno())]
    with ours, theirs, subprocess.Popen(words, pass_fds=(theirs.fileno(),)) as process:
        theirs.close()
        try:
            yield process, ours
        finally:
            process.kill()


def test_it_serves_until_what_serves_returns_and_leaves_what_is_shared(tmp_path: Path) -> None:
    with working() as (process, control):
        control.sendall(pack(Orders(tmp_path).new()))
        assert FROM_WORKER.receive(control) == Serving()
        assert Path(f"/proc/{process.pid}/comm").read_text() == "tieline-worker\n"
        control.sendall(pack(Drain()))
        assert process.wait(PATIENCE) == 0
    assert tmp_path.exists()


def test_one_whose_supervisor_is_gone_clears_away_what_they_shared(tmp_path: Path) -> None:
    folder = tmp_path / "shared"
    folder.mkdir()
    with working() as (process, control):
        control.sendall(pack(Orders(folder).new()))
        assert FROM_WORKER.receive(control) == Serving()
        control.close()
        assert process.wait(PATIENCE) == 0
    assert not folder.exists()


@pytest.mark.parametrize("first", [b"", pack(Drain()), b"\0\0\0\1\xff"], ids=["none", "drain", "?"])
def test_without_an_order_to_serve_it_ends(first: bytes) -> None:
    with working() as (process, control):
        control.sendall(first)
        control.shutdown(socket.SHUT_WR)
        assert process.wait(PATIENCE) == 0


@pytest.mark.parametrize(
    ("serve", "settings", "says"),
    [("raise TielineError('no such file')", {}, "no such file"), (SERVES, {"engine": 7}, "engine")],
    ids=["what serves", "settings"],
)
def test_one_that_cannot_serve_says_why_and_that_is_its_status(
    tmp_path: Path, serve: str, settings: dict[str, object], says: str
) -> None:
    with working(serve) as (process, control):
        control.sendall(pack(Orders(tmp_path).new(**settings)))
        said = FROM_WORKER.receive(control)
        assert isinstance(said, Failed)
        assert says in said.reason
        assert process.wait(PATIENCE) == 2
