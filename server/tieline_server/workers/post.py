"""A process's place among those of its server: what it shares, whom it can ask, who directs it."""

import asyncio
import contextlib
import signal
import socket
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final, Protocol

from tieline_server.places import Places
from tieline_server.workers.board import Board, BoardPlaces
from tieline_server.workers.control import TO_WORKER, Drain, Serve, Serving
from tieline_server.workers.frames import Torn, pack

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

    def ready(self) -> None:
        """It listens on every address."""

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

    def places(self, cap: str, most: int) -> Places:
        """Counted over all workers."""
        return BoardPlaces(self._board, row=self._row, cap=cap, most=most)

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
