"""The messages between a supervisor, its fork server and its workers."""

from typing import Any, Final

from msgspec import Struct

from tieline_server.workers.framing import Decoder


class Prepare(Struct, frozen=True, tag=True):
    """Tells a fork server to import all that these settings need."""

    config: dict[str, Any]


class Prepared(Struct, frozen=True, tag=True):
    """Says that a fork server has imported everything, and opened nothing."""


class Spawn(Struct, frozen=True, tag=True):
    """Tells a fork server to start a worker. With it comes the worker's end of its control."""


class Spawned(Struct, frozen=True, tag=True):
    """Says that a worker was started. With it comes a descriptor of its process (pidfd)."""

    pid: int


class Exited(Struct, frozen=True, tag=True):
    """Says that a worker has ended: ``status`` is as in ``subprocess``, a signal below zero."""

    pid: int
    status: int


class Serve(Struct, frozen=True, kw_only=True, tag=True):
    """Tells a worker to open, listen and serve."""

    config: dict[str, Any]
    tag: bytes
    """The tag of its ids: two bytes that no other living worker has."""
    folder: str
    """The folder that the workers share; only their user can open it."""
    row: int
    """Its row of the shared counters."""
    seal_key: str | None = None
    """The key that all workers seal with, where the settings name none."""


class Serving(Struct, frozen=True, tag=True):
    """Says that a worker listens on every address."""


class Failed(Struct, frozen=True, tag=True):
    """Says in one line why a process cannot do what it was told; it ends."""

    reason: str


class Drain(Struct, frozen=True, tag=True):
    """Tells a worker to end in order; ``insist``: without waiting for what runs."""

    insist: bool = False


TO_WORKER: Final = Decoder(Serve | Drain)
FROM_WORKER: Final = Decoder(Serving | Failed)
TO_FORK_SERVER: Final = Decoder(Prepare | Spawn)
FROM_FORK_SERVER: Final = Decoder(Prepared | Spawned | Exited | Failed)
