"""An upstream that is a process of its own, so that it can be killed as one is.

Each answer is words of one token that say whose they are, at a pace of its own.
"""

import asyncio
import random
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from aiohttp import web
from msgspec import Struct

from tests.support.upstream_server import UpstreamServer, chunk, upstream, usage

ROOT: Final = Path(__file__).parents[2]
WORDS: Final = 16
LONGEST: Final = 0.1
"""Seconds until the first word, at most."""
PACE: Final = 0.01
"""Seconds between words."""


class Replica(Struct):
    """One that runs."""

    url: str
    process: subprocess.Popen[str]

    def kill(self) -> None:
        """Ends it without a word (SIGKILL)."""
        self.process.kill()
        self.process.wait()


@contextmanager
def replica(name: str, *, seed: int) -> Iterator[Replica]:
    """A replica whose every word is its name."""
    command = [sys.executable, "-m", "tests.support.replica_process", name, str(seed)]
    # It ends when its input does, so that it never outlives whoever started it.
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, cwd=ROOT, **pipes) as process:
        try:
            assert process.stdout is not None
            yield Replica(process.stdout.readline().strip(), process)
        finally:
            process.kill()


async def _serve(name: str, seed: int) -> None:
    chance = random.Random(seed)

    async def answer(
        _server: UpstreamServer, body: dict[str, Any], request: web.Request
    ) -> web.StreamResponse:
        pause = chance.uniform(0, LONGEST)
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        await asyncio.sleep(pause)
        for _ in range(WORDS):
            await response.write(chunk(content=f"{name} "))
            await asyncio.sleep(PACE)
        await response.write(chunk("stop") + usage(7, WORDS) + b"data: [DONE]\n\n")
        return response

    async with upstream(models=("scripted",)) as server:
        server.otherwise = answer
        print(server.url, flush=True)
        await asyncio.to_thread(sys.stdin.read)


if __name__ == "__main__":
    asyncio.run(_serve(sys.argv[1], int(sys.argv[2])))
