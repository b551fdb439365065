"""Servers as processes of their own: started by command, killed when the measurement is over."""

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Final, NamedTuple

from tieline_client.bench.workload import GRPC, SSE, WEBSOCKET, Files

END_TIMEOUT: Final = 10.0
"""Seconds in which a killed process must be gone."""

HTTP: Final = "http"
_LISTENING: Final = " listening on "
_DOORS: Final = {GRPC: GRPC, WEBSOCKET: HTTP, SSE: HTTP}
"""Transport -> the door that announces its address."""


class StartError(Exception):
    """A server did not start; the message says what it printed."""


class Server(NamedTuple):
    """A server that listens."""

    pid: int
    doors: Mapping[str, str]
    """Door (``grpc``, ``http``) -> HOST:PORT."""

    def address(self, transport: str) -> str | None:
        """Where ``transport`` is served, or None."""
        return self.doors.get(_DOORS[transport])


@contextmanager
def product(files: Files, *, merge: str) -> Iterator[Server]:
    """``tieline-server`` with the scripted engine: keys on, telemetry off.

    ``--log-level warning`` leaves out the line of each turn, which is telemetry too.
    """
    has_http = "--http" in _help()
    command = [sys.executable, "-m", "tieline_server", "--engine", "scripted"]
    command += ["--script", str(files.script), "--api-keys", str(files.keys)]
    command += ["--grpc", "127.0.0.1:0", "--merge", merge, "--log-level", "warning"]
    doors: tuple[str, ...] = (GRPC,)
    if has_http:
        command += ["--http", "127.0.0.1:0"]
        doors = (GRPC, HTTP)
    with _running(command, doors) as server:
        yield server


@contextmanager
def embedded() -> Iterator[Server]:
    """``tieline-server`` with the embedded engine and its packaged model, on both doors."""
    command = [sys.executable, "-m", "tieline_server", "--engine", "llama"]
    command += ["--grpc", "127.0.0.1:0", "--http", "127.0.0.1:0", "--log-level", "warning"]
    with _running(command, (GRPC, HTTP)) as server:
        yield server


@contextmanager
def bare(transport: str, folder: Path, *, mode: str, tokens: int, rate: int) -> Iterator[Server]:
    """The bare server of a transport; ``folder`` holds the bytes that it sends."""
    module = f"tieline_client.bench.bare.{transport}"
    command = [sys.executable, "-m", module, str(folder), mode, str(tokens), str(rate)]
    with _running(command, (_DOORS[transport],)) as server:
        yield server


def _help() -> str:
    command = [sys.executable, "-m", "tieline_server", "--help"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise StartError(f"tieline-server does not run: {done.stderr.strip()}")
    return done.stdout


def _environment() -> dict[str, str]:
    """The caller's environment without settings of ours or of OpenTelemetry."""
    foreign = ("TIELINE_", "OTEL_")
    return {name: value for name, value in os.environ.items() if not name.startswith(foreign)}


@contextmanager
def _running(command: Sequence[str], doors: Sequence[str]) -> Iterator[Server]:
    # A file, not a pipe: nobody reads it while the server runs.
    with tempfile.TemporaryFile("w+") as log:
        process = subprocess.Popen(
            command, env=_environment(), stdout=subprocess.PIPE, stderr=log, text=True
        )
        try:
            yield Server(process.pid, dict(_announced(process, log) for _ in doors))
        finally:
            process.kill()
            process.wait(END_TIMEOUT)
            assert process.stdout is not None
            process.stdout.close()


def _announced(process: subprocess.Popen[str], log: IO[str]) -> tuple[str, str]:
    assert process.stdout is not None
    line = process.stdout.readline()
    door, listening, address = line.strip().partition(_LISTENING)
    if not listening:
        process.kill()
        process.wait(END_TIMEOUT)
        log.seek(0)
        raise StartError(f"{process.args!r} did not start: {line}{log.read()}")
    return door, address
