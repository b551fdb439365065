"""HTTP: the Responses API as JSON and as server-sent events, on aiohttp."""

from tieline_server.transports.http.config import HttpConfig
from tieline_server.transports.http.door import HttpDoor, Upgrade

__all__ = ["HttpConfig", "HttpDoor", "Upgrade"]
