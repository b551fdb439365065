"""Where clients come in: a folder for each transport, and what several of them share.

A new transport is a folder here and a line in :data:`TRANSPORTS`. It frames and nothing else: what
a message means is the connection's affair. WebSocket is not in the table: HTTP upgrades to it.
"""

from importlib import import_module
from typing import Final

from tieline_server.transports.base import Opener

TRANSPORTS: Final[dict[str, str]] = {
    "grpc": "tieline_server.transports.grpc:open_server",
    "http": "tieline_server.transports.http:open_server",
}
"""The setting that is a transport's address -> import path of what opens its server."""


def opener(name: str) -> Opener:
    """What opens a transport of the table; its module is imported only now."""
    module, _, function = TRANSPORTS[name].partition(":")
    found: Opener = getattr(import_module(module), function)
    return found
