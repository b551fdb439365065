"""The HTTP server: what listens, what each path means, and how it says goodbye.

aiohttp's low-level server: its router and middlewares would cost more than a whole route here.
"""

import asyncio
import logging
import socket
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any, Final, Protocol

import msgspec
from aiohttp import web
from aiohttp.abc import AbstractStreamWriter
from aiohttp.http_parser import RawRequestMessage
from aiohttp.streams import StreamReader

from tieline.errors import ApiError
from tieline_server.capacity import Capacity
from tieline_server.config.toml_tables import split_address
from tieline_server.core.create.limits import Share
from tieline_server.runtime import Services, server_error
from tieline_server.transports.http.capabilities import ModelCalls
from tieline_server.transports.http.config import HttpConfig
from tieline_server.transports.http.creates import CreateCalls
from tieline_server.transports.http.request import Call, Handler, error_response, json_response
from tieline_server.transports.http.safety import Safety
from tieline_server.transports.http.stored import StoredCalls
from tieline_server.transports.http.tcp_connection import TcpConnection, TcpConnections
from tieline_server.transports.http.usage_report import UsageCalls
from tieline_server.transports.live_calls import FAREWELL, LiveCalls, caller_of, draining


class Upgrade(Protocol):
    """What answers a WebSocket handshake on ``/v1/responses``."""

    async def handle(self, request: web.Request) -> web.StreamResponse:
        """Answers the handshake and serves the connection to its end.

        Called after the checks for browsers and for the number of connections; cancelled when
        the peer is gone.
        """
        ...

    async def drain(self, seconds: float) -> None:
        """No new work; running turns get ``seconds`` to end, then the connections close."""
        ...


BACKLOG: Final = 1024
"""Connections that the kernel keeps until they are accepted."""

TRANSPORT: Final = "http"
"""What refused requests are counted as."""

RESPONSES: Final = "/v1/responses"
INPUT_TOKENS: Final = "/v1/responses/input_tokens"
COMPACT: Final = "/v1/responses/compact"
MODELS: Final = "/v1/models"
METRICS_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"

HEADER_BYTES: Final = 32 * 1024
"""What one header, or the first line, may take: Codex sends JSON in some."""

READ_BYTES: Final = 64 * 1024
"""Unread bytes of a body from which on, twice as many, its connection is not read."""

_log: Final = logging.getLogger(__name__)


class HttpServer:
    """Serves the Responses API over HTTP. See ``base.TransportServer``.

    ``metrics`` returns the Prometheus text of ``/metrics``. Without ``upgrade`` a WebSocket
    handshake is answered with 426. ``capacity`` are those of all processes of the server, where it
    has several; ``share`` bounds the requests of one owner that create.
    """

    def __init__(
        self,
        services: Services,
        config: HttpConfig,
        upgrade: Upgrade | None = None,
        *,
        metrics: Callable[[], Awaitable[bytes]] | None = None,
        capacity: Capacity | None = None,
        share: Share | None = None,
    ) -> None:
        self._services = services
        self._config = config
        self._upgrade_to = upgrade
        self._metrics_text = metrics or _no_metrics
        self._safety = Safety(keyless=config.keyless, origins=config.origins)
        self.live = LiveCalls(config.max_connections, share=share)
        self.connections = TcpConnections(
            config.max_connections, new_id=partial(services.ids.new, "req_"), capacity=capacity
        )
        creates = CreateCalls(services, config, self.live)
        self._routes = self._table(
            creates,
            StoredCalls(services, config, creates),
            ModelCalls(services, websocket=upgrade is not None),
            UsageCalls(services),
        )
        self._server: web.Server | None = None
        self._listeners: list[asyncio.Server] = []
        self._draining = False
        self._idle = asyncio.Event()
        self._idle.set()
        self._busy = 0

    async def start(self) -> list[str]:
        """Listens on every address that the configured one stands for."""
        loop = asyncio.get_running_loop()
        config = self._config
        server = self._server = web.Server(
            self._handle, request_factory=self._request, handler_cancellation=True
        )
        settings: dict[str, Any] = {
            "loop": loop,
            "access_log": None,
            "keepalive_timeout": config.keepalive_timeout,
            "lingering_time": config.linger_timeout,
            "max_field_size": HEADER_BYTES,
            "max_line_size": HEADER_BYTES,
            "read_bufsize": READ_BYTES,
            "write_timeout": config.write_timeout,
        }
        sockets = listen(config.address, reuse_port=config.reuse_port)
        port = sockets[0].getsockname()[1]
        connect = partial(TcpConnection, server, self.connections, **settings)
        for each in sockets:
            listener = await loop.create_server(connect, sock=each, ssl=config.tls, backlog=BACKLOG)
            self._listeners.append(listener)
        return [f"{config.address.rpartition(':')[0]}:{port}"]

    async def drain(self, seconds: float) -> None:
        """``/healthz`` says 503, idle connections close, requests end; then the server stops."""
        self._draining = True
        if self._config.reuse_port:
            # Another process listens on the address: new connections are for that one.
            self._close_listeners()
        for connection in list(self.connections.open):
            if not connection.busy:
                connection.force_close()
        try:
            async with asyncio.timeout(seconds + 2 * FAREWELL):
                upgraded = self._upgrade_to
                async with asyncio.TaskGroup() as goodbyes:
                    goodbyes.create_task(self.live.drain(seconds))
                    if upgraded is not None:
                        goodbyes.create_task(upgraded.drain(seconds))
                await self._idle.wait()
        except TimeoutError:
            _log.warning("a request did not end in time")
        await self.stop()

    async def stop(self) -> None:
        """Closes the listeners, then cancels whatever still runs after a short grace."""
        self._close_listeners()
        server, self._server = self._server, None
        if server is not None:
            await server.shutdown(self._config.stop_grace)
            await asyncio.gather(*self.connections.tasks, return_exceptions=True)

    def _close_listeners(self) -> None:
        for listener in self._listeners:
            listener.close()
        self._listeners.clear()

    def _request(
        self,
        message: RawRequestMessage,
        payload: StreamReader,
        protocol: web.RequestHandler,
        writer: AbstractStreamWriter,
        task: "asyncio.Task[None]",
    ) -> web.BaseRequest:
        return web.Request(message, payload, protocol, writer, task, asyncio.get_running_loop())

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        """However a handler ends, the caller sees a typed answer with the request's id."""
        assert isinstance(request, web.Request)
        connection = request.protocol
        assert isinstance(connection, TcpConnection)
        template, name = _template(request.path)
        services = self._services
        call = Call(
            request=request,
            caller=caller_of(request.headers, new_id=services.ids.new, address=request.remote),
            started=services.clock(),
            clock=services.clock,
            cors=self._safety.headers(request),
            create_reader=connection.create_reader,
            name=name,
        )
        self._begin(connection)
        try:
            response = await self._answer(call, connection, template)
        except ApiError as error:
            await services.refused(error, request.remote or "", TRANSPORT)
            response = error_response(error)
        except Exception:
            _log.exception("http request failed, request %s", call.request_id)
            response = error_response(server_error())
        finally:
            self._end(connection)
        if not response.prepared:
            if "x-request-id" not in response.headers:
                call.stamp(response, {})
            if self._draining or not connection.admitted:
                response.force_close()
        return response

    def _begin(self, connection: TcpConnection) -> None:
        connection.busy = True
        self._busy += 1
        self._idle.clear()

    def _end(self, connection: TcpConnection) -> None:
        connection.busy = False
        self._busy -= 1
        if not self._busy:
            self._idle.set()

    async def _answer(
        self, call: Call, connection: TcpConnection, template: str
    ) -> web.StreamResponse:
        request = call.request
        if not connection.admitted:
            raise self.connections.refusal()
        self._safety.check(request)
        preflight = self._safety.preflight(request)
        if preflight is not None:
            return preflight
        methods = self._routes.get(template)
        if methods is None:
            where = f"{request.method} {request.path[:128]}"
            raise ApiError.of("unknown_url", f"Invalid URL ({where}).")
        handler = methods.get("GET" if request.method == "HEAD" else request.method)
        if handler is None:
            return _not_allowed(request, methods)
        return await handler(call)

    def _table(
        self, creates: CreateCalls, stored: StoredCalls, models: ModelCalls, usage: UsageCalls
    ) -> Mapping[str, Mapping[str, Handler]]:
        """Path -> method -> handler."""
        return {
            RESPONSES: {"POST": creates.create, "GET": self._upgrade},
            INPUT_TOKENS: {"POST": stored.input_tokens},
            COMPACT: {"POST": stored.compact},
            f"{RESPONSES}/{{id}}": {"GET": stored.get, "DELETE": stored.delete},
            f"{RESPONSES}/{{id}}/cancel": {"POST": stored.cancel},
            f"{RESPONSES}/{{id}}/input_items": {"GET": stored.input_items},
            MODELS: {"GET": models.list},
            f"{MODELS}/{{id}}": {"GET": models.get},
            "/v1/usage": {"GET": usage.usage},
            "/v1/capabilities": {"GET": models.capabilities},
            "/healthz": {"GET": self._health},
            "/readyz": {"GET": self._ready},
            "/metrics": {"GET": self._metrics},
        }

    async def _upgrade(self, call: Call) -> web.StreamResponse:
        if self._draining:
            raise draining()
        if self._upgrade_to is not None:
            return await self._upgrade_to.handle(call.request)
        response = error_response(
            ApiError.of(
                "upgrade_required",
                "This server does not speak WebSocket here: send a POST, with 'stream': true for "
                "events.",
            )
        )
        # What follows a declined handshake on the same connection need not be HTTP.
        response.force_close()
        response.headers["Connection"] = "Upgrade, close"
        return response

    async def _health(self, call: Call) -> web.Response:
        if self._draining:
            raise draining()
        return json_response(b'{"status":"ok"}')

    async def _ready(self, call: Call) -> web.Response:
        """Whether a load balancer should send work here; a 503 says what is lacking."""
        lacking = self._services.readiness.lacking
        if self._draining:
            raise draining()
        if not lacking:
            return json_response(b'{"status":"ready"}')
        body = {"status": "not_ready", "lacking": dict(lacking)}
        return json_response(msgspec.json.encode(body), status=503)

    async def _metrics(self, call: Call) -> web.Response:
        self._services.keys.authenticate(call.authorization)
        text = await self._metrics_text()
        return web.Response(body=text, headers={"Content-Type": METRICS_TYPE})


async def _no_metrics() -> bytes:
    return b""


def _template(path: str) -> tuple[str, str]:
    """A path as the table of routes has it, and the id in it.

    >>> _template("/v1/responses/resp_1/cancel")
    ('/v1/responses/{id}/cancel', 'resp_1')
    """
    if path.startswith(MODELS + "/"):
        # The names of models may have slashes.
        return f"{MODELS}/{{id}}", path[len(MODELS) + 1 :]
    if path.startswith(RESPONSES + "/") and path not in (INPUT_TOKENS, COMPACT):
        name, slash, rest = path[len(RESPONSES) + 1 :].partition("/")
        return f"{RESPONSES}/{{id}}{slash}{rest}", name
    return path, ""


def _not_allowed(request: web.Request, methods: Mapping[str, Handler]) -> web.Response:
    error = ApiError.of("method_not_allowed", f"Not allowed: {request.method[:16]} on this URL.")
    response = error_response(error)
    response.headers["Allow"] = ", ".join(methods)
    return response


def listen(address: str, *, reuse_port: bool = False) -> list[socket.socket]:
    """Sockets that listen on ``HOST:PORT``; port 0 picks a free one.

    Raises :class:`OSError` with one line of text when the address cannot be had.
    """
    host, port = split_address(address)
    sockets: list[socket.socket] = []
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        for family, _, _, _, where in dict.fromkeys(found):
            made = _bound(family, (*where[:1], port, *where[2:]), reuse_port=reuse_port)
            sockets.append(made)
            port = made.getsockname()[1]
    except OSError as error:
        for made in sockets:
            made.close()
        raise OSError(error.errno, f"cannot listen on {address}: {error.strerror}") from error
    return sockets


def _bound(
    family: socket.AddressFamily, where: tuple[object, ...], *, reuse_port: bool
) -> socket.socket:
    made = socket.socket(family, socket.SOCK_STREAM)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if reuse_port:
            made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        if family == socket.AF_INET6:
            made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        made.bind(where)
        made.listen(BACKLOG)
        made.setblocking(False)
    except OSError:
        made.close()
        raise
    return made
