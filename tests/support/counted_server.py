"""The real server as a process that also says, on SIGUSR1, how many tasks its loop has.

Run as a module; its one argument is a JSON object of settings.
"""

import asyncio
import gc
import json
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import uvloop

from tests.support.http_client import Connection
from tests.support.process_state import ProcessState
from tests.support.server_process import TIMEOUT, ServerProcess, environment
from tieline_server.app import serve
from tieline_server.config import Config


class CountedServer(ServerProcess):
    """A server that tells what it holds."""

    @property
    def state(self) -> ProcessState:
        """Memory and descriptors."""
        return ProcessState(self.process.pid)

    def tasks(self) -> int:
        """How many tasks its loop has now."""
        self.signal(signal.SIGUSR1)
        assert self.process.stdout is not None
        return int(self.process.stdout.readline().removeprefix("tasks "))

    def count(self, name: str) -> int:
        """The sum of a metric, as ``/metrics`` says it."""

        async def ask() -> str:
            client = await Connection.open(int(self.http.rpartition(":")[2]))
            text = (await client.ask("GET", "/metrics")).body.decode()
            await client.close()
            return text

        rows = [row for row in asyncio.run(ask()).splitlines() if row.startswith(name)]
        return sum(int(row.rpartition(" ")[2]) for row in rows)

    def open_connections(self) -> int:
        """How many connections are open."""
        return self.count("tieline_server_connections_active")

    def ended(self) -> int:
        """How many responses have ended."""
        return self.count("tieline_server_responses_total")


@contextmanager
def counting(*, arenas: int | None = None, **settings: Any) -> Iterator[CountedServer]:
    """A server with the scripted engine on free ports, killed at the end.

    ``arenas`` bounds those of glibc's malloc: free memory of one is not used by threads of others.
    """
    malloc = {} if arenas is None else {"MALLOC_ARENA_MAX": str(arenas)}
    free = {"grpc": "127.0.0.1:0", "http": "127.0.0.1:0"}
    given = {"engine": "scripted", "log_level": "warning", **free, **settings}
    with tempfile.TemporaryFile("w+") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", __name__, json.dumps(given)],
            env=environment(GRPC_VERBOSITY="NONE", **malloc),
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        )
        try:
            yield CountedServer(process, log)
        finally:
            process.kill()
            process.wait(TIMEOUT)
            assert process.stdout is not None
            process.stdout.close()


async def _main(settings: dict[str, Any]) -> None:
    def say(line: str) -> None:
        print(line, flush=True)

    def say_tasks() -> None:
        # What is garbage already is no leak, whenever the collector comes to it.
        gc.collect()
        say(f"tasks {len(asyncio.all_tasks())}")

    asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, say_tasks)
    await serve(Config.load(settings), announce=say)


if __name__ == "__main__":
    uvloop.run(_main(json.loads(sys.argv[1])))
