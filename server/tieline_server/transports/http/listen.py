"""Listening sockets: one for each address that a name stands for, all on one port."""

import socket

from tieline_server.config.toml_tables import split_address

BACKLOG = 1024


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
