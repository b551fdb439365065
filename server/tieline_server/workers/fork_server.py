"""The fork server as its supervisor sees it: a process that starts workers when it is asked to."""

import asyncio
import contextlib
import os
import socket
import subprocess
from collections.abc import Callable, Sequence
from typing import Any

from tieline_server.config import PREFIX
from tieline_server.workers.child import Child, NotServing, either
from tieline_server.workers.control import (
    FROM_FORK_SERVER,
    Exited,
    Failed,
    Prepare,
    Prepared,
    Spawn,
    Spawned,
)
from tieline_server.workers.fork_server_process import PACKET
from tieline_server.workers.framing import pack


class ForkServer:
    """Starts the process by ``command``, to which the number of a descriptor is added.

    It prepares for ``settings``. ``attend`` is called for each worker, as soon as there is one.
    """

    def __init__(
        self,
        command: Sequence[str],
        settings: dict[str, Any],
        *,
        attend: Callable[[Child], None],
    ) -> None:
        self._attend = attend
        self._loop = asyncio.get_running_loop()
        # Each packet is a message, and a descriptor stays with its own.
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            # By exec: nothing of this process but three descriptors and the environment.
            self._process = subprocess.Popen(
                [*command, str(theirs.fileno())],
                pass_fds=(theirs.fileno(),),
                stdin=subprocess.DEVNULL,
                # Addresses alone are on stdout.
                stdout=2,
                # The settings are told; none must come from a second source.
                env={n: text for n, text in os.environ.items() if not n.startswith(PREFIX)},
            )
        self.pid = self._process.pid
        self.ended = asyncio.Event()
        self._prepared = asyncio.Event()
        self._spawning: list[asyncio.Future[Child]] = []
        """The workers that were asked for, in order."""
        self._controls: list[socket.socket] = []
        """Our end of the control of each of these."""
        self._children: dict[int, Child] = {}
        self._reason = ""
        self._control.setblocking(False)
        self._loop.add_reader(self._control, self._hear)
        self._control.send(pack(Prepare(settings)))

    async def spawn(self) -> Child:
        """Starts a worker, which waits for its orders; raises :class:`NotServing`."""
        await either(self._prepared, self.ended)
        if self.ended.is_set():
            raise NotServing(self._reason or "the process that starts workers ended")
        ours, theirs = socket.socketpair()
        spawning: asyncio.Future[Child] = self._loop.create_future()
        self._spawning.append(spawning)
        self._controls.append(ours)
        with theirs, contextlib.suppress(OSError):  # Its end is heard of.
            socket.send_fds(self._control, [pack(Spawn())], [theirs.fileno()])
        return await spawning

    def close(self) -> None:
        """Ends the process; workers that it has started go on."""
        if self.ended.is_set():
            return
        self._loop.remove_reader(self._control)
        self._control.close()
        self._process.kill()
        self._process.wait()
        self.ended.set()
        for spawning, control in zip(self._spawning, self._controls, strict=True):
            control.close()
            if not spawning.done():
                spawning.set_exception(NotServing("the process that starts workers ended"))
        self._spawning.clear()
        self._controls.clear()
        for child in self._children.values():
            child.reaped(None)
        self._children.clear()

    def _hear(self) -> None:
        try:
            packet, descriptors, _, _ = socket.recv_fds(self._control, PACKET, 1)
        except BlockingIOError:
            return
        except OSError:
            packet = b""
        if not packet:
            self.close()
            return
        said = FROM_FORK_SERVER.unpack(packet)
        if isinstance(said, Prepared):
            self._prepared.set()
        elif isinstance(said, Failed):
            self._reason = said.reason
        elif isinstance(said, Spawned):
            self._spawned(said.pid, descriptors[0])
        elif isinstance(said, Exited):
            child = self._children.pop(said.pid, None)
            if child is not None:
                child.reaped(said.status)

    def _spawned(self, pid: int, process: int) -> None:
        spawning, control = self._spawning.pop(0), self._controls.pop(0)
        child = Child(pid, process, control)
        self._children[pid] = child
        self._attend(child)
        if spawning.cancelled():
            child.kill()
        else:
            spawning.set_result(child)
