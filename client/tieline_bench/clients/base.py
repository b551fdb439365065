"""What the load clients of all transports share: an open connection, and a turn on it."""

import socket
from collections.abc import Sequence
from typing import Final, NamedTuple, Protocol

TIMEOUT: Final = 30.0
"""Seconds without a byte after which a server counts as stuck."""

TERMINAL: Final = frozenset(
    {"response.completed", "response.incomplete", "response.failed", "error"}
)
"""Types of events after which a turn sends nothing more."""


class LoadError(Exception):
    """The server did something that makes a measurement worthless; the message is one line."""


class Seen(NamedTuple):
    """What a load client looks at in an event."""

    kind: str
    """The event's ``type``."""
    delta: str = ""
    response_id: str = ""
    call_id: str = ""
    """Of a call, where the event ends one."""


class Connection(Protocol):
    """An open connection to one server; ``recorded`` collects the bytes of events, if set."""

    recorded: bytearray | None

    def send(self, request: bytes) -> None:
        """Sends one request, as this transport's ``*_create`` builds it."""
        ...

    def receive(self) -> Sequence[Seen]:
        """Waits for bytes and returns the events that are whole now, perhaps none."""
        ...

    def split(self, recorded: bytes) -> list[bytes]:
        """What was recorded, cut into the bytes of each event."""
        ...

    def fileno(self) -> int:
        """The descriptor to wait on."""
        ...

    def close(self) -> None:
        """Closes the connection."""
        ...


class Turn(NamedTuple):
    """One turn, as it was seen."""

    events: int
    response_id: str
    text: str
    """All deltas."""
    deltas: int = 0
    call_id: str = ""


def take_turn(connection: Connection, request: bytes) -> Turn:
    """Sends a request and reads until its turn is over; raises :class:`LoadError` on failure."""
    connection.send(request)
    count, call_id = 0, ""
    pieces: list[str] = []
    while True:
        for seen in connection.receive():
            count += 1
            call_id = seen.call_id or call_id
            if seen.delta:
                pieces.append(seen.delta)
            if seen.kind in TERMINAL:
                if seen.kind != "response.completed":
                    raise LoadError(f"a turn ended with {seen.kind}")
                return Turn(count, seen.response_id, "".join(pieces), len(pieces), call_id)


def dial(address: str) -> socket.socket:
    """A blocking socket to ``host:port``."""
    host, _, port = address.rpartition(":")
    opened = socket.create_connection((host.strip("[]"), int(port)), timeout=TIMEOUT)
    opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return opened


def some_bytes(opened: socket.socket) -> bytes:
    """The next bytes; raises :class:`LoadError` at the end of the stream."""
    data = opened.recv(256 * 1024)
    if not data:
        raise LoadError("the server closed the connection")
    return data
