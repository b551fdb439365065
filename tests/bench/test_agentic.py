"""The peer: what is said where it cannot be installed or does not start."""

import os
import sys
from pathlib import Path

import pytest

from tieline_bench import agentic
from tieline_bench.processes import HTTP, Server, StartError

MODEL = Server(0, {HTTP: "127.0.0.1:1"})


def program(folder: Path, body: str) -> Path:
    """A program in the place of the peer's."""
    written = folder / "agentic-server"
    written.write_text(f"#!{sys.executable}\n{body}")
    written.chmod(0o755)
    return written


def test_what_cannot_be_installed_is_one_line(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    python = program(tmp_path, "import sys\nsys.exit('some lines\\nERROR: no such version\\n')")
    monkeypatch.setattr(sys, "executable", str(python))
    with pytest.raises(StartError) as caught, agentic.installed():
        pass
    assert str(caught.value) == "agentic-api==0.9.0 cannot be installed: ERROR: no such version"


def test_a_peer_that_ends_at_once_did_not_start(tmp_path: Path) -> None:
    with (
        pytest.raises(StartError, match=r"agentic-api 0\.9\.0 did not start"),
        agentic.before(MODEL, program(tmp_path, "")),
    ):
        pass


def test_it_runs_before_the_model_with_a_home_of_its_own_and_is_gone_afterwards(
    tmp_path: Path,
) -> None:
    serves = """
import os, socket, sys
port = int(sys.argv[sys.argv.index("--gateway-port") + 1])
with socket.create_server(("127.0.0.1", port)) as listening:
    open(sys.argv[0] + ".said", "w").write(os.environ["HOME"] + " " + " ".join(sys.argv[1:]))
    while True:
        listening.accept()
"""
    peer = program(tmp_path, serves)
    with agentic.before(MODEL, peer) as server:
        home, *arguments = (tmp_path / "agentic-server.said").read_text().split()
        assert arguments[:2] == ["--llm-api-base", "http://127.0.0.1:1"]
        assert server.addresses[HTTP].endswith(":" + arguments[-1])
        assert Path(home).is_dir()
        assert Path(f"/proc/{server.pid}").exists()
    assert home != os.environ.get("HOME")
    assert not Path(home).exists()
    assert not Path(f"/proc/{server.pid}").exists()
