"""The private names of aiohttp that this client uses; no other module does.

``test_aiohttp`` fails where a release of aiohttp no longer has one of them, or has it with
another meaning.
"""

import asyncio
import functools
import ssl
from typing import Any, cast

import aiohttp
from aiohttp.client_proto import ResponseHandler


class Traffic:
    """What aiohttp does not tell of its connections: when bytes came in, and how to drop them."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._open: set[asyncio.Transport] = set()
        self.heard = False
        """Whether any bytes came in."""
        self.at = self._loop.time()
        """When bytes came in last, by the loop's clock; also those of a frame not yet whole."""

    @property
    def connected(self) -> bool:
        """Whether what is written now goes to a connection that is not known to have ended."""
        return any(not transport.is_closing() for transport in self._open)

    def made(self, transport: asyncio.Transport) -> None:
        """A connection exists."""
        # The end of one that became a tunnel is told to another protocol than ours.
        self._open = {each for each in self._open if not each.is_closing()}
        self._open.add(transport)

    def seen(self) -> None:
        """Bytes came in."""
        self.heard = True
        self.at = self._loop.time()

    def gone(self, transport: asyncio.Transport) -> None:
        """A connection has ended."""
        self._open.discard(transport)

    def abort(self) -> None:
        """Ends the connections at once: what the peer has not taken would keep them open."""
        for transport in list(self._open):
            transport.abort()


class _Handler(ResponseHandler):
    """aiohttp's protocol, telling its traffic."""

    def __init__(self, loop: asyncio.AbstractEventLoop, traffic: Traffic) -> None:
        super().__init__(loop=loop)
        self._traffic = traffic
        self._stream: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # A stream's, always; uvloop's do not inherit from asyncio's.
        self._stream = cast(asyncio.Transport, transport)
        self._traffic.made(self._stream)
        super().connection_made(transport)

    def data_received(self, data: bytes) -> None:
        self._traffic.seen()
        super().data_received(data)

    def connection_lost(self, exc: BaseException | None) -> None:
        if self._stream is not None:
            self._traffic.gone(self._stream)
        super().connection_lost(exc)


class Connector(aiohttp.TCPConnector):
    """Makes connections whose traffic is told.

    aiohttp has no public way to see the bytes of an upgraded connection, and takes a factory of
    sockets (aio-libs/aiohttp#10534), but none of protocols.
    """

    def __init__(self, traffic: Traffic, *, ssl: ssl.SSLContext | bool) -> None:
        super().__init__(limit=0, ssl=ssl)
        make: Any = functools.partial(_Handler, asyncio.get_running_loop(), traffic)
        self._factory = make
