"""The transports: URL scheme -> where its ``open`` lives. A new one is one file and a line here."""

from importlib import import_module
from typing import Final, NamedTuple

from tieline_client.transports.base import Endpoint, Opener, Options, Tls, Transport, parse


class _Entry(NamedTuple):
    path: str
    port: int


TRANSPORTS: Final[dict[str, _Entry]] = {
    "grpc": _Entry("tieline_client.transports.grpc:open_plain", 50051),
    "grpcs": _Entry("tieline_client.transports.grpc:open_tls", 443),
}
"""Scheme -> import path of its opener, default port."""


def endpoint(url: str, *, api_key: str | None, tls: Tls | None, options: Options) -> Endpoint:
    """Reads a URL; raises :class:`tieline_client.errors.UnsupportedUrl`."""
    ports = {scheme: entry.port for scheme, entry in TRANSPORTS.items()}
    return parse(url, ports=ports, api_key=api_key, tls=tls, options=options)


def opener(scheme: str) -> Opener:
    """The opener of a scheme of the table; its module is imported only now."""
    module, _, name = TRANSPORTS[scheme].path.partition(":")
    found: Opener = getattr(import_module(module), name)
    return found


__all__ = ["TRANSPORTS", "Endpoint", "Options", "Tls", "Transport", "endpoint", "opener"]
