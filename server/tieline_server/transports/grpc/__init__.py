"""gRPC: ``tieline.v1`` over grpc.aio."""

from tieline_server.transports.base import Opening
from tieline_server.transports.grpc.config import GrpcConfig, Tls
from tieline_server.transports.grpc.server import GrpcServer

__all__ = ["GrpcConfig", "GrpcServer", "Tls", "open_server"]


def open_server(opening: Opening) -> GrpcServer:
    """The server of gRPC by its settings, not yet listening."""
    config = GrpcConfig.of(opening.config, reuse_port=opening.reuse_port)
    return GrpcServer(
        opening.services, config, capacity=opening.capacity("calls", config.max_calls)
    )
