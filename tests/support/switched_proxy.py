"""A proxy on TCP before a Unix socket, which a test stalls or cuts, and lets go on."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

READ = 65536


class SwitchedProxy:
    """Passes bytes while ``flowing`` is set. ``port`` is where it listens."""

    def __init__(self, target: Path) -> None:
        self._target = target
        self._tasks: set[asyncio.Task[None]] = set()
        self._writers: set[asyncio.StreamWriter] = set()
        self._refuses = False
        self.flowing = asyncio.Event()
        self.flowing.set()
        self.port = 0

    def stall(self) -> None:
        """Nothing passes any more, and nobody is told."""
        self.flowing.clear()

    def cut(self) -> None:
        """Every connection ends, and so does each new one at once."""
        self._refuses = True
        for writer in list(self._writers):
            writer.transport.abort()

    def mend(self) -> None:
        """All is well again; what was stalled arrives."""
        self._refuses = False
        self.flowing.set()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection to its end."""
        if self._refuses:
            writer.transport.abort()
            return
        far_reader, far_writer = await asyncio.open_unix_connection(str(self._target))
        self._writers |= {writer, far_writer}
        try:
            async with asyncio.TaskGroup() as both:
                both.create_task(self._pump(reader, far_writer))
                both.create_task(self._pump(far_reader, writer))
        finally:
            for each in (writer, far_writer):
                each.transport.abort()
                self._writers.discard(each)

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # uvloop has a RuntimeError for what is written to a connection that was cut.
        with suppress(ConnectionError, RuntimeError):
            while data := await reader.read(READ):
                await self.flowing.wait()
                writer.write(data)
                await writer.drain()
        writer.transport.abort()


@asynccontextmanager
async def switched(target: Path) -> AsyncIterator[SwitchedProxy]:
    """A proxy before the socket ``target``."""
    proxy = SwitchedProxy(target)
    server = await asyncio.start_server(proxy.serve, "127.0.0.1", 0)
    proxy.port = server.sockets[0].getsockname()[1]
    try:
        yield proxy
    finally:
        server.close()
        proxy.mend()
        proxy.cut()
