"""Servers as processes of their own: started by command, killed when the measurement is over."""

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Final, NamedTuple

from tieline_bench.bare.poster import READY
from tieline_bench.clients import LoadError
from tieline_bench.workload import GRPC, SSE, WEBSOCKET, Files

END_TIMEOUT: Final = 10.0
"""Seconds in which a killed process must be gone."""

HTTP: Final = "http"
_LISTENING: Final = " listening on "
_SERVERS: Final = {GRPC: GRPC, WEBSOCKET: HTTP, SSE: HTTP}
"""Transport -> the server that announces its address."""


class StartError(Exception):
    """A server did not start; the message says what it printed."""


class Server(NamedTuple):
    """A server that listens."""

    pid: int
    addresses: Mapping[str, str]
    """TransportServer (``grpc``, ``http``) -> HOST:PORT."""

    def address(self, transport: str) -> str | None:
        """Where ``transport`` is served, or None."""
        return self.addresses.get(_SERVERS[transport])


@contextmanager
def product(files: Files, *, merge: str) -> Iterator[Server]:
    """``tieline-server`` with the scripted engine: keys on, telemetry off."""
    with _product(["scripted", "--script", str(files.script)], files.keys, merge) as server:
        yield server


@contextmanager
def before(model: Server, keys: Path, *options: str) -> Iterator[Server]:
    """``tieline-server`` before a model's server, with further ``options``; no event is merged."""
    engine = ["upstream", "--upstream", f"http://{model.addresses[HTTP]}/v1", *options]
    with _product(engine, keys, "never") as server:
        yield server


@contextmanager
def _product(engine: Sequence[str], keys: Path, merge: str) -> Iterator[Server]:
    """``--log-level warning`` leaves out the line of each turn, which is telemetry too."""
    has_http = "--http" in _help()
    command = [sys.executable, "-m", "tieline_server", "--engine", *engine]
    command += ["--api-keys", str(keys)]
    command += ["--grpc", "127.0.0.1:0", "--merge", merge, "--log-level", "warning"]
    transports: tuple[str, ...] = (GRPC,)
    if has_http:
        command += ["--http", "127.0.0.1:0"]
        transports = (GRPC, HTTP)
    with running(command, transports) as server:
        yield server


@contextmanager
def embedded() -> Iterator[Server]:
    """``tieline-server`` with the embedded engine and its packaged model, with both servers."""
    command = [sys.executable, "-m", "tieline_server", "--engine", "llama"]
    command += ["--grpc", "127.0.0.1:0", "--http", "127.0.0.1:0", "--log-level", "warning"]
    with running(command, (GRPC, HTTP)) as server:
        yield server


@contextmanager
def bare(transport: str, folder: Path, *, mode: str, tokens: int, rate: int) -> Iterator[Server]:
    """The bare server of a transport; ``folder`` holds the bytes that it sends."""
    module = f"tieline_bench.bare.{transport}"
    command = [sys.executable, "-m", module, str(folder), mode, str(tokens), str(rate)]
    with running(command, (_SERVERS[transport],)) as server:
        yield server


@contextmanager
def model(*, tokens: int, rate: int) -> Iterator[Server]:
    """The model that answers at once; its long answers have ``tokens``, ``rate`` a second."""
    command = [sys.executable, "-m", "tieline_bench.model.server", str(tokens), str(rate)]
    with running(command, (HTTP,)) as server:
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


class Poster:
    """The bare client of a model, which posts what it is told to."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self.pid = process.pid

    def post(self, name: str) -> None:
        """Posts ``name``.json and reads the answer; raises :class:`LoadError` for any but 200."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{name}\n")
        self._process.stdin.flush()
        if not self.heard().startswith("200 "):
            raise LoadError("the bare client was refused")

    def heard(self) -> str:
        """Its next line."""
        assert self._process.stdout is not None
        return self._process.stdout.readline()


@contextmanager
def poster(url: str, folder: Path) -> Iterator[Poster]:
    """The bare client that posts the bodies in ``folder`` to ``url``."""
    command = [sys.executable, "-m", "tieline_bench.bare.poster", url, str(folder)]
    with subprocess.Popen(
        command, env=_environment(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            client = Poster(process)
            if client.heard().strip() != READY:
                raise StartError("the bare client did not start")
            yield client
        finally:
            process.kill()


@contextmanager
def running(command: Sequence[str], transports: Sequence[str]) -> Iterator[Server]:
    """A process that announces its ``transports`` as lines of its output, the first ones."""
    # A file, not a pipe: no process reads it while the server runs.
    with tempfile.TemporaryFile("w+") as log:
        process = subprocess.Popen(
            command, env=_environment(), stdout=subprocess.PIPE, stderr=log, text=True
        )
        try:
            yield Server(process.pid, dict(_announced(process, log) for _ in transports))
        finally:
            process.kill()
            process.wait(END_TIMEOUT)
            assert process.stdout is not None
            process.stdout.close()


def _announced(process: subprocess.Popen[str], log: IO[str]) -> tuple[str, str]:
    assert process.stdout is not None
    line = process.stdout.readline()
    transport, listening, address = line.strip().partition(_LISTENING)
    if not listening:
        process.kill()
        process.wait(END_TIMEOUT)
        log.seek(0)
        raise StartError(f"{process.args!r} did not start: {line}{log.read()}")
    return transport, address
