"""A process's place among those of its server: what it shares, whom it can ask, who directs it."""

import asyncio
import contextlib
import signal
import socket
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final, Protocol

from structlog.typing import FilteringBoundLogger

from tieline_server.config import Config
from tieline_server.homes import Alone, Home, Homes
from tieline_server.places import Places
from tieline_server.workers.board import Board, BoardPlaces
from tieline_server.workers.cautions import caution, check_files
from tieline_server.workers.control import TO_WORKER, Drain, Serve, Serving
from tieline_server.workers.frames import Torn, pack
from tieline_server.workers.neighbourhood import Neighbourhood, socket_path
from tieline_server.workers.socket import HomeSocket, LastingHome
from tieline_server.workers.totals import Totals

BOARD: Final = "places"
"""The name of the board in the folder that workers share."""

ENDS: Final = (signal.SIGTERM, signal.SIGINT)
"""Signals that ask a server to end."""


class Ending(Protocol):
    """What a process is ended by."""

    def ask(self) -> None:
        """Asks for an end."""
        ...

    def press(self) -> None:
        """Does not wait for it."""
        ...


class Post:
    """A process that serves by itself."""

    signals: Sequence[int] = ENDS
    """What asks it to end."""
    mark = b""
    """The tag of its ids."""
    shares_ports = False
    """Whether other processes listen on its addresses."""
    seal_key: str | None = None

    def places(self, cap: str, most: int) -> Places | None:
        """What a cap is counted with; None: by the process alone."""
        return None

    @property
    def homes(self) -> Homes:
        """The other processes of its server."""
        return Alone()

    def check(self, config: Config) -> None:
        """Raises :class:`ConfigError` for files that cannot be read."""
        check_files(config)

    def caution(self, config: Config, log: FilteringBoundLogger) -> None:
        """Says what may not be meant in the settings: of each server once."""
        caution(config, log)

    def ready(self) -> None:
        """It listens on every address."""

    @asynccontextmanager
    async def reachable(self, home: LastingHome) -> AsyncIterator[None]:
        """While inside, the others can ask the process."""
        yield

    async def drain(self, seconds: float) -> None:
        """What the others have here gets so long to end."""

    def recorded(self, metrics: Callable[[], bytes]) -> Callable[[], bytes]:
        """``metrics``, so that what was once told is not forgotten when the process dies."""
        return metrics

    async def metrics(self, home: Home) -> bytes:
        """What all processes of the server have counted together."""
        return await home.metrics()

    @asynccontextmanager
    async def directed(self, ending: Ending) -> AsyncIterator[None]:
        """While inside, whoever may end the process does so."""
        yield


class WorkerPost(Post):
    """A worker. ``control`` is its end of the connection to the supervisor."""

    signals = ()
    shares_ports = True

    def __init__(self, order: Serve, control: socket.socket) -> None:
        self.mark = order.mark
        self.seal_key = order.seal_key
        self.folder = Path(order.folder)
        self._row = order.row
        self._control = control
        self._board = Board.open(self.folder / BOARD)
        self._neighbours = Neighbourhood(self.folder, self.mark)
        self._socket: HomeSocket | None = None
        self._totals = Totals(self.folder, self.mark)

    def places(self, cap: str, most: int) -> Places:
        """Counted over all workers."""
        return BoardPlaces(self._board, row=self._row, cap=cap, most=most)

    def caution(self, config: Config, log: FilteringBoundLogger) -> None:
        """The supervisor has said it."""

    @property
    def homes(self) -> Homes:
        """The other workers."""
        return self._neighbours

    @asynccontextmanager
    async def reachable(self, home: LastingHome) -> AsyncIterator[None]:
        """By a socket in the folder; what was counted is written down now and then."""
        keeping = asyncio.create_task(self._totals.keep(home.metrics))
        self._socket = HomeSocket(home, socket_path(self.folder, self.mark))
        try:
            await self._socket.open()
            yield
        finally:
            await self._socket.close()
            self._neighbours.close()
            keeping.cancel()
            await asyncio.wait([keeping])
            await home.metrics()

    async def drain(self, seconds: float) -> None:
        """The others do not find it any more."""
        if self._socket is not None:
            await self._socket.drain(seconds)

    def recorded(self, metrics: Callable[[], bytes]) -> Callable[[], bytes]:
        """Written down each time that it is told."""
        return lambda: self._totals.recorded(metrics())

    async def metrics(self, home: Home) -> bytes:
        """Of the living, and of those that have died."""
        living = self._neighbours.living()
        return await self._totals.add_up({self.mark: home, **living})

    def ready(self) -> None:
        """Tells the supervisor."""
        with contextlib.suppress(OSError):
            self._control.send(pack(Serving()))

    @asynccontextmanager
    async def directed(self, ending: Ending) -> AsyncIterator[None]:
        """The supervisor directs; when it is gone, that is an order to end as well.

        SIGTERM asks, however often it comes: a group of processes gets it together, and the
        supervisor passes it on besides.
        """
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ending.ask)
        # A descriptor of its own: the loop closes it, and the post may still have to speak.
        reader, writer = await asyncio.open_connection(sock=self._control.dup())
        following = asyncio.create_task(_follow(reader, ending))
        try:
            yield
        finally:
            following.cancel()
            await asyncio.wait([following])
            writer.close()


async def _follow(reader: asyncio.StreamReader, ending: Ending) -> None:
    with contextlib.suppress(Torn):
        while isinstance(order := await TO_WORKER.read(reader), Drain):
            ending.ask()
            if order.insist:
                ending.press()
    ending.ask()
