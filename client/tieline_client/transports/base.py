"""What a transport is: it carries requests one way and events the other, and decides nothing.

A transport is one file in this folder and one line in the table of ``transports/__init__``.
"""

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import Final, Literal, Protocol
from urllib.parse import unquote, urlsplit
from urllib.request import getproxies, proxy_bypass

from msgspec import Struct

from tieline.events import BY_TYPE, Event, LifecycleEvent, Opaque, ResponseCreated
from tieline.requests import Request
from tieline_client._connection import Loss
from tieline_client.errors import ProtocolViolation, UnsupportedUrl

DEFAULT_LIMIT: Final = 32 * 1024 * 1024
"""Bytes of one message, both ways, unless either side states another limit."""


class Tls(Struct, frozen=True, kw_only=True):
    """Paths of PEM files; all optional.

    ``ca``: whom to trust instead of the system's authorities. ``cert`` and ``key``: who we are
    (mutual TLS). ``server_name``: the name to find in the server's certificate.
    """

    ca: str | None = None
    cert: str | None = None
    key: str | None = None
    server_name: str | None = None


class Options(Struct, frozen=True, kw_only=True):
    """How a connection behaves. Times are seconds.

    ``connect_timeout``: until the server has answered. ``close_timeout``: how long closing may
    wait for it. ``heartbeat``: silence of ours after which we say that we live.
    ``keepalive`` and ``keepalive_timeout``: pings of the connection after that much silence, and
    how long one may go unanswered (any byte is an answer). ``idle_timeout``: silence in the middle
    of a response after which an HTTP connection, which has no pings, is lost.
    ``max_receive_bytes``: the largest message that is read. ``merge``: "never" asks for every
    event as it was made, even when we read slowly. ``channel``: options of the gRPC library, which
    win over ours.
    """

    connect_timeout: float = 10.0
    close_timeout: float = 5.0
    heartbeat: float = 15.0
    keepalive: float = 30.0
    keepalive_timeout: float = 10.0
    idle_timeout: float = 300.0
    max_receive_bytes: int = DEFAULT_LIMIT
    merge: Literal["auto", "never"] = "auto"
    channel: Mapping[str, str | int] = {}


class Endpoint(Struct, frozen=True, kw_only=True):
    """Where a connection goes, and as whom. ``path``: the API's base path, without a last ``/``."""

    scheme: str
    host: str
    port: int
    path: str = ""
    api_key: str | None = None
    tls: Tls | None = None
    options: Options = Options()

    @property
    def address(self) -> str:
        """``host:port``, an IPv6 host in brackets."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


class Proxy(Struct, frozen=True, kw_only=True):
    """What the environment says of the way to an endpoint."""

    scheme: str
    """http; or https, where the way to the proxy itself is secured."""
    host: str
    port: int
    user: str | None = None
    password: str = ""

    @property
    def address(self) -> str:
        """``host:port``, an IPv6 host in brackets."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


_PROXIES: Final = {
    "ws": ("ws", "http", "all"),
    "http": ("http", "all"),
    "wss": ("wss", "https", "all"),
    "https": ("https", "all"),
    "grpcs": ("grpc", "https", "all"),
}
"""Scheme -> the variables ``NAME_PROXY`` that hold for it; the first that is set wins."""
_PROXY_PORTS: Final = {"http": 80, "https": 443}


def proxy_of(endpoint: Endpoint) -> Proxy | None:
    """The proxy that the environment names for an endpoint; None where there is none.

    Raises :class:`UnsupportedUrl` for one that cannot be used. What it holds is never shown.
    """
    named = getproxies()
    name = next((name for name in _PROXIES[endpoint.scheme] if named.get(name)), None)
    # NO_PROXY lists hosts, and hosts with a port.
    if name is None or proxy_bypass(endpoint.address) or proxy_bypass(endpoint.host):
        return None
    given = named[name]
    try:
        parts = urlsplit(given if "://" in given else f"http://{given}")
        user = None if parts.username is None else unquote(parts.username)
        port = parts.port or _PROXY_PORTS[parts.scheme]
        if parts.hostname and parts.scheme in _PROXY_PORTS and ":" not in (user or ""):
            return Proxy(
                scheme=parts.scheme,
                host=parts.hostname,
                port=port,
                user=user,
                password=unquote(parts.password or ""),
            )
    except (ValueError, KeyError):
        # What cannot be read is told below; this error would show it.
        pass
    raise UnsupportedUrl(
        f"{name.upper()}_PROXY is not http://[USER:PASSWORD@]HOST:PORT; "
        "NO_PROXY names hosts that are reached without a proxy"
    )


class Transport(Protocol):
    """One open connection."""

    @property
    def name(self) -> str:
        """grpc, websocket or sse."""
        ...

    @property
    def extended(self) -> bool:
        """Whether members of ours may go with a create: another server could refuse them."""
        ...

    async def extensions(self) -> frozenset[str] | None:
        """What the server offers beyond OpenAI's API; None where it says so in SessionStarted.

        Raises :class:`tieline_client.errors.NotSent` when it cannot be asked.
        """
        ...

    async def send(self, request: Request) -> bool:
        """Hands a request to the writer; returns when it has a place, in the order of calls.

        Whether it may reach the server: False only when it certainly never does.
        Raises :class:`tieline.errors.RequestTooLarge` for a request beyond what the server
        takes, and :class:`tieline_client.errors.Unsupported` for one that this transport cannot
        carry. A connection that has ended says so in :meth:`receive`, not here.
        """
        ...

    async def receive(self) -> Sequence[Event | Loss]:
        """The next events, in order; none at all when the server has ended the connection well.

        A :class:`Loss` among them ends one create while the connection lives on.
        Not to be cancelled unless the connection is given up. Raises
        :class:`tieline.errors.ApiError` when the server says why it ended the connection, and
        :class:`tieline_client.errors.ConnectionLost` when it says nothing.
        """
        ...

    def limit(self, send_bytes: int) -> None:
        """The server takes messages of at most this size."""
        ...

    async def finish(self) -> None:
        """Says goodbye and that nothing more will be sent; :meth:`receive` tells the end."""
        ...

    async def close(self) -> None:
        """Gives the connection up, at once, and ends every task of the transport. Idempotent."""
        ...


_VITAL: Final = frozenset(
    name for name, kind in BY_TYPE.items() if issubclass(kind, LifecycleEvent)
)
"""Events without which a turn neither begins nor ends."""


CHECKED: Final[frozenset[type[Event]]] = frozenset({Opaque, ResponseCreated})
"""What :func:`checked` is to see; all others pass, and most are deltas."""


def checked(event: Event) -> Event:
    """The event, unless a turn would wait for ever for what it should have said.

    An event of a type that has no class is carried as it is, and so is a delta that lacks
    something. Raises :class:`tieline_client.errors.ProtocolViolation` for an event that names no
    type, for one of the life of a response without a response that can be read, and for a
    response.created without an id.
    """
    if isinstance(event, Opaque):
        if not event.name:
            raise ProtocolViolation("the server sent an event without a type")
        if event.name in _VITAL:
            raise ProtocolViolation(f"the server sent {event.name} without a response")
    elif isinstance(event, ResponseCreated) and not event.response.id:
        raise ProtocolViolation("the server sent response.created without an id")
    return event


Opener = Callable[[Endpoint], Awaitable[Transport]]
"""Opens a connection; raises ConnectTimeout, ConnectionLost or ApiError."""


def parse(
    url: str,
    *,
    ports: Mapping[str, int],
    api_key: str | None,
    tls: Tls | None,
    options: Options,
    based: Collection[str] = (),
) -> Endpoint:
    """The endpoint of a URL ``scheme://host[:port]``; ``ports`` names the schemes.

    Those of ``based`` may have a base path as well.

    >>> parse("grpc://[::1]", ports={"grpc": 50051}, api_key=None, tls=None,
    ...       options=Options()).address
    '[::1]:50051'
    """
    parts = urlsplit(url)
    known = ", ".join(f"{scheme}://" for scheme in ports)
    if parts.scheme not in ports:
        raise UnsupportedUrl(f"{url!r} does not begin with one of: {known}")
    try:
        port = parts.port
    except ValueError:
        port = 0
    path = parts.path.rstrip("/")
    with_path = parts.scheme in based
    if not parts.hostname or port == 0 or (path and not with_path) or parts.query:
        shape = "HOST:PORT[/PATH]" if with_path else "HOST:PORT"
        raise UnsupportedUrl(f"{url!r} is not {parts.scheme}://{shape}")
    if parts.username is not None:
        raise UnsupportedUrl("the URL holds a user name; a key is given as api_key")
    return Endpoint(
        scheme=parts.scheme,
        host=parts.hostname,
        port=port or ports[parts.scheme],
        path=path,
        api_key=api_key,
        tls=tls,
        options=options,
    )
