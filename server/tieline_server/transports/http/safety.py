"""What keeps a web page from using a server that asks for no key.

Such a server listens on loopback only, which a browser on the same machine reaches for any page.
Three things a page cannot forge: its ``Origin``, the name in ``Host`` (a name that an attacker
rebound to 127.0.0.1 is still the attacker's), and that JSON is posted with a preflight only.
"""

import ipaddress
import re
from typing import Final

from aiohttp import web
from msgspec import Struct

from tieline.errors import ApiError

EXPOSED: Final = (
    "x-request-id, openai-processing-ms, server-timing, retry-after, retry-after-ms, x-should-retry"
)
"""What a page of a listed origin may read of an answer's headers."""

_HOST: Final = re.compile(r"(?:\[([0-9A-Fa-f:.]+)\]|([A-Za-z0-9.-]+))(?::[0-9]*)?")
"""RFC 9110 7.2: a bracketed IPv6 address, or a name, then perhaps a port."""

PREFLIGHT_AGE: Final = "600"
"""Seconds that a browser may remember a preflight."""


class Safety(Struct, frozen=True, kw_only=True):
    """Who may come by a browser. ``origins`` are those whose pages may use this server."""

    keyless: bool
    origins: frozenset[str]

    def check(self, request: web.Request) -> None:
        """Refuses what only a browser would send; raises :class:`ApiError` 403 or 415."""
        if not self.keyless:
            return
        headers = request.headers
        origin = headers.get("Origin")
        if origin is not None and origin not in self.origins:
            raise ApiError.of("permission_denied", "This origin may not use the server.")
        if not is_own(headers.get("Host", "localhost")):
            raise ApiError.of("permission_denied", "This server does not go by that host name.")
        if request.method == "POST" and request.can_read_body and not _is_json(request):
            raise ApiError.of(
                "unsupported_media_type", "The body must be sent as 'application/json'."
            )

    def headers(self, request: web.Request) -> dict[str, str]:
        """The CORS headers of an answer."""
        origin = request.headers.get("Origin")
        if origin is None or origin not in self.origins:
            return {}
        return {
            "Access-Control-Allow-Origin": origin,
            "Access-Control-Expose-Headers": EXPOSED,
            "Vary": "Origin",
        }

    def preflight(self, request: web.Request) -> web.Response | None:
        """The answer to a browser that asks beforehand, or None where it is not such a request."""
        headers = request.headers
        if request.method != "OPTIONS" or headers.get("Origin") not in self.origins:
            return None
        allowed = {
            "Access-Control-Allow-Methods": "GET, POST, DELETE",
            "Access-Control-Allow-Headers": headers.get("Access-Control-Request-Headers", ""),
            "Access-Control-Max-Age": PREFLIGHT_AGE,
        }
        if "Access-Control-Request-Private-Network" in headers:
            allowed["Access-Control-Allow-Private-Network"] = "true"
        return web.Response(status=204, headers=allowed)


def _is_json(request: web.Request) -> bool:
    return "Content-Type" in request.headers and request.content_type == "application/json"


def is_own(host: str) -> bool:
    """Whether a ``Host`` names this machine by loopback, whatever the port.

    >>> is_own("localhost:8080"), is_own("[::1]"), is_own("127.0.0.1.example.com")
    (True, True, False)
    """
    found = _HOST.fullmatch(host)
    if found is None:
        return False
    name = found[1] or found[2]
    if name.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False
