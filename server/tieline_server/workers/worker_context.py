"""A process among those of its server: the counters that they share, its peers, its supervisor."""

import asyncio
import contextlib
import signal
import socket
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final, Protocol

from structlog.typing import FilteringBoundLogger

from tieline_server.capacity import Capacity
from tieline_server.config import Config
from tieline_server.peers import NoPeers, Peer, Peers
from tieline_server.workers.cautions import caution, check_files
from tieline_server.workers.control import TO_WORKER, Drain, Serve, Serving
from tieline_server.workers.framing import BrokenMessage, pack
from tieline_server.workers.peer_socket import DrainablePeer, PeerSocket
from tieline_server.workers.shared_counters import SharedCapacity, SharedCounters
from tieline_server.workers.totals import Totals
from tieline_server.workers.worker_peers import WorkerPeers, socket_path

COUNTERS: Final = "capacity"
"""The name of the counters' file in the folder that workers share."""

ENDS: Final = (signal.SIGTERM, signal.SIGINT)
"""Signals that ask a server to end."""


class Ending(Protocol):
    """Ends a process."""

    def ask(self) -> None:
        """Asks for an end."""
        ...

    def press(self) -> None:
        """Ends it without waiting for what runs."""
        ...


class ProcessContext:
    """A process that serves by itself."""

    signals: Sequence[int] = ENDS
    """The signals that ask it to end."""
    tag = b""
    """The tag of its ids."""
    shares_ports = False
    """Whether other processes listen on its addresses."""
    seal_key: str | None = None

    def capacity(self, cap: str, most: int) -> Capacity | None:
        """Returns what a cap is counted with; None: the process counts by itself."""
        return None

    @property
    def peers(self) -> Peers:
        """The other processes of its server."""
        return NoPeers()

    def check(self, config: Config) -> None:
        """Raises :class:`ConfigError` for files that cannot be read."""
        check_files(config)

    def caution(self, config: Config, log: FilteringBoundLogger) -> None:
        """Warns of settings that may not be meant: once for each server."""
        caution(config, log)

    def ready(self) -> None:
        """The process listens on every address."""

    @asynccontextmanager
    async def reachable(self, peer: DrainablePeer) -> AsyncIterator[None]:
        """While inside, the others can ask the process."""
        yield

    async def drain(self, seconds: float) -> None:
        """Gives the lanes that it serves for others so many seconds to end."""

    def recorded(self, metrics: Callable[[], bytes]) -> Callable[[], bytes]:
        """Wraps ``metrics`` so that what was once told outlasts the process."""
        return metrics

    async def metrics(self, peer: Peer) -> bytes:
        """Returns what all processes of the server have counted together."""
        return await peer.metrics()

    @asynccontextmanager
    async def directed(self, ending: Ending) -> AsyncIterator[None]:
        """While inside, a supervisor can end the process."""
        yield


class WorkerContext(ProcessContext):
    """The context of a worker; ``control`` is its end of the connection to the supervisor."""

    signals = ()
    shares_ports = True

    def __init__(self, order: Serve, control: socket.socket) -> None:
        self.tag = order.tag
        self.seal_key = order.seal_key
        self.folder = Path(order.folder)
        self._row = order.row
        self._control = control
        self._counters = SharedCounters.open(self.folder / COUNTERS)
        self._peers = WorkerPeers(self.folder, self.tag)
        self._socket: PeerSocket | None = None
        self._totals = Totals(self.folder, self.tag)

    def capacity(self, cap: str, most: int) -> Capacity:
        """Returns what counts over all workers."""
        return SharedCapacity(self._counters, row=self._row, cap=cap, most=most)

    def caution(self, config: Config, log: FilteringBoundLogger) -> None:
        """Says nothing: the supervisor has."""

    @property
    def peers(self) -> Peers:
        """The other workers."""
        return self._peers

    @asynccontextmanager
    async def reachable(self, peer: DrainablePeer) -> AsyncIterator[None]:
        """Listens on a socket in the folder; writes down now and then what was counted."""
        keeping = asyncio.create_task(self._totals.keep(peer.metrics))
        self._socket = PeerSocket(peer, socket_path(self.folder, self.tag))
        try:
            await self._socket.open()
            yield
        finally:
            await self._socket.close()
            self._peers.close()
            keeping.cancel()
            await asyncio.wait([keeping])
            await peer.metrics()

    async def drain(self, seconds: float) -> None:
        """Hides it from the others, and gives the lanes that it serves for them time to end."""
        if self._socket is not None:
            await self._socket.drain(seconds)

    def recorded(self, metrics: Callable[[], bytes]) -> Callable[[], bytes]:
        """Writes the metrics down each time that they are told."""
        return lambda: self._totals.recorded(metrics())

    async def metrics(self, peer: Peer) -> bytes:
        """Adds up those of living workers and of dead ones."""
        living = self._peers.living()
        return await self._totals.add_up({self.tag: peer, **living})

    def ready(self) -> None:
        """Tells the supervisor that it listens."""
        with contextlib.suppress(OSError):
            self._control.send(pack(Serving()))

    @asynccontextmanager
    async def directed(self, ending: Ending) -> AsyncIterator[None]:
        """The supervisor's orders end the process, and so does the supervisor's own end.

        SIGTERM asks, however often it comes: a group of processes gets it together, and the
        supervisor passes it on besides.
        """
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ending.ask)
        # A descriptor of its own: the loop closes it, and the context may still have to speak.
        reader, writer = await asyncio.open_connection(sock=self._control.dup())
        following = asyncio.create_task(_follow(reader, ending))
        try:
            yield
        finally:
            following.cancel()
            await asyncio.wait([following])
            writer.close()


async def _follow(reader: asyncio.StreamReader, ending: Ending) -> None:
    with contextlib.suppress(BrokenMessage):
        while isinstance(order := await TO_WORKER.read(reader), Drain):
            ending.ask()
            if order.insist:
                ending.press()
    ending.ask()
