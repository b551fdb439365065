"""Where callers come in: one file for each kind of door.

A new door is a file in this folder and a line in :data:`DOORS`.
"""

from typing import Final

DOORS: Final[dict[str, str]] = {
    "grpc": "tieline_server.transports.grpc:GrpcServer",
    "http": "tieline_server.transports.http:HttpServer",
}
"""TransportServer name -> import path of its class."""
