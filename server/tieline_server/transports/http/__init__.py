"""HTTP: the Responses API as JSON and as server-sent events, on aiohttp."""

from tieline_server.config.toml_tables import OFF
from tieline_server.core.create.limits import Share
from tieline_server.transports.base import Opening
from tieline_server.transports.http.config import HttpConfig
from tieline_server.transports.http.server import HttpServer, Upgrade
from tieline_server.transports.websocket import WebSocketConfig, WebSocketEndpoint

__all__ = ["HttpConfig", "HttpServer", "Upgrade", "open_server"]


def open_server(opening: Opening) -> HttpServer | None:
    """The server of HTTP by its settings, with WebSocket on the same port where that is on."""
    services, config = opening.services, opening.config
    if config.http == OFF:
        return None
    share = Share(each=config.max_owner_connections)
    upgraded = WebSocketConfig.of(config)
    return HttpServer(
        services,
        HttpConfig.of(config, reuse_port=opening.reuse_port),
        WebSocketEndpoint(services, upgraded, share=share) if config.websocket else None,
        metrics=opening.metrics,
        capacity=opening.capacity("connections", config.max_connections),
        share=share,
    )
