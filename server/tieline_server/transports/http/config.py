"""Settings of the HTTP server, and its TLS."""

import errno
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Self

from msgspec import Struct

from tieline_server.config import Config


class HttpConfig(Struct, frozen=True, kw_only=True):
    """How the HTTP server listens and what it allows. Times are seconds, sizes bytes."""

    address: str = "127.0.0.1:8080"
    tls: ssl.SSLContext | None = None
    keyless: bool = True
    """Whether there are no keys, so that only what a browser cannot forge protects the server."""
    origins: frozenset[str] = frozenset()
    """Origins that a browser may come from."""
    merge: bool = True
    """Whether deltas that a slow reader has not taken may join."""
    heartbeat: float = 15.0
    """Silence on a stream of events after which a comment says that it lives."""
    write_timeout: float = 30.0
    """How long one write may be stuck before its stream ends."""
    read_timeout: float = 30.0
    """How long the rest of a body may be silent."""
    keepalive_timeout: float = 75.0
    """How long a connection may be idle, or take to send the head of its first request."""
    linger_timeout: float = 10.0
    """How long the rest of a refused body is read, so that its sender sees the refusal."""
    stop_grace: float = 0.25
    """How long ``stop`` lets requests finish by themselves."""
    max_connections: int = 4096
    """Connections that this process has open, upgraded ones included."""
    reuse_port: bool = False
    """Whether several processes may listen on the same address (SO_REUSEPORT)."""

    @classmethod
    def of(cls, config: Config, *, reuse_port: bool = False) -> Self:
        """The settings that concern this transport; reads the TLS files."""
        tls = None
        if config.tls_cert is not None and config.tls_key is not None:
            tls = tls_context(config.tls_cert, config.tls_key, config.tls_client_ca)
        return cls(
            address=config.http,
            tls=tls,
            keyless=config.api_keys is None,
            origins=config.origins,
            merge=config.merge != "never",
            heartbeat=config.heartbeat,
            write_timeout=config.write_timeout,
            reuse_port=reuse_port,
            max_connections=config.max_connections,
        )


def tls_context(certificate: Path, key: Path, client_ca: Path | None = None) -> ssl.SSLContext:
    """TLS for a server; with ``client_ca`` every client must show a certificate (mTLS).

    Raises :class:`OSError` that names a file that is unusable.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.set_alpn_protocols(["http/1.1"])
    _load(certificate, lambda: context.load_cert_chain(certificate, key, ""))
    if client_ca is not None:
        _load(client_ca, lambda: context.load_verify_locations(client_ca))
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def _load(path: Path, load: Callable[[], None]) -> None:
    try:
        load()
    except ssl.SSLError as error:
        raise OSError(errno.EINVAL, "no usable PEM certificate with its key", str(path)) from error
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from error
