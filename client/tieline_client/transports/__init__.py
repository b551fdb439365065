"""The transports: URL scheme -> where its ``open`` lives. A new one is one file and a line here."""

import logging
from http import HTTPStatus
from importlib import import_module
from typing import Final, NamedTuple

from msgspec.structs import replace

from tieline.errors import ApiError
from tieline_client.transports.base import Endpoint, Opener, Options, Tls, Transport, parse

_log: Final = logging.getLogger("tieline_client")


class _Entry(NamedTuple):
    path: str
    port: int
    based: bool = False
    """Whether the URL may have a base path."""
    fallback: str | None = None
    """The scheme to use at once where the server answers 426 Upgrade Required."""


_WEBSOCKET: Final = "tieline_client.transports.websocket:open_connection"
_SSE: Final = "tieline_client.transports.sse:open_connection"

TRANSPORTS: Final[dict[str, _Entry]] = {
    "grpc": _Entry("tieline_client.transports.grpc:open_plain", 50051),
    "grpcs": _Entry("tieline_client.transports.grpc:open_tls", 443),
    "ws": _Entry(_WEBSOCKET, 80, based=True, fallback="http"),
    "wss": _Entry(_WEBSOCKET, 443, based=True, fallback="https"),
    "http": _Entry(_SSE, 80, based=True),
    "https": _Entry(_SSE, 443, based=True),
}
"""Scheme -> import path of its opener, default port, and what else its URLs can do."""


def endpoint(url: str, *, api_key: str | None, tls: Tls | None, options: Options) -> Endpoint:
    """Reads a URL; raises :class:`tieline_client.errors.UnsupportedUrl`."""
    ports = {scheme: entry.port for scheme, entry in TRANSPORTS.items()}
    based = [scheme for scheme, entry in TRANSPORTS.items() if entry.based]
    return parse(url, ports=ports, based=based, api_key=api_key, tls=tls, options=options)


def beside(url: str) -> str | None:
    """The URL at which the same server speaks HTTP; None where the scheme is HTTP already."""
    scheme, _, rest = url.partition("://")
    entry = TRANSPORTS.get(scheme)
    return f"{entry.fallback}://{rest}" if entry and entry.fallback else None


def opener(scheme: str) -> Opener:
    """The opener of a scheme of the table; its module is imported only now."""
    module, _, name = TRANSPORTS[scheme].path.partition(":")
    found: Opener = getattr(import_module(module), name)
    return found


async def open_connection(endpoint: Endpoint) -> Transport:
    """Opens a connection; raises what its opener raises.

    A server that has no WebSocket says so by 426 (RFC 9110 15.5.22): HTTP is used instead.
    """
    try:
        return await opener(endpoint.scheme)(endpoint)
    except ApiError as error:
        fallback = TRANSPORTS[endpoint.scheme].fallback
        if fallback is None or error.status != HTTPStatus.UPGRADE_REQUIRED:
            raise
    _log.info("%s has no WebSocket: using HTTP and server-sent events", endpoint.address)
    return await opener(fallback)(replace(endpoint, scheme=fallback))


__all__ = [
    "TRANSPORTS",
    "Endpoint",
    "Options",
    "Tls",
    "Transport",
    "beside",
    "endpoint",
    "open_connection",
    "opener",
]
