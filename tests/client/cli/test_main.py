"""``python -m tieline_client.cli`` is the command ``tieline``."""

import socket
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Final

import pytest

from tests.support import interrupted
from tests.support.interrupted import script


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


NOT_SAID: Final = ("", "")
ASK: Final = ("ask", "hello", "--url")
COMMANDS: Final = ((script("tieline"),), (sys.executable, "-m", "tieline_client.cli"))


@pytest.mark.parametrize("command", COMMANDS, ids=["script", "module"])
@pytest.mark.parametrize(
    "module",
    ["tieline_client.cli.app", "typing", "asyncio", "typer", "msgspec", "tieline_client.aio"],
)
def test_op_07_an_interrupt_while_it_imports_says_nothing(
    tmp_path: Path, command: tuple[str, ...], module: str
) -> None:
    done = interrupted.at(module, [*command, "--version"], tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (130, *NOT_SAID)


@pytest.mark.parametrize("command", COMMANDS, ids=["script", "module"])
@pytest.mark.parametrize("seconds", [0.0, 0.05, 0.1, 0.2, 0.3, 1.0])
def test_op_07_an_interrupt_at_any_time_says_nothing(
    tmp_path: Path, command: tuple[str, ...], seconds: float
) -> None:
    """OP-07: also while a server does not answer."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"ws://127.0.0.1:{silent.getsockname()[1]}"
        words = [*command, *ASK, url]
        done = interrupted.after(seconds, "tieline_client.cli.app", words, tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (130, *NOT_SAID)


def test_op_07_an_interrupt_that_is_ignored_stays_ignored(tmp_path: Path) -> None:
    """OP-07: a shell has it so for what it runs in the background."""
    ignoring = f"trap '' INT; exec {script('tieline')} --version"
    done = interrupted.at("typer", ["sh", "-c", ignoring], tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == f"tieline {version('tieline')}\n"


def test_op_07_a_program_that_uses_the_client_keeps_its_own_handler() -> None:
    code = (
        "import signal, tieline_client.cli; from tieline_client import connect\n"
        "print(signal.getsignal(signal.SIGINT) is signal.default_int_handler)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "True\n"
