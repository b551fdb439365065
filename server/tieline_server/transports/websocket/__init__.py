"""WebSocket: OpenAI's WebSocket mode of the Responses API, on aiohttp."""

from tieline_server.transports.websocket.config import WebSocketConfig
from tieline_server.transports.websocket.endpoint import WebSocketEndpoint

__all__ = ["WebSocketConfig", "WebSocketEndpoint"]
