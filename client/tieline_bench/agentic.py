"""agentic-api, the peer: installed into an environment that is thrown away, run as a process."""

import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from tieline_bench.processes import END_TIMEOUT, HTTP, Server, StartError

VERSION: Final = "0.9.0"
PACKAGE: Final = f"agentic-api=={VERSION}"

START_TIMEOUT: Final = 30.0
"""Seconds in which it must listen."""


@contextmanager
def installed() -> Iterator[Path]:
    """Its server's program. Raises :class:`StartError`, one line, where pip cannot install it."""
    with tempfile.TemporaryDirectory(prefix="tieline-bench-peer-") as name:
        folder = Path(name)
        _run([sys.executable, "-m", "venv", name])
        pip = [str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet"]
        _run([*pip, "--disable-pip-version-check", "--only-binary", ":all:", PACKAGE])
        yield folder / "bin" / "agentic-server"


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        said = (done.stderr or done.stdout).strip().splitlines()
        raise StartError(f"{PACKAGE} cannot be installed: {said[-1] if said else done.returncode}")


@contextmanager
def before(model: Server, program: Path) -> Iterator[Server]:
    """The peer before a model's server; its database and its home are thrown away too."""
    port = _free_port()
    with tempfile.TemporaryDirectory(prefix="tieline-bench-peer-") as home:
        command = [str(program), "--llm-api-base", f"http://{model.addresses[HTTP]}"]
        command += ["--skip-llm-ready-check", "--db-url", f"sqlite://{home}/peer.db?mode=rwc"]
        command += ["--gateway-host", "127.0.0.1", "--gateway-port", str(port)]
        environment = {**os.environ, "HOME": home, "RUST_LOG": "warn"}
        with tempfile.TemporaryFile("w+") as log:
            process = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
            try:
                _wait(process, port)
                yield Server(process.pid, {HTTP: f"127.0.0.1:{port}"})
            finally:
                process.kill()
                process.wait(END_TIMEOUT)


def _free_port() -> int:
    """It says nowhere which port the kernel gave it."""
    with socket.create_server(("127.0.0.1", 0)) as held:
        return int(held.getsockname()[1])


def _wait(process: "subprocess.Popen[bytes]", port: int) -> None:
    deadline = time.monotonic() + START_TIMEOUT
    while process.poll() is None and time.monotonic() < deadline:
        try:
            socket.create_connection(("127.0.0.1", port)).close()
        except ConnectionRefusedError:
            time.sleep(0.02)
        else:
            return
    raise StartError(f"agentic-api {VERSION} did not start")
