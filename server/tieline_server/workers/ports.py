"""Addresses that several processes will listen on, kept from everybody else.

A socket that is bound and never listens takes no connection and holds the port. It is bound as
if it were the only one, so that a port that is taken is refused, and opened to the workers only
then: those of the same user that say SO_REUSEPORT as well.
"""

import socket
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager

from tieline_server.config import ConfigError, flag
from tieline_server.config.toml_tables import split_address


@contextmanager
def reserved(addresses: Mapping[str, str]) -> Iterator[dict[str, str]]:
    """The addresses by name, with a real port where 0 was asked for; held until the end.

    Raises :class:`ConfigError` where one cannot be had.
    """
    with ExitStack() as stack:
        yield {name: _reserve(name, address, stack) for name, address in addresses.items()}


def _reserve(name: str, address: str, stack: ExitStack) -> str:
    host, port = split_address(address)
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        for family, _, _, _, where in dict.fromkeys(found):
            bound = stack.enter_context(socket.socket(family, socket.SOCK_STREAM))
            port = _bind(bound, (*where[:1], port, *where[2:]))
    except OSError as error:
        raise ConfigError(f"{flag(name)}: cannot listen on {address}: {error.strerror}") from None
    return f"{address.rpartition(':')[0]}:{port}"


def _bind(bound: socket.socket, where: tuple[object, ...]) -> int:
    # While it is bound: connections of an earlier server that wait for their end are no obstacle.
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if bound.family == socket.AF_INET6:
        bound.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
    bound.bind(where)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 0)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    port: int = bound.getsockname()[1]
    return port
