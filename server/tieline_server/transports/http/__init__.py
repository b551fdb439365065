"""HTTP: the Responses API as JSON and as server-sent events, on aiohttp."""

from tieline_server.transports.http.config import HttpConfig
from tieline_server.transports.http.server import HttpServer, Upgrade

__all__ = ["HttpConfig", "HttpServer", "Upgrade"]
