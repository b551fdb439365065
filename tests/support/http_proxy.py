"""An HTTP proxy on loopback: it tunnels by CONNECT and forwards requests in absolute form."""

import asyncio
from contextlib import suppress
from typing import Self
from urllib.parse import urlsplit


class HttpProxy:
    """Listens on ``address``.

    ``wants``: the ``Proxy-Authorization`` without which it answers 407. ``answers``: a status
    that it answers everything with. ``silent``: it reads, and says nothing. ``upgrades``: whether
    it knows that a connection can become another protocol's.
    """

    def __init__(
        self,
        *,
        wants: str | None = None,
        answers: int | None = None,
        silent: bool = False,
        upgrades: bool = True,
    ) -> None:
        self._wants = wants
        self._answers = answers
        self._silent = silent
        self._upgrades = upgrades
        self._server: asyncio.Server | None = None
        self._serving: set[asyncio.Task[None]] = set()
        self.address = ""
        self.asked: list[str] = []
        """The request lines that came."""

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.address = f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        for task in self._serving:
            task.cancel()
        if self._serving:
            await asyncio.wait(self._serving)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._serving.add(asyncio.create_task(self._serve(reader, writer)))

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await self._answer(reader, writer)
        finally:
            writer.transport.abort()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError, asyncio.IncompleteReadError):
            head = await reader.readuntil(b"\r\n\r\n")
            line, *fields = head.decode().removesuffix("\r\n\r\n").split("\r\n")
            self.asked.append(line)
            if self._silent:
                await reader.read()
            elif (refusal := self._refusal(fields)) is not None:
                # Its words repeat what it was told, as some do.
                writer.write(f"HTTP/1.1 {refusal} {' '.join(fields)}\r\n".encode())
                writer.write(b"content-length: 0\r\n\r\n")
                await writer.drain()
            else:
                await self._pass(line, fields, reader, writer)
            writer.close()
            await writer.wait_closed()

    def _refusal(self, fields: list[str]) -> int | None:
        if self._answers is not None:
            return self._answers
        said = [field for field in fields if field.lower().startswith("proxy-authorization:")]
        told = [field.partition(":")[2].strip() for field in said]
        return 407 if self._wants is not None and told != [self._wants] else None

    async def _pass(
        self,
        line: str,
        fields: list[str],
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        method, target, version = line.split()
        first = b""
        if method == "CONNECT":
            host, _, port = target.rpartition(":")
            writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
        else:
            parts = urlsplit(target)
            host, port = parts.hostname or "", str(parts.port)
            path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
            first = "\r\n".join([f"{method} {path} {version}", *self._kept(fields)]).encode()
            first += b"\r\n\r\n"
        far_reader, far_writer = await asyncio.open_connection(host.strip("[]"), int(port))
        far_writer.write(first)
        try:
            async with asyncio.TaskGroup() as both:
                both.create_task(_pump(reader, far_writer))
                both.create_task(_pump(far_reader, writer))
        finally:
            far_writer.transport.abort()

    def _kept(self, fields: list[str]) -> list[str]:
        """The header without what is between the client and us (RFC 9110 7.6.1)."""
        between = {"proxy-authorization", "proxy-connection"}
        upgrade = any(field.lower().startswith("upgrade:") for field in fields)
        if not upgrade:
            # One request a connection: the next one would not be read.
            fields = [*fields, "Connection: close"]
        elif not self._upgrades:
            between |= {"connection", "upgrade"}
        return [field for field in fields if field.partition(":")[0].lower() not in between]


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
        writer.write_eof()
