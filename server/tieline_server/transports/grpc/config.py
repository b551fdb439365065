"""Settings of the gRPC server, and the channel options that they become.

The option names are C-core's own strings. One of them is misspelt in many servers
(``min_recv_ping_interval...``, after the C macro), where it is silently ignored and the default
of five minutes ends every quiet stream: see ``ping_interval``.
"""

import errno
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Final, Self

import grpc
from msgspec import Struct

from tieline_server.config import MIB, Config

HEADROOM: Final = MIB // 4
"""Bytes past the limit of a message that the library still lets through.

A message in between is answered in-band and the connection lives; past it the library ends the
stream with RESOURCE_EXHAUSTED, and all its state is gone.
"""


INT_MAX: Final = 2**31 - 1
"""The largest value of a channel argument: a C int."""


class Tls(Struct, frozen=True, kw_only=True):
    """PEM files as bytes. With ``client_ca`` every client must show a certificate (mTLS)."""

    certificate: bytes
    key: bytes
    client_ca: bytes | None = None

    @classmethod
    def read(cls, certificate: Path, key: Path, client_ca: Path | None = None) -> Self:
        """Reads and checks the files; raises :class:`OSError` that names one that is unusable.

        Checked here because the gRPC library says no more than that it could not listen.
        """
        tls = cls(
            certificate=certificate.read_bytes(),
            key=key.read_bytes(),
            client_ca=client_ca.read_bytes() if client_ca else None,
        )
        _check(certificate, lambda context: context.load_cert_chain(certificate, key, ""))
        if client_ca is not None:
            _check(client_ca, lambda context: context.load_verify_locations(client_ca))
        return tls

    def credentials(self) -> grpc.ServerCredentials:
        """The credentials of a listening port."""
        return grpc.ssl_server_credentials(
            [(self.key, self.certificate)],
            root_certificates=self.client_ca,
            require_client_auth=self.client_ca is not None,
        )


class GrpcConfig(Struct, frozen=True, kw_only=True):
    """How the gRPC server listens and what it allows. Times are seconds, sizes bytes."""

    addresses: tuple[str, ...] = ("127.0.0.1:50051",)
    tls: Tls | None = None
    reflection: bool = False
    merge: bool = True
    """Whether deltas that a slow reader has not taken may join."""
    heartbeat: float = 15.0
    """Silence in our direction after which a connection says that it lives."""
    write_timeout: float = 30.0
    """How long one write may be stuck before its connection ends."""
    stop_grace: float = 0.25
    """How long ``stop`` lets calls finish by themselves."""
    max_connections: int = 4096
    """Connections that this process has open, with calls or without."""
    max_calls: int = 512
    """Calls that may be open, all connections and workers together."""
    max_owner_calls: int = 128
    """Calls that one owner may have open in this process."""
    max_message_bytes: int = 4 * MIB
    """The largest message. The library gathers one for each open call, uncounted."""
    first_message_timeout: float = 60.0
    """How long the first message of a call may take."""
    max_streams: int = 1024
    """Streams that one HTTP/2 connection may have open."""
    handshake_timeout: float = 20.0
    """How long a connection may take to say that it speaks HTTP/2, over TLS or in the clear.

    The library's own limits are two minutes, and one for the settings of HTTP/2.
    """
    ping_interval: float = 10.0
    """The fastest keepalive pings that a client may rely on: gRPC's own floor for most of them.

    What comes in less than half of it is too early, which leaves room for pings that the network
    bunches. The third one ends the connection (GOAWAY with ENHANCE_YOUR_CALM).
    """
    keepalive: float = 60.0
    """Silence on a connection after which we ping it."""
    keepalive_timeout: float = 20.0
    """How long an unanswered ping is waited for before the connection counts as dead."""
    reuse_port: bool = False
    """Whether several processes may listen on the same address (SO_REUSEPORT)."""

    @classmethod
    def of(cls, config: Config, *, reuse_port: bool = False) -> Self:
        """The part of the server's settings that concerns gRPC; reads the TLS files."""
        tls = None
        if config.tls_cert is not None and config.tls_key is not None:
            tls = Tls.read(config.tls_cert, config.tls_key, config.tls_client_ca)
        return cls(
            addresses=(config.grpc,),
            tls=tls,
            reflection=config.reflection,
            ping_interval=config.grpc_ping_interval,
            merge=config.merge != "never",
            heartbeat=config.heartbeat,
            write_timeout=config.write_timeout,
            max_connections=config.max_connections,
            max_calls=config.max_calls,
            max_owner_calls=config.max_owner_calls,
            max_message_bytes=config.max_grpc_message_bytes,
            reuse_port=reuse_port,
        )

    def options(self, *, message_bytes: int) -> tuple[tuple[str, int], ...]:
        """Channel arguments of a server whose connections take messages of so many bytes."""
        return (
            ("grpc.max_receive_message_length", min(message_bytes + HEADROOM, INT_MAX)),
            ("grpc.max_send_message_length", -1),
            ("grpc.server_handshake_timeout_ms", _ms(self.handshake_timeout)),
            ("grpc.http2.min_ping_interval_without_data_ms", _ms(self.ping_interval / 2)),
            ("grpc.keepalive_permit_without_calls", 1),
            ("grpc.keepalive_time_ms", _ms(self.keepalive)),
            ("grpc.keepalive_timeout_ms", _ms(self.keepalive_timeout)),
            # Without it the library waits a minute for a half-open peer's ping (measured, 1.85).
            ("grpc.http2.ping_timeout_ms", _ms(self.keepalive_timeout)),
            # At the largest number of all it aborts the process (measured, 1.85).
            ("grpc.max_allowed_incoming_connections", min(self.max_connections, INT_MAX - 1)),
            ("grpc.max_concurrent_streams", self.max_streams),
            ("grpc.so_reuseport", int(self.reuse_port)),
        )


def _check(path: Path, load: Callable[[ssl.SSLContext], None]) -> None:
    try:
        load(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER))
    except ssl.SSLError as error:
        raise OSError(errno.EINVAL, "no usable PEM certificate with its key", str(path)) from error


def _ms(seconds: float) -> int:
    return min(round(seconds * 1000), INT_MAX)
