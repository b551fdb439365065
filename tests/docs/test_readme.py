"""What the README tells a reader to run does what it says."""

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.server_process import ServerProcess, serving

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
GRPC, HTTP = "127.0.0.1:50051", "127.0.0.1:8080"
"""The addresses that the README assumes: the server's defaults."""

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
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A scripted server under the name of the embedded model, which the README asks for."""
    script = tmp_path_factory.mktemp("readme") / "script.json"
    script.write_text('{"models": ["smollm2-135m-instruct"], "rules": []}')
    with serving("--script", str(script)) as process:
        yield process


def _run(*command: str, server: ServerProcess | None = None) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    variables = {"TIELINE_URL": f"grpc://{server.address}"} if server else {}
    return subprocess.run(
        [_aimed(word, server) for word in command],
        cwd=ROOT,
        env={**os.environ, "PATH": path, **variables},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def _aimed(word: str, server: ServerProcess | None) -> str:
    if server is None:
        return word
    return word.replace(GRPC, server.address).replace(HTTP, server.http)


def test_the_readme_has_programs_and_commands_to_run() -> None:
    assert (len(PROGRAMS), len(COMMANDS)) == (3, 3)


def test_the_readme_is_short() -> None:
    assert README.count("\n") < 150


@pytest.mark.parametrize("program", PROGRAMS, ids=["client", "agent", "openai"])
def test_a_program_of_the_readme_runs(program: str, server: ServerProcess) -> None:
    done = _run(sys.executable, "-c", program, server=server)

    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: " ".join(command.split()[:2]))
def test_a_command_of_the_readme_runs(command: str, server: ServerProcess) -> None:
    done = _run(*shlex.split(command), server=server)

    assert done.returncode == 0, done.stderr
    assert done.stdout


def _ends(act: str) -> int:
    """Responses that ended. How much a small model says of a file is its own matter."""
    return len(re.findall(r"response\.(?:completed|incomplete)\b", act))


def test_the_demo_runs_both_tools_in_every_act_with_the_real_model() -> None:
    done = _run(sys.executable, "examples/demo.py")

    assert done.returncode == 0, done.stderr
    _, append, create, websocket, unchanged = done.stdout.split("\n== ")
    for act in (append, create, websocket):
        assert "tool list_files(" in act
        assert "tool read_file(" in act
    # One response in append shape, held twice; three of them in create shape.
    assert (append.count("response.done"), _ends(append)) == (2, 1)
    assert _ends(create) == _ends(websocket) == 3
    assert "OpenAI's client" in unchanged
