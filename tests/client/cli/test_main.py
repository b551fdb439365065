"""``python -m tieline_client.cli`` is the command ``tieline``."""

import subprocess
import sys
from importlib.metadata import version


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tieline_client.cli", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def test_it_answers_under_the_commands_own_name() -> None:
    done = run("--version")
    assert (done.returncode, done.stdout, done.stderr) == (0, f"tieline {version('tieline')}\n", "")


def test_its_exit_status_is_the_commands() -> None:
    done = run("frob")
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert line.startswith("tieline: ")
