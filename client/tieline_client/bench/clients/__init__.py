"""Load clients that are cheap, so that the server is what is measured. Blocking sockets."""

from tieline_client.bench.clients.base import Connection, LoadError, Seen, Turn, take_turn
from tieline_client.bench.clients.grpc import GrpcConnection
from tieline_client.bench.clients.sse import SseConnection
from tieline_client.bench.clients.websocket import WebSocketConnection

__all__ = [
    "Connection",
    "GrpcConnection",
    "LoadError",
    "Seen",
    "SseConnection",
    "Turn",
    "WebSocketConnection",
    "take_turn",
]
