"""Where callers come in: one file for each kind of door.

A new door is a file in this folder and a line in :data:`DOORS`.
"""

from typing import Final

DOORS: Final[dict[str, str]] = {
    "grpc": "tieline_server.transports.grpc:GrpcDoor",
    "http": "tieline_server.transports.http:HttpDoor",
}
"""Door name -> import path of its class."""
