"""Load clients that are cheap, so that the server is what is measured. Blocking sockets."""

from tieline_bench.clients.base import Connection, LoadError, Seen, Turn, take_turn
from tieline_bench.clients.grpc import GrpcConnection
from tieline_bench.clients.sse import SseConnection
from tieline_bench.clients.websocket import WebSocketConnection

__all__ = [
    "GrpcConnection",
    "Connection",
    "LoadError",
    "Seen",
    "SseConnection",
    "Turn",
    "WebSocketConnection",
    "take_turn",
]
