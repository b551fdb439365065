"""What a supervisor, its nursery and its workers say to one another."""

from typing import Any, Final

from msgspec import Struct

from tieline_server.workers.frames import Decoder


class Prepare(Struct, frozen=True, tag=True):
    """To a nursery: import all that these settings need."""

    config: dict[str, Any]


class Prepared(Struct, frozen=True, tag=True):
    """A nursery has imported everything, and opened nothing."""


class Bear(Struct, frozen=True, tag=True):
    """To a nursery: start a worker. With it comes the worker's end of its control."""


class Born(Struct, frozen=True, tag=True):
    """A worker was started. With it comes a descriptor of its process (pidfd)."""

    pid: int


class Died(Struct, frozen=True, tag=True):
    """A worker has ended: with an exit status, or by a signal, whose number is below zero."""

    pid: int
    status: int


class Serve(Struct, frozen=True, kw_only=True, tag=True):
    """To a worker: open, listen, serve."""

    config: dict[str, Any]
    mark: bytes
    """The tag of its ids: two bytes that no other living worker has."""
    folder: str
    """What the workers share; for their user alone."""
    row: int
    """Its row of the board of places."""
    seal_key: str | None = None
    """What all of them seal with, where the settings name no key."""


class Serving(Struct, frozen=True, tag=True):
    """A worker listens on every address."""


class Failed(Struct, frozen=True, tag=True):
    """It cannot do what it was told, and ends; one line says why."""

    reason: str


class Drain(Struct, frozen=True, tag=True):
    """To a worker: end in order; ``insist``: without waiting for what runs."""

    insist: bool = False


TO_WORKER: Final = Decoder(Serve | Drain)
FROM_WORKER: Final = Decoder(Serving | Failed)
TO_NURSERY: Final = Decoder(Prepare | Bear)
FROM_NURSERY: Final = Decoder(Prepared | Born | Died | Failed)
