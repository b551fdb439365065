"""gRPC: ``tieline.v1`` over grpc.aio."""

from tieline_server.transports.grpc.config import GrpcConfig, Tls
from tieline_server.transports.grpc.door import GrpcDoor

__all__ = ["GrpcConfig", "GrpcDoor", "Tls"]
