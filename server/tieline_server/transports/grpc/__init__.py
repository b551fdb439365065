"""gRPC: ``tieline.v1`` over grpc.aio."""

from tieline_server.transports.grpc.config import GrpcConfig, Tls
from tieline_server.transports.grpc.server import GrpcServer

__all__ = ["GrpcConfig", "GrpcServer", "Tls"]
