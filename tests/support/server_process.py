"""The real server: a process of its own, started by its command, ended by a signal."""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

TIMEOUT = 120.0
"""Seconds after which a process that should have ended is given up."""

TRANSPORTS = ("grpc", "http")
"""The transports of a server, in the order in which it says where they listen."""


def command(*arguments: str) -> list[str]:
    """How this environment starts the server."""
    return [sys.executable, "-m", "tieline_server", *arguments]


def environment(**variables: str) -> dict[str, str]:
    """The caller's environment without settings of ours or of OpenTelemetry."""
    foreign = ("TIELINE_", "OTEL_")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(foreign)}
    return {**kept, **variables}


def run(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Runs the command to its end; for what does not start a server."""
    return subprocess.run(
        command(*arguments),
        env=environment(**variables),
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
        check=False,
    )


class ServerProcess:
    """A server that has said where it listens."""

    def __init__(self, process: subprocess.Popen[str], log: IO[str]) -> None:
        self.process = process
        self._log = log
        self.address, self.http = map(self._announced, TRANSPORTS)
        """HOST:PORT of the gRPC server, and of HTTP and WebSocket."""

    def _announced(self, transport: str) -> str:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line.startswith(f"{transport} listening on "):
            self.process.wait(TIMEOUT)
            raise AssertionError(f"the server did not start: {line}{self.log()}")
        return line.split()[-1]

    def signal(self, number: int) -> None:
        """Sends a signal to the process."""
        self.process.send_signal(number)

    def wait(self) -> int:
        """The exit status, once the process has ended."""
        return self.process.wait(TIMEOUT)

    def rest_of_stdout(self) -> str:
        """What came after the addresses; waits for the end of the process."""
        assert self.process.stdout is not None
        return self.process.stdout.read()

    def log(self) -> str:
        """All that was written to stderr so far."""
        # The process writes where the file stands: reading must not move that.
        file = self._log.fileno()
        return os.pread(file, os.fstat(file).st_size, 0).decode()

    def lines(self, event: str | None = None) -> list[dict[str, Any]]:
        """The log lines so far, of one event or all."""
        # The last one may be on its way.
        whole = [line for line in self.log().splitlines(keepends=True) if line.endswith("\n")]
        lines = [json.loads(line) for line in whole]
        return [line for line in lines if event in (None, line["event"])]


@contextmanager
def serving(*arguments: str, **variables: str) -> Iterator[ServerProcess]:
    """A server with the scripted engine on a free port, killed at the end if it still runs."""
    addresses = ("--grpc", "127.0.0.1:0", "--http", "127.0.0.1:0")
    flags = ("--engine", "scripted", *addresses, "--log-format", "json")
    # A file, not a pipe: nobody reads it while the server runs.
    with tempfile.TemporaryFile("w+") as log:
        process = subprocess.Popen(
            command(*flags, *arguments),
            env=environment(**variables),
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        )
        try:
            yield ServerProcess(process, log)
        finally:
            process.kill()
            process.wait(TIMEOUT)
            assert process.stdout is not None
            process.stdout.close()


def write_script(folder: Path, **script: Any) -> str:
    """A script file of the scripted engine; returns its path."""
    path = folder / "script.json"
    path.write_text(json.dumps({"models": ["scripted"], **script}))
    return str(path)
