"""A TCP proxy that closes a connection on which nothing passes for too long, as balancers do."""

import asyncio
from typing import Self


class QuietProxy:
    """Stands between clients and the server on ``target``; listens on ``port``.

    Any byte in either direction counts: what it lets through is not its affair.
    """

    def __init__(self, target: int, *, limit: float) -> None:
        self._target = target
        self._limit = limit
        self._server: asyncio.Server | None = None
        self.port = 0
        self.cuts = 0

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self._target)
        try:
            async with asyncio.timeout(self._limit) as deadline:
                async with asyncio.TaskGroup() as both:
                    both.create_task(self._pump(reader, far_writer, deadline))
                    both.create_task(self._pump(far_reader, writer, deadline))
        except TimeoutError:
            self.cuts += 1
        finally:
            for each in (writer, far_writer):
                each.transport.abort()

    async def _pump(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        deadline: asyncio.Timeout,
    ) -> None:
        try:
            while data := await reader.read(65536):
                deadline.reschedule(asyncio.get_running_loop().time() + self._limit)
                writer.write(data)
                await writer.drain()
        except ConnectionError:
            pass
        writer.transport.abort()
