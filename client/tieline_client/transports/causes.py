"""Why a connection could not be made: what a library says of it, as its likely cause.

The libraries tell the same in words of their own. What no row of the table knows is told as the
library told it, on one line.
"""

import re
from typing import Final

from tieline_client.transports.base import Endpoint

_OTHERS: Final = {
    "plain": {"grpcs": "grpc", "wss": "ws", "https": "http"},
    "secure": {"grpc": "grpcs", "ws": "wss", "http": "https"},
    "http": {"grpc": "http", "grpcs": "https"},
    "grpc": {"ws": "grpc", "http": "grpc", "wss": "grpcs", "https": "grpcs"},
}
"""What a server seems to speak -> scheme that was asked for -> scheme to ask for."""

_UNTRUSTED: Final = "its certificate is of an authority that is not trusted"

_CAUSES: Final[tuple[tuple[re.Pattern[str], str, str | None], ...]] = tuple(
    (re.compile(pattern, re.DOTALL), cause, other)
    for pattern, cause, other in (
        ("certificate has expired", "its certificate has expired", None),
        ("not yet valid", "its certificate is not valid yet", None),
        (
            "[Hh]ostname mismatch|IP address mismatch|Hostname Verification",
            "its certificate is for another name than {host}",
            None,
        ),
        ("CERTIFICATE_VERIFY_FAILED", f"{_UNTRUSTED}: give its file as --ca, or Tls(ca=...)", None),
        (
            "CERTIFICATE_REQUIRED|certificate required",
            "it wants a certificate of ours: --cert and --key, or Tls(cert=..., key=...)",
            None,
        ),
        ("WRONG_VERSION_NUMBER|wrong version number", "it does not speak TLS there", "plain"),
        (r"Expected HTTP/.*b'\\x15\\x03|HTTP status 400.*HTTPS", "it wants TLS there", "secure"),
        (r"Expected HTTP/.*b'\\x00\\x00", "it speaks HTTP/2 there, as gRPC does", "grpc"),
        (
            r"http1\.x server|Expected SETTINGS frame|selected ALPN",
            "it speaks HTTP/1 there, and not gRPC",
            "http",
        ),
        ("Expected HTTP/", "it does not speak HTTP there", None),
        ("Connection refused", "Connection refused: no server listens there", None),
        ("Domain name not found|[Nn]ame or service not known", "there is no such host", None),
    )
)
"""What a library says, its likely cause, and what to ask for instead; the first row wins."""

_GRPC_NOISE: Final = re.compile(
    r"^failed to connect to all addresses; last error: (?:[A-Z_]+: )?(?:ipv[46]:\S+?: )?"
)


def likely(said: str, endpoint: Endpoint) -> str:
    """The likely cause of what a library has said.

    >>> likely("Connection refused", Endpoint(scheme="ws", host="h", port=1))
    'Connection refused: no server listens there'
    """
    for pattern, cause, other in _CAUSES:
        if pattern.search(said):
            return cause.format(host=endpoint.host) + _instead(endpoint, other)
    return " ".join(_GRPC_NOISE.sub("", said).split())


_GRPC_PEER: Final = re.compile(r"ipv[46]:(\S+:(\d+)): ")


def proxy_in(said: str, endpoint: Endpoint) -> str | None:
    """The address that gRPC has tried, where that is not the endpoint's own.

    >>> at = Endpoint(scheme="grpc", host="h", port=1)
    >>> proxy_in("last error: UNKNOWN: ipv4:1.2.3.4:3128: Connection refused", at)
    '1.2.3.4:3128'
    """
    tried = _GRPC_PEER.search(said)
    return tried[1] if tried is not None and int(tried[2]) != endpoint.port else None


def unanswered(endpoint: Endpoint) -> str:
    """The likely cause where a server closes a connection and has said nothing on it."""
    plain = endpoint.scheme in _OTHERS["secure"]
    guess = "wants TLS" if plain else "is gRPC's port"
    instead = _instead(endpoint, "secure" if plain else "grpc")
    return f"it closed the connection and said nothing, perhaps because it {guess}{instead}"


def _instead(endpoint: Endpoint, other: str | None) -> str:
    scheme = _OTHERS.get(other or "", {}).get(endpoint.scheme)
    return f": use {scheme}://" if scheme else ""
