"""Settings of the WebSocket endpoint."""

from typing import Self

from msgspec import Struct

from tieline_server.config import MIB, Config


class WebSocketConfig(Struct, frozen=True, kw_only=True):
    """What the WebSocket endpoint allows. Times are seconds, sizes bytes."""

    merge: bool = True
    """Whether deltas that a slow reader has not taken may join."""
    heartbeat: float = 15.0
    """Silence in our direction after which a connection says that it lives.

    By an event where the client asked for those and something runs, else by a ping frame.
    """
    write_timeout: float = 30.0
    """How long one write may be stuck before its connection ends."""
    read_timeout: float = 30.0
    """How long the rest of a message may be silent."""
    close_timeout: float = 2.0
    """How long the peer's close frame is waited for."""
    max_age: float = 3600.0
    """How old a connection may grow; what runs then ends first."""
    max_connections: int = 4096
    """Connections of this process; one more is refused before its upgrade."""
    max_message_bytes: int = 16 * MIB
    """A message that is larger ends its connection with 1009."""
    deflate: bool = False
    """Whether permessage-deflate is agreed to when a client offers it."""

    @classmethod
    def of(cls, config: Config) -> Self:
        """The settings that concern WebSocket."""
        return cls(
            merge=config.merge != "never",
            heartbeat=config.heartbeat,
            write_timeout=config.write_timeout,
            max_age=config.max_age,
            max_connections=config.max_connections,
            max_message_bytes=config.websocket_message_bytes,
            deflate=config.deflate,
        )
