"""A way to a server that can be cut."""

import asyncio
from collections.abc import Callable


def _ignore(_data: bytes) -> None:
    pass


class Relay:
    """A TCP relay that can reset its connections, or forget them (a half-open peer).

    ``heard`` is called with what the server says, once that is on its way to the client.
    """

    def __init__(self, address: str, *, heard: Callable[[bytes], None] = _ignore) -> None:
        self._heard = heard
        self._host, _, port = address.rpartition(":")
        self._port = int(port)
        self._server: asyncio.Server | None = None
        self._writers: list[asyncio.StreamWriter] = []
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> "Relay":
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self.forget()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self.reset()
        self._server.close()
        await self._server.wait_closed()

    @property
    def address(self) -> str:
        """HOST:PORT."""
        assert self._server is not None
        return f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    def reset(self) -> None:
        """Both ends see the connection break (RST, or FIN where nothing is unread)."""
        for writer in self._writers:
            writer.transport.abort()

    def forget(self) -> None:
        """Nothing is carried any more, and nobody is told."""
        for task in self._tasks:
            task.cancel()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far_reader, far_writer = await asyncio.open_connection(self._host, self._port)
        self._writers += [writer, far_writer]
        self._tasks += [
            asyncio.create_task(_carry(reader, far_writer, _ignore)),
            asyncio.create_task(_carry(far_reader, writer, self._heard)),
        ]


async def _carry(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, heard: Callable[[bytes], None]
) -> None:
    while data := await reader.read(65536):
        writer.write(data)
        heard(data)
    writer.close()
