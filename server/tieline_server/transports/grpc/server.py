"""The gRPC server: grpc.aio on the running loop, bytes in and bytes out.

No serializer is given to the library, so that a malformed message is answered in-band, and so
that an event is encoded once. Handlers, their errors and the stream's two ends are in the
modules beside this one; here is what listens, and how it says goodbye.
"""

import asyncio
import errno
import logging
import socket
from contextlib import suppress
from typing import Any, Final

import grpc
from google.protobuf import descriptor_pb2, descriptor_pool
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection, reflection_pb2
from msgspec import structs

from tieline.v1 import models_pb2, service_pb2
from tieline_server.capacity import Capacity
from tieline_server.config.toml_tables import split_address
from tieline_server.core.create.limits import Share
from tieline_server.runtime import Services
from tieline_server.transports.grpc._grpcio import Health
from tieline_server.transports.grpc.admission import Admission, KeylessCalls
from tieline_server.transports.grpc.config import GrpcConfig
from tieline_server.transports.grpc.creates import CreateCalls
from tieline_server.transports.grpc.status import Behaviour, guarded
from tieline_server.transports.grpc.stored import StoredCalls
from tieline_server.transports.live_calls import FAREWELL, LiveCalls

RESPONSES: Final = service_pb2.DESCRIPTOR.services_by_name["ResponsesService"].full_name
MODELS: Final = models_pb2.DESCRIPTOR.services_by_name["ModelsService"].full_name

HEALTH: Final = health.SERVICE_NAME
REFLECTION: Final = "grpc.reflection.v1.ServerReflection"
"""Today's name of reflection. The library has only ``v1alpha``, whose messages are the same."""

SERVICES: Final = (RESPONSES, MODELS)
"""What health tells the readiness of."""

HEALTH_TIMEOUT: Final = 1.0
"""Seconds that watchers of health have to take the news: one that does not stops the others."""

_SERVING: Final = health_pb2.HealthCheckResponse.SERVING
_NOT_SERVING: Final = health_pb2.HealthCheckResponse.NOT_SERVING

_log: Final = logging.getLogger(__name__)


def _why(address: str) -> str:
    """What is in the way of listening: the library does not say."""
    with suppress(ValueError):
        host, port = split_address(address)
        try:
            found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
            for family, _, _, _, where in found:
                with socket.socket(family, socket.SOCK_STREAM) as tried:
                    tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                    tried.bind(where)
        except OSError as error:
            return error.strerror or type(error).__name__
    return "is it taken?"


class GrpcServer:
    """Serves ``tieline.v1``, health and, where asked for, reflection. See ``base.TransportServer``.

    ``capacity`` are those of all processes of the server, where it has several.
    """

    def __init__(
        self, services: Services, config: GrpcConfig, *, capacity: Capacity | None = None
    ) -> None:
        most = min(services.limits.message_bytes, config.max_message_bytes)
        limits = structs.replace(services.limits, message_bytes=most)
        services = self._services = structs.replace(services, limits=limits)
        self._config = config
        self.live = LiveCalls(config.max_calls, capacity, share=Share(each=config.max_owner_calls))
        self._admission = Admission(services, self.live, patience=config.first_message_timeout)
        self.creates = CreateCalls(services, config, self.live)
        self._stored = StoredCalls(services)
        self._health = Health()
        self._telling: set[asyncio.Task[None]] = set()
        services.readiness.listen(self._tell)
        self._server: grpc.aio.Server | None = None

    async def start(self) -> list[str]:
        """Listens on every address; port 0 picks a free one."""
        options = self._config.options(message_bytes=self._services.limits.message_bytes)
        keyless = KeylessCalls(
            (f"/{RESPONSES}/", f"/{MODELS}/"), patience=self._config.first_message_timeout
        )
        server = self._server = grpc.aio.server(options=options, interceptors=(keyless,))
        health_pb2_grpc.add_HealthServicer_to_server(self._health, server)
        server.add_generic_rpc_handlers((self._responses(), self._models()))
        if self._config.reflection:
            server.add_generic_rpc_handlers(_reflections())
        bound = [self._bind(server, address) for address in self._config.addresses]
        await server.start()
        await self._health.set("", _SERVING)
        await self._tell_services()
        return bound

    def _tell(self) -> None:
        """The process became ready, or is so no more."""
        if self._server is not None:
            task = asyncio.get_running_loop().create_task(self._tell_services())
            self._telling.add(task)
            task.add_done_callback(self._telling.discard)

    async def _tell_services(self) -> None:
        """The services are as ready as the process is; the server as a whole (``""``) lives."""
        status = _SERVING if self._services.readiness.ready else _NOT_SERVING
        with suppress(TimeoutError):
            async with asyncio.timeout(HEALTH_TIMEOUT):
                await asyncio.gather(*(self._health.set(name, status) for name in SERVICES))

    async def drain(self, seconds: float) -> None:
        """Says NOT_SERVING, tells connections, lets running turns end; then stops the server."""
        try:
            async with asyncio.timeout(HEALTH_TIMEOUT):
                await self._health.enter_graceful_shutdown()
        except TimeoutError:
            _log.warning("a health watcher takes nothing; others may not have been told")
        if self._config.reuse_port and self._server is not None:
            # Another process listens on the address: new connections and calls are for that one.
            async with asyncio.TaskGroup() as ends:
                ends.create_task(self._server.stop(seconds + 2 * FAREWELL))
                ends.create_task(self._end(seconds))
        else:
            await self._end(seconds)

    async def _end(self, seconds: float) -> None:
        await self.live.drain(seconds)
        await self.stop()

    async def stop(self) -> None:
        """Cancels whatever still runs after a short grace."""
        if self._server is not None:
            await self._server.stop(self._config.stop_grace)
            for task in self._telling:
                task.cancel()
            # All calls are over, so every read has ended too.
            await asyncio.gather(*self.creates.readers)

    def _bind(self, server: grpc.aio.Server, address: str) -> str:
        tls = self._config.tls
        try:
            if tls is None:
                port = server.add_insecure_port(address)
            else:
                port = server.add_secure_port(address, tls.credentials())
        except RuntimeError as error:
            raise OSError(
                errno.EADDRINUSE, f"cannot listen on {address}: {_why(address)}"
            ) from error
        host, colon, _ = address.rpartition(":")
        return f"{host}:{port}" if colon and not address.startswith("unix:") else address

    def _responses(self) -> grpc.GenericRpcHandler:
        creates, stored, admitted = self.creates, self._stored, self._admission
        return grpc.method_handlers_generic_handler(
            RESPONSES,
            {
                "Converse": self._stream(admitted.connected(creates.connect)),
                "Create": self._unary(creates.create, begins=True),
                "Stream": self._stream(admitted.asked(creates.stream)),
                "Resume": self._stream(admitted.asked(creates.resume)),
                "Get": self._unary(stored.get),
                "Delete": self._unary(stored.delete),
                "Cancel": self._unary(stored.cancel),
                "ListInputItems": self._unary(stored.list_input_items),
                "CountInputTokens": self._unary(stored.count_input_tokens),
                "Compact": self._unary(stored.compact),
            },
        )

    def _models(self) -> grpc.GenericRpcHandler:
        return grpc.method_handlers_generic_handler(
            MODELS, {"ListModels": self._unary(self._stored.models)}
        )

    def _unary(
        self, behaviour: Behaviour, *, begins: bool = False
    ) -> "grpc.RpcMethodHandler[Any, Any]":
        """For the library the request is a stream, so that it is not gathered unasked."""
        asked = self._admission.asked(behaviour, begins=begins)
        return grpc.stream_unary_rpc_method_handler(self._guard(asked))

    def _stream(self, behaviour: Behaviour) -> "grpc.RpcMethodHandler[Any, Any]":
        return grpc.stream_stream_rpc_method_handler(self._guard(behaviour))

    def _guard(self, behaviour: Behaviour) -> Any:
        return guarded(behaviour, self._services)


def _reflections() -> tuple[grpc.GenericRpcHandler, ...]:
    """Reflection under both of its names: older tools ask for the second, newer ones for both."""
    both = (REFLECTION, reflection.SERVICE_NAME)
    _describe_reflection()
    servicer = reflection.aio.ReflectionServicer((RESPONSES, MODELS, HEALTH, *both))
    answer = grpc.stream_stream_rpc_method_handler(
        servicer.ServerReflectionInfo,
        request_deserializer=reflection_pb2.ServerReflectionRequest.FromString,
        response_serializer=reflection_pb2.ServerReflectionResponse.SerializeToString,
    )
    handlers = {"ServerReflectionInfo": answer}
    return tuple(grpc.method_handlers_generic_handler(name, handlers) for name in both)


def _describe_reflection() -> None:
    """Adds the newer service to the known ones: tools ask what each listed service looks like."""
    file = descriptor_pb2.FileDescriptorProto(
        name="grpc/reflection/v1/reflection.proto",
        package=REFLECTION.rpartition(".")[0],
        dependency=[reflection_pb2.DESCRIPTOR.name],
    )
    reflection_pb2.DESCRIPTOR.services_by_name["ServerReflection"].CopyToProto(file.service.add())
    descriptor_pool.Default().Add(file)
