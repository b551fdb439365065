"""Load clients that are cheap, so that the server is what is measured. Blocking sockets."""

from tieline_client.bench.clients.base import Line, LoadError, Seen, Turn, take_turn
from tieline_client.bench.clients.grpc import GrpcLine
from tieline_client.bench.clients.sse import SseLine
from tieline_client.bench.clients.websocket import WebSocketLine

__all__ = [
    "GrpcLine",
    "Line",
    "LoadError",
    "Seen",
    "SseLine",
    "Turn",
    "WebSocketLine",
    "take_turn",
]
