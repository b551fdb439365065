"""What the README tells a reader to run does what it says."""

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.server_process import serving

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
WRITTEN = "127.0.0.1:50051"
"""The address that the README assumes: the server's default."""

_FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
PROGRAMS = [body for language, body in _FENCE.findall(README) if language == "python"]
COMMANDS = [
    line
    for language, body in _FENCE.findall(README)
    if language == "sh"
    for line in body.replace("\\\n", " ").splitlines()
    if line.startswith(("tieline ask", "tieline agent", "buf curl"))
]


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """A scripted server, which answers what the README asks."""
    with serving("--engine", "scripted") as server:
        yield server.address


def _run(*command: str, address: str) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    return subprocess.run(
        command,
        cwd=ROOT,
        env={**os.environ, "PATH": path, "TIELINE_URL": f"grpc://{address}"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_the_readme_has_programs_and_commands_to_run() -> None:
    assert (len(PROGRAMS), len(COMMANDS)) == (2, 3)


def test_the_readme_is_short() -> None:
    assert README.count("\n") < 150


@pytest.mark.parametrize("program", PROGRAMS, ids=["client", "agent"])
def test_a_program_of_the_readme_runs(program: str, address: str) -> None:
    done = _run(sys.executable, "-c", program.replace(WRITTEN, address), address=address)

    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: " ".join(command.split()[:2]))
def test_a_command_of_the_readme_runs(command: str, address: str) -> None:
    done = _run(*shlex.split(command.replace(WRITTEN, address)), address=address)

    assert done.returncode == 0, done.stderr
    assert done.stdout


def test_the_demo_runs_both_tools_in_both_shapes_with_the_real_model() -> None:
    done = _run(sys.executable, "examples/demo.py", address=WRITTEN)

    assert done.returncode == 0, done.stderr
    append, create = done.stdout.split("== create shape")
    for name in ("list_files", "read_file"):
        assert f"tool {name}(" in append
        assert f"tool {name}(" in create
    # One response in append shape, held twice; three of them in create shape.
    assert append.count("response.done") == 2
    assert (append.count("response.completed"), create.count("response.completed")) == (1, 3)
